"""Build SFT data, top to bottom: rows of chats → masked, packed shards with their counts.

rows → examples (drop reasons) → prepare (reasoning control, render, encode) → parts on disk
     → deduplication → held out → mixture → shuffle by key → packs → shards
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from data_builders.decontamination.match import (
    Decontaminator,
    evaluation_files,
    load_decontaminator,
)
from data_builders.keyed import is_among
from data_builders.rows.files import input_files, refuse_files_twice
from data_builders.rows.inputs import (
    PART_BYTES,
    Input,
    as_stats,
    check_unchanged,
    find_parents,
    scan_inputs,
)
from data_builders.sft.duplicates import Copies, dropped_lines, find_copies
from data_builders.sft.part import WorkerState, prepare_sources
from data_builders.sft.plan import BuildPlan, plan_build
from data_builders.sft.preflight import (
    PROBED,
    PROBED_DRY,
    Probe,
    ask_for_epochs,
    check_markup,
    check_probe,
    check_template,
    first_texts,
    oversized_packs,
    probe_source,
    show_expected,
)
from data_builders.sft.prepare import Preparer
from data_builders.sft.prepared import PreparedPart, PreparedSource, Reader
from data_builders.sft.shards import join_files, write_splits
from data_builders.sft.stats import (
    counts_by_source,
    data_stats,
    few_kept,
    refuse_nothing_trained,
    total_counts,
)
from data_builders.workers import Executor, ProcessPool, RayPool, Serial, Stages
from posttrain.audit.figures import Audit, Shown, SourceFigures
from posttrain.audit.limits import bounds, violations
from posttrain.chat import profile_of, variants_hint
from posttrain.config.build_sft import EXECUTION, OPTIONAL, BuildSftConfig
from posttrain.errors import ConfigError, DataError, RenderError
from posttrain.hashing import digest_of
from posttrain.jsontext import write_jsonl
from posttrain.pages.supervision import ROWS as SUPERVISION
from posttrain.runs import Run, read_artifact
from posttrain.tokens.renderer import DataRenderer, load_data_renderer
from posttrain.tokens.supervision import Marks, mask_of_spans
from posttrain.tokens.tokenizer import Backend

KIND = "sft_data"
Int = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Setup:
    """Everything that a build loads and checks before it reads all rows.

    Attributes:
        evaluation: files that decontamination reads.
        problems: problems at which the build would stop; only a dry run returns any.
    """

    recipe: BuildSftConfig
    base_dir: Path
    renderer: DataRenderer
    decontaminator: Decontaminator | None
    evaluation: list[Input]
    probes: list[Probe]
    warnings: list[str]
    problems: list[str]


def build_config(recipe: BuildSftConfig) -> dict[str, Any]:
    """Keys of the recipe that decide the data, without those of how the work is done."""
    excluded = dict.fromkeys(("out", *EXECUTION), True)
    for name in OPTIONAL:
        if getattr(recipe, name) is None:
            excluded[name] = True
    return recipe.model_dump(mode="json", exclude=excluded)


def set_up(
    recipe: BuildSftConfig, base_dir: Path, console: Console, *, dry_run: bool = False
) -> Setup:
    """Load tokenizer, template and evaluation files, and try them on the first rows of each source.

    Prints the template, the tokenizer and the pad token.

    Raises:
        ConfigError: a path that matches nothing, a template that `check_template` refuses or,
            unless this is a dry run, every problem that `check_probe` finds in any source.
    """
    for source in recipe.sources:
        input_files(source, base_dir)  # every path is looked up before any is read
    refuse_files_twice(recipe.sources, base_dir)
    evaluation = evaluation_files(recipe.decontamination, base_dir)
    decontaminator = load_decontaminator(recipe.decontamination, base_dir, evaluation)
    renderer = load_data_renderer(recipe.tokenizer, first_texts(recipe, base_dir))
    template = renderer.template
    check_template(template)
    try:
        console.print(f"template: {profile_of(template).describe()}")
    except RenderError as error:
        raise ConfigError(f"{error}{variants_hint(template)}") from None
    console.print(f"tokenizer: {renderer.encoder.describe()}")
    if renderer.commit is not None:
        console.print(f"tokenizer: {recipe.tokenizer.path} at commit {renderer.commit}")
    if renderer.chosen_pad is not None:
        console.print(f"pad: {renderer.chosen_pad}", markup=False)
    warnings = check_markup(template, list(renderer.tokenizer.get_vocab()))
    if decontaminator is not None:
        warnings += decontaminator.warnings
    source_problems: list[str] = []
    probes: list[Probe] = []
    # a dry run extrapolates from the probes, so it reads more
    probed_records = PROBED_DRY if dry_run else PROBED
    for source in recipe.sources:
        preparer = Preparer(recipe, source, renderer, decontaminator)
        probe = probe_source(preparer, base_dir, records=probed_records)
        probe_warnings, probe_problems = check_probe(probe, preparer, estimate=dry_run)
        warnings += probe_warnings
        source_problems += probe_problems
        probes.append(probe)
    problems = ask_for_epochs(recipe, probes) + source_problems
    warnings += oversized_packs(recipe, probes)
    if problems and not dry_run:
        raise ConfigError("\n  ".join(problems))
    return Setup(recipe, base_dir, renderer, decontaminator, evaluation, probes, warnings, problems)


def show_plan(setup: Setup, console: Console) -> None:
    """Print the expected build, extrapolated from the first records, and write nothing.

    Raises:
        ConfigError: the build would stop.
    """
    recipe = setup.recipe
    Run.open(recipe.out, kind=KIND, config=build_config(recipe), recipe=recipe, dry_run=True)
    if recipe.executor == "ray":
        RayPool(dict, recipe.workers)  # starts nothing yet, and says if Ray is missing
    probe_stats = {probe.name: probe.stats for probe in setup.probes}
    _print_warnings(console, [*setup.warnings, *few_kept(probe_stats)])
    problems = [*setup.problems, *show_expected(console, recipe, setup.probes)]
    if problems:
        raise ConfigError("\n  ".join(["this build would stop:", *problems]))


def _print_warnings(console: Console, warnings: Sequence[str]) -> None:
    """Print a yellow line for each warning."""
    for warning in warnings:
        console.print(f"warning: {warning}", style="yellow")


def build(setup: Setup, stage: Run, console: Console) -> bool:
    """Build the data set into the run's directory. Returns False if it was finished before.

    Raises:
        ConfigError: the directory holds a finished data set of other inputs.
        DataError: the recipe's limits are crossed, or its mixture cannot be met.
    """
    recipe = setup.recipe
    renderer = setup.renderer
    encoder = renderer.encoder
    template = renderer.template
    out = stage.path
    work = out / "work"
    work.mkdir(exist_ok=True)

    # -- every input file hashed, and cut into parts
    inputs, parts = scan_inputs(
        recipe.sources, setup.base_dir, part_bytes=PART_BYTES, threads=recipe.workers
    )
    inputs += setup.evaluation
    if stage.complete:
        _refuse_changes(setup, out, inputs)
        shutil.rmtree(work, ignore_errors=True)
        return False
    parents = find_parents(_input_paths(setup), out)

    with Stages(console) as stages, ExitStack() as stack:
        # -- rows → examples → sequences on disk, part by part
        executor = _open_executor(setup, stack)
        sources = prepare_sources(
            recipe,
            parts,
            Path(recipe.parts_dir) if recipe.parts_dir else work / "parts",
            tokens={"tokenizer": encoder.digest, "template": template.digest},
            evaluation=setup.evaluation,
            build_id=digest_of(str(out.resolve()))[:12],
            executor=executor,
            stages=stages,
        )

        # -- deduplication → held out → mixture
        warnings = few_kept({source.name: source.stats for source in sources})
        copies = None
        drops = None
        if recipe.deduplication is not None:
            stages.start("looking for duplicates")
            copies = find_copies(sources, recipe.deduplication)
            drops = copies.drops
            warnings += copies.warnings(sources)
        _print_warnings(console, warnings)
        stages.start("planning the mixture")
        plan = plan_build(sources, recipe, drops)
        stages.start("auditing")
        audit = audit_sources(sources, drops, renderer.marks)
        supervision = {name: figures.stats() for name, figures in audit.figures.items()}
        crossed: list[str] = []
        for name, figures in supervision.items():
            crossed += violations(name, figures, recipe.limits)
        if crossed:
            raise DataError("\n  ".join(["the data crosses limits of the recipe:", *crossed]))
        counts = counts_by_source(sources, plan)
        refuse_nothing_trained(counts, plan)

        # -- shuffle by key → packs → shards
        files = write_splits(
            out, sources, plan, recipe, scratch=work / "plan", executor=executor, stages=stages
        )

    # -- files beside the shards: tokenizer, samples, supervision, dropped rows
    renderer.tokenizer.chat_template = template.source
    for path in renderer.tokenizer.save_pretrained(out / "tokenizer"):
        files[str(Path(path).relative_to(out))] = None
    samples: list[dict[str, Any]] = []
    for source in sources:
        samples += source.stats["samples"]
    files["samples.jsonl"] = write_jsonl(out / "samples.jsonl", samples)
    files[SUPERVISION] = write_jsonl(out / SUPERVISION, audit.worst.rows(encoder.decode))
    if recipe.write_dropped:
        files["dropped.jsonl"] = _write_dropped(out, sources, plan, copies)

    # -- the manifest, last, makes it an artifact
    stats = {
        **_setup_stats(setup),
        "inputs": as_stats(inputs),
        "supervision": supervision,
        "supervision_limits": bounds(recipe.limits),
        "warnings": [*setup.warnings, *warnings],
        **data_stats(sources, plan, counts, recipe.packing.max_length),
    }
    stage.finish(
        counts=total_counts(counts),
        files=files,
        parents=parents,
        template_digest=template.digest,
        seed=recipe.seed,
        stats=stats,
        run={"tokenizer": encoder.name},
    )
    shutil.rmtree(work, ignore_errors=True)
    return True


def _refuse_changes(setup: Setup, out: Path, inputs: Sequence[Input]) -> None:
    """Raise ConfigError if a finished build had other inputs, tokenizer or template."""
    manifest = read_artifact(out, verify=False)
    changed: list[str] = []
    if manifest.stats["tokenizer"]["digest"] != setup.renderer.encoder.digest:
        changed.append("the tokenizer")
    if manifest.template_digest != setup.renderer.template.digest:
        changed.append("the chat template")
    check_unchanged(manifest, inputs, *changed)


def _input_paths(setup: Setup) -> list[Path]:
    """List all files that the build reads, and the tokenizer's directory."""
    paths: list[Path] = []
    for source in setup.recipe.sources:
        paths += input_files(source, setup.base_dir)
    paths += [setup.base_dir / file.path for file in setup.evaluation]
    paths.append(Path(setup.recipe.tokenizer.path))
    return paths


