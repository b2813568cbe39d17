"""The environment "gym_http": a running resources server of NeMo Gym runs the tools and verifies.

    {"environment": "gym_http", "messages": […], "tools": […],
     "metadata": {"url": "http://127.0.0.1:8001", "row": {"responses_create_params": {…}, …}}}

A rollout is a session of the server, identified by cookies: `/seed_session`, a route for each tool,
and `/verify`, which gets the row and the model's output items and returns the `reward`. A server
that does not answer, reports a failure of its judge or itself, or gives a reward outside [0, 1]
leaves the completion unscored. A row for which the answer "." passes is dropped.

The contract is that of NVIDIA-NeMo/Gym (nemo_gym/base_resources_server.py, nemo_gym/judge.py,
responses_api_agents/simple_agent/app.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from posttrain.environments.base import RESULT_CHARACTERS, Environment, clip
from posttrain.errors import DataError
from posttrain.jsontext import load_json, writable
from posttrain.records import Message, Score, json_text
from posttrain.rollouts import Completion, Prompt, Step, metadata_of
from reward.environments.base import RLVREnvironment, Script, says
from reward.environments.gym_rows import EVALUATION, Fields, Row, gym_messages, server_of

if TYPE_CHECKING:
    from http.cookies import Morsel

    from aiohttp import ClientSession

REQUEST_SECONDS = 300.0  # limit of one request; a server's judge may take its time
ROUNDING = 1e-6  # error of rewards that are sums of shares
# fields beside a reward that is no measurement (newer servers: `mask_sample`, `failure_kind`)
_FAILURES = ("_ng_failure_class", "failure_kind", "mask_sample")


def gym_http_row(row: Row, *, url: str) -> Fields:
    """Convert a row of a Gym data file into one of this environment.

    Raises:
        DataError: as `gym_row`.
    """
    if (server := server_of(row)) in EVALUATION:
        raise DataError(f"evaluation_only: {server}")
    metadata = {"url": url, "row": dict(row)}
    return {"environment": GymHttpEnvironment.name, **gym_messages(row), "metadata": metadata}


class GymHttpEnvironment(RLVREnvironment):
    """Tasks of a resources server of NeMo Gym, which verifies them."""

    name = "gym_http"

    def malformed(self, prompt: Prompt) -> str | None:
        task = metadata_of(prompt)
        parts = urlsplit(str(task["url"]))
        if parts.scheme not in ("http", "https") or not parts.netloc:
            return f"url: {task['url']!r:.80} is no http address"
        return None if isinstance(task["row"], dict) else "row is no object"

    def gold(self, prompt: Prompt) -> Script | None:
        return None  # rows have no completion that must pass

    def wrong(self, prompt: Prompt) -> list[Script]:
        return [says(".")]

    def open(self, prompt: Prompt) -> Environment | None:
        return _Tools(prompt)

    async def score(self, prompt: Prompt, completion: Completion) -> Score:
        import aiohttp

        task = metadata_of(prompt)
        state: Fields = json.loads(completion.state or "{}")
        if failure := state.get("failure"):
            return Score(None, None, failure, "service")
        body = task["row"] | {"response": response_of(prompt, completion)}
        try:
            async with _open_session(state.get("cookies")) as session:
                if not state.get("cookies"):
                    await _post(session, f"{task['url']}/seed_session", task["row"])
                status, text = await _post(session, f"{task['url']}/verify", body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            problem = f"{task['url']}: {type(error).__name__}: {error}"
            return Score(None, None, problem, "service")
        if status != 200:
            return Score(None, None, f"{task['url']}/verify: status {status}: {text}", "service")
        return _score_of_response(text)


def _score_of_response(text: str) -> Score:
    """Score in the body of a response of `/verify`."""
    try:
        response: Any = load_json(text)
    except ValueError:
        response = None
    fields = cast(Fields, response if isinstance(response, dict) else {})
    if failures := [f"{name} {fields[name]}" for name in _FAILURES if fields.get(name)]:
        return Score(None, None, f"the server failed: {', '.join(failures)}", "service")
    if "reward" not in fields:
        return Score(None, None, f"no reward in {clip(text, 100)!r}", "verifier_error")
    reward = fields["reward"]
    if type(reward) is float and -ROUNDING <= reward <= 1 + ROUNDING:
        reward = min(max(reward, 0.0), 1.0)
    return Score(reward, None, f"reward {reward} of the server")


class _Tools:
    """A rollout's session with the server, whose tools are routes."""

    def __init__(self, prompt: Prompt) -> None:
        self._task = metadata_of(prompt)
        self._client: ClientSession | None = None
        self._failure: str | None = None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        import aiohttp

        url = self._task["url"]
        try:
            if self._client is None:
                self._client = _open_session(None)
                await _post(self._client, f"{url}/seed_session", self._task["row"])
            # an error of the server is the tool's result, for the model to read
            _, text = await _post(self._client, f"{url}/{name}", arguments)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._failure = f"{url}/{name}: {type(error).__name__}: {error}"
            return "error: the tool is out of reach"
        return writable(clip(text, RESULT_CHARACTERS))

    def snapshot(self) -> str:
        cookies: dict[str, str] = {}
        jar: Iterable[Morsel[str]] = () if self._client is None else self._client.cookie_jar
        for cookie in jar:
            cookies[cookie.key] = cookie.value
        return json_text({"cookies": cookies, "failure": self._failure})

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


