"""A recipe file and command-line overrides → one validated schema instance."""

import difflib
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeGuard, TypeVar, cast

from pydantic import BaseModel, ValidationError

from posttrain.config.recipe_files import parse_value, read_mapping, recipe_file
from posttrain.errors import ConfigError

Schema = TypeVar("Schema", bound=BaseModel)
_ABSENT: Any = object()

# old keys whose new name is not the nearest in letters (docs/reference/renamed.md)
_RENAMED = {
    "capacity": "max_length",
    "cycle_rounds": "min_rounds",
    "cycle_words": "min_words",
    "edits": "threshold",
    "given": "offline",
    "isolation": "document_masking",
    "limits": "sampling",
    "parameters": "sampling",
    "samples": "n",
    "spool": "parts_dir",
    "updates": "num_iterations",
    "window_share": "duplicate_share",
}
# keys that went to another block, in the recipes that have it
_MOVED = {
    "sampling.batch_size": "rollouts.batch_size",
    "sampling.server": "rollouts",
}
# keys that went, by their place without positions in lists
_GONE = {
    "extends": "a recipe is one file",
    "sft": "rows of judgements for SFT are data of build_sft",
    "sources.fields.reasoning": "rows of judgements for SFT are data of build_sft",
}


def read_recipe(path: Path | str) -> dict[str, Any]:
    """The mapping of a recipe's file, or of a shipped one's name; raises as `read_mapping`."""
    return read_mapping(recipe_file(path))


def load_recipe(
    path: Path | str,
    schema: type[Schema],
    overrides: Sequence[str] = (),
    *,
    read: Callable[[str], dict[str, Any]] = read_recipe,
) -> Schema:
    """Read, merge and validate a recipe.

    Args:
        overrides: `key.path=value`; null takes a key back where its field takes no null.
        read: the mapping of what was given as recipe.

    Raises:
        ConfigError: naming the file, the dotted key, and the nearest valid key or expected type.
    """
    raw = apply_overrides(read(str(path)), overrides)
    given = (override.partition("=") for override in overrides)
    # an empty value is a shell's unset variable, not a null
    if nulls := [k for k, _, text in given if text.strip() and parse_value(text) is None]:
        try:
            schema.model_validate_json(json.dumps(raw))
        except ValidationError as error:
            # behind the key stands which member of a union it was tried as
            places = [item["loc"][-2:] for item in error.errors() if item["input"] is None]
            for key in nulls:
                *_, last = parts = key.split(".")
                if any(last in place for place in places):
                    raw = _set(raw, parts, _ABSENT, full=key)
    return validate(raw, schema, where=str(path))


