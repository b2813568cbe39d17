"""Base class of RLVR environments: rows → prompts, the tools of a completion, and its score.

    prompt = MathEnvironment().prompt({"question": "7*8? Put it in \\\\boxed{}.", "gold": "56"})
    await environment.verify(prompt, completion) → Score(1.0, "56", "equal to the gold 56")

A row is an object with `environment`, `question` or `messages` (OpenAI's), and optionally `id`,
`tools`, `gold` (text, or JSON that becomes text) and `metadata` (the environment's own fields).
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar, cast

from posttrain.environments.base import Environment, ScriptedUser
from posttrain.errors import ConfigError, DataError
from posttrain.jsontext import encode_json
from posttrain.records import NO_ANSWER, ROLES, Message, Score, ToolCall, content_id, json_text
from posttrain.rollouts import (
    ENVIRONMENT_SECONDS,
    Completion,
    ParsedCompletion,
    Prompt,
    Step,
    completion_to_row,
    prompt_to_row,
)
from posttrain.time_limits import limited
from reward.graders.base import Attempt, before_reading, one_line
from reward.graders.workers import SHARED_WORKERS
from reward.guard import guarded

Row = Mapping[str, Any]
Script = tuple[Message, ...]  # assistant messages of a completion; `replay` runs their calls
SETTING = "rlvr"
# errors of code that reads fields of an outsider's row
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
_FENCE = re.compile(r"(`{3,}|~{3,})(?:json|yaml|yml)?[ \t\r]*", re.IGNORECASE)
_CONCURRENT_ROWS = 256  # rows whose gold is replayed at the same time


class RLVREnvironment:
    """A family of tasks with a verifier.

    A subclass defines `malformed`, `gold`, and either `check` (plain code, run in a worker process
    that is killed at its limits) or `score` (code that awaits a sandbox or a judge, or is trivial).

    Attributes:
        name: name of the environment in rows, prompts and recipes.
        passes_at: least reward that is a pass.
    """

    name: str
    passes_at: ClassVar[float] = 1.0

    @staticmethod
    def load() -> None:
        """Import what `check` needs beyond this module, before a job's time starts."""

    def malformed(self, prompt: Prompt) -> str | None:
        """Reason why the verifier cannot use a prompt's gold, tools or metadata, or None."""
        return None

    def gold(self, prompt: Prompt) -> Script | None:
        """A completion that must pass, the gold by default; None where the row has none."""
        return says(prompt.gold) if prompt.gold else None

    def wrong(self, prompt: Prompt) -> list[Script]:
        """Completions that must not pass; the empty one need not be among them."""
        return []

    def rows(self, *, seed: int, count: int) -> list[dict[str, Any]]:
        """Generate rows, the same ones for a seed; [] where tasks come from data alone."""
        rows: list[dict[str, Any]] = []
        for number in range(count):
            row = self.row(seed, number)
            if row is not None:
                row_id = f"{self.name}-{seed}-{number}"
                rows.append({"environment": self.name, "id": row_id, **row})
        return rows

    def row(self, seed: int, number: int) -> dict[str, Any] | None:
        """Generate one row for `rows`; None where tasks come from data alone."""
        return None

    def schemas(self, prompt: Prompt) -> str:
        """JSON text of the tools that a prompt declares, "[]" if none."""
        return prompt.tools or "[]"

    def open(self, prompt: Prompt) -> Environment | None:
        """Open the tools and state of one completion; None where a call ends the completion."""
        return None

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        """Score a completion in plain code; the completion comes without token ids."""
        raise NotImplementedError

    async def score(self, prompt: Prompt, completion: Completion) -> Score:
        """Score a completion neither empty nor truncated; by default with `check`, in a worker."""
        reference = f"{type(self).__module__}:{type(self).__qualname__}"
        job = [reference, prompt_to_row(prompt), completion_row(completion)]
        result = await SHARED_WORKERS.run_one(("verify", job))
        if result.problem is not None:
            return Score(None, None, one_line(result.problem), result.failure)
        return Score(*result.value)

    async def verify(self, prompt: Prompt, completion: Completion) -> Score:
        """Score any completion: a value in [0, 1], or None and the kind of failure.

        Raises only ConfigError, where this machine cannot verify at all.
        """
        if completion.finish == "failed":
            return Score(None, None, one_line(completion.error or "failed"), "service")
        if (early_score := before_reading(Attempt(prompt, completion))) is not None:
            return early_score
        if not completion.answer.strip() and not completion.tool_calls:
            return Score(0.0, None, f"{NO_ANSWER}: empty")
        # no limit here: the workers, sandboxes and servers that it awaits have limits of their own
        score = await guarded(self.name, lambda: self.score(prompt, completion), seconds=None)
        if score.value is None:
            return replace(score, failure=score.failure or "verifier_error")
        return score

    def passes(self, score: Score) -> bool:
        return score.value is not None and score.value >= self.passes_at

    def prompt(self, row: Row, *, source: str = "") -> Prompt:
        """Convert a row into a prompt, or raise DataError.

        Raises:
            DataError: the row cannot be used; the message names the field.
            ConfigError: this machine cannot verify such rows at all.
        """
        messages = _read_messages(row)
        tools = row.get("tools")
        gold = row.get("gold")
        metadata = row.get("metadata", {})
        if not isinstance(metadata, dict):
            raise DataError("metadata is no object")
        try:
            tools_json = encode_json(tools) if tools else None
            gold_text = gold if isinstance(gold, str | None) else encode_json(gold)
            metadata_json = encode_json(cast(dict[str, Any], metadata))
        except ValueError as error:
            raise DataError(f"tools, gold or metadata: {error}") from error
        has_id = row.get("id") is not None
        prompt_id = str(row["id"]) if has_id else content_id(messages, tools_json)
        prompt = Prompt(
            id=prompt_id,
            task=prompt_id,
            setting=SETTING,
            messages=messages,
            tools=tools_json,
            environment=self.name,
            grader="environment",
            gold=gold_text,
            source=source or self.name,
            metadata=metadata_json,
        )
        try:
            problem = self.malformed(prompt)
        except ConfigError:
            raise  # about this machine, not about the row
        except _MALFORMED as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            raise DataError(problem)
        return prompt


