"""The toolkits that prompts name: those of `posttrain/environments/`, and the tiny world's own.

toolkits_for(recipe.prompts, recipe.settings)  → {"tiny_world": …, "calculator+python": …}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from data_builders.tiny_world.tools import TinyWorldToolkit
from posttrain.config.prompts import GIVEN_TOOLS, NO_TOOLS, AnySource, Setting
from posttrain.environments.base import Environment, Toolkit, open_toolkit
from posttrain.rollouts import Prompt

TINY_WORLD = "tiny_world"


def toolkits_for(sources: Sequence[AnySource], settings: Sequence[Setting]) -> dict[str, Toolkit]:
    """Every toolkit that is named, ready to run.

    Raises:
        ConfigError: there is none of that name, or this machine cannot run it.
    """
    named = [s.tools for s in settings if s.tools not in (NO_TOOLS, GIVEN_TOOLS)]
    named += [s.environment for s in sources if s.environment is not None]
    return {
        name: TinyWorldToolkit() if name == TINY_WORLD else open_toolkit(name)
        for name in dict.fromkeys(named)
    }


def opener(toolkits: Mapping[str, Toolkit]) -> Callable[[Prompt], Environment | None]:
    """Opens the environment that a prompt names; None for a prompt that names none."""
    return lambda prompt: (
        None if prompt.environment is None else toolkits[prompt.environment].open(prompt)
    )
