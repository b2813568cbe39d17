"""Checks on the first records of every source, before hours are spent on all of them.

They find out if the recipe fits the records, and extrapolate to a build of all of them.
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
from data_builders.sft.plan import Available, Total, epochs_question, lost_rows, plan_mixture
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
from posttrain.records import Example
from posttrain.report.console import print_sections
from posttrain.report.section import Section, Table

PROBED = 64  # records of each source that every build prepares first
PROBED_DRY = 1_000  # the same for a dry run: all of a small source
_TOKENIZER_RECORDS = 16  # records of each source that a tokenizer is tried on
_TOKENIZER_CHARACTERS = 32_768  # of each of their texts, which the slower library reads too
_MAX_ROWS = 5_000  # rows that are read to find these records
# of the records prepared first: 1,000 of 4,000 tokens, or 16 of 250,000
_MAX_CHARACTERS = 16_000_000
_BYTES_PER_TOKEN = 8  # an id and a label, four bytes each
_ESTIMATE_TOLERANCE = 0.1  # added to the mixture's tolerance where amounts are estimated; ours
_OVERSIZED = 32  # a pack this many times the longest sequence is far too long; ours


@dataclass(frozen=True)
class Probe:
    """First records of a source, prepared.

    Attributes:
        complete: these are all of the source's records.
        of_rows: estimated rows of the source; None if they are not known.
        unbounded, prepared: the records without a limit of length, and with it.
        kept: sums over the records that are kept.
        stats: counts in the form of a finished part.
        examples: detail of one dropped row for each reason.
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
        """Name of the source."""
        return self.source.name

    @property
    def rows(self) -> int:
        """Number of rows read."""
        return self.stats["rows_in"]

    @property
    def lost(self) -> str:
        """Drop reasons with counts, most frequent first."""
        return lost_rows(self.stats["dropped"])

    @property
    def expected(self) -> Total | None:
        """Estimated sums over the whole source; None if its number of rows is unknown."""
        if self.complete:
            return self.kept
        if self.of_rows is None:
            return None
        return self.kept.scaled(self.of_rows / max(self.rows, 1))


def probe_source(preparer: Preparer, base_dir: Path, *, records: int = PROBED) -> Probe:
    """Prepare the first records of a source. Raises the errors of its readers."""
    started = time.perf_counter()
    recipe = preparer.recipe
    source = preparer.source
    marks = preparer.renderer.marks
    counts = PartCounts(1, recipe.seed)
    fields = SeenFields(source)
    rows = matching_rows(open_rows(source, base_dir), fields)
    items = examples_of(rows, source, allowed_licenses=recipe.licenses, counts=counts.rows)
    placed: list[PlacedExample] = []
    characters = 0
    complete = True
    for item in items:
        if isinstance(item, PlacedExample):
            placed.append(item)
            characters += sum(len(text) for text in _texts(item.example))
        enough = len(placed) == records or characters >= _MAX_CHARACTERS
        if enough or counts.rows.rows_in == _MAX_ROWS:
            rows_read = counts.rows.rows_in
            complete = next(items, None) is None
            # the row that was looked at is not among those prepared, of which others are estimated
            counts.rows.rows_in = rows_read
            break
    unbounded = prepare_unbounded([item.example for item in placed], preparer)
    prepared = [within_capacity(record, preparer) for record in unbounded]
    for item, record in zip(placed, prepared, strict=True):
        counts.add(record)
        if record.drop is not None:
            detail = f"{item.file}:{item.line}: {record.drop.detail}"
            counts.rows.examples.setdefault(record.drop.reason, detail)
    sequences = [sequence for record in prepared for sequence in record.sequences]
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
    """Texts of the first records of every source, for a tokenizer to be tried on."""
    texts: list[str] = []
    for source in recipe.sources:
        # `SeenFields` is discarded: `check_probe` reports wrong field names among other problems
        rows = matching_rows(open_rows(source, base_dir), SeenFields(source))
        items = examples_of(rows, source, allowed_licenses=recipe.licenses)
        placed = (item for item in islice(items, _MAX_ROWS) if isinstance(item, PlacedExample))
        for item in islice(placed, _TOKENIZER_RECORDS):
            texts += [text[:_TOKENIZER_CHARACTERS] for text in _texts(item.example)]
    # half a surrogate pair cannot be encoded; its record will be dropped
    return [text for text in texts if text.encode("utf-8", "replace").decode() == text]


