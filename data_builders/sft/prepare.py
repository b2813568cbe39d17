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

# drop reasons begin with this and end with the kind of what the template leaves out
LEFT_OUT = "left_out_"
# text → the character span of each of its tokens
Offsets = Callable[[str], Sequence[tuple[int, int]]]


class Preparer:
    """Settings and tools that turn one source's records into sequences.

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
        self.recipe = recipe
        self.source = source
        self.renderer = renderer
        self.decontaminator = decontaminator
        self.screen = Screen(source.filters, renderer.encode)
        self.split_steps = recipe.tokenizer.split_steps
        source_settings = source.reasoning.model_dump(exclude_none=True)
        self.reasoning = recipe.reasoning.model_copy(update=source_settings)
        self.special_texts = renderer.special_texts
        # (largest special id + 2,) bool: ids that the template's own source does not spell; the
        # last element stands for every id beyond the special ones
        self._is_foreign = np.zeros(max(self.special_texts, default=-1) + 2, np.bool_)
        for token, text in self.special_texts.items():
            self._is_foreign[token] = text not in renderer.template.source

    def foreign_tokens(self, encoded: Sequence[TokenSequence]) -> npt.NDArray[np.int32]:
        """Distinct special tokens in some sequences that the template does not write by itself."""
        ids = np.concatenate([np.empty(0, np.int32), *(tokens.ids for tokens in encoded)])
        foreign_ids = ids[self._is_foreign[np.minimum(ids, len(self._is_foreign) - 1)]]
        # `np.unique` would import numpy.ma: a tenth of a second for an array that is mostly empty
        return np.array(sorted(set(foreign_ids.tolist())), np.int32)


class Cut(NamedTuple):
    """A reasoning trace of message `message` that was cut from `trace` to `budget` tokens."""

    message: int
    trace: int
    budget: int


class PreparedSequence(NamedTuple):
    """Sequence to train on.

    Attributes:
        length: tokens before clipping.
        budget: smallest budget among the cut traces that this sequence trains; None without one.
    """

    sample: TrainingSample
    tokens: TokenSequence
    length: int
    budget: int | None


class Prepared(NamedTuple):
    """Record after preparation.

    Attributes:
        example: the record after reasoning control.
        stripped: True if its reasoning was switched off.
        traces: traces that could have been cut; 0 once stripped.
        cuts: traces that were cut.
        too_short: traces chosen for a cut that are shorter than every budget, left whole.
        template: name of the prompt template that was applied, or the reason why none was; None if
            the source augments nothing.
        left_out: kinds of content that the chat template does not write.
        samples: rendered sequences.
        sequences: encoded sequences that are kept.
        lost: reasons for which single sequences were not kept.
        clipped: number of sequences that were clipped.
        drop: reason why the whole record is not used; None if it is.
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

    Decontamination and the filters of the text see each record as it was read.
    """
    return [within_capacity(record, preparer) for record in prepare_unbounded(examples, preparer)]


def prepare_unbounded(examples: Sequence[Example], preparer: Preparer) -> list[Prepared]:
    """Prepare a batch as `prepare` does, without a limit of length."""
    drops: list[Drop | None] = [None] * len(examples)
    if preparer.decontaminator is not None:
        drops = preparer.decontaminator.drops(examples)
    rendered: list[Prepared] = []
    for example, contaminated in zip(examples, drops, strict=True):
        if drop := contaminated or preparer.screen(example):
            rendered.append(Prepared(example, drop=drop))
        else:
            rendered.append(_render(_augment_and_control(example, preparer), preparer))
    samples = [sample for record in rendered for sample in record.samples]
    encoded = encode_samples(samples, preparer.renderer.encode)
    # checked for the whole batch at once: few records spell a special token
    any_foreign = len(preparer.foreign_tokens(encoded)) > 0
    tokens = iter(encoded)
    return [_with_sequences(record, tokens, any_foreign, preparer) for record in rendered]


def _augment_and_control(example: Example, preparer: Preparer) -> Prepared:
    """Apply a prompt template and reasoning control to a record."""
    seed = preparer.recipe.seed
    template = None
    if preparer.split_steps:
        example = serial_calls(example)
    if (augment := preparer.source.augment) is not None:
        example, template = augmented(example, augment, seed=seed)
    record = control_reasoning(example, preparer.reasoning, preparer.renderer.offsets, seed=seed)
    return record._replace(template=template) if template else record


def control_reasoning(
    example: Example, config: ReasoningConfig, offsets: Offsets, *, seed: int
) -> Prepared:
    """Strip a record's reasoning, or cut some of its traces, or leave it alone, by a keyed hash.

    Args:
        offsets: the tokenizer's spans of a text; only called for traces that are cut.
    """
    if example.reasoning_mode == "off":
        return Prepared(example)
    if unit(seed, "strip", example.id) < config.strip:
        return Prepared(strip_reasoning(example), stripped=True)
    messages = list(example.messages)
    traces = 0
    too_short = 0
    cuts: list[Cut] = []
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
        shortened = None
        if budget:
            # the spans are passed on, so that the trace is tokenised once
            shortened = truncate_reasoning(
                trace, budget=budget, offsets=lambda _, spans=spans: spans
            )
        if not budget or not shortened:
            too_short += 1
            continue
        messages[position] = replace(message, reasoning=shortened)
        cuts.append(Cut(position, len(spans), budget))
    controlled = with_messages(example, messages) if cuts else example
    return Prepared(controlled, traces=traces, cuts=tuple(cuts), too_short=too_short)


def budget_for(length: int, budgets: LogUniformBudgets | ChoiceBudgets, u: float) -> int | None:
    """Choose a budget below `length` tokens by `u` in [0, 1); `None` if there is none."""
    if isinstance(budgets, ChoiceBudgets):
        shorter = sorted({b for b in budgets.choices if b < length})
        return shorter[int(u * len(shorter))] if shorter else None
    high = length - 1 if budgets.high is None else min(budgets.high, length - 1)
    if high < budgets.low:
        return None
    # + 1: each integer gets the density between itself and the next, the last one included
    budget = budgets.low * math.exp(u * math.log((high + 1) / budgets.low))
    return min(int(budget), high)


def _render(record: Prepared, preparer: Preparer) -> Prepared:
    """Add the record's rendered samples, or a drop."""
    example = record.example
    template = preparer.renderer.template
    every_step = preparer.split_steps
    untrained_close: frozenset[int] = frozenset()  # messages whose closing tag is not trained
    if preparer.recipe.reasoning.truncated_close == "masked":
        untrained_close = frozenset(cut.message for cut in record.cuts)
    try:
        samples = training_samples(
            example, template, untrained_close=untrained_close, every_step=every_step
        )
    except RenderError as error:
        return record._replace(drop=Drop("render_error", str(error)))
    if not samples:
        drop = Drop("nothing_trained", "no assistant message answers a user")
        return record._replace(drop=drop)
    lost = losses(example, template, samples, every_step=every_step)
    kinds: tuple[LossKind, ...] = tuple(dict.fromkeys(loss.kind for loss in lost))
    allowed = preparer.recipe.tokenizer.allow_left_out
    refused = [kind for kind in kinds if kind not in allowed]
    drop = None
    if refused:
        drop = Drop(f"{LEFT_OUT}{refused[0]}", describe(lost, template))
    elif not preparer.source.filters.bad_unicode:
        drop = _encoding_drop([example.license, example.metadata, *distinct_texts(samples)])
    return record._replace(left_out=kinds, samples=() if drop else samples, drop=drop)


