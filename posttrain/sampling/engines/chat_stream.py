"""A server's `/chat/completions` as an event stream: its pieces are shown while they come, and put
together to the message that `ChatSampler` reads. A stream that breaks off is a failed request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, cast

from posttrain.config.backend import ChatBackend
from posttrain.jsontext import writable
from posttrain.sampling.engines.chat import REASONING, ChatSampler
from posttrain.sampling.engines.http import Client, RequestFailed
from posttrain.sampling.sampler import Generation, Progress, Request

Kind = Literal["reasoning", "answer"]


class StreamingChatSampler(ChatSampler):
    """A `ChatSampler` of one request at a time that shows what comes.

    Args:
        show: called with (kind, text).
        left_to_server: sampling fields that are not sent, so that the server's own defaults hold.
    """

    def __init__(
        self,
        client: Client,
        backend: ChatBackend,
        *,
        show: Callable[[Kind, str], None],
        left_to_server: Collection[str] = (),
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
    """The deltas of a stream, put together."""

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
            raise RequestFailed(f"an error in the stream: {writable(repr(event['error'])[:200])}")
        if event.get("usage"):
            self._rest["usage"] = event["usage"]
        choices: Any = event.get("choices")
        choice: Any = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or choice.get("index") not in (None, 0):
            return
        if choice.get("finish_reason") is not None:
            self._finish = choice["finish_reason"]
        delta: Any = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message")  # an answer that came whole
        if isinstance(delta, dict):
            self._take(cast(dict[str, Any], delta))

    def _take(self, delta: dict[str, Any]) -> None:
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
        message = {"role": "assistant", "content": None, **self._fields}
        if self._calls:
            message["tool_calls"] = self._calls
        return {"choices": [{"message": message, "finish_reason": self._finish}], **self._rest}
