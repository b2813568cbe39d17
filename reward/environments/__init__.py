"""RLVR environments by name, ours and those from outside; docs/guides/environments.md has what each
of ours checks.

environments = {name: make() for name, make in ENVIRONMENTS.items()}
admitted = await admit(iter(rows), environments)
"""

from __future__ import annotations

import functools

from reward.environments.agentic import FAMILIES
from reward.environments.base import RLVREnvironment
from reward.environments.code import CodeEnvironment
from reward.environments.conversation import ConversationEnvironment
from reward.environments.gym_http import GymHttpEnvironment
from reward.environments.instruction_following import InstructionFollowingEnvironment
from reward.environments.judged import (
    EquivalenceEnvironment,
    JudgedEnvironment,
    LabelJudge,
    RubricEnvironment,
)
from reward.environments.long_context import LongContextEnvironment
from reward.environments.math_and_choice import MathEnvironment, MultipleChoiceEnvironment
from reward.environments.outside import OutsideEnvironment, reference_of
from reward.environments.reasoning_gym import ReasoningGymEnvironment
from reward.environments.scheduling import SchedulingEnvironment
from reward.environments.structured_output import StructuredOutputEnvironment
from reward.environments.tool_call import ToolCallEnvironment
from reward.environments.workplace import WorkplaceEnvironment

ENVIRONMENTS: dict[str, type[RLVREnvironment]] = {
    environment.name: environment
    for environment in (
        MathEnvironment,
        MultipleChoiceEnvironment,
        CodeEnvironment,
        StructuredOutputEnvironment,
        InstructionFollowingEnvironment,
        ToolCallEnvironment,
        LongContextEnvironment,
        WorkplaceEnvironment,
        SchedulingEnvironment,
        ConversationEnvironment,
        EquivalenceEnvironment,
        RubricEnvironment,
        ReasoningGymEnvironment,
        GymHttpEnvironment,
        *FAMILIES,
    )
}


def find_environment(name: str, judge: LabelJudge | None = None) -> RLVREnvironment | None:
    """The environment of a name, `module:Class` or an entry point; None: nothing is called so.
    Raises ConfigError: one from outside that cannot be used."""
    if (kind := ENVIRONMENTS.get(name)) is not None:
        return kind(judge) if issubclass(kind, JudgedEnvironment) else kind()
    reference = reference_of(name)
    return None if reference is None else _outside(name, reference)


@functools.cache
def _outside(name: str, reference: str) -> OutsideEnvironment:
    return OutsideEnvironment(name, reference)
