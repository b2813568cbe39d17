"""Sampler over a server's `/chat/completions`, also as an event stream.

Such a server renders the prompt, parses the answer, and mostly hides token ids. Every usual
spelling of an answer is read, and calls or reasoning that the server left in the content are parsed
here; any other answer is a failed request. vLLM returns the ids if the request says so, and the
answer is then read from them, like that of an engine.
"""

from __future__ import annotations

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
from posttrain.sampling.cancellation import gather_or_cancel
from posttrain.sampling.engines.http import Client, RequestFailed
from posttrain.sampling.engines.vllm import output_of
from posttrain.sampling.render import StepReader, opens_reasoning
from posttrain.sampling.sampler import Generation, Progress, Request

Count = Callable[[str], int]
Kind = Literal["reasoning", "answer"]
_STOP = ("stop", "tool_calls", "function_call", "eos", "eos_token", "end_turn", "stop_sequence")
_LENGTH = ("length", "max_tokens", "model_length")
# most tokens of an answer without a word: think tags, line breaks, end of turn
_FRAMING_TOKENS = 4
# tokens at the end of a prompt that show whether it ends inside reasoning
_PROMPT_END = 16
# fields of a message that hold the reasoning, by server
REASONING = ("reasoning_content", "reasoning", "thinking")


