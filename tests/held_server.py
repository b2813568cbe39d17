"""Servers whose answers wait as long as a test wants, and that see a client hang up.

with held_servers() as open_server:
    judge = open_server(answer)          # async: (path, body) → a status and a body
    … judge.url, judge.begun, judge.finished, judge.cut
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from aiohttp import web

# far above what a busy machine takes; what a test waits for beyond it does not come
LIMIT = 30.0
Answer = Callable[[str, Any], Awaitable[tuple[int, Any]]]


class HeldServer:
    """A server of `held_servers`; all of them run in one event loop, beside the test's thread.

    Attributes:
        begun: requests that have arrived, as (path, body).
        finished: those that were answered.
        cut: those whose client hung up before.
        changed: notified after each change of these.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.url = ""
        self.begun: list[tuple[str, Any]] = []
        self.finished: list[tuple[str, Any]] = []
        self.cut: list[tuple[str, Any]] = []
        self.changed = threading.Condition()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        call = (request.path.removeprefix("/v1"), json.loads(text or "{}"))
        self._note(self.begun, call)
        try:
            status, body = await self._answer(*call)
        except asyncio.CancelledError:
            self._note(self.cut, call)
            raise
        self._note(self.finished, call)
        return web.json_response(body, status=status)

    def _note(self, calls: list[tuple[str, Any]], call: tuple[str, Any]) -> None:
        with self.changed:
            calls.append(call)
            self.changed.notify_all()

    def wait_for(self, reached: Callable[[], bool]) -> bool:
        """Wait in the test's thread until something holds of the requests; False if it never does."""
        with self.changed:
            return self.changed.wait_for(reached, LIMIT)

    @property
    def open(self) -> int:
        """Requests that wait for their answer."""
        return len(self.begun) - len(self.finished) - len(self.cut)


@contextlib.contextmanager
def held_servers() -> Iterator[Callable[[Answer], HeldServer]]:
    """Yield a function that opens a server."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runners: list[web.AppRunner] = []

    async def start(server: HeldServer) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", server.handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.0)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    def open_server(answer: Answer) -> HeldServer:
        server = HeldServer(answer)
        asyncio.run_coroutine_threadsafe(start(server), loop).result(LIMIT)
        return server

    async def stop() -> None:
        for runner in runners:
            await runner.cleanup()

    try:
        yield open_server
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(LIMIT)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
