"""A look at the first records of every source, before hours are spent: does this recipe fit them,
and what would a build of all of them do?
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from data_builders.rows.files import count_rows, input_files, open_rows
from data_builders.rows.read import PlacedExample, examples_of, matching_rows
from data_builders.rows.where import SeenFields
from data_builders.sft.mixture import Available, Total, epochs_question, lost_rows, plan_mixture
from data_builders.sft.prepare import (
    LEFT_OUT,
    Prepared,
    PreparedSequence,
    Preparer,
    prepare,
    prepare_unbounded,
    within_capacity,
)
from data_builders.sft.prepared import sequence_rows
from data_builders.sft.stats import PartCounts, left_out_exceeded, losses_exceeded
from posttrain.audit.figures import SourceFigures
from posttrain.audit.limits import violations
from posttrain.chat import ChatTemplate
from posttrain.config.build_sft import BuildSftConfig, SftSource
from posttrain.errors import ConfigError, DataError
from posttrain.report.console import print_sections
from posttrain.report.section import Section, Table

PROBED = 64  # records of each source that every build looks at first
PROBED_DRY = 1_000  # and a dry run: all of a small source
_TRIED = 16
_ROWS_AT_MOST = 5_000
_BYTES_PER_TOKEN = 8  # an id and a label, four bytes each
_ESTIMATED = 0.1  # error of a source's estimated amount before a dry run fails


_OVERSIZED = 32  # times the longest sequence: packs are then far too long


@dataclass(frozen=True)
class Probe:
    """The first records of a source, prepared without a length limit (`unbounded`) and with it.

    `complete`: they are all there are; `of_rows`: about how many rows the source has, None where
    nobody knows. `examples` shows a dropped row for each reason. `stats` are as those of a finished
    part. `kept` is what is left of these records.
    """

    source: SftSource
    complete: bool
    of_rows: int | None
    unbounded: list[Prepared]
    prepared: list[Prepared]
    kept: Total
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
    def lost(self) -> str:
        """Drop reasons with counts, most first."""
        return lost_rows(self.stats["dropped"])

    @property
    def expected(self) -> Total | None:
        """What the whole source has, by these rows; None where its rows are unknown."""
        if self.complete or self.of_rows is None:
            return self.kept if self.complete else None
        return self.kept.scaled(self.of_rows / max(self.rows, 1))


def probe_source(preparer: Preparer, base_dir: Path, *, records: int = PROBED) -> Probe:
    """Prepare the first records of a source. Raises what reading it raises."""
    started = time.perf_counter()
    recipe, source, marks = preparer.recipe, preparer.source, preparer.renderer.marks
    counts, fields = PartCounts(1, recipe.seed), SeenFields(source)
    placed: list[PlacedExample] = []
    rows = matching_rows(open_rows(source, base_dir), fields)
    items = examples_of(rows, source, allowed_licenses=recipe.licenses, counts=counts.rows)
    complete = True
    for item in items:
        if isinstance(item, PlacedExample):
            placed.append(item)
        if len(placed) == records or counts.rows.rows_in == _ROWS_AT_MOST:
            complete = next(items, None) is None
            break
    unbounded = prepare_unbounded([p.example for p in placed], preparer)
    prepared = [within_capacity(p, preparer) for p in unbounded]
    for item, record in zip(placed, prepared, strict=True):
        counts.add(record)
        if record.drop is not None:
            where = f"{item.file}:{item.line}: {record.drop.detail}"
            counts.rows.examples.setdefault(record.drop.reason, where)
    sequences = [s for record in prepared for s in record.sequences]
    figures = SourceFigures.empty(marks, knows_cuts=True)
    figures.add(sequence_rows(sequences, marks))
    return Probe(
        source,
        complete=complete,
        of_rows=count_rows(input_files(source, base_dir)),
        unbounded=unbounded,
        prepared=prepared,
        kept=Total(
            rows=sum(record.drop is None for record in prepared),
            tokens=sum(len(s.tokens.ids) for s in sequences),
            trained=sum(s.tokens.trained for s in sequences),
            sequences=len(sequences),
        ),
        stats=counts.stats(),
        figures=figures,
        examples=counts.rows.examples,
        fields=fields,
        seconds=time.perf_counter() - started,
    )


def first_texts(recipe: BuildSftConfig, base_dir: Path) -> list[str]:
    """The texts of the first records of every source, for a tokenizer to be tried on."""
    texts: list[str] = []
    for source in recipe.sources:
        # what is wrong with the fields that it names is a problem beside others: `check_probe`
        rows = matching_rows(open_rows(source, base_dir), SeenFields(source))
        items = examples_of(rows, source, allowed_licenses=recipe.licenses)
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


def check_markup(template: ChatTemplate, vocabulary: Sequence[str]) -> list[str]:
    """Warn of reasoning and tool tags that the tokenizer spells in several tokens."""
    tags = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    known = set(vocabulary)
    spelt = [tag for tag in tags if tag in template.source and tag not in known]
    if not spelt:
        return []
    return [f"{', '.join(spelt)}: no tokens of their own in this vocabulary, tokenised as text"]


def check_probe(
    probe: Probe, preparer: Preparer, *, estimate: bool = False
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
    limits, renderer = preparer.recipe.limits, preparer.renderer
    warnings, problems = list[str](), list[str]()
    if wrong := probe.fields.problem(name):
        # a field that only a later row has is possible, where the source goes on
        left = probe.prepared or "where" in probe.stats["dropped"]
        certain = probe.complete or not left or (estimate and probe.prepared)
        (problems if certain else warnings).append(wrong if certain else f"{wrong} ({within})")
    if estimate or probe.complete or not limits.left_out:
        problems += _left_out(probe, preparer)
    if estimate:
        crossed = losses_exceeded(name, probe.stats, limits)
        crossed += violations(name, probe.figures.stats(), limits)
        problems += [f"{line} ({within})" for line in crossed]
    if not probe.kept.rows:
        nothing = f"source {name!r}: nothing is kept {within} ({probe.lost})"
        (problems if estimate and probe.source.has_amount else warnings).append(nothing)
    sequences = [s for p in probe.unbounded for s in p.sequences]
    if not sequences:
        return warnings, problems
    problems += _capacity(name, sequences, preparer.recipe)
    if _boundary_moves(sequences, preparer):
        problems.append(
            f"source {name!r}: this tokenizer encodes a prompt in pieces otherwise than as one "
            "text (it adds something to a text, or a special token does not always split), so "
            "training would not see what inference sees"
        )
    stop_ids = renderer.special.stop_ids
    if not any(set(stop_ids) & set(_trained_ids(s)) for s in sequences):
        problems.append(
            f"source {name!r}: no end token (ids {list(stop_ids)}) is trained in its first "
            f"{len(sequences)} sequences; the model would not learn to stop. The template and the "
            "tokenizer's eos token do not belong together"
        )
    decode = renderer.encoder.decode
    changed = sum(decode(s.tokens.ids.tolist()) != s.sample.text for s in sequences)
    if changed:
        warnings.append(
            f"source {name!r}: the tokenizer does not give back the exact text of {changed} "
            f"of {len(sequences)} probed sequences (it normalises or lacks characters)"
        )
    return warnings, problems


def _left_out(probe: Probe, preparer: Preparer) -> Iterator[str]:
    """What the template leaves out beyond the limit, with the way out that helps."""
    lost = [p for p in probe.prepared if p.drop and p.drop.reason.startswith(LEFT_OUT)]
    splitting = copy.copy(preparer)
    splitting.split_steps = True
    helped = sum(p.drop is None for p in prepare([p.example for p in lost], splitting))
    limits = preparer.recipe.limits
    problem = left_out_exceeded(probe.name, probe.stats, limits, split_helps=helped > 0)
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


def _boundary_moves(sequences: Sequence[PreparedSequence], preparer: Preparer) -> bool:
    """At inference the prompt is tokenised as one text; ours, in pieces, must be the same ids."""
    prompts: list[str] = []
    for sequence in sequences:
        segments = sequence.sample.segments
        first = next(i for i, s in enumerate(segments) if s.trained)
        prompts.append("".join(s.text for s in segments[:first]))
    pairs = zip(sequences, preparer.renderer.encode(prompts), strict=True)
    return any(not np.array_equal(s.tokens.ids[: s.tokens.spans[0]], ids) for s, ids in pairs)


def _trained_ids(sequence: PreparedSequence) -> list[int]:
    spans, ids = sequence.tokens.spans, sequence.tokens.ids
    return [i for a, b in zip(spans[::2], spans[1::2], strict=True) for i in ids[a:b].tolist()]


def oversized_packs(recipe: BuildSftConfig, probes: Sequence[Probe]) -> list[str]:
    """A warning where packs are far longer than any sequence that was looked at."""
    lengths = [s.length for p in probes for one in p.unbounded for s in one.sequences]
    longest, capacity = max(lengths, default=0), recipe.packing.max_length
    if not longest or capacity < _OVERSIZED * longest:
        return []
    enough = max(8, 1 << (2 * longest - 1).bit_length())
    return [
        f"packing.max_length {capacity:,} is far above the longest of the first "
        f"{len(lengths):,} sequences ({longest:,} tokens): a step's memory grows with it, and "
        f"small data leave a pack mostly empty; packing.max_length={enough} would hold them"
    ]


def ask_for_epochs(recipe: BuildSftConfig, probes: Sequence[Probe]) -> list[str]:
    """The question of `epochs_question`, by the first rows of every source; or nothing."""
    available = _available(recipe, probes)
    question = available and epochs_question(available, recipe)
    return [f"{question} (estimated from the first rows)"] if question else []


def show_expected(console: Console, recipe: BuildSftConfig, probes: Sequence[Probe]) -> list[str]:
    """Print what the build would do, extrapolated from the first records of every source.

    Returns:
        Problems that show in all sources together, at which the build would stop.
    """
    mixture, problems = _planned(recipe, probes)
    expected = [probe.expected for probe in probes]
    plan = [
        [
            p.name,
            f"{p.rows:,}{' (all)' if p.complete else ''}",
            f"{p.kept.rows / max(p.rows, 1):.0%}",
            "unknown" if total is None else f"~{total.tokens:,}",
            f"{p.kept.tokens / max(p.rows, 1):,.0f}",
            f"{p.kept.trained / max(p.kept.tokens, 1):.0%}",
            _target(p.source, recipe),
            mixture.get(p.name, "–"),
        ]
        for p, total in zip(probes, expected, strict=True)
    ]
    head = ("source", "rows read", "kept", "all tokens", "tokens/row", "trained", "target", "seen")
    drops = [
        [p.name, reason, count, f"{p.examples[reason]:.300}"]
        for p in probes
        for reason, count in sorted(p.stats["dropped"].items(), key=lambda item: -item[1])
    ]
    unread = [
        [p.name, name, _share(count, p.rows), example]
        for p in probes
        for name, count, example in sorted(p.stats["unread"], key=lambda column: -column[1])
    ]
    tokens = sum(total.tokens for total in expected if total is not None)
    seconds = sum(p.seconds * (p.of_rows or p.rows) / max(p.rows, 1) for p in probes)
    summary = (
        f"Each record once: {'at least ' if None in expected else ''}~{tokens:,.0f} tokens, "
        f"~{tokens / recipe.packing.max_length:,.0f} packs of {recipe.packing.max_length:,}, "
        f"~{seconds:,.0f} s, ~{tokens * _BYTES_PER_TOKEN / 1e6:,.0f} MB of shards "
        "and as much again while building."
    )
    if recipe.mixture.total is not None:
        summary += f" Shares divide {recipe.mixture.total:,} {recipe.mixture.unit}."
    elif any(s.share is not None for s in recipe.sources):
        summary += " Shares divide the largest total that keeps every source within its max_epochs."
    table = Table(["source", "reason", "rows", "for example"], drops)
    title = "Expected, from the first records of each source"
    sections = [
        Section(title, [Table(head, plan), summary]),
        Section("Dropped among these rows", [table] * bool(drops)),
    ]
    if unread:
        columns = Table(["source", "column or key", "rows that fill it", "for example"], unread)
        sections.append(Section("Not read, or only in part", [columns]))
    print_sections(console, sections)
    if not any(probe.kept.rows for probe in probes):
        problems.append("nothing is left to train on")
    return problems


def _share(count: int, rows: int) -> str:
    """A share in per cent; what is there at all is never shown as none."""
    share = min(count / max(rows, 1), 1.0)
    return f"{share:.0%}" if share >= 0.005 else "<1%"


def _target(source: SftSource, recipe: BuildSftConfig) -> str:
    if source.share is not None:
        return f"{source.share:.1%} of {recipe.mixture.unit}"
    if source.rows is not None:
        return f"{source.rows:,} rows"
    return f"{source.tokens:,} tokens" if source.tokens is not None else "once"


def _available(recipe: BuildSftConfig, probes: Sequence[Probe]) -> list[Available] | None:
    """What each source has to train on; None where one is compressed or streamed."""
    available: list[Available] = []
    for probe in probes:
        if (total := probe.expected) is None:
            return None
        held_out = probe.source.held_out or recipe.held_out
        share = held_out.rate
        if share is None:
            share = (held_out.rows or 0) / max(total.rows, 1)
        available.append(Available(probe.name, None, total.scaled(max(1 - share, 0)), probe.lost))
    return available


def _planned(recipe: BuildSftConfig, probes: Sequence[Probe]) -> tuple[dict[str, str], list[str]]:
    """How often each source is seen, and amounts that it cannot give within its epochs."""
    if (available := _available(recipe, probes)) is None:
        return {}, []
    tolerance = recipe.mixture.tolerance
    if not all(p.complete for p in probes):
        tolerance += _ESTIMATED
    mixture = recipe.mixture.model_copy(update={"tolerance": tolerance})
    try:
        plans = plan_mixture(available, recipe.model_copy(update={"mixture": mixture}))
    except DataError as error:
        return {}, [f"{error} (estimated from the first rows)"]
    times = {p.name: p.total.tokens / max(p.available.total.tokens, 1) for p in plans}
    return {name: f"{seen:.1f} times" for name, seen in times.items()}, []
