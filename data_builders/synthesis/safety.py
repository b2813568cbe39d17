"""Harmful and harmless requests → safe answers, and preference pairs.

Paper, 3.1.2 and appendix D. Harmful: the chosen answer is written in a safe wrapper, with a
strategy for the category; the rejected one to the request itself (a recipe may put its own template
around it). Harmless: the chosen answer is the plain one, the rejected one a refusal. Every
generator writes a candidate for each side, a classifier sorts them, and a pair is drawn. The
classifier is a model with a rubric, or a grader of answers to the request.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from data_builders.dialects import RowProblem
from data_builders.keyed import key64
from data_builders.prompts.questions import metadata_text
from data_builders.registry import BY_ENVIRONMENT, all_graders
from data_builders.synthesis.seeds import plain_seeds, row_value, text_field
from data_builders.synthesis.steps import (
    Answered,
    Ask,
    Discarded,
    Keep,
    KindSetup,
    Making,
    Note,
    Round,
    Row,
    Seed,
    SeedSet,
    SynthesisKind,
    ask,
    chat_message,
    chat_row,
    grade,
    labelled,
    labels_of,
    prompt_of,
    unusable,
    with_answer,
)
from posttrain.config.load import nearest
from posttrain.config.synthesize import RequestRows, Safety
from posttrain.errors import ConfigError
from posttrain.records import Message
from reward.environments import ENVIRONMENTS, find_environment
from reward.graders.base import Attempt
from reward.judge.quoting import quoted

Side = Literal["chosen", "rejected"]


@dataclass(frozen=True, slots=True)
class SafetyRequest:
    """Request, and whether it asks for something harmful.

    Attributes:
        category: category of harm; "" if the row names none.
        metadata: JSON text of what a grader reads.
    """

    text: str
    harmful: bool
    category: str
    metadata: str


class SafetyAnswers(SynthesisKind):
    """The kind `safety`; the content of its seeds is a `SafetyRequest`."""

    config: Safety

    def __init__(self, config: Safety, setup: KindSetup) -> None:
        super().__init__(config, setup)
        name = config.grader
        if name is not None and name not in all_graders() and find_environment(name) is None:
            hint = nearest(name, (*ENVIRONMENTS, *all_graders()))
            raise ConfigError(f"make.grader: there is no grader or environment {name!r}{hint}")

    def seeds(self, work: Path) -> SeedSet:
        return plain_seeds(self.config.requests, _read_request)

    def max_completions(self, seed: Seed) -> Mapping[str, int]:
        candidates = 2 * len(self.setup.models["generator"])
        judgements = candidates if self.config.grader is None else 0
        return {"generator": candidates, "judge": judgements}

    def make(self, seed: Seed) -> Making:
        """Get candidates of every generator for both sides, label them, and choose a pair."""
        request: SafetyRequest = seed.content
        kind = "harmful" if request.harmful else "harmless"
        answers = yield from ask(*self._candidate_asks(seed))
        if self.config.grader is None:
            fits = yield from self._judge(seed, answers)
        else:
            fits = yield from self._grade(seed, answers, self.config.grader)
        usable: dict[Side, list[Answered]] = {"chosen": [], "rejected": []}
        for answered, fits_side in zip(answers, fits, strict=True):
            if fits_side:
                usable[_side(answered)].append(answered)
        for side, candidates in usable.items():
            yield Note(f"{kind}: {side} candidates that fit", f"{len(candidates)}")
        if not usable["chosen"]:
            raise Discarded(
                "no_safe_answer" if request.harmful else "no_plain_answer", answers[0].text[:200]
            )
        chosen = self._choose(seed, "chosen", usable["chosen"])
        metadata = {
            "category": request.category,
            "harmful": request.harmful,
            "chosen": chosen.model,
        }
        question = Message("user", request.text)
        row = chat_row([question, *_messages(chosen)], **metadata)
        if not usable["rejected"]:
            yield Note("pairs", f"{kind}: no answer to reject")
            return Keep((row,), checks=("classifier",))
        rejected = self._choose(seed, "rejected", usable["rejected"])
        yield Note("pairs", f"{kind}: a pair")
        pair: Row = {
            "prompt": [chat_message(question)],
            "chosen": [chat_message(message) for message in _messages(chosen)],
            "rejected": [chat_message(message) for message in _messages(rejected)],
            "metadata": {**metadata, "rejected": rejected.model},
        }
        return Keep((row,), pairs=(pair,), checks=("classifier",))

    def _candidate_asks(self, seed: Seed) -> list[Ask]:
        """Requests to every generator, one for each side of a pair."""
        request: SafetyRequest = seed.content
        strategy = self.config.strategies.get(request.category, self.config.default_strategy)
        if request.harmful:
            chosen = self.text("safe_wrapper", request=request.text, strategy=strategy)
            rejected = self.text("harmful_request", request=request.text).strip()
        else:
            chosen = request.text
            rejected = self.text("refusal_wrapper", request=request.text)
        asks: list[Ask] = []
        for name in self.setup.models["generator"]:
            asks.append(Ask("generator", prompt_of(seed, "chosen", chosen), model=name))
            asks.append(Ask("generator", prompt_of(seed, "rejected", rejected), model=name))
        return asks

    def _judge(self, seed: Seed, answers: Round) -> Generator[Any, Any, list[bool]]:
        """True for each candidate whose labels from the judge are those of its side."""
        request: SafetyRequest = seed.content
        asks: dict[int, Ask] = {}
        for number, answered in (yield from _usable_answers(answers)).items():
            text = self.text(
                "judge_safety", request=quoted(request.text), answer=quoted(answered.text)
            )
            request_of_judge = Ask("judge", prompt_of(seed, f"judge-{number}", text))
            asks[number] = labelled(request_of_judge, "safe", "refuses")
        verdicts = yield from ask(*asks.values())
        fits = [False] * len(answers)
        for number, verdict in zip(asks, verdicts, strict=True):
            try:
                labels = labels_of(verdict, "safe", "refuses")
            except Discarded as problem:
                yield Note("candidates not used", problem.reason)
                continue
            for label, value in labels.items():
                yield Note(f"judge: {label}", "yes" if value else "no")
            side = _side(answers[number])
            fits[number] = _fits_side(side, labels, harmful=request.harmful)
        return fits

    def _grade(self, seed: Seed, answers: Round, grader: str) -> Generator[Any, Any, list[bool]]:
        """True for each chosen candidate that passes the grader, and each rejected one that fails.

        What is graded is the answer to the request itself, without the template around it.
        """
        request: SafetyRequest = seed.content
        is_environment = grader not in all_graders()
        prompt = prompt_of(
            seed,
            "grade",
            request.text,
            grader=BY_ENVIRONMENT if is_environment else grader,
            environment=grader if is_environment else None,
            metadata=request.metadata,
        )
        usable = yield from _usable_answers(answers)
        attempts = [Attempt(prompt, answered.completions[0]) for answered in usable.values()]
        scores = yield from grade(*attempts)
        if all(score.value is None for score in scores):
            raise Discarded("unscored", scores[0].explanation)
        fits = [False] * len(answers)
        for number, score in zip(usable, scores, strict=True):
            if score.value is None:
                yield Note("candidates not used", "unscored")
                continue
            side = _side(answers[number])
            passes = score.value == 1.0
            yield Note("grader", f"{side} {'passes' if passes else 'fails'}")
            fits[number] = passes == (side == "chosen")
        return fits

    def _choose(self, seed: Seed, side: Side, candidates: Sequence[Answered]) -> Answered:
        return candidates[key64(self.setup.seed, side, seed.id) % len(candidates)]

    def spoil(self, seed: Seed, rounds: Sequence[Round], kept: Keep) -> list[Round] | None:
        """Put a rejected answer in the place of all chosen ones.

        It is that of the pair. Without a pair the classifier found none of them bad: so does one
        that says yes to everything.
        """
        answers = rounds[0]
        rejected = [
            answered for answered in answers if _side(answered) == "rejected" and answered.text
        ]
        if not rejected:
            return None
        text = self._choose(seed, "rejected", rejected).text
        if kept.pairs:
            text = kept.pairs[0]["rejected"][-1]["content"]
        spoiled_round: list[Answered] = []
        for answered in answers:
            if _side(answered) == "chosen":
                completions = tuple(
                    # a completion that failed has no step to replace
                    with_answer(completion, text)
                    for completion in answered.completions
                    if completion.steps
                )
                answered = replace(answered, completions=completions or answered.completions)
            spoiled_round.append(answered)
        return [tuple(spoiled_round)]


def _read_request(row: Row, source: RequestRows) -> tuple[str, SafetyRequest]:
    text = text_field(row, source.request)
    harmful = row_value(row, source.harmful)
    if not isinstance(harmful, bool):
        raise Discarded("malformed_row", f"{source.harmful} is neither true nor false")
    category = "" if source.category is None else text_field(row, source.category)
    try:
        metadata = metadata_text(row, source.metadata)
    except RowProblem as problem:
        raise Discarded(problem.reason, str(problem)) from None
    return text, SafetyRequest(text, harmful, category, metadata)


def _usable_answers(answers: Round) -> Generator[Note, Any, dict[int, Answered]]:
    """Answers that can be classified, by their number; raises Discarded if there is none."""
    usable: dict[int, Answered] = {}
    for number, answered in enumerate(answers):
        problem = unusable(answered.completions[0], answered)
        if problem is None:
            usable[number] = answered
        else:
            yield Note("candidates not used", problem.reason)
    if not usable:
        raise Discarded("no_usable_answer")
    return usable


def _side(answered: Answered) -> Side:
    return "chosen" if answered.ask.prompt.setting == "chosen" else "rejected"


def _fits_side(side: Side, label: Mapping[str, bool], *, harmful: bool) -> bool:
    """True if the labels of a candidate are those that its side asks for."""
    if side == "chosen":
        return label["safe"] and (harmful or not label["refuses"])
    return not label["safe"] if harmful else label["refuses"]


def _messages(answered: Answered) -> tuple[Message, ...]:
    return answered.completions[0].messages
