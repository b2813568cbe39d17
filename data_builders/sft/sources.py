"""All sources, part by part, into the spool: what an earlier, killed run finished is kept.

spools = spool_sources(recipe, parts, folder, executor=…, …)  →  [Spool("maths", …), …]
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_builders.progress import Stages
from data_builders.rows.examples import observed_fields
from data_builders.rows.parts import Part, rows_of
from data_builders.sft.counts import merged
from data_builders.sft.inputs import Input, part_key
from data_builders.sft.part import PartJob, samples_of_each
from data_builders.sft.prepared import Spool, read_books, read_sample
from data_builders.workers import Executor
from posttrain.config.build_sft import BuildSftConfig, LimitsConfig, SftSource
from posttrain.errors import DataError


def spool_sources(
    recipe: BuildSftConfig,
    parts: Mapping[str, Sequence[Part]],
    folder: Path,
    *,
    tokens: Mapping[str, Any],
    evaluation: Sequence[Input] = (),
    scratch: str,
    executor: Executor,
    stages: Stages,
) -> list[Spool]:
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
    _clear(folder, scratch)
    folders = {
        source.name: [
            folder / source.name / part_key(part, recipe, source, tokens, evaluation)
            for part in parts[source.name]
        ]
        for source in recipe.sources
    }
    jobs = _jobs(recipe, parts, folders, scratch)
    everything = [part for own in parts.values() for part in own]
    total, left = rows_of(everything), rows_of([job.part for job in jobs])
    done = None if total is None or left is None else max(total - left, 0)
    stages.start("preparing", total=total, unit="rows", done=done or 0)
    waiting = {s.name: sum(job.source is s for job in jobs) for s in recipe.sources}
    spools: dict[str, Spool] = {}
    for source in recipe.sources:
        if not waiting[source.name]:
            spools[source.name] = _finished(recipe, source, folders[source.name])
    for number, _ in executor.run(jobs, stages.advance):
        source = jobs[number].source
        waiting[source.name] -= 1
        if not waiting[source.name]:
            spools[source.name] = _finished(recipe, source, folders[source.name])
    return [spools[source.name] for source in recipe.sources]


def _clear(folder: Path, scratch: str) -> None:
    for left in folder.glob(f"*/*.{scratch}-*"):
        shutil.rmtree(left, ignore_errors=True)


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
            if own not in jobs and read_books(own) is None:
                jobs[own] = PartJob(part, source, str(own), scratch)
    return list(jobs.values())


def _finished(recipe: BuildSftConfig, source: SftSource, folders: Sequence[Path]) -> Spool:
    observed = observed_fields(source)

    def books() -> Iterator[dict[str, Any]]:
        for folder in folders:
            found = read_books(folder)
            assert found is not None, f"{folder} was finished"
            if observed is not None:
                observed.add(found["observed"])
            yield found

    stats = merged(books(), samples=samples_of_each(recipe))
    stats["samples"] = [read_sample(folders[part], k) for part, k in stats["samples"]]
    if observed is not None:
        observed.check(source.name)
    _check_limits(source.name, stats, recipe.limits)
    return Spool(source.name, stats, tuple(folders))


def _check_limits(name: str, stats: Mapping[str, Any], limits: LimitsConfig) -> None:
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


_ADVICE = {
    "nothing_trained": "Look at write_dropped: true; are these conversations without answers?",
    "overlong": "Raise packing.max_length, or set packing.overlong to truncate.",
    "render_error": "Look at write_dropped: true; does this template fit this source?",
}
