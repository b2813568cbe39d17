"""A server's `/chat/completions`, also as an event stream: it renders, it parses, and most hide
token ids. Every usual spelling of an answer is read, and what the server left unparsed in the
content is parsed here; any other is a failed request. vLLM gives the ids where it is asked, and the
answer is then read from them, as that of any engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NoReturn, cast

from posttrain.chat.parse import CLOSING, parse_completion, without_framing
from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.config.backend import ChatBackend
from posttrain.errors import ConfigError
from posttrain.jsontext import encode_json, load_json, writable
from posttrain.records import Message, ToolCall
from posttrain.rollouts import ParsedCompletion, Step
from posttrain.sampling.engines.http import Client, RequestFailed
from posttrain.sampling.engines.vllm import output_of
from posttrain.sampling.render import StepReader, opens_reasoning
from posttrain.sampling.sampler import Generation, Progress, Request

Count = Callable[[str], int]
Kind = Literal["reasoning", "answer"]
_STOP = ("stop", "tool_calls", "function_call", "eos", "eos_token", "end_turn", "stop_sequence")
_LENGTH = ("length", "max_tokens", "model_length")
_FRAMING = 4  # tokens of an answer without a word: think tags, line breaks, end of turn
_PROMPT_END = 16  # tokens of a prompt that show whether it ends inside reasoning
REASONING = ("reasoning_content", "reasoning", "thinking")  # a message's field, by server


class ChatSampler:
    """A `Sampler` over HTTP.

    Args:
        count: the tokens of a text, for servers that do not say how many were reasoning.
        parts: False, as for a judge: tokens that nobody counted apart all count as answer.
        reader: of the served checkpoint's template and tokenizer; None where it is not known.
    """

    batched = False

    def __init__(
        self,
        client: Client,
        backend: ChatBackend,
        *,
        count: Count | None = None,
        parts: bool = True,
        reader: StepReader | None = None,
    ) -> None:
        self._client, self._backend, self._count, self._parts = client, backend, count, parts
        self._reader = reader
        self._mode: bool | None = None
        self.identity: Mapping[str, Any] = {"backend": "chat", "weights": backend.model}

    async def sample(
        self, requests: Sequence[Request], *, progress: Progress = None
    ) -> list[Generation]:
        """As `Sampler.sample`; ConfigError for what this server cannot do."""

        async def one(request: Request) -> Generation:
            sent = self._body(request)
            try:
                body = await self._client.post(
                    "/chat/completions",
                    sent,
                    key=request.seed,
                    conversation=request.conversation,
                )
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
        if self._reader is not None and backend.server == "vllm":
            body["return_token_ids"] = True
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
        choice, usage = _first_choice(body), _object(body.get("usage"))
        cached = _number(usage.get("prompt_tokens_details"), "cached_tokens")
        if self._reader is not None and choice.get("token_ids") is not None:
            step = _step_of_ids(self._reader, body, choice, request)
            return replace(step, cached_tokens=cached)
        if not isinstance(choice.get("message"), dict):
            _fail("an answer without a message", body)
        finish = _finish(choice, usage, request.parameters.max_tokens)
        closing = CLOSING if self._reader is None else self._reader.closing
        message = cast(dict[str, Any], choice["message"])
        parsed, text, trace = _parsed(message, request, finished=finish == "stop", closing=closing)
        # what the server did not count is counted here, of a prompt the messages' texts alone
        prompt, total = _number(usage, "prompt_tokens"), _number(usage, "completion_tokens")
        reasoning = _number(usage.get("completion_tokens_details"), "reasoning_tokens")
        count = self._count
        shown = text or trace or parsed.tool_calls
        if self._reader is not None and not shown and (total or 0) - (reasoning or 0) > _FRAMING:
            raise RequestFailed(
                f"the server wrote {total} tokens, and its answer holds none: its parser took out "
                "what it read as a call that no tool was declared for; say backend.server: vllm, "
                "which is asked for token ids, or serve without --tool-call-parser"
            )
        if not reasoning:
            # some count only what stands behind an opening tag that the model wrote itself
            reasoning = None if trace and self._parts else 0
        if count is not None:
            reasoning = count(trace) if reasoning is None else reasoning
            if finish == "length" and not trace and total is not None:
                # the server's total is exact: there are no tags in it, and no stop token
                pass
            elif self._reader is not None and (total is None or not message.get("tool_calls")):
                # the server's total has the tags and the stop token, too
                total = reasoning + count(text.rpartition(CLOSE)[2])
            elif self._reader is not None and total is not None:
                # calls come parsed, without the text that could be counted
                total -= int(bool(trace)) + int(finish == "stop")
            total = reasoning + count(text) if total is None else total
            prompt = sum(count(m.content) for m in request.messages) if prompt is None else prompt
        if reasoning is None or total is None or prompt is None:
            raise RequestFailed(
                "the server does not count tokens, or not those of the reasoning; name the "
                "checkpoint that it serves, whose tokenizer can count them here"
            )
        return Step(
            text=text,
            parsed=parsed,
            finish=finish,
            reasoning_tokens=reasoning,
            answer_tokens=max(0, total - reasoning),
            prompt_tokens=prompt,
            cached_tokens=cached,
        )


def _object(value: Any) -> dict[str, Any]:
    """It, or {} where it is none."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _first_choice(body: Mapping[str, Any]) -> dict[str, Any]:
    choices: Any = body.get("choices")
    return _object(choices[0] if isinstance(choices, list) and choices else None)


