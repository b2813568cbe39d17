"""A server's `/chat/completions`: it renders, it parses, and it hides token ids.

    POST {"messages": […], "tools": […], "chat_template_kwargs": {"enable_thinking": true}, …}
    →    {"choices": [{"message": {"content": "56", "reasoning_content": "7*8 is 56."}, …}]}

What the server left unparsed in the content (a think tag, a call as text) is parsed here. A call
whose arguments are no JSON object is kept as text and named, never repaired.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from posttrain.chat.parse import ParsedCompletion, parse_completion
from posttrain.errors import ConfigError
from posttrain.records import Message, ToolCall, json_text
from posttrain.rollouts import Step
from posttrain.sampling.engines.http import Client, RequestFailed
from posttrain.sampling.sampler import Generation, Request

CLOSE = "</think>"
Count = Callable[[str], int]
_FINISH: dict[str, Literal["stop", "length"]] = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
}


class ChatSampler:
    """A `Sampler` over HTTP.

    Args:
        client: the server; concurrency and retries are its.
        model: the name that the server knows the model by.
        identity: what a lock binds.
        count: tokens of a text, for servers that do not say how many were reasoning.
        parts: False where reasoning tokens need not be counted, as of a judge: what a server does
            not tell apart is then all counted as answer.
    """

    batched = False

    def __init__(
        self,
        client: Client,
        *,
        model: str,
        identity: Mapping[str, Any],
        count: Count | None = None,
        parts: bool = True,
    ) -> None:
        self._client, self._model, self._count, self._parts = client, model, count, parts
        self.identity: Mapping[str, Any] = identity

    async def sample(
        self, requests: Sequence[Request], *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        """One generation a request, in order; all under way at once, within the client's bound."""

        async def one(request: Request) -> Generation:
            try:
                body = await self._client.post("/chat/completions", self._body(request),
                                               key=request.seed)  # fmt: skip
                step = self._step(body, request)
            except RequestFailed as error:
                return Generation(None, error=str(error))
            if progress is not None:
                progress(step.reasoning_tokens + step.answer_tokens)
            return Generation(step)

        return list(await asyncio.gather(*map(one, requests)))

    async def score(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> list[tuple[float, ...]]:
        """Not possible here."""
        raise ConfigError("a chat endpoint cannot score token ids; use kind: completions")

    def _body(self, request: Request) -> dict[str, Any]:
        if request.reasoning_budget is not None:
            raise ConfigError(
                "a chat endpoint cannot hold a reasoning budget exactly; use kind: completions"
            )
        parameters = request.parameters
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [_to_openai(m) for m in request.messages],
            "temperature": parameters.temperature,
            "top_p": parameters.top_p,
            "max_tokens": parameters.max_tokens,
            "seed": request.seed,
            "chat_template_kwargs": {"enable_thinking": request.thinking},
        }
        if request.tools is not None:
            body["tools"] = json.loads(request.tools)
        if parameters.top_k:
            body["top_k"] = parameters.top_k
        if parameters.logps:
            raise ConfigError("a chat endpoint gives no log-probabilities of ids; logps: false")
        return body

    def _step(self, body: Mapping[str, Any], request: Request) -> Step:
        try:
            choice = body["choices"][0]
            message, reason = choice["message"], choice["finish_reason"]
        except (KeyError, IndexError, TypeError) as error:
            raise RequestFailed(f"an answer without a message: {str(body)[:200]}") from error
        if reason not in _FINISH:
            raise RequestFailed(f"ended by {reason!r}")
        text = message.get("content") or ""
        parsed = _parsed(message, text, request, finished=_FINISH[reason] == "stop")
        prompt, reasoning, answer = self._lengths(body.get("usage") or {}, parsed)
        return Step(
            text=text,
            parsed=parsed,
            finish=_FINISH[reason],
            reasoning_tokens=reasoning,
            answer_tokens=answer,
            prompt_tokens=prompt,
        )

    def _lengths(self, usage: Mapping[str, Any], parsed: ParsedCompletion) -> tuple[int, int, int]:
        """Tokens of the prompt, of the reasoning and of the answer, as the server counted them."""
        prompt, total = usage.get("prompt_tokens"), usage.get("completion_tokens")
        details = usage.get("completion_tokens_details") or {}
        reasoning = details.get("reasoning_tokens")
        if not reasoning and not (parsed.reasoning and self._parts):
            reasoning = 0
        elif reasoning is None and self._count is not None:
            reasoning = self._count(parsed.reasoning or "")
        if reasoning is None or total is None or prompt is None:
            raise RequestFailed(
                "the server does not say how many tokens were reasoning; name the checkpoint that "
                "it serves, whose tokenizer can count them here"
            )
        return prompt, reasoning, max(0, total - reasoning)


def _parsed(
    message: Mapping[str, Any], text: str, request: Request, *, finished: bool
) -> ParsedCompletion:
    given = message.get("reasoning_content") or message.get("reasoning")
    # servers without a reasoning parser leave the trace in the content
    inline = given is None and request.thinking and CLOSE in text
    parsed = parse_completion(text, thinking=inline, tools=request.tools, end_tokens=())
    calls, broken = _calls(message.get("tool_calls") or [])
    problems = parsed.problems + (("malformed_call",) if broken else ())
    return ParsedCompletion(
        reasoning=parsed.reasoning if inline else (given or "") if request.thinking else given,
        answer=parsed.answer + broken,
        tool_calls=(*parsed.tool_calls, *calls),
        problems=tuple(dict.fromkeys(problems)),
        finished=finished,
    )


def _calls(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[ToolCall, ...], str]:
    """The calls that can be read, and the text of those that cannot."""
    calls: list[ToolCall] = []
    broken: list[str] = []
    for row in rows:
        function = cast(Mapping[str, Any], row.get("function") or {})
        arguments = function.get("arguments")
        try:
            value = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError:
            value = None
        if isinstance(value, dict) and isinstance(function.get("name"), str):
            calls.append(ToolCall(function["name"], json_text(value), row.get("id")))
        else:
            broken.append(json_text(row))
    return tuple(calls), "\n".join(broken)


def _to_openai(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        row["tool_calls"] = [
            {
                "id": call.id or f"call_{k}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for k, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id is not None:
        row["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        row["name"] = message.name
    return row
