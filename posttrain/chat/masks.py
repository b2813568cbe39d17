"""Sequences to train on from one record, each cut into trained and untrained text.

Masks follow NVIDIA's data preparation: the generation prompt with its `<think>\\n` or
`<think></think>` is not trained, everything the assistant then writes through `<|im_end|>\\n` is.
"""

from __future__ import annotations

import bisect
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from posttrain.chat.locate import (
    Located,
    Row,
    SequencePlan,
    locate_generation_tags,
    locate_prefix,
    locate_single_pass,
    sequences,
)
from posttrain.chat.profile import Mode, profile_of
from posttrain.chat.reasoning import CLOSE
from posttrain.chat.template import ChatTemplate
from posttrain.errors import RenderError
from posttrain.records import (
    Example,
    JudgedRole,
    Message,
    ReasoningMode,
    Role,
    json_text,
    message_to_template,
    tools_to_template,
)


class Segment(NamedTuple):
    """A run of rendered text that is trained or not.

    Text is cut only where tokenising the sides apart is required (the generation boundary) or makes
    no difference (before a special token), so segments may be encoded alone and concatenated.

    Attributes:
        text: the text.
        role: role of the message that it begins with.
        trained: true if the loss sees its tokens.
        message_index: index of the message that it begins with.
    """

    text: str
    role: Role | JudgedRole
    trained: bool
    message_index: int


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One sequence to train on.

    Attributes:
        record_id: id of the record.
        turn: number of the user turn when each is a sequence of its own, else 0.
        reasoning: reasoning mode that the record is rendered in.
        segments: the text in pieces.
        trained_messages: indices of the trained messages in the record.
    """

    record_id: str
    turn: int
    reasoning: ReasoningMode
    segments: tuple[Segment, ...]
    trained_messages: tuple[int, ...]

    @property
    def text(self) -> str:
        """Whole text of the sequence, byte for byte as the chat template renders it."""
        return "".join(segment.text for segment in self.segments)


def render(
    messages: Sequence[Message],
    template: ChatTemplate,
    *,
    tools: str | None = None,
    add_generation_prompt: bool = False,
    **kwargs: Any,
) -> str:
    """Render a conversation, byte-identical to `tokenizer.apply_chat_template`.

    Args:
        messages: the conversation.
        template: the template that writes it.
        tools: JSON text of the declared tools.
        add_generation_prompt: end with the prompt that the model continues.
        kwargs: template variables such as `enable_thinking`.

    Raises:
        RenderError: the template refuses the conversation.
    """
    rows, tool_rows = as_rows(messages, tools)
    return template.text(
        rows, tools=tool_rows, add_generation_prompt=add_generation_prompt, **kwargs
    )


def training_samples(
    example: Example,
    template: ChatTemplate,
    *,
    untrained_close: frozenset[int] = frozenset(),
    every_step: bool = False,
) -> tuple[TrainingSample, ...]:
    """Render the sequences of one record with their loss masks.

    Args:
        example: the record.
        template: the template that writes it.
        untrained_close: messages whose `</think>` is left untrained because their reasoning was
            cut to a budget (the later models' masking; Nano trains it).
        every_step: end a sequence at each assistant message. Some templates (gpt-oss) write a
            step's text or trace only while nothing follows it.

    Raises:
        RenderError: the template refuses the record, a mask cannot be determined, or a message
            or tool contains a token that frames messages.
    """
    profile = profile_of(template)
    rows, tools = as_rows(example.messages, example.tools)
    # before anything is rendered: a forged boundary would move the mask as well as the text
    refuse_framing(example.messages, example.tools, profile.control_tokens)
    # templates drop the reasoning of earlier turns, so that a later prompt does not continue what
    # an earlier turn was trained on: each turn is a sequence of its own
    plans = sequences(example.messages, every_turn=profile.every_turn, every_step=every_step)
    mode = example.reasoning_mode
    options = {"tools": tools, "enable_thinking": mode == "on"}
    locate = partial(_LOCATE[profile.mode], template, prompts=profile.prompts, **options)

    def cut(located: Located) -> tuple[Segment, ...]:
        return cut_segments(located, example.messages, template, untrained_close)

    composable = len(plans) > 1 and profile.composable and not every_step
    # a template may look for its own tags in what was written, and then history changes
    if composable and not _any_text_matches(example.messages, profile.tags):
        turns = _compose_turns(locate, rows, plans, cut)
    else:
        turns = [cut(locate(rows[: plan.stop], plan.trained)) for plan in plans]
    return tuple(
        TrainingSample(example.id, plan.turn, mode, segments, plan.trained)
        for plan, segments in zip(plans, turns, strict=True)
    )


def _any_text_matches(messages: Sequence[Message], pattern: re.Pattern[str]) -> bool:
    """Check whether a pattern occurs in any text of the messages."""
    return any(pattern.search(text) for message in messages for text in message_texts(message))


Locate = Callable[..., Located]
Cut = Callable[[Located], tuple[Segment, ...]]
_LOCATE: Mapping[Mode, Locate] = {
    "single-pass": locate_single_pass,
    "prefix": locate_prefix,
    "generation-tags": locate_generation_tags,
}


def as_rows(
    messages: Iterable[Message], tools: str | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Convert messages and tools to the rows that templates take, their JSON text decoded.

    Raises:
        RenderError: a JSON text cannot be decoded.
    """
    try:
        return [message_to_template(message) for message in messages], tools_to_template(tools)
    except (ValueError, RecursionError) as error:
        raise RenderError(f"tool arguments or schemas cannot be decoded: {error}") from error


def _compose_turns(
    locate: Locate, rows: Sequence[Row], plans: Sequence[SequencePlan], cut: Cut
) -> list[tuple[Segment, ...]]:
    """Compose each turn of the history before it and of a render of the turn alone.

    The history of all turns comes from one render of the whole conversation, so that the work is
    linear in the number of turns.
    """
    # messages behind it are not trained, and would change how it is written
    last_plan = plans[-1]
    conversation = locate(rows[: last_plan.stop], last_plan.trained)
    history = cut(conversation)
    history_ends = list(itertools.accumulate(len(segment.text) for segment in history))
    earlier: list[tuple[Segment, ...]] = []
    for plan in plans[:-1]:
        answer_start = conversation.starts[plan.first + 1]
        assert answer_start is not None, "composable: every message after the first user's has one"
        steps = cut(_locate_steps(locate, rows, plan))
        # segments end where tokens may be cut, so only whole ones can be taken from the history
        count = bisect.bisect_right(history_ends, answer_start)
        history_end = history_ends[count - 1] if count else 0
        if history_end < answer_start:
            # there is no special token to cut at: history runs on into the generation prompt
            joint = history[count]._replace(text=conversation.text[history_end:answer_start])
            if steps[0].trained:
                steps = (joint, *steps)
            else:
                # both are untrained, and inference tokenises a prompt in one piece
                steps = (joint._replace(text=joint.text + steps[0].text), *steps[1:])
        earlier.append(history[:count] + steps)
    return [*earlier, history]


def _locate_steps(locate: Locate, rows: Sequence[Row], plan: SequencePlan) -> Located:
    """Locate the messages of a turn behind its user message, in a render of the turn alone."""
    first = plan.first
    trained = [k - first for k in plan.trained]
    # tools are written before the first turn, which the history has
    alone = locate(rows[first : plan.stop], trained, tools=None, first=first)
    answer_start = alone.starts[1]
    assert answer_start is not None, "composable: every message of a turn is located"
    starts = [start - answer_start for start in alone.starts[1:] if start is not None]
    spans: dict[int, tuple[int, int]] = {}
    for k, (start, end) in alone.spans.items():
        spans[k + first] = (start - answer_start, end - answer_start)
    return Located(alone.text[answer_start:], (*(None,) * (first + 1), *starts), spans)


def cut_segments(
    located: Located,
    messages: Sequence[Message],
    template: ChatTemplate,
    untrained_close: frozenset[int],
) -> tuple[Segment, ...]:
    """Cut text at mask boundaries, and before messages that begin with a special token."""
    text = located.text
    trained_spans: set[tuple[int, int]] = set()
    for k, span in located.spans.items():
        trained_spans.update(_without_close(text, *span) if k in untrained_close else (span,))
    edges = {0, len(text)}
    for span in trained_spans:
        edges.update(span)
    for start in located.starts:
        # no tokenizer joins a special token with the text before it: a cut there changes no id
        if start is not None and template.special_at(text, start):
            edges.add(start)
    message_at = _message_finder(located, len(messages))
    segments: list[Segment] = []
    for start, stop in itertools.pairwise(sorted(edges)):
        k = message_at(start)
        is_trained = (start, stop) in trained_spans
        segments.append(Segment(text[start:stop], messages[k].role, is_trained, k))
    return tuple(segments)


def _without_close(text: str, start: int, stop: int) -> tuple[tuple[int, int], ...]:
    """Split a trained span around its first `</think>` and the newline before it."""
    close_start = text.find(CLOSE, start, stop)
    if close_start < 0:
        raise RenderError(
            "a truncated trace has no </think> in its rendered text to leave untrained"
        )
    close_stop = close_start + len(CLOSE)
    # a client that closes a trace at its budget writes the newline with the tag
    if close_start > start and text[close_start - 1] == "\n":
        close_start -= 1
    spans = ((start, close_start), (close_stop, stop))
    return tuple(span for span in spans if span[0] < span[1])


def _message_finder(located: Located, count: int) -> Callable[[int], int]:
    """Build a function from an offset to the index of the message that it belongs to."""
    message_of_start = {start: k for k, start in enumerate(located.starts) if start is not None}
    if not message_of_start:
        # only the trained messages were located: text behind one belongs to the next message,
        # unless a trained one begins there
        message_of_start = {stop: k + 1 for k, (_, stop) in located.spans.items()}
        message_of_start |= {start: k for k, (start, _) in located.spans.items()}
    starts = sorted(message_of_start)

    def message_at(offset: int) -> int:
        position = bisect.bisect_right(starts, offset)
        k = message_of_start[starts[position - 1]] if position else 0
        # a closing text of the template, behind the last message, belongs to that message
        return min(k, count - 1)

    return message_at


# -- tokens that frame messages and must not stand inside a message's text -------------------------


def refuse_framing(
    messages: Sequence[Message], tools: str | None, tokens: re.Pattern[str], *, first: int = 0
) -> None:
    """Refuse texts that would forge the boundary of a message once tokenised.

    Args:
        messages: the messages to look at.
        tools: JSON text of the declared tools.
        tokens: the tokens that frame messages (`Profile.control_tokens`).
        first: number of the first message, for the error.

    Raises:
        RenderError: naming the message and the token.
    """
    for k, message in enumerate(messages, start=first):
        for text in message_texts(message):
            _refuse_token(text, tokens, f"message {k} ({message.role})")
    if tools:
        _refuse_token(_unescaped(tools), tokens, "a declared tool")


def _refuse_token(text: str, tokens: re.Pattern[str], source: str) -> None:
    """Refuse a text that holds one of the tokens; `source` names the text in the error."""
    match = tokens.search(text)
    if match:
        raise RenderError(
            f"{source} contains {match[0]!r}, which would end the message early once tokenised"
        )


def message_texts(message: Message) -> list[str]:
    """List all texts of a message that a template may write."""
    fields = (message.content, message.reasoning, message.name, message.tool_call_id)
    texts = [text for text in fields if text]
    for call in message.tool_calls:
        texts += [call.name, call.id or "", _unescaped(call.arguments)]
    return texts


def _unescaped(text: str) -> str:
    """Resolve escapes in JSON text, as a template does: a token may hide behind \\u003c."""
    # without a backslash nothing is escaped, and most arguments need not be decoded again
    return json_text(json.loads(text)) if "\\" in text else text