def _fail(why: str, value: object) -> NoReturn:
    raise RequestFailed(f"{why}: {writable(repr(value)[:200])}")


def _number(row: Any, key: str) -> int | None:
    """A count, as a number or as text; None where there is none."""
    value = _object(row).get(key)
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
    if reason in (*_STOP, *_LENGTH):
        return "stop" if reason in _STOP else "length"
    return _fail("no finish reason" if reason is None else "ended by", reason)


def _step_of_ids(
    reader: StepReader, body: Mapping[str, Any], choice: Mapping[str, Any], request: Request
) -> Step:
    """The step of an answer that came with its token ids. Raises RequestFailed as `output_of`."""
    output = output_of(choice, request.parameters.max_tokens, reader.stop_ids, logps=False)
    prompt_ids = body.get("prompt_token_ids")
    if not isinstance(prompt_ids, list) or not prompt_ids:
        _fail("token ids without those of the prompt", prompt_ids)
    prompt_ids = cast(list[int], prompt_ids)
    opened = opens_reasoning(reader.decode(prompt_ids[-_PROMPT_END:]))
    step = reader.step(request, output, opened=opened, prompt_tokens=len(prompt_ids))
    # the server rendered: what it put behind a step is not known, and a completion has all its ids
    # or none
    return replace(step, ids=None)


def _parsed(
    message: Mapping[str, Any], request: Request, *, finished: bool, closing: str | None
) -> tuple[ParsedCompletion, str, str]:
    """The message taken apart; its content and its reasoning as they came. `closing` as of
    `parse_completion`, None of a template without reasoning."""
    text, in_parts = _texts(message.get("content"))
    traces = [field for name in REASONING if (field := message.get(name)) is not None]
    if any(not isinstance(trace, str) for trace in traces):
        _fail("reasoning that is no text", traces)
    given = writable(next(filter(None, [*traces, in_parts]), "")) or None
    if not text and isinstance(message.get("refusal"), str):
        text = writable(message["refusal"])
    # servers without a reasoning parser leave the trace in the content
    inline = given is None and request.thinking and CLOSE in text
    trace, content = given or "", text
    if inline:
        trace = text.partition(CLOSE)[0].removeprefix(OPEN)
    elif given is not None:
        # a server's parser leaves in both what the template wrote around the closing tag
        given, content = without_framing(given, text, closing=closing or CLOSING)
    parsed = parse_completion(
        content,
        thinking=inline,
        tools=request.tools,
        end_tokens=(),
        closing=closing or CLOSING,
    )
    calls, broken = _calls(message)
    problems = parsed.problems + (("malformed_call",) if broken else ())
    if trace and not finished and not text and not calls:
        problems = (*problems, "unclosed_think")
    # behind an answer the template writes a line break before a call, which is no part of it either
    answer = parsed.answer.removesuffix("\n") if calls and not broken else parsed.answer
    completion = ParsedCompletion(
        reasoning=parsed.reasoning if inline else (given or "") if request.thinking else given,
        answer=answer + broken,
        tool_calls=(*parsed.tool_calls, *calls),
        problems=tuple(dict.fromkeys(problems)),
        finished=finished,
    )
    return completion, text, trace


def _texts(content: Any) -> tuple[str, str]:
    """The text and the reasoning of a content: a text, nothing, or parts of both kinds."""
    if content is None or isinstance(content, str):
        return writable(content or ""), ""
    if not isinstance(content, list):
        _fail("a content that is neither text nor parts", content)
    texts = {"text": "", "thinking": ""}
    for part in cast(list[Any], content):
        row = _object(part)
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
        function = _object(row.get("function"))
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


# -- as an event stream ----------------------------------------------------------------------------


