"""A look at the first records of every source, before hours are spent: does this recipe fit them?

probe = probe_source(recipe, source, preparer, base_dir, records=64)
warnings, problems = check_probe(probe, recipe, preparer, decode=…, stop_ids=…)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from data_builders.rows.files import open_rows
from data_builders.rows.raw import Dropped
from data_builders.rows.read import PlacedExample, examples_of, matching_rows
from data_builders.rows.where import SeenFields
from data_builders.sft.mixture import Total
from data_builders.sft.prepare import (
    LEFT_OUT,
    Prepared,
    PreparedSequence,
    Preparer,
    prepare,
    within_capacity,
)
from data_builders.sft.prepared import sequence_rows
from data_builders.sft.stats import PartCounts, left_out_exceeded, losses_exceeded
from posttrain.audit.figures import SourceFigures
from posttrain.audit.limits import violations
from posttrain.chat import ChatTemplate
from posttrain.config.build_sft import BuildSftConfig, SftSource
from posttrain.errors import ConfigError

PROBED = 64  # records of each source that every build looks at first
PROBED_DRY = 1_000  # and a dry run: all of a small source
_TRIED = 16
_ROWS_AT_MOST = 5_000
_UNBOUNDED = 2**31 - 1


@dataclass(frozen=True)
class Probe:
    """The first records of a source, prepared without a length limit (`unbounded`) and with it.

    `complete`: they are all there are. `examples` shows a dropped row for each reason. `stats` are
    as those of a finished part.
    """

    source: SftSource
    complete: bool
    unbounded: list[Prepared]
    prepared: list[Prepared]
    stats: dict[str, Any]
    figures: SourceFigures
    examples: Mapping[str, str]
    fields: SeenFields
    seconds: float

    @property
    def name(self) -> str:
        """The source's."""
        return self.source.name

    @property
    def rows(self) -> int:
        """Rows that were read."""
        return self.stats["rows_in"]

    @property
    def kept(self) -> Total:
        """What is left of these records."""
        kept = [p for p in self.prepared if p.drop is None]
        tokens = [s.tokens for p in kept for s in p.sequences]
        amounts = sum(len(t.ids) for t in tokens), sum(t.trained for t in tokens)
        return Total(len(kept), *amounts, sequences=len(tokens))

    def lost(self) -> str:
        """Drop reasons with counts, most first."""
        dropped = sorted(self.stats["dropped"].items(), key=lambda item: -item[1])
        return ", ".join(f"{count:,} {reason}" for reason, count in dropped) or "no rows"


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
    figures.add(sequence_rows([s for p in prepared for s in p.sequences], preparer.marks))
    return Probe(
        source,
        complete=complete,
        unbounded=unbounded,
        prepared=prepared,
        stats=counts.stats(),
        figures=figures,
        examples=dropped,
        fields=fields,
        seconds=time.perf_counter() - started,
    )


