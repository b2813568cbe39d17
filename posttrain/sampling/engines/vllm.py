"""vLLM as an `Engine`: in this process, or behind the `/completions` of its server.

Requests to a server use vLLM's fields `return_token_ids` and `stop_token_ids`. In this process vLLM
must be installed (the extra `vllm`).
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeGuard, cast

from posttrain.config.backend import VllmBackend, refuse_missing_vllm
from posttrain.config.paths import checkpoint_dtype
from posttrain.errors import ConfigError
from posttrain.jsontext import writable
from posttrain.sampling.cancellation import gather_or_cancel
from posttrain.sampling.engines.http import Client, RequestFailed
from posttrain.sampling.sampler import (
    EngineOutput,
    EngineRequest,
    Ids,
    Progress,
    ScoreOutput,
    ScoreRequest,
)

# prompt ids, limit of new tokens, stop ids
Call = tuple[Ids, int, Sequence[int]]


def budget_calls(request: EngineRequest) -> Generator[Call, EngineOutput, EngineOutput]:
    """Yield the calls of a request, receive the output of each, return them as one output.

    A reasoning budget takes two calls: up to the budget, then the answer behind the closing.

    Raises:
        ConfigError: the model opens its own reasoning, so that its start is not known beforehand.
    """
    budget = request.budget
    limit = request.parameters.max_tokens
    if budget is None:
        return (yield request.ids, limit, request.stop_ids)
    if budget.open_id is not None:
        raise ConfigError(
            "this template lets the model open its own reasoning; a budget then needs "
            "backend.kind transformers"
        )
    stop_ids = (*request.stop_ids, budget.close_id)
    reasoning = yield request.ids, min(limit, budget.tokens), stop_ids
    if reasoning.error or (reasoning.ids and reasoning.ids[-1] in request.stop_ids):
        return reasoning
    ids = reasoning.ids
    logps = reasoning.logps
    forced = None
    if reasoning.finish != "stop":
        # the model has not closed its reasoning itself
        closing = tuple(budget.closing(ids))[: limit - len(ids)]
        forced = (len(ids), len(ids) + len(closing)) if closing else None
        if logps is not None:
            # forced ids were not sampled
            logps = (*logps, *(0.0,) * len(closing))
        ids = (*ids, *closing)
    if len(ids) >= limit:
        return EngineOutput(ids, "length", logps, forced)
    answer = yield (*request.ids, *ids), limit - len(ids), request.stop_ids
    logps = None if logps is None or answer.logps is None else (*logps, *answer.logps)
    return EngineOutput((*ids, *answer.ids), answer.finish, logps, forced, answer.error)


# -- offline ---------------------------------------------------------------------------------------


def open_vllm(config: VllmBackend, *, checkpoint: Path, weights: str) -> VllmEngine:
    """Load a checkpoint into vLLM. Raises ConfigError where vLLM is not installed."""
    refuse_missing_vllm()
    # an extra, which type checkers do not find
    vllm: Any = importlib.import_module("vllm")
    dtype = config.dtype
    if dtype == "auto":
        # vLLM's own `auto` serves float32 checkpoints in bfloat16
        dtype = checkpoint_dtype(checkpoint) or "auto"
    llm = vllm.LLM(
        model=str(checkpoint),
        dtype=dtype,
        tensor_parallel_size=config.tensor_parallel,
        gpu_memory_utilization=config.gpu_memory,
        max_model_len=config.max_length,
        # log-probabilities under the distribution that was sampled from, as our records say
        logprobs_mode="processed_logprobs",
        trust_remote_code=False,
        skip_tokenizer_init=True,
    )
    identity = {"backend": "vllm", "weights": weights, "dtype": dtype}
    return VllmEngine(llm, identity=identity)


class VllmEngine:
    """An `Engine` around `vllm.LLM`, which schedules a call's requests itself."""

    batched = True

    def __init__(self, llm: Any, *, identity: Mapping[str, Any]) -> None:
        self._llm = llm
        self.identity: Mapping[str, Any] = identity

    async def generate(
        self, requests: Sequence[EngineRequest], *, progress: Progress = None
    ) -> list[EngineOutput]:
        """Continue all prompts; those that reach their reasoning budget take two calls."""
        return await asyncio.to_thread(self._generate, requests, progress)

    def _generate(
        self, requests: Sequence[EngineRequest], progress: Progress
    ) -> list[EngineOutput]:
        """Make the calls of all requests in rounds, one call of each unfinished request a round."""
        # one generator of calls for each request
        generators = [budget_calls(request) for request in requests]
        outputs: dict[int, EngineOutput] = {}
        calls = {k: next(generator) for k, generator in enumerate(generators)}
        while calls:
            answers = self._call([requests[k] for k in calls], list(calls.values()))
            pending = list(calls)
            calls = {}
            for k, answer in zip(pending, answers, strict=True):
                try:
                    calls[k] = generators[k].send(answer)
                except StopIteration as end:
                    outputs[k] = end.value
        if progress is not None:
            progress(sum(len(output.ids) for output in outputs.values()))
        return [outputs[k] for k in range(len(requests))]

    def _call(self, requests: Sequence[EngineRequest], calls: Sequence[Call]) -> list[EngineOutput]:
        """Make one call of each request, all in one batch."""
        vllm: Any = importlib.import_module("vllm")
        parameters = [
            vllm.SamplingParams(
                temperature=request.parameters.temperature,
                top_p=request.parameters.top_p,
                top_k=request.parameters.top_k,
                max_tokens=limit,
                seed=request.seed,
                stop_token_ids=list(stop_ids),
                logprobs=0 if request.parameters.logps else None,
                detokenize=False,
            )
            for request, (_, limit, stop_ids) in zip(requests, calls, strict=True)
        ]
        prompts = [{"prompt_token_ids": list(ids)} for ids, _, _ in calls]
        answers = self._llm.generate(prompts, parameters, use_tqdm=False)
        outputs: list[EngineOutput] = []
        for answer, request in zip(answers, requests, strict=True):
            [completion] = answer.outputs
            ids = tuple(completion.token_ids)
            logps = None
            if request.parameters.logps:
                rows = zip(ids, completion.logprobs, strict=True)
                logps = tuple(row[token].logprob for token, row in rows)
            finish = "length" if completion.finish_reason == "length" else "stop"
            outputs.append(EngineOutput(ids, finish, logps))
        return outputs


