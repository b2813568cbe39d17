"""RLVR environments by name; docs/guides/environments.md has what each checks.

environments = {name: make() for name, make in ENVIRONMENTS.items()}
admitted = await admit(iter(rows), environments)
"""

from __future__ import annotations

from reward.environments.agentic import FAMILIES
from reward.environments.base import RLVREnvironment
from reward.environments.code import CodeEnvironment
from reward.environments.conversation import ConversationEnvironment
from reward.environments.gym_http import GymHttpEnvironment
from reward.environments.instruction_following import InstructionFollowingEnvironment
from reward.environments.judged import EquivalenceEnvironment, RubricEnvironment
from reward.environments.long_context import LongContextEnvironment
from reward.environments.math_and_choice import MathEnvironment, MultipleChoiceEnvironment
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
