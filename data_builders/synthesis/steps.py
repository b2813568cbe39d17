"""Parts of a kind of synthesis: seeds, requests to models, and the rows that a seed gives.

A kind is a generator for each seed. It yields requests and gets the answers, so that it reads from
top to bottom; it returns finished rows, or raises the reason why there are none. It keeps no state
beside the generator: a killed run sends the answers on disk again and comes to the same decisions.

    def make(self, seed):
        question = yield from ask_text(Ask("generator", self.prompt(seed, "question", "…")))
        if not (yield from judged(Ask("judge", self.prompt(seed, "judge", "…")), "good")):
            raise Discarded("judge_refuses", question)
        return Keep(({"messages": […]},), checks=("judge",))
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from data_builders.filters.language import AnswerLanguage
from data_builders.keyed import key64
from data_builders.prompts.build import PromptPlan
from data_builders.rows.inputs import Input
from data_builders.synthesis.sources import row_inputs
from posttrain.environments.base import Environment
from posttrain.records import Example, Message, Score, ToolCall, json_text, tools_to_template
from posttrain.rollouts import Completion, Prompt
from posttrain.runs import Parent
from reward.graders.base import Attempt
from reward.judge.quoting import quoted
from reward.judge.verdict import last_object

Row = dict[str, Any]
OFF_TOPIC = "The harbour in the north was closed on Tuesday, and the ferries waited for the fog."
_IN_ANY_LANGUAGE = frozenset({"judge", "tools", "translator"})
# marks of an assistant in the words of a user model that plays the wrong side
_ASSISTANT_MARKS = re.compile(
    r"^\s*(?:assistant|agent)\s*:|<tool_call|<function=|\{\s*\"name\"\s*:[^{}]*\"arguments\"\s*:",
    re.IGNORECASE | re.MULTILINE,
)
_MIN_ECHO = 40  # characters of a request that no answer begins with; ours
_DETAIL = 200  # characters of an answer in the detail of a drop


@dataclass(frozen=True, slots=True)
class Seed:
    """Record that rows are made from.

    Attributes:
        id: name in rows, counts and draws; unique among the seeds.
        content: the record itself, of a type that the kind knows.
        example: its conversation, for decontamination and the comparison with the result.
    """

    id: str
    content: Any
    example: Example


@dataclass(slots=True)
class SeedSet:
    """Seeds of a recipe, and counts of the rows that gave none.

    Attributes:
        dropped: number of rows that are no seeds, by reason.
        stats: stats of the sources, for the manifest.
        tasks: rows of environments that need no answer of a model.
    """

    seeds: list[Seed]
    dropped: Counter[str] = field(default_factory=Counter[str])
    stats: Row = field(default_factory=dict[str, Any])
    tasks: list[Row] = field(default_factory=list[Row])


@dataclass(frozen=True, slots=True)
class Ask:
    """Request to the model in a role.

    Attributes:
        count: number of completions of the prompt.
        model: name of a model of the role; None: the one that was chosen for the seed.
    """

    role: str
    prompt: Prompt
    count: int = 1
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """Request with its completions.

    Attributes:
        model: name of the model that wrote them.
        foreign: index of each completion in another language than its request → which one.
    """

    ask: Ask
    completions: tuple[Completion, ...]
    model: str
    foreign: Mapping[int, str] = field(default_factory=dict[int, str])

    @property
    def text(self) -> str:
        """Answer to a request for one completion, without white space around it."""
        [completion] = self.completions
        return completion.answer.strip()


Round = tuple[Answered, ...]  # the requests of one round of a seed, in order


@dataclass(frozen=True, slots=True)
class Asks:
    """Next requests of a seed, all sent in one round."""

    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True)
class Grade:
    """Completions to be graded by the graders that their prompts name."""

    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Value to be counted over all seeds, such as the position of the best candidate."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Finished rows of a seed.

    Attributes:
        rows: chat rows, for `build_sft`.
        pairs: preference rows, for `build_dpo` and `build_genrm`.
        tasks: rows of environments, for `sample`, `profile_prompts` and `eval`.
        checks: names of the checks that all of them have passed.
    """

    rows: tuple[Row, ...] = ()
    pairs: tuple[Row, ...] = ()
    tasks: tuple[Row, ...] = ()
    checks: tuple[str, ...] = ()


