"""Build SFT data: chat rows of any dialect → reasoning-controlled, masked, packed shards.

    python scripts/build_sft.py --config recipes/tiny/build_sft.yaml out=runs/tiny/sft_data
    python scripts/build_sft.py --config recipes/tiny/build_sft.yaml out=runs/x packing.capacity=512
    python scripts/build_sft.py --config recipes/tiny/build_sft.yaml out=runs/x --dry-run

Paths in a recipe are relative to the directory this is run in. A build that was killed is taken up
again by the same command, and ends with the same bytes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from data_builders.sft_facts import books_of, data_facts, total_counts
from data_builders.sft_inputs import (
    as_facts,
    check_unchanged,
    find_inputs,
    find_parents,
    fingerprint,
    input_files,
)
from data_builders.sft_plan import plan_build
from data_builders.sft_preflight import (
    check_markup,
    check_probe,
    check_template,
    first_texts,
    probe_source,
)
from data_builders.sft_prepare import Preparer
from data_builders.sft_rows import count_rows
from data_builders.sft_source import control_plan, spool_source
from data_builders.sft_spool import read_spool
from data_builders.sft_tables import print_plan, print_summary
from data_builders.sft_write import join_files, write_jsonl, write_splits
from posttrain.artifacts import StageDir, read_artifact
from posttrain.chat import profile_of
from posttrain.claim import claimed, run_command
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.load import load_recipe
from posttrain.models.chat_template import chat_template_of
from posttrain.models.encoding import encoder_of, load_any_tokenizer
from posttrain.models.tokenizer import special_tokens
from posttrain.report import ensure_report, write_report

BASE = Path(".")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Build SFT data from chat rows.")
    parser.add_argument("--config", required=True, help="the recipe, a YAML file")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, write nothing")
    parser.add_argument("overrides", nargs="*", help="key.path=value; out=DIR is one")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    recipe = load_recipe(options.config, BuildSftConfig, options.overrides)
    out = Path(recipe.out)
    # which library makes the ids decides nothing about them
    config = recipe.model_dump(mode="json", exclude={"out": True, "tokenizer": {"backend"}})

    # -- the tokenizer, the template, and whether they fit the data
    tokenizer = load_any_tokenizer(recipe.tokenizer.path, revision=recipe.tokenizer.revision)
    special = special_tokens(tokenizer, end_token=None, pad_token=recipe.tokenizer.pad_token)
    template = chat_template_of(
        tokenizer,
        choice=recipe.tokenizer.chat_template,
        variables=recipe.tokenizer.template_variables,
    )
    check_template(template)
    profile = profile_of(template)
    for source in recipe.sources:
        input_files(source, BASE)  # every path is looked up before any is read
    encoder = encoder_of(
        tokenizer, backend=recipe.tokenizer.backend, probes=first_texts(recipe, BASE)
    )
    console.print(f"template: {profile.describe()}", highlight=False)
    console.print(f"tokenizer: {encoder.describe()}", highlight=False)
    preparers = {
        source.name: Preparer(
            template=template,
            encode=encoder.arrays,
            offsets=encoder.offsets,
            control=control_plan(recipe, source),
            mask_close=recipe.reasoning.truncated_close == "masked",
            capacity=recipe.packing.capacity,
            clip_overlong=recipe.packing.overlong == "truncate",
        )
        for source in recipe.sources
    }
    warnings = check_markup(template, list(tokenizer.get_vocab()))
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
        inputs = find_inputs(recipe, BASE)
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
            + [Path(recipe.tokenizer.path)],
            out,
        )

        # -- rows → sequences on disk, source by source
        digests = {"tokenizer": encoder.digest, "template": template.digest}
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        ) as progress:
            task = progress.add_task("reading")
            for source in recipe.sources:
                spool_source(
                    recipe,
                    source,
                    preparers[source.name],
                    work=work,
                    base_dir=BASE,
                    fingerprint=fingerprint(
                        [i for i in inputs if i.source == source.name], recipe, source, digests
                    ),
                    progress=lambda name, n: progress.update(
                        task, description=f"{name}: {n:,} rows"
                    ),
                )
            # -- sequences → mixture → packs → shards
            spools = [read_spool(work, source.name) for source in recipe.sources]
            progress.update(task, description="planning the mixture")
            plan = plan_build(spools, recipe)
            progress.update(task, description="packing and writing")
            written = write_splits(out, spools, plan, recipe)

        # -- what a reader needs beside the shards
        files = dict(written.files)
        tokenizer.chat_template = template.source
        for path in tokenizer.save_pretrained(out / "tokenizer"):
            files[str(Path(path).relative_to(out))] = None
        samples = [row for spool in spools for row in spool.facts["samples"]]
        files["samples.jsonl"] = write_jsonl(out / "samples.jsonl", samples)
        if recipe.write_dropped:
            parts = [work / f"{source.name}.dropped.jsonl" for source in recipe.sources]
            files["dropped.jsonl"] = join_files(out / "dropped.jsonl", parts)

        # -- the books, and the manifest that makes it an artifact
        books = books_of(spools, plan)
        facts = {
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
            "inputs": as_facts(inputs),
            "warnings": warnings,
            **data_facts(spools, plan, written, books, recipe.packing.capacity),
        }
        manifest = stage.finish(
            counts=total_counts(books),
            files=files,
            parents=parents,
            template_digest=template.digest,
            seed=recipe.seed,
            facts=facts,
            run={"tokenizer": encoder.name},
        )
        shutil.rmtree(work)
        print_summary(console, facts)
        console.print(f"{out}  digest {manifest.digest[:16]}", highlight=False)
        console.print(f"{write_report(out)}", highlight=False)


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
