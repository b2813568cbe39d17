"""A server's `/chat/completions`: it renders, it parses, and it hides token ids. Every usual
spelling of an answer is read, and what the server left unparsed in the content is parsed here; any
other is a failed request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn, cast

from posttrain.chat.parse import ParsedCompletion, parse_completion
from posttrain.chat.reasoning import CLOSE
from posttrain.config.backend import ChatBackend
from posttrain.errors import ConfigError
from posttrain.jsontext import encode_json, load_json, writable
from posttrain.records import Message, ToolCall
from posttrain.rollouts import Step
from posttrain.sampling.engines.http import Client, RequestFailed
from posttrain.sampling.sampler import Generation, Progress, Request

Count = Callable[[str], int]
_STOP = ("stop", "tool_calls", "function_call", "eos", "eos_token", "end_turn", "stop_sequence")
_LENGTH = ("length", "max_tokens", "model_length")
REASONING = ("reasoning_content", "reasoning", "thinking")  # a message's field, by server
_SHOWN = 200


class ChatSampler:
    """A `Sampler` over HTTP.

    Args:
        count: tokens of a text, for servers that do not say how many were reasoning.
        parts: False where reasoning tokens need not be counted, as of a judge: what a server does
            not tell apart is then all counted as answer.
    """

    batched = False

    def __init__(
        self,
        client: Client,
        backend: ChatBackend,
        *,
        count: Count | None = None,
        parts: bool = True,
    ) -> None:
        self._client, self._backend, self._count, self._parts = client, backend, count, parts
        self._mode: bool | None = None
        self.identity: Mapping[str, Any] = {"backend": "chat", "weights": backend.model}

    async def sample(
        self, requests: Sequence[Request], *, progress: Progress = None
    ) -> list[Generation]:
        """As `Sampler.sample`; ConfigError for what this server, as the recipe describes it, cannot
        do."""

        async def one(request: Request) -> Generation:
            sent = self._body(request)
            try:
                body = await self._client.post("/chat/completions", sent, key=request.seed)
                step = self._step(body, request)
            except RequestFailed as error:
                return Generation(None, error=str(error))
            if progress is not None:
                progress(step.reasoning_tokens + step.answer_tokens)
            return Generation(step)

        return list(await asyncio.gather(*map(one, requests)))

    def _body(self, request: Request) -> dict[str, Any]:
        parameters, backend = request.parameters, self._backend
        if request.reasoning_budget is not None:
            raise ConfigError(
                "a chat endpoint cannot hold a reasoning budget exactly; use kind: completions"
            )
        if parameters.logps:
            raise ConfigError("a chat endpoint gives no log-probabilities of ids; logps: false")
        if backend.thinking == "fixed" and self._mode not in (None, request.thinking):
            raise ConfigError(
                "backend.thinking: fixed, and the recipe samples with thinking on and off: name how"
                " this server switches it, or sample in one mode"
            )
        self._mode = request.thinking
        body: dict[str, Any] = {
            "model": backend.model,
            "messages": [_to_openai(m, backend) for m in request.messages],
            "temperature": parameters.temperature,
            "top_p": parameters.top_p,
            backend.length_field: parameters.max_tokens,
            "seed": request.seed,
            **backend.thinking_fields(on=request.thinking),
        }
        if request.tools is not None:
            body["tools"] = json.loads(request.tools)
        if parameters.top_k and not backend.extended:
            raise ConfigError(
                "sampling.top_k is no standard field of a chat endpoint: set it to 0, or say "
                "backend.server: vllm or sglang if it is one"
            )
        return body | ({"top_k": parameters.top_k} if parameters.top_k else {})

    def _step(self, body: Mapping[str, Any], request: Request) -> Step:
        """An answer as a step. Raises RequestFailed where it is not understood."""
        if body.get("error"):
            _fail("an error in place of an answer", body["error"])
        choices = body.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = cast(Any, choice).get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict):
            _fail("an answer without a message", body)
        message = cast(dict[str, Any], message)
        usage = body.get("usage")
        counts = cast(dict[str, Any], usage) if isinstance(usage, dict) else {}
        finish = _finish(cast(dict[str, Any], choice), counts, request.parameters.max_tokens)
        parsed, text = _parsed(message, request, finished=finish == "stop")
        prompt, reasoning, answer = self._lengths(counts, parsed, text, request)
        return Step(
            text=text,
            parsed=parsed,
            finish=finish,
            reasoning_tokens=reasoning,
            answer_tokens=answer,
            prompt_tokens=prompt,
            cached_tokens=_number(counts.get("prompt_tokens_details"), "cached_tokens"),
        )

    def _lengths(
        self, usage: Mapping[str, Any], parsed: ParsedCompletion, text: str, request: Request
    ) -> tuple[int, int, int]:
        """Tokens of prompt, reasoning and answer; what the server did not count is counted here,
        of a prompt the messages' texts alone."""
        prompt, total = _number(usage, "prompt_tokens"), _number(usage, "completion_tokens")
        details = usage.get("completion_tokens_details")
        reasoning = _number(cast(Any, details), "reasoning_tokens") if details else None
        trace, count = parsed.reasoning or "", self._count
        if not reasoning and not (trace and self._parts):
            reasoning = 0
        if count is not None:
            reasoning = count(trace) if reasoning is None else reasoning
            total = reasoning + count(text) if total is None else total
            prompt = sum(count(m.content) for m in request.messages) if prompt is None else prompt
        if reasoning is None or total is None or prompt is None:
            raise RequestFailed(
                "the server does not count tokens, or not those of the reasoning; name the "
                "checkpoint that it serves, whose tokenizer can count them here"
            )
        return prompt, reasoning, max(0, total - reasoning)


