"""Records → token sequences with masks: reasoning control, rendering, tokenising, length policy.

Reasoning is switched off for some records, and some traces are cut to a budget (paper 3.1.4), by
keyed hashes of the record's id and the message's position. The answer after a cut trace stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from data_builders.decontamination.match import Decontaminator
from data_builders.filters.screen import Screen
from data_builders.keyed import unit
from data_builders.rows.raw import Drop
from data_builders.templates import augmented
from posttrain.chat import (
    TrainingSample,
    describe,
    losses,
    serial_calls,
    strip_reasoning,
    training_samples,
    truncate_reasoning,
)
from posttrain.chat.masks import message_texts
from posttrain.config.build_sft import (
    BuildSftConfig,
    ChoiceBudgets,
    LogUniformBudgets,
    LossKind,
    ReasoningConfig,
    SftSource,
)
from posttrain.errors import RenderError
from posttrain.records import Example, with_messages
from posttrain.tokens.encode import TokenSequence, clip, distinct_texts, encode_samples

if TYPE_CHECKING:  # loads transformers
    from posttrain.tokens.renderer import DataRenderer

LEFT_OUT = "left_out_"  # and the kind of what a template leaves out: the reason of a drop
# text → the character span of each of its tokens
Offsets = Callable[[str], Sequence[tuple[int, int]]]


class Preparer:
    """Everything that turns one source's records into sequences.

    Raises:
        ConfigError: a filter of the source cannot be used.
    """

    def __init__(
        self,
        recipe: BuildSftConfig,
        source: SftSource,
        renderer: DataRenderer,
        decontaminator: Decontaminator | None = None,
    ) -> None:
        self.recipe, self.source, self.renderer = recipe, source, renderer
        self.decontaminator, self.screen = decontaminator, Screen(source.filters, renderer.encode)
        self.split_steps = recipe.tokenizer.split_steps
        own = source.reasoning.model_dump(exclude_none=True)
        self.reasoning = recipe.reasoning.model_copy(update=own)
        self.special_texts = renderer.special_texts
        # (largest special id + 2,): which ids the template's own source does not spell
        self._foreign = np.zeros(max(self.special_texts, default=-1) + 2, np.bool_)
        for token, text in self.special_texts.items():
            self._foreign[token] = text not in renderer.template.source

    def foreign(self, encoded: Sequence[TokenSequence]) -> npt.NDArray[np.int32]:
        """The special tokens in some sequences that the template does not write by itself."""
        ids = np.concatenate([np.empty(0, np.int32), *(tokens.ids for tokens in encoded)])
        return np.unique(ids[self._foreign[np.minimum(ids, len(self._foreign) - 1)]])


class Cut(NamedTuple):
    """A trace of `trace` tokens that was cut to `budget`."""

    message: int
    trace: int
    budget: int


class PreparedSequence(NamedTuple):
    """One sequence to train on. `budget`: the smallest among the traces that this sequence trains.

    `length` is before clipping.
    """

    sample: TrainingSample
    tokens: TokenSequence
    length: int
    budget: int | None


class Prepared(NamedTuple):
    """What became of one record; `example` is the record after reasoning control.

    `traces`: it could have been cut in so many, 0 once stripped. `too_short`: traces chosen for a
    cut for which no budget is short enough, left whole. `template`: the prompt template that it is
    asked in, or why in none; None where its source augments nothing. `left_out`: the kinds of what
    the chat template does not write of it. `lost`: reasons for which single sequences were not
    kept; `clipped`: how many were.
    """

    example: Example
    stripped: bool = False
    traces: int = 0
    cuts: tuple[Cut, ...] = ()
    too_short: int = 0
    template: str | None = None
    left_out: tuple[LossKind, ...] = ()
    samples: tuple[TrainingSample, ...] = ()
    sequences: tuple[PreparedSequence, ...] = ()
    lost: tuple[str, ...] = ()
    clipped: int = 0
    drop: Drop | None = None


def prepare(examples: Sequence[Example], preparer: Preparer) -> list[Prepared]:
    """Prepare a batch, in order; the texts of the whole batch are tokenised in one call.

    Contamination and the filters of the text look at each record as it was read.
    """
    return [within_capacity(record, preparer) for record in prepare_unbounded(examples, preparer)]


def prepare_unbounded(examples: Sequence[Example], preparer: Preparer) -> list[Prepared]:
    """As `prepare`, without a limit of length."""
    drops: list[Drop | None] = [None] * len(examples)
    if preparer.decontaminator is not None:
        drops = preparer.decontaminator.drops(examples)
    drops = [drop or preparer.screen(e) for e, drop in zip(examples, drops, strict=True)]
    rendered = [
        Prepared(example, drop=drop) if drop else _render(_controlled(example, preparer), preparer)
        for example, drop in zip(examples, drops, strict=True)
    ]
    samples = [sample for record in rendered for sample in record.samples]
    encoded = encode_samples(samples, preparer.renderer.encode)
    # one look at the whole batch: few records spell a special token
    spelt = len(preparer.foreign(encoded)) > 0
    tokens = iter(encoded)
    return [_encoded(record, tokens, spelt, preparer) for record in rendered]


def _controlled(example: Example, preparer: Preparer) -> Prepared:
    template, seed = None, preparer.recipe.seed
    if preparer.split_steps:
        example = serial_calls(example)
    if (augment := preparer.source.augment) is not None:
        example, template = augmented(example, augment, seed=seed)
    record = control_reasoning(example, preparer.reasoning, preparer.renderer.offsets, seed=seed)
    return record._replace(template=template) if template else record


def control_reasoning(
    example: Example, config: ReasoningConfig, offsets: Offsets, *, seed: int
) -> Prepared:
    """Strip a record, or cut some of its traces, or leave it alone; its id decides.

    Args:
        offsets: the tokenizer's spans of a text; only called for traces that are cut.
    """
    if example.reasoning_mode == "off":
        return Prepared(example)
    if unit(seed, "strip", example.id) < config.strip:
        return Prepared(strip_reasoning(example), stripped=True)
    messages = list(example.messages)
    traces, cuts, too_short = 0, list[Cut](), 0
    for position, message in enumerate(messages):
        if message.role != "assistant" or not message.reasons:
            continue
        traces += 1
        if unit(seed, "truncate", example.id, position) >= config.truncate:
            continue
        trace = message.reasoning or ""
        spans = offsets(trace)
        u = unit(seed, "budget", example.id, position)
        budget = budget_for(len(spans), config.budgets, u)
        # tokenised once, not once more for the cut
        short = budget and truncate_reasoning(
            trace, budget=budget, offsets=lambda _, spans=spans: spans
        )
        if not budget or not short:
            too_short += 1
            continue
        messages[position] = replace(message, reasoning=short)
        cuts.append(Cut(position, len(spans), budget))
    changed = with_messages(example, messages) if cuts else example
    return Prepared(changed, traces=traces, cuts=tuple(cuts), too_short=too_short)


def budget_for(length: int, budgets: LogUniformBudgets | ChoiceBudgets, u: float) -> int | None:
    """The budget at `u` in [0, 1) of those below `length` tokens; `None` where there is none."""
    if isinstance(budgets, ChoiceBudgets):
        shorter = sorted({b for b in budgets.choices if b < length})
        return shorter[int(u * len(shorter))] if shorter else None
    high = length - 1 if budgets.high is None else min(budgets.high, length - 1)
    if high < budgets.low:
        return None
    # + 1: each integer gets the density between itself and the next, the last one included
    drawn = budgets.low * math.exp(u * math.log((high + 1) / budgets.low))
    return min(int(drawn), high)


def _render(record: Prepared, preparer: Preparer) -> Prepared:
    """With the record's samples, or a drop."""
    recipe, example, split = preparer.recipe, record.example, preparer.split_steps
    template, masked = preparer.renderer.template, frozenset[int]()
    if recipe.reasoning.truncated_close == "masked":
        masked = frozenset(cut.message for cut in record.cuts)
    try:
        samples = training_samples(example, template, untrained_close=masked, every_step=split)
    except RenderError as error:
        return record._replace(drop=Drop("render_error", str(error)))
    if not samples:
        drop = Drop("nothing_trained", "no assistant message answers a user")
        return record._replace(drop=drop)
    lost = losses(example, template, samples, every_step=split)
    kinds: tuple[LossKind, ...] = tuple({loss.kind: None for loss in lost})
    drop = None
    if bad := [kind for kind in kinds if kind not in recipe.tokenizer.allow_left_out]:
        drop = Drop(f"{LEFT_OUT}{bad[0]}", describe(lost, template))
    elif not preparer.source.filters.bad_unicode:
        drop = _unencodable([example.license, example.metadata, *distinct_texts(samples)])
    return record._replace(left_out=kinds, samples=() if drop else samples, drop=drop)


