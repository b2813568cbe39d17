"""How a template ends an assistant's turn, opens and closes its reasoning, and goes on after tools.

    turns = turn_format(template, encoder, also_stops=(2,))
    turns.stop_ids, turns.close_id, turns.closing      (2, 11), 5, "\\n</think>\\n"
    turns.between(messages, tools=…, thinking=True)    "\\n<|im_start|>user\\n<tool_response>…"

All of it is learnt from what the template writes around a few words, so that any template works
that ends turns with a special token; others are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posttrain.chat import ChatTemplate
from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.errors import ConfigError, RenderError
from posttrain.records import Message, ToolCall, message_to_template, tools_to_template

Encode = Callable[[Sequence[str]], list[list[int]]]
_ASKED, _THOUGHT, _SAID, _RESULT = "q0", "r0", "a0", "result0"


@dataclass(frozen=True)
class TurnFormat:
    """What sampling must know of a template and its tokenizer.

    Attributes:
        stop_ids: tokens that end generation; `stop_texts` are their texts.
        open_id, close_id: the think tags, None where they are not single tokens.
        closing: what the template writes between a trace and an answer; None where it writes none.
        writes_results: False for a template that leaves tool results out without a word.
    """

    template: ChatTemplate
    stop_ids: tuple[int, ...]
    stop_texts: tuple[str, ...]
    open_id: int | None
    close_id: int | None
    closing: str | None
    writes_results: bool

    def between(self, messages: Sequence[Message], *, tools: str | None, thinking: bool) -> str:
        """The text from behind the last assistant's end token to where the next one begins.

        Args:
            messages: end with the results of the last assistant message's calls.

        Raises:
            RenderError: the template refuses them, or puts no end token behind a turn with calls.
        """
        if not self.writes_results:
            raise RenderError(f"{self.template.name} does not write tool results")
        rows = [message_to_template(message) for message in messages]
        declared = tools_to_template(tools)
        last = max(k for k, m in enumerate(messages) if m.role == "assistant")
        since = messages[last + 1 :]
        # a new user turn may change what the template writes of the turns before it
        assert since, "nothing has come since"
        assert all(m.role == "tool" for m in since), "only tool results continue a turn"
        layout = self.template.layout(
            rows, tools=declared, add_generation_prompt=True, enable_thinking=thinking
        )
        starts = layout.starts or ()
        first = starts[last] if starts else None
        following = starts[last + 1] if starts else None
        if first is None or following is None:
            raise RenderError(
                f"{self.template.name}: its messages cannot be told apart, so nothing can be put "
                "behind a turn whose token ids must stay as they are"
            )
        ends = [
            layout.text.rindex(text, first, following) + len(text)
            for text in self.stop_texts
            if text in layout.text[first:following]
        ]
        if not ends:
            raise RenderError(f"{self.template.name}: a turn with calls has no end token")
        return layout.text[max(ends) :]


def turn_format(
    template: ChatTemplate, encode: Encode, *, also_stops: Sequence[tuple[int, str]] = ()
) -> TurnFormat:
    """Try the template on a few words.

    Args:
        encode: texts → ids, nothing added.
        also_stops: further ids, with their texts, at which the model was made to stop.

    Raises:
        ConfigError: it refuses them, or no special token ends a turn and none is in `also_stops`.
    """
    end = _end_token(template)
    stops = {} if end is None else {encode([end])[0][0]: end}
    stops |= dict(also_stops)
    if not stops:
        raise ConfigError(
            f"{template.name}: behind an assistant's words it writes no special token of this "
            "tokenizer, and the model names no token to stop at: a sample would have no end"
        )
    single = [found[0] if len(found) == 1 else None for found in encode([OPEN, CLOSE])]
    return TurnFormat(
        template=template,
        stop_ids=tuple(stops),
        stop_texts=tuple(stops.values()),
        open_id=single[0],
        close_id=single[1],
        closing=_closing(template),
        writes_results=_writes_results(template),
    )


def _end_token(template: ChatTemplate) -> str | None:
    """The first special token behind an assistant's words."""
    text = _answered(template, Message("assistant", _SAID), thinking=False)
    behind = text.rindex(_SAID) + len(_SAID) if _SAID in text else len(text)
    longest_first = sorted(template.special_tokens, key=len, reverse=True)
    found = re.search("|".join(map(re.escape, longest_first)) or "(?!)", text[behind:])
    return found[0] if found else None


def _closing(template: ChatTemplate) -> str | None:
    try:
        message = Message("assistant", _SAID, reasoning=_THOUGHT)
        text = _answered(template, message, thinking=True)
    except ConfigError:
        return None
    _, found, rest = text.partition(_THOUGHT)
    closing, answered, _ = rest.partition(_SAID)
    return closing if found and answered and CLOSE in closing else None


def _writes_results(template: ChatTemplate) -> bool:
    """False only where a conversation with a result renders, and the result is not in it."""
    call = ToolCall("look_up", "{}", id="call00000")
    messages = (
        Message("user", _ASKED),
        Message("assistant", tool_calls=(call,)),
        Message("tool", _RESULT, tool_call_id=call.id, name=call.name),
    )
    try:
        return _RESULT in template.text([message_to_template(m) for m in messages])
    except RenderError:
        return True  # such conversations are refused one by one, each with its reason


def _answered(template: ChatTemplate, message: Message, *, thinking: bool) -> str:
    rows = [message_to_template(m) for m in (Message("user", _ASKED), message)]
    try:
        return template.text(rows, enable_thinking=thinking)
    except RenderError as error:
        raise ConfigError(f"{template.name} cannot write a plain answer: {error}") from error
