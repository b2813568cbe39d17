"""Servers: nothing lost, bounded and full concurrency, no second try where none can help."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from posttrain.config.backend import ChatBackend
from posttrain.errors import ConfigError
from posttrain.rollouts import Parameters
from posttrain.sampling.engines.http import (
    Client,
    RequestFailed,
    ServerDown,
    wait_for_servers,
)
from posttrain.sampling.engines.vllm import CompletionsEngine
from posttrain.sampling.sampler import Budget, EngineRequest
from tests.sampling.stub_server import CLOSE, END, Stub


def client_of(url: str, **more: Any) -> Client:
    reached = {"concurrency": 8, "timeout": 30.0, "retries": 3} | more
    return Client(backend(url=url, **reached), first_wait=0.001)


def backend(url: str = "http://unused", **more: Any) -> ChatBackend:
    return ChatBackend(kind="chat", url=url, model="m", **more)


def engine_request(k: int, **more: Any) -> EngineRequest:
    fields = {"parameters": Parameters(max_tokens=20), "seed": k, "stop_ids": (END,)}
    return EngineRequest(ids=(1, 20 + k), **fields | more)


async def generate(stub: Stub, requests: list[EngineRequest], **more: Any):
    client = client_of(stub.url, **more)
    try:
        engine = CompletionsEngine(client, model="m", identity={})
        return await engine.generate(requests), stub.asked
    finally:
        await client.close()


def test_ten_per_cent_errors_lose_nothing_and_change_nothing():
    def trouble(body: dict[str, Any], again: int):
        kinds = (429, 500, 503, "cut", "deep")
        return kinds[body["seed"] // 10 % 5] if body["seed"] % 10 == 0 and not again else None

    async def both():
        requests = [engine_request(k) for k in range(200)]
        async with Stub(gate=8) as quiet, Stub(trouble) as bad:
            # answers wait until 8 requests are under way: with fewer it would never end
            undisturbed, _ = await generate(quiet, requests)
            assert quiet.most == 8
            return undisturbed, *(await generate(bad, requests))

    undisturbed, found, tries = asyncio.run(asyncio.wait_for(both(), 60))
    assert found == undisturbed
    assert [o.error for o in found] == [None] * 200
    assert len({o.ids for o in found}) == 200
    assert sorted(tries.values()) == [1] * 180 + [2] * 20


def test_a_hanging_answer_is_given_up_and_asked_again():
    async def run():
        hang_once = lambda body, again: "hang" if body["seed"] == 3 and not again else None  # noqa: E731  # one line says it
        async with Stub(hang_once) as stub:
            return await generate(stub, [engine_request(k) for k in range(6)], timeout=0.5)

    outputs, tries = asyncio.run(run())
    assert all(output.error is None for output in outputs)
    assert sorted(tries.values()) == [1] * 5 + [2]


@pytest.mark.parametrize(("status", "tries"), [(400, 1), (500, 3)])
def test_a_refusal_is_an_error_of_its_request_alone_and_is_asked_again_where_that_can_help(
    status: int, tries: int
):
    async def run():
        async with Stub(lambda body, _: status if body["seed"] == 1 else None) as stub:
            requests = [engine_request(k) for k in range(3)]
            return await generate(stub, requests, retries=2)

    outputs, asked = asyncio.run(run())
    assert [bool(o.error) for o in outputs] == [False, True, False]
    assert f"status {status}" in (outputs[1].error or "")
    assert sorted(asked.values()) == [1, 1, tries]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_server_that_starts_late_is_waited_for_by_one_probe():
    port, lines, stub = free_port(), [], Stub()
    client = Client(
        backend(url=f"http://127.0.0.1:{port}/v1", retries=0, concurrency=8, wait=30),
        first_wait=0.001,
        tell=lines.append,
    )

    async def run():
        engine = CompletionsEngine(client, model="m", identity={})
        sampled = asyncio.ensure_future(engine.generate([engine_request(k) for k in range(20)]))
        while not lines:  # until the first request was refused
            await asyncio.sleep(0)
        stub.port = port
        async with stub:
            outputs = await sampled
            await client.close()
            return outputs

    outputs = asyncio.run(asyncio.wait_for(run(), 60))
    assert [output.error for output in outputs] == [None] * 20
    assert sorted(stub.asked.values()) == [1] * 20
    assert len(lines) == 2, "one probe tells that it waits, and that it waits no longer"
    assert "waiting up to 30 s" in lines[0]
    assert "answers again" in lines[1]


def test_a_server_that_stays_away_ends_all_requests_together():
    lines: list[str] = []
    reached = backend(url=f"http://127.0.0.1:{free_port()}/v1", concurrency=8, wait=0.02)
    client = Client(reached, first_wait=0.005, tell=lines.append)

    async def run():
        engine = CompletionsEngine(client, model="m", identity={})
        try:
            await engine.generate([engine_request(k) for k in range(20)])
        finally:
            await client.close()

    with pytest.raises(ServerDown, match=r"refused connections for 0\.02 s \(backend\.wait\)"):
        asyncio.run(run())
    assert len(lines) == 1


@pytest.mark.parametrize("loading", ["refuses", "answers 503"])
def test_before_a_run_a_server_that_loads_is_waited_for(loading: str):
    lines: list[str] = []
    asked = []

    async def run() -> None:
        stub = Stub()
        stub.port = free_port()

        def starting() -> int | None:
            asked.append(1)
            return 503 if loading == "answers 503" and len(asked) < 4 else None

        stub.models_trouble = starting
        url = f"http://127.0.0.1:{stub.port}/v1"
        waiting = asyncio.ensure_future(
            wait_for_servers(
                "teachers.t.server", backend(url, wait=30), first_wait=0.001, tell=lines.append
            )
        )
        while loading == "refuses" and not lines:
            await asyncio.sleep(0)
        async with stub:
            await waiting

    asyncio.run(asyncio.wait_for(run(), 60))
    assert asked
    assert len(lines) == 1
    assert lines[0].endswith("waiting up to 30 s for it to start (teachers.t.server.wait)")


def test_before_a_run_no_server_is_waited_for_longer_than_the_recipe_says():
    url = f"http://127.0.0.1:{free_port()}/v1"
    lines: list[str] = []
    waiting = wait_for_servers("a.server", backend(url, wait=0.02), tell=lines.append)
    with pytest.raises(
        ConfigError, match=rf"^a\.server\.url {url}: nothing .* for 0\.02 s \(a\.server\.wait\)"
    ):
        asyncio.run(waiting)
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("status", "model", "message"),
    [
        (401, "m", r"it refuses the key \(status 401\)"),
        (403, "m", r"it refuses the key \(status 403\)"),
        (None, "n", "it has no model 'n'; it lists m"),
        # a server without a list
        (404, "n", None),
    ],
)
def test_before_a_run_what_no_waiting_mends_is_refused_at_once(
    status: int | None, model: str, message: str | None
):
    def never(line: str) -> None:
        raise AssertionError(f"waited: {line}")

    async def run() -> None:
        async with Stub() as stub:
            stub.models_trouble = lambda: status
            server = backend(stub.url).model_copy(update={"model": model})
            await wait_for_servers("a.server", server, tell=never)

    if message is None:
        asyncio.run(run())
        return
    with pytest.raises(ConfigError, match=rf"^a\.server\.url http\S+: {message}"):
        asyncio.run(run())


def test_an_order_to_a_server_is_given_again_and_a_server_that_starts_is_waited_for():
    """As loading an adapter is, behind a proxy and before a server is there."""
    port, lines = free_port(), []
    stub = Stub(lambda _body, again: (429, 500, None)[again])
    client = Client(
        backend(url=f"http://127.0.0.1:{port}/v1", retries=2, wait=30),
        first_wait=0.001,
        tell=lines.append,
    )

    async def run():
        with pytest.raises(RequestFailed, match="Connect"):
            await client.send("/chat/completions", {}, wait=False)
        assert not lines
        order = {"messages": [{"content": "load"}], "seed": 0}
        sent = asyncio.ensure_future(client.send("/chat/completions", order))
        while not lines:
            await asyncio.sleep(0)
        stub.port = port
        async with stub:
            await sent
            await client.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert list(stub.asked.values()) == [3]


def test_what_no_request_can_cure_stops_the_run():
    async def run():
        for status in (401, 403, 404):
            async with Stub(lambda *_, status=status: status) as stub:
                with pytest.raises(ConfigError, match=str(status)):
                    await generate(stub, [engine_request(0)])

    asyncio.run(run())


def test_the_key_comes_from_the_environment_and_is_in_no_message(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOME_KEY", "s3cret")

    async def run():
        async with Stub(lambda body, _: 400 if body["seed"] == 1 else None) as stub:
            outputs, _ = await generate(
                stub, [engine_request(k) for k in range(2)], api_key_env="SOME_KEY"
            )
            return outputs, stub.headers

    outputs, headers = asyncio.run(run())
    assert all(h["Authorization"] == "Bearer s3cret" for h in headers)
    assert "s3cret" not in repr(outputs)
    monkeypatch.delenv("SOME_KEY")
    with pytest.raises(ConfigError, match="SOME_KEY, which is not set"):
        client_of("http://x", api_key_env="SOME_KEY")


GIVEN = {"token_ids": [9, END], "finish_reason": "stop", "logprobs": {"token_logprobs": [-1, -0.5]}}
READ: dict[str, tuple[dict[str, Any], str]] = {
    "as vLLM writes it": ({}, "stop"),
    "no reason, a stop token": ({"finish_reason": None}, "stop"),
    "no reason, at the limit": ({"finish_reason": None, "token_ids": [9, 8]}, "length"),
    "cut by the length of the context": (
        {"finish_reason": "length", "token_ids": [9, 8]},
        "length",
    ),
}
FAILED: dict[str, Any] = {
    "no choice": [],
    "a choice that is text": ["x"],
    "null ids": [GIVEN | {"token_ids": None}],
    "ids as text": [GIVEN | {"token_ids": "92"}],
    "an id as text": [GIVEN | {"token_ids": [9, "2"]}],
    "a negative id": [GIVEN | {"token_ids": [-1, END]}],
    "more ids than asked for": [GIVEN | {"token_ids": [9, 9, END]}],
    "stopped before the limit, nobody knows why": [GIVEN | {"finish_reason": None, "token_ids": [9]}],
    "stopped by a filter": [GIVEN | {"finish_reason": "content_filter", "token_ids": [9, 8]}],
    "a reason that is a list": [GIVEN | {"finish_reason": ["\ud800"], "token_ids": [9]}],
    "one too few": [GIVEN | {"logprobs": {"token_logprobs": [-1]}}],
    "one that is null": [GIVEN | {"logprobs": {"token_logprobs": [None, -1]}}],
    "one that is no number": [GIVEN | {"logprobs": {"token_logprobs": [float("nan"), -1]}}],
}  # fmt: skip


def test_odd_answers_with_ids_are_read_or_fail_alone():
    bodies = [{"choices": [GIVEN]}]
    bodies += [{"choices": [GIVEN | more]} for more, _ in READ.values()]
    bodies += [{"choices": choices} for choices in FAILED.values()]
    bodies += [{"error": {"message": "overloaded"}}, {"choices": "x"}]

    async def run(bodies: list[Any]):
        client = client_of("http://unused")
        replies = iter(bodies)

        async def post(*_: Any, **__: Any) -> dict[str, Any]:
            return next(replies)

        client.post = post
        engine = CompletionsEngine(client, model="m", identity={})
        wanted = {"parameters": Parameters(max_tokens=2, logps=True)}
        return await engine.generate([engine_request(k, **wanted) for k in range(len(bodies))])

    with pytest.raises(ConfigError, match="token ids"):  # a server that never gives them
        asyncio.run(run([{"choices": [{"text": "x", "finish_reason": "stop"}]}]))
    outputs = asyncio.run(run(bodies))
    read, failed = outputs[1 : 1 + len(READ)], outputs[1 + len(READ) :]
    assert [(o.finish, o.error) for o in read] == [(finish, None) for _, finish in READ.values()]
    assert [o.error is None for o in failed] == [False] * len(failed)
    for output in failed:
        (output.error or "").encode()


def test_a_budget_closes_reasoning_after_exactly_so_many_tokens():
    budget = Budget(tokens=3, close_id=CLOSE, closing=lambda ids: (5, CLOSE))
    asked = [engine_request(0, budget=budget, parameters=Parameters(max_tokens=20, logps=True))]

    async def run():
        async with Stub(length=6) as stub:
            outputs, _ = await generate(stub, asked)
            return outputs[0], stub.bodies

    output, bodies = asyncio.run(run())
    assert output.forced == (3, 5)
    assert output.ids[3:5] == (5, CLOSE)
    assert len(output.ids) == 3 + 2 + 6 + 1
    assert output.finish == "stop"
    assert output.logps is not None
    assert output.logps[3:5] == (0.0, 0.0)
    assert len(output.logps) == len(output.ids)
    assert bodies[0]["max_tokens"] == 3
    assert bodies[0]["stop_token_ids"] == [END, CLOSE]
    assert bodies[1]["prompt"] == [1, 20, *output.ids[:5]]
    assert bodies[1]["max_tokens"] == 15
