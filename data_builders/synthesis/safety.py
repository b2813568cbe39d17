"""Harmful and harmless requests → safe answers, and preference pairs.

Paper, 3.1.2 and appendix D. Harmful: the chosen answer is written in a safe wrapper, with a
strategy for the category; the rejected one to the request itself (a recipe may put its own template
around it). Harmless: the chosen answer is the plain one, the rejected one a refusal. Every
generator writes a candidate for each side, a classifier sorts them, and a pair is drawn.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from data_builders.keyed import key64
from data_builders.rows.inputs import Input
from data_builders.synthesis.seeds import plain_seeds, row_inputs, row_value, text_field
from data_builders.synthesis.steps import (
    Answered,
    Ask,
    Discarded,
    Keep,
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
    labels_of,
    prompt_of,
    unusable,
    with_answer,
)
from posttrain.config.synthesize import RequestRows, Safety
from posttrain.records import Message
from posttrain.runs import Parent
from reward.judge.quoting import quoted

Side = Literal["chosen", "rejected"]


@dataclass(frozen=True, slots=True)
class SafetyRequest:
    """Request, and whether it asks for something harmful.

    Attributes:
        category: category of harm; "" if the row names none.
    """

    text: str
    harmful: bool
    category: str


class SafetyAnswers(SynthesisKind):
    """The kind `safety`; the content of its seeds is a `SafetyRequest`."""

    config: Safety

    def inputs(self) -> tuple[list[Input], list[Parent]]:
        return row_inputs(self.config.requests, self.setup.out)

    def seeds(self, work: Path) -> SeedSet:
        return plain_seeds(self.config.requests, _read_request)

    def max_completions(self, seed: Seed) -> Mapping[str, int]:
        candidates = 2 * len(self.setup.models["generator"])
        return {"generator": candidates, "judge": candidates}

    def make(self, seed: Seed) -> Making:
        """Get candidates of every generator for both sides, label them, and choose a pair."""
        request: SafetyRequest = seed.content
        kind = "harmful" if request.harmful else "harmless"
        answers = yield from ask(*self._candidate_asks(seed))
        labels = yield from self._classify(seed, answers)
        usable: dict[Side, list[Answered]] = {"chosen": [], "rejected": []}
        for answered, label in zip(answers, labels, strict=True):
            side = _side(answered)
            if label is not None and _fits_side(side, label, harmful=request.harmful):
                usable[side].append(answered)
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

    def _classify(
        self, seed: Seed, answers: Round
    ) -> Generator[Any, Any, list[dict[str, bool] | None]]:
        """Labels of each candidate from the classifier; None for one that cannot be used."""
        request: SafetyRequest = seed.content
        asks: dict[int, Ask] = {}
        for number, answered in enumerate(answers):
            problem = unusable(answered.completions[0], answered.ask.prompt)
            if problem is not None:
                yield Note("candidates not used", problem.reason)
                continue
            text = self.text(
                "judge_safety", request=quoted(request.text), answer=quoted(answered.text)
            )
            asks[number] = Ask("judge", prompt_of(seed, f"judge-{number}", text))
        if not asks:
            raise Discarded("no_usable_answer")
        verdicts = yield from ask(*asks.values())
        labels: list[dict[str, bool] | None] = [None] * len(answers)
        for number, verdict in zip(asks, verdicts, strict=True):
            try:
                values = labels_of(verdict, "safe", "refuses")
            except Discarded as problem:
                yield Note("candidates not used", problem.reason)
                continue
            labels[number] = values
            for label, value in values.items():
                yield Note(f"judge: {label}", "yes" if value else "no")
        return labels

    def _choose(self, seed: Seed, side: Side, candidates: Sequence[Answered]) -> Answered:
        return candidates[key64(self.setup.seed, side, seed.id) % len(candidates)]

    def spoil(self, seed: Seed, rounds: Sequence[Round]) -> list[Round] | None:
        """Put an answer of the rejected side in the place of all chosen ones."""
        answers = rounds[0]
        rejected = [
            answered for answered in answers if _side(answered) == "rejected" and answered.text
        ]
        if not rejected:
            return None
        text = self._choose(seed, "rejected", rejected).text
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
    return text, SafetyRequest(text, harmful, category)


def _side(answered: Answered) -> Side:
    return "chosen" if answered.ask.prompt.setting == "chosen" else "rejected"


def _fits_side(side: Side, label: Mapping[str, bool], *, harmful: bool) -> bool:
    """True if the labels of a candidate are those that its side asks for."""
    if side == "chosen":
        return label["safe"] and (harmful or not label["refuses"])
    return not label["safe"] if harmful else label["refuses"]


def _messages(answered: Answered) -> tuple[Message, ...]:
    return answered.completions[0].messages