def apply_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply `key.path=value` items; list items are addressed by position (`sources.0.rows=5`)."""
    seen: set[str] = set()
    for item in overrides:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"override {item!r} is not of the form key.path=value")
        if key in seen:
            raise ConfigError(f"override {key!r} is given twice")
        seen.add(key)
        raw = _set(raw, key.split("."), parse_value(text), full=key)
    return raw


def _set(node: Any, parts: list[str], value: Any, *, full: str) -> Any:
    """A copy with the value at a dotted path; `_ABSENT` takes the key away."""
    head, rest = parts[0], parts[1:]
    if isinstance(node, list):
        items = list(cast(list[Any], node))
        if not head.isdecimal() or int(head) >= len(items):
            raise ConfigError(f"override {full!r}: {head!r} is no position in 0…{len(items) - 1}")
        items[int(head)] = _set(items[int(head)], rest, value, full=full) if rest else value
        return items
    if node is not None and not isinstance(node, dict):
        raise ConfigError(f"override {full!r}: nothing can be set below the value {node!r}")
    below = cast(dict[str, Any], node or {})
    if rest:
        value = _set(below.get(head), rest, value, full=full)
    return {key: kept for key, kept in {**below, head: value}.items() if kept is not _ABSENT}


def validate(raw: Mapping[str, Any], schema: type[Schema], *, where: str) -> Schema:
    """Validate a raw mapping; every problem is listed with its dotted key."""
    try:
        # strict JSON mode: no coercion of scalars, but a list may fill a tuple and text a Path
        return schema.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        items = error.errors()
        # a list whose items were refused is "too short" only for that
        inner = {item["loc"][:k] for item in items for k in range(len(item["loc"]))}
        own = [i for i in items if i["type"] != "too_short" or i["loc"] not in inner]
        unknown = [key for key in raw if key not in schema.model_fields]
        if len(unknown) > len(raw) / 2 and len(raw) > 2:
            raise ConfigError(
                f"{where}: {', '.join(unknown)} are no keys of this stage, which has "
                f"{', '.join(schema.model_fields)}: is it a recipe of another one?"
            ) from None
        lines = [_explain(item, schema) for item in own]
        raise ConfigError(f"{where}: " + "\n  ".join(lines)) from None


def _explain(item: Any, schema: type[BaseModel]) -> str:
    loc, kind, context = item["loc"], item["type"], item.get("ctx", {})
    dotted = ".".join(map(str, loc))
    if kind == "extra_forbidden":
        moved = _MOVED.get(dotted)
        if moved is not None and moved.split(".")[0] in schema.model_fields:
            return f"unknown key {dotted!r} (moved: {moved!r})"
        return _explain_key(loc, _keys_at(schema, loc[:-1]))
    if kind == "literal_error" and loc[-1] == "[key]":  # of a mapping whose keys are some words
        return _explain_key(loc[:-1], context["expected"].split("'")[1::2])
    if kind == "missing":
        return f"{dotted!r} is required"
    if kind == "union_tag_not_found":
        return f"'{dotted}.{context['discriminator'][1:-1]}' is required"
    if kind == "union_tag_invalid":
        hint = nearest(context["tag"], context["expected_tags"][1:-1].split("', '"))
        return f"'{dotted}.{context['discriminator'][1:-1]}': {context['tag']!r} is not known{hint}"
    if kind == "value_error":  # a validator of ours raised: its message already says what to do
        return f"{dotted}: {context['error']}" if dotted else str(context["error"])
    return f"{dotted!r}: {item['msg']}, found {item['input']!r} ({type(item['input']).__name__})"


def _explain_key(loc: tuple[Any, ...], valid: Sequence[str]) -> str:
    name = str(loc[-1])
    renamed = _RENAMED.get(name)
    hint = f" (renamed: {renamed!r})" if renamed in valid else nearest(name, valid)
    if gone := _GONE.get(".".join(p for p in map(str, loc) if not p.isdecimal())):
        hint = f" (gone: {gone})"
    return f"unknown key {'.'.join(map(str, loc))!r}{hint}"


def nearest(name: str, valid: Sequence[str], *, or_list: bool = True) -> str:
    """` (did you mean 'x'?)`, or the list of valid names, if wanted, when nothing is close."""
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (valid: {', '.join(sorted(valid))})" if valid and or_list else ""


def _keys_at(schema: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """Keys of the blocks at a place. Besides keys it has positions, names in mappings, and for a
    union the class's name or the tag of the block that was tried."""
    blocks, above = [schema], 0
    for part in map(str, loc):
        if above:  # a position or a name, which may be that of a field
            above -= 1
            continue
        fields = [block.model_fields[part] for block in blocks if part in block.model_fields]
        parts = [(path, one) for f in fields for path, one in parts_of(f.annotation)]
        inner = {one: path.count(".N") for path, one in parts if is_block(one)}
        named = [block for block in blocks if part in (block.__name__, *tags_of(block)[1])]
        above = 0 if named else max(inner.values(), default=0)
        blocks = named or [*inner] or blocks
    return sorted({name for block in blocks for name in block.model_fields})


def parts_of(annotation: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What an annotation is made of: members of unions, items of lists and mappings."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from parts_of(args[0], path)
    elif origin in (typing.Union, types.UnionType):
        for member in args:
            yield from parts_of(member, path)
    elif origin in (tuple, list):
        yield from parts_of(args[0], f"{path}.N")
    elif origin is dict:
        yield from parts_of(args[1], f"{path}.NAME")
    else:
        yield path, annotation


def is_block(part: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(part, type) and issubclass(part, BaseModel)


def tags_of(block: type[BaseModel]) -> tuple[str, tuple[str, ...]]:
    """What chooses a block among several: ("kind", ("vllm",)); ("", ()) where nothing does."""
    for key, field in block.model_fields.items():
        if typing.get_origin(field.annotation) is Literal and field.is_required():
            return key, typing.get_args(field.annotation)
    return "", ()
