"""A server's `/completions` with token ids: our rendering, its weights.

    POST {"prompt": [1, 9, 4], "return_token_ids": true, "stop_token_ids": [2], "seed": 7, …}
    →    {"choices": [{"token_ids": [17, 5, 2], "finish_reason": "stop", …}]}

The fields beyond OpenAI's are vLLM's: `return_token_ids`, `stop_token_ids`. A server
without them cannot give exact ids, and the first answer says so. Any other answer that cannot be
read is a failed request with its reason; none ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeGuard, cast

from posttrain.errors import ConfigError
from posttrain.jsontext import writable
from posttrain.sampling.engines.budget import budget_calls
from posttrain.sampling.engines.http import Client, RequestFailed
from posttrain.sampling.sampler import EngineOutput, EngineRequest, Ids


class CompletionsEngine:
    """An `Engine` over HTTP; concurrency and retries are the client's."""

    batched = False

    def __init__(self, client: Client, *, model: str, identity: Mapping[str, Any]) -> None:
        self._client, self._model = client, model
        self.identity: Mapping[str, Any] = identity
        self._gives_ids = False

    async def generate(
        self, requests: Sequence[EngineRequest], *, progress: Callable[[int], None] | None = None
    ) -> list[EngineOutput]:
        """One output a request, in order; all are under way at once, within the client's bound."""

        async def one(request: EngineRequest) -> EngineOutput:
            try:
                output = await self._generate(request)
            except RequestFailed as error:
                return EngineOutput((), "length", error=str(error))
            if progress is not None:
                progress(len(output.ids))
            return output

        return list(await asyncio.gather(*map(one, requests)))

    async def _generate(self, request: EngineRequest) -> EngineOutput:
        calls = budget_calls(request)
        call = next(calls)
        while True:
            output = await self._call(request, *call)
            try:
                call = calls.send(output)
            except StopIteration as done:
                return done.value

    async def _call(
        self, request: EngineRequest, ids: Ids, max_tokens: int, stop_ids: Sequence[int]
    ) -> EngineOutput:
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
        answer = await self._client.post("/completions", body, key=request.seed)
        choices = answer.get("choices")
        choice = cast(Any, choices[0] if isinstance(choices, list) and choices else None)
        if answer.get("error") or not isinstance(choice, dict):
            raise RequestFailed(f"an answer without choices: {writable(repr(answer)[:200])}")
        if choice.get("token_ids") is None and not self._gives_ids:
            raise ConfigError(
                "the server returns no token ids (return_token_ids is vLLM's); use kind: chat, "
                "which asks for none"
            )
        self._gives_ids = True
        return _output(choice, max_tokens, stop_ids, logps=parameters.logps)


def _output(
    choice: Mapping[str, Any], limit: int, stop_ids: Sequence[int], *, logps: bool
) -> EngineOutput:
    """A choice as an output.

    Raises:
        RequestFailed: it does not hold what was asked for.
    """
    ids = choice.get("token_ids")
    if not _numbers(ids, int) or not all(0 <= i < 1 << 31 for i in ids) or len(ids) > limit:
        raise RequestFailed(
            f"token_ids that are not up to {limit} ids: {writable(repr(ids)[:200])}"
        )
    reason, stopped = choice.get("finish_reason"), bool(ids) and ids[-1] in stop_ids
    finish: Literal["stop", "length"] = "stop"
    if reason == "length" or (reason is None and len(ids) == limit and not stopped):
        finish = "length"
    elif not stopped:
        raise RequestFailed(f"stopped ({writable(repr(reason)[:200])}) behind no stop token")
    if not logps:
        return EngineOutput(tuple(ids), finish)
    given = choice.get("logprobs")
    values = given.get("token_logprobs") if isinstance(given, dict) else None
    if not _numbers(values, int, float) or len(values) != len(ids):
        raise RequestFailed(f"no log-probability of each token: {writable(repr(given)[:200])}")
    return EngineOutput(tuple(ids), finish, tuple(map(float, values)))


def _numbers(values: Any, *kinds: type) -> TypeGuard[list[Any]]:
    """Whether it is a list of numbers that are finite."""
    return isinstance(values, list) and all(
        type(value) in kinds and abs(value) < 1e300 for value in cast(list[Any], values)
    )
