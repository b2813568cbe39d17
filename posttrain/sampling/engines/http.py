"""JSON over HTTP to one server, bounded and timed. 429, 5xx, time-outs and broken
connections are tried again, later each time; any other answer is final. A wrong key or address
stops the run. A server that refuses connections is waited for: one probe asks, the requests wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import aiohttp

from posttrain.config.backend import Server
from posttrain.errors import ConfigError, PosttrainError

_Read = TypeVar("_Read")
_LONGEST_WAIT = 60.0  # seconds
_LONGEST_PAUSE = 5.0  # between two probes
_PROBE_TIMEOUT = 10.0
_STARTING = (502, 503, 504)  # what a proxy answers for a server that is not there yet
_HOPELESS = {401: "refuses the key", 403: "refuses the key", 404: "has no such address or model"}
_SHOWN = 300  # characters of a server's answer in a message
_LONGEST_EVENT = 1 << 23  # bytes


class RequestFailed(PosttrainError):
    """One request got no usable answer; others may."""


class ServerDown(PosttrainError):
    """The server refused connections for longer than it is waited for: no request can succeed."""


class _Refused(Exception):
    """Nothing listens at the address."""


class _TryAgain(RequestFailed):
    """An attempt that failed, where another may not; `after` so many seconds, says the server."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after


