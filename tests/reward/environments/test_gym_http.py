"""A resources server of NeMo Gym's contract, here: sessions, tools, rewards, and its failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from data_builders.prompts.questions import READERS, RowProblem
from posttrain.config.load import validate
from posttrain.config.prompts import EnvironmentPrompts
from posttrain.errors import DataError
from posttrain.records import Score
from posttrain.rollouts import Prompt
from reward.environments.base import Script, admit, calls, replay, says
from reward.environments.gym_http import GymHttpEnvironment, gym_http_row, response_of

ENVIRONMENT = GymHttpEnvironment()
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
Result = TypeVar("Result")


class Server:
    """Adds in a session; pays for the total, or for the answer, as the row says."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self.bodies: list[dict[str, Any]] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/seed_session", self.seed)
        app.router.add_post("/add", self.add)
        app.router.add_post("/verify", self.verify)
        return app

    async def seed(self, request: web.Request) -> web.Response:
        key = f"s{len(self.totals)}"
        self.totals[key] = (await request.json()).get("start", 0)
        answer = web.json_response({})
        answer.set_cookie("session", key)
        return answer

    async def add(self, request: web.Request) -> web.Response:
        given = await request.json()
        if "by" not in given:
            return web.json_response({"detail": "by is missing"}, status=422)
        key = request.cookies["session"]
        self.totals[key] += given["by"]
        return web.json_response({"total": self.totals[key]})

    async def verify(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        if special := body.get("answers", {}).get(body["response"]["output"][-1].get("status")):
            return web.json_response(special[1], status=special[0])
        if "target" in body:
            right = self.totals[request.cookies["session"]] == body["target"]
        else:
            text = body["response"]["output"][-1]["content"][0]["text"]
            right = body["expected"] in (text, "anything")
        return web.json_response(body | {"reward": float(right)})


def serve(use: Callable[[str, Server], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        server = Server()
        async with TestServer(server.app()) as running:
            return await use(str(running.make_url("")).rstrip("/"), server)

    return asyncio.run(run())


def row(text: str = "Say 4.", *, tools: bool = False, **fields: Any) -> dict[str, Any]:
    parameters = {"input": [{"role": "user", "content": text}], "tools": [TOOL] if tools else []}
    return {"responses_create_params": parameters, "agent_ref": {"name": "adding_agent"}, **fields}


async def score(prompt: Prompt, script: Script) -> Score:
    return await ENVIRONMENT.verify(prompt, await replay(ENVIRONMENT, prompt, script))


def test_rewards_are_the_servers_and_tools_run_in_a_session_of_each_rollout():
    async def use(url: str, server: Server) -> list[Score]:
        plain = ENVIRONMENT.prompt(gym_http_row(row(expected="4"), url=url))
        tools = ENVIRONMENT.prompt(gym_http_row(row(tools=True, target=5, start=1), url=url))
        assert json.loads(tools.tools or "")[0]["function"]["name"] == "add"
        right = (*calls(("add", {}), ("add", {"by": 1})), *calls(("add", {"by": 3})), *says("ok"))
        scripts = [(plain, says("4")), (plain, says("5")), (tools, right), (tools, says("5"))]
        return await asyncio.gather(*(score(*one) for one in scripts))

    assert [one.value for one in serve(use)] == [1.0, 0.0, 1.0, 0.0]


def test_what_a_server_is_sent_are_the_row_and_the_items_of_the_responses_api():
    async def use(url: str, server: Server) -> dict[str, Any]:
        prompt = ENVIRONMENT.prompt(gym_http_row(row(tools=True, target=2, start=1), url=url))
        completion = await replay(ENVIRONMENT, prompt, (*calls(("add", {"by": 1})), *says("ok")))
        await ENVIRONMENT.verify(prompt, completion)
        assert server.bodies[0]["response"] == response_of(prompt, completion)
        return server.bodies[0]

    body = serve(use)
    assert {key: body[key] for key in ("target", "agent_ref")} == {
        "target": 2,
        "agent_ref": {"name": "adding_agent"},
    }
    items = body["response"]["output"]
    assert [item["type"] for item in items] == ["function_call", "function_call_output", "message"]
    assert items[0]["call_id"] == items[1]["call_id"]
    assert json.loads(items[1]["output"]) == {"total": 2}
    assert items[2]["content"][0]["text"] == "ok"


@pytest.mark.parametrize(
    ("status", "answer", "failure"),
    [
        (500, {"detail": "boom"}, "service"),
        (200, {"reward": 0.0, "_ng_failure_class": "judge_failed"}, "service"),
        (200, {"reward": 0.0, "mask_sample": True}, "service"),
        (200, {"reward": 2.5}, "verifier_error"),
        (200, {"reward": None}, "verifier_error"),
        (200, {"reward": True}, "verifier_error"),
        (200, [1.0], "verifier_error"),
        (200, {"accuracy": 1.0}, "verifier_error"),
    ],
)
def test_a_server_that_fails_or_gives_no_reward_leaves_the_completion_unscored(
    status: int, answer: Any, failure: str
):
    async def use(url: str, server: Server) -> Score:
        answers = {"completed": [status, answer]}
        own = row(expected="4", answers=answers)
        return await score(ENVIRONMENT.prompt(gym_http_row(own, url=url)), says("4"))

    given = serve(use)
    assert (given.value, given.failure or "verifier_error") == (None, failure)


def test_a_reward_is_one_where_only_rounding_parts_it_from_one():
    async def use(url: str, server: Server) -> list[Score]:
        scores: list[Score] = []
        for reward in (1.0000000000000002, -1e-12, 1.001):
            own = row(expected="4", answers={"completed": [200, {"reward": reward}]})
            prompt = ENVIRONMENT.prompt(gym_http_row(own, url=url))
            scores.append(await score(prompt, says("4")))
        return scores

    assert [one.value for one in serve(use)] == [1.0, 0.0, None]


def test_a_server_that_is_gone_is_a_failure_and_its_rows_are_not_admitted():
    async def use(url: str, server: Server) -> tuple[Prompt, Any, Any]:
        prompt = ENVIRONMENT.prompt(gym_http_row(row(tools=True, target=0), url=url))
        rows = [gym_http_row(row(expected=one), url=url) for one in ("4", "anything")]
        admitted = await admit(iter(rows), {"gym_http": ENVIRONMENT})
        return prompt, rows, admitted

    prompt, rows, admitted = serve(use)
    assert len(admitted.prompts) == 1
    assert [why.split(":")[0] for _, why in admitted.dropped] == ["wrong_passes"]
    gone = asyncio.run(score(prompt, (*calls(("add", {"by": 1})), *says("ok"))))
    assert (gone.value, gone.failure) == (None, "service")
    admitted = asyncio.run(admit(iter(rows), {"gym_http": ENVIRONMENT}))
    assert {why.split(":")[0] for _, why in admitted.dropped} == {"wrong_unscored"}


def test_a_recipe_names_the_servers_address():
    raw = {"name": "s", "path": "x", "format": "environment", "environment": "gym_http"}
    with pytest.raises(ValueError, match="needs server_url"):
        validate(raw, EnvironmentPrompts, where="x")
    with pytest.raises(ValueError, match="server_url is for environment gym_http"):
        validate(raw | {"environment": "math", "server_url": "y"}, EnvironmentPrompts, where="x")
    source = validate(raw | {"server_url": "http://127.0.0.1:9/"}, EnvironmentPrompts, where="x")
    question = READERS["environment"](row("Add.", expected="4"), source)
    assert json.loads(question.metadata)["url"] == "http://127.0.0.1:9"
    with pytest.raises(RowProblem, match="gpqa_diamond"):
        READERS["environment"](row() | {"agent_ref": {"name": "gpqa_diamond"}}, source)
    with pytest.raises(DataError, match="no http address"):
        ENVIRONMENT.prompt(gym_http_row(row(), url="ftp://x"))
