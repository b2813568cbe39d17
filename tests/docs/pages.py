"""The commands and recipes that a page of the documentation shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """The `posttrain` commands of the page's bash blocks, as lists of arguments.

    Raises:
        ValueError: a line of such a block is no command of a shell.
    """
    lines = [
        shlex.split(line, comments=True)
        for language, text in _BLOCK.findall(page.read_text("utf-8"))
        if language == "bash"
        for line in text.replace("\\\n", " ").splitlines()
    ]
    return [line[1:] for line in lines if line[:1] == ["posttrain"]]


def yaml_blocks(page: Path) -> list[str]:
    """The page's blocks in YAML."""
    return [text for kind, text in _BLOCK.findall(page.read_text("utf-8")) if kind == "yaml"]


def recipes(page: Path) -> dict[str, str]:
    """The YAML blocks that begin with a file's name, `# my/data.yaml`, by that name."""
    return {
        name[1]: text for text in yaml_blocks(page) if (name := re.match(r"# (\S+\.yaml)\n", text))
    }


def write_recipes(page: Path, folder: Path) -> None:
    """Write them, at their names in `folder`."""
    for name, text in recipes(page).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