class ChatSampler:
    """A `Sampler` over HTTP.

    Args:
        count: function that counts the tokens of a text, for servers that do not count those of
            the reasoning.
        parts: False, as for a judge, where reasoning and answer need not be counted apart: tokens
            that the server did not count as reasoning then count as answer.
        reader: reader of ids, by the served checkpoint's template and tokenizer; None where the
            checkpoint is not known.
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
        self._client = client
        self._backend = backend
        self._count = count
        self._parts = parts
        self._reader = reader
        # thinking of the last request; None before the first
        self._thinking: bool | None = None
        self.identity: Mapping[str, Any] = {"backend": "chat", "weights": backend.model}

    async def sample(
        self, requests: Sequence[Request], *, progress: Progress = None
    ) -> list[Generation]:
        """Sample as `Sampler.sample` does.

        Raises:
            ConfigError: a request has settings that this server cannot follow.
        """

        async def sample_one(request: Request) -> Generation:
            request_body = self._request_body(request)
            try:
                answer = await self._client.post(
                    "/chat/completions",
                    request_body,
                    key=request.seed,
                    conversation=request.conversation,
                )
                step = self._read_answer(answer, request)
            except RequestFailed as error:
                return Generation(None, error=str(error))
            if progress is not None:
                progress(step.reasoning_tokens + step.answer_tokens)
            return Generation(step)

        return await gather_or_cancel(map(sample_one, requests))

    def _request_body(self, request: Request) -> dict[str, Any]:
        """JSON body of a request."""
        parameters = request.parameters
        backend = self._backend
        if request.reasoning_budget is not None:
            raise ConfigError(
                "a chat endpoint cannot hold a reasoning budget exactly; use kind: completions"
            )
        if parameters.logps:
            raise ConfigError(
                "a chat endpoint gives no log-probabilities of ids; use kind: completions"
            )
        if backend.thinking == "fixed" and self._thinking not in (None, request.thinking):
            raise ConfigError(
                "backend.thinking: fixed, and the recipe samples with thinking on and off: name how"
                " this server switches it, or sample in one mode"
            )
        self._thinking = request.thinking
        body: dict[str, Any] = {
            "model": backend.model,
            "messages": [_message_row(message, backend) for message in request.messages],
            "temperature": parameters.temperature,
            "top_p": parameters.top_p,
            backend.length_field: parameters.max_tokens,
            "seed": request.seed,
            **backend.thinking_fields(on=request.thinking),
        }
        if request.tools is not None:
            body["tools"] = json.loads(request.tools)
        if request.schema is not None:
            schema = {"name": "answer", "strict": True, "schema": json.loads(request.schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self._reader is not None and backend.server == "vllm":
            body["return_token_ids"] = True
        if parameters.top_k and not backend.extended:
            raise ConfigError(
                "sampling.top_k is no standard field of a chat endpoint: set it to 0, or say "
                "backend.server: vllm or sglang if it is one"
            )
        if parameters.top_k:
            body["top_k"] = parameters.top_k
        return body

    def _read_answer(self, answer: Mapping[str, Any], request: Request) -> Step:
        """Read a server's answer as a step.

        Raises:
            RequestFailed: an answer that is not understood, or tokens that cannot be counted.
        """
        if answer.get("error"):
            _fail("an error in place of an answer", answer["error"])
        choice = _first_choice(answer)
        usage = _as_object(answer.get("usage"))
        cached_tokens = _read_count(usage.get("prompt_tokens_details"), "cached_tokens")
        if self._reader is not None and choice.get("token_ids") is not None:
            step = _step_from_ids(self._reader, answer, choice, request)
            return replace(step, cached_tokens=cached_tokens)
        if not isinstance(choice.get("message"), dict):
            _fail("an answer without a message", answer)
        finish = _read_finish(choice, usage, request.parameters.max_tokens)
        closing = CLOSING if self._reader is None else self._reader.closing
        message = cast(dict[str, Any], choice["message"])
        parsed, text, trace = _parse_message(
            message, request, finished=finish == "stop", closing=closing
        )
        prompt_tokens = _read_count(usage, "prompt_tokens")
        total = _read_count(usage, "completion_tokens")
        reasoning = _read_count(usage.get("completion_tokens_details"), "reasoning_tokens")
        is_empty = not (text or trace or parsed.tool_calls)
        answer_total = (total or 0) - (reasoning or 0)
        if self._reader is not None and is_empty and answer_total > _FRAMING_TOKENS:
            raise RequestFailed(
                f"the server wrote {total} tokens, and its answer holds none: its parser took out "
                "what it read as a call that no tool was declared for; say backend.server: vllm, "
                "which is asked for token ids, or serve without --tool-call-parser"
            )
        if not reasoning:
            # some count only what stands behind an opening tag that the model wrote itself
            reasoning = None if trace and self._parts else 0
        # numbers that the server does not give are counted here
        count = self._count
        if count is not None:
            if reasoning is None:
                reasoning = count(trace)
            if finish == "length" and not trace and total is not None:
                # the server's total is exact: there are no tags in it, and no stop token
                pass
            elif self._reader is not None and (total is None or not message.get("tool_calls")):
                # the server's total has the tags and the stop token, too
                total = reasoning + count(text.rpartition(CLOSE)[2])
            elif self._reader is not None and total is not None:
                # calls come parsed, without the text that could be counted
                total -= int(bool(trace)) + int(finish == "stop")
            if total is None:
                total = reasoning + count(text)
            if prompt_tokens is None:
                # the messages' texts alone: how the server frames them is not known
                prompt_tokens = sum(count(prompt.content) for prompt in request.messages)
        if reasoning is None or total is None or prompt_tokens is None:
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
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
        )


def _as_object(value: Any) -> dict[str, Any]:
    """A JSON value if it is an object, else {}."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _first_choice(answer: Mapping[str, Any]) -> dict[str, Any]:
    """First of an answer's choices; {} where it has none."""
    choices: Any = answer.get("choices")
    if isinstance(choices, list) and choices:
        return _as_object(choices[0])
    return {}


def _fail(problem: str, value: object) -> NoReturn:
    """Raise RequestFailed with a problem and the beginning of the value that has it."""
    raise RequestFailed(f"{problem}: {writable(repr(value)[:200])}")


def _read_count(row: Any, key: str) -> int | None:
    """Count under a key of an object, written as a number or as text; None without a count."""
    value = _as_object(row).get(key)
    # 11 digits are more tokens than any answer has
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value >= 0 and value % 1 == 0 else None


def _read_finish(
    choice: Mapping[str, Any], usage: Mapping[str, Any], limit: int
) -> Literal["stop", "length"]:
    """Reason why an answer ended; without one in the answer, by its tokens against the limit."""
    reason = choice.get("finish_reason")
    if reason in _STOP:
        return "stop"
    if reason in _LENGTH:
        return "length"
    if reason is not None:
        _fail("ended by", reason)
    tokens = _read_count(usage, "completion_tokens")
    if tokens is None:
        _fail("no finish reason", reason)
    return "length" if tokens >= limit else "stop"