def _fail(why: str, value: object) -> NoReturn:
    raise RequestFailed(f"{why}: {writable(repr(value)[:_SHOWN])}")


def _number(row: Any, key: str) -> int | None:
    """A count, as a number or as text; None where there is none."""
    value = row.get(key) if isinstance(row, dict) else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value >= 0 and value % 1 == 0 else None


def _finish(
    choice: Mapping[str, Any], usage: Mapping[str, Any], limit: int
) -> Literal["stop", "length"]:
    reason = choice.get("finish_reason")
    if reason is None and (written := _number(usage, "completion_tokens")) is not None:
        return "length" if written >= limit else "stop"
    if reason in _STOP:
        return "stop"
    if reason in _LENGTH:
        return "length"
    return _fail("no finish reason" if reason is None else "ended by", reason)


def _parsed(
    message: Mapping[str, Any], request: Request, *, finished: bool
) -> tuple[ParsedCompletion, str]:
    """The message taken apart, and its content as text."""
    text, in_parts = _texts(message.get("content"))
    traces = [field for name in REASONING if (field := message.get(name)) is not None]
    if any(not isinstance(trace, str) for trace in traces):
        _fail("reasoning that is no text", traces)
    given = writable(next(filter(None, [*traces, in_parts]), "")) or None
    if not text and isinstance(message.get("refusal"), str):
        text = writable(message["refusal"])
    # servers without a reasoning parser leave the trace in the content
    inline = given is None and request.thinking and CLOSE in text
    parsed = parse_completion(text, thinking=inline, tools=request.tools, end_tokens=())
    calls, broken = _calls(message)
    problems = parsed.problems + (("malformed_call",) if broken else ())
    completion = ParsedCompletion(
        reasoning=parsed.reasoning if inline else (given or "") if request.thinking else given,
        answer=parsed.answer + broken,
        tool_calls=(*parsed.tool_calls, *calls),
        problems=tuple(dict.fromkeys(problems)),
        finished=finished,
    )
    return completion, text


def _texts(content: Any) -> tuple[str, str]:
    """The text and the reasoning of a content: a text, nothing, or parts of both kinds."""
    if content is None or isinstance(content, str):
        return writable(content or ""), ""
    if not isinstance(content, list):
        _fail("a content that is neither text nor parts", content)
    texts = {"text": "", "thinking": ""}
    for part in cast(list[Any], content):
        row: dict[str, Any] = part if isinstance(part, dict) else {}
        kind = str(row.get("type", "text"))
        kind = {"output_text": "text", "reasoning": "thinking"}.get(kind, kind)
        value: Any = row.get(kind, row.get("text")) if kind in texts else None
        if kind == "thinking" and isinstance(value, list):  # parts again
            value = _texts(value)[0]
        if not isinstance(value, str):
            _fail("a content part that is no text", part)
        texts[kind] += writable(value)
    return texts["text"], texts["thinking"]


def _calls(message: Mapping[str, Any]) -> tuple[tuple[ToolCall, ...], str]:
    """The calls that can be read, and the text of those that cannot."""
    rows: Any = message.get("tool_calls") or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in cast(Any, rows)):
        _fail("tool calls that are no list of objects", rows)
    rows = cast(list[dict[str, Any]], rows)
    if message.get("function_call") is not None:  # the field before `tool_calls`
        rows = [*rows, {"function": message["function_call"]}]
    calls: list[ToolCall] = []
    broken: list[str] = []
    for row in rows:
        function: Any = row.get("function")
        if not isinstance(function, dict):
            function = {}
        name, given, identity = function.get("name"), function.get("arguments"), row.get("id")
        arguments = None
        with contextlib.suppress(ValueError):
            # a call without arguments is written in all of these ways
            value = {} if given in (None, "") else given
            value = load_json(value) if isinstance(value, str) else value
            arguments = encode_json(value) if isinstance(value, dict) else None
        if arguments is not None and isinstance(name, str) and name:
            identity = identity if isinstance(identity, str) else None
            calls.append(ToolCall(writable(name), writable(arguments), identity))
            continue
        try:
            broken.append(writable(encode_json(row)))
        except ValueError as error:
            _fail("a tool call that cannot be kept", error)
    return tuple(calls), "\n".join(broken)


def _to_openai(message: Message, backend: ChatBackend) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": message.content}
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
    if message.reasoning and backend.extended:
        # earlier vLLM and SGLang read the first, vLLM of today the second
        row |= {"reasoning_content": message.reasoning, "reasoning": message.reasoning}
    if message.name is not None and (backend.extended or message.role != "tool"):
        row["name"] = message.name
    return row
