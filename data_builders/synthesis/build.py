"""The stage between recipe and manifest: seeds are read, put through their rounds, and counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from data_builders.decontamination.match import evaluation_files, load_decontaminator
from data_builders.dedup.columns import Shingles, band_keys, shingles, similarity
from data_builders.pairs.grading import grade_samples
from data_builders.prompts.build import PromptPlan
from data_builders.registry import all_graders
from data_builders.rows.files import input_files
from data_builders.rows.inputs import Input, as_stats, find_parents
from data_builders.rows.raw import Drop
from data_builders.rows.read import RowCounts, read_examples
from data_builders.synthesis.continue_chat import JUDGE, USER, ChatContinuation
from data_builders.synthesis.engine import Synthesis, synthesize
from data_builders.synthesis.genselect import SelectionTraces, selection_prompts
from data_builders.synthesis.rejection import RejectionSampling
from data_builders.synthesis.steps import Ask, Asks, Discard, Row, Seed, SynthesisKind
from data_builders.synthesis.translate import LINE, Translation
from posttrain.config.load import nearest
from posttrain.config.source import SourceConfig
from posttrain.config.synthesize import (
    ContinueChat,
    GenSelect,
    Rejection,
    SynthesizeConfig,
    Translate,
)
from posttrain.errors import ConfigError, DataError
from posttrain.hashing import digest_of, sha256_file
from posttrain.jsontext import row_line
from posttrain.records import Example, Message, make_example
from posttrain.rollouts import Prompt
from posttrain.runs import Counts, Parent, Run, atomic_write_text, parent_of, read_artifact
from posttrain.sampling.generate import prompt_lines
from posttrain.sampling.open import checkpoint_parents

KIND = "synthetic_rows"
ROWS, EXAMPLES, PROMPTS = "rows.jsonl", "examples.jsonl", "prompts.jsonl"
_PROMPTS = Path(__file__).parent / "prompts"
_SELECT = "select_best"
# names of the prompts of each kind; the files that come with the package have these names
TEMPLATES: dict[str, tuple[str, ...]] = {
    "rejection": (),
    "genselect": (_SELECT,),
    "continue_chat": (USER, JUDGE),
    "translate": (LINE,),
}
_NEAR = 0.8  # Jaccard similarity from which two rows say nearly the same; the default of build_sft
_DISTINCT = 4  # words of the n-grams whose distinct share is reported
_BASE = Path()  # what paths in a recipe are relative to


@dataclass(slots=True)
class SeedSet:
    """The seeds of a recipe, and what became of the rows before they were any.

    Attributes:
        dropped: rows that are no seeds, by reason.
        stats: how they were read, for the manifest.
    """

    seeds: list[Seed]
    dropped: Counter[str] = field(default_factory=Counter[str])
    inputs: list[Input] = field(default_factory=list[Input])
    parents: list[Parent] = field(default_factory=list[Parent])
    stats: dict[str, Any] = field(default_factory=dict[str, Any])


def load_templates(recipe: SynthesizeConfig) -> dict[str, str]:
    """Text of each prompt of the recipe's kind: the recipe's file, or the one that comes with it.

    Raises:
        ConfigError: a name that the kind does not have, a file that is not there or lacks a mark
            that the shipped one has.
    """
    names = TEMPLATES[recipe.make.kind]
    for name in recipe.templates:
        if name not in names:
            hint = nearest(name, names)
            raise ConfigError(f"templates: {recipe.make.kind} has no prompt {name!r}{hint}")
    texts: dict[str, str] = {}
    for name in names:
        shipped = (_PROMPTS / f"{name}.txt").read_text("utf-8")
        texts[name] = shipped
        if name not in recipe.templates:
            continue
        file = Path(recipe.templates[name])
        if not file.is_file():
            raise ConfigError(f"templates.{name}: there is no file {file}")
        texts[name] = file.read_text("utf-8")
        missing = sorted(_marks(shipped) - _marks(texts[name]))
        if missing:
            raise ConfigError(f"templates.{name}: {file} lacks {', '.join(missing)}")
    return texts


def _marks(template: str) -> set[str]:
    parts = template.split("{{")[1:]
    return {"{{" + part.partition("}}")[0] + "}}" for part in parts if "}}" in part}


def open_kind(recipe: SynthesizeConfig, templates: Mapping[str, str]) -> SynthesisKind:
    """The kind that a recipe names. Raises ConfigError: this machine lacks what it needs."""
    match recipe.make:
        case Rejection() as config:
            return RejectionSampling(config, seed=recipe.seed)
        case GenSelect():
            return SelectionTraces(templates)
        case ContinueChat() as config:
            return ChatContinuation(config, templates, judged="judge" in recipe.models)
        case Translate() as config:
            return Translation(config, templates)


# -- seeds -----------------------------------------------------------------------------------------


def read_seeds(
    recipe: SynthesizeConfig, templates: Mapping[str, str], *, out: Path, work: Path
) -> SeedSet:
    """Every seed of the recipe, decontaminated and limited.

    Args:
        work: where grades of samples are kept from one start to the next.

    Raises:
        ConfigError, DataError: as the readers of prompts, rows and samples; no seed is left.
    """
    match recipe.make:
        case Rejection() as config:
            plan = PromptPlan(config.prompts, config.settings, seed=recipe.seed, out=out)
            built = plan.build()
            seeds = [Seed(p.id, p, _example_of(p)) for p in built.prompts]
            result = SeedSet(seeds, Counter(), plan.inputs, plan.parents, built.stats())
        case GenSelect() as config:
            result = _selection_seeds(config, recipe, templates[_SELECT], out=out, work=work)
        case ContinueChat() | Translate() as config:
            result = _row_seeds(config.sources, out=out)
    evaluation = evaluation_files(recipe.decontamination, _BASE)
    decontaminator = load_decontaminator(recipe.decontamination, _BASE, evaluation)
    result.inputs = [*result.inputs, *evaluation]
    if decontaminator is not None:
        drops = decontaminator.drops([seed.example for seed in result.seeds])
        clean = [seed for seed, drop in zip(result.seeds, drops, strict=True) if drop is None]
        if len(clean) < len(result.seeds):
            result.dropped["contaminated"] += len(result.seeds) - len(clean)
        result.seeds = clean
    if recipe.limit is not None and recipe.limit < len(result.seeds):
        result.dropped["beyond_limit"] += len(result.seeds) - recipe.limit
        result.seeds = result.seeds[: recipe.limit]
    if not result.seeds:
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in result.dropped.most_common())
        raise DataError(f"there is no seed to make rows from ({reasons or 'no rows'})")
    return result


def _example_of(prompt: Prompt) -> Example:
    return make_example(prompt.messages, tools=prompt.tools, source=prompt.source, dialect="prompt")


def _selection_seeds(
    config: GenSelect, recipe: SynthesizeConfig, template: str, *, out: Path, work: Path
) -> SeedSet:
    samples = Path(config.samples)
    manifest = read_artifact(samples, kind="samples")
    parent = parent_of(samples, relative_to=out, manifest=manifest)
    result = SeedSet([], parents=[parent])
    graders = all_graders()
    for prompt, grades in grade_samples(samples, graders, work=work):
        graded = tuple((completion, score) for completion, score, _ in grades)
        made = selection_prompts((prompt, graded), config, template=template, seed=recipe.seed)
        if isinstance(made, Discard):
            result.dropped[made.reason] += 1
            continue
        result.seeds += [Seed(each.id, each, _example_of(each)) for each in made]
    return result


def _row_seeds(sources: Sequence[SourceConfig], *, out: Path) -> SeedSet:
    inputs, parents = _row_inputs(sources, out=out)
    result = SeedSet([], inputs=inputs, parents=parents)
    seen: set[str] = set()
    source_stats: dict[str, Any] = {}
    for source in sources:
        counts = RowCounts()
        for example in read_examples(source, _BASE, counts=counts):
            if isinstance(example, Drop):
                result.dropped[example.reason] += 1
            elif example.id in seen:
                result.dropped["duplicate"] += 1
            else:
                seen.add(example.id)
                result.seeds.append(Seed(example.id, example, example))
        source_stats[source.name] = counts.stats()
    result.stats = {"sources": source_stats}
    return result


def inputs_of(recipe: SynthesizeConfig, *, out: Path) -> tuple[list[Input], list[Parent]]:
    """Input files, hashed, and the artifacts that seeds come from; no row is read.

    Raises:
        ConfigError, DataError: a path that matches nothing, an artifact that changed.
    """
    match recipe.make:
        case Rejection() as config:
            plan = PromptPlan(config.prompts, config.settings, seed=recipe.seed, out=out)
            inputs, parents = plan.inputs, plan.parents
        case GenSelect() as config:
            manifest = read_artifact(config.samples, kind="samples")
            inputs, parents = [], [parent_of(config.samples, relative_to=out, manifest=manifest)]
        case ContinueChat() | Translate() as config:
            inputs, parents = _row_inputs(config.sources, out=out)
    return [*inputs, *evaluation_files(recipe.decontamination, _BASE)], parents


def _row_inputs(sources: Sequence[SourceConfig], *, out: Path) -> tuple[list[Input], list[Parent]]:
    inputs: list[Input] = []
    paths: list[Path] = []
    for source in sources:
        if source.hub is not None:
            inputs.append(Input(source.name, f"{source.hub}@{source.revision}", None, None))
            continue
        for path in input_files(source, _BASE):
            inputs.append(Input(source.name, str(path), path.stat().st_size, sha256_file(path)))
            paths.append(path)
    return inputs, find_parents(paths, out)


# -- the plan --------------------------------------------------------------------------------------


def first_asks(kind: SynthesisKind, seeds: Sequence[Seed]) -> list[Ask]:
    """Requests of the first round, of all seeds that ask anything."""
    asks: list[Ask] = []
    for move in kind.moves([(seed, []) for seed in seeds]):
        if isinstance(move, Asks):
            asks += move.asks
    return asks


# -- the rows --------------------------------------------------------------------------------------


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
        DataError: as `synthesize`; or no seed gave a row.
    """
    out = run.path
    result = synthesize(recipe, kind, seed_set.seeds, work=out / "work", console=console)
    if not result.rows:
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in result.dropped.most_common())
        raise DataError(f"none of {len(seed_set.seeds):,} seeds gave a row ({reasons})")
    atomic_write_text(out / ROWS, "".join(map(row_line, result.rows)))
    atomic_write_text(out / EXAMPLES, "".join(map(row_line, result.examples)))
    files: dict[str, int | None] = {ROWS: len(result.rows), EXAMPLES: len(result.examples)}
    if isinstance(recipe.make, GenSelect):  # the questions are also prompts of an environment
        prompts = [seed.content for seed in seed_set.seeds]
        atomic_write_text(out / PROMPTS, prompt_lines(prompts))
        files[PROMPTS] = len(prompts)
    checkpoints = [model.checkpoint for several in recipe.models.values() for model in several]
    parents = [*seed_set.parents, *checkpoint_parents(sorted(filter(None, checkpoints)), out=out)]
    dropped = seed_set.dropped + result.dropped
    run.finish(
        counts=Counts(result.kept + dropped.total(), result.kept, dict(sorted(dropped.items()))),
        files=files,
        parents=list({parent.digest: parent for parent in parents}.values()),
        template_digest=None,
        seed=recipe.seed,
        stats=_stats(recipe, kind, seed_set, result),
    )
    return result


