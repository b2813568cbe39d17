"""Which folders make the wheel; everything else about the project stands in pyproject.toml.

`scripts/` is installed as the package `posttrain_scripts`, where nobody else's `scripts` is in the
way, and `recipes/` as data of `posttrain`, where recipes are found by name.
"""

from setuptools import find_namespace_packages, setup

setup(
    packages=[
        *find_namespace_packages(include=["posttrain*", "data_builders*", "reward*"]),
        "posttrain.recipes",
        "posttrain_scripts",
    ],
    package_dir={"posttrain.recipes": "recipes", "posttrain_scripts": "scripts"},
    package_data={
        "": ["py.typed"],
        "posttrain.recipes": ["**/*.yaml", "**/*.md"],
        "posttrain.chat": ["templates/*.jinja"],
        "posttrain.config": ["prompt_templates/*.yaml"],
        "posttrain.report": ["page.css", "page.html.jinja", "page.js"],
    },
)