# -- rows ------------------------------------------------------------------------------------------


def _read_messages(row: Row) -> tuple[Message, ...]:
    """The conversation up to the generation point. Raises DataError where there is none."""
    question = row.get("question")
    messages = row.get("messages")
    if isinstance(question, str) and question.strip() and messages is None:
        return (Message("user", question),)
    if question is not None or not isinstance(messages, list) or not messages:
        raise DataError("a row has either question (text) or messages (a list)")
    conversation = tuple(map(_read_message, cast(list[Any], messages)))
    if conversation[-1].role not in ("user", "tool"):
        raise DataError("the last message is neither the user's nor a tool's")
    return conversation


def _read_message(value: Any) -> Message:
    fields = cast(dict[str, Any], value if isinstance(value, dict) else {})
    content = fields.get("content")
    if fields.get("role") not in ROLES or not isinstance(content, str | None):
        raise DataError("a message is an object with a role and text as its content")
    calls: list[ToolCall] = []
    for call in fields.get("tool_calls") or ():
        try:
            name = str(call["function"]["name"])
            arguments = call["function"]["arguments"]
        except (KeyError, TypeError) as error:
            raise DataError("a tool call has a function with name and arguments") from error
        arguments_json = arguments if isinstance(arguments, str) else json_text(arguments)
        calls.append(ToolCall(name, arguments_json, call.get("id")))
    return Message(
        role=fields["role"],
        content=content or "",
        tool_calls=tuple(calls),
        tool_call_id=fields.get("tool_call_id"),
        name=fields.get("name"),
    )


@dataclass(frozen=True, slots=True)
class Admitted:
    """Result of `admit`: every row is among the prompts or the dropped.

    Attributes:
        dropped: (index of the row, reason), by index.
        without_gold: number of prompts whose row has no gold, so that nothing was replayed.
    """

    prompts: list[Prompt]
    dropped: list[tuple[int, str]]
    without_gold: int


async def admit(
    rows: Iterator[Row],
    environments: Mapping[str, RLVREnvironment],
    *,
    source: str = "",
    convert: Callable[[Row], Row] | None = None,
) -> Admitted:
    """Convert rows to prompts; keep those whose gold passes and whose wrong completions do not.

    Reasons of dropped rows: `unknown_environment`, `malformed_row`, `gold_fails`, `gold_unscored`,
    `wrong_passes`, `wrong_unscored`, `duplicate_id`, each followed by a colon and a detail.

    Args:
        convert: converts rows of another form into ours; the message of its DataError is a reason.
    """
    prompts: dict[str, Prompt] = {}
    dropped: list[tuple[int, str]] = []
    without_gold = 0

    async def prompt_or_reason(row: Row) -> Prompt | str:
        try:
            row = row if convert is None else convert(row)
        except DataError as error:
            return str(error)
        environment = environments.get(str(row.get("environment")))
        if environment is None:
            return f"unknown_environment: {row.get('environment')}"
        try:
            prompt = environment.prompt(row, source=source)
        except DataError as error:
            return f"malformed_row: {error}"
        return await unusable(environment, prompt) or prompt

    numbered_rows = enumerate(rows)
    while batch := list(islice(numbered_rows, _CONCURRENT_ROWS)):
        results = await asyncio.gather(*(prompt_or_reason(row) for _, row in batch))
        for (index, _), result in zip(batch, results, strict=True):
            if isinstance(result, str):
                dropped.append((index, result))
            elif result.id in prompts:
                dropped.append((index, f"duplicate_id: {result.id}"))
            else:
                prompts[result.id] = result
                without_gold += environments[str(result.environment)].gold(result) is None
    return Admitted(list(prompts.values()), dropped, without_gold)


