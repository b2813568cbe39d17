"""Judge of comparisons over one or several samplers.

A server gets all requests concurrently, within its client's bound; a model in this process gets
them in fixed chunks, so that an interrupted run resumes with the same chunks. A request's seeds
come from its content alone: neither the order of the comparisons nor other comparisons matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.config.backend import Server
from posttrain.config.judge import JudgeConfig, JudgeModel
from posttrain.errors import ConfigError
from posttrain.runs import MANIFEST, Parent, parent_of, read_artifact
from posttrain.sampling.cancellation import gather_or_cancel
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
    average_votes,
    failures_of,
    refuse_failures,
)

# requests to a judge in process that are saved together: a killed run repeats at most so many
CHUNK = 1024


@dataclass(frozen=True, slots=True)
class JudgeSampler:
    """A judge model, prompted in a layout of `LAYOUTS`.

    Attributes:
        concurrency: most requests in flight to a server; None for all, within its client's bound.
        tokens: special tokens of its tokenizer; () where a server hides them.
    """

    sampler: Sampler
    layout: str
    thinking: bool = True
    concurrency: int | None = None
    tokens: tuple[str, ...] = ()


def judge_sampler(
    model: JudgeModel, sampler: Sampler, *, template: str | None, tokens: tuple[str, ...] = ()
) -> JudgeSampler:
    """Prepare a recipe's model as a judge, in the layout that fits and that it was trained in.

    Args:
        template: source of its chat template; None where a server hides it.
        tokens: special tokens of its tokenizer; () where a server hides them.

    Raises:
        ConfigError: no layout fits (see `layout_for`), or the checkpoint was trained in another.
    """
    layout = layout_for(model.layout, template)
    trained_layout: str | None = None
    if model.checkpoint is not None and (Path(model.checkpoint) / MANIFEST).is_file():
        trained_layout = read_artifact(model.checkpoint, verify=False).stats.get("layout")
    if trained_layout not in (None, layout):
        raise ConfigError(
            f"the judge {model.checkpoint} was trained to be asked in the layout {trained_layout}, "
            f"and is asked in {layout}: set its layout to {trained_layout}"
        )
    concurrency = model.backend.total_concurrency if isinstance(model.backend, Server) else None
    return JudgeSampler(sampler, layout, model.thinking, concurrency, tokens)


class GenRmJudge:
    """Generative reward model that judges comparisons. Use it from one event loop.

    Args:
        models: judge models, each of which gives every comparison a vote.
        cache: votes on disk; without it they are kept only within one call of `judge`.
        rollout_urls: addresses of the servers that sample the rollouts; `begin` asks none of them.
        on_progress: called with the number of votes since its last call.
    """

    def __init__(
        self,
        models: Sequence[JudgeSampler],
        config: JudgeConfig,
        *,
        cache: VerdictCache | None = None,
        rollout_urls: Collection[str] = (),
        on_progress: Callable[[int], None] = lambda votes: None,
    ) -> None:
        assert models, "nobody judges"
        self.ledger = JudgeCosts()
        self._models = tuple(models)
        self._config = config
        self._cache = cache
        self._on_progress = on_progress
        self._on_rollout_servers = frozenset(
            number
            for number, model in enumerate(config.models)
            if isinstance(model.backend, Server) and set(model.backend.urls) & set(rollout_urls)
        )
        # requests that `begin` has sent, by seed and key, until `judge` takes them
        self._started_requests: dict[tuple[int, str], tuple[VoteRequest, asyncio.Task[None]]] = {}

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that decides a judgement beside the comparison and the seed."""
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
        """Keep the failures so far on disk, so that a resumed run repeats them."""
        if self._cache is not None:
            self._cache.keep_failures()

    def begin(
        self, comparisons: Sequence[Comparison], *, seed: int
    ) -> Sequence[asyncio.Task[None]]:
        """Ask servers without rollouts about comparisons that `judge` will get with the same seed.

        Called in the event loop; does not wait. Returns the tasks of the requests.

        A model in this process is left alone: it would compete with the rollouts, and its batches
        would depend on which of them end first. So is one on a server that samples the rollouts:
        its long prompts were seen to hold up their decoding for longer than an early start saves.
        """
        tasks: list[asyncio.Task[None]] = []
        for number, model in enumerate(self._models):
            if model.sampler.batched or number in self._on_rollout_servers:
                continue
            settings = self._request_settings(number)
            for comparison in comparisons:
                request = self._make_vote_request(comparison, model, settings)
                if (seed, request.key) not in self._started_requests:
                    answering = asyncio.create_task(self._answer(model, [request], seed))
                    self._started_requests[seed, request.key] = request, answering
                    tasks.append(answering)
        return tasks

    async def judge(self, comparisons: Sequence[Comparison], *, seed: int) -> list[Judgement]:
        """Judge comparisons; a judgement of each, in order. Equal prompts share their votes.

        Raises ConfigError: a model that cannot answer anything (wrong key, wrong address).
        """
        start = time.monotonic()
        votes_by_model: list[list[Vote]] = [[] for _ in self._models]

        async def collect_votes(number: int) -> None:
            votes_by_model[number] = await self._votes_of_model(number, comparisons, seed)

        await gather_or_cancel(collect_votes(number) for number in range(len(self._models)))
        judgements = [average_votes(votes) for votes in zip(*votes_by_model, strict=True)]
        self.ledger.add(judgements, seconds=time.monotonic() - start)
        return judgements

    async def _votes_of_model(
        self, number: int, comparisons: Sequence[Comparison], seed: int
    ) -> list[Vote]:
        """Votes of one model, in the order of the comparisons."""
        model = self._models[number]
        settings = self._request_settings(number)
        # a generator: with a server, a prompt is rendered only when its request is sent
        requests = (
            self._make_vote_request(comparison, model, settings) for comparison in comparisons
        )
        if model.sampler.batched:
            answered = await self._ask_in_process(model, list(requests), seed)
        else:
            concurrency = min(len(comparisons), model.concurrency or len(comparisons))
            answered = await self._ask_server(model, requests, seed, concurrency)
        counted_keys: set[str] = set()
        votes: list[Vote] = []
        for request in answered:
            assert request.vote is not None, "a request was left open"
            vote = request.vote
            if request.key in counted_keys:  # the costs are those of the first equal comparison
                vote = replace(vote, cached=True, calls=0, prompt_tokens=0, completion_tokens=0)
            votes.append(vote)
            counted_keys.add(request.key)
        return votes

    def _request_settings(self, number: int) -> RequestSettings:
        """Settings of all requests to one of the models; at temperature 0 without retries."""
        model = self._models[number]
        parameters = self._config.sampling.parameters()
        # no retries at temperature 0: a model repeats itself
        attempts = 1 if parameters.temperature == 0 else self._config.retries + 1
        return RequestSettings(
            # without the layout, which is in the messages; with the number, so that a model which
            # is listed twice votes twice
            identity={"seat": number, "model": dict(model.sampler.identity)},
            parameters=parameters,
            thinking=model.thinking,
            attempts=attempts,
            max_characters=self._config.max_characters,
        )

    async def _ask_server(
        self, model: JudgeSampler, requests: Iterator[VoteRequest], seed: int, concurrency: int
    ) -> list[VoteRequest]:
        """Answer requests with `concurrency` tasks, in order; equals become the first of them."""
        answered: dict[int, VoteRequest] = {}
        first_by_key: dict[str, VoteRequest] = {}
        queue = enumerate(requests)

        async def work() -> None:
            for position, request in queue:
                started = self._started_requests.pop((seed, request.key), None)
                new_request = request if started is None else started[0]
                answered[position] = first_by_key.setdefault(request.key, new_request)
                # equal requests share the first one's answer
                if answered[position] is new_request:
                    if started is None:
                        await self._answer(model, [new_request], seed)
                    else:
                        await started[1]
                self._on_progress(1)

        await gather_or_cancel(work() for _ in range(concurrency))
        return [answered[position] for position in sorted(answered)]

    async def _ask_in_process(
        self, model: JudgeSampler, requests: Sequence[VoteRequest], seed: int
    ) -> list[VoteRequest]:
        """Answer requests in chunks, which do not depend on what the cache has."""
        by_key = {request.key: request for request in requests}
        distinct = list(by_key.values())
        for start in range(0, len(distinct), CHUNK):
            chunk = distinct[start : start + CHUNK]
            await self._answer(model, chunk, seed)
            self._on_progress(len(chunk))
        self._on_progress(len(requests) - len(distinct))
        return [by_key[request.key] for request in requests]

    async def _answer(self, model: JudgeSampler, requests: Sequence[VoteRequest], seed: int):
        """Take votes from the cache, and call the model until every other request has its vote."""
        for request in requests:
            if self._cache is not None and request.vote is None:
                request.vote = self._cache.get(request.key, seed=seed)
        not_cached = [request for request in requests if request.vote is None]
        open_requests = not_cached
        while open_requests:
            calls = [request.next_call(seed) for request in open_requests]
            generations = await model.sampler.sample(calls)
            for request, generation in zip(open_requests, generations, strict=True):
                request.take(generation)
            open_requests = [request for request in open_requests if request.vote is None]
        for request in not_cached:
            if self._cache is not None and request.is_cacheable and request.vote is not None:
                self._cache.add(request.key, request.vote, seed=seed)

    def _make_vote_request(
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
    """Open judge models until the stack closes; a model that is listed twice is opened once.

    Raises ConfigError, DataError: a model cannot be loaded or reached, or cannot judge (see
    `judge_sampler`).
    """
    from posttrain.sampling.open import opened_sampler
    from posttrain.sampling.render import RenderedSampler

    judges: dict[str, JudgeSampler] = {}
    for model in models:
        key = model.model_dump_json()
        if key not in judges:
            backend = opened_sampler(model.backend, checkpoint=model.checkpoint, parts=False)
            sampler = await stack.enter_async_context(backend)
            # a server hides both
            template: str | None = None
            tokens: tuple[str, ...] = ()
            if isinstance(sampler, RenderedSampler):
                template = sampler.template.source
                tokens = sampler.encoder.special_tokens
            judges[key] = judge_sampler(model, sampler, template=template, tokens=tokens)
    return [judges[model.model_dump_json()] for model in models]


async def judge_all(
    config: JudgeConfig,
    comparisons: Sequence[Comparison],
    *,
    folder: Path,
    seed: int,
    on_progress: Callable[[int], None],
) -> tuple[list[Judgement], dict[str, Any], dict[str, Any]]:
    """Open a recipe's judge and judge comparisons with it.

    Args:
        folder: where votes are kept if the recipe names no cache.

    Returns:
        The judgements in order, the judge's identity, and the costs.

    Raises:
        JudgeError: more comparisons failed than the recipe allows.
    """
    async with contextlib.AsyncExitStack() as stack:
        models = await open_judges(config.models, stack)
        cache_folder = Path(config.cache or folder)
        cache = stack.enter_context(VerdictCache(cache_folder, any_step=config.cache is not None))
        judge = GenRmJudge(models, config, cache=cache, on_progress=on_progress)
        judgements = await judge.judge(comparisons, seed=seed)
        failures = failures_of(judgements)
        refuse_failures(len(comparisons), failures, max_failure_rate=config.max_failure_rate)
        judge.keep_failures()
    return judgements, dict(judge.identity), asdict(judge.ledger)


def judge_parents(models: Sequence[JudgeModel], *, out: Path) -> list[Parent]:
    """Parents of a run among its judges: the checkpoints with a manifest, each once."""
    paths = dict.fromkeys(model.checkpoint for model in models if model.checkpoint is not None)
    return [
        parent_of(path, relative_to=out, manifest=read_artifact(path, kind="checkpoint"))
        for path in paths
        if (Path(path) / MANIFEST).is_file()
    ]
