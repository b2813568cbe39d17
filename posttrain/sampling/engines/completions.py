"""A server's `/completions` with token ids: our rendering, its weights.

    POST {"prompt": [1, 9, 4], "return_token_ids": true, "stop_token_ids": [2], "seed": 7, …}
    →    {"choices": [{"token_ids": [17, 5, 2], "finish_reason": "stop", …}]}

The fields beyond OpenAI's are vLLM's: `return_token_ids`, `stop_token_ids`. A server
without them cannot give exact ids, and the first answer says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from posttrain.errors import ConfigError
from posttrain.sampling.engines.budget import budget_calls
from posttrain.sampling.engines.http import Client, RequestFailed
from posttrain.sampling.sampler import EngineOutput, EngineRequest, Ids


class CompletionsEngine:
    """An `Engine` over HTTP; concurrency and retries are the client's."""

    batched = False

    def __init__(self, client: Client, *, model: str, identity: Mapping[str, Any]) -> None:
        self._client, self._model = client, model
        self.identity: Mapping[str, Any] = identity

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
        choice = _choice(await self._client.post("/completions", body, key=request.seed))
        new_ids = choice.get("token_ids")
        if not isinstance(new_ids, list):
            raise ConfigError(
                "the server returns no token ids (return_token_ids is vLLM's); use kind: chat, "
                "which asks for none"
            )
        new = tuple(cast(list[int], new_ids))
        finish: Literal["stop", "length"] = (
            "length" if choice["finish_reason"] == "length" else "stop"
        )
        if finish == "stop" and (not new or new[-1] not in stop_ids):
            raise RequestFailed(f"stopped ({choice['finish_reason']}) behind no stop token")
        logps = choice["logprobs"]["token_logprobs"] if parameters.logps else None
        return EngineOutput(new, finish, None if logps is None else tuple(logps))


def _choice(body: Mapping[str, Any]) -> dict[str, Any]:
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        raise RequestFailed(f"an answer without choices: {str(body)[:200]}")
    return cast(list[dict[str, Any]], choices)[0]
