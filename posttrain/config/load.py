"""A recipe file and command-line overrides → one validated schema instance."""

import difflib
import functools
import json
import re
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
_NAMED = 3  # keys that a message proposes

# old keys whose new name is not the nearest in letters (docs/reference/renamed.md), and two words
# of other trainers
_RENAMED = {
    "capacity": "max_length",
    "cycle_words": "min_words",
    "edits": "threshold",
    "epochs": "num_train_epochs",
    "given": "offline",
    "isolation": "document_masking",
    "limits": "sampling",
    "lr": "learning_rate",
    "output_dir": "out",
    "parameters": "sampling",
    "samples": "n",
    "spool": "parts_dir",
    "updates": "num_iterations",
}
# words of other trainers' commands → keys here, of which a recipe has one or none; `NAME` is to be
# chosen. A key of the same name at any depth comes first, but for `checkpoint`, `model` and `data`
_ELSEWHERE: dict[str, tuple[str, ...]] = {
    "checkpoint": ("checkpoint", "checkpoints.NAME", "model.path"),
    "model": ("checkpoint", "checkpoints.NAME", "model.path", "tokenizer.path"),
    "data": ("sources.N.path", "prompts.N.path", "samples"),
    **dict.fromkeys(
        ("model_name_or_path", "model_name", "model_id", "model_path", "base_model"),
        ("checkpoint", "checkpoints.NAME", "model.path", "tokenizer.path"),
    ),
    **dict.fromkeys(
        ("dataset", "dataset_name", "datasets", "train_file", "data_path", "dataset_path"),
        ("data", "sources.N.path", "prompts.N.path"),
    ),
    **dict.fromkeys(
        ("batch_size", "train_batch_size", "micro_batch_size", "per_device_batch_size"),
        ("backend.batch_size", "batch", "trainer.per_device_train_batch_size"),
    ),
    **dict.fromkeys(
        ("grad_accum", "gradient_accumulation", "accumulation_steps", "accumulate_grad_batches"),
        ("trainer.gradient_accumulation_steps",),
    ),
    **dict.fromkeys(
        ("max_seq_length", "max_seq_len", "seq_length", "sequence_len", "cutoff_len", "block_size"),
        ("packing.max_length", "max_length"),
    ),
    **dict.fromkeys(
        ("max_new_tokens", "max_completion_length", "max_gen_toks", "max_gen_tokens"),
        ("sampling.max_tokens",),
    ),
    **dict.fromkeys(("temp",), ("sampling.temperature",)),
    **dict.fromkeys(
        ("num_samples", "n_samples", "num_return_sequences", "samples_per_prompt", "num_rollouts",
         "rollouts_per_prompt", "group_size"),
        ("n", "num_generations"),
    ),
    **dict.fromkeys(("lora_r", "lora_rank"), ("adapter.rank",)),
    "lora_alpha": ("adapter.alpha",),
    "lora_dropout": ("adapter.dropout",),
    "lora_target": ("adapter.modules",),
    "target_modules": ("adapter.modules",),
    "steps": ("trainer.max_steps",),
    "wd": ("trainer.weight_decay",),
    "kl_coef": ("loss.kl",),
    "template": ("tokenizer.chat_template", "backend.chat_template"),
}  # fmt: skip
_FIRST = ("checkpoint", "model", "data")
# keys that went to another block, in the recipes that have it
_MOVED = {
    "sampling.batch_size": "rollouts.batch_size",
    "sampling.server": "rollouts",
}
# keys that went, by their place without positions in lists
_GONE = {
    "estimate.tokens_per_second": "a dry run measures how fast a model in this process is",
    "extends": "a recipe is one file",
    "sources.filters.repetition.compression_ratio": "it is 3.0 everywhere",
    "sources.filters.repetition.cycle_share": "it is 0.9 everywhere",
    "sources.filters.repetition.duplicate_share": "it is 0.9 everywhere",
    "sources.filters.repetition.min_rounds": "it is 3 everywhere",
    "sources.filters.repetition.ngram": "it is 6 everywhere",
    "sources.filters.repetition.window": "it is 100 everywhere",
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
                f"{', '.join(schema.model_fields)}: {_stage_of(raw)}"
            ) from None
        lines = [_explain(item, schema) for item in _merge_alternatives(own, raw)]
        raise ConfigError(f"{where}: " + "\n  ".join(lines)) from None


def _merge_alternatives(problems: Sequence[Any], raw: Mapping[str, Any]) -> list[Any]:
    """Join the problems that pydantic lists for one value, one for each type that it may have."""
    merged: dict[tuple[Any, ...], Any] = {}
    for problem in problems:
        *above, alternative = problem["loc"] or ("",)
        value = _value_at(raw, above)
        # a mapping's own key, of a mapping whose keys are some words, has its place behind it
        if alternative == "[key]" or value is _ABSENT or isinstance(value, (dict, list)):
            merged[*above, alternative] = problem
            continue
        # what holds no keys is no block: the last part of the place names an alternative
        before = merged.get(tuple(above))
        message = problem["msg"]
        if before is not None:
            message = f"{before['msg']}, or {message[:1].lower()}{message[1:]}"
        merged[tuple(above)] = {**problem, "loc": tuple(above), "msg": message}
    return list(merged.values())