def _texts(example: Example) -> list[str]:
    """Contents and traces of a record's messages."""
    texts: list[str] = []
    for message in example.messages:
        texts.append(message.content)
        texts.append(message.reasoning or "")
    return texts


def check_template(template: ChatTemplate) -> None:
    """Refuse a template whose output depends on the day.

    Raises:
        ConfigError: names the variable to set.
    """
    if template.reads_clock:
        raise ConfigError(
            f"the chat template {template.name!r} writes today's date: the same recipe would give "
            "other bytes tomorrow. Set tokenizer.template_variables: {date_string: …}"
        )


def check_markup(template: ChatTemplate, vocabulary: Sequence[str]) -> list[str]:
    """Warn about reasoning and tool tags of the template that are several tokens each."""
    tags = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    known_tokens = set(vocabulary)
    split_tags = [tag for tag in tags if tag in template.source and tag not in known_tokens]
    if not split_tags:
        return []
    return [
        f"{', '.join(split_tags)}: no tokens of their own in this vocabulary, tokenised as text"
    ]


def check_probe(
    probe: Probe, preparer: Preparer, *, estimate: bool = False
) -> tuple[list[str], list[str]]:
    """Compare the probed sequences with the recipe and the tokenizer.

    Args:
        estimate: compare these rows with the limits of the whole source, as a dry run does.

    Returns:
        Warnings, which need no change, and problems, at which the build would stop: a
        configured field is nowhere, packs are too small for this source, a prompt is tokenised
        otherwise than at inference, the template leaves out what may not be left out, no end token
        is trained; with `estimate` everything else that these rows show.
    """
    name = probe.name
    within = f"in its first {probe.rows} rows"
    limits = preparer.recipe.limits
    renderer = preparer.renderer
    warnings: list[str] = []
    problems: list[str] = []
    if wrong_field := probe.fields.problem(name):
        # where the source goes on, a later row may have the field
        any_row_read = probe.prepared or "where" in probe.stats["dropped"]
        if probe.complete or not any_row_read or (estimate and probe.prepared):
            problems.append(wrong_field)
        else:
            warnings.append(f"{wrong_field} ({within})")
    if estimate or probe.complete or not limits.left_out:
        problems += _left_out_problems(probe, preparer)
    if estimate:
        crossed = losses_exceeded(name, probe.stats, limits)
        crossed += violations(name, probe.figures.stats(), limits)
        problems += [f"{line} ({within})" for line in crossed]
    if not probe.kept.rows:
        message = f"source {name!r}: nothing is kept {within} ({probe.lost})"
        (problems if estimate and probe.source.has_amount else warnings).append(message)
    sequences = [sequence for record in probe.unbounded for sequence in record.sequences]
    if not sequences:
        return warnings, problems
    problems += _capacity_problems(name, sequences, preparer.recipe)
    if _prompts_differ_from_inference(sequences, preparer):
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


def _left_out_problems(probe: Probe, preparer: Preparer) -> Iterator[str]:
    """Yield a message if the template leaves out more than the limit, with a way out."""
    lost: list[Prepared] = []
    for record in probe.prepared:
        if record.drop and record.drop.reason.startswith(LEFT_OUT):
            lost.append(record)
    # the same records again with `split_steps`: would it help?
    splitting_preparer = copy.copy(preparer)
    splitting_preparer.split_steps = True
    split_records = prepare([record.example for record in lost], splitting_preparer)
    helped = sum(record.drop is None for record in split_records)
    limits = preparer.recipe.limits
    problem = left_out_exceeded(probe.name, probe.stats, limits, split_helps=helped > 0)
    if problem:
        first = lost[0].drop
        assert first is not None, "chosen for its drop"
        yield (
            f"{problem}\n  {first.detail}, and so for {len(lost)} of its first {probe.rows} rows; "
            f"tokenizer.split_steps would write all of {helped} of them"
        )


