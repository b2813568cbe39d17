"""Attacks on the verifiers of RLVR environments; `python -m benchmarks red_team` runs them all."""

from __future__ import annotations

import random
from collections.abc import Callable

from posttrain.rollouts import Prompt
from tests.reward.environments.attacks.answers import math, multiple_choice
from tests.reward.environments.attacks.base import Attacks
from tests.reward.environments.attacks.instructions import instruction_following
from tests.reward.environments.attacks.programs import code
from tests.reward.environments.attacks.structures import structured_output, tool_call

ATTACKS: dict[str, Callable[[Prompt, random.Random], Attacks]] = {
    "math": math,
    "multiple_choice": multiple_choice,
    "code": code,
    "structured_output": structured_output,
    "tool_call": tool_call,
    "instruction_following": instruction_following,
}
