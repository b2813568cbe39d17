"""A look at the first records of every source, before hours are spent: does this recipe fit them?

probe = probe_source(recipe, source, preparer, base_dir, records=64)
check_probe(probe, recipe, preparer, decode=…, stop_ids=…)     what both a build and a dry run do
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from data_builders.rows.examples import PlacedExample, examples_of, read_examples
from data_builders.rows.files import open_rows
from data_builders.rows.raw import Dropped
from data_builders.rows.read import matching_rows
from data_builders.rows.where import SeenFields
from data_builders.sft.part import PartCounts
from data_builders.sft.prepare import (
    LEFT_OUT,
    Prepared,
    PreparedSequence,
    Preparer,
    prepare,
    within_capacity,
)
from data_builders.sft.prepared import supervision_of
from data_builders.sft.sources import check_limits
from posttrain.audit.figures import SourceFigures
from posttrain.chat import ChatTemplate
from posttrain.config.build_sft import BuildSftConfig, SftSource
from posttrain.errors import ConfigError, DataError
from posttrain.records import Example

PROBED = 64  # records of each source that every build looks at first
_TRIED = 16
_ROWS_AT_MOST = 5_000
_UNBOUNDED = 2**31 - 1


@dataclass(frozen=True)
class Probe:
    """The first records of a source, prepared without a length limit (`unbounded`) and with it.

    `complete`: they are all there are. `examples` shows a dropped row for each reason.
    """

    name: str
    complete: bool
    unbounded: list[Prepared]
    prepared: list[Prepared]
    counts: PartCounts
    figures: SourceFigures
    examples: Mapping[str, str]
    fields: SeenFields
    seconds: float

    @property
    def rows(self) -> int:
        """Rows that were read."""
        return self.counts.rows.rows_in

    @property
    def stats(self) -> dict[str, Any]:
        """As of a finished part."""
        return self.counts.stats()


def probe_source(
    recipe: BuildSftConfig,
    source: SftSource,
    preparer: Preparer,
    base_dir: Path,
    *,
    records: int = PROBED,
) -> Probe:
    """Prepare the first records of a source. Raises what reading it raises."""
    started = time.perf_counter()
    counts, dropped = PartCounts(1, recipe.seed), dict[str, str]()
    fields = SeenFields(source)
    placed: list[PlacedExample] = []
    rows = matching_rows(open_rows(source, base_dir), fields)
    items = examples_of(rows, source, allowed_licenses=recipe.licenses, counts=counts.rows)
    complete = True
    for item in items:
        if isinstance(item, Dropped):
            dropped.setdefault(item.reason, f"{item.file}:{item.line}: {item.detail}")
        else:
            placed.append(item)
        if len(placed) == records or counts.rows.rows_in == _ROWS_AT_MOST:
            complete = next(items, None) is None
            break
    unbounded = prepare([p.example for p in placed], replace(preparer, capacity=_UNBOUNDED))
    prepared = [within_capacity(p, preparer) for p in unbounded]
    for item, record in zip(placed, prepared, strict=True):
        counts.add(record)
        if record.drop is not None:
            where = f"{item.file}:{item.line}: {record.drop.detail}"
            dropped.setdefault(record.drop.reason, where)
    figures = SourceFigures.empty(preparer.marks, knows_cuts=True)
    kept = [sequence for p in prepared for sequence in p.sequences]
    if kept:
        flags, _ = supervision_of(kept, preparer.marks)
        lengths, trained = zip(*((len(s.tokens.ids), s.tokens.trained) for s in kept), strict=True)
        figures.add(np.array(lengths), np.array(trained), flags)
    return Probe(
        source.name,
        complete=complete,
        unbounded=unbounded,
        prepared=prepared,
        counts=counts,
        figures=figures,
        examples=dropped,
        fields=fields,
        seconds=time.perf_counter() - started,
    )


def first_texts(recipe: BuildSftConfig, base_dir: Path) -> list[str]:
    """The texts of the first records of every source, for a tokenizer to be tried on."""
    texts: list[str] = []
    for source in recipe.sources:
        rows = read_examples(source, base_dir, allowed_licenses=recipe.licenses)
        examples = (item for item in islice(rows, _ROWS_AT_MOST) if isinstance(item, Example))
        for example in islice(examples, _TRIED):
            texts += [t for m in example.messages for t in (m.content, m.reasoning or "")]
    return [text for text in texts if _encodable(text)]


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair; its record will be dropped
        return False
    return True


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
        ConfigError: a configured field is nowhere, packs are too small for this source, a prompt is
            tokenised otherwise than at inference, the template leaves out what may not be left out,
            or no end token is trained.
    """
    warnings = _check_fields(probe)
    _check_left_out(probe, recipe, preparer)
    sequences = [s for p in probe.unbounded for s in p.sequences]
    if not sequences:
        why = f" ({', '.join(sorted(probe.examples))})" if probe.examples else ""
        none = f"source {probe.name!r}: none of its first {probe.rows} rows was kept{why}"
        return [*warnings, none]
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
        warnings.append(
            f"source {probe.name!r}: the tokenizer does not give back the exact text of {changed} "
            f"of {len(sequences)} probed sequences (it normalises or lacks characters)"
        )
    return warnings


