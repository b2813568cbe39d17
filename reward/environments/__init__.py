"""RLVR environments by name; docs/environments.md has what each checks.

environments = {name: make() for name, make in ENVIRONMENTS.items()}
admitted = await admit(iter(rows), environments)
"""

from __future__ import annotations

from reward.environments.base import RLVREnvironment
from reward.environments.math import MathEnvironment

ENVIRONMENTS: dict[str, type[RLVREnvironment]] = {
    environment.name: environment for environment in (MathEnvironment,)
}