def _encoding_drop(texts: Sequence[str]) -> Drop | None:
    """Drop of a record with text that UTF-8 cannot hold; else None."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return Drop("render_error", "half a surrogate pair cannot be tokenised")
    return None


def _with_sequences(
    record: Prepared, encoded: Iterator[TokenSequence], any_foreign: bool, preparer: Preparer
) -> Prepared:
    """Add the record's encoded sequences, or a drop.

    Args:
        encoded: sequences of the batch; as many are taken as the record has samples.
        any_foreign: True if any record of the batch spells a special token.
    """
    if record.drop is not None:
        return record
    sequences: list[PreparedSequence] = []
    for sample, tokens in zip(record.samples, encoded, strict=False):
        budget = _smallest_budget(sample, record.cuts)
        sequences.append(PreparedSequence(sample, tokens, len(tokens.ids), budget))
    drop = None
    if any_foreign:
        drop = _special_token_drop(record.example, [s.tokens for s in sequences], preparer)
    drop = drop or preparer.screen.by_length(max(s.length for s in sequences))
    return record._replace(sequences=() if drop else tuple(sequences), drop=drop)


def within_capacity(prepared: Prepared, preparer: Preparer) -> Prepared:
    """Drop or clip sequences longer than a pack, then drop those in which nothing is trained."""
    packing = preparer.recipe.packing
    kept: list[PreparedSequence] = []
    drops: list[Drop] = []
    clipped = 0
    for sequence in prepared.sequences:
        turn = sequence.sample.turn
        length = sequence.length
        if length > packing.max_length and packing.overlong == "drop":
            detail = f"turn {turn}: {length} tokens, a pack holds {packing.max_length}"
            drops.append(Drop("overlong", detail))
            continue
        if length > packing.max_length:
            sequence = sequence._replace(tokens=clip(sequence.tokens, packing.max_length))
            clipped += 1
        if sequence.tokens.trained == 0:
            detail = f"turn {turn}: none of {length} tokens is trained"
            drops.append(Drop("nothing_trained", detail))
            continue
        kept.append(sequence)
    if not (drops or clipped):
        return prepared
    drop = prepared.drop if kept or prepared.drop else drops[0]
    lost = tuple(drop.reason for drop in drops)
    return prepared._replace(sequences=tuple(kept), lost=lost, clipped=clipped, drop=drop)


def _special_token_drop(
    example: Example, encoded: Sequence[TokenSequence], preparer: Preparer
) -> Drop | None:
    """Drop of a record whose text spells a special token, and would be encoded as that token."""
    for token in preparer.foreign_tokens(encoded).tolist():
        text = preparer.special_texts[token]
        for k, message in enumerate(example.messages):
            # only texts of messages: a template may compose its own tokens out of parts
            if any(text in part for part in message_texts(message)):
                detail = f"message {k} ({message.role}) spells the special token {text!r}"
                return Drop("special_token", detail)
    return None


def _smallest_budget(sample: TrainingSample, cuts: Sequence[Cut]) -> int | None:
    """Smallest budget among the cut traces that a sample trains."""
    budgets = [cut.budget for cut in cuts if cut.message in sample.trained_messages]
    return min(budgets, default=None)
