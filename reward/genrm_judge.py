"""A judge over samplers: matches in, judgements out, everything in flight at once.

    judge = GenRmJudge([Seat(sampler, layout="roles")], config, cache=VerdictCache(out / "votes"))
    await judge.judge([Match(history, "56", "It is 54.")], seed=7)
    → [Judgement(verdict=Verdict(5, 1, 1), votes=(Vote(…),))]

A server gets every question at once, within its client's bound; a model in this process gets them
in fixed stretches, so that what a killed run had finished need not be done again and the rest comes
out the same. The order of the matches, and what else is judged, changes no question: its seeds come
from its content.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.artifacts import MANIFEST, read_artifact
from posttrain.config.backend import Server
from posttrain.config.judge import JudgeConfig, JudgeModel
from posttrain.errors import ConfigError
from posttrain.sampling.rollout import gather_or_cancel
from posttrain.sampling.sampler import Sampler
from reward.genrm_prompt import judging_messages, layout_for
from reward.judgements import Judgement, Ledger, Match, Vote, averaged
from reward.question import Asker, Question
from reward.verdict_cache import VerdictCache


@dataclass(frozen=True, slots=True)
class Seat:
    """One model that judges, and how it is asked.

    Attributes:
        layout: a name of `LAYOUTS`.
        at_once: questions under way with a server; None: all, within its client's bound.
        tokens: special tokens of its tokenizer; () where a server hides them.
    """

    sampler: Sampler
    layout: str
    thinking: bool = True
    at_once: int | None = None
    tokens: tuple[str, ...] = ()


def seat_for(
    model: JudgeModel, sampler: Sampler, *, template: str | None, tokens: tuple[str, ...] = ()
) -> Seat:
    """The seat of a recipe's model.

    Args:
        template: source of its chat template; None where a server hides it.
        tokens: special tokens of its tokenizer; () where a server hides them.

    Raises:
        ConfigError: as `layout_for`; or the checkpoint was trained as a judge in another layout.
    """
    layout = layout_for(model.layout, template)
    trained = _trained_layout(model.checkpoint)
    if trained not in (None, layout):
        raise ConfigError(
            f"the judge {model.checkpoint} was trained to be asked in the layout {trained}, and is "
            f"asked in {layout}: set its layout to {trained}"
        )
    at_once = model.backend.concurrency if isinstance(model.backend, Server) else None
    return Seat(sampler, layout, model.thinking, at_once, tokens)


def _trained_layout(checkpoint: str | None) -> str | None:
    """Of a judge that this project trained; None of any other."""
    if checkpoint is None or not (Path(checkpoint) / MANIFEST).is_file():
        return None
    return read_artifact(checkpoint, verify=False).stats.get("layout")


class GenRmJudge:
    """Judges matches; used from one event loop.

    Args:
        seats: each gives every match a vote.
        config: parameters, retries and limits; its models are the caller's to open.
        cache: where votes are kept; None keeps them only within one call of `judge`.
        progress: told of votes as they are had.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        config: JudgeConfig,
        *,
        cache: VerdictCache | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        assert seats, "nobody judges"
        self._progress = progress or _tell_nobody
        self.ledger = Ledger()
        self._seats, self._config, self._cache = tuple(seats), config, cache

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides the judgements."""
        return {
            "models": [
                {"model": dict(seat.sampler.identity), "layout": seat.layout,
                 "thinking": seat.thinking}
                for seat in self._seats
            ],
            "parameters": self._config.sampling.model_dump(mode="json"),
            "principle": self._config.principle,
            "retries": self._config.retries,
            "max_characters": self._config.max_characters,
        }  # fmt: skip

    def _asker(self, number: int) -> Asker:
        seat, config = self._seats[number], self._config
        parameters = config.sampling.parameters()
        return Asker(
            # the layout is in the messages; the same model twice has two opinions
            identity={"seat": number, "model": dict(seat.sampler.identity)},
            parameters=parameters,
            thinking=seat.thinking,
            # asked the same without chance, a model says the same
            attempts=1 if parameters.temperature == 0 else config.retries + 1,
            max_characters=config.max_characters,
        )

    def keep_failures(self) -> None:
        """What failed so far stays so on a resume: call it once that was found tolerable."""
        if self._cache is not None:
            self._cache.keep_failures()

    async def judge(self, matches: Sequence[Match], *, seed: int) -> list[Judgement]:
        """One judgement a match, in order; matches that are asked alike share their votes.

        Args:
            matches: every call they take is awaited before this returns.
            seed: of the step; the same matches under the same seed get the same judgements from a
                model that answers the same.

        Raises:
            ConfigError: a model that cannot answer anything (wrong key, wrong address).
        """
        started = time.monotonic()
        columns: dict[int, list[Vote]] = {}

        async def fill(number: int) -> None:
            columns[number] = await self._votes(number, matches, seed)

        await gather_or_cancel(fill(number) for number in range(len(self._seats)))
        ordered = [columns[number] for number in range(len(self._seats))]
        judgements = [averaged(votes) for votes in zip(*ordered, strict=True)]
        self.ledger.add(judgements, seconds=time.monotonic() - started)
        return judgements

    async def _votes(self, number: int, matches: Sequence[Match], seed: int) -> list[Vote]:
        """One seat's vote on each match."""
        batched = self._seats[number].sampler.batched
        ask = self._ask_in_process if batched else self._ask_server
        paid: set[str] = set()
        votes: list[Vote] = []
        for question in await ask(number, matches, seed):
            assert question.vote is not None, "a question was left open"
            votes.append(_shared(question.vote) if question.key in paid else question.vote)
            paid.add(question.key)
        return votes

    async def _ask_server(self, number: int, matches: Sequence[Match], seed: int) -> list[Question]:
        """Each match's question, answered; prompts are written when there is room to send them."""
        seat, asker = self._seats[number], self._asker(number)
        asked: dict[int, Question] = {}
        distinct: dict[str, Question] = {}
        waiting = iter(enumerate(matches))

        async def work() -> None:
            for position, match in waiting:
                question = self._question(match, seat, asker)
                asked[position] = distinct.setdefault(question.key, question)
                # whoever asked it first waits for the answer
                if asked[position] is question:
                    self._recall(question, seed)
                    while question.vote is None:
                        [generation] = await seat.sampler.sample([question.request(seed)])
                        question.take(generation)
                    self._keep(question, seed)
                self._progress(1)

        workers = min(len(matches), seat.at_once or len(matches))
        await gather_or_cancel(work() for _ in range(workers))
        return [asked[position] for position in range(len(matches))]

    async def _ask_in_process(
        self, number: int, matches: Sequence[Match], seed: int
    ) -> list[Question]:
        """Each match's question, answered, in stretches.

        They are cut before what is known is left out, so that a resumed run makes the same ones.
        """
        seat, asker = self._seats[number], self._asker(number)
        asked = [self._question(match, seat, asker) for match in matches]
        distinct = {question.key: question for question in asked}
        questions = list(distinct.values())
        for question in questions:
            self._recall(question, seed)
        for start in range(0, len(questions), self._config.chunk):
            stretch = questions[start : start + self._config.chunk]
            missing = [question for question in stretch if question.vote is None]
            live = missing
            while live:
                generations = await seat.sampler.sample([q.request(seed) for q in live])
                for question, generation in zip(live, generations, strict=True):
                    question.take(generation)
                live = [question for question in live if question.vote is None]
            for question in missing:
                self._keep(question, seed)
            self._progress(len(stretch))
        # what was asked in the same words
        self._progress(len(matches) - len(questions))
        return [distinct[question.key] for question in asked]

    def _question(self, match: Match, seat: Seat, asker: Asker) -> Question:
        principle = match.principle or self._config.principle
        messages = judging_messages(
            match.history,
            match.answer_1,
            match.answer_2,
            layout=seat.layout,
            principle=principle,
            tokens=seat.tokens,
        )
        return Question(messages, asker)

    def _recall(self, question: Question, seed: int) -> None:
        if self._cache is not None and question.vote is None:
            question.vote = self._cache.get(question.key, seed=seed)

    def _keep(self, question: Question, seed: int) -> None:
        if self._cache is not None and question.keeps and question.vote is not None:
            self._cache.add(question.key, question.vote, seed=seed)


def _tell_nobody(_votes: int) -> None:
    """Nobody watches."""


def _shared(vote: Vote) -> Vote:
    """The vote as another match has it that was asked in the same words: paid for once."""
    return replace(vote, calls=0, prompt_tokens=0, completion_tokens=0, cached=True)
