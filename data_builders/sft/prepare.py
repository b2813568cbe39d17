"""Records → token sequences with masks: reasoning control, rendering, tokenising, length policy.

    prepare(examples, preparer)  →  [Prepared(example, sequences=(…)), Prepared(…, drop=Drop(…))]
    control_reasoning(example, plan, offsets)
    → Controlled(example', stripped=False, cuts=(Cut(message=1, trace=212, budget=37),), …)

Reasoning is switched off for some records, and some traces are cut to a budget (paper 3.1.4).
Which ones, and which budgets, follows from a keyed hash of the record's id (and of the message's
position in it), so order, sharding and workers change nothing. The answer after a cut trace stays
as it was. Nothing here depends on which records came before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data_builders.decontamination.match import Decontaminator
from data_builders.filters.drop import Drop
from data_builders.filters.screen import Screen
from data_builders.keyed import unit
from data_builders.templates import augmented
from posttrain.chat import (
    ChatTemplate,
    TrainingSample,
    describe,
    losses,
    serial_calls,
    strip_reasoning,
    training_samples,
    truncate_reasoning,
)
from posttrain.chat.masks import message_texts
from posttrain.config.build_sft import ChoiceBudgets, LogUniformBudgets, LossKind, SftAugment
from posttrain.errors import RenderError
from posttrain.records import Example, with_messages
from posttrain.tokens.encode import (
    EncodeArrays,
    TokenSequence,
    clip,
    distinct_texts,
    encode_samples,
)
from posttrain.tokens.supervision import NO_MARKS, Marks

LEFT_OUT = "left_out_"  # and the kind of what a template leaves out: the reason of a drop
# text → the character span of each of its tokens
Offsets = Callable[[str], Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class ControlPlan:
    """The rates that hold for one source, and where budgets come from."""

    strip: float
    truncate: float
    budgets: LogUniformBudgets | ChoiceBudgets
    seed: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A trace of `trace` tokens that was cut to `budget`."""

    message: int
    trace: int
    budget: int


class Controlled(NamedTuple):
    """A record after reasoning control, with what was done to it.

    `reasoned`: it came with reasoning. `traces`: traces it could have been cut in, 0 once stripped.
    `too_short`: traces chosen for a cut for which no budget is short enough; left whole.
    """

    example: Example
    reasoned: bool
    stripped: bool
    traces: int
    cuts: tuple[Cut, ...]
    too_short: int


def untouched(example: Example) -> Controlled:
    """A record that reasoning control leaves alone, and counts nowhere."""
    return Controlled(example, False, False, 0, (), 0)


def control_reasoning(example: Example, plan: ControlPlan, offsets: Offsets) -> Controlled:
    """Strip a record, or cut some of its traces, or leave it alone.

    Args:
        example: the record; its id decides.
        plan: rates and budgets.
        offsets: the tokenizer's spans of a text; only called for traces that are cut.
    """
    if example.reasoning_mode == "off":
        return untouched(example)
    if unit(plan.seed, "strip", example.id) < plan.strip:
        return Controlled(strip_reasoning(example), True, True, 0, (), 0)
    messages = list(example.messages)
    traces, cuts, too_short = 0, list[Cut](), 0
    for position, message in enumerate(messages):
        if message.role != "assistant" or not message.reasons:
            continue
        traces += 1
        if unit(plan.seed, "truncate", example.id, position) >= plan.truncate:
            continue
        trace = message.reasoning or ""
        spans = offsets(trace)
        length = len(spans)
        budget = budget_for(length, plan, example.id, position)
        # tokenised once, not once more for the cut
        short = budget and truncate_reasoning(
            trace, budget=budget, offsets=lambda _, spans=spans: spans
        )
        if not budget or not short:
            too_short += 1
            continue
        messages[position] = replace(message, reasoning=short)
        cuts.append(Cut(position, length, budget))
    changed = with_messages(example, messages) if cuts else example
    return Controlled(changed, True, False, traces, tuple(cuts), too_short)


