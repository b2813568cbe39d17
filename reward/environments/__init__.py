"""RLVR environments by name, ours and those from outside.

    environments = {name: make() for name, make in ENVIRONMENTS.items()}
    admitted = await admit(iter(rows), environments)

docs/guides/environments.md says what each of ours checks.
"""

from __future__ import annotations

import functools

from reward.environments.agentic import FAMILIES
from reward.environments.base import RLVREnvironment
from reward.environments.code import CodeEnvironment
from reward.environments.conversation import ConversationEnvironment
from reward.environments.genselect import GenSelectEnvironment
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
        GenSelectEnvironment,
        *FAMILIES,
    )
}


def find_environment(name: str, judge: LabelJudge | None = None) -> RLVREnvironment | None:
    """Make the environment of a name, `module:Class` or an entry point's name; None for any other.

    Raises ConfigError: an environment from outside that cannot be used.
    """
    environment_class = ENVIRONMENTS.get(name)
    if environment_class is not None:
        if issubclass(environment_class, JudgedEnvironment):
            return environment_class(judge)
        return environment_class()
    reference = reference_of(name)
    return None if reference is None else _outside_environment(name, reference)


@functools.cache  # importing a package from outside may be slow
def _outside_environment(name: str, reference: str) -> OutsideEnvironment:
    return OutsideEnvironment(name, reference)