def _check_fields(probe: Probe) -> list[str]:
    """A field that only a later row has is possible, where the source goes on."""
    try:
        probe.fields.check(probe.name)
    except ConfigError as error:
        rows = probe.counts.rows
        if probe.complete or not (rows.kept or rows.dropped["where"]):
            raise
        return [f"{error} (of the first {probe.rows})"]
    return []


def _check_left_out(probe: Probe, recipe: BuildSftConfig, preparer: Preparer) -> None:
    """Stop before the build where it is certain to stop, with the way out that helps."""
    lost = [p for p in probe.prepared if p.drop and p.drop.reason.startswith(LEFT_OUT)]
    if not lost or (recipe.limits.left_out and not probe.complete):
        return
    split = prepare([p.example for p in lost], replace(preparer, split_steps=True))
    helped = sum(p.drop is None for p in split)
    try:
        check_limits(probe.name, probe.stats, recipe.limits, split_helps=helped > 0)
    except DataError as error:
        first = lost[0].drop
        assert first is not None, "chosen for its drop"
        raise ConfigError(
            f"{error}\n  {first.detail}, and so for {len(lost)} of its first {probe.rows} rows; "
            f"tokenizer.split_steps would write all of {helped} of them"
        ) from None


def _check_capacity(
    name: str, sequences: Sequence[PreparedSequence], recipe: BuildSftConfig
) -> None:
    capacity = recipe.packing.max_length
    lengths = sorted(s.length for s in sequences)
    prompts = sorted(s.tokens.spans[0] for s in sequences)
    larger = f"Raise packing.max_length, e.g. to {1 << (lengths[-1] - 1).bit_length()}"
    if prompts[0] >= capacity:
        raise ConfigError(
            f"packing.max_length {capacity} is shorter than the prompts of source {name!r}: in its "
            f"first {len(lengths)} sequences the answer starts after {prompts[0]} to {prompts[-1]} "
            f"tokens. {larger}"
        )
    if lengths[0] > capacity and recipe.packing.overlong == "drop":
        raise ConfigError(
            f"packing.max_length {capacity} is shorter than every one of the first {len(lengths)} "
            f"sequences of source {name!r} ({lengths[0]} to {lengths[-1]} tokens). {larger}"
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


def _trained_ids(sequence: PreparedSequence) -> list[int]:
    spans, ids = sequence.tokens.spans, sequence.tokens.ids
    return [i for a, b in zip(spans[::2], spans[1::2], strict=True) for i in ids[a:b].tolist()]


def check_markup(template: ChatTemplate, vocabulary: Sequence[str]) -> list[str]:
    """Warn of reasoning and tool tags that the tokenizer spells in several tokens."""
    tags = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    known = set(vocabulary)
    spelt = [tag for tag in tags if tag in template.source and tag not in known]
    if not spelt:
        return []
    return [f"{', '.join(spelt)}: no tokens of their own in this vocabulary, tokenised as text"]
