"""A recipe's file, by its path or by the name of a shipped one, and YAML read strictly.

YAML's two silent accidents are none here: a key that stands twice is an error with both lines, and
`5e-5`, which YAML 1.1 takes for text, is a number.
"""

import difflib
import json
import re
from pathlib import Path
from typing import Any, cast

import yaml

from posttrain.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]
# beside the packages in a checkout, inside of this one when it is installed
RECIPES = next(
    (f for f in (_PACKAGE / "recipes", _PACKAGE.parent / "recipes") if f.is_dir()),
    _PACKAGE / "recipes",
)


def recipe_names() -> list[str]:
    """Every shipped recipe, as `--config` takes it: `tiny/sft` is `recipes/tiny/sft.yaml`."""
    files = RECIPES.rglob("*.yaml")
    return sorted(file.relative_to(RECIPES).with_suffix("").as_posix() for file in files)


def recipe_file(given: str | Path) -> Path:
    """The file of a path, or of a shipped recipe's name. A path need not exist.

    Raises:
        ConfigError: a name that is none; it names the nearest.
    """
    path = Path(given)
    if path.is_file() or path.suffix in (".yaml", ".yml"):
        return path
    shipped = RECIPES / f"{given}.yaml"
    if shipped.is_file():
        return shipped
    near = difflib.get_close_matches(str(given), recipe_names(), n=1, cutoff=0.6)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ConfigError(
        f"no recipe {str(given)!r}{hint}: it is neither a file nor one of those that come with "
        "the package (posttrain --recipes)"
    )


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


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[str, Any]:
    loader.flatten_mapping(node)
    first_line: dict[str, int] = {}
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key, line = loader.construct_object(key_node, deep=True), key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise ConfigError(f"line {line}: key {key!r} must be text; quote it")
        if key in mapping:
            raise ConfigError(
                f"line {line}: duplicate key {key!r} (first at line {first_line[key]})"
            )
        first_line[key], mapping[key] = line, loader.construct_object(value_node, deep=True)
    return mapping


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
        beside = ", ".join(sorted(p.name for p in path.parent.glob("*.yaml"))) or "no recipe"
        there = f"{path.parent} holds {beside}"
        there = there if path.parent.is_dir() else f"there is no folder {path.parent}"
        raise ConfigError(f"no recipe at {path}; {there}")
    try:
        loaded = _load(path.read_text(encoding="utf-8"))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {_reason(error)}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of keys, found {type(loaded).__name__}")
    return cast(dict[str, Any], loaded)