# -- behind a server -------------------------------------------------------------------------------


class CompletionsEngine:
    """An `Engine` over HTTP; the client bounds concurrency and retries.

    A server that returns no token ids raises ConfigError. Any other unreadable answer fails its
    request alone.
    """

    batched = False

    def __init__(self, client: Client, *, model: str, identity: Mapping[str, Any]) -> None:
        self._client = client
        self._model = model
        self.identity: Mapping[str, Any] = identity
        self._gives_ids = False

    async def generate(
        self, requests: Sequence[EngineRequest], *, progress: Progress = None
    ) -> list[EngineOutput]:
        """Continue all prompts at the same time, within the client's bound."""

        async def generate_one(request: EngineRequest) -> EngineOutput:
            try:
                output = await self._generate(request)
            except RequestFailed as error:
                return EngineOutput((), "length", error=str(error))
            if progress is not None:
                progress(len(output.ids))
            return output

        return await gather_or_cancel(map(generate_one, requests))

    async def _generate(self, request: EngineRequest) -> EngineOutput:
        """Make the calls of one request."""
        calls = budget_calls(request)
        call = next(calls)
        while True:
            output = await self._call(request, *call)
            try:
                call = calls.send(output)
            except StopIteration as end:
                return end.value

    async def _call(
        self, request: EngineRequest, ids: Ids, max_tokens: int, stop_ids: Sequence[int]
    ) -> EngineOutput:
        """Make one call of a request.

        Raises:
            ConfigError: the server returns no token ids.
            RequestFailed: an answer that cannot be read.
        """
        parameters = request.parameters
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": list(ids),
            "max_tokens": max_tokens,
            "temperature": parameters.temperature,
            "top_p": parameters.top_p,
            "seed": request.seed,
            "stop_token_ids": list(stop_ids),
            "skip_special_tokens": False,
            "return_token_ids": True,
            # sent also where they do nothing: a server may take defaults from the checkpoint
            "top_k": parameters.top_k or -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }
        if parameters.logps:
            body["logprobs"] = 0
        answer = await self._client.post(
            "/completions", body, key=request.seed, conversation=request.conversation
        )
        choice = _first_choice(answer)
        if choice.get("token_ids") is None and not self._gives_ids:
            raise ConfigError(
                "the server returns no token ids (return_token_ids is vLLM's); use kind: chat, "
                "which asks for none"
            )
        self._gives_ids = True
        return output_of(choice, max_tokens, stop_ids, logps=parameters.logps)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreOutput]:
        """Score all requests by vLLM's `prompt_logprobs` (`Scorer.score`)."""
        return await gather_or_cancel(map(self._score, requests))

    async def _score(self, request: ScoreRequest) -> ScoreOutput:
        """Score one request."""
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": list(request.ids),
            # a server generates at least one token, which is thrown away
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
            "return_token_ids": True,
        }
        try:
            answer = await self._client.post("/completions", body, key=len(request.ids))
            return ScoreOutput(prompt_logps(answer, request))
        except RequestFailed as error:
            return ScoreOutput((), error=str(error))