class Discarded(Exception):
    """End of a seed without a row; `detail` shows a person an example of the reason."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


Making = Generator[Asks | Grade | Note, Any, Keep]


@dataclass(frozen=True, slots=True)
class KindSetup:
    """Settings that a recipe has for every kind.

    Attributes:
        templates: text of each prompt that the kind sends to a model, by name.
        models: names of the models in each role that the recipe fills.
        seed: seed of the recipe.
        out: output directory, which parents are relative to.
        language: search for answers in another language; None: the recipe wants none.
    """

    templates: Mapping[str, str]
    models: Mapping[str, tuple[str, ...]]
    seed: int
    out: Path
    language: AnswerLanguage | None = None


class SynthesisKind(ABC):
    """Kind of synthetic data. A subclass is one file, and a line in `kinds.py`.

    Attributes:
        spoiled_roles: roles whose answers may be replaced in a planted bad row.
    """

    spoiled_roles: ClassVar[tuple[str, ...]] = ("generator",)

    def __init__(self, config: Any, setup: KindSetup) -> None:
        self.config = config
        self.setup = setup
        self.plan: PromptPlan | None = None
        if prompts := getattr(config, "prompts", ()):
            self.plan = PromptPlan(prompts, config.settings, seed=setup.seed, out=setup.out)

    def inputs(self) -> tuple[list[Input], list[Parent]]:
        """Input files, hashed, and the artifacts that seeds come from; no row is read.

        They are those of the recipe's prompts and sources of rows.

        Raises:
            ConfigError, DataError: a path that matches nothing, an artifact that changed.
        """
        sources = getattr(self.config, self.config.rows_key, ())
        inputs, parents = row_inputs(sources, self.setup.out)
        if self.plan is None:
            return inputs, parents
        return [*self.plan.inputs, *inputs], [*self.plan.parents, *parents]

    @abstractmethod
    def seeds(self, work: Path) -> SeedSet:
        """Read the seeds.

        Args:
            work: folder for results that are kept if the run is killed, such as grades.
        """

    @abstractmethod
    def make(self, seed: Seed) -> Making:
        """Make the rows of one seed. Raises Discarded if there are none."""

    @abstractmethod
    def max_completions(self, seed: Seed) -> Mapping[str, int]:
        """Maximum number of completions of each role for a seed."""

    def open_environment(self, prompt: Prompt) -> Environment | None:
        """Open the tools of one completion; None: nothing runs its calls."""
        return None if self.plan is None else self.plan.open_environment(prompt)

    def bad_answer(self, seed: Seed, answered: Answered) -> str | Message | None:
        """Bad answer to plant in the place of an answer, which the checks must not let pass.

        None: this answer is not replaced.
        """
        return OFF_TOPIC

    def with_languages(self, answered: Answered) -> Answered:
        """Mark completions in another language than the conversation that they answer.

        Labels of a judge and results of tools are read by code, and a translator's row is checked
        as a whole.
        """
        language = self.setup.language
        if language is None or answered.ask.role in _IN_ANY_LANGUAGE:
            return answered
        request = "\n".join(message.content for message in answered.ask.prompt.messages)
        foreign: dict[int, str] = {}
        for completion in answered.completions:
            other_language = language.foreign(completion.answer, request)
            if other_language is not None:
                foreign[completion.index] = other_language
        return replace(answered, foreign=foreign)

    def spoil(self, seed: Seed, rounds: Sequence[Round], kept: Keep) -> list[Round] | None:
        """Replace an answer of a kept seed by a bad one.

        The answer is chosen by a keyed hash, in the last round that has one to replace.

        Args:
            kept: what the seed gave.

        Returns:
            The rounds up to the one with the bad answer; None if no answer can be replaced.
        """
        for number in reversed(range(len(rounds))):
            bad_answers: list[tuple[int, str | Message]] = []
            for position, answered in enumerate(rounds[number]):
                if answered.ask.role not in self.spoiled_roles:
                    continue
                bad_answer = self.bad_answer(seed, answered)
                if bad_answer is not None:
                    bad_answers.append((position, bad_answer))
            if bad_answers:
                choice = key64(self.setup.seed, "spoil", seed.id) % len(bad_answers)
                position, bad_answer = bad_answers[choice]
                spoiled_round = list(rounds[number])
                answered = spoiled_round[position]
                completions = tuple(
                    with_answer(completion, bad_answer) for completion in answered.completions
                )
                spoiled_round[position] = replace(answered, completions=completions)
                return [*rounds[:number], tuple(spoiled_round)]
        return None

    def text(self, template: str, **values: str) -> str:
        """Fill the marks of one of this kind's prompts."""
        return filled(self.setup.templates[template], **values)

    def agreed(
        self, seed: Seed, label: str, *, template: str, detail: str, **values: str
    ) -> Generator[Any, Any, tuple[str, ...]]:
        """Have the judge, if the recipe has one, say yes to a label of one of this kind's prompts.

        Returns:
            The name of the check; () without a judge.

        Raises:
            Discarded: `judge_refuses`, with `detail`.
        """
        if "judge" not in self.setup.models:
            return ()
        request = Ask("judge", prompt_of(seed, "judge", self.text(template, **values)))
        if not (yield from judged(request, label)):
            raise Discarded("judge_refuses", detail)
        return ("judge",)