async def unusable(environment: RLVREnvironment, prompt: Prompt) -> str | None:
    """Reason why a prompt's verifier cannot be trusted, or None.

    Its gold and wrong completions are replayed and verified.
    """
    try:
        return await limited(lambda: _verify_scripts(environment, prompt), seconds=None)
    except ConfigError:
        raise  # about this machine, not about the row
    except TimeoutError as error:
        return f"gold_unscored: timeout: {error}"
    except _MALFORMED as error:
        return f"malformed_row: {type(error).__name__}: {error}"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any fault drops this row alone
        return f"gold_unscored: verifier_error: {type(error).__name__}: {error}"


async def _verify_scripts(environment: RLVREnvironment, prompt: Prompt) -> str | None:
    """Verify the gold and the wrong completions; the first surprise as a reason, or None."""
    gold = environment.gold(prompt)
    scripts = environment.wrong(prompt)
    if gold is not None:
        scripts = [gold, *scripts]
    for script in scripts:
        is_gold = script is gold
        score = await environment.verify(prompt, await replay(environment, prompt, script))
        if score.value is None:
            reason = "gold_unscored" if is_gold else "wrong_unscored"
            return f"{reason}: {score.failure}: {score.explanation}"
        if environment.passes(score) != is_gold:
            return f"{'gold_fails' if is_gold else 'wrong_passes'}: {score.explanation}"
    return None


async def replay(environment: RLVREnvironment, prompt: Prompt, script: Script) -> Completion:
    """Run a script's calls, in one state, and return the completion that results.

    A scripted user answers an assistant message without calls.
    """
    state = environment.open(prompt)
    user = state if isinstance(state, ScriptedUser) else None
    steps: list[Step] = []
    try:
        for message in script:
            results: list[Message] = []
            for call in message.tool_calls:
                if state is not None:
                    run_call = functools.partial(state.call, call.name, json.loads(call.arguments))
                    text = await limited(run_call, seconds=ENVIRONMENT_SECONDS)
                    results.append(Message("tool", text, tool_call_id=call.id, name=call.name))
            if not message.tool_calls and user is not None:
                respond = functools.partial(user.respond, message.content)
                reply = await limited(respond, seconds=ENVIRONMENT_SECONDS)
                if reply is not None:
                    results.append(Message("user", reply))
            parsed = ParsedCompletion(
                message.reasoning, message.content, message.tool_calls, (), finished=True
            )
            steps.append(Step(message.content, parsed, "stop", 0, 0, 0, results=tuple(results)))
        snapshot = None if state is None else state.snapshot()
    finally:
        if state is not None:
            await state.close()
    return Completion(prompt.id, 0, tuple(steps), "stop", state=snapshot)


def completion_row(completion: Completion) -> dict[str, Any]:
    """A completion as a row for a worker, without token ids and raw text, which none reads."""
    steps = tuple(
        replace(step, text="", ids=None, logps=None, forced=None, results_ids=())
        for step in completion.steps
    )
    return completion_to_row(replace(completion, steps=steps, prompt_ids=None))


def says(text: str) -> Script:
    """A completion that is one message of text."""
    return (Message("assistant", text),)


def calls(*named_arguments: tuple[str, Mapping[str, Any]], text: str = "") -> Script:
    """A completion that is one message with calls, each (name, arguments)."""
    tool_calls = tuple(
        ToolCall(name, json_text(dict(arguments)), f"call{index:05}")
        for index, (name, arguments) in enumerate(named_arguments)
    )
    return (Message("assistant", text, tool_calls=tool_calls),)


def same_value(expected: Any, actual: Any, *, plain: Callable[[str], str] = str) -> bool:
    """Compare two JSON values.

    Integers are compared exactly, other numbers to a relative 1e-9, texts after `plain`, lists in
    order. A text is no number, and 1 is not true.
    """
    if isinstance(expected, bool) or isinstance(actual, bool) or expected is None or actual is None:
        return expected is actual
    if isinstance(expected, int | float) and isinstance(actual, int | float):
        if isinstance(expected, int) and isinstance(actual, int):
            return expected == actual
        try:
            return math.isclose(expected, actual, rel_tol=1e-9)
        except OverflowError:  # beyond a float's range
            return False
    same = functools.partial(same_value, plain=plain)
    if isinstance(expected, list) and isinstance(actual, list):
        expected_items = cast(list[Any], expected)
        actual_items = cast(list[Any], actual)
        same_length = len(expected_items) == len(actual_items)
        return same_length and all(map(same, expected_items, actual_items))
    if isinstance(expected, dict) and isinstance(actual, dict):
        expected_fields = cast(dict[str, Any], expected)
        actual_fields = cast(dict[str, Any], actual)
        if expected_fields.keys() != actual_fields.keys():
            return False
        return all(same(expected_fields[key], actual_fields[key]) for key in expected_fields)
    if isinstance(expected, str) and isinstance(actual, str):
        return plain(expected) == plain(actual)
    return False


def unfenced(text: str) -> str:
    """The text inside a code fence around all of it; without one, the text itself."""
    opening_line, _, behind = text.strip().partition("\n")
    fence = _FENCE.fullmatch(opening_line)
    if fence is None or not behind.endswith(fence[1]):
        return text
    return behind.rstrip(fence[1][0])
