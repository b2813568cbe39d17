"""Every key of a recipe, from its schema: type, default, what it is, where a number comes from.

launch.world_size    whole number, at least 1, or null = null
      processes that the launcher must have started; null: unchecked.
"""

import functools
import inspect
import json
import re
import textwrap
import typing
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from posttrain.config.load import is_block, parts_of, tags_of
from posttrain.config.sft import TrainingRecipe

_WIDTH = 100
_NAMES: dict[Any, str] = {
    bool: "true or false", int: "whole number", float: "number", str: "text", Any: "anything"
}  # fmt: skip
_COMMON = dict.fromkeys(("engine", "format", "kind"), "chooses the block.") | {
    "grader": "the name of what grades completions (docs/guides/graders.md); null: nothing does.",
    "name": "of your choice; tables and files carry it.",
    "out": "the directory that is written; another recipe's is refused.",
    "seed": "of every random choice: the same seed gives the same bytes.",
    "trainer": "fields of the installed trl's config, but for those that the recipe decides.",
    "write_dropped": "write the dropped rows, each with its reason, to dropped.jsonl.",
}
_KEYS = re.compile(r"(\w+(?:, \w+)*): (.*)", re.DOTALL)


def describe(schema: type[BaseModel]) -> str:
    """All keys of a recipe, a paragraph each, and those that a `trainer:` block may have."""
    keys = list(keys_of(schema))
    if issubclass(schema, TrainingRecipe):
        keys += [(f"{key}    {text}", "") for key, text in schema.trainer_keys().items()]
    return "\n".join(
        textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=" " * 6)
        for lines in keys
        for indent, text in zip(("  ", " " * 6), lines, strict=True)
        if text
    )


def keys_of(
    schema: type[BaseModel],
    prefix: str = "",
    above: tuple[type[BaseModel], ...] = (),
    defaults: BaseModel | None = None,
) -> Iterator[tuple[str, str]]:
    """(key, type and default; description) of every field, blocks before what is in them.

    `defaults` is the block that stands there by default, where its values differ from its schema's.
    """
    for name, field in schema.model_fields.items():
        parts = list(parts_of(field.annotation))
        blocks = [(path, part) for path, part in parts if is_block(part) and part not in above]
        value = None if field.is_required() else field.get_default(call_default_factory=True)
        value = value if defaults is None else getattr(defaults, name)
        head = f"{prefix}{name}    {_type_text(field, parts)}{_default(field, value)}"
        yield head, description(schema, name, field)
        for path, block in blocks:
            key, values = tags_of(block)
            tag = f" ({key}: {' | '.join(values)})" if key and len(blocks) > 1 else ""
            own = value if isinstance(value, block) else None
            yield from keys_of(block, f"{prefix}{name}{path}{tag}.", (*above, block), own)


def _type_text(field: FieldInfo, parts: list[tuple[str, Any]]) -> str:
    texts: dict[str, None] = {}
    for path, part in parts:
        if part is type(None):
            text = "null"
        elif typing.get_origin(part) is Literal:
            text = " | ".join(map(str, typing.get_args(part)))
        else:
            text = _NAMES.get(part, "block" if is_block(part) else str(part))
        if path:
            text = f"{'names' if path.startswith('.NAME') else 'list'} of {text}"
        texts[text] = None
    first, *others = [text for text in texts if text != "null"] or ["null"]
    nullable = ["null"] if "null" in texts else []
    return ", or ".join([first + _bounds_text(field), *others, *nullable])


def _bounds_text(field: FieldInfo) -> str:
    """Bounds of a number in words: " in [0, 1)" with both, ", at least 1" with one."""
    bounds: dict[str, Any] = {}
    for item in field.metadata:
        for name in ("ge", "gt", "le", "lt"):
            value = getattr(item, name, None)
            if value is not None:
                bounds[name] = value
    low = bounds.get("ge", bounds.get("gt"))
    high = bounds.get("le", bounds.get("lt"))
    if low is not None and high is not None:
        opening = "[" if "ge" in bounds else "("
        closing = "]" if "le" in bounds else ")"
        return f" in {opening}{low}, {high}{closing}"
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return "".join(f", {words[name]} {value}" for name, value in bounds.items())


def _default(field: FieldInfo, value: Any) -> str:
    if field.is_required() and value is None:
        return ", required"
    if isinstance(value, BaseModel):
        return ""
    # as it would stand in a recipe
    text = json.dumps(value, ensure_ascii=False).strip('"')
    number = isinstance(value, int | float) and not isinstance(value, bool)
    extra: Any = field.json_schema_extra or {}
    source = extra.get("source", "ours" if number else "")
    return f" = {text} [{source}]" if source else f" = {text}"


def description(schema: type[BaseModel], name: str, field: FieldInfo) -> str:
    """What a field is, by the docstring of its schema, of one above it, or of its block."""
    owners = [owner for owner in schema.__mro__ if owner is not BaseModel]
    texts = [text for owner in owners if (text := _keys(owner).get(name))]
    blocks = [part for _, part in parts_of(field.annotation) if is_block(part)]
    texts += [(inspect.getdoc(block) or "").partition("\n\n")[0] for block in blocks[:1]]
    return next(iter([*texts, field.description or _COMMON.get(name, "")]))


@functools.cache
def _keys(owner: type) -> dict[str, str]:
    """The lines `key: …` of a class's own docstring."""
    _, _, listed = inspect.cleandoc(owner.__dict__.get("__doc__") or "").rpartition("\n\n")
    entries = re.split(r"\n(?! )", listed)
    matches = [match for entry in entries if (match := _KEYS.fullmatch(entry))]
    return {name: " ".join(m[2].split()) for m in matches for name in m[1].split(", ")}
