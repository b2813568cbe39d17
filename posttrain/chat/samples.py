"""One record → the sequences to train on, each a run of trained and untrained text.

    training_samples(example, nemotron_3_nano_template())
    → (TrainingSample("5f0c…", turn=0, reasoning="on", segments=(…), trained_messages=(1,)),)

Masks follow NVIDIA's data preparation: the generation prompt with its `<think>\\n` or
`<think></think>` is not trained, everything the assistant then writes through `<|im_end|>\\n` is.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from posttrain.chat.locate import (
    Located,
    locate_generation_tags,
    locate_prefix,
    locate_single_pass,
)
from posttrain.chat.profile import Profile, profile_of
from posttrain.chat.segments import Segment, TrainingSample
from posttrain.chat.sequences import Sequence as Plan
from posttrain.chat.sequences import sequences
from posttrain.chat.template import ChatTemplate, Layout
from posttrain.errors import RenderError
from posttrain.records import (
    Example,
    Message,
    json_text,
    message_to_template,
    tools_to_template,
)

THINK_CLOSE = "</think>"


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
        messages: the conversation.
        template: the chat template.
        tools: JSON text of the declared tools.
        add_generation_prompt: end with what the model is given to continue.
        kwargs: template variables such as `enable_thinking`.

    Raises:
        RenderError: the template refuses the conversation.
    """
    rows, declared = _as_rows(messages, tools)
    return template.text(
        rows,
        tools=declared,
        add_generation_prompt=add_generation_prompt,
        **kwargs,
    )


def training_samples(
    example: Example,
    template: ChatTemplate,
    *,
    untrained_close: frozenset[int] = frozenset(),
) -> tuple[TrainingSample, ...]:
    """The sequences of one record with their loss masks.

    Each message is rendered at most twice, however many turns there are, for every template whose
    turns compose (`posttrain.chat.profile`).

    Args:
        example: the record.
        template: the chat template.
        untrained_close: messages whose `</think>` is left untrained because their reasoning was
            cut to a budget (the later models' masking; Nano trains it).

    Raises:
        RenderError: the template refuses the record, a mask cannot be determined, or a message
            or tool contains a token that frames messages.
    """
    profile = profile_of(template)
    rows, tools = _as_rows(example.messages, example.tools)
    _refuse_control_tokens(example, profile)
    plan = sequences(example.messages, every_turn=profile.every_turn)
    kwargs = {"enable_thinking": example.reasoning_mode == "on"}
    if len(plan) > 1 and profile.composable and not _has_markup(example, profile):
        located = _compose_turns(template, profile, rows, tools, plan, kwargs)
    else:
        located = [_locate(template, profile, rows[: p.stop], tools, p, kwargs) for p in plan]
    return tuple(
        TrainingSample(
            record_id=example.id,
            turn=p.turn,
            reasoning=example.reasoning_mode,
            segments=_cut(where, example.messages, template, untrained_close),
            trained_messages=p.trained,
        )
        for p, where in zip(plan, located, strict=True)
    )


def left_out(example: Example, template: ChatTemplate) -> str | None:
    """What of a record the template silently does not write, `None` when it writes everything.

    Training a conversation without its calls or traces would teach something else than it says.
    """
    profile = profile_of(template)
    for k, message in enumerate(example.messages):
        has = {"reasoning": message.reasons, "tool calls": bool(message.tool_calls)}
        for what in profile.leaves_out:
            if message.role == "assistant" and has[what]:
                return f"{profile.name} leaves out {what}, which message {k} has"
    return None


