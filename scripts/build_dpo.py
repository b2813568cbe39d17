"""Build preference pairs from graded samples: the three categories of the paper's Appendix C.

    posttrain build_dpo --config tiny/build_dpo
    posttrain build_dpo --config tiny/build_dpo out=runs/x total=400
    posttrain build_dpo --config tiny/build_dpo --dry-run

Grading is kept from one start to the next; a build that was killed ends with the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.runs import Run

KIND, BASE = "dpo_data", Path(".")


def main(arguments: list[str]) -> None:
    recipe, options = parse_recipe(
        recipe_parser("Build preference pairs from graded samples."), BuildDpoConfig, arguments
    )
    from rich.console import Console

    from data_builders.graders import all_graders
    from data_builders.pairs.build import build_pairs, tokenizer_config, write_beside_pairs
    from data_builders.pairs.encode import PairEncoder
    from data_builders.sft.preflight import check_template
    from posttrain.chat import profile_of
    from posttrain.models.chat_template import chat_template_of
    from posttrain.report import run_stage
    from posttrain.report.console import print_sections
    from posttrain.report.pages.samples import planned_pairs
    from posttrain.runs import parent_of, read_artifact
    from posttrain.tokens.tokenizer import (
        encoder_of,
        load_any_tokenizer,
        special_ids,
        special_tokens,
    )

    console = Console(width=None if sys.stdout.isatty() else 140)
    out = Path(recipe.out)

    # -- the samples, and the tokenizer and template they were made with
    parents = [read_artifact(path, kind="samples") for path in recipe.samples]
    settings = tokenizer_config(recipe, parents)
    tokenizer = load_any_tokenizer(settings.path, revision=settings.revision)
    special = special_tokens(tokenizer, end_token=None, pad_token=settings.pad_token)
    template = chat_template_of(
        tokenizer, choice=settings.chat_template, variables=settings.template_variables
    )
    check_template(template)
    text = encoder_of(tokenizer)
    # what names this data set: the recipe with its samples by digest, without `out`
    config = recipe.model_dump(mode="json", exclude={"out", "samples"})
    config["samples_digests"] = [parent.digest for parent in parents]
    if options.dry_run:
        Run.open(out, kind=KIND, config=config, dry_run=True)
        print_sections(console, [planned_pairs(recipe, parents)])
        return

    def make(run: Run) -> None:
        with console.status("grading") as line:
            built = build_pairs(
                recipe,
                all_graders(),
                PairEncoder(template, text.encode, special_ids(tokenizer)),
                out=out,
                work=out / "work",
                base_dir=BASE,
                on_progress=lambda what, n: line.update(f"{what}: {n:,}"),
            )

        # -- what a reader needs beside the pairs
        tokenizer.chat_template = template.source
        saved = [Path(path) for path in tokenizer.save_pretrained(out / "tokenizer")]
        files: dict[str, int | None] = {str(path.relative_to(out)): None for path in saved}
        files |= write_beside_pairs(built, out, text.decode)

        # -- the manifest that makes it an artifact
        stats = built.stats()
        stats["template"] = {"name": template.name, "describe": profile_of(template).describe()}
        stats["tokenizer"] = {
            "digest": text.digest,
            "end": special.end_token,
            "pad": special.pad_token,
            "stop_ids": list(special.stop_ids),
        }
        run.finish(
            counts=built.counts(),
            files=files,
            parents=[
                parent_of(path, relative_to=out, manifest=parent)
                for path, parent in zip(recipe.samples, parents, strict=True)
            ],
            template_digest=template.digest,
            seed=recipe.seed,
            stats=stats,
        )

    run_stage(console, out, kind=KIND, config=config, make=make, scratch="work")


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
