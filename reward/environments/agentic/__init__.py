"""The ten agentic families by name; docs/guides/agentic.md says what each wants."""

from reward.environments.agentic.base import Family
from reward.environments.agentic.fix_failing_test import FixFailingTest
from reward.environments.agentic.handle_ambiguous_requirement import HandleAmbiguousRequirement
from reward.environments.agentic.investigate_log import InvestigateLog
from reward.environments.agentic.know_when_to_stop import KnowWhenToStop
from reward.environments.agentic.minimal_fix import MinimalFix
from reward.environments.agentic.multi_step_plan import MultiStepPlan
from reward.environments.agentic.recover_from_tool_error import RecoverFromToolError
from reward.environments.agentic.refactor_duplicated_code import RefactorDuplicatedCode
from reward.environments.agentic.sql_investigation import SqlInvestigation
from reward.environments.agentic.trace_through_codebase import TraceThroughCodebase

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
