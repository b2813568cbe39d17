"""Stage of synthesis between recipe and manifest: read seeds, make rows, write and count them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

from data_builders.decontamination.match import evaluation_files, load_decontaminator
from data_builders.rows.inputs import Input, as_stats
from data_builders.synthesis.engine import Synthesis, synthesize
from data_builders.synthesis.steps import Row, SeedSet, SynthesisKind
from data_builders.synthesis.variety import example_of_row, variety
from posttrain.config.synthesize import SynthesizeConfig
from posttrain.errors import DataError
from posttrain.evaluation.cost import money
from posttrain.hashing import digest_of
from posttrain.jsontext import row_line
from posttrain.runs import Counts, Parent, Run, atomic_write_text
from posttrain.sampling.open import checkpoint_parents

KIND = "synthetic_rows"
ROWS = "rows.jsonl"
PAIRS = "pairs.jsonl"
TASKS = "tasks.jsonl"
EXAMPLES = "examples.jsonl"
_BASE = Path()  # paths in a recipe are relative to the working directory


def read_seeds(recipe: SynthesizeConfig, kind: SynthesisKind, *, work: Path) -> SeedSet:
    """Read the seeds of the recipe, decontaminated and limited.

    Args:
        work: folder for grades of samples, which are kept if the run is killed.

    Raises:
        ConfigError, DataError: see the readers of prompts, rows and samples; no seed remains.
    """
    result = kind.seeds(work)
    evaluation_inputs = evaluation_files(recipe.decontamination, _BASE)
    decontaminator = load_decontaminator(recipe.decontamination, _BASE, evaluation_inputs)
    if decontaminator is not None:
        drops = decontaminator.drops([seed.example for seed in result.seeds])
        clean_seeds = [seed for seed, drop in zip(result.seeds, drops, strict=True) if drop is None]
        if len(clean_seeds) < len(result.seeds):
            result.dropped["contaminated"] += len(result.seeds) - len(clean_seeds)
        result.seeds = clean_seeds
    if recipe.limit is not None and recipe.limit < len(result.seeds):
        result.dropped["beyond_limit"] += len(result.seeds) - recipe.limit
        result.seeds = result.seeds[: recipe.limit]
    ids = {seed.id for seed in result.seeds}
    result.tasks = [task for task in result.tasks if task["id"] in ids]
    if not result.seeds:
        # the rows of a misspelt field are dropped for the same reason: its name says more
        details: list[str] = []
        for counts in result.stats.get("sources", {}).values():
            details += counts.get("examples", {}).values()
        example = f", such as: {details[0]}" if details else ""
        raise DataError(f"there is no seed to make rows from ({listed(result.dropped)}){example}")
    return result


def inputs_of(recipe: SynthesizeConfig, kind: SynthesisKind) -> tuple[list[Input], list[Parent]]:
    """Input files, hashed, and the artifacts that seeds come from; no row is read.

    Raises:
        ConfigError, DataError: a path that matches nothing, an artifact that changed.
    """
    inputs, parents = kind.inputs()
    return [*inputs, *evaluation_files(recipe.decontamination, _BASE)], parents


def build(
    run: Run,
    recipe: SynthesizeConfig,
    kind: SynthesisKind,
    seed_set: SeedSet,
    *,
    console: Console,
) -> Synthesis:
    """Make the rows, and finish the run.

    Raises:
        DataError: see `synthesize`; or no seed gave a row, and there are no tasks without one.
    """
    out = run.path
    result = synthesize(recipe, kind, seed_set.seeds, work=out / "work", console=console)
    if not result.kept and not seed_set.tasks:
        total = len(seed_set.seeds)
        [(reason, _)] = result.dropped.most_common(1)
        example = next(row for row in result.examples if row["outcome"] == reason)
        detail = f", such as {reason}: {example['detail']!r:.200}" if example["detail"] else ""
        raise DataError(f"none of {total:,} seeds gave a row ({listed(result.dropped)}){detail}")
    result.tasks = [*seed_set.tasks, *result.tasks]
    tasks_by_seed = {task["id"]: task for task in seed_set.tasks}
    for example in result.examples:
        if example.get("rows") == [] and example["seed"] in tasks_by_seed:
            example["rows"] = [tasks_by_seed[example["seed"]]]
    rows_by_file = {
        ROWS: result.rows,
        PAIRS: result.pairs,
        TASKS: result.tasks,
        # what was kept comes first
        EXAMPLES: [
            *sorted(result.examples, key=lambda row: row["outcome"] != "kept"),
            *result.planted.kept,
        ],
    }
    files: dict[str, int | None] = {}
    for name, rows in rows_by_file.items():
        if rows:
            atomic_write_text(out / name, "".join(map(row_line, rows)))
            files[name] = len(rows)
    checkpoints: list[str] = []
    for models in recipe.models.values():
        checkpoints += [model.checkpoint for model in models if model.checkpoint]
    inputs, seed_parents = inputs_of(recipe, kind)
    parents = [*seed_parents, *checkpoint_parents(sorted(checkpoints), out=out)]
    dropped = seed_set.dropped + result.dropped
    run.finish(
        counts=Counts(result.kept + dropped.total(), result.kept, dict(sorted(dropped.items()))),
        files=files,
        parents=list({parent.digest: parent for parent in parents}.values()),
        template_digest=None,
        seed=recipe.seed,
        stats={**_stats(recipe, kind, seed_set, result), "inputs": as_stats(inputs)},
    )
    return result


def _stats(
    recipe: SynthesizeConfig, kind: SynthesisKind, seed_set: SeedSet, result: Synthesis
) -> Row:
    """Stats for the manifest."""
    finished_rows = result.rows or result.pairs or result.tasks
    templates = sorted(kind.setup.templates.items())
    figures = {
        name: dict(sorted(counts.items())) for name, counts in sorted(result.figures.items())
    }
    return {
        **seed_set.stats,
        "kind": recipe.make.kind,
        "seeds": len(seed_set.seeds),
        "yield": result.kept / len(seed_set.seeds),
        "by_source": result.by_source,
        "dropped_after_requests": dict(sorted(result.dropped.items())),
        "models": result.models,
        "requests": dict(sorted(result.requests.items())),
        "tokens": dict(sorted(result.tokens.items())),
        "spent": _spent(recipe, result),
        "figures": figures,
        "planted": {
            "rows": result.planted.total,
            "dropped": dict(sorted(result.planted.dropped.items())),
        },
        "templates": {name: digest_of(text) for name, text in templates},
        "rows": variety([example_of_row(row) for row in finished_rows]),
        "kept_seeds": variety([seed.example for seed in result.kept_seeds]),
        "pairs": len(result.pairs),
        "tasks": len(result.tasks),
    }


def _spent(recipe: SynthesizeConfig, result: Synthesis) -> dict[str, Any]:
    """Tokens of each model, and their cost if the recipe has a price."""
    spent: dict[str, Any] = {}
    for name, tokens in sorted(result.used.items()):
        price = recipe.prices.get(name)
        cost = None if price is None else money(tokens, price)
        spent[name] = {"input": tokens["input"], "output": tokens["output"], "money": cost}
    return spent


def listed(reasons: Counter[str]) -> str:
    """Reasons with their counts, most frequent first, in one line."""
    return ", ".join(f"{reason} {n:,}" for reason, n in reasons.most_common()) or "no rows"
