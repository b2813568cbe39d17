"""Sample a model: prompts × settings × n completions, with tools run where they are declared.

    python scripts/sample.py --config recipes/tiny/sample.yaml
    python scripts/sample.py --config recipes/tiny/sample.yaml out=runs/x n=4 --dry-run

Paths in a recipe are relative to the directory this is run in. Killed and started again, the same
command ends with exactly every sample; in process, with the same bytes.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from data_builders.graders import all_graders
from data_builders.prompts import (
    PromptSet,
    build_prompts,
    print_prompts,
    prompt_inputs,
    refuse_changes,
)
from data_builders.sft.inputs import Input, as_stats
from data_builders.toolkits import toolkits_for
from posttrain.artifacts import (
    MANIFEST,
    Manifest,
    Parent,
    StageDir,
    atomic_write_text,
    digest_of,
    parent_of,
    read_artifact,
)
from posttrain.claim import claimed, run_command
from posttrain.config.command import parse_recipe, recipe_parser
from posttrain.config.sample import SampleConfig
from posttrain.models.rendering import PromptRenderer, renderer_of
from posttrain.records import json_text
from posttrain.report import ensure_report, write_report
from posttrain.rollouts import Prompt, prompt_to_row
from posttrain.sampling.collect import How, collect
from posttrain.sampling.journal import row_line
from posttrain.sampling.meter import Meter
from posttrain.sampling.open import opened_sampler
from posttrain.sampling.stage import MADE_BY, append_speed, bind, prompt_lines, tasks_of
from posttrain.sampling.tally import Tally
from posttrain.tools.protocol import Environment, Toolkit

BASE = Path(".")
IN_FLIGHT = 2  # rollouts a server connection, so that one may run tools while another is answered


def main(arguments: list[str]) -> None:
    recipe, options = parse_recipe(
        recipe_parser("Sample completions of prompts."), SampleConfig, arguments
    )
    console = Console(width=None if sys.stdout.isatty() else 140)
    out, config = Path(recipe.out), recipe.owner_config()

    # -- what the samples are made from: files and their artifacts, the checkpoint, its tokenizer
    inputs, parents = prompt_inputs(recipe.prompts, BASE, out=out)
    parents += checkpoint_parents(recipe)
    renderer = renderer_of(recipe.backend, recipe.checkpoint)
    toolkits = toolkits_for(recipe.prompts, recipe.settings)

    if options.dry_run:
        if out.is_dir() and any(out.iterdir()):
            StageDir.open(out, kind="samples", config=config, claim=False)
        made = prompts_of(recipe, toolkits)
        show = text_of_messages if renderer is None else renderer.text
        print_prompts(
            console,
            made,
            recipe.settings,
            samples=recipe.n_of,
            most_tokens=recipe.most_tokens,
            render=show,
        )
        return

    with claimed(out, kind="samples", config=config) as stage:
        if stage.complete:
            refuse_changes(read_artifact(out, verify=False), inputs, parents)
            shutil.rmtree(out / "work", ignore_errors=True)
            ensure_report(out)
            console.print(f"{out} is complete, nothing to do")
            return
        made = prompts_of(recipe, toolkits)
        tally = asyncio.run(sample(recipe, made.prompts, toolkits, console))
        manifest = finish(stage, recipe, made, tally, renderer, inputs, parents)
        for line in tally.lines():
            console.print(line, highlight=False)
        console.print(f"{out}  digest {manifest.digest[:16]}", highlight=False)
        console.print(f"{write_report(out)}", highlight=False)


async def sample(
    recipe: SampleConfig,
    prompts: Sequence[Prompt],
    toolkits: Mapping[str, Toolkit],
    console: Console,
) -> Tally:
    """Make every completion that is not there yet, into `samples.jsonl`."""
    out = Path(recipe.out)
    work = out / "work"
    tasks = tasks_of(prompts, recipe.n_of, seed=recipe.seed)
    how = How(
        open_environment=lambda prompt: opened(prompt, toolkits),
        limits=recipe.sampling.limits(),
        chunk=recipe.chunk,
        at_once=IN_FLIGHT * getattr(recipe.backend, "concurrency", 1),
        max_failure_rate=recipe.max_failure_rate,
    )
    asked = prompt_lines(prompts)
    async with opened_sampler(recipe.backend, checkpoint=recipe.checkpoint) as sampler:
        bind(work, {"prompts": digest_of(asked), "sampler": dict(sampler.identity)})
        atomic_write_text(out / "prompts.jsonl", asked)
        with Meter(total=len(tasks), console=console) as meter:
            try:
                return await collect(
                    tasks, sampler, work=work, to=out / "samples.jsonl", how=how, watch=meter
                )
            finally:
                append_speed(out / "speed.jsonl", meter.row())


def finish(
    stage: StageDir,
    recipe: SampleConfig,
    made: PromptSet,
    tally: Tally,
    renderer: PromptRenderer | None,
    inputs: Sequence[Input],
    parents: Sequence[Parent],
) -> Manifest:
    """The tokenizer beside the samples, the books, and the manifest that makes it an artifact."""
    out = stage.path
    samples = sum(stats["samples"] for stats in tally.stats().values())
    examples = "".join(map(row_line, tally.examples))
    atomic_write_text(out / "examples.jsonl", examples)
    files: dict[str, int | None] = {
        "prompts.jsonl": len(made.prompts),
        "samples.jsonl": samples,
        "examples.jsonl": len(tally.examples),
    }
    stats: dict[str, Any] = {
        "settings": tally.stats(),
        "sources": {
            name: {
                "rows_in": books.rows_in,
                "kept": books.kept,
                "dropped": dict(sorted(books.dropped.items())),
                "examples": dict(sorted(books.examples.items())),
            }
            for name, books in made.row_counts.items()
        },
        "not_asked": {name: dict(sorted(counts.items())) for name, counts in made.skipped.items()},
        "failed": dict(tally.errors),
        "inputs": as_stats(inputs),
        "sampler": json.loads((out / "work" / MADE_BY).read_text("utf-8"))["sampler"],
    }
    if renderer is not None:
        files |= {f"tokenizer/{name}": None for name in renderer.save(out / "tokenizer")}
        stats |= renderer.stats()
    manifest = stage.finish(
        counts=made.counts(),
        files=files,
        parents=parents,
        template_digest=None if renderer is None else renderer.template.digest,
        seed=recipe.seed,
        stats=stats,
    )
    shutil.rmtree(out / "work")
    return manifest


def prompts_of(recipe: SampleConfig, toolkits: Mapping[str, Toolkit]) -> PromptSet:
    """All prompts of the recipe, their gold answers accepted by their graders."""
    return build_prompts(
        recipe.prompts,
        recipe.settings,
        seed=recipe.seed,
        graders=all_graders(),
        toolkits=toolkits,
        base_dir=BASE,
    )


def checkpoint_parents(recipe: SampleConfig) -> list[Parent]:
    """The checkpoint's lineage, if it is an artifact; its files are verified."""
    if recipe.checkpoint is None or not (Path(recipe.checkpoint) / MANIFEST).is_file():
        return []
    manifest = read_artifact(recipe.checkpoint, kind="checkpoint")
    return [parent_of(recipe.checkpoint, relative_to=Path(recipe.out), manifest=manifest)]


def opened(prompt: Prompt, toolkits: Mapping[str, Toolkit]) -> Environment | None:
    """What runs a prompt's calls."""
    return None if prompt.environment is None else toolkits[prompt.environment].open(prompt)


def text_of_messages(prompt: Prompt) -> str:
    """A prompt that the server renders, as it is sent."""
    row = prompt_to_row(prompt)
    return "\n".join(f"{key}: {json_text(row[key])}" for key in ("messages", "tools", "thinking"))


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