def prompt_of(seed: Seed, name: str, content: str | Sequence[Message], **fields: Any) -> Prompt:
    """Build a prompt of one seed; a text becomes one message of the user."""
    messages = (Message("user", content),) if isinstance(content, str) else tuple(content)
    prompt_id = f"{seed.id}/{name}"
    return Prompt(id=prompt_id, task=seed.id, setting=name, messages=messages, **fields)


# -- requests, as a kind puts them -----------------------------------------------------------------


def ask(*asks: Ask) -> Generator[Asks, Any, Round]:
    """Send requests in one round and get their answers, whatever they are."""
    return (yield Asks(asks))


def ask_usable(*asks: Ask) -> Generator[Asks, Any, Round]:
    """Send requests, and refuse answers that no kind can use, see `unusable`."""
    answers: Round = yield Asks(asks)
    for answered in answers:
        for completion in answered.completions:
            problem = unusable(completion, answered)
            if problem is not None:
                raise problem
    return answers


def ask_one(request: Ask) -> Generator[Asks, Any, Completion]:
    """Send one request and get its completion."""
    [answered] = yield from ask_usable(request)
    [completion] = answered.completions
    return completion


def ask_text(request: Ask) -> Generator[Asks, Any, str]:
    """Send one request and get the text of its answer, without white space around it."""
    return (yield from ask_one(request)).answer.strip()


def grade(*attempts: Attempt) -> Generator[Grade, Any, list[Score]]:
    """Have completions graded by the graders that their prompts name."""
    return (yield Grade(attempts))


def judged(request: Ask, label: str) -> Generator[Asks | Note, Any, bool]:
    """Ask a judge for a boolean label in the JSON object that ends its answer, and count it."""
    labels = yield from judged_labels(request, label)
    return labels[label]


def labelled(request: Ask, *labels: str) -> Ask:
    """Add the JSON schema of an answer with boolean labels, and room to think before them."""
    fields: Row = {"reason": {"type": "string"}}
    fields |= {label: {"type": "boolean"} for label in labels}
    schema = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    return replace(request, prompt=replace(request.prompt, schema=json_text(schema)))


def judged_labels(request: Ask, *labels: str) -> Generator[Asks | Note, Any, dict[str, bool]]:
    """Ask a judge for several boolean labels in one JSON object, and count them."""
    [answered] = yield from ask(labelled(request, *labels))
    values = labels_of(answered, *labels)
    for label, value in values.items():
        yield Note(f"{request.role}: {label}", "yes" if value else "no")
    return values


