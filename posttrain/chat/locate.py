"""Plan of the sequences of a conversation, and spans of the trained messages in rendered text.

    located = locate_prefix(template, rows, (1,), prompts, tools=None)
    located.spans    {1: (71, 95)}    text[71:95] == "2+2 is 4.\\n</think>\\n4<|im_end|>\\n"

A span begins where the generation prompt, which is never trained, ends, and ends where the next
message begins. `options` are the declared tools and the variables that switch thinking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from posttrain.chat.template import ChatTemplate
from posttrain.errors import RenderError
from posttrain.records import Message

Row = Mapping[str, Any]
# every switch known to change what a template writes for the model to continue
THINKING_SWITCHES: tuple[Mapping[str, Any], ...] = (
    {},
    {"enable_thinking": True},
    {"enable_thinking": False},
    {"thinking": True},
    {"thinking": False},
)


class SequencePlan(NamedTuple):
    """Plan of a sequence to train on: `messages[:stop]`.

    Attributes:
        turn: number of the user turn, from 0.
        first: index of the turn's user message (0 for a whole conversation).
        stop: number of messages in the sequence.
        trained: indices of the messages that are trained.
    """

    turn: int
    first: int
    stop: int
    trained: tuple[int, ...]


def sequences(
    messages: Sequence[Message], *, every_turn: bool = False, every_step: bool = False
) -> tuple[SequencePlan, ...]:
    """Plan the sequences of a conversation; none when no assistant speaks after a user.

    user, assistant(R1), user, assistant(R2)  →  SequencePlan(turn=0, stop=2, trained=(1,))
                                                 SequencePlan(turn=1, stop=4, trained=(3,))
    user, assistant, user, assistant          →  SequencePlan(turn=0, stop=4, trained=(1, 3))

    As NVIDIA's data preparation does (nemotron-3-nano reference, `chat_sft_shard_core`): once any
    message reasons, every user turn is a sequence that trains only that turn's assistant steps.

    Args:
        every_turn: split also when nobody reasons, for templates (Qwen3's) that write a turn
            without reasoning differently once others follow.
        every_step: split after every assistant message.
    """
    answer_indices = [i for i, m in enumerate(messages) if m.role == "assistant"]
    if not (every_turn or every_step) and not any(messages[i].reasons for i in answer_indices):
        trained = tuple(i for i in answer_indices if messages[i].trained)
        whole_conversation = SequencePlan(turn=0, first=0, stop=len(messages), trained=trained)
        return (whole_conversation,) if trained else ()
    # a system message before the first user belongs to every sequence: all begin at message 0
    user_indices = [i for i, m in enumerate(messages) if m.role == "user"]
    plans: list[SequencePlan] = []
    for turn, first in enumerate(user_indices):
        stop = user_indices[turn + 1] if turn + 1 < len(user_indices) else len(messages)
        trained = tuple(i for i in answer_indices if first < i < stop and messages[i].trained)
        if every_step:
            plans += [SequencePlan(turn, first, stop=k + 1, trained=(k,)) for k in trained]
        elif trained:
            plans.append(SequencePlan(turn=turn, first=first, stop=stop, trained=trained))
    return tuple(plans)


class Located(NamedTuple):
    """Rendered text, the offset of each message where known, and the spans of trained messages."""

    text: str
    starts: tuple[int | None, ...]
    spans: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Prompts:
    """Generation prompts of a template, longest first: after a user's message and after a tool's.

    `("",)` where the assistant's text follows the user's message at once, as in Llama 2's.
    """

    after_user: tuple[str, ...]
    after_tool: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """True if nothing stands between a conversation and the assistant's text."""
        return self.after_user == ("",)

    def at(self, text: str, position: int, *, previous_role: str | None) -> str | None:
        """Find the longest generation prompt that stands in `text` at `position`."""
        candidates = self.after_tool if previous_role == "tool" else self.after_user
        return next((p for p in candidates if text.startswith(p, position)), None)


def locate_single_pass(
    template: ChatTemplate,
    messages: Sequence[Row],
    trained: Sequence[int],
    prompts: Prompts,
    *,
    first: int = 0,
    **options: Any,
) -> Located:
    """Locate the trained messages by the marks of one render.

    Args:
        first: number of the first message, for errors.

    Raises:
        RenderError: a trained message is not where a generation prompt would put it.
    """
    layout = template.layout(messages, **options)
    if layout.starts is None:
        raise RenderError(f"{template.name}: messages cannot be told apart in its output")
    spans: dict[int, tuple[int, int]] = {}
    for k in trained:
        start = layout.starts[k]
        if start is None:
            raise RenderError(
                f"{template.name}: message {first + k} is written outside the message loop"
            )
        previous_role = messages[k - 1]["role"] if k else None
        prompt = prompts.at(layout.text, start, previous_role=previous_role)
        if prompt is None:
            raise RenderError(
                f"{template.name}: message {first + k} does not begin with a generation prompt"
            )
        # through the next message's first mark: the end token and the newline behind it are trained
        end = layout.starts[k + 1] if k + 1 < len(messages) else len(layout.text)
        assert end is not None  # only leading messages may lack a start
        spans[k] = (start + len(prompt), end)
    return Located(layout.text, layout.starts, spans)


def locate_prefix(
    template: ChatTemplate,
    messages: Sequence[Row],
    trained: Sequence[int],
    prompts: Prompts,
    **options: Any,
) -> Located:
    """Locate by rendering the conversation before and through each message, as NVIDIA does.

    Raises:
        RenderError: no generation prompt makes the text before a message a prefix of the whole.
    """
    conversation = template.text(messages, **options)
    spans: dict[int, tuple[int, int]] = {}
    for k in trained:
        # which switch the author's prompt is written with is unknown: the longest prompt that fits
        # leaves no prefilled `<think>` to train. A first message has no prompt
        start = 0
        for switch in THINKING_SWITCHES if k else ():
            switched = {**options, **switch}
            prompt = template.text(messages[:k], add_generation_prompt=True, **switched)
            history = template.text(messages[:k], **switched)
            # without a generation prompt nothing says where the assistant begins, unless it is ""
            if (prompt != history or prompts.empty) and conversation.startswith(prompt):
                start = max(start, len(prompt))
        if not start:
            raise RenderError(
                f"{template.name}: the prompt of message {k} is no prefix of the conversation, "
                "so its loss mask cannot be determined"
            )
        end = len(conversation)
        if k + 1 < len(messages):
            through = template.text(messages[: k + 1], **options)
            # a template that rewrites a message once others follow gives its end no fixed place
            if not conversation.startswith(through) or len(through) < start:
                raise RenderError(
                    f"{template.name}: message {k} changes once others follow it, "
                    "so its loss mask cannot be determined"
                )
            end = len(through)
        spans[k] = (start, end)
    return Located(conversation, (None,) * len(messages), spans)


def locate_generation_tags(
    template: ChatTemplate,
    messages: Sequence[Row],
    trained: Sequence[int],
    prompts: Prompts,
    **options: Any,
) -> Located:
    """Locate by the author's `{% generation %}` blocks, for templates without a generation prompt.

    Raises:
        RenderError: the blocks cannot be matched to the assistant messages one to one.
    """
    layout = template.layout(messages, **options)
    # the tags carry no numbers: only where all are there does the order say whose they are
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if len(answers) != len(layout.generation):
        raise RenderError(
            f"{template.name}: {len(layout.generation)} generation blocks for "
            f"{len(answers)} assistant messages"
        )
    block_of_answer = dict(zip(answers, layout.generation, strict=True))
    starts = layout.starts or (None,) * len(messages)
    return Located(layout.text, starts, {k: block_of_answer[k] for k in trained})
