"""YAML → plain mappings, with the two silent accidents of YAML turned into errors.

"lr: 5e-5\\nlr: 1e-5"  → ConfigError: duplicate key 'lr' at line 2 (first at line 1)
"lr: 5e-5"            → {"lr": 5e-05}: YAML 1.1 would read that as a *string*
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import yaml

from posttrain.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and reads `5e-5` as a number."""


_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
         |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
         |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
         |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.X,
)
# yaml.SafeLoader's resolvers are class-level dicts: copy before adding to them
_Loader.yaml_implicit_resolvers = {
    # no timestamps: a recipe's `2026-01-31` is text
    key: [(tag, regex) for tag, regex in value if tag != "tag:yaml.org,2002:timestamp"]
    for key, value in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))  # pyright: ignore[reportUnknownMemberType]  # PyYAML is untyped


def _mapping(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    first_line: dict[Any, int] = {}
    for key_node, _ in node.value:
        key = cast(Any, loader.construct_object(key_node, deep=True))  # pyright: ignore[reportUnknownMemberType]  # PyYAML is untyped
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise ConfigError(f"line {line}: key {key!r} must be text; quote it")
        if key in first_line:
            raise ConfigError(
                f"line {line}: duplicate key {key!r} (first at line {first_line[key]})"
            )
        first_line[key] = line
    return {
        loader.construct_object(k, deep=True): loader.construct_object(v, deep=True)  # pyright: ignore[reportUnknownMemberType]  # PyYAML is untyped
        for k, v in node.value
    }


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _load(text: str) -> Any:
    """Raises YAMLError for whatever is no tree of JSON values."""
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader subclass
        json.dumps(value)
    except ConfigError:
        raise
    # a tag on a value that is none, a set, an anchor inside of itself, thousands of brackets
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise yaml.YAMLError(f"not a tree of plain values: {error}") from error
    return value


def parse_value(text: str) -> Any:
    """One YAML value, as written on a command line after `key=`."""
    try:
        return _load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"cannot read the value {text!r} as YAML: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """In one line, without the picture that PyYAML draws of the place."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error)
    mark, context = error.problem_mark, f"{error.context}: " if error.context else ""
    return f"line {mark.line + 1}, column {mark.column + 1}: {context}{error.problem}"


def read_mapping(path: Path) -> dict[str, Any]:
    """The top-level mapping of a YAML file.

    Raises:
        ConfigError: the file is missing, is not YAML, has a duplicate key, or is not a mapping.
    """
    if not path.is_file():
        raise ConfigError(f"no recipe at {path}{_siblings(path)}")
    try:
        loaded = _load(path.read_text(encoding="utf-8"))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {_reason(error)}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of keys, found {type(loaded).__name__}")
    return cast(dict[str, Any], loaded)


def _siblings(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (there is no folder {path.parent})"
    names = sorted(p.name for p in path.parent.glob("*.yaml"))
    return f"; {path.parent} holds {', '.join(names)}" if names else f"; {path.parent} holds none"
