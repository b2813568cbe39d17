"""An OpenAI-compatible server that lies in this process: deterministic answers, scripted trouble.

async with Stub(troubles=every_tenth) as stub:
    … http requests to stub.url …
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

from aiohttp import web

END, CLOSE = 2, 7
# (body, how often this very body was asked before) → a status, "hang", "cut", "deep" for an answer
# that no parser takes, or None for no trouble
Trouble = Callable[[dict[str, Any], int], int | str | None]


def no_trouble(_body: dict[str, Any], _again: int) -> None:
    return None


class Stub:
    """`gate`: answers wait until so many requests are under way at once."""

    def __init__(
        self,
        trouble: Trouble = no_trouble,
        *,
        gate: int = 1,
        length: int = 6,
        context: int | None = None,
    ) -> None:
        self.context = context
        # a status in place of the list of models
        self.models_trouble: Callable[[], int | None] = lambda: None
        self.trouble, self.gate, self.length = trouble, gate, length
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.under_way = self.most = self.port = 0
        self._enough, self._over = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._enough.set()
        self._over.set()
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> dict[str, Any] | web.StreamResponse:
        body = await request.json()
        key = json.dumps(body, sort_keys=True)
        again, self.asked[key] = self.asked[key], self.asked[key] + 1
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        if self.under_way >= self.gate:
            self._enough.set()
        await self._enough.wait()
        self.under_way -= 1
        trouble = self.trouble(body, again)
        if trouble == "hang":
            await self._over.wait()
        if trouble == "cut":
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if trouble == "deep":
            return web.Response(text="[" * 100_000)
        if isinstance(trouble, int):
            return web.Response(status=trouble, text="trouble", headers={"Retry-After": "0"})
        return body

    async def models(self, _request: web.Request) -> web.StreamResponse:
        status = self.models_trouble()
        if status is not None:
            return web.Response(status=status)
        stated = {} if self.context is None else {"max_model_len": self.context}
        return web.json_response({"data": [{"id": "m", **stated}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await self._take(request)
        if isinstance(body, web.StreamResponse):
            return body
        ids = self._ids(body)
        choice = {"token_ids": ids, "finish_reason": "stop", "logprobs": None}
        if ids[-1] not in body["stop_token_ids"]:
            choice["finish_reason"] = "length"
        if "logprobs" in body:
            choice["logprobs"] = {"token_logprobs": [-0.5] * len(ids)}
        return web.json_response({"choices": [choice]})

    def _ids(self, body: dict[str, Any]) -> list[int]:
        """`length` ids that the prompt and the seed decide, then the end; cut at max_tokens."""
        digest = hashlib.sha256(json.dumps([body["prompt"], body["seed"]]).encode()).digest()
        whole = [10 + byte for byte in digest[: self.length]] + [END]
        return whole[: body["max_tokens"]]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._take(request)
        if isinstance(body, web.StreamResponse):
            return body
        said = f"{body['messages'][-1]['content']} {body['seed']}"
        message: dict[str, Any] = {"role": "assistant", "content": said}
        usage: dict[str, Any] = {"prompt_tokens": 11, "completion_tokens": 9}
        if body.get("chat_template_kwargs", {}).get("enable_thinking"):
            message["reasoning_content"] = "hm"
            usage["completion_tokens_details"] = {"reasoning_tokens": 4}
        answer = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
        return web.json_response(answer)
