"""One server: JSON over HTTP, with timeouts, and the errors that its answers are raised as."""

from __future__ import annotations

import json
import os
from asyncio import Semaphore, Task
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp

from posttrain.config.backend import Server
from posttrain.errors import ConfigError, PosttrainError

# in seconds
MAX_RETRY_PAUSE = 60.0
_PROBE_TIMEOUT = 10.0
# a machine that is switched off does not refuse a connection, it never answers
_CONNECT_TIMEOUT = 30.0
# statuses of a proxy whose server has not started yet
_STARTING = (502, 503, 504)
_HOPELESS = {401: "refuses the key", 403: "refuses the key", 404: "has no such address or model"}
# characters of a server's answer in a message
_SHOWN_CHARACTERS = 300
# models of a server's list in a message
_SHOWN_MODELS = 8
# longest event of a stream; a longer one is no answer, and would fill the memory
_MAX_EVENT_BYTES = 1 << 23


class RequestFailed(PosttrainError):
    """A request got no usable answer; others may get one."""


class ServerDown(PosttrainError):
    """No server was available for longer than the recipe waits: no request can succeed."""


class ConnectionRefused(RequestFailed):
    """Nothing listens at the address, so that no server has received the request."""


class TryAgain(RequestFailed):
    """A failed attempt worth a retry, not before `after` seconds if the server said so."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


class ConnectionBroken(TryAgain):
    """A connection that ended before the answer, as when its server dies."""


class NoAnswerInTime(TryAgain):
    """An attempt without an answer within `timeout`."""


class UnknownModel(ConfigError):
    """The server has no such address or model, or answers from another model."""


class Replica:
    """One server at one address, used from one event loop.

    Attributes:
        url: Address of the server.
        in_flight: Number of requests that it was sent or that wait to be sent to it.
        probe: Task that waits for the server to return; None while it is available.
        updates: Number of times that it was brought up to date while it was available.
    """

    def __init__(self, url: str, server: Server, *, headers: Mapping[str, str]) -> None:
        self.url = url
        self.in_flight = 0
        self.probe: Task[None] | None = None
        self.updates = 0
        self._concurrency = server.concurrency
        self._timeout = server.timeout
        self._headers = headers
        self._semaphore = Semaphore(server.concurrency)
        self._session: aiohttp.ClientSession | None = None

    @property
    def is_available(self) -> bool:
        """True where requests may be sent to it."""
        return self.probe is None

    async def close(self) -> None:
        """Close the connections; they are opened again when they are needed."""
        session = self._session
        self._session = None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        """Open the session on first use, so that it belongs to the running event loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._concurrency),
                timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=_CONNECT_TIMEOUT),
                headers=self._headers,
            )
        return self._session

    async def models(self) -> list[dict[str, Any]]:
        """Descriptions of the server's models; [] where it has no such list."""
        try:
            async with self._open().get(self.url + "/models") as answer:
                body = _object(await answer.read(), RequestFailed) if answer.status == 200 else {}
        except (TimeoutError, aiohttp.ClientError, RequestFailed):
            return []
        models = body.get("data")
        if not isinstance(models, list):
            return []
        return [model for model in cast(list[Any], models) if isinstance(model, dict)]

    async def responds(self) -> bool:
        """True where a server listens and has started."""
        return await self._probe() is not None

    async def has_started(self, model: str) -> bool:
        """True where a server listens and has started.

        Raises:
            ConfigError: it refuses the key, or lists its models and has none of this name.
        """
        status = await self._probe()
        if status is None:
            return False
        if status in (401, 403):
            raise ConfigError(f"it {_HOPELESS[status]} (status {status})")
        names = [str(served.get("id")) for served in await self.models()]
        if names and model not in names:
            listed = ", ".join(names[:_SHOWN_MODELS])
            raise ConfigError(f"it has no model {model!r}; it lists {listed}")
        return True

    async def _probe(self) -> int | None:
        """Status of the answer about its models; None where no server listens or has started."""
        timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT)
        try:
            async with self._open().get(self.url + "/models", timeout=timeout) as answer:
                return None if answer.status in _STARTING else answer.status
        except (TimeoutError, aiohttp.ClientError):
            return None

    @asynccontextmanager
    async def answer(
        self, path: str, body: Mapping[str, Any]
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Post a body; yields the answer with status 200, to be read inside of the context.

        Raises:
            RequestFailed: a final refusal of this request.
            ConfigError: no request to this server can succeed.
            TryAgain: a retry may help.
            ConnectionRefused: nothing listens at the address.
        """
        self.in_flight += 1
        try:
            async with self._semaphore, self._open().post(self.url + path, json=body) as answer:
                if answer.status != 200:
                    text = f"status {answer.status}: {await answer.text(errors='replace')}"
                    text = text[:_SHOWN_CHARACTERS]
                    if answer.status in (408, 429) or answer.status >= 500:
                        raise TryAgain(text, _retry_after(answer.headers.get("Retry-After")))
                    if answer.status in _HOPELESS:
                        kind = UnknownModel if answer.status == 404 else ConfigError
                        raise kind(f"{self.url} {_HOPELESS[answer.status]} ({text})")
                    raise RequestFailed(text)
                yield answer
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ConnectionRefused(f"{type(error).__name__}: {error}") from error
        except TimeoutError as error:
            raise NoAnswerInTime(f"no answer within {self._timeout:g} s") from error
        except aiohttp.ClientError as error:
            raise ConnectionBroken(f"{type(error).__name__}: {error}") from error
        finally:
            self.in_flight -= 1


async def read_object(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """Read the JSON object of an answer. Raises TryAgain for anything else."""
    return _object(await answer.read(), TryAgain)


async def read_events(answer: aiohttp.ClientResponse) -> AsyncGenerator[dict[str, Any]]:
    """Read the JSON objects of an event stream as they arrive, or that of a plain answer."""
    if answer.content_type != "text/event-stream":
        yield await read_object(answer)
        return
    async for event in _events(answer.content.iter_any()):
        yield event


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
                text = line[5:].strip()
                # an empty one keeps a proxy from closing the stream
                if text:
                    data.append(text)
            elif not line and data:
                event = b"\n".join(data)
                data = []
                if event == b"[DONE]":
                    return
                yield _object(event, RequestFailed)
    if incomplete_line.startswith(b"data:"):
        data.append(incomplete_line[5:].strip())
    # a stream that ends without an empty line
    if data and data != [b"[DONE]"]:
        yield _object(b"\n".join(data), RequestFailed)


def _retry_after(header: str | None) -> float:
    """Seconds of a Retry-After header, 0 for none."""
    try:
        return min(MAX_RETRY_PAUSE, max(0.0, float(header or 0)))
    except ValueError:
        # a date: the growing pauses do without it
        return 0.0


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