def _capacity_problems(
    name: str, sequences: Sequence[PreparedSequence], recipe: BuildSftConfig
) -> Iterator[str]:
    """Yield a message if no answer, or no sequence, fits into a pack."""
    capacity = recipe.packing.max_length
    lengths = sorted(s.length for s in sequences)
    prompts = sorted(s.tokens.spans[0] for s in sequences)
    advice = f"Raise packing.max_length, e.g. to {1 << (lengths[-1] - 1).bit_length()}"
    if prompts[0] >= capacity:
        yield (
            f"packing.max_length {capacity} is shorter than the prompts of source {name!r}: in its "
            f"first {len(lengths)} sequences the answer starts after {prompts[0]} to {prompts[-1]} "
            f"tokens. {advice}"
        )
    elif lengths[0] > capacity and recipe.packing.overlong == "drop":
        yield (
            f"packing.max_length {capacity} is shorter than every one of the first {len(lengths)} "
            f"sequences of source {name!r} ({lengths[0]} to {lengths[-1]} tokens). {advice}"
        )


def _prompts_differ_from_inference(
    sequences: Sequence[PreparedSequence], preparer: Preparer
) -> bool:
    """True if a prompt tokenised as one text, as at inference, has other ids than in training."""
    prompts: list[str] = []
    for sequence in sequences:
        segments = sequence.sample.segments
        first_trained = next(i for i, s in enumerate(segments) if s.trained)
        prompts.append("".join(s.text for s in segments[:first_trained]))
    encoded = preparer.renderer.encode(prompts)
    for sequence, prompt_ids in zip(sequences, encoded, strict=True):
        tokens = sequence.tokens
        if not np.array_equal(tokens.ids[: tokens.spans[0]], prompt_ids):
            return True
    return False


def _trained_ids(sequence: PreparedSequence) -> list[int]:
    """Ids of the trained tokens of a sequence."""
    spans = sequence.tokens.spans
    trained: list[int] = []
    for start, end in zip(spans[::2], spans[1::2], strict=True):
        trained += sequence.tokens.ids[start:end].tolist()
    return trained


def oversized_packs(recipe: BuildSftConfig, probes: Sequence[Probe]) -> list[str]:
    """Warning if packs are far longer than any probed sequence."""
    lengths: list[int] = []
    for probe in probes:
        for record in probe.unbounded:
            lengths += [sequence.length for sequence in record.sequences]
    longest = max(lengths, default=0)
    capacity = recipe.packing.max_length
    if not longest or capacity < _OVERSIZED * longest:
        return []
    sufficient = max(8, 1 << (2 * longest - 1).bit_length())
    return [
        f"packing.max_length {capacity:,} is far above the longest of the first "
        f"{len(lengths):,} sequences ({longest:,} tokens): a step's memory grows with it, and "
        f"small data leave a pack mostly empty; packing.max_length={sufficient} would hold them"
    ]


def ask_for_epochs(recipe: BuildSftConfig, probes: Sequence[Probe]) -> list[str]:
    """Question of `epochs_question`, by the first rows of every source; or nothing."""
    available = _available(recipe, probes)
    question = available and epochs_question(available, recipe)
    return [f"{question} (estimated from the first rows)"] if question else []


def show_expected(console: Console, recipe: BuildSftConfig, probes: Sequence[Probe]) -> list[str]:
    """Print the expected build, extrapolated from the first records of every source.

    Returns:
        Problems of all sources together, at which the build would stop.
    """
    times_seen, problems = _planned_mixture(recipe, probes)
    sections = [
        Section(
            "Expected, from the first records of each source",
            [_plan_table(recipe, probes, times_seen), _summary(recipe, probes)],
        )
    ]
    drops: list[list[object]] = []
    unread: list[list[object]] = []
    for probe in probes:
        most_dropped = sorted(probe.stats["dropped"].items(), key=lambda item: -item[1])
        for reason, count in most_dropped:
            drops.append([probe.name, reason, count, f"{probe.examples[reason]:.300}"])
        most_filled = sorted(probe.stats["unread"], key=lambda column: -column[1])
        for column, count, example in most_filled:
            unread.append([probe.name, column, _share(count, probe.rows), example])
    drop_tables = [Table(["source", "reason", "rows", "for example"], drops)] if drops else []
    sections.append(Section("Dropped among these rows", drop_tables))
    if unread:
        columns = ["source", "column or key", "rows that fill it", "for example"]
        sections.append(Section("Not read, or only in part", [Table(columns, unread)]))
    print_sections(console, sections)
    if not any(probe.kept.rows for probe in probes):
        rows = [f"{probe.rows:,} rows of source {probe.name!r}" for probe in probes]
        problems.append(f"nothing is left to train on, of {', '.join(rows)}")
    return problems