def _stats(
    recipe: SynthesizeConfig, kind: SynthesisKind, seed_set: SeedSet, result: Synthesis
) -> dict[str, Any]:
    rows = [_example_of_row(row) for row in result.rows]
    seeds = [seed.example for seed in result.kept_seeds]
    return {
        **seed_set.stats,
        "kind": recipe.make.kind,
        "seeds": len(seed_set.seeds),
        "yield": result.kept / len(seed_set.seeds),
        "dropped_after_requests": dict(sorted(result.dropped.items())),
        "models": result.models,
        "requests": dict(sorted(result.requests.items())),
        "tokens": dict(sorted(result.tokens.items())),
        "figures": {name: dict(sorted(c.items())) for name, c in sorted(result.figures.items())},
        "templates": {name: digest_of(text) for name, text in sorted(kind.templates.items())},
        "rows": _variety(rows),
        "kept_seeds": _variety(seeds),
        "inputs": as_stats(seed_set.inputs),
    }


def _example_of_row(row: Row) -> Example:
    messages = [
        Message(m["role"], m["content"], reasoning=m.get("reasoning_content"))
        for m in row["messages"]
    ]
    return make_example(messages, source="synthesis", dialect="openai")


def _variety(examples: Sequence[Example]) -> dict[str, Any]:
    """Figures that show whether one text returns in many rows.

    Returns:
        rows; user turns and characters in the mean; `distinct_ngrams`, the distinct share of all
        runs of four words of users and assistants; `near_duplicates`, the share of rows that
        are nearly the same as an earlier one.
    """
    ngrams: Counter[tuple[str, ...]] = Counter()
    turns = characters = 0
    for example in examples:
        for message in example.messages:
            if message.role not in ("user", "assistant"):
                continue
            turns += message.role == "user"
            characters += len(message.content) + len(message.reasoning or "")
            words = message.content.split()
            ngrams.update(
                tuple(words[k : k + _DISTINCT]) for k in range(len(words) - _DISTINCT + 1)
            )
    count = max(1, len(examples))
    return {
        "rows": len(examples),
        "user_turns": turns / count,
        "characters": characters / count,
        "distinct_ngrams": len(ngrams) / max(1, ngrams.total()),
        "near_duplicates": near_duplicates(shingles(examples)) / count,
    }


def near_duplicates(records: Sequence[Shingles]) -> int:
    """Number of records that are nearly the same as an earlier one, by MinHash bands."""
    if not records:
        return 0
    keys = band_keys(records)
    earlier: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    count = 0
    for row in range(len(records)):
        bands = [(band, int(key)) for band, key in enumerate(np.asarray(keys[row]))]
        candidates = sorted({other for band in bands for other in earlier[band]})
        if any(similarity(records[row], records[other]) >= _NEAR for other in candidates):
            count += 1
            continue  # later rows are compared with the first of its kind
        for band in bands:
            earlier[band].append(row)
    return count
