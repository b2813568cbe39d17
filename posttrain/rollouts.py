"""Prompts, how they are sampled, and all that a model generated for them; torch-free.

Token ids are those that were sampled, never a rendering of what was parsed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from posttrain.records import Message, ToolCall, message_from_row, message_to_row

Finish = Literal["stop", "length", "turn_limit", "token_limit", "failed"]
FINISHES: tuple[Finish, ...] = get_args(Finish)
TRUNCATED: tuple[Finish, ...] = ("length", "turn_limit", "token_limit")
ENVIRONMENT_SECONDS = 900.0  # of what an environment does at once, which may ask a server twice


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt in one setting.

    `task` is shared by the settings and modes of one question; `id` is unique. `tools` is the JSON
    text of the declared tools, if any; `environment` runs their calls. `reasoning_budget` is in
    tokens. `gold` is what `grader` compares with; `metadata` (JSON text) is for graders and
    environments. `template` names the prompt template, None: the question's own words. `schema` is
    the JSON schema (JSON text) of the answer, for a chat endpoint that holds it to one.
    """

    id: str
    task: str
    setting: str
    messages: tuple[Message, ...]
    tools: str | None = None
    thinking: bool = True
    reasoning_budget: int | None = None
    environment: str | None = None
    grader: str | None = None
    gold: str | None = None
    source: str = ""
    metadata: str = "{}"
    template: str | None = None
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class Parameters:
    """Sampling parameters of one step.

    `temperature` 0 is greedy; `top_k` 0 keeps all. `max_tokens` bounds a step's new tokens, forced
    ids included. `logps` asks for the log-probability of each sampled token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 1024
    logps: bool = False


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Limits of one completion.

    `parameters.max_tokens` bounds a step, `max_tokens` all that the model writes in all steps,
    `max_turns` the steps. `tools_at_once` bounds the rollouts whose calls run at the same time:
    programs that share few cores too widely run into their time limits. `environment_seconds` is
    the time of a call, or of a user's reply; None: a person may take any.
    """

    parameters: Parameters
    max_turns: int = 8
    max_tokens: int | None = None
    tools_at_once: int = 4
    environment_seconds: float | None = ENVIRONMENT_SECONDS


Problem = Literal[
    "unclosed_think",  # the trace never closed: there is no answer
    "two_closings",  # a second </think>
    "unexpected_think",  # a think tag where reasoning is off, or a second <think>
    "half_call",  # a call that was opened and not completed
    "malformed_call",  # a complete <tool_call> block that is no call
    "argument_type",  # an argument that is not of its declared type, kept as text
    "text_after_call",  # text behind a call, which the format forbids
    "text_after_end",  # text behind the end token, kept in `after_end`
]


