"""JSON over HTTP to one server, with bounded concurrency, timeouts and retries.

429, 5xx, timeouts and broken connections are retried after growing pauses; any other answer is
final. A wrong key or address stops the run. A server that refuses connections is waited for: one
task probes it, and all requests wait for that task.
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

_Result = TypeVar("_Result")
_MAX_RETRY_PAUSE = 60.0  # seconds
_MAX_PROBE_PAUSE = 5.0  # seconds between two probes
_PROBE_TIMEOUT = 10.0  # seconds
_STARTING = (502, 503, 504)  # answers of a proxy whose server has not started yet
_HOPELESS = {401: "refuses the key", 403: "refuses the key", 404: "has no such address or model"}
_SHOWN_CHARACTERS = 300  # characters of a server's answer in a message
_MAX_EVENT_BYTES = 1 << 23


class RequestFailed(PosttrainError):
    """One request got no usable answer; others may."""


class ServerDown(PosttrainError):
    """The server refused connections for longer than it is waited for: no request can succeed."""


class _Refused(Exception):
    """Nothing listens at the address."""


class _TryAgain(RequestFailed):
    """A failed attempt worth a retry, not before `after` seconds if the server said so."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


class Client:
    """One server, used from one event loop.

    Args:
        first_wait: seconds before the second attempt, and between the first two probes of a server
            that is down; later pauses grow.
        on_return: awaited when a server is back, before it is sent requests again.
        tell: prints a line about an outage.
    """

    def __init__(
        self,
        server: Server,
        *,
        first_wait: float = 0.5,
        on_return: Callable[[], Awaitable[None]] | None = None,
        tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self._server = server
        self._first_wait = first_wait
        self._on_return = on_return
        self._tell = tell
        self._outage: asyncio.Task[None] | None = None
        self._headers = key_headers(server.api_key_env)
        self._gate = asyncio.Semaphore(server.concurrency)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections, and end the probe of an outage."""
        if self._outage is not None:
            self._outage.cancel()
            await asyncio.gather(self._outage, return_exceptions=True)
            self._outage = None
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def models(self) -> list[dict[str, Any]]:
        """Descriptions of the server's models; [] where it has no such list."""
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
        # a probe that gave up stays: later requests fail at once and do not wait as long again
        if self._outage is None or (ended and self._outage.exception() is None):
            self._outage = asyncio.create_task(self._probe())
        # shielded: a cancelled request must not cancel the probe that others wait for
        await asyncio.shield(self._outage)

    async def _probe(self) -> None:
        """Probe the server until it answers. Raises ServerDown after the recipe's `wait`."""
        url = self._server.url
        limit = self._server.wait
        start = time.monotonic()
        self._tell(
            f"{url} refuses connections: waiting up to {limit:g} s for it to start (backend.wait)"
        )
        pause = self._first_wait
        while (passed := time.monotonic() - start) < limit:
            await asyncio.sleep(min(pause, limit - passed))
            pause = min(_MAX_PROBE_PAUSE, pause * 2)
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
        """The session, opened on first use so that it belongs to the running event loop."""
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
            key: seed of the jitter of the pauses, for example the request's seed.

        Raises:
            RequestFailed: a final refusal of this request, or all attempts used up.
            ConfigError: no request to this server can succeed.
            ServerDown: the server refuses connections for longer than `wait`.
        """
        return await self._retried(path, body, _read_object, key=key, wait=True)

    async def send(self, path: str, body: Mapping[str, Any], *, wait: bool = True) -> None:
        """Post a body and ignore the text of the answer. Raises the errors of `post`.

        Args:
            wait: True to wait for a server that refuses connections.
        """
        await self._retried(path, body, _read_nothing, key=0, wait=wait)

    async def _retried(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[aiohttp.ClientResponse], Awaitable[_Result]],
        *,
        key: int,
        wait: bool,
    ) -> _Result:
        """Post with retries and `read` the first good answer. Raises the errors of `post`."""
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
                    # this does not count as an attempt: no server received the request
                    await self._wait_for_server()
                except _TryAgain as failure:
                    if attempt == attempts - 1:
                        raise RequestFailed(f"{failure}, {attempts} attempts") from failure
                    jitter = random.Random(key + attempt).random()
                    pause = min(_MAX_RETRY_PAUSE, self._first_wait * 2**attempt)
                    attempt += 1
                    # Retry-After of the server is the lower bound
                    await asyncio.sleep(max(failure.after, pause * (0.5 + jitter / 2)))

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """JSON objects of the server's event stream as they arrive, or that of a plain answer.

        Nothing is retried, because part of the answer may have been shown. Raises the errors of
        `post`.
        """
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
        """Answer with status 200, to be read inside of the context.

        Raises:
            RequestFailed, ConfigError: as in `post`.
            _TryAgain: a retry may help.
            _Refused: nothing listens at the address.
        """
        url = self._server.url
        try:
            async with self._open().post(url + path, json=body) as answer:
                if answer.status != 200:
                    text = f"status {answer.status}: {await answer.text(errors='replace')}"
                    text = text[:_SHOWN_CHARACTERS]
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
    """Parse a JSON object; raise `failed` for anything else."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise failed(f"what the server sent is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise failed("what the server sent is no object")
    return cast(dict[str, Any], body)


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """Data of server-sent events up to `[DONE]`, without comments and other fields."""
    data: list[bytes] = []
    incomplete_line = b""
    async for chunk in chunks:
        *lines, incomplete_line = (incomplete_line + chunk).split(b"\n")
        if len(incomplete_line) + sum(map(len, data)) > _MAX_EVENT_BYTES:
            raise RequestFailed(f"an event of more than {_MAX_EVENT_BYTES} bytes")
        for line in map(bytes.strip, lines):
            if line.startswith(b"data:"):
                if text := line[5:].strip():  # an empty one keeps a proxy from closing the stream
                    data.append(text)
            elif not line and data:
                event = b"\n".join(data)
                data = []
                if event == b"[DONE]":
                    return
                yield _object(event, RequestFailed)
    if incomplete_line.startswith(b"data:"):
        data.append(incomplete_line[5:].strip())
    if data and data != [b"[DONE]"]:  # a stream that ends without an empty line
        yield _object(b"\n".join(data), RequestFailed)


def _retry_after(header: str | None) -> float:
    """Seconds of a Retry-After header, 0 for none."""
    try:
        return min(_MAX_RETRY_PAUSE, max(0.0, float(header or 0)))
    except ValueError:
        return 0.0  # a date: the growing pauses do without it


def key_headers(variable: str | None) -> dict[str, str]:
    """Authorization header with the key from an environment variable, {} for no variable.

    Raises:
        ConfigError: the variable is not set.
    """
    if variable is None:
        return {}
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(f"api_key_env names {variable}, which is not set in the environment")
    return {"Authorization": f"Bearer {key}"}