def _plan_table(
    recipe: BuildSftConfig, probes: Sequence[Probe], times_seen: Mapping[str, str]
) -> Table:
    """Table of the sources: rows read and kept, tokens of the whole source, requested amount."""
    rows: list[list[object]] = []
    for probe in probes:
        expected = probe.expected
        rows_read = max(probe.rows, 1)
        rows.append(
            [
                probe.name,
                f"{probe.rows:,}{' (all)' if probe.complete else ''}",
                f"{probe.kept.rows / rows_read:.0%}",
                "unknown" if expected is None else f"~{expected.tokens:,}",
                f"{probe.kept.tokens / rows_read:,.0f}",
                f"{probe.kept.trained / max(probe.kept.tokens, 1):.0%}",
                _target(probe.source, recipe),
                times_seen.get(probe.name, "–"),
            ]
        )
    columns = ("source", "rows read", "kept", "all tokens", "tokens/row", "trained", "target")
    return Table((*columns, "seen"), rows)


def _summary(recipe: BuildSftConfig, probes: Sequence[Probe]) -> str:
    """Estimated tokens, packs, seconds and disk of a build that takes each record once."""
    expected = [probe.expected for probe in probes]
    tokens = sum(total.tokens for total in expected if total is not None)
    seconds = 0.0
    for probe in probes:
        seconds += probe.seconds * (probe.of_rows or probe.rows) / max(probe.rows, 1)
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
    return summary


def _share(count: int, rows: int) -> str:
    """Share in per cent; one above 0 is never shown as 0 %."""
    share = min(count / max(rows, 1), 1.0)
    return f"{share:.0%}" if share >= 0.005 else "<1%"


def _target(source: SftSource, recipe: BuildSftConfig) -> str:
    """Amount that the recipe requests of a source, in words."""
    if source.share is not None:
        return f"{source.share:.1%} of {recipe.mixture.unit}"
    if source.rows is not None:
        return f"{source.rows:,} rows"
    return f"{source.tokens:,} tokens" if source.tokens is not None else "once"


def _available(recipe: BuildSftConfig, probes: Sequence[Probe]) -> list[Available] | None:
    """Estimated amount that each source can give; None if one is compressed or streamed."""
    available: list[Available] = []
    for probe in probes:
        total = probe.expected
        if total is None:
            return None
        held_out = probe.source.held_out or recipe.held_out
        share = held_out.rate
        if share is None:
            share = (held_out.rows or 0) / max(total.rows, 1)
        available.append(Available(probe.name, None, total.scaled(max(1 - share, 0)), probe.lost))
    return available


def _planned_mixture(
    recipe: BuildSftConfig, probes: Sequence[Probe]
) -> tuple[dict[str, str], list[str]]:
    """Repetitions of each source, in words, and problems with amounts that it cannot give."""
    available = _available(recipe, probes)
    if available is None:
        return {}, []
    tolerance = recipe.mixture.tolerance
    if not all(probe.complete for probe in probes):
        tolerance += _ESTIMATE_TOLERANCE
    mixture = recipe.mixture.model_copy(update={"tolerance": tolerance})
    try:
        plans = plan_mixture(available, recipe.model_copy(update={"mixture": mixture}))
    except DataError as error:
        return {}, [f"{error} (estimated from the first rows)"]
    times_seen: dict[str, str] = {}
    for plan in plans:
        times = plan.total.tokens / max(plan.available.total.tokens, 1)
        times_seen[plan.name] = f"{times:.1f} times"
    return times_seen, []
