"""Build SFT data, top to bottom: rows of chats → masked, packed shards with their counts.

rows → examples (drop reasons) → prepare (reasoning control, render, encode) → parts on disk
     → deduplication → held out → mixture → shuffle by key → packs → shards
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console

from data_builders.decontamination.match import Decontaminator
from data_builders.progress import Stages
from data_builders.rows.files import input_files, refuse_files_twice
from data_builders.sft.audit import audit_sources
from data_builders.sft.duplicates import dropped_lines, find_copies
from data_builders.sft.inputs import (
    Input,
    as_stats,
    check_unchanged,
    evaluation_files,
    find_parents,
    load_decontaminator,
    scan_inputs,
)
from data_builders.sft.part import WorkerState, prepare_sources
from data_builders.sft.plan import plan_build
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
from data_builders.sft.shards import join_files, write_jsonl, write_splits
from data_builders.sft.stats import check_left, counts_by_source, data_stats, few_kept, total_counts
from data_builders.workers import Executor, ProcessPool, RayPool, Serial
from posttrain.audit.limits import bounds, violations
from posttrain.chat import profile_of, variants_hint
from posttrain.config.build_sft import EXECUTION, OPTIONAL, BuildSftConfig
from posttrain.errors import ConfigError, DataError, RenderError
from posttrain.hashing import digest_of
from posttrain.pages.supervision import ROWS as SUPERVISION
from posttrain.runs import Run, read_artifact
from posttrain.tokens.renderer import DataRenderer, load_data_renderer

KIND = "sft_data"


@dataclass(frozen=True)
class Setup:
    """What a build needs before it reads rows, checked on the first records of every source.

    `problems` are those at which it would stop, which only a dry run is given.
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
    """What of the recipe decides the data; how the work is done decides nothing about it."""
    unnamed = {"out": True, **dict.fromkeys(EXECUTION, True), "tokenizer": {"backend"}}
    unnamed |= {name: True for name in OPTIONAL if getattr(recipe, name) is None}
    return recipe.model_dump(mode="json", exclude=unnamed)


