"""One record → the sequences to train on, each a run of trained and untrained text.

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
    """A run of rendered text; `role` and `message_index` are of the message it begins with.

    Text is cut only where tokenising the sides apart is required (the generation boundary) or makes
    no difference (before a special token), so segments may be encoded alone and concatenated.
    """

    text: str
    role: Role | JudgedRole
    trained: bool
    message_index: int


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One sequence to train on.

    `turn` counts the record's user turns when each is a sequence of its own, else 0;
    `trained_messages` are indices into the record's messages.
    """

    record_id: str
    turn: int
    reasoning: ReasoningMode
    segments: tuple[Segment, ...]
    trained_messages: tuple[int, ...]

    @property
    def text(self) -> str:
        """The full text, byte-identical to what the chat template renders."""
        return "".join(segment.text for segment in self.segments)


def render(
    messages: Sequence[Message],
    template: ChatTemplate,
    *,
    tools: str | None = None,
    add_generation_prompt: bool = False,
    **kwargs: Any,
) -> str:
    """The text of a conversation, byte-identical to `tokenizer.apply_chat_template`.

    Args:
        tools: JSON text of the declared tools.
        add_generation_prompt: end with what the model is given to continue.
        kwargs: template variables such as `enable_thinking`.

    Raises:
        RenderError: the template refuses the conversation.
    """
    rows, declared = as_rows(messages, tools)
    return template.text(
        rows, tools=declared, add_generation_prompt=add_generation_prompt, **kwargs
    )


def training_samples(
    example: Example,
    template: ChatTemplate,
    *,
    untrained_close: frozenset[int] = frozenset(),
    every_step: bool = False,
) -> tuple[TrainingSample, ...]:
    """The sequences of one record with their loss masks.

    Args:
        untrained_close: messages whose `</think>` is left untrained because their reasoning was
            cut to a budget (the later models' masking; Nano trains it).
        every_step: each assistant message ends a sequence of its own. Some templates (gpt-oss)
            write a step's text or trace only while nothing follows it.

    Raises:
        RenderError: the template refuses the record, a mask cannot be determined, or a message
            or tool contains a token that frames messages.
    """
    profile = profile_of(template)
    rows, tools = as_rows(example.messages, example.tools)
    refuse_framing(example.messages, example.tools, profile.control_tokens)
    plans = sequences(example.messages, every_turn=profile.every_turn, every_step=every_step)
    mode = example.reasoning_mode
    options = {"tools": tools, "enable_thinking": mode == "on"}
    locate = partial(_LOCATE[profile.mode], template, prompts=profile.prompts, **options)

    def cut(located: Located) -> tuple[Segment, ...]:
        return cut_segments(located, example.messages, template, untrained_close)

    composed = len(plans) > 1 and profile.composable and not every_step
    texts = (text for m in example.messages for text in message_texts(m))
    if composed and not any(map(profile.tags.search, texts)):
        turns = _compose_turns(locate, rows, plans, cut)
    else:
        turns = [cut(locate(rows[: p.stop], p.trained)) for p in plans]
    return tuple(
        TrainingSample(example.id, p.turn, mode, segments, p.trained)
        for p, segments in zip(plans, turns, strict=True)
    )


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
    """Messages and tools as templates take them, their JSON text decoded."""
    try:
        return [message_to_template(message) for message in messages], tools_to_template(tools)
    except (ValueError, RecursionError) as error:
        raise RenderError(f"tool arguments or schemas cannot be decoded: {error}") from error


def _compose_turns(
    locate: Locate, rows: Sequence[Row], plans: Sequence[SequencePlan], cut: Cut
) -> list[tuple[Segment, ...]]:
    """History from one render of everything, each earlier turn's own steps from a render of it."""
    last = plans[-1]  # what follows it is not trained, and would change how it is written
    whole = locate(rows[: last.stop], last.trained)
    history = cut(whole)
    ends = list(itertools.accumulate(len(segment.text) for segment in history))
    earlier: list[tuple[Segment, ...]] = []
    for plan in plans[:-1]:
        resume = whole.starts[plan.first + 1]
        assert resume is not None, "composable: every message after the first user's is located"
        own = cut(_steps(locate, rows, plan))
        count = bisect.bisect_right(ends, resume)
        before = ends[count - 1] if count else 0
        if before < resume:  # no special token to cut at: history runs on into the prompt
            joint = history[count]._replace(text=whole.text[before:resume])
            if own[0].trained:
                own = (joint, *own)
            else:
                own = (joint._replace(text=joint.text + own[0].text), *own[1:])
        earlier.append(history[:count] + own)
    return [*earlier, history]


