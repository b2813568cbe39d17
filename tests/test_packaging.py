"""What a package index shows of the wheel, and how the project is cited."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
BUILD = "from setuptools.build_meta import prepare_metadata_for_build_wheel as write; write('out')"
REPOSITORY = "https://example.org/posttrain"


@pytest.mark.parametrize("repository", ["", REPOSITORY])
def test_links_of_the_readme_lead_somewhere_on_an_index(repository: str, tmp_path: Path):
    shown = metadata(tmp_path, repository)
    links = links_of(str(shown.get_payload()))
    assert all(link.startswith("https://") for link in links)
    files = [link for link in links if link.startswith(f"{REPOSITORY}/blob/main/")]
    relative = [
        link for link in links_of((ROOT / "README.md").read_text("utf-8")) if ":" not in link
    ]
    assert len(files) == (len(relative) if repository else 0)
    for link in files:
        assert (ROOT / link.removeprefix(f"{REPOSITORY}/blob/main/").partition("#")[0]).is_file()
    urls = dict(line.split(", ", 1) for line in shown.get_all("Project-URL", ()))
    assert urls.pop("Paper") == "https://arxiv.org/abs/2512.20848"
    assert urls.get("Repository", "") == repository
    for url in urls.values():
        assert url.startswith(repository)
    assert "Programming Language :: Python :: 3.11" in shown.get_all("Classifier", ())
    assert shown["Keywords"]


def links_of(markdown: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", markdown)


def metadata(folder: Path, repository: str) -> Message:
    """METADATA of the wheel, built from its three files."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("out", "recipes", "scripts"):  # the last two are named in setup.py
        (folder / name).mkdir()
    environment = os.environ | {"POSTTRAIN_REPOSITORY": repository}
    command = [sys.executable, "-c", BUILD]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    (text,) = (path.read_text("utf-8") for path in folder.glob("out/*/METADATA"))
    return message_from_string(text)


def test_the_citation_is_of_this_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert citation["title"] == project["name"]


def test_extras_that_the_pages_name_are_there():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        name
        for page in pages
        for group in re.findall(r"(?:posttrain|'\.|\"\.)\[([a-z, -]+)\]", page.read_text("utf-8"))
        for name in re.split(r",\s*", group)
    }
    assert {"all", "train", "eval", "report"} <= named <= extras.keys()
