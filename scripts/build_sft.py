"""Build SFT data: chat rows of any dialect → reasoning-controlled, masked, packed shards.

    python scripts/build_sft.py --config recipes/tiny/build_sft.yaml out=runs/tiny/sft_data
    python scripts/build_sft.py --config recipes/tiny/build_sft.yaml out=runs/x seed=2
    python scripts/build_sft.py --config recipes/tiny/build_sft.yaml out=runs/x --dry-run

Paths in a recipe are relative to the directory this is run in. A build that was killed is taken up
again by the same command, and ends with the same bytes.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console

from data_builders.pool import Executor, Here, Pool
from data_builders.ray_build import RayExecutor
from data_builders.sft_audit import audit_spools, check_supervision
from data_builders.sft_duplicates import find_copies
from data_builders.sft_inputs import (
    as_stats,
    check_unchanged,
    evaluation_files,
    find_parents,
    input_files,
    load_decontaminator,
    scan_inputs,
)
from data_builders.sft_plan import plan_build
from data_builders.sft_preflight import (
    check_markup,
    check_probe,
    check_template,
    first_texts,
    probe_source,
)
from data_builders.sft_rows import count_rows
from data_builders.sft_source import Tools, preparer_of
from data_builders.sft_spools import spool_sources
from data_builders.sft_stats import books_of, check_left, data_stats, total_counts
from data_builders.sft_tables import print_plan, print_summary
from data_builders.sft_write import join_files, write_jsonl, write_splits
from data_builders.stages import Stages
from posttrain.artifacts import StageDir, digest_of, read_artifact
from posttrain.chat import profile_of
from posttrain.claim import claimed, run_command
from posttrain.config.build_sft import EXECUTION, OPTIONAL, BuildSftConfig, SftTokenizer
from posttrain.config.command import parse_recipe, recipe_parser
from posttrain.models.data_renderer import load_data_renderer
from posttrain.models.encoding import Encoder
from posttrain.report import ensure_report, write_report
from posttrain.report.pages.supervision import ROWS as SUPERVISION

BASE = Path(".")


def main(arguments: list[str]) -> None:
    recipe, options = parse_recipe(
        recipe_parser("Build SFT data from chat rows."), BuildSftConfig, arguments
    )
    console = Console(width=None if sys.stdout.isatty() else 140)
    out = Path(recipe.out)
    # how the work is done decides nothing about what comes of it
    unnamed = {"out": True, **dict.fromkeys(EXECUTION, True), "tokenizer": {"backend"}}
    unnamed |= {name: True for name in OPTIONAL if getattr(recipe, name) is None}
    config = recipe.model_dump(mode="json", exclude=unnamed)
    # a worker is one thread: what it computes with must not start more
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    # -- the tokenizer, the template, and whether they fit the data
    for source in recipe.sources:
        input_files(source, BASE)  # every path is looked up before any is read
    evaluation = evaluation_files(recipe.decontamination, BASE)
    decontaminator = load_decontaminator(recipe.decontamination, BASE, evaluation)
    renderer = load_data_renderer(recipe.tokenizer, first_texts(recipe, BASE))
    tokenizer, special = renderer.tokenizer, renderer.special
    template, encoder = renderer.template, renderer.encoder
    check_template(template)
    profile = profile_of(template)
    console.print(f"template: {profile.describe()}", highlight=False)
    console.print(f"tokenizer: {encoder.describe()}", highlight=False)
    preparers = {s.name: preparer_of(recipe, s, renderer, decontaminator) for s in recipe.sources}
    warnings = check_markup(template, list(tokenizer.get_vocab()))
    warnings += decontaminator.warnings if decontaminator is not None else []
    probes = [probe_source(recipe, s, preparers[s.name], BASE) for s in recipe.sources]
    for probe in probes:
        warnings += check_probe(
            probe,
            recipe,
            preparers[probe.name],
            decode=encoder.decode,
            stop_ids=special.stop_ids,
        )

    if options.dry_run:
        if out.is_dir() and any(out.iterdir()):
            # refuses a directory not ours
            StageDir.open(out, kind="sft_data", config=config, claim=False)
        rows = {s.name: count_rows(input_files(s, BASE)) for s in recipe.sources}
        print_plan(console, recipe, probes, rows)
        for warning in warnings:
            console.print(f"warning: {warning}", style="yellow", highlight=False)
        return

    # -- the output directory, ours or nobody's
    with claimed(out, kind="sft_data", config=config, scratch="work") as stage:
        work = out / "work"
        work.mkdir(exist_ok=True)
        inputs, parts = scan_inputs(recipe, BASE)
        inputs += evaluation
        if stage.complete:
            check_unchanged(
                read_artifact(out, verify=False), inputs, encoder.digest, template.digest
            )
            shutil.rmtree(work, ignore_errors=True)
            ensure_report(out)
            console.print(f"{out} is complete, nothing to do")
            return
        parents = find_parents(
            [p for s in recipe.sources for p in input_files(s, BASE)]
            + [BASE / given.path for given in evaluation]
            + [Path(recipe.tokenizer.path)],
            out,
        )

        # -- rows → sequences on disk, part by part → mixture → packs → shards
        tools = partial(
            Tools,
            recipe,
            partial(load_data_renderer, as_chosen(recipe, encoder)),
            partial(load_decontaminator, recipe.decontamination, BASE.absolute(), evaluation),
        )
        with Stages(console) as stages, ExitStack() as stack:
            executor: Executor = Here(Tools(recipe, lambda: renderer, lambda: decontaminator))
            if recipe.executor == "ray":
                executor = stack.enter_context(RayExecutor(tools, recipe.workers))
            elif recipe.workers > 1:
                executor = stack.enter_context(Pool(tools, recipe.workers))
            spools = spool_sources(
                recipe,
                parts,
                Path(recipe.spool) if recipe.spool else work / "parts",
                tokens={"tokenizer": encoder.digest, "template": template.digest},
                evaluation=evaluation,
                scratch=digest_of(str(out.resolve()))[:12],
                executor=executor,
                stages=stages,
            )
            copies = None
            if recipe.deduplication is not None:
                stages.start("looking for duplicates")
                copies = find_copies(spools, recipe.deduplication, work / "duplicates")
            drops = copies.drops if copies is not None else None
            stages.start("planning the mixture")
            plan = plan_build(spools, recipe, drops)
            stages.start("auditing")
            audit = audit_spools(spools, drops, renderer.marks, scratch=work)
            supervision = {name: found.stats() for name, found in audit.figures.items()}
            check_supervision(supervision, recipe.limits)
            books = books_of(spools, plan)
            check_left(books, plan)
            written = write_splits(
                out,
                spools,
                plan,
                recipe,
                scratch=work / "plan",
                executor=executor,
                stages=stages,
            )

        # -- what a reader needs beside the shards
        files = dict(written.files)
        tokenizer.chat_template = template.source
        for path in tokenizer.save_pretrained(out / "tokenizer"):
            files[str(Path(path).relative_to(out))] = None
        samples = [row for spool in spools for row in spool.stats["samples"]]
        files["samples.jsonl"] = write_jsonl(out / "samples.jsonl", samples)
        worst = audit.worst.rows(encoder.decode)
        files[SUPERVISION] = write_jsonl(out / SUPERVISION, worst)
        if recipe.write_dropped:
            dropped = [folder / "dropped.jsonl" for spool in spools for folder in spool.folders]
            more = copies.lines(spools) if copies is not None else ()
            files["dropped.jsonl"] = join_files(out / "dropped.jsonl", dropped, more)

        # -- the books, and the manifest that makes it an artifact
        decontaminated = (
            {"decontamination": [book.stats() for book in decontaminator.books]}
            if decontaminator is not None
            else {}
        )
        stats = {
            "template": {
                "name": template.name,
                "mode": profile.mode,
                "describe": profile.describe(),
            },
            "tokenizer": {
                "digest": encoder.digest,
                "end": special.end_token,
                "pad": special.pad_token,
                "stop_ids": list(special.stop_ids),
            },
            "inputs": as_stats(inputs),
            "warnings": warnings,
            "supervision": supervision,
            **decontaminated,
            **data_stats(spools, plan, written, books, recipe.packing.max_length),
        }
        manifest = stage.finish(
            counts=total_counts(books),
            files=files,
            parents=parents,
            template_digest=template.digest,
            seed=recipe.seed,
            stats=stats,
            run={"tokenizer": encoder.name},
        )
        shutil.rmtree(work, ignore_errors=True)
        print_summary(console, stats)
        console.print(f"{out}  digest {manifest.digest[:16]}", highlight=False)
        console.print(f"{write_report(out)}", highlight=False)


def as_chosen(recipe: BuildSftConfig, encoder: Encoder) -> SftTokenizer:
    """The recipe's tokenizer for workers: with the library that was found to be exact, and paths
    that do not depend on where a process was started."""
    own = recipe.tokenizer
    changed: dict[str, str] = {"backend": encoder.name}
    if Path(own.path).is_dir():
        changed["path"] = str(Path(own.path).absolute())
    if own.chat_template not in ("own", "nemotron_3_nano"):
        changed["chat_template"] = str(Path(own.chat_template).absolute())
    return own.model_copy(update=changed)


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
