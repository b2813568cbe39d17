"""Which folders make the wheel; everything else about the project stands in pyproject.toml.

`scripts/` is installed as the package `posttrain_scripts`, where nobody else's `scripts` is in the
way, and `recipes/` as data of `posttrain`, where recipes are found by name.

POSTTRAIN_REPOSITORY says where the repository lies, such as https://github.com/ORG/posttrain: the
README of a package index then links to its files. Without it, links to files are their text.
"""

import os
import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

REPOSITORY = os.environ.get("POSTTRAIN_REPOSITORY", "").rstrip("/")
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://)([^)\s]+)\)")


def index_readme() -> str:
    """The README without links that lead to files beside it."""
    target = rf"[\1]({REPOSITORY}/blob/main/\2)" if REPOSITORY else r"\1"
    return _LINK.sub(target, Path(__file__).with_name("README.md").read_text("utf-8"))


urls = {"Paper": "https://arxiv.org/abs/2512.20848"}
if REPOSITORY:
    urls |= {
        "Repository": REPOSITORY,
        "Documentation": f"{REPOSITORY}/blob/main/docs/index.md",
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    }

setup(
    long_description=index_readme(),
    long_description_content_type="text/markdown",
    project_urls=urls,
    packages=[
        *find_namespace_packages(include=["posttrain*", "data_builders*", "reward*"]),
        "posttrain.recipes",
        "posttrain_scripts",
    ],
    package_dir={"posttrain.recipes": "recipes", "posttrain_scripts": "scripts"},
    package_data={
        "": ["py.typed"],
        "posttrain.recipes": ["**/*.yaml", "**/*.md"],
        "data_builders.synthesis": ["prompts/*.txt"],
        "posttrain.chat": ["templates/*.jinja"],
        "posttrain.config": ["prompt_templates/*.yaml"],
        "posttrain.report": ["page.css", "page.html.jinja", "page.js"],
    },
)
