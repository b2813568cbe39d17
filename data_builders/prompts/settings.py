"""A question in one setting: what is declared, whether it reasons, and under which id.

in_setting(question, source, setting, …)
→ [Prompt("maths-5f0c…/no_tools/on", task="maths-5f0c…", setting="no_tools", …)]
→ "needs_tools"        why it is not asked in this setting
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from data_builders.keyed import unit
from data_builders.prompts.question import Question
from data_builders.rows.where import Where, parse_where
from posttrain.config.prompts import GIVEN_TOOLS, NO_TOOLS, AnySource, Setting
from posttrain.environments.base import Toolkit
from posttrain.records import Message, json_text
from posttrain.rollouts import Prompt


@dataclass(frozen=True)
class SettingPlan:
    """A setting with its expression parsed and its toolkit at hand."""

    setting: Setting
    where: Where | None
    toolkit: Toolkit | None

    @classmethod
    def of(cls, setting: Setting, toolkits: Mapping[str, Toolkit]) -> SettingPlan:
        """Raises ConfigError for an expression that cannot be read, KeyError without a toolkit."""
        plain = setting.tools in (NO_TOOLS, GIVEN_TOOLS)
        return cls(
            setting,
            None if setting.where is None else parse_where(setting.where),
            None if plain else toolkits[setting.tools],
        )


def why_not(question: Question, source: AnySource, plan: SettingPlan) -> str | None:
    """Why a setting does not ask the question, `None` if it does."""
    setting = plan.setting
    if setting.sources is not None and source.name not in setting.sources:
        return "other_sources"
    if plan.where is not None and plan.where.matches(question.row) is not None:
        return "where"
    bare = setting.tools == NO_TOOLS
    if bare and question.needs_tools:
        return "needs_tools"
    if bare and any(m.tool_calls or m.role == "tool" for m in question.messages):
        return "calls_in_history"
    if setting.tools == GIVEN_TOOLS and question.tools is None:
        return "no_tools_given"
    return None


def in_setting(
    question: Question, source: AnySource, plan: SettingPlan, *, seed: int
) -> list[Prompt]:
    """The question's prompts in a setting that asks it: two where both modes are asked."""
    modes = _modes(question, plan.setting, seed)
    prompts = [_prompt(question, source, plan.setting, thinking) for thinking in modes]
    return [_with_tools(prompt, question, source, plan) for prompt in prompts]


def task_of(question: Question, source: AnySource) -> str:
    """The name that a question has in every setting."""
    return f"{source.name}-{question.digest}"


def _modes(question: Question, setting: Setting, seed: int) -> tuple[bool, ...]:
    if setting.thinking == "both":
        return (True, False)
    return (unit(seed, "thinking", setting.name, question.digest) < setting.thinking,)


def _prompt(question: Question, source: AnySource, setting: Setting, thinking: bool) -> Prompt:
    task = task_of(question, source)
    return Prompt(
        id=f"{task}/{setting.name}/{'on' if thinking else 'off'}",
        task=task,
        setting=setting.name,
        messages=tuple(m if thinking else _without_trace(m) for m in question.messages),
        thinking=thinking,
        reasoning_budget=setting.reasoning_budget if thinking else None,
        grader=source.grader,
        gold=question.gold,
        source=source.name,
        metadata=question.metadata,
    )


def _with_tools(prompt: Prompt, question: Question, source: AnySource, plan: SettingPlan) -> Prompt:
    """The prompt with what its setting declares; `metadata.tools_declared`, if any, follows."""
    tools, environment = None, None
    if plan.toolkit is not None:
        tools, environment = plan.toolkit.schemas(prompt), plan.setting.tools
    elif plan.setting.tools == GIVEN_TOOLS:
        tools, environment = question.tools, source.environment
    metadata = json.loads(prompt.metadata)
    if "tools_declared" in metadata:
        names = [tool.get("function", tool)["name"] for tool in json.loads(tools or "[]")]
        metadata |= {"tools_declared": names, "with_tools": bool(names)}
        prompt = replace(prompt, metadata=json_text(metadata))
    return replace(prompt, tools=tools, environment=environment)


def _without_trace(message: Message) -> Message:
    return replace(message, reasoning=None)
