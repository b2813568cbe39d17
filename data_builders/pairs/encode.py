"""Token ids of a completion, and the mask of the tokens that the model sampled.

The ids are those of the sampler. Where a server hides them they are encoded from the text, and
every token of an assistant message counts as sampled.
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
    """Template and tokenizer that encode text as training does.

    `special` holds the texts of the tokenizer's special tokens.
    """

    template: ChatTemplate
    encode: EncodeArrays
    special: Collection[str] = ()


def encode_completions(
    prompt: Prompt, completions: Sequence[Completion], encoder: PairEncoder
) -> list[Encoded | None]:
    """Ids and mask of each completion; None for one that failed or that cannot be rendered."""
    positions: list[int] = []  # of the completions whose ids a server hid
    turns: list[tuple[TrainingSample, int]] = []
    for k, completion in enumerate(completions):
        if completion.steps and any(step.ids is None for step in completion.steps):
            sample = last_turn(prompt.messages, completion.messages, prompt.tools, encoder.template)
            if sample is not None:
                positions.append(k)
                turns.append((sample, len(prompt.messages)))
    from_text = dict(zip(positions, encode_turns(turns, encoder), strict=True))

    encoded: list[Encoded | None] = []
    for k, completion in enumerate(completions):
        if completion.prompt_ids is None or not completion.steps:
            encoded.append(from_text.get(k))
        else:
            encoded.append(Encoded(completion.prompt_ids, *completion.sampled()))
    return encoded


def last_turn(
    prompt: Sequence[Message],
    answer: Sequence[Message],
    tools: str | None,
    template: ChatTemplate,
) -> TrainingSample | None:
    """Training sample that ends on the last answer; None where the template refuses it."""
    example = make_example((*prompt, *answer), tools=tools, source="", dialect="")
    try:
        samples = training_samples(example, template)
    except RenderError:
        return None
    return samples[-1] if samples and samples[-1].trained_messages else None


def encode_turns(
    turns: Sequence[tuple[TrainingSample, int]], encoder: PairEncoder
) -> list[Encoded]:
    """Encode samples of `last_turn`, each text once, and split each into prompt and completion.

    Args:
        turns: samples, each with the number of messages of its prompt.
    """
    completions_only: list[TrainingSample] = []
    for sample, n_prompt_messages in turns:
        segments = tuple(
            segment
            if segment.message_index >= n_prompt_messages
            else segment._replace(trained=False)
            for segment in sample.segments
        )
        completions_only.append(replace(sample, segments=segments))

    encoded: list[Encoded] = []
    for sequence in encode_samples(completions_only, encoder.encode):
        # the completion begins with its first trained token
        start = sequence.spans[0] if sequence.spans else len(sequence.ids)
        ids = sequence.ids.tolist()
        labels = labels_of(sequence.ids, sequence.spans)
        mask = (labels[start:] != IGNORED).tolist()
        encoded.append(Encoded(tuple(ids[:start]), tuple(ids[start:]), tuple(mask)))
    return encoded


def distance(left: Sequence[int], right: Sequence[int]) -> float:
    """Share of tokens between the common beginning and the common end, in [0, 1].

    An upper bound of the token edit distance, per token of the longer one, in linear time.
    """
    shorter = min(len(left), len(right))
    longer = max(len(left), len(right))
    if longer == 0:
        return 0.0
    head = 0
    while head < shorter and left[head] == right[head]:
        head += 1
    tail = 0
    while tail < shorter - head and left[-1 - tail] == right[-1 - tail]:
        tail += 1
    return (longer - head - tail) / longer