class StreamingChatSampler(ChatSampler):
    """A `ChatSampler` of one request at a time that shows what comes; fields `left_to_server` are
    not sent, so that the server's own defaults hold."""

    def __init__(
        self,
        client: Client,
        backend: ChatBackend,
        *,
        show: Callable[[Kind, str], None],
        left_to_server: Collection[str],
    ) -> None:
        # not every server counts in a stream, and a conversation reads no lengths: characters do
        super().__init__(client, backend, count=len, parts=False)
        self._show, self._left = show, left_to_server

    async def sample(
        self, requests: Sequence[Request], *, progress: Progress = None
    ) -> list[Generation]:
        """As `ChatSampler.sample`, of one request; a failed one is not tried again."""
        [request] = requests
        body = {k: v for k, v in self._body(request).items() if k not in self._left}
        message = StreamedMessage(self._show)
        try:
            stream = self._client.stream("/chat/completions", body | {"stream": True})
            async with contextlib.aclosing(stream) as events:
                async for event in events:
                    message.add(event)
            return [Generation(self._step(message.body(), request))]
        except RequestFailed as error:
            return [Generation(None, error=str(error))]


class StreamedMessage:
    """The deltas of a stream, put together to the message that the server would have sent whole."""

    def __init__(self, show: Callable[[Kind, str], None]) -> None:
        self._show = show
        self._fields: dict[str, Any] = {}
        self._calls: list[dict[str, Any]] = []
        self._places: dict[str, dict[str, Any]] = {}  # the last call of each index
        self._rest: dict[str, Any] = {}
        self._finish: object = None
        self._half = ""

    def add(self, event: Mapping[str, Any]) -> None:
        """Take one event. Raises RequestFailed for an error in place of a delta."""
        if event.get("error"):
            _fail("an error in the stream", event["error"])
        if event.get("usage"):
            self._rest["usage"] = event["usage"]
        choice = _first_choice(event)
        if choice.get("index") not in (None, 0):
            return
        if choice.get("finish_reason") is not None:
            self._finish = choice["finish_reason"]
        delta: Any = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message")  # an answer that came whole
        if not isinstance(delta, dict):
            return
        delta = cast(dict[str, Any], delta)
        traces = [name for name in REASONING if delta.get(name)]
        for name in (*traces, "content"):
            if delta.get(name):
                self._append(name, delta[name])
                # a server may send the same trace under two names
                if name not in traces[1:]:
                    self._say("answer" if name == "content" else "reasoning", delta[name])
        for name in ("refusal", "function_call"):
            if delta.get(name):
                self._merge(self._fields, {name: delta[name]})
        calls: Any = delta.get("tool_calls") or []
        if not isinstance(calls, list):
            raise RequestFailed("tool calls that are no list")
        for piece in cast(list[Any], calls):
            self._add_call(piece)

    def _append(self, name: str, piece: Any) -> None:
        """Text behind text, and a content in parts behind its other parts."""
        if not isinstance(piece, str | list):
            raise RequestFailed(f"a {name} that is neither text nor parts")
        known = self._fields.get(name, type(piece)())
        if type(known) is not type(piece):
            known, piece = (
                [{"type": "text", "text": one}] if isinstance(one, str) else one
                for one in (known, piece)
            )
        self._fields[name] = known + piece

    def _say(self, kind: Kind, piece: Any) -> None:
        parts: list[Any] = piece if isinstance(piece, list) else [piece]
        for part in parts:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                # a character beyond U+FFFF may come in two halves
                text = self._half + text
                self._half = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
                self._show(kind, writable(text.removesuffix(self._half)))

    def _add_call(self, piece: Any) -> None:
        if not isinstance(piece, dict):
            raise RequestFailed("a tool call that is no object")
        piece = cast(dict[str, Any], piece)
        place, name = piece.get("index"), piece.get("id")
        known = self._places.get(repr(place))
        if place is None:  # a server without places: a new id begins a new call
            known = self._calls[-1] if self._calls and name in (None, "") else None
        if known is None:
            self._calls.append(piece)
            self._places[repr(place)] = piece
        else:
            self._merge(known, {"function": piece.get("function") or {}})

    def _merge(self, into: dict[str, Any], piece: Mapping[str, Any]) -> None:
        for key, value in piece.items():
            known = into.get(key)
            if isinstance(known, dict) and isinstance(value, dict):
                self._merge(cast(dict[str, Any], known), cast(dict[str, Any], value))
            elif isinstance(known, str) and isinstance(value, str):
                # a name is sent once, or again with every piece
                into[key] = known if key == "name" and value == known else known + value
            elif value is not None:
                into[key] = value

    def body(self) -> dict[str, Any]:
        """The whole answer, as a server that does not stream sends it."""
        calls = {"tool_calls": self._calls} if self._calls else {}
        message = {"role": "assistant", "content": None, **self._fields, **calls}
        return {"choices": [{"message": message, "finish_reason": self._finish}], **self._rest}
