"""Several servers of one model: shared load, one conversation on one server, and one that dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from posttrain.config.backend import ChatBackend
from posttrain.config.load import validate
from posttrain.errors import ConfigError
from posttrain.rollouts import Parameters
from posttrain.sampling.engines.http import Client, Replica, RequestFailed, ServerDown
from posttrain.sampling.engines.vllm import CompletionsEngine
from posttrain.sampling.sampler import EngineOutput, EngineRequest
from tests.sampling.stub_server import END, Stub
from tests.sampling.test_endpoint import free_port

Return = Callable[[Replica], Awaitable[None]]


def client_of(
    *urls: str,
    on_return: Return | None = None,
    lines: list[str] | None = None,
    check_model: bool = False,
    patience: float = 30.0,
    **keys: Any,
) -> Client:
    reached = {"concurrency": 4, "timeout": 30.0, "retries": 0, "wait": 30.0} | keys
    backend = ChatBackend(kind="chat", url=urls, model="m", **reached)
    tell = (lambda line: None) if lines is None else lines.append
    return Client(
        backend,
        first_wait=0.001,
        patience=patience,
        on_return=on_return,
        check_model=check_model,
        tell=tell,
    )


def request(k: int, conversation: int | None = None) -> EngineRequest:
    parameters = Parameters(max_tokens=20)
    return EngineRequest((1, 20 + k), parameters, k, (END,), conversation=conversation)


async def generate(client: Client, requests: list[EngineRequest]) -> list[EngineOutput]:
    return await CompletionsEngine(client, model="m", identity={}).generate(requests)


class Dying(Stub):
    """Answers eight requests, and no other before it dies."""

    def __init__(self) -> None:
        super().__init__(lambda _body, _again: "hang" if len(self.bodies) > 8 else None)

    async def die(self) -> None:
        """Listen no more, and cut the connections in the middle of their answers."""
        for site in list(self._runner.sites):
            await site.stop()
        assert self._runner.server is not None
        for handler in self._runner.server.connections:
            assert handler.transport is not None
            handler.transport.abort()


def seeds(stub: Stub) -> list[int]:
    return [body["seed"] for body in stub.bodies]


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def alone(requests: list[EngineRequest]) -> list[EngineOutput]:
    async with Stub() as stub:
        client = client_of(stub.url)
        outputs = await generate(client, requests)
        await client.close()
        return outputs


def test_requests_go_to_the_replica_with_the_fewest_in_flight():
    """Answers wait until each has its full number of requests, so that both must be used."""

    async def both():
        async with Stub(gate=4) as first, Stub(gate=4) as second:
            client = client_of(first.url, second.url)
            outputs = await generate(client, [request(k) for k in range(40)])
            await client.close()
            return outputs, first, second

    outputs, first, second = run(both())
    assert outputs == run(alone([request(k) for k in range(40)]))
    assert first.most == second.most == 4
    assert sorted(seeds(first) + seeds(second)) == list(range(40))


def test_turns_of_a_conversation_stay_on_one_replica():
    async def turns():
        async with Stub() as first, Stub() as second:
            client = client_of(first.url, second.url)
            for turn in range(3):
                await generate(client, [request(10 * turn + c, conversation=c) for c in range(8)])
            await client.close()
            return first, second

    stubs = run(turns())
    for conversation in range(8):
        asked = [sum(seed % 10 == conversation for seed in seeds(stub)) for stub in stubs]
        assert sorted(asked) == [0, 3]
    assert all(len(stub.bodies) == 12 for stub in stubs)


def test_a_replica_that_dies_loses_nothing_and_repeats_what_was_in_flight_alone():
    lines: list[str] = []
    requests = [request(k, conversation=k) for k in range(60)]

    async def killed():
        async with Stub() as survivor, Dying() as dying:
            client = client_of(survivor.url, dying.url, lines=lines)
            sampled = asyncio.ensure_future(generate(client, requests))
            while len(dying.bodies) < 12:
                await asyncio.sleep(0)
            port = int(dying.url.split(":")[2].removesuffix("/v1"))
            hanging = seeds(dying)[8:]
            await dying.die()
            outputs = await sampled
            before = len(survivor.bodies)
            restarted = Stub()
            restarted.port = port
            async with restarted:
                while not any("answers again" in line for line in lines):
                    await asyncio.sleep(0)
                await generate(client, [request(100 + k) for k in range(10)])
            await client.close()
            return outputs, seeds(dying), hanging, seeds(survivor)[:before], seeds(restarted)

    outputs, of_dying, hanging, of_survivor, of_restarted = run(killed())
    assert outputs == run(alone(requests))
    assert len(hanging) == 4
    answered = [seed for seed in of_dying if seed not in hanging]
    assert sorted(answered + of_survivor) == list(range(60))
    assert "its requests go to 1 other replica(s)" in lines[0]
    assert "answers again" in lines[1]
    assert of_restarted, "a replica that is back is asked again"


def test_without_any_replica_requests_wait_as_for_one_server():
    lines: list[str] = []
    urls = [f"http://127.0.0.1:{free_port()}/v1" for _ in range(2)]

    async def down():
        client = client_of(*urls, lines=lines, wait=0.02)
        try:
            await generate(client, [request(k) for k in range(8)])
        finally:
            await client.close()

    with pytest.raises(ServerDown, match=r"/v1, http.* refused connections for 0\.02 s"):
        run(down())
    assert len(lines) == 2


def test_a_replica_that_misses_an_update_is_not_asked_until_it_is_brought_up_to_date():
    returned: list[str] = []

    async def updated():
        ready = asyncio.Event()

        async def bring_up_to_date(replica: Replica) -> None:
            if not ready.is_set():
                raise RequestFailed("still without the adapter")
            returned.append(replica.url)

        def refuses_orders(body: dict[str, Any], _: int) -> int | None:
            return 400 if "order" in body else None

        async with Stub() as first, Stub(refuses_orders) as second:
            client = client_of(first.url, second.url, on_return=bring_up_to_date)
            order = {"order": 1, "messages": [{"content": "load"}], "seed": -1}
            await client.send("/chat/completions", order)
            await generate(client, [request(k) for k in range(8)])
            missed = seeds(second)
            ready.set()
            while not returned:
                await asyncio.sleep(0)
            await generate(client, [request(8 + k) for k in range(8)])
            await client.close()
            return missed, seeds(second), second.url

    missed, later, url = run(updated())
    assert missed == [-1]
    assert len(later) > 1
    assert returned == [url]


def test_a_replica_that_hangs_in_an_update_does_not_hold_up_the_others():
    lines: list[str] = []

    async def updated():
        async with Stub() as first, Stub(lambda *_: "hang") as second:
            client = client_of(first.url, second.url, lines=lines, patience=0.01)
            await client.send("/chat/completions", {"messages": [{"content": "load"}], "seed": -1})
            outputs = await generate(client, [request(k) for k in range(8)])
            await client.close()
            return outputs, seeds(second)

    assert run(updated()) == (run(alone([request(k) for k in range(8)])), [-1])
    assert "has missed /chat/completions (no answer 0.01 s after another replica's)" in lines[0]


def test_a_lone_server_that_hangs_in_an_update_is_asked_once():
    async def updated():
        async with Stub(lambda *_: "hang") as stub:
            client = client_of(stub.url, timeout=0.05, retries=3)
            try:
                await client.send("/chat/completions", {"messages": [], "seed": -1})
            except RequestFailed as error:
                return stub.url, str(error), seeds(stub)
            finally:
                await client.close()

    url, message, asked = run(updated())
    assert message == f"{url}: no answer within 0.05 s; an update is not tried again"
    assert asked == [-1]


def test_a_replica_returns_although_connections_are_dropped_at_the_start_of_every_step():
    """A probe that wakes with the step was cut off by it, in every step of some length."""
    returned: list[str] = []

    async def updated():
        async def note(replica: Replica) -> None:
            returned.append(replica.url)

        async with Stub() as first, Stub(lambda _body, _again: 400) as second:
            client = client_of(first.url, second.url, on_return=note)
            order = {"order": 1, "messages": [{"content": "load"}], "seed": -1}
            await client.send("/chat/completions", order)
            for _ in range(2000):
                await client.drop_connections()
                await asyncio.sleep(0)
            await client.close()
            return second.url

    url = run(updated())
    assert returned == [url]


def test_a_server_that_is_back_and_may_not_be_asked_is_said_to_be_so():
    """As a server of weights that was started again in the middle of a step."""
    lines: list[str] = []

    async def refuse(_: Replica) -> None:
        raise RequestFailed("it has other weights")

    async def restarted():
        async with Dying() as dying:
            client = client_of(dying.url, on_return=refuse, lines=lines, wait=0.5, retries=3)
            sampled = asyncio.ensure_future(generate(client, [request(k) for k in range(12)]))
            while len(dying.bodies) < 12:
                await asyncio.sleep(0)
            await dying.die()
            while not lines:  # until it is seen to refuse connections
                await asyncio.sleep(0)
            back = Stub()
            back.port = int(dying.url.split(":")[2].removesuffix("/v1"))
            async with back:
                try:
                    await sampled
                finally:
                    await client.close()
                    assert back.bodies == []

    with pytest.raises(ServerDown, match=r"is not asked: it has other weights for 0\.5 s"):
        run(restarted())
    assert sum("is not asked" in line for line in lines) == 1


def test_an_update_that_no_replica_takes_is_an_error():
    async def refused():
        async with Stub(lambda *_: 400) as first, Stub(lambda *_: 400) as second:
            client = client_of(first.url, second.url)
            try:
                await client.send("/chat/completions", {"messages": [], "seed": 0})
            finally:
                await client.close()

    with pytest.raises(RequestFailed, match="status 400"):
        run(refused())


def test_addresses_are_checked_one_by_one():
    fields = {"kind": "chat", "url": ["http://a/v1/", "http://b/v1"], "model": "m"}
    backend = validate(fields, ChatBackend, where="test")
    assert backend.urls == ("http://a/v1", "http://b/v1")
    assert backend.total_concurrency == 2 * backend.concurrency
    with pytest.raises(ValueError, match="name an address"):
        ChatBackend(kind="chat", url=(), model="m")
    for other in ("http://a/v1//", "http://A/v1", "http://a:80/v1"):
        with pytest.raises(ValueError, match="listed twice"):
            ChatBackend(kind="chat", url=("http://a/v1", other), model="m")
    for other in ("b", "http://a/v1 ", "http://a b/v1"):
        with pytest.raises(ValueError, match="is no address"):
            ChatBackend(kind="chat", url=("http://a", other), model="m")
    assert ChatBackend(kind="chat", url=("http://a", "https://a"), model="m")


def test_a_model_that_no_replica_knows_stops_the_run():
    async def unknown():
        async def nothing(_: Replica) -> None:
            raise RequestFailed("no adapter")

        async with Stub(lambda *_: 404) as first, Stub(lambda *_: 404) as second:
            client = client_of(first.url, second.url, on_return=nothing)
            try:
                await generate(client, [request(0)])
            finally:
                await client.close()

    with pytest.raises(ConfigError, match="404"):
        run(unknown())


@pytest.mark.parametrize("replicas", [1, 2])
def test_servers_that_have_all_lost_the_adapter_are_given_it_again(replicas: int):
    """Restarted between the load and the first request, too fast to be seen to be away."""
    loaded: list[str] = []

    async def restarted():
        async with Stub() as first, Stub() as second:
            stubs = [first, second][:replicas]
            for stub in stubs:
                stub.trouble = lambda *_, url=stub.url: None if url in loaded else 404

            async def load(replica: Replica) -> None:
                loaded.append(replica.url)

            client = client_of(*(stub.url for stub in stubs), on_return=load)
            outputs = await generate(client, [request(k) for k in range(20)])
            await client.close()
            return outputs

    assert run(restarted()) == run(alone([request(k) for k in range(20)]))
    assert loaded


class Named(Stub):
    """Names the model of its answers, another one until it is brought up to date."""

    model = "old"

    async def completions(self, request: web.Request) -> web.StreamResponse:
        answer: Any = await super().completions(request)
        return web.json_response(json.loads(answer.text) | {"model": self.model})


@pytest.mark.parametrize("is_updated", [True, False])
def test_answers_from_other_weights_are_not_taken(is_updated: bool):
    async def stale():
        async with Named() as stub:

            async def load(_: Replica) -> None:
                if is_updated:
                    stub.model = "m"

            client = client_of(stub.url, on_return=load, check_model=True)
            try:
                outputs = await generate(client, [request(k) for k in range(8)])
                return outputs, stub.model
            finally:
                await client.close()

    if is_updated:
        assert run(stale()) == (run(alone([request(k) for k in range(8)])), "m")
    else:
        with pytest.raises(ConfigError, match="answers from 'old' in place of m"):
            run(stale())


def test_a_replica_that_fails_at_once_does_not_draw_all_attempts_to_itself():
    async def broken():
        async with Stub() as healthy, Stub(lambda *_: 500) as first, Stub(lambda *_: 503) as second:
            client = client_of(first.url, second.url, healthy.url, retries=2)
            outputs = await generate(client, [request(k) for k in range(40)])
            await client.close()
            return outputs

    assert run(broken()) == run(alone([request(k) for k in range(40)]))
