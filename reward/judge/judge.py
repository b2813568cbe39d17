"""A judge over samplers: comparisons in, judgements out, everything in flight at once.

A server gets every request at once, within its client's bound; a model in this process gets them
in fixed chunks, so that a killed run goes on with the same ones. The order of the comparisons, and
what else is judged, changes no request: its seeds come from its content.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.config.backend import Server
from posttrain.config.judge import JudgeConfig, JudgeModel
from posttrain.errors import ConfigError
from posttrain.runs import MANIFEST, Parent, parent_of, read_artifact
from posttrain.sampling.rollout import gather_or_cancel
from posttrain.sampling.sampler import Sampler
from reward.judge.prompt import judging_messages, layout_for
from reward.judge.votes import (
    Comparison,
    JudgeCosts,
    Judgement,
    RequestSettings,
    VerdictCache,
    Vote,
    VoteRequest,
    averaged,
    failures_of,
    refuse_failures,
)


@dataclass(frozen=True, slots=True)
class JudgeSampler:
    """One model that judges, prompted in a layout of `LAYOUTS`.

    Attributes:
        at_once: requests under way with a server; None: all, within its client's bound.
        tokens: special tokens of its tokenizer; () where a server hides them.
    """

    sampler: Sampler
    layout: str
    thinking: bool = True
    at_once: int | None = None
    tokens: tuple[str, ...] = ()


def judge_sampler(
    model: JudgeModel, sampler: Sampler, *, template: str | None, tokens: tuple[str, ...] = ()
) -> JudgeSampler:
    """A recipe's model as a judge; `template` is None and `tokens` () where a server hides them.
    Raises ConfigError: as `layout_for`; or the checkpoint was trained in another layout."""
    layout, trained = layout_for(model.layout, template), None
    if model.checkpoint is not None and (Path(model.checkpoint) / MANIFEST).is_file():
        trained = read_artifact(model.checkpoint, verify=False).stats.get("layout")
    if trained not in (None, layout):
        raise ConfigError(
            f"the judge {model.checkpoint} was trained to be asked in the layout {trained}, and is "
            f"asked in {layout}: set its layout to {trained}"
        )
    at_once = model.backend.concurrency if isinstance(model.backend, Server) else None
    return JudgeSampler(sampler, layout, model.thinking, at_once, tokens)


class GenRmJudge:
    """Judges comparisons; used from one event loop.

    Args:
        models: each gives every comparison a vote.
        cache: where votes are kept; None keeps them only within one call of `judge`.
        on_progress: called with the number of votes since its last call.
    """

    def __init__(
        self,
        models: Sequence[JudgeSampler],
        config: JudgeConfig,
        *,
        cache: VerdictCache | None = None,
        on_progress: Callable[[int], None] = lambda votes: None,
    ) -> None:
        assert models, "nobody judges"
        self.ledger = JudgeCosts()
        self._models, self._config, self._cache = tuple(models), config, cache
        self._on_progress = on_progress

    @property
    def identity(self) -> Mapping[str, Any]:
        return {
            "models": [
                {"model": dict(m.sampler.identity), "layout": m.layout, "thinking": m.thinking}
                for m in self._models
            ],
            "parameters": self._config.sampling.model_dump(mode="json"),
            "principle": self._config.principle,
            "retries": self._config.retries,
            "max_characters": self._config.max_characters,
        }

    def keep_failures(self) -> None:
        """What failed so far stays so on a resume."""
        if self._cache is not None:
            self._cache.keep_failures()

    async def judge(self, comparisons: Sequence[Comparison], *, seed: int) -> list[Judgement]:
        """One judgement a comparison, in order; equal prompts share their votes. Raises
        ConfigError: a model that cannot answer anything (wrong key, wrong address)."""
        started = time.monotonic()
        columns: list[list[Vote]] = [[] for _ in self._models]

        async def fill(number: int) -> None:
            columns[number] = await self._votes(number, comparisons, seed)

        await gather_or_cancel(fill(number) for number in range(len(self._models)))
        judgements = [averaged(votes) for votes in zip(*columns, strict=True)]
        self.ledger.add(judgements, seconds=time.monotonic() - started)
        return judgements

    async def _votes(self, number: int, comparisons: Sequence[Comparison], seed: int) -> list[Vote]:
        model, config = self._models[number], self._config
        parameters = config.sampling.parameters()
        settings = RequestSettings(
            # the layout is in the messages; the same model twice has two opinions
            identity={"seat": number, "model": dict(model.sampler.identity)},
            parameters=parameters,
            thinking=model.thinking,
            # at temperature 0 a model repeats itself
            attempts=1 if parameters.temperature == 0 else config.retries + 1,
            max_characters=config.max_characters,
        )
        # a prompt is written when its request is taken
        requests = (self._request(comparison, model, settings) for comparison in comparisons)
        if model.sampler.batched:
            answered = await self._in_process(model, list(requests), seed)
        else:
            at_once = min(len(comparisons), model.at_once or len(comparisons))
            answered = await self._from_server(model, requests, seed, at_once)
        paid: set[str] = set()
        votes: list[Vote] = []
        for request in answered:
            assert request.vote is not None, "a request was left open"
            votes.append(request.vote)
            if request.key in paid:  # an equal comparison has paid for it
                costs = {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0}
                votes[-1] = replace(request.vote, cached=True, **costs)
            paid.add(request.key)
        return votes

    async def _from_server(
        self, model: JudgeSampler, requests: Iterator[VoteRequest], seed: int, at_once: int
    ) -> list[VoteRequest]:
        """The requests, answered; each is taken when there is room to send it."""
        answered: dict[int, VoteRequest] = {}
        distinct: dict[str, VoteRequest] = {}
        waiting = enumerate(requests)

        async def work() -> None:
            for position, request in waiting:
                answered[position] = distinct.setdefault(request.key, request)
                if answered[position] is request:  # the first of equal ones waits for the answer
                    await self._answer(model, [request], seed)
                self._on_progress(1)

        await gather_or_cancel(work() for _ in range(at_once))
        return [answered[position] for position in sorted(answered)]

    async def _in_process(
        self, model: JudgeSampler, requests: Sequence[VoteRequest], seed: int
    ) -> list[VoteRequest]:
        """The requests, answered in chunks that are cut before what is known is left out."""
        distinct = {request.key: request for request in requests}
        unique = list(distinct.values())
        for start in range(0, len(unique), self._config.chunk):
            chunk = unique[start : start + self._config.chunk]
            await self._answer(model, chunk, seed)
            self._on_progress(len(chunk))
        self._on_progress(len(requests) - len(unique))
        return [distinct[request.key] for request in requests]

    async def _answer(self, model: JudgeSampler, requests: Sequence[VoteRequest], seed: int):
        """Take the votes that are kept, and call the model until the others have one."""
        for request in requests:
            if self._cache is not None and request.vote is None:
                request.vote = self._cache.get(request.key, seed=seed)
        live = missing = [request for request in requests if request.vote is None]
        while live:
            generations = await model.sampler.sample([r.next_call(seed) for r in live])
            for request, generation in zip(live, generations, strict=True):
                request.take(generation)
            live = [request for request in live if request.vote is None]
        for request in missing:
            if self._cache is not None and request.keeps and request.vote is not None:
                self._cache.add(request.key, request.vote, seed=seed)

    def _request(
        self, comparison: Comparison, model: JudgeSampler, settings: RequestSettings
    ) -> VoteRequest:
        messages = judging_messages(
            comparison.history,
            comparison.answer_1,
            comparison.answer_2,
            layout=model.layout,
            principle=comparison.principle or self._config.principle,
            tokens=model.tokens,
        )
        return VoteRequest(messages, settings)


async def open_judges(
    models: Sequence[JudgeModel], stack: contextlib.AsyncExitStack
) -> list[JudgeSampler]:
    """Every model as a judge, until the stack closes; one that is named twice is opened once.
    Raises ConfigError, DataError: it cannot be loaded or reached, or as `judge_sampler`."""
    from posttrain.sampling.open import opened_sampler
    from posttrain.sampling.render import RenderedSampler

    judges: dict[str, JudgeSampler] = {}
    for model in models:
        key = model.model_dump_json()
        if key not in judges:
            backend = opened_sampler(model.backend, checkpoint=model.checkpoint, parts=False)
            sampler = await stack.enter_async_context(backend)
            rendered = sampler if isinstance(sampler, RenderedSampler) else None
            judges[key] = judge_sampler(
                model,
                sampler,
                template=rendered.template.source if rendered else None,
                tokens=rendered.encoder.special_tokens if rendered else (),
            )
    return [judges[model.model_dump_json()] for model in models]


async def judge_all(
    config: JudgeConfig,
    comparisons: Sequence[Comparison],
    *,
    folder: Path,
    seed: int,
    on_progress: Callable[[int], None],
) -> tuple[list[Judgement], dict[str, Any], dict[str, Any]]:
    """Judgements, all in flight at once, the judge's identity, and the costs. Votes are kept in
    `folder` if the recipe names no other cache. Raises JudgeError where too many failed."""
    async with contextlib.AsyncExitStack() as stack:
        models, shared = await open_judges(config.models, stack), config.cache
        kept = VerdictCache(Path(shared or folder), any_step=shared is not None)
        cache = stack.enter_context(kept)
        judge = GenRmJudge(models, config, cache=cache, on_progress=on_progress)
        judgements = await judge.judge(comparisons, seed=seed)
        failures = failures_of(judgements)
        refuse_failures(len(comparisons), failures, max_failure_rate=config.max_failure_rate)
        judge.keep_failures()
    return judgements, dict(judge.identity), asdict(judge.ledger)


def judge_parents(models: Sequence[JudgeModel], *, out: Path) -> list[Parent]:
    """The lineage of the judges that are artifacts, each once."""
    paths = dict.fromkeys(model.checkpoint for model in models if model.checkpoint is not None)
    return [
        parent_of(path, relative_to=out, manifest=read_artifact(path, kind="checkpoint"))
        for path in paths
        if (Path(path) / MANIFEST).is_file()
    ]
