"""The pages: every command resolves its recipe, every link leads somewhere, every stage has its keys.

Here commands are not run: their stages' tests and test_own_model.py do. One without a recipe is run as
far as its artifact, which is not there.
"""

from __future__ import annotations

import io
import re
import runpy
import sys
from pathlib import Path

import pytest

from posttrain.config.recipe_files import recipe_file
from posttrain.errors import PosttrainError
from scripts.__main__ import STAGES, dispatch
from tests.docs.pages import GUIDES, ROOT, commands, write_recipes

PAGES = [
    *(page for page in sorted(GUIDES.glob("*.md")) if page.stem != "own-model" and commands(page)),
    ROOT / "README.md",
]
TEXTS = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "recipes").rglob("*.md"))]
TEXTS += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_resolves(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    write_recipes(page, tmp_path)
    for command in commands(page):
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        if command[0] == "launch":
            at = next(i for i, word in enumerate(command) if word in STAGES)
            assert recipe_file(command[command.index("--config_file") + 1]).is_file()
            command = command[at:]
        if command[0].startswith("--"):
            dispatch(command)
            continue
        assert command[0] in STAGES, command
        if command[0] in ("quickstart", "smoke"):  # tests/docs/test_ci.py
            continue
        if "--config" in command:
            with pytest.raises(SystemExit) as ended:
                dispatch([*command, "--print-config"])
            assert not ended.value.code, f"{command}: {capsys.readouterr().err}"
        else:
            with pytest.raises(PosttrainError):
                dispatch(command)


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", title.replace("`", "").lower()).strip() for title in titles)
    return {re.sub(r"[\s-]+", "-", text) for text in words}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path):
    for path, anchor in _LINK.findall(page.read_text("utf-8")):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in _anchors(target), f"{path}#{anchor}"


def test_every_public_name_is_where_the_page_says():
    lines = (ROOT / "docs/reference/api.md").read_text("utf-8").splitlines()
    rows = [line.split("|")[1:3] for line in lines if line.startswith("| `")]
    assert len(rows) > 20
    for modules, names in rows:
        first, *others = re.findall(r"`([\w.]+)`", modules)
        # `.judge` behind `reward.environments` lies in it, behind `reward.judge.prompt` beside it
        above = (first, first.rpartition(".")[0])
        paths = [first, *(f"{p}{o}" if o[0] == "." else o for o in others for p in above)]
        files = [
            ROOT / (path.replace(".", "/") + end)
            for path in paths
            for end in (".py", "/__init__.py")
        ]
        text = "".join(file.read_text("utf-8") for file in files if file.is_file())
        missing = [n for n in re.findall(r"`(\w+)`", names) if not re.search(rf"\b{n}\b", text)]
        assert not missing


def test_the_generated_reference_has_every_stage_with_its_keys():
    pages = runpy.run_path(str(ROOT / "docs" / "_generate.py"))["pages"]()
    # an audit takes a recipe or paths, and describes its keys itself
    reads = re.compile(r"\b(?:parse_recipe|describe)\(")
    with_recipe = {name for name, path in STAGES.items() if reads.search(path.read_text())}
    assert {Path(path).stem for path in pages} == {"stages", *with_recipe}
    assert "**`model.path`**" in pages["reference/stages/sft.md"]
    assert all(f"`{stage}`" in pages["reference/stages.md"] for stage in STAGES)


def test_the_page_of_what_ran_is_that_of_the_evidence():
    made = runpy.run_path(str(ROOT / "docs" / "_generate.py"))
    evidence = (ROOT / "docs/evidence/benchmarks.md").read_text("utf-8")
    assert made["WHAT_RAN"].read_text("utf-8") == made["what_ran"](evidence)
    one_line = made["what_ran"]("## A\n\n*Ran: sft, dpo on GPU.*\n")
    assert made["what_ran"]("## A\n\n*Ran: sft,\ndpo on GPU.*\n") == one_line
    assert "[A](benchmarks.md#a)" in one_line
    with pytest.raises(ValueError, match="no stage 'sift' or no place 'moon'"):
        made["what_ran"]("## A\n\n*Ran: sift on moon.*\n")