def _step_from_ids(
    reader: StepReader, answer: Mapping[str, Any], choice: Mapping[str, Any], request: Request
) -> Step:
    """Read the step of an answer that came with its token ids.

    Raises:
        RequestFailed: ids that `output_of` refuses, or none of the prompt.
    """
    output = output_of(choice, request.parameters.max_tokens, reader.stop_ids, logps=False)
    prompt_ids = answer.get("prompt_token_ids")
    if not isinstance(prompt_ids, list) or not prompt_ids:
        _fail("token ids without those of the prompt", prompt_ids)
    prompt_ids = cast(list[int], prompt_ids)
    opened = opens_reasoning(reader.decode(prompt_ids[-_PROMPT_END:]))
    step = reader.step(request, output, opened=opened, prompt_tokens=len(prompt_ids))
    # no ids: the server rendered, so those between two steps are not known, and a completion has
    # either all of its ids or none
    return replace(step, ids=None)


def _parse_message(
    message: Mapping[str, Any], request: Request, *, finished: bool, closing: str | None
) -> tuple[ParsedCompletion, str, str]:
    """Parse a server's message.

    Args:
        finished: True where no limit ended the answer.
        closing: text between reasoning and answer, as of `parse_completion`; None for a template
            without reasoning.

    Returns:
        The parsed completion, and content and reasoning as the server sent them.
    """
    text, reasoning_in_parts = _content_texts(message.get("content"))
    traces = [message[name] for name in REASONING if message.get(name) is not None]
    if any(not isinstance(trace, str) for trace in traces):
        _fail("reasoning that is no text", traces)
    # reasoning that the server parsed; None without any
    server_reasoning = writable(next(filter(None, [*traces, reasoning_in_parts]), "")) or None
    if not text and isinstance(message.get("refusal"), str):
        text = writable(message["refusal"])
    # servers without a reasoning parser leave the trace in the content
    inline = server_reasoning is None and request.thinking and CLOSE in text
    trace = server_reasoning or ""
    content = text
    if inline:
        trace = text.partition(CLOSE)[0].removeprefix(OPEN)
    elif server_reasoning is not None:
        # a server's parser leaves in both what the template wrote around the closing tag
        server_reasoning, content = without_framing(
            server_reasoning, text, closing=closing or CLOSING
        )
    parsed = parse_completion(
        content,
        thinking=inline,
        tools=request.tools,
        end_tokens=(),
        closing=closing or CLOSING,
    )
    calls, malformed_calls = _read_calls(message)
    problems = parsed.problems
    if malformed_calls:
        problems = (*problems, "malformed_call")
    if trace and not finished and not text and not calls:
        problems = (*problems, "unclosed_think")
    # behind an answer the template writes a line break before a call, which is no part of it either
    answer = parsed.answer
    if calls and not malformed_calls:
        answer = answer.removesuffix("\n")
    reasoning = server_reasoning
    if inline:
        reasoning = parsed.reasoning
    elif request.thinking and reasoning is None:
        reasoning = ""
    completion = ParsedCompletion(
        reasoning=reasoning,
        answer=answer + malformed_calls,
        tool_calls=(*parsed.tool_calls, *calls),
        problems=tuple(dict.fromkeys(problems)),
        finished=finished,
    )
    return completion, text, trace


def _content_texts(content: Any) -> tuple[str, str]:
    """Text and reasoning of a content, which is a text, null, or a list of parts of both kinds."""
    if content is None or isinstance(content, str):
        return writable(content or ""), ""
    if not isinstance(content, list):
        _fail("a content that is neither text nor parts", content)
    texts = {"text": "", "thinking": ""}
    for part in cast(list[Any], content):
        row = _as_object(part)
        kind = str(row.get("type", "text"))
        kind = {"output_text": "text", "reasoning": "thinking"}.get(kind, kind)
        value: Any = row.get(kind, row.get("text")) if kind in texts else None
        if kind == "thinking" and isinstance(value, list):
            # reasoning may be a list of text parts in turn
            value, _ = _content_texts(value)
        if not isinstance(value, str):
            _fail("a content part that is no text", part)
        texts[kind] += writable(value)
    return texts["text"], texts["thinking"]


