"""The servers of a recipe: one, or replicas of one model, with bounded concurrency and retries.

A request goes to the replica with the fewest in flight, and the turns of one conversation stay on
one replica, which has them in its prefix cache. 429, 5xx, timeouts and broken connections are
retried after growing pauses; any other answer is final. A wrong key or address stops the run.

A replica that refuses connections is taken out and probed until it answers, and its requests go to
the others with their seeds. Where no replica is left, all requests wait for the first that answers.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from posttrain.config.backend import Server
from posttrain.errors import ConfigError, PosttrainError
from posttrain.sampling.cancellation import cancel_all, gather_or_cancel
from posttrain.sampling.engines.replica import (
    MAX_RETRY_PAUSE,
    ConnectionBroken,
    ConnectionRefused,
    NoAnswerInTime,
    Replica,
    RequestFailed,
    ServerDown,
    TryAgain,
    UnknownModel,
    key_headers,
    read_events,
    read_object,
)

__all__ = ["Client", "Replica", "RequestFailed", "ServerDown"]

# longest pause between two probes of a server that is down, in seconds
_MAX_PROBE_PAUSE = 5.0
# conversations whose replica is remembered; beyond it the longest unused one is forgotten
_MAX_CONVERSATIONS = 1 << 16


class Client:
    """Client of the servers of one recipe, used from one event loop.

    Args:
        first_wait: seconds before the second attempt, and between the first two probes of a server
            that is down; later pauses grow.
        patience: seconds for a replica to take what another one has taken (`send`).
        on_return: awaited with a replica that is back, before it is sent requests again; while it
            raises a PosttrainError, the replica stays out. Awaited also with a replica that has no
            such model, such as a server that was started again without its adapter.
        check_model: refuse an answer from another model than the request names.
        tell: prints a line about an outage.
    """

    def __init__(
        self,
        server: Server,
        *,
        first_wait: float = 0.5,
        patience: float = 30.0,
        on_return: Callable[[Replica], Awaitable[None]] | None = None,
        check_model: bool = False,
        tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self._server = server
        self._first_wait = first_wait
        self._patience = patience
        self._on_return = on_return
        self._check_model = check_model
        # held while `on_return` runs for a replica that is not out
        self._updating = asyncio.Lock()
        self._tell = tell
        headers = key_headers(server.api_key_env)
        self._replicas = [Replica(url, server, headers=headers) for url in server.urls]
        self._concurrency = asyncio.Semaphore(server.total_concurrency)
        # conversation → replica, the longest unused first
        self._replica_of: OrderedDict[int, Replica] = OrderedDict()
        # set while any replica is available
        self._available = asyncio.Event()
        self._available.set()
        self._outage_start = 0.0
        # reason why a server that answers is not asked
        self._obstacle = ""

    async def close(self) -> None:
        """Close the connections, and end the probes: a replica that is out stays out."""
        probes = [replica.probe for replica in self._replicas if replica.probe is not None]
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        for replica in self._replicas:
            await replica.close()

    async def drop_connections(self) -> None:
        """Close the connections of available replicas, and count an outage from now on.

        Servers drop connections that idle, and the time without requests is no part of an outage.
        """
        self._outage_start = time.monotonic()
        for replica in self._replicas:
            # those of a probe are in use: it wakes when this loop runs again, which is now
            if replica.is_available:
                await replica.close()

    async def models(self) -> list[dict[str, Any]]:
        """Descriptions of all replicas' models; [] where they have no such list."""
        models: list[dict[str, Any]] = []
        for replica_models in await asyncio.gather(
            *(replica.models() for replica in self._replicas)
        ):
            models += replica_models
        return models

    async def post(
        self, path: str, body: Mapping[str, Any], *, key: int, conversation: int | None = None
    ) -> dict[str, Any]:
        """Post a body to a replica, and return its JSON answer.

        Args:
            key: seed of the jitter of the pauses, for example the request's seed.
            conversation: number of the conversation that the request continues, if any.

        Raises:
            RequestFailed: a final refusal of this request, or all attempts used up.
            ConfigError: no request to these servers can succeed.
            ServerDown: all replicas refuse connections for longer than `wait`.
        """
        attempt = 0
        moves = 0
        # replicas that have failed this request
        failed: set[Replica] = set()
        async with self._concurrency:
            while True:
                replica = await self._choose(conversation, avoid=failed)
                updates = replica.updates
                try:
                    async with replica.answer(path, body) as answer:
                        return self._checked(await read_object(answer), body, replica)
                except ConnectionRefused:
                    # this does not count as an attempt: no server received the request
                    self._take_out(replica, "refuses connections")
                except UnknownModel as error:
                    # a replica without the newest adapter; another may have it
                    if self._on_return is not None and self._others(replica):
                        self._take_out(replica, "lacks the model")
                    elif self._on_return is not None and moves < len(self._replicas):
                        moves += 1
                        await self._update(replica, updates, error)
                    else:
                        raise
                except TryAgain as failure:
                    may_move = isinstance(failure, ConnectionBroken) and self._others(replica)
                    if may_move and moves < len(self._replicas) and not await replica.responds():
                        # its server has died: no fault of the request
                        moves += 1
                        self._take_out(replica, "has dropped its connections")
                        continue
                    if conversation is not None:
                        self._replica_of.pop(conversation, None)
                    failed.add(replica)
                    await self._pause(failure, attempt=attempt, key=key)
                    attempt += 1

    def _checked(
        self, answer: dict[str, Any], body: Mapping[str, Any], replica: Replica
    ) -> dict[str, Any]:
        """Return an answer. Raises UnknownModel where it is another model's, if that matters."""
        model = answer.get("model")
        requested_model = body.get("model")
        if self._check_model and model not in (None, requested_model):
            raise UnknownModel(
                f"{replica.url} answers from {model!r} in place of {requested_model}"
            )
        return answer

    async def _update(self, replica: Replica, updates: int, error: UnknownModel) -> None:
        """Bring the last available replica up to date. Raises `error` where that fails.

        Args:
            updates: number of its updates when it was sent the request that failed; nothing is done
                if there has been one since.
        """
        assert self._on_return is not None, "nothing brings a replica up to date"
        async with self._updating:
            if replica.updates == updates:
                try:
                    await self._on_return(replica)
                except PosttrainError:
                    raise error from None
                replica.updates += 1

    async def send(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        wait: bool = True,
        to: Replica | None = None,
    ) -> None:
        """Post to all available replicas; take out those that fail or, without `wait`, raise.

        A server that hangs is waited for one `timeout`. The texts of the answers are ignored. A
        replica that does not take it while another does, or not within `patience` behind it, gets
        no more requests until `on_return` has brought it up to date.

        Args:
            wait: True to wait where all replicas refuse connections; False: none is waited for or
                taken out.
            to: the only replica to send it to, also where it is out.

        Raises:
            RequestFailed, ConfigError, ServerDown: as `post`, where no replica takes it; with
                `wait` False or `to`, where one does not.
        """
        while True:
            replicas = [replica for replica in self._replicas if replica.is_available]
            if to is not None:
                replicas = [to]
            errors = await self._send_to_each(replicas, path, body)
            failures = {replica: error for replica, error in errors.items() if error is not None}
            if replicas and not failures:
                return
            if not wait or to is not None:
                raise next(iter(failures.values()), RequestFailed("all replicas are out"))
            is_taken = len(failures) < len(replicas)
            if is_taken:
                for replica, error in failures.items():
                    self._take_out(replica, f"has missed {path} ({error})")
                return
            for replica, error in failures.items():
                if not isinstance(error, ConnectionRefused):
                    raise error
                self._take_out(replica, "refuses connections")
            await self._wait_for_replica()

    async def _send_to_each(
        self, replicas: Sequence[Replica], path: str, body: Mapping[str, Any]
    ) -> dict[Replica, PosttrainError | None]:
        """Post to replicas; the error of each that does not take the body."""
        sendings = {
            replica: asyncio.ensure_future(self._send(replica, path, body)) for replica in replicas
        }
        pending = set(sendings.values())
        patience: float | None = None
        try:
            while pending:
                done, pending = await asyncio.wait(
                    pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                if any(sending.result() is None for sending in done):
                    patience = self._patience
        finally:
            await cancel_all(pending)
        late = RequestFailed(f"no answer {self._patience:g} s after another replica's")
        return {
            replica: late if sending in pending else sending.result()
            for replica, sending in sendings.items()
        }

    async def _send(
        self, replica: Replica, path: str, body: Mapping[str, Any]
    ) -> PosttrainError | None:
        """Post with retries to one replica; the error where it does not take the body."""
        attempt = 0
        while True:
            try:
                async with replica.answer(path, body):
                    return None
            except NoAnswerInTime as failure:
                # an update is small, and a server that hangs in it hangs in the next one too
                return RequestFailed(f"{replica.url}: {failure}; an update is not tried again")
            except TryAgain as failure:
                try:
                    await self._pause(failure, attempt=attempt, key=0)
                except RequestFailed as error:
                    return error
                attempt += 1
            except PosttrainError as error:
                return error

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """JSON objects of a replica's event stream as they arrive, or that of a plain answer.

        Nothing is retried, because part of the answer may have been shown. Raises the errors of
        `post`.
        """
        replica = min(
            self._replicas,
            key=lambda candidate: (not candidate.is_available, candidate.in_flight),
        )
        async with replica.answer(path, body) as answer:
            async for event in read_events(answer):
                yield event

    # ---- which replica, and when ----

    async def _choose(self, conversation: int | None, *, avoid: Collection[Replica]) -> Replica:
        """Choose the conversation's replica, else the one with the fewest requests in flight.

        Args:
            avoid: replicas to choose only where there is no other: one that fails at once has few
                in flight.
        """
        while not self._available.is_set():
            await self._wait_for_replica()
        replica = self._replica_of.get(conversation) if conversation is not None else None
        if replica is None or not replica.is_available:
            available = [replica for replica in self._replicas if replica.is_available]
            preferred = [candidate for candidate in available if candidate not in avoid]
            replica = min(preferred or available, key=lambda candidate: candidate.in_flight)
        if conversation is not None and len(self._replicas) > 1:
            self._replica_of[conversation] = replica
            self._replica_of.move_to_end(conversation)
            if len(self._replica_of) > _MAX_CONVERSATIONS:
                self._replica_of.popitem(last=False)
        return replica

    def _others(self, replica: Replica) -> Sequence[Replica]:
        """Available replicas beside this one."""
        return [
            candidate
            for candidate in self._replicas
            if candidate.is_available and candidate is not replica
        ]

    def _take_out(self, replica: Replica, reason: str) -> None:
        """Send a replica no more requests until its probe has brought it back."""
        if not replica.is_available:
            return
        replica.probe = asyncio.create_task(self._bring_back(replica))
        available = len(self._others(replica))
        if available:
            self._tell(
                f"{replica.url} {reason}: its requests go to {available} other replica(s) until it "
                "is back"
            )
            return
        self._available.clear()
        self._outage_start = time.monotonic()
        self._tell(
            f"{replica.url} {reason}: waiting up to {self._server.wait:g} s for it to start "
            "(backend.wait)"
        )

    async def _bring_back(self, replica: Replica) -> None:
        """Probe a replica until it answers and is up to date."""
        start = time.monotonic()
        pause = self._first_wait
        # told once, not at every probe
        told_obstacle = ""
        while True:
            await asyncio.sleep(pause)
            pause = min(_MAX_PROBE_PAUSE, pause * 2)
            if not await replica.responds():
                continue
            try:
                if self._on_return is not None:
                    await self._on_return(replica)
            except PosttrainError as error:
                self._obstacle = f"{replica.url} answers again, and is not asked: {error}"
                if self._obstacle != told_obstacle:
                    told_obstacle = self._obstacle
                    self._tell(told_obstacle)
                continue
            break
        self._obstacle = ""
        replica.probe = None
        self._available.set()
        self._tell(f"{replica.url} answers again after {time.monotonic() - start:.0f} s")

    async def _wait_for_replica(self) -> None:
        """Wait until a replica is available; ServerDown once the outage is longer than `wait`."""
        limit = self._server.wait
        remaining = limit - (time.monotonic() - self._outage_start)
        try:
            await asyncio.wait_for(self._available.wait(), max(0.0, remaining))
        except TimeoutError:
            outage = self._obstacle or f"{self._server.addresses} refused connections"
            raise ServerDown(f"{outage} for {limit:g} s (backend.wait)") from None

    async def _pause(self, failure: TryAgain, *, attempt: int, key: int) -> None:
        """Sleep before the next attempt, or raise RequestFailed if there is none.

        Args:
            attempt: number of the attempt that failed, from 0.
            key: seed of the jitter.
        """
        attempts = self._server.retries + 1
        if attempt == attempts - 1:
            raise RequestFailed(f"{failure}, {attempts} attempts") from failure
        jitter = random.Random(key + attempt).random()
        pause = min(MAX_RETRY_PAUSE, self._first_wait * 2**attempt)
        # Retry-After of the server is the lower bound
        await asyncio.sleep(max(failure.after, pause * (0.5 + jitter / 2)))


async def wait_for_servers(
    key: str,
    server: Server,
    *,
    first_wait: float = 0.5,
    tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> None:
    """Wait until all replicas have started, before hours of work depend on them.

    Args:
        key: recipe key of the server's block.
        first_wait: seconds between the first two probes of a replica; later pauses grow.
        tell: prints a line about a replica that is waited for.

    Raises:
        ConfigError: a replica has not started within `wait`, refuses the key, or lists its models
            and lacks this one.
    """
    headers = key_headers(server.api_key_env)
    await gather_or_cancel(
        _wait_for_start(Replica(url, server, headers=headers), key, server, first_wait, tell)
        for url in server.urls
    )


async def _wait_for_start(
    replica: Replica, key: str, server: Server, first_wait: float, tell: Callable[[str], None]
) -> None:
    """Probe one replica until it has started."""
    end = time.monotonic() + server.wait
    pause = first_wait
    is_told = False
    try:
        while not await replica.has_started(server.model):
            remaining = end - time.monotonic()
            if remaining <= 0:
                raise ConfigError(
                    f"nothing answers there for {server.wait:g} s ({key}.wait): start the server, "
                    "or correct the address; the same command then goes on"
                )
            if not is_told:
                is_told = True
                tell(
                    f"{replica.url} does not answer: waiting up to {server.wait:g} s for it to "
                    f"start ({key}.wait)"
                )
            await asyncio.sleep(min(pause, remaining))
            pause = min(_MAX_PROBE_PAUSE, pause * 2)
    except ConfigError as error:
        raise ConfigError(f"{key}.url {replica.url}: {error}") from error
    finally:
        await replica.close()
