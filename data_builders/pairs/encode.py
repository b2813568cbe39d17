"""A completion as token ids and the mask of what the model sampled.

Only where a server hid its ids are they made from the text: all an assistant said is then sampled.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from posttrain.chat import ChatTemplate, TrainingSample, training_samples
from posttrain.errors import RenderError
from posttrain.records import Message, make_example
from posttrain.rollouts import Completion, Prompt
from posttrain.tokens.encode import IGNORED, EncodeArrays, encode_samples, labels_of


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of prompt and completion; `mask` (of the completion) is True where sampled."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    mask: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class PairEncoder:
    """What turns text into ids, as training does. `special` are the tokenizer's special tokens."""

    template: ChatTemplate
    encode: EncodeArrays
    special: Collection[str] = ()


def encode_completions(
    prompt: Prompt, completions: Sequence[Completion], encoder: PairEncoder
) -> list[Encoded | None]:
    """One entry a completion; None for one that failed, and for one that cannot be rendered."""
    rendered: dict[int, tuple[TrainingSample, int]] = {}
    for place, completion in enumerate(completions):
        if completion.steps and any(step.ids is None for step in completion.steps):
            sample = last_turn(prompt.messages, completion.messages, prompt.tools, encoder.template)
            if sample is not None:
                rendered[place] = sample, len(prompt.messages)
    by_text = dict(zip(rendered, encode_turns(list(rendered.values()), encoder), strict=True))
    return [
        by_text.get(place)
        if completion.prompt_ids is None or not completion.steps
        else Encoded(completion.prompt_ids, *completion.sampled())
        for place, completion in enumerate(completions)
    ]


def last_turn(
    prompt: Sequence[Message],
    answer: Sequence[Message],
    tools: str | None,
    template: ChatTemplate,
) -> TrainingSample | None:
    """The sequence that ends on the last answer, None where the template refuses it."""
    example = make_example((*prompt, *answer), tools=tools, source="", dialect="")
    try:
        samples = training_samples(example, template)
    except RenderError:
        return None
    return samples[-1] if samples and samples[-1].trained_messages else None


def encode_turns(
    turns: Sequence[tuple[TrainingSample, int]], encoder: PairEncoder
) -> list[Encoded]:
    """Sequences of `last_turn`, cut after the prompt's messages; each text is tokenised once."""
    own: list[TrainingSample] = []
    for sample, first in turns:
        kept = (
            s if s.message_index >= first else s._replace(trained=False) for s in sample.segments
        )
        own.append(replace(sample, segments=tuple(kept)))
    done: list[Encoded] = []
    for sequence in encode_samples(own, encoder.encode):
        start = sequence.spans[0] if sequence.spans else len(sequence.ids)
        ids, labels = sequence.ids.tolist(), labels_of(sequence.ids, sequence.spans)
        mask = (labels[start:] != IGNORED).tolist()
        done.append(Encoded(tuple(ids[:start]), tuple(ids[start:]), tuple(mask)))
    return done


def distance(left: Sequence[int], right: Sequence[int]) -> float:
    """Share of tokens between the common beginning and the common end, in [0, 1].

    An upper bound of the token edit distance, per token of the longer one, in linear time.
    """
    short = min(len(left), len(right))
    head = next((k for k in range(short) if left[k] != right[k]), short)
    tail = next((k for k in range(short - head) if left[-1 - k] != right[-1 - k]), short - head)
    longest = max(len(left), len(right))
    return (longest - head - tail) / longest if longest else 0.0
