"""What every RLVR environment is: rows → prompts, the tools of one completion, and a verdict.

    prompt = MathEnvironment().prompt({"question": "7*8? Put it in \\\\boxed{}.", "gold": "56"})
    await environment.verify(prompt, completion) → Score(1.0, "56", "equal to the gold 56")

A row is an object with `environment`, `question` or `messages` (OpenAI's), and where there are any
`id`, `tools`, `gold` (text, or JSON that becomes text) and `metadata` (the environment's fields).
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
Script = tuple[Message, ...]  # a completion's assistant messages; `replay` runs their calls
SETTING = "rlvr"
# what code that reads a row's own fields raises where they are not what they should be
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
_FENCE = re.compile(r"(`{3,}|~{3,})(?:json|yaml|yml)?[ \t\r]*", re.IGNORECASE)
_AT_ONCE = 256  # rows whose gold is replayed side by side


class RLVREnvironment:
    """One family of tasks with a verifier.

    A subclass has `malformed`, `gold`, and either `check` (plain code, run in a worker process
    that is killed at its limits) or `score` (what awaits a sandbox, a judge, or is trivial).

    Attributes:
        name: what rows, prompts and recipes call it.
        passes_at: the least reward that is a pass.
    """

    name: str
    passes_at: ClassVar[float] = 1.0

    def malformed(self, prompt: Prompt) -> str | None:
        """Why the verifier cannot use a prompt's gold, tools or metadata, or None."""
        return None

    def gold(self, prompt: Prompt) -> Script | None:
        """A completion that must pass, the gold as it stands; None where the row has none."""
        return says(prompt.gold) if prompt.gold else None

    def wrong(self, prompt: Prompt) -> list[Script]:
        """Completions that must not pass; the empty one need not be among them."""
        return []

    def rows(self, *, seed: int, count: int) -> list[dict[str, Any]]:
        """Generated rows, the same for a seed; [] where tasks come from data alone."""
        rows = ((f"{self.name}-{seed}-{n}", self.row(seed, n)) for n in range(count))
        return [{"environment": self.name, "id": id, **row} for id, row in rows if row is not None]

    def row(self, seed: int, number: int) -> dict[str, Any] | None:
        """One generated row, for `rows`; None where tasks come from data alone."""
        return None

    def schemas(self, prompt: Prompt) -> str:
        """JSON text of the tools that a prompt declares."""
        return prompt.tools or "[]"

    def open(self, prompt: Prompt) -> Environment | None:
        """The tools and state of one completion; None: nothing runs its calls, and one ends it."""
        return None

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        """The verdict, in plain code; the completion comes without token ids."""
        raise NotImplementedError

    async def score(self, prompt: Prompt, completion: Completion) -> Score:
        """The verdict on a completion that is neither empty nor truncated."""
        kind = f"{type(self).__module__}:{type(self).__qualname__}"
        job = [kind, prompt_to_row(prompt), completion_row(completion)]
        result = await SHARED_WORKERS.run_one(("verify", job))
        if result.problem is not None:
            return Score(None, None, one_line(result.problem), result.failure)
        return Score(*result.value)

    async def verify(self, prompt: Prompt, completion: Completion) -> Score:
        """The score: a value in [0, 1], or none and the kind of failure. Raises only ConfigError,
        where this machine cannot verify at all."""
        if completion.finish == "failed":
            return Score(None, None, one_line(completion.error or "failed"), "service")
        if (early := before_reading(Attempt(prompt, completion))) is not None:
            return early
        if not completion.answer.strip() and not completion.tool_calls:
            return Score(0.0, None, f"{NO_ANSWER}: empty")
        # workers, sandboxes and servers, which it waits for, have limits of their own
        score = await guarded(self.name, lambda: self.score(prompt, completion), seconds=None)
        if score.value is None:
            return replace(score, failure=score.failure or "verifier_error")
        return score

    def passes(self, score: Score) -> bool:
        return score.value is not None and score.value >= self.passes_at

    def prompt(self, row: Row, *, source: str = "") -> Prompt:
        """The prompt of a row.

        Raises:
            DataError: the row cannot be used, and which field is why.
            ConfigError: this machine cannot verify such rows at all.
        """
        messages = _messages(row)
        tools, gold, metadata = row.get("tools"), row.get("gold"), row.get("metadata", {})
        if not isinstance(metadata, dict):
            raise DataError("metadata is no object")
        try:
            declared = encode_json(tools) if tools else None
            gold = gold if isinstance(gold, str | None) else encode_json(gold)
            text = encode_json(cast(dict[str, Any], metadata))
        except ValueError as error:
            raise DataError(f"tools, gold or metadata: {error}") from error
        own = str(row["id"]) if row.get("id") is not None else content_id(messages, declared)
        prompt = Prompt(
            id=own,
            task=own,
            setting=SETTING,
            messages=messages,
            tools=declared,
            environment=self.name,
            grader="environment",
            gold=gold,
            source=source or self.name,
            metadata=text,
        )
        try:
            problem = self.malformed(prompt)
        except ConfigError:
            raise  # this machine lacks something, whatever the row
        except _MALFORMED as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            raise DataError(problem)
        return prompt