def _open_session(cookies: Mapping[str, str] | None) -> ClientSession:
    """Open a session with a server; cookies take an earlier one up again."""
    import aiohttp

    return aiohttp.ClientSession(
        # unsafe: keep the cookies of servers that are addressed by IP, too
        cookie_jar=aiohttp.CookieJar(unsafe=True),
        cookies=cookies,
        timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
    )


async def _post(session: ClientSession, url: str, body: Mapping[str, Any]) -> tuple[int, str]:
    """Post a body as JSON; returns the status and the text of the response."""
    async with session.post(url, json=body) as answer:
        return answer.status, await answer.text(errors="replace")


# -- the Responses API -----------------------------------------------------------------------------


def response_of(prompt: Prompt, completion: Completion) -> Fields:
    """Convert a completion into a response of OpenAI's Responses API, tool results included."""
    parameters: Fields = metadata_of(prompt)["row"]["responses_create_params"]
    items: list[Fields] = []
    for number, step in enumerate(completion.steps):
        items += _output_items(step, f"{completion.index}_{number}")
    return {
        "id": f"resp_{completion.index}",
        "object": "response",
        "created_at": 0,
        "model": "policy",
        "status": "completed",
        "output": items,
        "tools": parameters.get("tools") or [],
        "tool_choice": parameters.get("tool_choice") or "auto",
        "parallel_tool_calls": parameters.get("parallel_tool_calls") is not False,
    }


def _output_items(step: Step, key: str) -> list[Fields]:
    """Output items of a step; `key` makes their ids unique."""
    parsed = step.parsed
    items: list[Fields] = []
    if parsed.reasoning:
        summary: Fields = {"type": "summary_text", "text": parsed.reasoning}
        items.append({"type": "reasoning", "id": f"rs_{key}", "summary": [summary]})
    if parsed.answer or not parsed.tool_calls:
        text: Fields = {"type": "output_text", "text": parsed.answer, "annotations": []}
        message: Fields = {
            "type": "message",
            "id": f"msg_{key}",
            "role": "assistant",
            "status": "completed",
            "content": [text],
        }
        items.append(message)
    for index, call in enumerate(parsed.tool_calls):
        function_call: Fields = {
            "type": "function_call",
            "id": f"fc_{key}_{index}",
            "status": "completed",
            "call_id": call.id or f"call_{key}_{index}",
            "name": call.name,
            "arguments": call.arguments,
        }
        items.append(function_call)
    return items + [_result_item(result) for result in step.results]


def _result_item(message: Message) -> Fields:
    if message.role == "user":
        return {"type": "message", "role": "user", "content": message.content}
    output = {"call_id": message.tool_call_id or "", "output": message.content}
    return {"type": "function_call_output", **output}