def labels_of(answered: Answered, *labels: str) -> dict[str, bool]:
    """Read boolean labels from the JSON object that ends an answer; Discarded without them."""
    role = answered.ask.role
    problem = unusable(answered.completions[0], answered)
    if problem is not None:
        raise Discarded(f"{role}_{problem.reason}", problem.detail)
    fields = last_object(answered.text) or {}
    for label in labels:
        if not isinstance(fields.get(label), bool):
            raise Discarded(f"{role}_unreadable", answered.text[-_DETAIL:])
    return {label: fields[label] for label in labels}


def unusable(completion: Completion, answered: Answered) -> Discarded | None:
    """Reason why no kind can use a completion; None if it can be used.

    It failed, is cut off, is empty, repeats its prompt, speaks as the assistant where it plays
    the user, calls where no tools are declared, or is in another language.
    """
    if completion.finish == "failed":
        return Discarded("request_failed", completion.error or "")
    if completion.truncated:
        return Discarded("truncated", completion.finish)
    step = completion.steps[-1].parsed
    if "unclosed_think" in step.problems:
        return Discarded("truncated", "the reasoning never closes")
    if not completion.answer.strip() and not completion.tool_calls:
        return Discarded("empty_answer")
    request = " ".join(answered.ask.prompt.messages[-1].content.split()).casefold()
    answer = " ".join(completion.answer.split()).casefold()
    # a short question may be said again before its answer
    if answer == request or (len(request) >= _MIN_ECHO and answer.startswith(request)):
        return Discarded("echoed_prompt", completion.answer[:_DETAIL])
    if answered.ask.role == "user" and (
        completion.tool_calls or _ASSISTANT_MARKS.search(completion.answer)
    ):
        return Discarded("user_talks_as_agent", completion.steps[-1].text[:_DETAIL])
    if completion.tool_calls and answered.ask.prompt.tools is None:
        return Discarded("undeclared_call", completion.tool_calls[0].name)
    if completion.index in answered.foreign:
        language = answered.foreign[completion.index]
        return Discarded("other_language", f"{language}: {completion.answer[:_DETAIL]}")
    return None


def with_answer(completion: Completion, answer: str | Message) -> Completion:
    """Replace the last step of a completion by a text without calls, or by a message."""
    message = Message("assistant", answer) if isinstance(answer, str) else answer
    step = completion.steps[-1]
    parsed = replace(
        step.parsed, answer=message.content, tool_calls=message.tool_calls, problems=()
    )
    last_step = replace(
        step, text=message.content, parsed=parsed, ids=None, logps=None, forced=None
    )
    return replace(completion, steps=(*completion.steps[:-1], last_step))


# -- rows and texts --------------------------------------------------------------------------------


def chat_row(messages: Sequence[Message], *, tools: str | None = None, **metadata: Any) -> Row:
    """Build a chat row; `tools` is the JSON text of the declared tools."""
    row: Row = {"messages": [chat_message(message) for message in messages]}
    if tools is not None:
        row["tools"] = tools_to_template(tools)
    if metadata:
        row["metadata"] = metadata
    return row


def chat_message(message: Message) -> Row:
    """Message of a chat row, in OpenAI's form with `reasoning_content`."""
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


def transcript(messages: Sequence[Message]) -> str:
    """Write a conversation as quoted text, a paragraph a turn; no text can forge a turn."""
    turns: list[str] = []
    for message in messages:
        calls = [f"calls {call.name} with {call.arguments}" for call in message.tool_calls]
        text = "\n".join(part for part in (message.content, *calls) if part)
        lines = quoted(text).splitlines() or [""]
        turns.append("\n".join([f"{message.role}:", *(f"  {line}" for line in lines)]))
    return "\n".join(turns)


def filled(template: str, **values: str) -> str:
    """Replace each `{{name}}` of a template, in one pass, so that a value may hold such marks."""
    parts = template.split("{{")
    text = [parts[0]]
    for part in parts[1:]:
        name, closing, following = part.partition("}}")
        if closing and name in values:
            text.append(values[name] + following)
        else:
            text.append("{{" + part)
    return "".join(text)
