"""Records → token sequences with masks: reasoning control, rendering, tokenising, length policy.

    prepare(examples, preparer)  →  [Prepared(example, sequences=(…)), Prepared(…, drop=Drop(…))]

A pure function of a batch of records: nothing here depends on which records came before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from data_builders.decontamination.match import Decontaminator
from data_builders.filters.drop import Drop
from data_builders.filters.screen import Screen
from data_builders.sft.reasoning_control import (
    Controlled,
    ControlPlan,
    Cut,
    Offsets,
    control_reasoning,
    untouched,
)
from posttrain.chat import ChatTemplate, TrainingSample, left_out, training_samples
from posttrain.errors import RenderError
from posttrain.records import Example
from posttrain.tokens.encode import (
    EncodeArrays,
    TokenSequence,
    clip,
    distinct_texts,
    encode_samples,
)
from posttrain.tokens.supervision import NO_MARKS, Marks


@dataclass(frozen=True)
class Preparer:
    """Everything that turns one source's records into sequences."""

    template: ChatTemplate
    encode: EncodeArrays
    offsets: Offsets
    control: ControlPlan
    mask_close: bool
    capacity: int
    clip_overlong: bool
    marks: Marks = NO_MARKS
    screen: Screen | None = None
    decontaminator: Decontaminator | None = None


@dataclass(frozen=True, slots=True)
class PreparedSequence:
    """One sequence to train on. `budget`: the smallest among the traces that this sequence trains.

    `length` is before clipping.
    """

    sample: TrainingSample
    tokens: TokenSequence
    length: int
    budget: int | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """What became of one record. `lost` are reasons for which single sequences were left out."""

    controlled: Controlled
    sequences: tuple[PreparedSequence, ...]
    lost: tuple[str, ...]
    clipped: int
    drop: Drop | None

    @property
    def example(self) -> Example:
        """The record after reasoning control."""
        return self.controlled.example


def prepare(examples: Sequence[Example], preparer: Preparer) -> list[Prepared]:
    """Prepare a batch, in order; the texts of the whole batch are tokenised in one call."""
    if preparer.screen is None and preparer.decontaminator is None:
        return _prepare(examples, preparer)
    drops = _objections(examples, preparer)
    kept = [example for example, drop in zip(examples, drops, strict=True) if drop is None]
    done = iter(_prepare(kept, preparer))
    return [
        next(done) if drop is None else Prepared(untouched(example), (), (), 0, drop)
        for example, drop in zip(examples, drops, strict=True)
    ]


def _objections(examples: Sequence[Example], preparer: Preparer) -> list[Drop | None]:
    """What each record is dropped for as it was read: contamination first, then the filters."""
    evaluated = preparer.decontaminator
    drops: list[Drop | None] = [None] * len(examples)
    if evaluated is not None:
        drops = evaluated.drops(examples)
    if preparer.screen is not None:
        left = [at for at, drop in enumerate(drops) if drop is None]
        found = preparer.screen([examples[at] for at in left])
        for at, drop in zip(left, found, strict=True):
            drops[at] = drop
    return drops


def _prepare(examples: Sequence[Example], preparer: Preparer) -> list[Prepared]:
    controlled = [control_reasoning(e, preparer.control, preparer.offsets) for e in examples]
    rendered = [_render(c, preparer) for c in controlled]
    flat = [sample for found in rendered if not isinstance(found, Drop) for sample in found]
    carried = [e.license + e.metadata for e in examples]
    if not _is_text([*distinct_texts(flat), *carried]):
        rendered = [_as_text(c, found) for c, found in zip(controlled, rendered, strict=True)]
        flat = [sample for found in rendered if not isinstance(found, Drop) for sample in found]
    tokens = iter(encode_samples(flat, preparer.encode))
    done: list[Prepared] = []
    for record, found in zip(controlled, rendered, strict=True):
        if isinstance(found, Drop):
            done.append(Prepared(record, (), (), 0, found))
        else:
            done.append(_prepared(record, [(s, next(tokens)) for s in found], preparer))
    return done


Rendered = tuple[TrainingSample, ...] | Drop


def _render(record: Controlled, preparer: Preparer) -> Rendered:
    masked = frozenset(c.message for c in record.cuts) if preparer.mask_close else frozenset[int]()
    missing = left_out(record.example, preparer.template)
    if missing is not None:
        return Drop("render_error", missing)
    try:
        samples = training_samples(record.example, preparer.template, untrained_close=masked)
    except RenderError as error:
        return Drop("render_error", str(error))
    return samples or Drop("nothing_trained", "no assistant message answers a user")


def _is_text(parts: Iterable[str]) -> bool:
    try:
        for part in parts:
            if not part.isascii():  # which costs nothing to know
                part.encode()
    except UnicodeEncodeError:
        return False
    return True


def _as_text(record: Controlled, found: Rendered) -> Rendered:
    """What was rendered, or a drop if it holds half a surrogate pair."""
    if isinstance(found, Drop):
        return found
    example = record.example
    written = [example.license, example.metadata, *(s.text for x in found for s in x.segments)]
    try:
        "".join(written).encode()
    except UnicodeEncodeError as error:  # the filter bad_unicode was switched off
        return Drop("render_error", f"not text that can be tokenised: {error}")
    return found


def _prepared(
    record: Controlled, encoded: list[tuple[TrainingSample, TokenSequence]], preparer: Preparer
) -> Prepared:
    longest = max(len(tokens.ids) for _, tokens in encoded)
    if preparer.screen is not None and (drop := preparer.screen.by_length(longest)) is not None:
        return Prepared(record, (), (), 0, drop)
    kept: list[PreparedSequence] = []
    lost: list[str] = []
    details: list[str] = []
    clipped = 0
    for sample, tokens in encoded:
        length = len(tokens.ids)
        if length > preparer.capacity and not preparer.clip_overlong:
            lost.append("overlong")
            details.append(f"turn {sample.turn}: {length} tokens, a pack holds {preparer.capacity}")
            continue
        if length > preparer.capacity:
            tokens = clip(tokens, preparer.capacity)
            clipped += 1
        if tokens.trained == 0:
            lost.append("nothing_trained")
            details.append(f"turn {sample.turn}: none of {length} tokens is trained")
            continue
        kept.append(PreparedSequence(sample, tokens, length, _budget(sample, record.cuts)))
    drop = None if kept else Drop(lost[0], details[0])
    return Prepared(record, tuple(kept), tuple(lost), clipped, drop)


def _budget(sample: TrainingSample, cuts: Sequence[Cut]) -> int | None:
    return min((c.budget for c in cuts if c.message in sample.trained_messages), default=None)