def _read_calls(message: Mapping[str, Any]) -> tuple[tuple[ToolCall, ...], str]:
    """Read a message's tool calls. Returns the well-formed ones, and the others as JSON lines."""
    rows: Any = message.get("tool_calls") or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in cast(Any, rows)):
        _fail("tool calls that are no list of objects", rows)
    rows = cast(list[dict[str, Any]], rows)
    if message.get("function_call") is not None:
        # the field that `tool_calls` has replaced
        rows = [*rows, {"function": message["function_call"]}]
    calls: list[ToolCall] = []
    malformed_calls: list[str] = []
    for row in rows:
        function = _as_object(row.get("function"))
        name = function.get("name")
        arguments = _read_arguments(function.get("arguments"))
        if arguments is not None and isinstance(name, str) and name:
            call_id = row.get("id") if isinstance(row.get("id"), str) else None
            calls.append(ToolCall(writable(name), writable(arguments), call_id))
            continue
        try:
            malformed_calls.append(writable(encode_json(row)))
        except ValueError as error:
            _fail("a tool call that cannot be kept", error)
    return tuple(calls), "\n".join(malformed_calls)


def _read_arguments(value: Any) -> str | None:
    """JSON text of a call's arguments, given as an object or as its text; None for any other."""
    if value is None or value == "":
        # a call without arguments is also written in these ways
        return encode_json({})
    try:
        if isinstance(value, str):
            value = load_json(value)
        return encode_json(value) if isinstance(value, dict) else None
    except ValueError:
        return None


def _message_row(message: Message, backend: ChatBackend) -> dict[str, Any]:
    """Convert a message to the form that the server reads."""
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        row["tool_calls"] = []
        for index, call in enumerate(message.tool_calls):
            function = {"name": call.name, "arguments": call.arguments}
            call_id = call.id or f"call_{index}"
            row["tool_calls"].append({"id": call_id, "type": "function", "function": function})
    if message.tool_call_id is not None:
        row["tool_call_id"] = message.tool_call_id
    if message.reasoning and backend.extended:
        # earlier vLLM and SGLang read the first, vLLM of today the second
        row["reasoning_content"] = message.reasoning
        row["reasoning"] = message.reasoning
    if message.name is not None and (backend.extended or message.role != "tool"):
        row["name"] = message.name
    return row


# -- as an event stream ----------------------------------------------------------------------------


class StreamingChatSampler(ChatSampler):
    """A `ChatSampler` of one request at a time, which shows the answer while it arrives.

    Args:
        show: called with each piece of text and its kind.
        left_to_server: fields of the request that are not sent, so that the server's defaults hold.
    """

    def __init__(
        self,
        client: Client,
        backend: ChatBackend,
        *,
        show: Callable[[Kind, str], None],
        left_to_server: Collection[str],
    ) -> None:
        # counts in characters: not every server counts in a stream, and no one reads the lengths
        super().__init__(client, backend, count=len, parts=False)
        self._show = show
        self._left_to_server = left_to_server

    async def sample(
        self, requests: Sequence[Request], *, progress: Progress = None
    ) -> list[Generation]:
        """Sample the answer to the only request; a failed request is not tried again."""
        [request] = requests
        body: dict[str, Any] = {}
        for name, value in self._request_body(request).items():
            if name not in self._left_to_server:
                body[name] = value
        message = StreamedMessage(self._show)
        try:
            stream = self._client.stream("/chat/completions", body | {"stream": True})
            async with contextlib.aclosing(stream) as events:
                async for event in events:
                    message.add(event)
            return [Generation(self._read_answer(message.body(), request))]
        except RequestFailed as error:
            return [Generation(None, error=str(error))]


