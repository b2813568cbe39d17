"""Tasks with tools → conversations of a user model and an agent model.

As in the paper, 3.1.2: a user with a task, an agent that is to help, and a tool environment; a
judge keeps those in which each is consistent with its goals. Tools run by code where the task has
an environment, and then its verifier has the first word. Otherwise a model plays the tools, and is
shown all its earlier answers. Every step is a request of its own: a killed run repeats none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from data_builders.synthesis.seeds import (
    example_of,
    plain_seeds,
    prompt_seeds,
    row_value,
    text_field,
)
from data_builders.synthesis.steps import (
    OFF_TOPIC,
    Answered,
    Ask,
    Discarded,
    Keep,
    Making,
    Note,
    Row,
    Seed,
    SeedSet,
    SynthesisKind,
    ask_one,
    ask_text,
    chat_row,
    grade,
    judged_labels,
    prompt_of,
    transcript,
)
from posttrain.config.synthesize import ScenarioRows, ToolConversation
from posttrain.environments.base import Environment, EnvironmentFault, attempt
from posttrain.jsontext import load_json
from posttrain.records import Message, ToolCall, json_text
from posttrain.rollouts import Completion, Prompt, Step, metadata_of
from reward.graders.base import Attempt
from reward.judge.quoting import quoted

END = "###END###"
_LABELS = ("user", "agent", "tools", "left_to_agent")
_BROKEN_CALLS = frozenset({"half_call", "malformed_call"})


@dataclass(frozen=True, slots=True)
class ToolTask:
    """Wish of a user, and the tools that an agent has for it.

    Attributes:
        wish: text that the user model is given.
        tools: JSON text of the declared tools.
        prompt: prompt of an environment's task; None: a model plays the tools.
    """

    wish: str
    system: tuple[Message, ...]
    tools: str
    prompt: Prompt | None = None

    @property
    def names(self) -> set[str]:
        """Names of the declared tools."""
        return {tool.get("function", tool)["name"] for tool in json.loads(self.tools)}


class ToolConversations(SynthesisKind):
    """The kind `tool_conversation`; the content of its seeds is a `ToolTask`."""

    config: ToolConversation
    spoiled_roles = ("agent",)

    def seeds(self, work: Path) -> SeedSet:
        result = plain_seeds(self.config.scenarios, _read_scenario)
        if "tools" not in self.setup.models and result.seeds:
            result.dropped["no_tools_model"] += len(result.seeds)
            result.seeds = []
        if self.plan is None:
            return result
        tasks = prompt_seeds(self.plan)
        for seed in tasks.seeds:
            prompt: Prompt = seed.content
            if prompt.tools is None or prompt.environment is None:
                result.dropped["no_tools"] += 1
                continue
            system = tuple(message for message in prompt.messages if message.role == "system")
            task = ToolTask(_wish_of(prompt), system, prompt.tools, prompt)
            result.seeds.append(Seed(prompt.id, task, example_of(prompt)))
        result.stats = {**result.stats, **tasks.stats}
        return result

    def max_completions(self, seed: Seed) -> Mapping[str, int]:
        steps = self.config.turns * self.config.steps
        simulated = seed.content.prompt is None
        return {
            "user": self.config.turns,
            "agent": steps,
            "tools": steps if simulated else 0,
            "judge": 1,
        }

    def make(self, seed: Seed) -> Making:
        """Let user and agent talk until the user ends; then ask the environment, then the judge."""
        task: ToolTask = seed.content
        environment: Environment | None = None
        if task.prompt is not None:
            environment = _run_part("open", partial(self.open_environment, task.prompt))
        try:
            messages, steps = yield from self._converse(seed, environment)
            state = None if environment is None else _run_part("snapshot", environment.snapshot)
        finally:
            if environment is not None:
                with contextlib.suppress(Discarded):  # the conversation is whole without it
                    _run_part("close", environment.close)
        checks = ["declared calls"]
        reached: bool | None = None
        explanation = ""
        if task.prompt is not None and task.prompt.grader is not None:
            completion = Completion(task.prompt.id, 0, tuple(steps), "stop", state=state)
            [score] = yield from grade(Attempt(task.prompt, completion))
            reached = score.value == 1.0
            explanation = score.explanation
            checks.append("environment")
        inconsistent: list[str] = []
        if "judge" in self.setup.models:
            text = self.text(
                "judge_tool_conversation",
                task=quoted(task.wish),
                tools=task.tools,
                conversation=transcript(messages),
            )
            request = Ask("judge", prompt_of(seed, "judge", text))
            labels = yield from judged_labels(request, *_LABELS)
            inconsistent = [label for label, holds in labels.items() if not holds]
            checks.append("judge")
            if reached is not None:
                verdicts = f"judge {_yes_or_no(not inconsistent)}, state {_yes_or_no(reached)}"
                yield Note("judge and state", verdicts)
        if reached is False:
            raise Discarded("state_not_reached", explanation)
        if inconsistent:
            raise Discarded(f"judge_refuses_{inconsistent[0]}", messages[-1].content[:200])
        turns = sum(message.role == "user" for message in messages)
        yield Note("user turns", str(turns))
        row = chat_row(
            messages, tools=task.tools, environment=task.prompt and task.prompt.environment
        )
        return Keep((row,), checks=tuple(checks))

    def _converse(
        self, seed: Seed, environment: Environment | None
    ) -> Generator[Any, Any, tuple[list[Message], list[Step]]]:
        """Play the conversation, or raise Discarded. Returns messages and agent steps with results.

        Raises:
            Discarded: a side says nothing, plays the other one, or never comes to an end.
        """
        task: ToolTask = seed.content
        messages = list(task.system)
        steps: list[Step] = []
        for turn in range(self.config.turns):
            text = self.text(
                "user_of_task",
                task=task.wish,
                conversation=transcript(_messages_for_user(messages)) or "(you begin)",
            )
            words = yield from ask_text(Ask("user", prompt_of(seed, f"user-{turn}", text)))
            if END in words:
                if not steps:
                    raise Discarded("user_ends_at_once", words[:200])
                return messages, steps
            message = Message("user", words)
            messages.append(message)
            if steps:
                steps[-1] = replace(steps[-1], results=(message,))
            yield from self._let_agent_answer(seed, environment, messages, steps, turn=turn)
        raise Discarded("user_never_ends", f"{self.config.turns} turns")

    def _let_agent_answer(
        self,
        seed: Seed,
        environment: Environment | None,
        messages: list[Message],
        steps: list[Step],
        *,
        turn: int,
    ) -> Generator[Any, Any, None]:
        """Let the agent take steps until it answers without a call.

        Args:
            messages, steps: conversation so far; the new messages and steps are added.
        """
        task: ToolTask = seed.content
        thinking = task.prompt is None or task.prompt.thinking
        for number in range(self.config.steps):
            prompt = prompt_of(
                seed, f"agent-{turn}-{number}", messages, tools=task.tools, thinking=thinking
            )
            step = (yield from ask_one(Ask("agent", prompt))).steps[-1]
            if _BROKEN_CALLS & set(step.parsed.problems):
                raise Discarded("malformed_call", step.text[:200])
            calls = tuple(
                replace(call, id=f"call-{len(steps)}-{position}")
                for position, call in enumerate(step.parsed.tool_calls)
            )
            step = replace(step, parsed=replace(step.parsed, tool_calls=calls))
            messages.append(step.parsed.message())
            results: list[Message] = []
            for call in calls:
                if call.name not in task.names:
                    raise Discarded("undeclared_call", call.name)
                result = yield from self._run_call(seed, environment, call, messages + results)
                results.append(Message("tool", result, tool_call_id=call.id, name=call.name))
            messages += results
            steps.append(replace(step, results=tuple(results)))
            if not calls:
                return
        raise Discarded("agent_never_answers", f"{self.config.steps} steps")

    def _run_call(
        self,
        seed: Seed,
        environment: Environment | None,
        call: ToolCall,
        messages: Sequence[Message],
    ) -> Generator[Any, Any, str]:
        """Run a call by the environment, or by a model that sees its log. Returns the result."""
        try:
            arguments = load_json(call.arguments)
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            return "error: the arguments are not a JSON object"
        if environment is not None:
            run_call = partial(environment.call, call.name, cast(dict[str, Any], arguments))
            return _run_part(f"tool {call.name}", run_call, kind=str)
        task: ToolTask = seed.content
        log = [f"{call_text} -> {result}" for call_text, result in _call_log(messages)]
        # a step may have any number of calls; what a model is asked for is what the plan says
        if len(log) >= self.config.turns * self.config.steps:
            raise Discarded("too_many_calls", f"{len(log)} answered")
        text = self.text(
            "tool_result",
            task=task.wish,
            tools=task.tools,
            log="\n".join(log) or "(none)",
            call=_call_text(call),
        )
        return (yield from ask_text(Ask("tools", prompt_of(seed, f"tool-{call.id}", text))))

    def bad_answer(self, seed: Seed, answered: Answered) -> str | Message | None:
        """Off-topic text for a judge, or an undeclared call without one; None in place of calls."""
        if answered.completions[0].tool_calls:
            return None
        if "judge" in self.setup.models:
            return OFF_TOPIC
        return Message("assistant", "", tool_calls=(ToolCall("grant_everything", "{}"),))


def _run_part(part: str, call: Callable[[], Any], *, kind: type = object) -> Any:
    """Run a part of an environment; Discarded where it raises, hangs or returns another type."""
    try:
        return asyncio.run(attempt(part, call, kind=kind))
    except EnvironmentFault as fault:
        raise Discarded("environment_fault", str(fault)) from fault


def _read_scenario(row: Row, source: ScenarioRows) -> tuple[str, ToolTask]:
    """Wish and task of a row. Raises Discarded for a malformed one."""
    wish = text_field(row, source.scenario)
    tools = row_value(row, source.tools)
    if isinstance(tools, str):
        try:
            tools = load_json(tools)
        except ValueError as error:
            raise Discarded("malformed_row", f"{source.tools} is no JSON") from error
    try:
        task = ToolTask(wish, (), json_text(tools))
        names = task.names
    except (KeyError, TypeError, AttributeError) as error:
        raise Discarded("malformed_row", f"{source.tools} is no list of tools") from error
    if not names:
        raise Discarded("malformed_row", "no tools")
    if source.system is None:
        return wish, task
    system = Message("system", text_field(row, source.system))
    return wish, replace(task, system=(system,))


def _wish_of(prompt: Prompt) -> str:
    """Wishes and knowledge of the user of an environment's task, as text."""
    wishes = [message.content for message in prompt.messages if message.role == "user"]
    user: Row = metadata_of(prompt).get("user") or {}
    facts = [fact["text"] for fact in user.get("facts", ())]
    return "\n".join([*wishes, *facts, *user.get("asides", ())])


def _messages_for_user(messages: Sequence[Message]) -> list[Message]:
    """Part of a conversation that its user reads: no calls and no results."""
    return [
        replace(message, tool_calls=(), reasoning=None)
        for message in messages
        if message.role in ("user", "assistant") and message.content
    ]


def _call_log(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Text of each earlier call, with its result."""
    calls = {call.id: call for message in messages for call in message.tool_calls}
    return [
        (_call_text(calls[message.tool_call_id]), message.content)
        for message in messages
        if message.role == "tool"
    ]


def _call_text(call: ToolCall) -> str:
    return f"{call.name}({call.arguments})"


def _yes_or_no(holds: bool) -> str:
    return "yes" if holds else "no"
