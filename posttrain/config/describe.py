"""Help on the keys of a recipe, from its schema: type, default, source of a number, description.

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
_TAB = " " * 6
_TYPE_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Any: "anything",
}
# keys of many blocks, where the docstring of a block says nothing else
_COMMON_KEYS = {
    "engine": "chooses the block.",
    "format": "chooses the block.",
    "kind": "chooses the block.",
    "grader": "name of the grader of completions (docs/guides/graders.md); null: none.",
    "name": "a name of your choice, for tables and files.",
    "out": "directory to write; one that another recipe wrote is refused.",
    "seed": "seed of all random choices: the same seed gives the same bytes.",
    "trainer": "fields of the installed trl's config, but for those that the recipe decides.",
    "write_dropped": "write the dropped rows, each with its reason, to dropped.jsonl.",
}
_KEY_LINE = re.compile(r"(\w+(?:, \w+)*): (.*)", re.DOTALL)


def describe(schema: type[BaseModel]) -> str:
    """Describe all keys of a recipe and those of its `trainer:` block, a paragraph for each."""
    entries = list(key_entries(schema))
    if issubclass(schema, TrainingRecipe):
        entries += [(f"{key}    {text}", "") for key, text in schema.trainer_keys().items()]
    paragraphs: list[str] = []
    for heading, text in entries:
        paragraphs.append(
            textwrap.fill(heading, _WIDTH, initial_indent="  ", subsequent_indent=_TAB)
        )
        if text:
            paragraphs.append(
                textwrap.fill(text, _WIDTH, initial_indent=_TAB, subsequent_indent=_TAB)
            )
    return "\n".join(paragraphs)


def key_entries(
    schema: type[BaseModel],
    prefix: str = "",
    ancestors: tuple[type[BaseModel], ...] = (),
    default_block: BaseModel | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield heading (key, type, default) and description of each field, a block before its keys.

    Args:
        default_block: block whose values are the defaults in place of the schema's.
    """
    for name, field in schema.model_fields.items():
        parts = list(parts_of(field.annotation))
        # a block may hold blocks of its own kind: these are not described again
        blocks = [(path, part) for path, part in parts if is_block(part) and part not in ancestors]
        default = None
        if default_block is not None:
            default = getattr(default_block, name)
        elif not field.is_required():
            default = field.get_default(call_default_factory=True)
        heading = f"{prefix}{name}    {_type_text(field, parts)}{_default_text(field, default)}"
        yield heading, description(schema, name, field)
        for path, block in blocks:
            key, values = tags_of(block)
            tag = f" ({key}: {' | '.join(values)})" if key and len(blocks) > 1 else ""
            inner_default = default if isinstance(default, block) else None
            inner_prefix = f"{prefix}{name}{path}{tag}."
            yield from key_entries(block, inner_prefix, (*ancestors, block), inner_default)


def _type_text(field: FieldInfo, parts: list[tuple[str, Any]]) -> str:
    """Type of a field in words, such as `whole number, at least 1, or null`."""
    texts: dict[str, None] = {}
    for path, part in parts:
        if part is type(None):
            text = "null"
        elif typing.get_origin(part) is Literal:
            text = " | ".join(map(str, typing.get_args(part)))
        else:
            text = _TYPE_NAMES.get(part, "block" if is_block(part) else str(part))
        if path:
            text = f"{'names' if path.startswith('.NAME') else 'list'} of {text}"
        texts[text] = None
    alternatives = [text for text in texts if text != "null"] or ["null"]
    alternatives[0] += _bounds_text(field)
    if "null" in texts:
        alternatives.append("null")
    return ", or ".join(alternatives)


def _bounds_text(field: FieldInfo) -> str:
    """Bounds of a number in words: " in [0, 1)" with both, ", at least 1" with one."""
    bounds: dict[str, Any] = {}
    for constraint in field.metadata:
        for name in ("ge", "gt", "le", "lt"):
            value = getattr(constraint, name, None)
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


def _default_text(field: FieldInfo, default: Any) -> str:
    """Default of a field as it would stand in a recipe, with the source of a number."""
    if field.is_required() and default is None:
        return ", required"
    if isinstance(default, BaseModel):
        return ""
    text = json.dumps(default, ensure_ascii=False).strip('"')
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    extra: Any = field.json_schema_extra or {}
    source = extra.get("source", "ours" if is_number else "")
    return f" = {text} [{source}]" if source else f" = {text}"


def description(schema: type[BaseModel], name: str, field: FieldInfo) -> str:
    """Description of a field, from the docstring of its schema, of a base, or of its block."""
    for owner in schema.__mro__:
        text = None if owner is BaseModel else _key_lines(owner).get(name)
        if text:
            return text
    for _, part in parts_of(field.annotation):
        if is_block(part):
            return (inspect.getdoc(part) or "").partition("\n\n")[0]
    return field.description or _COMMON_KEYS.get(name, "")


@functools.cache
def _key_lines(owner: type) -> dict[str, str]:
    """Descriptions by key, from the lines `key: …` at the end of a class's own docstring."""
    docstring = inspect.cleandoc(owner.__dict__.get("__doc__") or "")
    _, _, last_paragraph = docstring.rpartition("\n\n")
    descriptions: dict[str, str] = {}
    for entry in re.split(r"\n(?! )", last_paragraph):
        match = _KEY_LINE.fullmatch(entry)
        if match is None:
            continue
        for name in match[1].split(", "):
            descriptions[name] = " ".join(match[2].split())
    return descriptions