def first_texts(recipe: BuildSftConfig, base_dir: Path) -> list[str]:
    """The texts of the first records of every source, for a tokenizer to be tried on."""
    texts: list[str] = []
    for source in recipe.sources:
        # what is wrong with the fields that it names is a problem beside others: `check_probe`
        rows = matching_rows(open_rows(source, base_dir), SeenFields(source))
        items = examples_of(rows, source, allowed_licenses=recipe.licenses, counts=None)
        placed = (i for i in islice(items, _ROWS_AT_MOST) if isinstance(i, PlacedExample))
        for item in islice(placed, _TRIED):
            texts += [t for m in item.example.messages for t in (m.content, m.reasoning or "")]
    # half a surrogate pair cannot be encoded; its record will be dropped
    return [text for text in texts if text.encode("utf-8", "replace").decode() == text]


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
    estimate: bool = False,
) -> tuple[list[str], list[str]]:
    """Compare the probed sequences with the recipe and the tokenizer.

    Args:
        estimate: hold the limits of the whole source against these rows, as a dry run does.

    Returns:
        Warnings, of what need not be wrong, and problems, at which the build would stop: a
        configured field is nowhere, packs are too small for this source, a prompt is tokenised
        otherwise than at inference, the template leaves out what may not be left out, no end token
        is trained; with `estimate` all else that these rows show.
    """
    name, within = probe.name, f"in its first {probe.rows} rows"
    warnings, problems = list[str](), list[str]()
    if wrong := probe.fields.problem(name):
        # a field that only a later row has is possible, where the source goes on
        left = probe.prepared or "where" in probe.stats["dropped"]
        certain = probe.complete or not left or (estimate and probe.prepared)
        (problems if certain else warnings).append(wrong if certain else f"{wrong} ({within})")
    if estimate or probe.complete or not recipe.limits.left_out:
        problems += _left_out(probe, recipe, preparer)
    if estimate:
        crossed = losses_exceeded(name, probe.stats, recipe.limits)
        crossed += violations(name, probe.figures.stats(), recipe.limits)
        problems += [f"{line} ({within})" for line in crossed]
    if all(p.drop is not None for p in probe.prepared):
        nothing = f"source {name!r}: nothing is kept {within} ({probe.lost()})"
        (problems if estimate and probe.source.has_amount else warnings).append(nothing)
    sequences = [s for p in probe.unbounded for s in p.sequences]
    if not sequences:
        return warnings, problems
    problems += _capacity(name, sequences, recipe)
    problems += _boundary(name, sequences, preparer)
    if not any(set(stop_ids) & set(_trained_ids(s)) for s in sequences):
        problems.append(
            f"source {name!r}: no end token (ids {list(stop_ids)}) is trained in its first "
            f"{len(sequences)} sequences; the model would not learn to stop. The template and the "
            "tokenizer's eos token do not belong together"
        )
    changed = sum(decode(s.tokens.ids.tolist()) != s.sample.text for s in sequences)
    if changed:
        warnings.append(
            f"source {name!r}: the tokenizer does not give back the exact text of {changed} "
            f"of {len(sequences)} probed sequences (it normalises or lacks characters)"
        )
    return warnings, problems


def _left_out(probe: Probe, recipe: BuildSftConfig, preparer: Preparer) -> Iterator[str]:
    """What the template leaves out beyond the limit, with the way out that helps."""
    lost = [p for p in probe.prepared if p.drop and p.drop.reason.startswith(LEFT_OUT)]
    split = prepare([p.example for p in lost], replace(preparer, split_steps=True))
    helped = sum(p.drop is None for p in split)
    problem = left_out_exceeded(probe.name, probe.stats, recipe.limits, split_helps=helped > 0)
    if problem:
        first = lost[0].drop
        assert first is not None, "chosen for its drop"
        yield (
            f"{problem}\n  {first.detail}, and so for {len(lost)} of its first {probe.rows} rows; "
            f"tokenizer.split_steps would write all of {helped} of them"
        )


def _capacity(
    name: str, sequences: Sequence[PreparedSequence], recipe: BuildSftConfig
) -> Iterator[str]:
    capacity = recipe.packing.max_length
    lengths = sorted(s.length for s in sequences)
    prompts = sorted(s.tokens.spans[0] for s in sequences)
    larger = f"Raise packing.max_length, e.g. to {1 << (lengths[-1] - 1).bit_length()}"
    if prompts[0] >= capacity:
        yield (
            f"packing.max_length {capacity} is shorter than the prompts of source {name!r}: in its "
            f"first {len(lengths)} sequences the answer starts after {prompts[0]} to {prompts[-1]} "
            f"tokens. {larger}"
        )
    elif lengths[0] > capacity and recipe.packing.overlong == "drop":
        yield (
            f"packing.max_length {capacity} is shorter than every one of the first {len(lengths)} "
            f"sequences of source {name!r} ({lengths[0]} to {lengths[-1]} tokens). {larger}"
        )


def _boundary(
    name: str, sequences: Sequence[PreparedSequence], preparer: Preparer
) -> Iterator[str]:
    """At inference the prompt is tokenised as one text; ours, in pieces, must be the same ids."""
    prompts: list[str] = []
    for sequence in sequences:
        segments = sequence.sample.segments
        first = next(i for i, s in enumerate(segments) if s.trained)
        prompts.append("".join(s.text for s in segments[:first]))
    pairs = zip(sequences, preparer.encode(prompts), strict=True)
    if any(not np.array_equal(s.tokens.ids[: s.tokens.spans[0]], ids) for s, ids in pairs):
        yield (
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
