"""Find a recipe's file, by its path or by the name of a shipped recipe, and read YAML strictly.

A key that stands twice is an error with both lines. Numbers are decimal or hexadecimal, as in YAML
1.2: `5e-5` is one, `010` is ten, `12:30` is text; so are octal numbers (`0o17`).
"""

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from posttrain.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]
_IN_CHECKOUT = _PACKAGE.parent / "recipes"
# inside the package when it is installed, beside the packages in a checkout
_IN_PACKAGE = _PACKAGE / "recipes"
RECIPES = _IN_PACKAGE if _IN_PACKAGE.is_dir() or not _IN_CHECKOUT.is_dir() else _IN_CHECKOUT


def recipe_names() -> list[str]:
    """Names of all shipped recipes: `tiny/sft` is `recipes/tiny/sft.yaml`."""
    files = RECIPES.rglob("*.yaml")
    return sorted(file.relative_to(RECIPES).with_suffix("").as_posix() for file in files)


def recipe_file(name_or_path: str | Path) -> Path:
    """Find the file of a shipped recipe by its name; a path is returned even if nothing is there.

    Raises:
        ConfigError: no recipe has the name; the message proposes the nearest.
    """
    path = Path(name_or_path)
    if path.is_file() or path.suffix in (".yaml", ".yml"):
        return path
    shipped = RECIPES / f"{name_or_path}.yaml"
    if shipped.is_file():
        return shipped
    name = str(name_or_path)
    near = difflib.get_close_matches(name, recipe_names(), n=1, cutoff=0.6)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ConfigError(
        f"no recipe {name!r}{hint}: it is neither a file nor one of those that come with the "
        "package (posttrain --recipes)"
    )


# libyaml, which some PyYAML is built without, reads seven times as fast: a chain has thirty recipes
_SafeLoader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # pyright: ignore[reportGeneralTypeIssues]  # a class, chosen above
    """SafeLoader that refuses duplicate keys and reads numbers as this module says."""


_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
         |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
         |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
         |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.X,
)
_INT = re.compile(r"^[-+]?[0-9]+(?:_[0-9]+)*$|^0x[0-9a-fA-F]+$")
# no octal or sexagesimal numbers; no timestamps: a recipe's `2026-01-31` is text
_NOT_AS_IN_YAML_1_1 = tuple(f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp"))
# yaml.SafeLoader's resolvers are class-level dicts: copy before adding to them
_resolvers: dict[str, list[Any]] = {}
for _first_character, _tags in yaml.SafeLoader.yaml_implicit_resolvers.items():
    _resolvers[_first_character] = [
        (tag, regex) for tag, regex in _tags if tag not in _NOT_AS_IN_YAML_1_1
    ]
_Loader.yaml_implicit_resolvers = _resolvers
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))  # pyright: ignore[reportUnknownMemberType]  # PyYAML is untyped
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))  # pyright: ignore[reportUnknownMemberType]  # PyYAML is untyped


def _construct_int(loader: Any, node: yaml.ScalarNode) -> int:
    """Read a decimal or hexadecimal whole number; PyYAML's own takes a leading 0 for octal."""
    text = loader.construct_scalar(node)
    return int(text, 16) if text.startswith("0x") else int(text)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that the loader would read as something else."""


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def recipe_text(recipe: Mapping[str, Any]) -> str:
    """YAML of a recipe that reads back as the same values."""
    return yaml.dump(recipe, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


# raised by PyYAML for a tag that does not fit its value, and for a number of too many digits
_CONSTRUCTION_ERRORS = (ValueError, TypeError, LookupError, AttributeError)


def _construct_mapping(loader: Any, node: yaml.MappingNode) -> dict[str, Any]:
    """Construct a mapping whose keys are texts, each of which stands once.

    Keys of mappings that are merged (`<<: *defaults`) give way to those beside them.
    """
    written_keys = {key_node for key_node, _ in node.value}
    # puts the pairs of merged mappings before those that are written here
    loader.flatten_mapping(node)
    merged_lines: dict[str, int] = {}
    written_lines: dict[str, int] = {}
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise ConfigError(f"line {line}: key {key!r} must be text; quote it")
        lines = written_lines if key_node in written_keys else merged_lines
        if key in lines:
            raise ConfigError(f"line {line}: duplicate key {key!r} (first at line {lines[key]})")
        lines[key] = line
        try:
            mapping[key] = loader.construct_object(value_node, deep=True)
        except ConfigError:
            raise
        except _CONSTRUCTION_ERRORS as error:
            mark = value_node.start_mark
            raise yaml.constructor.ConstructorError(None, None, str(error), mark) from error
    return mapping


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)


# values, commas and brackets of a recipe; shipped ones have hundreds
_MAX_PIECES = 1_000_000


def _load_yaml(text: str) -> Any:
    """Read a tree of JSON values.

    Raises:
        ConfigError: a key stands twice or is no text.
        YAMLError: the text is no YAML, or holds other values.
    """
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader subclass
        # in pieces: a few lines of aliases of aliases are a tree that fills the memory
        for number, _ in enumerate(json.JSONEncoder().iterencode(value)):
            if number == _MAX_PIECES:
                raise yaml.YAMLError("its aliases stand for too large a tree")
    except ConfigError:
        raise
    except yaml.reader.ReaderError as error:
        # its position is in bytes by libyaml, in characters without
        line = text.partition(chr(error.character))[0].count("\n") + 1
        raise yaml.YAMLError(
            f"line {line}: character #x{error.character:04x}: {error.reason}"
        ) from error
    # a set, an anchor inside itself, deep nesting
    except (*_CONSTRUCTION_ERRORS, RecursionError) as error:
        raise yaml.YAMLError(f"not a tree of plain values: {error}") from error
    return value


def parse_value(text: str) -> Any:
    """Read a YAML value, as written on a command line after `key=`."""
    try:
        return _load_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"cannot read the value {text!r} as YAML: {_in_line(error)}") from error


def _in_line(error: Exception) -> str:
    """Put an error of PyYAML's into a line; its own text quotes the file over several lines."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error)
    mark = error.problem_mark
    context = f"{error.context}: " if error.context else ""
    return f"line {mark.line + 1}, column {mark.column + 1}: {context}{error.problem}"


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping.

    Raises:
        ConfigError: the file is missing, is not YAML, has a duplicate key, or is not a mapping.
    """
    if not path.is_file():
        recipes = sorted(file.name for file in path.parent.glob("*.yaml"))
        hint = f"{path.parent} holds {', '.join(recipes) or 'no recipe'}"
        if not path.parent.is_dir():
            hint = f"there is no folder {path.parent}"
        raise ConfigError(f"no recipe at {path}; {hint}")
    try:
        mapping = _load_yaml(path.read_text(encoding="utf-8"))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}: line {line}: not UTF-8: {error.reason}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not readable as YAML: {_in_line(error)}") from error
    if not isinstance(mapping, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of keys, found {type(mapping).__name__}")
    return cast(dict[str, Any], mapping)