def set_up(
    recipe: BuildSftConfig, base_dir: Path, console: Console, *, dry_run: bool = False
) -> Setup:
    """Load tokenizer, template and evaluation files, and check that they fit the data.

    Raises:
        ConfigError: a path that matches nothing, what `check_template` refuses or, unless this is
            a dry run, every problem that `check_probe` finds in any source.
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
    warnings += decontaminator.warnings if decontaminator is not None else []
    problems, probes = list[str](), list[Probe]()
    for source in recipe.sources:
        preparer = Preparer(recipe, source, renderer, decontaminator)
        probe = probe_source(preparer, base_dir, records=PROBED_DRY if dry_run else PROBED)
        found = check_probe(probe, preparer, estimate=dry_run)
        warnings, problems = warnings + found[0], problems + found[1]
        probes.append(probe)
    problems = ask_for_epochs(recipe, probes) + problems
    warnings += oversized_packs(recipe, probes)
    if problems and not dry_run:
        raise ConfigError("\n  ".join(problems))
    return Setup(recipe, base_dir, renderer, decontaminator, evaluation, probes, warnings, problems)


def show_plan(setup: Setup, console: Console) -> None:
    """What the build would do, extrapolated from the first records; writes nothing.

    Raises:
        ConfigError: the build would stop.
    """
    recipe = setup.recipe
    Run.open(recipe.out, kind=KIND, config=build_config(recipe), dry_run=True)
    if recipe.executor == "ray":
        RayPool(dict, recipe.workers)  # starts nothing yet, and says if Ray is missing
    _warn(console, [*setup.warnings, *few_kept({p.name: p.stats for p in setup.probes})])
    problems = [*setup.problems, *show_expected(console, recipe, setup.probes)]
    if problems:
        raise ConfigError("\n  ".join(["this build would stop:", *problems]))


def _warn(console: Console, warnings: Sequence[str]) -> None:
    for warning in warnings:
        console.print(f"warning: {warning}", style="yellow")


def build(setup: Setup, stage: Run, console: Console) -> bool:
    """Build into the stage's directory; returns whether there was anything to do.

    Raises:
        ConfigError: the directory holds a finished data set of other inputs.
        DataError: the recipe's limits are crossed, or its mixture cannot be met.
    """
    recipe, renderer, out = setup.recipe, setup.renderer, stage.path
    encoder, template = renderer.encoder, renderer.template
    work = out / "work"
    work.mkdir(exist_ok=True)

    # -- every input file hashed, and cut into parts
    inputs, parts = scan_inputs(recipe, setup.base_dir)
    inputs += setup.evaluation
    if stage.complete:
        before = read_artifact(out, verify=False)
        same = {
            "the tokenizer": before.stats["tokenizer"]["digest"] == encoder.digest,
            "the chat template": before.template_digest == template.digest,
        }
        check_unchanged(before, inputs, *(name for name, held in same.items() if not held))
        shutil.rmtree(work, ignore_errors=True)
        return False
    read = [p for s in recipe.sources for p in input_files(s, setup.base_dir)]
    read += [setup.base_dir / given.path for given in setup.evaluation]
    parents = find_parents([*read, Path(recipe.tokenizer.path)], out)

    with Stages(console) as stages, ExitStack() as stack:
        # -- rows → examples → sequences on disk, part by part
        executor = _executor(setup, stack)
        sources = prepare_sources(
            recipe,
            parts,
            Path(recipe.parts_dir) if recipe.parts_dir else work / "parts",
            tokens={"tokenizer": encoder.digest, "template": template.digest},
            evaluation=setup.evaluation,
            scratch=digest_of(str(out.resolve()))[:12],
            executor=executor,
            stages=stages,
        )

        # -- deduplication → held out → mixture
        late = few_kept({source.name: source.stats for source in sources})
        copies = drops = None
        if recipe.deduplication is not None:
            stages.start("looking for duplicates")
            copies = find_copies(sources, recipe.deduplication)
            drops = copies.drops
            late += copies.warnings(sources)
        _warn(console, late)
        stages.start("planning the mixture")
        plan = plan_build(sources, recipe, drops)
        stages.start("auditing")
        audit = audit_sources(sources, drops, renderer.marks)
        supervision = {name: figures.stats() for name, figures in audit.figures.items()}
        crossed = [violations(name, own, recipe.limits) for name, own in supervision.items()]
        if any(crossed):
            lines = ["the data crosses limits of the recipe:", *chain.from_iterable(crossed)]
            raise DataError("\n  ".join(lines))
        counts = counts_by_source(sources, plan)
        check_left(counts, plan)

        # -- shuffle by key → packs → shards
        files = write_splits(
            out, sources, plan, recipe, scratch=work / "plan", executor=executor, stages=stages
        )

    # -- what a reader needs beside the shards
    renderer.tokenizer.chat_template = template.source
    for path in renderer.tokenizer.save_pretrained(out / "tokenizer"):
        files[str(Path(path).relative_to(out))] = None
    samples = [row for source in sources for row in source.stats["samples"]]
    files["samples.jsonl"] = write_jsonl(out / "samples.jsonl", samples)
    files[SUPERVISION] = write_jsonl(out / SUPERVISION, audit.worst.rows(encoder.decode))
    if recipe.write_dropped:
        dropped = [folder / "dropped.jsonl" for source in sources for folder in source.folders]
        more = dropped_lines(sources, plan.dropped, copies)
        files["dropped.jsonl"] = join_files(out / "dropped.jsonl", dropped, more)

    # -- the manifest, last, makes it an artifact
    stats = {
        **_setup_stats(setup),
        "inputs": as_stats(inputs),
        "supervision": supervision,
        "supervision_limits": bounds(recipe.limits),
        "warnings": [*setup.warnings, *late],
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


def _executor(setup: Setup, stack: ExitStack) -> Executor:
    """This process, or workers that load tokenizer, template and evaluation files themselves."""
    recipe, config = setup.recipe, setup.recipe.tokenizer
    if recipe.executor == "local" and recipe.workers == 1:
        return Serial(WorkerState(recipe, lambda: (setup.renderer, setup.decontaminator)))
    # with the library that proved exact, and paths that do not depend on where a worker starts
    changed = {"backend": setup.renderer.encoder.name}
    if Path(config.path).is_dir():
        changed["path"] = str(Path(config.path).absolute())
    if Path(config.chat_template).is_file():
        changed["chat_template"] = str(Path(config.chat_template).absolute())
    theirs = recipe.model_copy(update={"tokenizer": config.model_copy(update=changed)})
    load = partial(_load, theirs, setup.base_dir.absolute(), setup.evaluation)
    pool = RayPool if recipe.executor == "ray" else ProcessPool
    return stack.enter_context(pool(partial(WorkerState, recipe, load), recipe.workers))


def _load(
    recipe: BuildSftConfig, base_dir: Path, evaluation: Sequence[Input]
) -> tuple[DataRenderer, Decontaminator | None]:
    decontaminator = load_decontaminator(recipe.decontamination, base_dir, evaluation)
    return load_data_renderer(recipe.tokenizer), decontaminator


def _setup_stats(setup: Setup) -> dict[str, Any]:
    template, special = setup.renderer.template, setup.renderer.special
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