def _first_choice(answer: Mapping[str, Any]) -> dict[str, Any]:
    """First of an answer's choices. Raises RequestFailed where it has none."""
    choices = answer.get("choices")
    choice = cast(Any, choices[0] if isinstance(choices, list) and choices else None)
    if answer.get("error") or not isinstance(choice, dict):
        raise RequestFailed(f"an answer without choices: {_shown(answer)}")
    return cast(dict[str, Any], choice)


def prompt_logps(answer: Mapping[str, Any], request: ScoreRequest) -> tuple[float, ...]:
    """Log-probabilities of the masked ids in a server's answer, in order.

    Raises:
        RequestFailed: the server scored other ids, or not all of them.
    """
    choice = _first_choice(answer)
    scored_ids = choice.get("prompt_token_ids")
    if scored_ids is not None and scored_ids != list(request.ids):
        raise RequestFailed("the server scored other token ids than it was sent")
    entries = choice.get("prompt_logprobs")
    if not isinstance(entries, list) or len(entries) != len(request.ids):
        raise RequestFailed(
            f"prompt_logprobs are not one for each of {len(request.ids)} ids: {_shown(entries)}"
        )
    logps: list[float] = []
    for token, is_scored, entry in zip(request.ids, request.mask, entries, strict=True):
        if not is_scored:
            continue
        scored = entry.get(str(token)) if isinstance(entry, dict) else None
        logp = scored.get("logprob") if isinstance(scored, dict) else None
        if not isinstance(logp, float | int) or isinstance(logp, bool):
            raise RequestFailed(f"no log-probability of id {token}: {_shown(entry)}")
        logps.append(float(logp))
    return tuple(logps)


def output_of(
    choice: Mapping[str, Any], limit: int, stop_ids: Sequence[int], *, logps: bool
) -> EngineOutput:
    """Read a server's choice as an output.

    Args:
        limit: greatest number of new tokens that was requested.
        logps: True if log-probabilities were requested.

    Raises:
        RequestFailed: the choice does not fit the request.
    """
    ids = choice.get("token_ids")
    if not _numbers(ids, int) or not all(0 <= i < 1 << 31 for i in ids) or len(ids) > limit:
        raise RequestFailed(f"token_ids that are not up to {limit} ids: {_shown(ids)}")
    reason = choice.get("finish_reason")
    stopped = bool(ids) and ids[-1] in stop_ids
    finish: Literal["stop", "length"] = "stop"
    if reason == "length" or (reason is None and len(ids) == limit and not stopped):
        finish = "length"
    elif not stopped:
        raise RequestFailed(f"stopped ({_shown(reason)}) behind no stop token")
    if not logps:
        return EngineOutput(tuple(ids), finish)
    logprobs = choice.get("logprobs")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if not _numbers(values, int, float) or len(values) != len(ids):
        raise RequestFailed(f"no log-probability of each token: {_shown(logprobs)}")
    return EngineOutput(tuple(ids), finish, tuple(map(float, values)))


def _shown(value: object) -> str:
    """Beginning of a value's text, for a message."""
    return writable(repr(value)[:200])


def _numbers(values: Any, *kinds: type) -> TypeGuard[list[Any]]:
    """Check for a list of finite numbers of these types."""
    return isinstance(values, list) and all(
        type(value) in kinds and abs(value) < 1e300 for value in cast(list[Any], values)
    )