def budget_for(length: int, plan: ControlPlan, record_id: str, position: int) -> int | None:
    """A budget below `length` tokens, or `None` when the distribution has none so short."""
    u = unit(plan.seed, "budget", record_id, position)
    budgets = plan.budgets
    if isinstance(budgets, ChoiceBudgets):
        shorter = sorted({b for b in budgets.choices if b < length})
        return shorter[int(u * len(shorter))] if shorter else None
    high = length - 1 if budgets.high is None else min(budgets.high, length - 1)
    if high < budgets.low:
        return None
    # + 1: each integer gets the density between itself and the next, the last one included
    drawn = budgets.low * math.exp(u * math.log((high + 1) / budgets.low))
    return min(int(drawn), high)


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
    split_steps: bool = False
    allow_left_out: frozenset[LossKind] = frozenset()
    marks: Marks = NO_MARKS
    screen: Screen | None = None
    decontaminator: Decontaminator | None = None
    augment: SftAugment | None = None
    special_texts: Mapping[int, str] = field(default_factory=dict[int, str])

    @cached_property
    def foreign(self) -> npt.NDArray[np.bool_]:
        """(largest special id + 2,): which ids the template's own source does not spell."""
        found = np.zeros(max(self.special_texts, default=-1) + 2, np.bool_)
        found[[i for i, t in self.special_texts.items() if t not in self.template.source]] = True
        return found


class PreparedSequence(NamedTuple):
    """One sequence to train on. `budget`: the smallest among the traces that this sequence trains.

    `length` is before clipping.
    """

    sample: TrainingSample
    tokens: TokenSequence
    length: int
    budget: int | None


class Prepared(NamedTuple):
    """What became of one record.

    `lost` are reasons for which single sequences were not kept, `left_out` the kinds of what the
    chat template does not write of it, `template` the prompt template that it is asked in, or why
    in none; None where its source augments nothing.
    """

    controlled: Controlled
    sequences: tuple[PreparedSequence, ...]
    lost: tuple[str, ...]
    clipped: int
    drop: Drop | None
    left_out: tuple[LossKind, ...] = ()
    template: str | None = None

    @property
    def example(self) -> Example:
        """The record after reasoning control."""
        return self.controlled.example


def prepare(examples: Sequence[Example], preparer: Preparer) -> list[Prepared]:
    """Prepare a batch, in order; the texts of the whole batch are tokenised in one call.

    Contamination and the filters of the text look at each record as it was read.
    """
    drops: list[Drop | None] = [None] * len(examples)
    if preparer.decontaminator is not None:
        drops = preparer.decontaminator.drops(examples)
    if preparer.screen is not None:
        drops = [d or preparer.screen(e) for e, d in zip(examples, drops, strict=True)]
    kept = [example for example, drop in zip(examples, drops, strict=True) if drop is None]
    done = iter(_prepare(kept, preparer))
    return [
        next(done) if drop is None else Prepared(untouched(example), (), (), 0, drop)
        for example, drop in zip(examples, drops, strict=True)
    ]


class _Rendered(NamedTuple):
    """The sequences of a record before they are tokenised; none with a drop."""

    samples: tuple[TrainingSample, ...]
    drop: Drop | None = None
    left_out: tuple[LossKind, ...] = ()


def _prepare(examples: Sequence[Example], preparer: Preparer) -> list[Prepared]:
    if preparer.split_steps:
        examples = [serial_calls(example) for example in examples]
    templates: list[str | None] = [None] * len(examples)
    if (augment := preparer.augment) is not None:
        pairs = [augmented(example, augment, seed=preparer.control.seed) for example in examples]
        examples, templates = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    controlled = [control_reasoning(e, preparer.control, preparer.offsets) for e in examples]
    rendered = [_render(c, preparer) for c in controlled]
    carried = [e.license + e.metadata for e in examples]
    if not _is_text([*distinct_texts(_samples(rendered)), *carried]):
        # the filter bad_unicode was switched off
        drop = Drop("render_error", "half a surrogate pair cannot be tokenised")
        rendered = [
            made if _is_text([text, *distinct_texts(made.samples)]) else _Rendered((), drop)
            for text, made in zip(carried, rendered, strict=True)
        ]
    encoded = encode_samples(_samples(rendered), preparer.encode)
    # one look at the whole batch: few records spell a special token
    spelt = bool(encoded) and len(_foreign(np.concatenate([t.ids for t in encoded]), preparer)) > 0
    tokens = iter(encoded)
    return [
        _prepared(
            record, made, [(s, next(tokens)) for s in made.samples], template, spelt, preparer
        )
        for record, made, template in zip(controlled, rendered, templates, strict=True)
    ]