def _value_at(raw: object, place: Sequence[Any]) -> object:
    """The value at a place of a recipe as it was written; `_ABSENT` where it has no such place."""
    value = raw
    for part in place:
        if isinstance(value, dict) and part in value:
            value = cast(dict[Any, Any], value)[part]
        elif isinstance(value, list) and isinstance(part, int):
            items = cast(list[Any], value)
            value = items[part] if part < len(items) else _ABSENT
        else:
            return _ABSENT
    return value


def _blocks_at(schema: type[BaseModel], loc: Sequence[Any]) -> list[type[BaseModel]]:
    """The blocks that may stand at a place of a recipe."""
    blocks = [schema]
    for part in map(str, loc):
        fields = [block.model_fields[part] for block in blocks if part in block.model_fields]
        if fields:
            members = [inner for field in fields for _, inner in parts_of(field.annotation)]
            blocks = [inner for inner in members if is_block(inner)]
    return blocks


def _stage_of(raw: Mapping[str, Any]) -> str:
    """Whose recipe it is."""
    from posttrain.config.schemas import stage_schemas  # which import this module

    schemas = stage_schemas()
    fitting = [name for name, schema in schemas.items() if raw.keys() <= schema.model_fields.keys()]
    return (
        f"it is a recipe of {' or '.join(fitting)}" if fitting else "is it a recipe of another one?"
    )


def _explain(item: Any, schema: type[BaseModel]) -> str:
    kind, context = item["type"], item.get("ctx", {})
    typed, siblings = _place(schema, item["loc"])
    dotted = ".".join(typed)
    if kind == "extra_forbidden":
        moved = _MOVED.get(dotted)
        if moved is not None and moved.split(".")[0] in schema.model_fields:
            return f"unknown key {dotted!r} (moved: {moved!r})"
        # of `packing.max_length=8` in a recipe without packing the key is the whole
        value = item["input"]
        while isinstance(value, dict) and len(cast(dict[str, Any], value)) == 1:
            [(key, value)] = cast(dict[str, Any], value).items()
            typed = [*typed, key]
        return f"unknown key {dotted!r}{key_hint(schema, typed, dotted, siblings)}"
    if kind == "literal_error" and typed[-1] == "[key]":  # of a mapping whose keys are some words
        words = context["expected"].split("'")[1::2]
        *above, name = typed[:-1]
        dotted = ".".join([*above, name])
        renamed = _RENAMED.get(name)
        hint = nearest(name, words)
        if renamed is not None and renamed in words:
            hint = f" (renamed: {'.'.join([*above, renamed])!r})"
        return f"unknown key {dotted!r}{_gone(typed[:-1]) or hint}"
    if kind == "missing":
        return f"{dotted!r} is required"
    if kind == "union_tag_not_found":
        return f"'{dotted}.{context['discriminator'][1:-1]}' is required"
    if kind == "union_tag_invalid":
        hint = nearest(context["tag"], context["expected_tags"][1:-1].split("', '"))
        return f"'{dotted}.{context['discriminator'][1:-1]}': {context['tag']!r} is not known{hint}"
    if kind == "value_error":  # a validator of ours raised: its message already says what to do
        text = str(context["error"])
        return text if not dotted or text.startswith(f"{dotted}.") else f"{dotted}: {text}"
    found = f"found {item['input']!r} ({type(item['input']).__name__})"
    if kind in ("list_type", "tuple_type") and isinstance(item["input"], str):
        return f"{dotted!r} is a list, such as '{dotted}=[{item['input']}]', {found}"
    blocks = (
        _blocks_at(schema, item["loc"]) if kind in ("model_type", "model_attributes_type") else []
    )
    if blocks:
        inner = [*blocks[0].model_fields]
        return f"{dotted!r} is a block of keys, such as '{dotted}.{inner[0]}', {found}"
    return f"{dotted!r}: {item['msg']}, {found}"