def _write_dropped(
    out: Path, sources: Sequence[PreparedSource], plan: BuildPlan, copies: Copies | None
) -> int:
    """Write `dropped.jsonl`: drops of preparation, then those of the plan. Returns their number."""
    parts: list[Path] = []
    for source in sources:
        parts += [folder / "dropped.jsonl" for folder in source.folders]
    plan_lines = dropped_lines(sources, plan.dropped, copies)
    return join_files(out / "dropped.jsonl", parts, plan_lines)


def _open_executor(setup: Setup, stack: ExitStack) -> Executor:
    """Open an executor: this process, or workers that load tokenizer and evaluation files."""
    recipe = setup.recipe
    config = recipe.tokenizer
    if recipe.executor == "local" and recipe.workers == 1:
        return Serial(WorkerState(recipe, lambda: (setup.renderer, setup.decontaminator)))
    # absolute paths: a worker may start elsewhere
    changed: dict[str, str] = {}
    if Path(config.path).is_dir():
        changed["path"] = str(Path(config.path).absolute())
    if Path(config.chat_template).is_file():
        changed["chat_template"] = str(Path(config.chat_template).absolute())
    worker_recipe = recipe.model_copy(update={"tokenizer": config.model_copy(update=changed)})
    backend = setup.renderer.encoder.name  # the library that proved exact here
    load = partial(_load, worker_recipe, setup.base_dir.absolute(), setup.evaluation, backend)
    pool = RayPool if recipe.executor == "ray" else ProcessPool
    return stack.enter_context(pool(partial(WorkerState, recipe, load), recipe.workers))