def _unencodable(texts: Sequence[str]) -> Drop | None:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return Drop("render_error", "half a surrogate pair cannot be tokenised")
    return None


def _encoded(
    record: Prepared, encoded: Iterator[TokenSequence], spelt: bool, preparer: Preparer
) -> Prepared:
    """With the sequences of the record's samples, the next of those encoded, or a drop."""
    if record.drop is not None:
        return record
    sequences = tuple(
        PreparedSequence(sample, tokens, len(tokens.ids), _budget(sample, record.cuts))
        for sample, tokens in zip(record.samples, encoded, strict=False)
    )
    drop = None
    if spelt:
        drop = _special_token(record.example, [s.tokens for s in sequences], preparer)
    drop = drop or preparer.screen.by_length(max(s.length for s in sequences))
    return record._replace(sequences=() if drop else sequences, drop=drop)


def within_capacity(prepared: Prepared, preparer: Preparer) -> Prepared:
    """Drop or clip what is longer than a pack, then drop sequences in which nothing is trained."""
    kept: list[PreparedSequence] = []
    drops: list[Drop] = []
    clipped, packing = 0, preparer.recipe.packing
    for sequence in prepared.sequences:
        turn, length = sequence.sample.turn, sequence.length
        if length > packing.max_length and packing.overlong == "drop":
            why = f"turn {turn}: {length} tokens, a pack holds {packing.max_length}"
            drops.append(Drop("overlong", why))
            continue
        if length > packing.max_length:
            sequence = sequence._replace(tokens=clip(sequence.tokens, packing.max_length))
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


def _special_token(
    example: Example, encoded: Sequence[TokenSequence], preparer: Preparer
) -> Drop | None:
    """A record that spells a special token (`<|endoftext|>`) in a text: it would be that token."""
    for token in preparer.foreign(encoded).tolist():
        text = preparer.special_texts[token]
        for k, message in enumerate(example.messages):
            # a template may put its own tokens together out of parts
            if any(text in part for part in message_texts(message)):
                detail = f"message {k} ({message.role}) spells the special token {text!r}"
                return Drop("special_token", detail)
    return None


def _budget(sample: TrainingSample, cuts: Sequence[Cut]) -> int | None:
    return min((c.budget for c in cuts if c.message in sample.trained_messages), default=None)