@dataclass(frozen=True, slots=True)
class ParsedCompletion:
    """One completion, taken apart.

    `reasoning` is `None` with thinking off; `finished` says whether the end token was there.
    """

    reasoning: str | None
    answer: str
    tool_calls: tuple[ToolCall, ...]
    problems: tuple[Problem, ...]
    finished: bool
    after_end: str = ""

    def message(self) -> Message:
        """The assistant message this completion is."""
        return Message(
            "assistant", self.answer, reasoning=self.reasoning, tool_calls=self.tool_calls
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One model call of a completion.

    Attributes:
        text: what the model wrote, special tokens kept; without them where `ids` is None.
        parsed: the text taken apart; structured calls of a chat endpoint are in `tool_calls`.
        ids: exact token ids, stop token and forced ids included; None where a server hides them.
        logps: log-probability of each id under the distribution it was sampled from; 0.0 for
            forced ids; None where not requested or not available.
        forced: [start, end) of `ids` that were put in to close reasoning at its budget.
        finish: "stop" (a stop token) or "length".
        reasoning_tokens, answer_tokens: tokens of each part; tags, stop token and forced ids are
            not counted. An answer includes its tool calls.
        prompt_tokens: length of this step's whole prompt.
        cached_tokens: those of the prompt that a server found in its cache; None: not reported.
        results: tool messages that answered its calls, or a user's that answered one without.
        results_ids: ids between this step's and the next step's (results, the next generation
            prompt); () after the last.
    """

    text: str
    parsed: ParsedCompletion
    finish: Literal["stop", "length"]
    reasoning_tokens: int
    answer_tokens: int
    prompt_tokens: int
    ids: tuple[int, ...] | None = None
    logps: tuple[float, ...] | None = None
    forced: tuple[int, int] | None = None
    results: tuple[Message, ...] = ()
    results_ids: tuple[int, ...] = ()
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion of a prompt: one step, or several with tool results between them.

    Attributes:
        index: which of the prompt's samples, from 0.
        prompt_ids: ids of the rendered prompt of the first step.
        finish: "stop"; "length" (a step ran to its limit); "turn_limit", "token_limit" (of the
            whole completion); "failed" (the backend gave up; `error` says why, `steps` may be ()).
        state: JSON text of the environment's final state, None without an environment.
    """

    prompt_id: str
    index: int
    steps: tuple[Step, ...]
    finish: Finish
    prompt_ids: tuple[int, ...] | None = None
    state: str | None = None
    error: str | None = None

    @property
    def answer(self) -> str:
        """The last step's answer; "" for a failed completion."""
        return self.steps[-1].parsed.answer if self.steps else ""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """List the parsed calls of all steps, in order."""
        return tuple(call for step in self.steps for call in step.parsed.tool_calls)

    @property
    def truncated(self) -> bool:
        """True if a limit ended it."""
        return self.finish in TRUNCATED

    @property
    def reasoning_tokens(self) -> int:
        return sum(step.reasoning_tokens for step in self.steps)

    @property
    def answer_tokens(self) -> int:
        return sum(step.answer_tokens for step in self.steps)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The turns after the prompt: assistant messages, tool results and user turns."""
        return tuple(m for step in self.steps for m in (step.parsed.message(), *step.results))

    def sampled(self) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """All ids after the prompt, and for each whether the model itself sampled it.

        It samples no tool results, user turns, template text between steps or forced closings.
        """
        ids: list[int] = []
        mask: list[bool] = []
        for step in self.steps:
            assert step.ids is not None, "the backend gave no token ids"
            start, end = step.forced or (0, 0)
            ids += [*step.ids, *step.results_ids]
            mask += [not start <= k < end for k in range(len(step.ids))]
            mask += [False] * len(step.results_ids)
        return tuple(ids), tuple(mask)


Row = dict[str, Any]


def prompt_to_row(prompt: Prompt) -> Row:
    row: Row = {name: getattr(prompt, name) for name in Prompt.__slots__}
    if prompt.schema is None:
        del row["schema"]
    return row | {"messages": [message_to_row(m) for m in prompt.messages]}


def prompt_from_row(row: Mapping[str, Any]) -> Prompt:
    """Inverse of `prompt_to_row`."""
    fields: Row = dict(row)
    fields["messages"] = tuple(message_from_row(m) for m in row["messages"])
    return Prompt(**fields)


def completion_to_row(completion: Completion) -> Row:
    row: Row = {name: getattr(completion, name) for name in Completion.__slots__}
    return row | {"steps": [step_to_row(step) for step in completion.steps]}


def completion_from_row(row: Mapping[str, Any]) -> Completion:
    """Inverse of `completion_to_row`."""
    fields: Row = dict(row)
    fields["prompt_ids"] = None if row["prompt_ids"] is None else tuple(row["prompt_ids"])
    fields["steps"] = tuple(step_from_row(step) for step in row["steps"])
    return Completion(**fields)


def step_to_row(step: Step) -> Row:
    row: Row = {name: getattr(step, name) for name in Step.__slots__}
    if step.cached_tokens is None:
        del row["cached_tokens"]
    parsed: Row = {name: getattr(step.parsed, name) for name in ParsedCompletion.__slots__}
    parsed["tool_calls"] = [[c.name, c.arguments, c.id] for c in step.parsed.tool_calls]
    return row | {"parsed": parsed, "results": [message_to_row(m) for m in step.results]}


def step_from_row(row: Mapping[str, Any]) -> Step:
    """Inverse of `step_to_row`."""
    parsed: Row = dict(row["parsed"])
    parsed["tool_calls"] = tuple(ToolCall(*call) for call in parsed["tool_calls"])
    parsed["problems"] = tuple(parsed["problems"])
    fields: Row = dict(row)
    fields["parsed"] = ParsedCompletion(**parsed)
    for name in ("ids", "logps", "forced", "results_ids"):
        fields[name] = None if row[name] is None else tuple(row[name])
    fields["results"] = tuple(message_from_row(m) for m in row["results"])
    return Step(**fields)


def metadata_of(prompt: Prompt) -> Row:
    return json.loads(prompt.metadata)