def _load(
    recipe: BuildSftConfig, base_dir: Path, evaluation: Sequence[Input], backend: Backend
) -> tuple[DataRenderer, Decontaminator | None]:
    """Load a worker's tokenizer with its template, and its decontaminator."""
    decontaminator = load_decontaminator(recipe.decontamination, base_dir, evaluation)
    return load_data_renderer(recipe.tokenizer, backend=backend), decontaminator


def _setup_stats(setup: Setup) -> dict[str, Any]:
    """Figures of template, tokenizer and evaluation files for the manifest."""
    template = setup.renderer.template
    special = setup.renderer.special
    profile = profile_of(template)
    stats: dict[str, Any] = {
        "template": {"name": template.name, "mode": profile.mode, "describe": profile.describe()},
        "tokenizer": {
            "digest": setup.renderer.encoder.digest,
            "end": special.end_token,
            "pad": special.pad_token,
            "stop_ids": list(special.stop_ids),
        },
    }
    if setup.renderer.commit is not None:
        stats["tokenizer"]["commit"] = setup.renderer.commit
    if setup.decontaminator is not None:
        stats["decontamination"] = setup.decontaminator.counts
    return stats


def audit_sources(
    sources: Sequence[PreparedSource], drops: Sequence[Mapping[str, Int]] | None, marks: Marks
) -> Audit:
    """Audit all sources, without the records that `drops` lists per source by reason."""
    audit = Audit({source.name: SourceFigures.empty(marks, knows_cuts=True) for source in sources})
    unused_records: list[Int] = []  # per source, numbers of the dropped records
    for source_drops in drops or [{} for _ in sources]:
        numbers = np.concatenate([np.empty(0, np.int64), *source_drops.values()])
        unused_records.append(np.unique(numbers))
    for k, source in enumerate(sources):
        with Reader(source.folders) as reader:
            for part, used in _used_sequences(source, unused_records[k]):
                fetch = partial(_fetch, reader, part, used)
                audit.add(part.sequences[used], np.full(len(used), k), fetch)

    def look_up(numbers: set[int]) -> dict[int, Shown]:
        """Sequences by their number among all audited ones."""
        shown: dict[int, Shown] = {}
        if not numbers:
            return shown
        first = 0
        for source, source_unused in zip(sources, unused_records, strict=True):
            with Reader(source.folders) as reader:
                for part, used in _used_sequences(source, source_unused):
                    in_part = range(first, first + len(used))
                    for number in numbers:
                        if number in in_part:
                            shown[number] = _fetch(reader, part, used, number - first)
                    first = in_part.stop
        return shown

    audit.count_copies(look_up)
    return audit


def _used_sequences(
    source: PreparedSource, unused_records: Int
) -> Iterator[tuple[PreparedPart, Int]]:
    """Yield each part with the numbers of the sequences of its used records."""
    for part in source.parts():
        is_used = ~is_among(part.numbers, unused_records)
        yield part, np.flatnonzero(is_used[part.owners])


def _fetch(reader: Reader, part: PreparedPart, used: Int, k: int) -> Shown:
    """Tokens, mask and name of the `k`-th used sequence of a part."""
    row = part.sequences[used[k]]
    record = part.records[row["record"]]
    ids = np.empty(int(row["length"]), np.int32)
    edges = np.empty(int(row["edges"]), np.int32)
    reader.tokens(part.number, int(row["at"]), ids, edges)
    record_id = reader.text(part.number, int(record["text"]), int(record["text_size"]))[0]
    mask = mask_of_spans(len(ids), edges.astype(np.int64))
    return ids, mask, f"{record_id} turn {row['turn']}"
