"""Every grader a recipe can name: those of `reward/`, and the tiny world's own."""

from __future__ import annotations

from data_builders.tiny_world.grading import TinyWorldGrader
from reward.graders import GRADERS
from reward.graders.base import Grader


def all_graders() -> dict[str, Grader]:
    """Grader by name; one that needs worker processes starts them when it is first used."""
    return {name: make() for name, make in GRADERS.items()} | {"tiny_world": TinyWorldGrader()}
