"""Attacks of every form on the tasks of an environment, for the tests and `python -m benchmarks red_team`."""

from __future__ import annotations

import random
from collections.abc import Iterator

from posttrain.rollouts import Prompt
from reward.environments.agentic.base import Family
from reward.environments.base import RLVREnvironment, says
from tests.reward.environments.attacks import ATTACKS
from tests.reward.environments.attacks.agentic import agentic_tricks
from tests.reward.environments.attacks.base import Attack, common
from tests.reward.environments.attacks.instruction_tricks import instruction_tricks
from tests.reward.environments.attacks.instructions import instruction_forms
from tests.reward.environments.attacks.right import RIGHT
from tests.reward.environments.attacks.right_texts import right_texts
from tests.reward.environments.attacks.state_tricks import STATE_TRICKS
from tests.reward.environments.attacks.states import STATE_ATTACKS
from tests.reward.environments.attacks.structure_tricks import CALL_TRICKS, documents

RIGHT_FORM = "right: "  # begins the forms of right answers
TRICK = "trick: "


def attacks_on(
    environment: RLVREnvironment, prompts: list[Prompt], seed: int
) -> Iterator[tuple[Prompt, Attack]]:
    """(task, attack) of every attack form on every task."""
    for index, prompt in enumerate(prompts):
        other_prompt = prompts[(index + 1) % len(prompts)]
        for attack in common(environment, prompt, other_prompt):
            yield prompt, attack
        if isinstance(environment, Family):
            yield from ((prompt, attack) for attack in agentic_tricks(environment, prompt))
        for attacks in (ATTACKS, STATE_ATTACKS, STATE_TRICKS, CALL_TRICKS):
            if (make_attacks := attacks.get(environment.name)) is not None:
                for attack in make_attacks(prompt, random.Random(f"{seed}/{prompt.id}")):
                    yield prompt, attack
        if (right_answers := RIGHT.get(environment.name)) is not None:
            for form, script in right_answers(prompt, random.Random(f"{seed}/{prompt.id}")):
                yield prompt, Attack(RIGHT_FORM + form, True, script)
        if environment.name == "instruction_following":
            for constraint, form, text in right_texts(random.Random(f"{seed}/{prompt.id}")):
                row = {"question": "x", "metadata": {"constraints": [constraint]}}
                yield environment.prompt(row), Attack(RIGHT_FORM + form, True, says(text))
    if environment.name == "structured_output":
        for row, attack in documents():
            yield environment.prompt(row), attack
    if environment.name == "instruction_following":
        for constraint, attack in (*instruction_forms(), *instruction_tricks()):
            row = {"question": "x", "metadata": {"constraints": [constraint]}}
            yield environment.prompt(row), attack