def _samples(rendered: Iterable[_Rendered]) -> list[TrainingSample]:
    return [sample for made in rendered for sample in made.samples]


def _render(record: Controlled, preparer: Preparer) -> _Rendered:
    example, template, split = record.example, preparer.template, preparer.split_steps
    masked = frozenset(c.message for c in record.cuts) if preparer.mask_close else frozenset[int]()
    try:
        samples = training_samples(example, template, untrained_close=masked, every_step=split)
    except RenderError as error:
        return _Rendered((), Drop("render_error", str(error)))
    if not samples:
        return _Rendered((), Drop("nothing_trained", "no assistant message answers a user"))
    lost = losses(example, template, samples, every_step=split)
    kinds: tuple[LossKind, ...] = tuple({loss.kind: None for loss in lost})
    bad = [kind for kind in kinds if kind not in preparer.allow_left_out]
    if bad:
        return _Rendered((), Drop(f"{LEFT_OUT}{bad[0]}", describe(lost, template)), kinds)
    return _Rendered(samples, left_out=kinds)


def _is_text(parts: Iterable[str]) -> bool:
    try:
        for part in parts:
            if not part.isascii():  # which costs nothing to know
                part.encode()
    except UnicodeEncodeError:
        return False
    return True


def _prepared(
    record: Controlled,
    made: _Rendered,
    encoded: list[tuple[TrainingSample, TokenSequence]],
    template: str | None,
    spelt: bool,
    preparer: Preparer,
) -> Prepared:
    sequences = tuple(
        PreparedSequence(sample, tokens, len(tokens.ids), _budget(sample, record.cuts))
        for sample, tokens in encoded
    )
    prepared = Prepared(record, sequences, (), 0, made.drop, made.left_out, template)
    if made.drop is not None:
        return prepared
    drop = None
    if spelt:
        drop = _special_token(record.example, [tokens for _, tokens in encoded], preparer)
    if drop is None and preparer.screen is not None:
        drop = preparer.screen.by_length(max(s.length for s in sequences))
    if drop is not None:
        return prepared._replace(sequences=(), drop=drop)
    return within_capacity(prepared, preparer)


def within_capacity(prepared: Prepared, preparer: Preparer) -> Prepared:
    """Drop or clip what is longer than a pack, then drop sequences in which nothing is trained."""
    kept: list[PreparedSequence] = []
    drops: list[Drop] = []
    clipped, capacity = 0, preparer.capacity
    for sequence in prepared.sequences:
        turn, length = sequence.sample.turn, sequence.length
        if length > capacity and not preparer.clip_overlong:
            why = f"turn {turn}: {length} tokens, a pack holds {capacity}"
            drops.append(Drop("overlong", why))
            continue
        if length > capacity:
            sequence = sequence._replace(tokens=clip(sequence.tokens, capacity))
            clipped += 1
        if sequence.tokens.trained == 0:
            why = f"turn {turn}: none of {length} tokens is trained"
            drops.append(Drop("nothing_trained", why))
            continue
        kept.append(sequence)
    if not (drops or clipped):
        return prepared
    drop = prepared.drop if kept or prepared.drop else drops[0]
    lost = tuple(drop.reason for drop in drops)
    return prepared._replace(sequences=tuple(kept), lost=lost, clipped=clipped, drop=drop)


def _foreign(ids: npt.NDArray[np.int32], preparer: Preparer) -> npt.NDArray[np.int32]:
    foreign = preparer.foreign
    return ids[foreign[np.minimum(ids, len(foreign) - 1)]]


def _special_token(
    example: Example, encoded: Sequence[TokenSequence], preparer: Preparer
) -> Drop | None:
    """A record that spells a special token (`<|endoftext|>`) in a text: it would be that token."""
    for tokens in encoded:
        for token in np.unique(_foreign(tokens.ids, preparer)).tolist():
            text = preparer.special_texts[token]
            for k, message in enumerate(example.messages):
                # a template may put its own tokens together out of parts
                if any(text in part for part in message_texts(message)):
                    detail = f"message {k} ({message.role}) spells the special token {text!r}"
                    return Drop("special_token", detail)
    return None


def _budget(sample: TrainingSample, cuts: Sequence[Cut]) -> int | None:
    return min((c.budget for c in cuts if c.message in sample.trained_messages), default=None)
