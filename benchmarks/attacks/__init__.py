"""Attacks on the verifiers of RLVR environments; run them with `benchmarks/red_team.py`."""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.attacks.answers import math, multiple_choice
from benchmarks.attacks.base import Attacks
from benchmarks.attacks.instructions import instruction_following
from benchmarks.attacks.programs import code
from benchmarks.attacks.structures import structured_output, tool_call
from posttrain.rollouts import Prompt

ATTACKS: dict[str, Callable[[Prompt, random.Random], Attacks]] = {
    "math": math,
    "multiple_choice": multiple_choice,
    "code": code,
    "structured_output": structured_output,
    "tool_call": tool_call,
    "instruction_following": instruction_following,
}