class Client:
    """One server, used from one event loop.

    Args:
        first_wait: seconds before a second attempt, and between two probes of a server that is
            down; later ones wait longer.
        on_return: what a server needs that was away, before it is sent requests again.
        tell: shows a line while a server is waited for.
    """

    def __init__(
        self,
        server: Server,
        *,
        first_wait: float = 0.5,
        on_return: Callable[[], Awaitable[None]] | None = None,
        tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self._server, self._first_wait = server, first_wait
        self._on_return, self._tell = on_return, tell
        self._outage: asyncio.Task[None] | None = None
        self._headers = key_headers(server.api_key_env)
        self._gate = asyncio.Semaphore(server.concurrency)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Give the connections back."""
        if self._outage is not None:
            self._outage.cancel()
            await asyncio.gather(self._outage, return_exceptions=True)
            self._outage = None
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def models(self) -> list[dict[str, Any]]:
        """What the server says of the models it has; [] where it says nothing."""
        try:
            async with self._open().get(self._server.url + "/models") as answer:
                body = _object(await answer.read(), RequestFailed) if answer.status == 200 else {}
        except (TimeoutError, aiohttp.ClientError, RequestFailed):
            return []
        models = body.get("data")
        if not isinstance(models, list):
            return []
        return [model for model in cast(list[Any], models) if isinstance(model, dict)]

    async def _wait_for_server(self) -> None:
        """Wait until the server answers again; all requests wait for the same probe.

        Raises:
            ServerDown: it did not, in the time that the recipe allows.
        """
        ended = self._outage is not None and self._outage.done()
        # a probe that gave up answers for all: those who come late do not wait as long again
        if self._outage is None or (ended and self._outage.exception() is None):
            self._outage = asyncio.create_task(self._probe())
        # a request that is cancelled leaves the probe to the others
        await asyncio.shield(self._outage)

    async def _probe(self) -> None:
        url, limit, start = self._server.url, self._server.wait, time.monotonic()
        self._tell(
            f"{url} refuses connections: waiting up to {limit:g} s for it to start (backend.wait)"
        )
        pause = self._first_wait
        while (passed := time.monotonic() - start) < limit:
            await asyncio.sleep(min(pause, limit - passed))
            pause = min(_LONGEST_PAUSE, pause * 2)
            if await self._answers():
                self._tell(f"{url} answers again after {time.monotonic() - start:.0f} s")
                if self._on_return is not None:
                    await self._on_return()
                return
        raise ServerDown(f"{url} refused connections for {limit:g} s (backend.wait)")

    async def _answers(self) -> bool:
        timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT)
        try:
            async with self._open().get(self._server.url + "/models", timeout=timeout) as answer:
                return answer.status not in _STARTING
        except (TimeoutError, aiohttp.ClientError):
            return False

    def _open(self) -> aiohttp.ClientSession:
        # on first use, so that it belongs to the event loop that uses it
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._server.concurrency),
                timeout=aiohttp.ClientTimeout(total=self._server.timeout),
                headers=self._headers,
            )
        return self._session

    async def post(self, path: str, body: Mapping[str, Any], *, key: int) -> dict[str, Any]:
        """The server's JSON answer.

        Args:
            key: seeds the jitter of the waits; a request's seed will do.

        Raises:
            RequestFailed: a final refusal of this request, or all attempts used up.
            ConfigError: nothing that is sent to this server can succeed.
            ServerDown: it refuses connections for longer than `wait`.
        """
        return await self._retried(path, body, _read_object, key=key, wait=True)

    async def send(self, path: str, body: Mapping[str, Any], *, wait: bool = True) -> None:
        """Post where the status alone is the answer. Raises as `post`.

        Args:
            wait: False: a server that refuses connections is not waited for.
        """
        await self._retried(path, body, _read_nothing, key=0, wait=wait)

    async def _retried(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[aiohttp.ClientResponse], Awaitable[_Read]],
        *,
        key: int,
        wait: bool,
    ) -> _Read:
        """What `read` makes of the answer to an attempt that did not fail. Raises as `post`."""
        attempts = self._server.retries + 1
        attempt = 0
        async with self._gate if wait else contextlib.nullcontext():
            while True:
                if wait and self._outage is not None and not self._outage.done():
                    await self._wait_for_server()
                try:
                    async with self._answer(path, body) as answer:
                        return await read(answer)
                except _Refused as error:
                    if not wait:
                        raise RequestFailed(str(error)) from error
                    # no attempt: nothing has received it
                    await self._wait_for_server()
                except _TryAgain as failure:
                    if attempt == attempts - 1:
                        raise RequestFailed(f"{failure}, {attempts} attempts") from failure
                    jitter = random.Random(key + attempt).random()
                    pause = min(_LONGEST_WAIT, self._first_wait * 2**attempt)
                    # a server that says when to come back knows best
                    attempt += 1
                    await asyncio.sleep(max(failure.after, pause * (0.5 + jitter / 2)))

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """The JSON objects of the server's event stream as they come; of a plain answer, the one.
        Nothing is tried again: somebody watches. Raises as `post`."""
        try:
            async with self._answer(path, body) as answer:
                if answer.content_type != "text/event-stream":
                    yield _object(await answer.read(), _TryAgain)
                    return
                async for event in _events(answer.content.iter_any()):
                    yield event
        except _Refused as error:
            raise RequestFailed(str(error)) from error

    @asynccontextmanager
    async def _answer(
        self, path: str, body: Mapping[str, Any]
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """An answer with status 200, to be read inside. Raises as `post`, _TryAgain where it may
        help, _Refused where nothing listens."""
        url = self._server.url
        try:
            async with self._open().post(url + path, json=body) as answer:
                if answer.status != 200:
                    text = f"status {answer.status}: {await answer.text(errors='replace')}"
                    text = text[:_SHOWN]
                    if answer.status in (408, 429) or answer.status >= 500:
                        raise _TryAgain(text, _retry_after(answer.headers.get("Retry-After")))
                    if answer.status in _HOPELESS:
                        raise ConfigError(f"{url} {_HOPELESS[answer.status]} ({text})")
                    raise RequestFailed(text)
                yield answer
        except TimeoutError as error:
            raise _TryAgain(f"no answer within {self._server.timeout:g} s") from error
        except aiohttp.ClientConnectorError as error:
            raise _Refused(f"{type(error).__name__}: {error}") from error
        except aiohttp.ClientError as error:
            raise _TryAgain(f"{type(error).__name__}: {error}") from error


async def _read_object(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    return _object(await answer.read(), _TryAgain)


async def _read_nothing(_answer: aiohttp.ClientResponse) -> None:
    pass


def _object(text: bytes, failed: type[RequestFailed]) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise failed(f"what the server sent is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise failed("what the server sent is no object")
    return cast(dict[str, Any], body)


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The data of server-sent events up to `[DONE]`; comments and other fields are left out."""
    data: list[bytes] = []
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) + sum(map(len, data)) > _LONGEST_EVENT:
            raise RequestFailed(f"an event of more than {_LONGEST_EVENT} bytes")
        for line in map(bytes.strip, lines):
            if line.startswith(b"data:"):
                data += [text] if (text := line[5:].strip()) else []  # empty: keeps a proxy awake
            elif not line and data:
                event, data = b"\n".join(data), []
                if event == b"[DONE]":
                    return
                yield _object(event, RequestFailed)
    data += [rest[5:].strip()] if rest.startswith(b"data:") else []
    if data and data != [b"[DONE]"]:  # a stream that ends without an empty line
        yield _object(b"\n".join(data), RequestFailed)


def _retry_after(header: str | None) -> float:
    try:
        return min(_LONGEST_WAIT, max(0.0, float(header or 0)))
    except ValueError:
        return 0.0  # a date; our own wait will do


def key_headers(variable: str | None) -> dict[str, str]:
    """The header that carries the key of an environment variable; ConfigError where it is not
    set."""
    if variable is None:
        return {}
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(f"api_key_env names {variable}, which is not set in the environment")
    return {"Authorization": f"Bearer {key}"}