def _steps(locate: Locate, rows: Sequence[Row], plan: SequencePlan) -> Located:
    """A turn after its user message, from a render of the turn alone."""
    first, wanted = plan.first, [k - plan.first for k in plan.trained]
    alone = locate(rows[first : plan.stop], wanted, tools=None, first=first)
    resume = alone.starts[1]
    assert resume is not None, "composable: every message of a turn is located"
    starts = [start - resume for start in alone.starts[1:] if start is not None]
    return Located(
        alone.text[resume:],
        (*(None,) * (first + 1), *starts),
        {k + first: (start - resume, end - resume) for k, (start, end) in alone.spans.items()},
    )


def cut_segments(
    located: Located,
    messages: Sequence[Message],
    template: ChatTemplate,
    untrained_close: frozenset[int],
) -> tuple[Segment, ...]:
    """Cut text at mask boundaries, and before messages that begin with a special token."""
    text = located.text
    trained: set[tuple[int, int]] = set()
    for k, span in located.spans.items():
        trained.update(_without_close(text, *span) if k in untrained_close else (span,))
    heads = {s for s in located.starts if s is not None and template.special_at(text, s)}
    edges = {0, len(text), *heads, *(edge for span in trained for edge in span)}
    owner = _owner_of(located, len(messages))
    segments: list[Segment] = []
    for start, stop in itertools.pairwise(sorted(edges)):
        k = owner(start)
        segments.append(Segment(text[start:stop], messages[k].role, (start, stop) in trained, k))
    return tuple(segments)


def _without_close(text: str, start: int, stop: int) -> tuple[tuple[int, int], ...]:
    """A trained span minus its first `</think>` and the newline before it."""
    at = text.find(CLOSE, start, stop)
    if at < 0:
        raise RenderError(
            "a truncated trace has no </think> in its rendered text to leave untrained"
        )
    until = at + len(CLOSE)
    if at > start and text[at - 1] == "\n":
        at -= 1
    return tuple((a, b) for a, b in ((start, at), (until, stop)) if a < b)


def _owner_of(located: Located, count: int) -> Callable[[int], int]:
    """A function from offset to the index of the message it belongs to."""
    known = [(start, k) for k, start in enumerate(located.starts) if start is not None]
    if not known:  # only the trained messages were located: what follows one is the next one's
        edges = {stop: k + 1 for k, (_, stop) in located.spans.items()}
        known = sorted({**edges, **{start: k for k, (start, _) in located.spans.items()}}.items())
    offsets = [start for start, _ in known]

    def owner(offset: int) -> int:
        at = bisect.bisect_right(offsets, offset)
        return min(known[at - 1][1] if at else 0, count - 1)

    return owner


# -- tokens that frame messages, where they have no business: inside what somebody wrote ----------


def refuse_framing(
    messages: Sequence[Message], tools: str | None, tokens: re.Pattern[str], *, first: int = 0
) -> None:
    """Refuse texts that would forge the boundary of a message once tokenised.

    Args:
        tokens: of the template (`Profile.control_tokens`).
        first: what the first message is called.

    Raises:
        RenderError: naming the message and the token.
    """
    texts = [(k, text) for k, message in enumerate(messages) for text in message_texts(message)]
    if tools:
        texts.append((-1, _unescaped(tools)))
    for k, text in texts:
        if match := tokens.search(text):
            place = f"message {first + k} ({messages[k].role})" if k >= 0 else "a declared tool"
            raise RenderError(
                f"{place} contains {match[0]!r}, which would end the message early once tokenised"
            )


def message_texts(message: Message) -> list[str]:
    """All of a message that a template may write."""
    own = message.content, message.reasoning, message.name, message.tool_call_id
    texts = [text for text in own if text]
    for call in message.tool_calls:
        texts += [call.name, call.id or "", _unescaped(call.arguments)]
    return texts


def _unescaped(text: str) -> str:
    """JSON text as a template will write it: a token may hide behind escapes such as \\u003c."""
    return json_text(json.loads(text)) if "\\" in text else text
