"""The recipes that come with the package, by name: `tiny/sft` is `recipes/tiny/sft.yaml`.

recipe_file("tiny/sft")       → …/recipes/tiny/sft.yaml
recipe_file("my/sft.yaml")    → my/sft.yaml
recipe_file("tiny/stf")       → ConfigError: … (did you mean 'tiny/sft'?)
"""

from __future__ import annotations

import difflib
from pathlib import Path

from posttrain.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]
# beside the packages in a checkout, inside of this one when it is installed
RECIPES = next(
    (f for f in (_PACKAGE / "recipes", _PACKAGE.parent / "recipes") if f.is_dir()),
    _PACKAGE / "recipes",
)


def recipe_names() -> list[str]:
    """Every shipped recipe, as `--config` takes it."""
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
