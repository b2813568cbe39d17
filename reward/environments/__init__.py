"""RLVR environments by name; docs/environments.md has what each checks.

environments = {name: make() for name, make in ENVIRONMENTS.items()}
admitted = await admit(iter(rows), environments)
"""

from __future__ import annotations

from reward.environments.base import RLVREnvironment
from reward.environments.code import CodeEnvironment
from reward.environments.instruction_following import InstructionFollowingEnvironment
from reward.environments.math import MathEnvironment
from reward.environments.multiple_choice import MultipleChoiceEnvironment
from reward.environments.structured_output import StructuredOutputEnvironment
from reward.environments.tool_call import ToolCallEnvironment

ENVIRONMENTS: dict[str, type[RLVREnvironment]] = {
    environment.name: environment
    for environment in (
        MathEnvironment,
        MultipleChoiceEnvironment,
        CodeEnvironment,
        StructuredOutputEnvironment,
        InstructionFollowingEnvironment,
        ToolCallEnvironment,
    )
}