def key_hint(
    schema: type[BaseModel], typed: Sequence[str], unknown: str, siblings: Sequence[str] = ()
) -> str:
    """What was meant by an unknown key: a key of this recipe at any depth, or another stage's.

    Args:
        typed: the key as it was written, in parts.
        unknown: as much of it as nobody knows, with dots.
        siblings: the keys that are valid in its place.
    """
    if gone := _gone(typed):
        return gone
    *above, name = unknown.split(".")
    prefix = "".join(f"{part}." for part in above)
    if (renamed := _RENAMED.get(name)) in siblings:
        return f" (renamed: '{prefix}{renamed}')"
    keys = keys_of_recipe(schema)
    here = "N".join(re.split(r"(?<=\.)\d+(?=\.|$)", ".".join(typed)))
    if kinds := keys.get(here):
        return f" (of {above[-1] if above else 'another block'} with {' or '.join(kinds)})"
    last = _RENAMED.get(typed[-1], typed[-1])
    same = [key for key in keys if key.rpartition(".")[2] == last]
    # a recipe may have several of them where one of several blocks is chosen
    named = [key for key in _ELSEWHERE.get(last, ()) if key.removesuffix(".NAME") in keys]
    if named and len(typed) == 1 and (not same or last in _FIRST):
        return _did_you_mean(named[:1])
    if same:
        return _did_you_mean(same)
    if close := difflib.get_close_matches(name, siblings, n=1, cutoff=0.6):
        return _did_you_mean([f"{prefix}{close[0]}"])
    words = set(last.split("_"))
    close = difflib.get_close_matches(last, {key.rpartition(".")[2] for key in keys}, n=1)
    alike = [
        key
        for key in keys
        if key.rpartition(".")[2] in close or words <= set(key.rpartition(".")[2].split("_"))
    ]
    if alike:
        return _did_you_mean(alike)
    if elsewhere := _of_other_stages(schema, ".".join(typed), last):
        return f" (it is of another stage: {elsewhere})"
    return nearest(name, siblings)


def _gone(typed: Sequence[str]) -> str:
    places = [part for part in typed if not part.isdecimal()]
    for end in range(1, len(places) + 1):
        if why := _GONE.get(".".join(places[:end])):
            return f" (gone: {why})"
    return ""


def _did_you_mean(keys: Sequence[str]) -> str:
    # the highest first
    named = sorted(keys, key=lambda key: key.count("."))[:_NAMED]
    return f" (did you mean {' or '.join(map(repr, named))}?)"


def _of_other_stages(schema: type[BaseModel], dotted: str, last: str) -> str:
    """A stage that has the key, and else one that has a key of the same last name."""
    from posttrain.config.schemas import stage_schemas  # which import this module

    fallback = ""
    for stage, other in stage_schemas().items():
        if other is schema:
            continue
        keys = keys_of_recipe(other)
        if dotted in keys:
            return f"{dotted!r} of {stage}"
        fitting = [key for key in keys if key.rpartition(".")[2] == last]
        if fitting and not fallback:
            fallback = f"{fitting[0]!r} of {stage}"
    return fallback


@functools.cache
def keys_of_recipe(schema: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """Every key of a recipe by its path, positions in lists as `N`; with `key: value` of the blocks
    that it belongs to, where one of several is chosen so."""
    keys: dict[str, tuple[str, ...]] = {}

    def add(block: type[BaseModel], prefix: str, kinds: tuple[str, ...], above: tuple[Any, ...]):
        for name, field in block.model_fields.items():
            path = f"{prefix}{name}"
            keys[path] = tuple(dict.fromkeys((*keys.get(path, ()), *kinds)))
            inner = [(p, part) for p, part in parts_of(field.annotation) if is_block(part)]
            for below, part in inner:
                if part not in above:
                    tag, values = tags_of(part)
                    chosen = tuple(f"{tag} {value}" for value in values) if len(inner) > 1 else ()
                    add(part, f"{path}{below}.", chosen, (*above, part))

    add(schema, "", (), (schema,))
    free_fields: Callable[[], list[str]] | None = getattr(schema, "free_fields", None)
    keys |= {f"trainer.{name}": () for name in (free_fields() if free_fields else ())}
    return keys


def nearest(name: str, valid: Sequence[str], *, or_list: bool = True) -> str:
    """` (did you mean 'x'?)`, or the list of valid names, if wanted, when nothing is close."""
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (valid: {', '.join(sorted(valid))})" if valid and or_list else ""


def _place(schema: type[BaseModel], loc: Sequence[Any]) -> tuple[list[str], list[str]]:
    """A place in a recipe as it is written, and the keys of its block.

    Besides keys a place of pydantic has positions, names in mappings, and for a union the class's
    name or the tag of the block that was tried, which nobody writes.
    """
    typed: list[str] = []
    keys: list[str] = []
    blocks, above = [schema], 0
    for part in map(str, loc):
        keys = sorted({name for block in blocks for name in block.model_fields})
        if above:  # a position or a name, which may be that of a field
            above -= 1
            typed.append(part)
            continue
        fields = [block.model_fields[part] for block in blocks if part in block.model_fields]
        parts = [(path, one) for f in fields for path, one in parts_of(f.annotation)]
        inner = {one: path.count(".N") for path, one in parts if is_block(one)}
        named = [block for block in blocks if part in (block.__name__, *tags_of(block)[1])]
        above = 0 if named else max(inner.values(), default=0)
        blocks = named or [*inner] or blocks
        if not named:
            typed.append(part)
    return typed, keys


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
