"""What a kind of synthesis is made of: seeds, requests to models, and what becomes of a seed.

A kind looks at a seed and at all that models have answered so far, and says what comes next:
further requests, finished rows, or a reason to drop the seed. It keeps no state of its own, so
that a killed run comes to the same decisions from the answers on disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from posttrain.config.synthesize import SynthesisModel
from posttrain.environments.base import Environment
from posttrain.records import Example, Message, ToolCall
from posttrain.rollouts import Completion, Prompt

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Seed:
    """What rows are made from.

    Attributes:
        id: names it in rows, counts and draws; unique among the seeds.
        content: the record itself; each kind knows the type of its own.
        example: its conversation, for decontamination and the comparison with the result.
    """

    id: str
    content: Any
    example: Example


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to the model in a role: `count` completions of a prompt."""

    role: str
    prompt: Prompt
    count: int = 1


@dataclass(frozen=True, slots=True)
class Answered:
    """A request with the completions that came."""

    ask: Ask
    completions: tuple[Completion, ...]

    @property
    def text(self) -> str:
        """The answer of a request for one completion, without white space around it."""
        [completion] = self.completions
        return completion.answer.strip()


Round = tuple[Answered, ...]  # the requests of one round of a seed, in order


@dataclass(frozen=True, slots=True)
class Asks:
    """The next requests of a seed, all sent in one round."""

    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """The finished rows of a seed.

    `figures` are counted over all kept seeds, such as the position of the best candidate.
    """

    rows: tuple[Row, ...]
    figures: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Discard:
    """The reason why a seed gives no row; `detail` is an example of it for a person to read."""

    reason: str
    detail: str = ""


Move = Asks | Keep | Discard


class SynthesisKind(Protocol):
    """One kind of synthetic data.

    Attributes:
        templates: text of each prompt that the kind puts to a model, by name.
    """

    templates: Mapping[str, str]

    def moves(self, seeds: Sequence[tuple[Seed, Sequence[Round]]]) -> list[Move]:
        """What comes next for each seed, given the rounds that it has been through."""
        ...

    def open_environment(self, prompt: Prompt) -> Environment | None:
        """The tools of one completion; None: nothing runs its calls."""
        ...


def refusal(completion: Completion) -> Discard | None:
    """The reason why a completion cannot be used, whatever the kind; None: it can.

    An answer that only repeats its prompt is refused by `echo_of`, which knows the prompt.
    """
    if completion.finish == "failed":
        return Discard("request_failed", completion.error or "")
    if completion.truncated:
        return Discard("truncated", completion.finish)
    step = completion.steps[-1].parsed
    if "unclosed_think" in step.problems:
        return Discard("truncated", "the reasoning never closes")
    if not completion.answer.strip() and not completion.tool_calls:
        return Discard("empty_answer")
    return None


def echo_of(text: str, prompt: Prompt) -> Discard | None:
    """A refusal of an answer that is the last message of its prompt, white space and case aside."""
    request = " ".join(prompt.messages[-1].content.split()).casefold()
    if " ".join(text.split()).casefold() == request:
        return Discard("echoed_prompt", text[:200])
    return None


def first_refusal(answers: Sequence[Answered]) -> Discard | None:
    """The first reason why one of several requests has no usable answer."""
    for answered in answers:
        for completion in answered.completions:
            problem = refusal(completion) or echo_of(completion.answer, answered.ask.prompt)
            if problem is not None:
                return problem
    return None


def chat_message(message: Message) -> Row:
    """A message as a chat row holds it, in OpenAI's form with `reasoning_content`."""
    row: Row = {"role": message.role, "content": message.content}
    if message.reasons:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        row["tool_calls"] = [_chat_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        row["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        row["name"] = message.name
    return row


def _chat_call(call: ToolCall) -> Row:
    row: Row = {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return row if call.id is None else {"id": call.id, **row}


def model_names(models: Mapping[str, SynthesisModel]) -> dict[str, str]:
    """Names of the models of one seed, by role."""
    return {role: model.name for role, model in models.items()}


def filled(template: str, **values: str) -> str:
    """A prompt with each `{{name}}` replaced in one pass, so that a value may hold such marks."""
    parts = template.split("{{")
    text = [parts[0]]
    for part in parts[1:]:
        name, closing, rest = part.partition("}}")
        known = closing and name in values
        text.append(values[name] + rest if known else "{{" + part)
    return "".join(text)
