"""The reference pages that `make docs` generates: for each stage the keys of its recipe.

    reference/stages.md        every stage in a sentence, and the recipes that ship
    reference/stages/sft.md    what `posttrain sft --help` prints

A hook of mkdocs (https://www.mkdocs.org/user-guide/configuration/#hooks). Nothing that it writes is
committed, but for a page that is read in the repository too and that this file writes as a command:

    python docs/_generate.py     evidence/what-ran.md, from the lines "*Ran: …*" of the evidence
"""

from __future__ import annotations

import ast
import html
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[1]
WHAT_RAN = ROOT / "docs" / "evidence" / "what-ran.md"
PLACES = ("tiny world", "real data", "several processes", "real server", "GPU")
_SECTION = re.compile(r"^## (.+)\n\n\*Ran: ([^*]+)\.\*$", re.MULTILINE)


def pages() -> dict[str, str]:
    """Every generated page: its path inside docs → Markdown."""
    # mkdocs is a command, which does not look here, and takes back what a hook adds while it loads
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))

    from posttrain.config.recipe_files import recipe_names
    from posttrain.config.schemas import stage_schemas
    from scripts.__main__ import STAGES, sentence

    schemas = stage_schemas()
    made: dict[str, str] = {}
    lines = ["# Stages", "", "| `posttrain …` | |", "|---|---|"]
    for stage, path in STAGES.items():
        tree = ast.parse(path.read_text("utf-8"))
        name = f"`{stage}`"
        if schema := schemas.get(stage):
            name = f"[{name}](stages/{stage}.md)"
            made[f"reference/stages/{stage}.md"] = page(
                stage, ast.get_docstring(tree) or "", schema
            )
        lines.append(f"| {name} | {escaped(sentence(path))} |")
    lines += ["", "## Recipes", "", "Each is a `--config`:", ""]
    lines += [f"- `{name}`" for name in recipe_names()]
    return {"reference/stages.md": "\n".join(lines) + "\n"} | made


def page(stage: str, docstring: str, schema: type[BaseModel]) -> str:
    """All keys of a stage: name, type, default, source of a number, and what it is."""
    from posttrain.config.describe import key_entries

    about, _, usage = docstring.partition("\n\n")
    usage, _, more = usage.partition("\n\n")
    lines = [
        f"# {stage}",
        "",
        escaped(about),
        "",
        "```bash",
        *map(str.strip, usage.split("\n")),
    ]
    lines += ["```", "", escaped(more), ""]
    for head, text in key_entries(schema):
        key, _, kind = head.partition("    ")
        lines += [f"**`{key}`** {escaped(kind)}  ", escaped(text), ""]
    return "\n".join(lines)


def what_ran(evidence: str) -> str:
    """A table of the stages by where they ran, with links to the sections of the evidence.

    Args:
        evidence: Markdown whose sections may begin with "*Ran: STAGE, … on PLACE, …; ….*".

    Raises:
        ValueError: a stage or place that there is not.
    """
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))

    from scripts.__main__ import STAGES

    sections: dict[tuple[str, str], list[str]] = {}
    for title, ran in _SECTION.findall(evidence):
        anchor = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
        # it may go on over several lines
        for clause in " ".join(ran.split()).split("; "):
            stages, _, places = clause.partition(" on ")
            for stage in stages.split(", "):
                for place in places.split(", "):
                    if stage not in STAGES or place not in PLACES:
                        raise ValueError(f"{title}: no stage {stage!r} or no place {place!r}")
                    links = sections.setdefault((stage, place), [])
                    links.append(f"[{title}](benchmarks.md#{anchor})")
    lines = [
        "# What was run where",
        "",
        "Every stage, with the sections of the [evidence](benchmarks.md) in which it ran. All is",
        "tested besides.",
        '"Real data" are rows, tokenizers or models of others on a CPU; – stands for nothing yet.',
        "",
        f"| | {' | '.join(PLACES)} |",
        "|---" * (len(PLACES) + 1) + "|",
    ]
    for stage in STAGES:
        cells = ["<br>".join(sections.get((stage, place), ["–"])) for place in PLACES]
        lines.append(f"| `{stage}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text as Markdown: outside code, angle brackets are no tags."""
    return re.sub(r"`[^`]*`|[<>&]", lambda m: m[0] if m[0][0] == "`" else html.escape(m[0]), text)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of the stages behind `reference/stages.md` in the navigation."""
    (reference,) = (part["Reference"] for part in config.nav or [] if "Reference" in part)
    reference.append({"Keys": [path for path in pages() if "/stages/" in path]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


if __name__ == "__main__":
    evidence_page = WHAT_RAN.with_name("benchmarks.md")
    WHAT_RAN.write_text(what_ran(evidence_page.read_text("utf-8")), "utf-8")