# -- rows ------------------------------------------------------------------------------------------


def _messages(row: Row) -> tuple[Message, ...]:
    """The conversation up to the generation point. Raises DataError where there is none."""
    question, given = row.get("question"), row.get("messages")
    if isinstance(question, str) and question.strip() and given is None:
        return (Message("user", question),)
    if question is not None or not isinstance(given, list) or not given:
        raise DataError("a row has either question (text) or messages (a list)")
    messages = tuple(map(_message, cast(list[Any], given)))
    if messages[-1].role not in ("user", "tool"):
        raise DataError("the last message is neither the user's nor a tool's")
    return messages


def _message(given: Any) -> Message:
    own = cast(dict[str, Any], given if isinstance(given, dict) else {})
    content = own.get("content")
    if own.get("role") not in ROLES or not isinstance(content, str | None):
        raise DataError("a message is an object with a role and text as its content")
    calls: list[ToolCall] = []
    for call in own.get("tool_calls") or ():
        try:
            name, arguments = str(call["function"]["name"]), call["function"]["arguments"]
        except (KeyError, TypeError) as error:
            raise DataError("a tool call has a function with name and arguments") from error
        text = arguments if isinstance(arguments, str) else json_text(arguments)
        calls.append(ToolCall(name, text, call.get("id")))
    return Message(
        role=own["role"],
        content=content or "",
        tool_calls=tuple(calls),
        tool_call_id=own.get("tool_call_id"),
        name=own.get("name"),
    )


@dataclass(frozen=True, slots=True)
class Admitted:
    """Rows in = prompts + dropped, which is (index of the row, reason), by index.

    `without_gold`: prompts whose row has no gold, so that nothing was replayed.
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
    """Read rows, and keep those whose gold passes and whose wrong completions do not.

    `convert` makes rows of another form ours; the message of its DataError is a reason as it is.

    Reasons: `unknown_environment`, `malformed_row`, `gold_fails`, `gold_unscored`,
    `wrong_passes`, `wrong_unscored`, `duplicate_id`, each with what it is about behind a colon.
    """
    prompts: dict[str, Prompt] = {}
    dropped: list[tuple[int, str]] = []
    numbered, without_gold = enumerate(rows), 0

    async def read(row: Row) -> Prompt | str:
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

    while part := list(islice(numbered, _AT_ONCE)):
        results = await asyncio.gather(*(read(row) for _, row in part))
        for (index, _), result in zip(part, results, strict=True):
            if isinstance(result, str):
                dropped.append((index, result))
            elif result.id in prompts:
                dropped.append((index, f"duplicate_id: {result.id}"))
            else:
                prompts[result.id] = result
                without_gold += environments[str(result.environment)].gold(result) is None
    return Admitted(list(prompts.values()), dropped, without_gold)


async def unusable(environment: RLVREnvironment, prompt: Prompt) -> str | None:
    """Why a prompt's verifier cannot be trusted with it, from its gold and wrong completions."""
    try:
        return await limited(lambda: _replayed(environment, prompt), seconds=None)
    except ConfigError:
        raise  # this machine lacks something, whatever the row
    except TimeoutError as error:
        return f"gold_unscored: timeout: {error}"
    except _MALFORMED as error:
        return f"malformed_row: {type(error).__name__}: {error}"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - one row's, whatever it is
        return f"gold_unscored: verifier_error: {type(error).__name__}: {error}"


