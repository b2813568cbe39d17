"""Prepare all sources, part by part; what an earlier, killed run finished is kept.

sources = prepare_sources(recipe, parts, folder, executor=…, …)  →  [PreparedSource("maths", …), …]
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_builders.progress import Stages
from data_builders.rows.parts import Part, estimate_rows
from data_builders.rows.read import RowCounts
from data_builders.rows.where import SeenFields
from data_builders.sft.inputs import Input, part_key
from data_builders.sft.part import CONTROL, PartJob, samples_of_each
from data_builders.sft.prepare import LEFT_OUT
from data_builders.sft.prepared import PreparedSource, read_counts, read_sample
from data_builders.workers import Executor
from posttrain.config.build_sft import BuildSftConfig, LimitsConfig, SftSource
from posttrain.errors import DataError


def prepare_sources(
    recipe: BuildSftConfig,
    parts: Mapping[str, Sequence[Part]],
    folder: Path,
    *,
    tokens: Mapping[str, Any],
    evaluation: Sequence[Input] = (),
    scratch: str,
    executor: Executor,
    stages: Stages,
) -> list[PreparedSource]:
    """Prepare every part that `folder` does not hold yet.

    Args:
        parts: of each source by its name.
        tokens: digests of what makes tokens.
        evaluation: what decontamination reads.
        scratch: names this build; parts that it left unfinished are removed.

    Raises:
        DataError: more of a source was lost to a reason than the recipe's limits allow; as soon as
            its last part is done.
    """
    folder = folder.resolve()  # workers may have been started elsewhere
    for unfinished in folder.glob(f"*/*.{scratch}-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    folders = {
        source.name: [
            folder / source.name / part_key(part, recipe, source, tokens, evaluation)
            for part in parts[source.name]
        ]
        for source in recipe.sources
    }
    jobs = _jobs(recipe, parts, folders, scratch)
    everything = [part for own in parts.values() for part in own]
    total, left = estimate_rows(everything), estimate_rows([job.part for job in jobs])
    done = None if total is None or left is None else max(total - left, 0)
    stages.start("preparing", total=total, unit="rows", done=done or 0)
    waiting = {s.name: sum(job.source is s for job in jobs) for s in recipe.sources}
    finished: dict[str, PreparedSource] = {}
    for source in recipe.sources:
        if not waiting[source.name]:
            finished[source.name] = _finished(recipe, source, folders[source.name])
    for number, _ in executor.run(jobs, stages.advance):
        source = jobs[number].source
        waiting[source.name] -= 1
        if not waiting[source.name]:
            finished[source.name] = _finished(recipe, source, folders[source.name])
    return [finished[source.name] for source in recipe.sources]


def _jobs(
    recipe: BuildSftConfig,
    parts: Mapping[str, Sequence[Part]],
    folders: Mapping[str, Sequence[Path]],
    scratch: str,
) -> list[PartJob]:
    """What is left to do; parts with the same rows are done once."""
    jobs: dict[Path, PartJob] = {}
    for source in recipe.sources:
        for part, own in zip(parts[source.name], folders[source.name], strict=True):
            if own not in jobs and read_counts(own) is None:
                jobs[own] = PartJob(part, source, str(own), scratch)
    return list(jobs.values())


def _finished(recipe: BuildSftConfig, source: SftSource, folders: Sequence[Path]) -> PreparedSource:
    """A source all of whose parts are there, with their counts merged and checked."""
    counts: list[dict[str, Any]] = []
    fields = SeenFields(source)
    for folder in folders:
        own = read_counts(folder)
        assert own is not None, f"{folder} was finished"
        fields.add(own["fields"])
        counts.append(own)
    stats = merged(counts, samples=samples_of_each(recipe))
    stats["samples"] = [read_sample(folders[part], k) for part, k in stats["samples"]]
    fields.check(source.name)
    check_limits(source.name, stats, recipe.limits)
    return PreparedSource(source.name, stats, tuple(folders))


_SUMS = ("rows_in", "trimmed_rows", "sequences", "sequences_clipped")
_COUNTS = ("dropped", "dialects", "licenses", "sequences_lost", "left_out", "control")


def merged(parts: Iterable[Mapping[str, Any]], *, samples: int) -> dict[str, Any]:
    """The counts of a source from those of its parts, in order.

    Args:
        samples: how many to keep; they are given as (part, place in its samples).
    """
    sums = Counter[str](dict.fromkeys(_SUMS, 0))
    counts = {name: Counter[str]() for name in _COUNTS}
    counts["control"].update(dict.fromkeys(CONTROL, 0))
    budgets = Counter[int]()
    rows = RowCounts()
    chosen: list[tuple[float, int, int]] = []
    for number, part in enumerate(parts):
        sums.update({name: part[name] for name in _SUMS})
        for name, own in counts.items():
            own.update(part[name])
        budgets.update(dict(part["budgets"]))
        rows.add_unread(part["unread"])
        chosen += [(place, number, k) for k, place in enumerate(part["samples"])]
        chosen = sorted(chosen)[:samples]
    return {
        **sums,
        **{name: {key: own[key] for key in sorted(own)} for name, own in counts.items()},
        "control": dict(counts["control"]),
        "unread": [[name, *seen] for name, seen in rows.unread.items()],
        "budgets": [[budget, n] for budget, n in sorted(budgets.items())],
        "samples": [(number, k) for _, number, k in chosen],
    }


def check_limits(
    name: str, stats: Mapping[str, Any], limits: LimitsConfig, *, split_helps: bool = True
) -> None:
    """Stop at a source of which more is lost to a reason than the recipe allows.

    Args:
        stats: as `PartCounts.stats` gives them.
        split_helps: whether `tokenizer.split_steps` may write what the template leaves out.

    Raises:
        DataError: with the reason, its share and what to do.
    """
    rows, lost = stats["rows_in"], stats["sequences_lost"]
    sequences = stats["sequences"] + sum(lost.values())
    for reason, advice in _ADVICE.items():
        limit: float = getattr(limits, reason)
        of_rows = stats["dropped"].get(reason, 0) / max(rows, 1)
        of_sequences = lost.get(reason, 0) / max(sequences, 1)
        if max(of_rows, of_sequences) > limit:
            raise DataError(
                f"source {name!r}: {reason} took {of_rows:.1%} of {rows:,} rows and "
                f"{of_sequences:.1%} of {sequences:,} sequences, limits.{reason} is {limit:.1%}. "
                f"{advice}"
            )

    by_reason = stats["dropped"].items()
    share = sum(n for reason, n in by_reason if reason.startswith(LEFT_OUT)) / max(rows, 1)
    if share > limits.left_out:
        kinds = ", ".join(f"{kind} of {n:,}" for kind, n in sorted(stats["left_out"].items()))
        ways = ["Choose another tokenizer.chat_template"]
        if split_helps:
            ways.append(
                "set tokenizer.split_steps: true, which helps where a text, a trace or one of "
                "several calls is lost because more follows it"
            )
        ways.append("drop these rows with limits.left_out: 1")
        allowed = ", ".join(stats["left_out"])
        ways.append(f"keep them without it: tokenizer.allow_left_out: [{allowed}]")
        if "reasoning" in stats["left_out"]:
            ways.append("train answers alone, without traces: reasoning: {strip: 1.0}")
        raise DataError(
            f"source {name!r}: the chat template leaves out part of {share:.1%} of {rows:,} rows "
            f"({kinds}), limits.left_out is {limits.left_out:.1%}. {'; or '.join(ways)}"
        )


_ADVICE = {
    "nothing_trained": "Look at write_dropped: true; are these conversations without answers?",
    "overlong": "Raise packing.max_length, or set packing.overlong to truncate.",
    "render_error": "Look at write_dropped: true; does this template fit this source?",
}
