"""Build the prompts on which a judge is trained and measured, from preference data.

    python scripts/build_genrm.py --config recipes/tiny/build_genrm.yaml
    python scripts/build_genrm.py --config recipes/nemotron-3-nano/build_genrm.yaml --dry-run

Killed and started again, the same command ends with the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from data_builders.genrm.build import HELD_OUT, TRAIN, Built, build
from data_builders.genrm.prompts import CountTokens
from data_builders.genrm.tables import print_built
from data_builders.prompts import refuse_changes
from data_builders.rows.files import find_files
from data_builders.sft.inputs import Input, as_stats, find_parents
from posttrain.artifacts import Parent, StageDir, read_artifact, sha256_file
from posttrain.chat import render
from posttrain.claim import claimed, run_command
from posttrain.config.build_genrm import BuildGenRmConfig
from posttrain.config.build_sft import TokenizerConfig
from posttrain.config.command import parse_recipe, recipe_parser
from posttrain.models.chat_template import chat_template_of
from posttrain.report import ensure_report, write_report
from posttrain.rollouts import Prompt
from posttrain.tokens.tokenizer import encoder_of, load_any_tokenizer

BASE = Path(".")


def main(arguments: list[str]) -> None:
    recipe, options = parse_recipe(
        recipe_parser("Build judging prompts from preference data."), BuildGenRmConfig, arguments
    )
    console = Console(width=None if sys.stdout.isatty() else 140)
    out = Path(recipe.out)
    config = recipe.model_dump(mode="json", exclude={"out"})

    # -- what the prompts are made from
    inputs, parents = preference_inputs(recipe, out)
    counter = None if recipe.tokenizer is None else token_counter(recipe.tokenizer)
    if options.dry_run:
        if out.is_dir() and any(out.iterdir()):
            StageDir.open(out, kind="genrm_data", config=config, claim=False)
        print_built(console, build(recipe, None, base_dir=BASE, count=counter))
        return

    with claimed(out, kind="genrm_data", config=config) as stage:
        if stage.complete:
            refuse_changes(read_artifact(out, verify=False), inputs, parents)
            ensure_report(out)
            console.print(f"{out} is complete, nothing to do")
            return

        # -- rows → pairs → judging prompts in both orders, questions held out
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        ) as bar:
            task = bar.add_task("reading")
            built = build(
                recipe,
                out,
                base_dir=BASE,
                count=counter,
                progress=lambda name, n: bar.update(task, description=f"{name}: {n:,} pairs"),
            )

        # -- the books, and the manifest that makes it an artifact
        manifest = stage.finish(
            counts=built.counts(),
            files={**built.files},
            parents=parents,
            seed=recipe.seed,
            stats=stats_of(recipe, built, inputs),
        )
        print_built(console, built)
        console.print(f"{out}  digest {manifest.digest[:16]}", highlight=False)
        console.print(f"{write_report(out)}", highlight=False)


def preference_inputs(recipe: BuildGenRmConfig, out: Path) -> tuple[list[Input], list[Parent]]:
    """All input files, hashed, and the artifacts they lie in."""
    inputs: list[Input] = []
    paths: list[Path] = []
    for source in recipe.sources:
        if source.hub is not None:
            inputs.append(Input(source.name, f"{source.hub}@{source.revision}", None, None))
            continue
        for path in find_files(source.rows(), BASE):
            files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
            inputs += [Input(source.name, str(p), p.stat().st_size, sha256_file(p)) for p in files]
            paths += files
    return inputs, find_parents(paths, out)


def token_counter(config: TokenizerConfig) -> CountTokens:
    """Counts tokens of prompts as the judge is asked."""
    tokenizer = load_any_tokenizer(config.path, revision=config.revision)
    encoder = encoder_of(tokenizer)
    template = chat_template_of(
        tokenizer, choice=config.chat_template, variables=config.template_variables
    )

    def count(prompts: Sequence[Prompt]) -> list[int]:
        texts = [
            render(p.messages, template, add_generation_prompt=True, enable_thinking=p.thinking)
            for p in prompts
        ]
        return [len(ids) for ids in encoder.encode(texts)]

    return count


def stats_of(recipe: BuildGenRmConfig, built: Built, inputs: list[Input]) -> dict[str, Any]:
    """The figures of the build."""
    return {
        "layout": recipe.layout,
        "principle": recipe.principle,
        "swap": recipe.swap,
        "thinking": recipe.thinking,
        "files": {"train": TRAIN, "held_out": HELD_OUT},
        "inputs": as_stats(inputs),
        **built.stats(),
    }


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