async def _replayed(environment: RLVREnvironment, prompt: Prompt) -> str | None:
    gold = environment.gold(prompt)
    for script in (*([] if gold is None else [gold]), *environment.wrong(prompt)):
        score = await environment.verify(prompt, await replay(environment, prompt, script))
        if score.value is None:
            kind = "gold" if script is gold else "wrong"
            return f"{kind}_unscored: {score.failure}: {score.explanation}"
        if environment.passes(score) != (script is gold):
            return f"{'gold_fails' if script is gold else 'wrong_passes'}: {score.explanation}"
    return None


async def replay(environment: RLVREnvironment, prompt: Prompt, script: Script) -> Completion:
    """The completion whose assistant messages these are: their calls are run, one state for all.

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
                    run = functools.partial(state.call, call.name, json.loads(call.arguments))
                    text = await limited(run, seconds=ENVIRONMENT_SECONDS)
                    results.append(Message("tool", text, tool_call_id=call.id, name=call.name))
            if not message.tool_calls and user is not None:
                respond = functools.partial(user.respond, message.content)
                reply = await limited(respond, seconds=ENVIRONMENT_SECONDS)
                results += [] if reply is None else [Message("user", reply)]
            own = message.reasoning, message.content, message.tool_calls
            parsed = ParsedCompletion(*own, (), finished=True)
            steps.append(Step(message.content, parsed, "stop", 0, 0, 0, results=tuple(results)))
        snapshot = None if state is None else state.snapshot()
    finally:
        if state is not None:
            await state.close()
    return Completion(prompt.id, 0, tuple(steps), "stop", state=snapshot)


def completion_row(completion: Completion) -> dict[str, Any]:
    """A completion for a worker, without token ids and raw text, which would only be carried."""
    steps = tuple(
        replace(step, text="", ids=None, logps=None, forced=None, results_ids=())
        for step in completion.steps
    )
    return completion_to_row(replace(completion, steps=steps, prompt_ids=None))


def says(text: str) -> Script:
    return (Message("assistant", text),)


def calls(*made: tuple[str, Mapping[str, Any]], text: str = "") -> Script:
    """A completion that is one message with calls (name, arguments)."""
    written = (
        ToolCall(name, json_text(dict(arguments)), f"call{place:05}")
        for place, (name, arguments) in enumerate(made)
    )
    return (Message("assistant", text, tool_calls=tuple(written)),)


def same_value(expected: Any, given: Any, *, plain: Callable[[str], str] = str) -> bool:
    """Whether two JSON values are the same: whole numbers exactly, others to a relative 1e-9 and
    finite, texts as `plain` writes them, lists in order. Text is no number, and 1 is not true."""
    if isinstance(expected, bool) or isinstance(given, bool) or expected is None or given is None:
        return expected is given
    if isinstance(expected, int | float) and isinstance(given, int | float):
        if isinstance(expected, int) and isinstance(given, int):
            return expected == given
        try:
            return math.isclose(expected, given, rel_tol=1e-9)
        except OverflowError:  # beyond a float's range
            return False
    same = functools.partial(same_value, plain=plain)
    if isinstance(expected, list) and isinstance(given, list):
        one, other = cast(list[Any], expected), cast(list[Any], given)
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(expected, dict) and isinstance(given, dict):
        left, right = cast(dict[str, Any], expected), cast(dict[str, Any], given)
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return isinstance(expected, str) and isinstance(given, str) and plain(expected) == plain(given)


def unfenced(text: str) -> str:
    """What stands in a code fence around all of a text; without one, the text as it is."""
    first, _, rest = text.strip().partition("\n")
    fence = _FENCE.fullmatch(first)
    return rest.rstrip(fence[1][0]) if fence and rest.endswith(fence[1]) else text
