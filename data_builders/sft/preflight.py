"""A look at the first records of every source, before hours are spent: does this recipe fit them?

probe_source(source, preparer, base_dir)  →  Probe("maths", rows=64, prepared=[…], seconds=0.1)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data_builders.rows.examples import read_examples
from data_builders.sft.prepare import Prepared, PreparedSequence, Preparer, prepare
from posttrain.chat import ChatTemplate, left_out
from posttrain.config.build_sft import BuildSftConfig, SftSource
from posttrain.errors import ConfigError
from posttrain.records import Example

PROBED = 64
_TRIED = 16
_ROWS_AT_MOST = 5_000
_UNBOUNDED = 2**31 - 1


@dataclass(frozen=True)
class Probe:
    """The first records of a source, prepared without a length limit. `rows` were read for them."""

    name: str
    rows: int
    prepared: list[Prepared]
    seconds: float

    @property
    def sequences(self) -> list[PreparedSequence]:
        """All sequences of the probed records."""
        return [s for p in self.prepared for s in p.sequences]


def probe_source(
    recipe: BuildSftConfig, source: SftSource, preparer: Preparer, base_dir: Path
) -> Probe:
    """Prepare the first records of a source. Raises what reading it raises."""
    started = time.perf_counter()
    rows, examples = _first_examples(recipe, source, base_dir, PROBED)
    prepared = prepare(examples, replace(preparer, capacity=_UNBOUNDED))
    return Probe(source.name, rows, prepared, time.perf_counter() - started)


def first_texts(recipe: BuildSftConfig, base_dir: Path) -> list[str]:
    """What the first records of every source say, for a tokenizer to be tried on."""
    return [
        text
        for source in recipe.sources
        for example in _first_examples(recipe, source, base_dir, _TRIED)[1]
        for message in example.messages
        for text in (message.content, message.reasoning or "")
        if _encodable(text)
    ]


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair; its record will be dropped
        return False
    return True


def _first_examples(
    recipe: BuildSftConfig, source: SftSource, base_dir: Path, count: int
) -> tuple[int, list[Example]]:
    """Rows read, and the first records among them."""
    rows, examples = 0, list[Example]()
    for item in read_examples(source, base_dir, allowed_licenses=recipe.licenses):
        rows += 1
        if isinstance(item, Example):
            examples.append(item)
        if len(examples) == count or rows == _ROWS_AT_MOST:
            break
    return rows, examples


def check_template(template: ChatTemplate) -> None:
    """Refuse a template whose output depends on the day.

    Raises:
        ConfigError: with the variable to set.
    """
    if template.reads_clock:
        raise ConfigError(
            f"the chat template {template.name!r} writes today's date: the same recipe would give "
            "other bytes tomorrow. Set tokenizer.template_variables: {date_string: …}"
        )


def check_probe(
    probe: Probe,
    recipe: BuildSftConfig,
    preparer: Preparer,
    *,
    decode: Callable[[Sequence[int]], str],
    stop_ids: Sequence[int],
) -> list[str]:
    """Compare the probed sequences with the recipe and the tokenizer.

    Returns:
        Warnings, for things that need not be wrong.

    Raises:
        ConfigError: packs are too small for this source, a prompt is tokenised otherwise than at
            inference, the template leaves most records incomplete, or no end token is trained.
    """
    _check_left_out(probe, preparer.template)
    sequences = probe.sequences
    if not sequences:
        reasons = sorted({p.drop.reason for p in probe.prepared if p.drop})
        why = f" ({', '.join(reasons)})" if reasons else ""
        return [f"source {probe.name!r}: none of its first {probe.rows} rows was kept{why}"]
    _check_capacity(probe.name, sequences, recipe)
    _check_boundary(probe.name, sequences, preparer)
    if not any(set(stop_ids) & set(_trained_ids(s)) for s in sequences):
        raise ConfigError(
            f"source {probe.name!r}: no end token (ids {list(stop_ids)}) is trained in its first "
            f"{len(sequences)} sequences; the model would not learn to stop. The template and the "
            "tokenizer's eos token do not belong together"
        )
    changed = sum(decode(s.tokens.ids.tolist()) != s.sample.text for s in sequences)
    if changed:
        return [
            f"source {probe.name!r}: the tokenizer does not give back the exact text of {changed} "
            f"of {len(sequences)} probed sequences (it normalises or lacks characters)"
        ]
    return []


def _check_capacity(
    name: str, sequences: Sequence[PreparedSequence], recipe: BuildSftConfig
) -> None:
    capacity = recipe.packing.max_length
    lengths = sorted(s.length for s in sequences)
    prompts = sorted(s.tokens.spans[0] for s in sequences)
    if prompts[0] >= capacity:
        raise ConfigError(
            f"packing.max_length {capacity} is shorter than the prompts of source {name!r}: in its "
            f"first {len(lengths)} sequences the answer starts after {prompts[0]} to {prompts[-1]} "
            f"tokens. Raise packing.max_length, e.g. to {_round_up(lengths[-1])}"
        )
    if lengths[0] > capacity and recipe.packing.overlong == "drop":
        raise ConfigError(
            f"packing.max_length {capacity} is shorter than every one of the first {len(lengths)} "
            f"sequences of source {name!r} ({lengths[0]} to {lengths[-1]} tokens). Raise "
            f"packing.max_length, e.g. to {_round_up(lengths[-1])}"
        )


def _check_boundary(name: str, sequences: Sequence[PreparedSequence], preparer: Preparer) -> None:
    """At inference the prompt is tokenised as one text; ours, in pieces, must be the same ids."""
    prompts: list[str] = []
    for sequence in sequences:
        segments = sequence.sample.segments
        first = next(i for i, s in enumerate(segments) if s.trained)
        prompts.append("".join(s.text for s in segments[:first]))
    for sequence, ids in zip(sequences, preparer.encode(prompts), strict=True):
        if not np.array_equal(sequence.tokens.ids[: sequence.tokens.spans[0]], ids):
            raise ConfigError(
                f"source {name!r}: this tokenizer encodes a prompt in pieces otherwise than as one "
                "text (it adds something to a text, or a special token does not always split), so "
                "training would not see what inference sees"
            )


def _check_left_out(probe: Probe, template: ChatTemplate) -> None:
    """A template that knows no reasoning, or no tool calls, leaves them out without a word."""
    missing = [text for p in probe.prepared if (text := left_out(p.example, template))]
    if 2 * len(missing) > len(probe.prepared):
        raise ConfigError(
            f"source {probe.name!r}: {missing[0]}, and so for {len(missing)} of its first "
            f"{len(probe.prepared)} records. Choose another tokenizer.chat_template, or, for "
            "reasoning, set the source's reasoning: {strip: 1.0} to train its answers alone"
        )


def _trained_ids(sequence: PreparedSequence) -> list[int]:
    spans, ids = sequence.tokens.spans, sequence.tokens.ids
    return [i for a, b in zip(spans[::2], spans[1::2], strict=True) for i in ids[a:b].tolist()]


def _round_up(length: int) -> int:
    return 1 << (length - 1).bit_length()


def check_markup(template: ChatTemplate, vocabulary: Sequence[str]) -> list[str]:
    """Warn of reasoning and tool tags that the tokenizer spells in several tokens."""
    tags = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    known = set(vocabulary)
    spelt = [tag for tag in tags if tag in template.source and tag not in known]
    if not spelt:
        return []
    return [f"{', '.join(spelt)}: no tokens of their own in this vocabulary, tokenised as text"]