def _as_rows(
    messages: Iterable[Message], tools: str | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Messages and tools as templates take them, their JSON text decoded."""
    try:
        return [message_to_template(message) for message in messages], tools_to_template(tools)
    except (ValueError, RecursionError) as error:
        raise RenderError(f"tool arguments or schemas cannot be decoded: {error}") from error


def _texts(message: Message) -> list[str]:
    return [
        message.content,
        message.reasoning or "",
        message.name or "",
        message.tool_call_id or "",
        *(text for call in message.tool_calls for text in (call.name, call.id or "")),
        *(_unescaped(call.arguments) for call in message.tool_calls),
    ]


def _unescaped(text: str) -> str:
    """JSON text as a template will write it: a token may hide behind escapes such as \\u003c."""
    return json_text(json.loads(text)) if "\\" in text else text


def _refuse_control_tokens(example: Example, profile: Profile) -> None:
    places = [
        (f"message {k} ({message.role})", text)
        for k, message in enumerate(example.messages)
        for text in _texts(message)
    ]
    for place, text in (*places, ("a declared tool", _unescaped(example.tools or ""))):
        found = profile.control_tokens.search(text)
        if found:
            raise RenderError(
                f"{place} contains {found[0]!r}, which would end the message early once tokenised"
            )


def _has_markup(example: Example, profile: Profile) -> bool:
    return any(profile.tags.search(text) for m in example.messages for text in _texts(m))


def _locate(
    template: ChatTemplate,
    profile: Profile,
    rows: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    plan: Plan,
    kwargs: Mapping[str, Any],
) -> Located:
    if profile.mode == "generation-tags":
        return locate_generation_tags(template, rows, tools=tools, wanted=plan.trained, **kwargs)
    if profile.mode == "single-pass":
        return locate_single_pass(
            template, rows, tools=tools, wanted=plan.trained, prompts=profile.prompts, **kwargs
        )
    return locate_prefix(
        template,
        rows,
        tools=tools,
        wanted=plan.trained,
        empty_prompt=profile.prompts.empty,
        **kwargs,
    )


def _compose_turns(
    template: ChatTemplate,
    profile: Profile,
    rows: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    plans: Sequence[Plan],
    kwargs: Mapping[str, Any],
) -> list[Located]:
    """History from one render of everything, each earlier turn's own steps from a render of it."""
    last = plans[-1]
    whole = _locate(template, profile, rows[: last.stop], tools, last, kwargs)
    found: list[Located] = []
    for plan in plans[:-1]:
        alone = template.layout(rows[plan.first : plan.stop], **kwargs)
        found.append(_join(whole, alone, rows, plan, profile))
    return [*found, whole]


def _join(
    whole: Located,
    alone: Layout,
    rows: Sequence[Mapping[str, Any]],
    plan: Plan,
    profile: Profile,
) -> Located:
    cut = whole.starts[plan.first + 1]
    resume = alone.starts[1] if alone.starts else None
    assert cut is not None, "a composable template locates every message after the first user's"
    assert resume is not None, "a composable template locates every message of a turn"
    shift = cut - resume
    text = whole.text[:cut] + alone.text[resume:]
    inner = [start + shift for start in (alone.starts or ())[1:] if start is not None]
    starts = (*whole.starts[: plan.first + 1], *inner)
    spans: dict[int, tuple[int, int]] = {}
    for k in plan.trained:
        start = starts[k]
        assert start is not None
        prompt = profile.prompts.at(text, start, previous_role=rows[k - 1]["role"])
        if prompt is None:
            raise RenderError(f"message {k} does not begin with a generation prompt")
        following = starts[k + 1] if k + 1 < plan.stop else len(text)
        assert following is not None
        spans[k] = (start + len(prompt), following)
    return Located(text, starts, spans)


def _cut(
    located: Located,
    messages: Sequence[Message],
    template: ChatTemplate,
    untrained_close: frozenset[int],
) -> tuple[Segment, ...]:
    """Cut text at mask boundaries, and before messages that begin with a special token."""
    text = located.text
    trained: set[tuple[int, int]] = set()
    for k, span in located.spans.items():
        pieces = _without_close(text, *span) if k in untrained_close else (span,)
        trained.update(pieces)
    heads = {
        start: k
        for k, start in enumerate(located.starts)
        if start is not None and template.special_at(text, start)
    }
    edges = {0, len(text), *heads, *(edge for span in trained for edge in span)}
    ordered = sorted(edges)
    owners = _owners(located, len(messages))
    segments: list[Segment] = []
    for start, stop in itertools.pairwise(ordered):
        k = owners(start)
        segments.append(Segment(text[start:stop], messages[k].role, (start, stop) in trained, k))
    return tuple(segments)


def _without_close(text: str, start: int, stop: int) -> tuple[tuple[int, int], ...]:
    """A trained span minus its first `</think>` and the newline before it."""
    at = text.find(THINK_CLOSE, start, stop)
    if at < 0:
        raise RenderError(
            "a truncated trace has no </think> in its rendered text to leave untrained"
        )
    until = at + len(THINK_CLOSE)
    if at > start and text[at - 1] == "\n":
        at -= 1
    return tuple((a, b) for a, b in ((start, at), (until, stop)) if a < b)


def _owners(located: Located, count: int) -> Callable[[int], int]:
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
