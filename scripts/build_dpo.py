"""Build preference pairs from graded samples: the three categories of the paper's Appendix C.

    python scripts/build_dpo.py --config recipes/tiny/build_dpo.yaml
    python scripts/build_dpo.py --config recipes/tiny/build_dpo.yaml out=runs/x total=400
    python scripts/build_dpo.py --config recipes/tiny/build_dpo.yaml --dry-run

Grading is kept from one start to the next; a build that was killed ends with the same bytes.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from data_builders.graders import all_graders
from data_builders.preferences.books import (
    completions_line,
    distances,
    lengths,
    pair_counts,
    plain,
    used_completions,
)
from data_builders.preferences.build import Proposed, chosen_pairs, propose_sampled, sample_rows
from data_builders.preferences.encoded import Encoder
from data_builders.preferences.propose_offline import propose_offline
from data_builders.preferences.select import Selection, select
from data_builders.preferences.tables import print_dry_run, print_summary
from data_builders.preferences.write import PairWriter
from data_builders.sft.preflight import check_template
from data_builders.sft.shards import write_jsonl
from posttrain.artifacts import Counts, Manifest, parent_of, read_artifact
from posttrain.chat import profile_of
from posttrain.claim import claimed, run_command
from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.config.build_sft import TokenizerConfig
from posttrain.config.command import parse_recipe, recipe_parser
from posttrain.errors import ConfigError
from posttrain.models.chat_template import chat_template_of
from posttrain.pairs import Pair
from posttrain.report import ensure_report, write_report
from posttrain.tokens.tokenizer import encoder_of, load_any_tokenizer, special_tokens

BASE = Path(".")
TO_READ = 24  # pairs of each category kept as text for the report


def main(arguments: list[str]) -> None:
    recipe, options = parse_recipe(
        recipe_parser("Build preference pairs from graded samples."), BuildDpoConfig, arguments
    )
    console = Console(width=None if sys.stdout.isatty() else 140)
    out = Path(recipe.out)

    # -- the samples, and the tokenizer and template they were made with
    parents = [read_artifact(path, kind="samples") for path in recipe.samples]
    check_one_template(recipe, parents)
    settings = tokenizer_config(recipe, parents)
    tokenizer = load_any_tokenizer(settings.path, revision=settings.revision)
    special = special_tokens(tokenizer, end_token=None, pad_token=settings.pad_token)
    template = chat_template_of(
        tokenizer, choice=settings.chat_template, variables=settings.template_variables
    )
    check_template(template)
    text = encoder_of(tokenizer)
    encoder = Encoder(template, text.encode)
    graders = all_graders()
    config = stage_config(recipe, parents)
    if options.dry_run:
        print_dry_run(console, recipe, parents)
        return

    with claimed(out, kind="dpo_data", config=config, scratch="work") as stage:
        work = out / "work"
        if stage.complete:
            shutil.rmtree(work, ignore_errors=True)
            ensure_report(out)
            console.print(f"{out} is complete, nothing to do")
            return
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        ) as bar:
            task = bar.add_task("grading")

            def progress(what: str, count: int) -> None:
                bar.update(task, description=f"{what}: {count:,}")

            # -- every completion graded, every prompt's candidate pairs
            proposed = propose_sampled(
                recipe, graders, encoder, out=out, work=work, progress=progress
            )
            propose_offline(recipe, encoder, proposed, work=work, base_dir=BASE, progress=progress)

            # -- shares and totals over all of them
            selection = select(
                proposed.candidates,
                shares=recipe.categories,
                thinking_on=recipe.thinking_on,
                total=recipe.total,
                match_length=recipe.match_length,
                sampled=completions_line(proposed.books.rates),
            )

            # -- the chosen pairs, with their ids
            to_read: list[Pair] = []
            shown: Counter[str] = Counter()
            with PairWriter(out / "pairs", "train", shard_pairs=recipe.shard_pairs) as writer:
                pairs = chosen_pairs(recipe, selection.pairs, proposed, encoder, work=work)
                for number, pair in enumerate(pairs, 1):
                    writer.add(pair)
                    shown[pair.category] += 1
                    if shown[pair.category] <= TO_READ:
                        to_read.append(pair)
                    progress("writing", number)
        assert sum(writer.files.values()) == len(selection.pairs)

        # -- what a reader needs beside the pairs
        files: dict[str, int | None] = {f"pairs/{name}": n for name, n in writer.files.items()}
        tokenizer.chat_template = template.source
        for path in tokenizer.save_pretrained(out / "tokenizer"):
            files[str(Path(path).relative_to(out))] = None
        files["scores.jsonl"] = proposed.books.completions
        files["samples.jsonl"] = write_jsonl(
            out / "samples.jsonl", sample_rows(to_read, text.decode)
        )
        if recipe.write_dropped:
            files["dropped.jsonl"] = write_jsonl(out / "dropped.jsonl", proposed.dropped_rows)

        # -- the books, and the manifest that makes it an artifact
        stats = stats_of(recipe, proposed, selection)
        stats["template"] = {"name": template.name, "describe": profile_of(template).describe()}
        stats["tokenizer"] = {
            "digest": text.digest,
            "end": special.end_token,
            "pad": special.pad_token,
            "stop_ids": list(special.stop_ids),
        }
        manifest = stage.finish(
            counts=counts_of(proposed, selection),
            files=files,
            parents=[
                parent_of(path, relative_to=out, manifest=parent)
                for path, parent in zip(recipe.samples, parents, strict=True)
            ],
            template_digest=template.digest,
            seed=recipe.seed,
            stats=stats,
        )
        shutil.rmtree(work, ignore_errors=True)
        print_summary(console, stats, manifest)
        console.print(f"{out}  digest {manifest.digest[:16]}", highlight=False)
        console.print(f"{write_report(out)}", highlight=False)


def tokenizer_config(recipe: BuildDpoConfig, parents: list[Manifest]) -> TokenizerConfig:
    """The samples' own tokenizer and template; the recipe's where there is none with them."""
    own = Path(recipe.samples[0]) / "tokenizer" if recipe.samples else None
    if own is not None and own.is_dir():
        if recipe.tokenizer is not None:
            raise ConfigError(f"tokenizer: leave it out, {own} is that of the samples")
        made_by = parents[0].stats.get("sampler", {})
        variables = dict(made_by.get("template_variables", {}))
        return TokenizerConfig(path=str(own), chat_template="own", template_variables=variables)
    if recipe.tokenizer is None:
        raise ConfigError("tokenizer: is needed, a server made these samples and hid its own")
    return recipe.tokenizer


def check_one_template(recipe: BuildDpoConfig, parents: list[Manifest]) -> None:
    """Samples of two templates or tokenizers cannot be pairs of one data set."""
    for (a, left), (b, right) in itertools.pairwise(zip(recipe.samples, parents, strict=True)):
        tokenizers = [parent.stats.get("tokenizer", {}).get("digest") for parent in (left, right)]
        if left.template_digest != right.template_digest or tokenizers[0] != tokenizers[1]:
            raise ConfigError(f"{a} and {b} were sampled with different templates or tokenizers")


def stage_config(recipe: BuildDpoConfig, parents: list[Manifest]) -> dict[str, Any]:
    """What names this data set: the recipe with its samples by digest, without `out`."""
    config = recipe.model_dump(mode="json", exclude={"out", "samples"})
    return config | {"samples_digests": [parent.digest for parent in parents]}


def counts_of(proposed: Proposed, selection: Selection) -> Counts:
    """Completions and given rows in, those in a pair kept, the others by reason."""
    used = len(used_completions(selection.pairs))
    given = sum(pair.category == "offline" for pair in selection.pairs)
    rows = proposed.books.completions + proposed.offline_rows
    dropped = +Counter(proposed.books.unused)
    not_drawn = rows - used - given - sum(dropped.values())
    return Counts(
        rows_in=rows,
        kept=used + given,
        dropped=dict(sorted((dropped + Counter(not_drawn=not_drawn)).items())),
    )


def stats_of(recipe: BuildDpoConfig, proposed: Proposed, selection: Selection) -> dict[str, Any]:
    """The figures of the build."""
    pairs, books = selection.pairs, proposed.books
    dropped = books.pairs_dropped + Counter(selection.dropped)
    return {
        "pairs": pair_counts(pairs),
        "shares_asked": dict(recipe.categories),
        "limited_by": selection.limited_by,
        "rule": recipe.rule,
        "pair_books": {
            "in": len(proposed.candidates) + sum(books.pairs_dropped.values()),
            "kept": len(pairs),
            "dropped": dict(sorted(dropped.items())),
        },
        "prompts": plain(books.prompts),
        "samples": plain(books.rates),
        "lengths": lengths(pairs),
        "distances": distances(pairs),
    }


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