class StreamedMessage:
    """Message of a stream, joined from its deltas as the server would have sent it whole."""

    def __init__(self, show: Callable[[Kind, str], None]) -> None:
        self._show = show
        self._fields: dict[str, Any] = {}
        self._calls: list[dict[str, Any]] = []
        # the last call of each index
        self._call_at: dict[str, dict[str, Any]] = {}
        # fields of the answer beside its choices
        self._answer_fields: dict[str, Any] = {}
        self._finish: object = None
        # first half of a character that came in two pieces
        self._half = ""

    def add(self, event: Mapping[str, Any]) -> None:
        """Join one event to the message.

        Raises:
            RequestFailed: an error in place of a delta, or a delta that is not understood.
        """
        if event.get("error"):
            _fail("an error in the stream", event["error"])
        if event.get("usage"):
            self._answer_fields["usage"] = event["usage"]
        choice = _first_choice(event)
        if choice.get("index") not in (None, 0):
            return
        if choice.get("finish_reason") is not None:
            self._finish = choice["finish_reason"]
        delta: Any = choice.get("delta")
        if not isinstance(delta, dict):
            # an answer that came whole
            delta = choice.get("message")
        if not isinstance(delta, dict):
            return
        delta = cast(dict[str, Any], delta)
        traces = [name for name in REASONING if delta.get(name)]
        for name in (*traces, "content"):
            if delta.get(name):
                self._append(name, delta[name])
                # a server may send the same trace under two names
                if name not in traces[1:]:
                    self._show_piece("answer" if name == "content" else "reasoning", delta[name])
        for name in ("refusal", "function_call"):
            if delta.get(name):
                self._merge(self._fields, {name: delta[name]})
        calls: Any = delta.get("tool_calls") or []
        if not isinstance(calls, list):
            raise RequestFailed("tool calls that are no list")
        for piece in cast(list[Any], calls):
            self._add_call(piece)

    def _append(self, name: str, piece: Any) -> None:
        """Append a piece of a field, which is a text or a list of parts."""
        if not isinstance(piece, str | list):
            raise RequestFailed(f"a {name} that is neither text nor parts")
        received: Any = self._fields.get(name, type(piece)())
        addition: Any = piece
        if isinstance(received, str) != isinstance(piece, str):
            received = _as_parts(received)
            addition = _as_parts(piece)
        self._fields[name] = received + addition

    def _show_piece(self, kind: Kind, piece: Any) -> None:
        """Show the texts of a piece."""
        parts: list[Any] = piece if isinstance(piece, list) else [piece]
        for part in parts:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                # a character beyond U+FFFF may come as two surrogates in two pieces
                text = self._half + text
                self._half = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
                self._show(kind, writable(text.removesuffix(self._half)))

    def _add_call(self, piece: Any) -> None:
        """Join a piece of a tool call to its call, or begin a new call with it."""
        if not isinstance(piece, dict):
            raise RequestFailed("a tool call that is no object")
        piece = cast(dict[str, Any], piece)
        index = piece.get("index")
        call = self._call_at.get(repr(index))
        if index is None:
            # a server without indices: a new id begins a new call
            call = self._calls[-1] if self._calls and piece.get("id") in (None, "") else None
        if call is None:
            self._calls.append(piece)
            self._call_at[repr(index)] = piece
        else:
            self._merge(call, {"function": piece.get("function") or {}})

    def _merge(self, target: dict[str, Any], piece: Mapping[str, Any]) -> None:
        """Merge a piece of an object into the object: texts are joined, objects merged."""
        for key, value in piece.items():
            received = target.get(key)
            if isinstance(received, dict) and isinstance(value, dict):
                self._merge(cast(dict[str, Any], received), cast(dict[str, Any], value))
            elif isinstance(received, str) and isinstance(value, str):
                # a name is sent once, or whole again with every piece
                is_repeated = key == "name" and value == received
                target[key] = received if is_repeated else received + value
            elif value is not None:
                target[key] = value

    def body(self) -> dict[str, Any]:
        """Whole answer, as a server that does not stream would send it."""
        message = {"role": "assistant", "content": None, **self._fields}
        if self._calls:
            message["tool_calls"] = self._calls
        return {
            "choices": [{"message": message, "finish_reason": self._finish}],
            **self._answer_fields,
        }


def _as_parts(content: str | list[Any]) -> list[Any]:
    """Content in the form of a list of parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
