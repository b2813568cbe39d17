"""The ten agentic families by name; docs/guides/agentic.md says what each wants."""

from reward.environments.agentic.base import Family
from reward.environments.agentic.codebase import RefactorDuplicatedCode, TraceThroughCodebase
from reward.environments.agentic.decisions import (
    HandleAmbiguousRequirement,
    KnowWhenToStop,
    MultiStepPlan,
    RecoverFromToolError,
)
from reward.environments.agentic.investigations import InvestigateLog, SqlInvestigation
from reward.environments.agentic.repairs import FixFailingTest, MinimalFix

FAMILIES: tuple[type[Family], ...] = (
    FixFailingTest,
    RefactorDuplicatedCode,
    InvestigateLog,
    TraceThroughCodebase,
    MinimalFix,
    HandleAmbiguousRequirement,
    MultiStepPlan,
    RecoverFromToolError,
    KnowWhenToStop,
    SqlInvestigation,
)
