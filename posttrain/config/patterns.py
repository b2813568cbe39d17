"""Lists of patterns that a text must not match: inline in a recipe, or in a file that it names.

    narratives: nemotron-3-nano/narratives        # a file, or a shipped list's name
    narratives:
      - '\\bthe splendour of our motherland\\b'
      - {pattern: '\\bour (great )?nation\\b', unless: 'said|quote'}

A file is a mapping with the list under `patterns`. It is read when the recipe is, and its patterns
become part of the resolved recipe: a changed list is a changed recipe.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import yaml
from pydantic import BeforeValidator, Field

from posttrain.config.base import Strict
from posttrain.config.shipped import recipe_file
from posttrain.config.yaml_text import read_mapping
from posttrain.errors import ConfigError


class Pattern(Strict):
    """One pattern, in RE2's syntax, matched without regard to case.

    Args:
        pattern: what is looked for.
        near: must match as well, within `within` characters before or after the match.
        unless: must not match within `within` characters before or after the match, nor in it.
        within: how far context reaches, in characters.
        place: the file and line it was read from, for messages; no part of the recipe.
    """

    pattern: str = Field(min_length=1)
    near: str | None = Field(default=None, min_length=1)
    unless: str | None = Field(default=None, min_length=1)
    within: int = Field(default=200, ge=0)
    place: str | None = Field(default=None, exclude=True, repr=False)


def _read(given: object) -> object:
    items: object = read_patterns(recipe_file(given)) if isinstance(given, str) else given
    if not isinstance(items, list):
        return items
    # a pattern without context may stand alone
    given_each = cast(list[object], items)
    # a tuple, for what a validator returns is no JSON any more and is taken as strictly as Python
    return tuple({"pattern": i} if isinstance(i, str) else i for i in given_each)


Patterns = Annotated[tuple[Pattern, ...], BeforeValidator(_read), Field(min_length=1)]


def read_patterns(path: Path) -> list[object]:
    """The items of a pattern file, each with the place it stands at; not yet validated.

    Raises:
        ConfigError: there is no such file, it is no YAML mapping, or has no list under `patterns`.
    """
    found = read_mapping(path)
    if set(found) != {"patterns"} or not isinstance(found["patterns"], list):
        raise ConfigError(f"{path}: a file of patterns is a mapping with one list, patterns")
    items = cast(list[object], found["patterns"])
    return [
        {**_as_mapping(item), "place": f"{path}:{line}"}
        for item, line in zip(items, _lines(path), strict=True)
    ]


def _as_mapping(item: object) -> dict[str, Any]:
    if isinstance(item, str):
        return {"pattern": item}
    return cast(dict[str, Any], item) if isinstance(item, dict) else {"pattern": item}


def _lines(path: Path) -> list[int]:
    """The line of each item of the file's only list."""
    text = path.read_text(encoding="utf-8")
    node = cast(Any, yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]  # PyYAML is untyped
    ((_, items),) = node.value
    return [item.start_mark.line + 1 for item in items.value]
