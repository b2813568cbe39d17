"""JSON over HTTP to one server: bounded, timed, tried again when that can help, and counted.

    client = Client(recipe.backend)
    body = await client.post("/completions", {"prompt": [1, 9, 4], …}, key=7)
    client.ledger  →  ClientStats(calls=2048, retries=31, failures=0, seconds=412.7)

429, 5xx, time-outs and broken connections are tried again, later each time; any other answer is
final. What cannot get better by asking again for anything (a wrong key, a wrong address) stops the
run.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import aiohttp

from posttrain.config.backend import Server
from posttrain.errors import ConfigError, PosttrainError

_LONGEST_WAIT = 60.0  # seconds
_HOPELESS = {401: "refuses the key", 403: "refuses the key", 404: "has no such address or model"}
_SHOWN = 300  # characters of a server's answer in a message
_LONGEST_EVENT = 1 << 23  # bytes


@dataclass(slots=True)
class ClientStats:
    """What a run cost: calls that were answered, attempts made again, calls given up, seconds."""

    calls: int = 0
    retries: int = 0
    failures: int = 0
    seconds: float = 0.0
    in_flight: int = 0
    most_in_flight: int = 0


class RequestFailed(PosttrainError):
    """One request got no usable answer; others may."""


class Client:
    """One server, used from one event loop; `first_wait` is in seconds."""

    def __init__(self, server: Server, *, first_wait: float = 0.5) -> None:
        self.ledger = ClientStats()
        self._server, self._first_wait = server, first_wait
        self._headers = key_headers(server.api_key_env)
        self._gate = asyncio.Semaphore(server.concurrency)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Give the connections back."""
        if self._session is not None:
            await self._session.close()
            self._session = None

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
            path: below the url, such as "/completions".
            body: what to send.
            key: seeds the jitter of the waits; a request's seed will do.

        Raises:
            RequestFailed: a final refusal of this request, or all attempts used up.
            ConfigError: nothing that is sent to this server can succeed.
        """
        jitter, attempts = random.Random(key), self._server.retries + 1
        async with self._gate:
            self.ledger.in_flight += 1
            self.ledger.most_in_flight = max(self.ledger.most_in_flight, self.ledger.in_flight)
            started = time.monotonic()
            try:
                for attempt in range(attempts):
                    result = await self._attempt(path, body)
                    if isinstance(result, dict):
                        self.ledger.calls += 1
                        return result
                    if attempt == attempts - 1:
                        self.ledger.failures += 1
                        raise RequestFailed(f"{result.why}, {attempts} attempts")
                    self.ledger.retries += 1
                    wait = min(_LONGEST_WAIT, self._first_wait * 2**attempt)
                    # a server that says when to come back knows best
                    await asyncio.sleep(max(result.after, wait * (0.5 + jitter.random() / 2)))
                raise AssertionError("the loop returns or raises")
            finally:
                self.ledger.in_flight -= 1
                self.ledger.seconds += time.monotonic() - started

    async def _attempt(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | _Later:
        try:
            async with self._open().post(self._server.url + path, json=body) as answer:
                if answer.status == 200:
                    return await _json(answer)
                return await self._refused(answer)
        except TimeoutError:
            return _Later(f"no answer within {self._server.timeout:g} s")
        except aiohttp.ClientError as error:
            return _Later(f"{type(error).__name__}: {error}")

    async def _refused(self, answer: aiohttp.ClientResponse) -> _Later:
        """Why an answer is none, where asking again may help; raises as `post` where it cannot."""
        text = (await answer.text(errors="replace"))[:_SHOWN]
        if answer.status in (408, 429) or answer.status >= 500:
            after = _retry_after(answer.headers.get("Retry-After"))
            return _Later(f"status {answer.status}: {text}", after)
        if answer.status in _HOPELESS:
            why = _HOPELESS[answer.status]
            raise ConfigError(f"{self._server.url} {why} (status {answer.status}): {text}")
        self.ledger.failures += 1
        raise RequestFailed(f"status {answer.status}: {text}")

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """The JSON objects of the server's event stream as they come; of a plain answer, the one.

        Nothing is tried again: somebody watches, and may ask again.

        Raises:
            RequestFailed, ConfigError: as `post`.
        """
        try:
            async with self._open().post(self._server.url + path, json=body) as answer:
                if answer.status != 200:
                    raise RequestFailed((await self._refused(answer)).why)
                if answer.content_type != "text/event-stream":
                    whole = await _json(answer)
                    if not isinstance(whole, dict):
                        raise RequestFailed(whole.why)
                    yield whole
                    return
                async for event in _events(answer.content.iter_any()):
                    yield event
        except TimeoutError as error:
            raise RequestFailed(f"no end within {self._server.timeout:g} s") from error
        except aiohttp.ClientError as error:
            raise RequestFailed(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Later:
    """Why an attempt failed, and how many seconds the server asks for."""

    why: str
    after: float = 0.0


async def _json(answer: aiohttp.ClientResponse) -> dict[str, Any] | _Later:
    try:
        body = await answer.json(content_type=None)
    except (ValueError, RecursionError) as error:
        return _Later(f"an answer that is no JSON: {error}")
    return (
        cast(dict[str, Any], body) if isinstance(body, dict) else _Later("an answer of no object")
    )


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The data of server-sent events up to `[DONE]`; comments and other fields are passed over."""
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
                yield _event(event)
    data += [rest[5:].strip()] if rest.startswith(b"data:") else []
    if data and data != [b"[DONE]"]:  # a stream that ends without an empty line
        yield _event(b"\n".join(data))


def _event(text: bytes) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestFailed(f"an event that is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestFailed("an event of no object")
    return cast(dict[str, Any], body)


def _retry_after(header: str | None) -> float:
    try:
        return min(_LONGEST_WAIT, max(0.0, float(header or 0)))
    except ValueError:
        return 0.0  # a date; our own wait will do


def key_headers(variable: str | None) -> dict[str, str]:
    """The header that carries the key of an environment variable.

    Raises:
        ConfigError: it is not set.
    """
    if variable is None:
        return {}
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(f"api_key_env names {variable}, which is not set in the environment")
    return {"Authorization": f"Bearer {key}"}
