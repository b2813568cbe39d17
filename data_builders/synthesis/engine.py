"""Seeds → rows, in rounds: every seed's next requests go out together, and each kind then decides.

Rounds are what makes a killed run cheap to repeat: the answers of a finished round lie in one file,
those of the round under way in a journal, and a kind decides again from them what it had decided.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from data_builders.keyed import key64
from data_builders.synthesis.steps import (
    Answered,
    Ask,
    Asks,
    Discard,
    Keep,
    Round,
    Row,
    Seed,
    SynthesisKind,
    chat_message,
    model_names,
)
from posttrain.config.synthesize import SynthesisModel, SynthesizeConfig
from posttrain.errors import DataError
from posttrain.hashing import digest_of
from posttrain.rollouts import Completion
from posttrain.sampling.generate import (
    bind,
    generate,
    prompt_lines,
    read_completions,
    rollouts_at_once,
)
from posttrain.sampling.open import opened_sampler
from posttrain.sampling.progress import ProgressBar
from posttrain.sampling.rollout import Task

EXAMPLES = 5  # seeds shown of those that are kept, and of each reason to drop
_MOST_ROUNDS = 100  # of a kind that would otherwise ask for ever


@dataclass(slots=True)
class Synthesis:
    """What came of all seeds.

    Attributes:
        rows: finished rows, in the order of their seeds.
        kept, dropped: seeds; `dropped` by reason.
        examples: seeds and what came of them, a few of each outcome.
        models: role → name of a model → seeds that it was drawn for, and those kept.
        requests, tokens: completions, and tokens that models wrote, by role.
        figures: counts that the kind reported with its rows, by name and value.
        kept_seeds: seeds that gave rows, for the comparison of both.
    """

    rows: list[Row] = field(default_factory=list[Row])
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    examples: list[Row] = field(default_factory=list[Row])
    models: dict[str, dict[str, list[int]]] = field(default_factory=dict[str, dict[str, list[int]]])
    requests: Counter[str] = field(default_factory=Counter[str])
    tokens: Counter[str] = field(default_factory=Counter[str])
    figures: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    kept_seeds: list[Seed] = field(default_factory=list[Seed])


def models_of(recipe: SynthesizeConfig, seed: Seed) -> dict[str, SynthesisModel]:
    """The model that plays each role for a seed, drawn by a keyed hash of its id."""
    return {
        role: models[key64(recipe.seed, "synthesis_model", role, seed.id) % len(models)]
        for role, models in recipe.models.items()
    }


def synthesize(
    recipe: SynthesizeConfig,
    kind: SynthesisKind,
    seeds: Sequence[Seed],
    *,
    work: Path,
    console: Console,
) -> Synthesis:
    """Put every seed through its rounds.

    Args:
        work: a folder of this run, with the answers that came before it was killed.

    Raises:
        DataError: as `generate`: too many completions failed, or a server is gone.
        ConfigError: answers in `work` were given by another model or to other prompts.
    """
    histories: dict[str, list[Round]] = {seed.id: [] for seed in seeds}
    assert len(histories) == len(seeds), "ids of seeds differ"
    ends: dict[str, Keep | Discard] = {}
    result = Synthesis()
    waiting = list(seeds)
    for number in range(_MOST_ROUNDS):
        moves = kind.moves([(seed, histories[seed.id]) for seed in waiting])
        asking: dict[str, Asks] = {}
        for seed, move in zip(waiting, moves, strict=True):
            if isinstance(move, Asks):
                asking[seed.id] = move
            else:
                ends[seed.id] = move
        waiting = [seed for seed in waiting if seed.id in asking]
        if not waiting:
            break
        console.print(f"round {number + 1}: {len(waiting):,} of {len(seeds):,} seeds ask")
        answers = _answers(recipe, kind, waiting, asking, work / f"round-{number:03}", console)
        for seed in waiting:
            asks = asking[seed.id].asks
            histories[seed.id].append(tuple(Answered(ask, answers[ask.prompt.id]) for ask in asks))
    else:
        raise AssertionError(f"a kind that asks for more than {_MOST_ROUNDS} rounds")
    for seed in seeds:
        _add(result, recipe, seed, ends[seed.id], histories[seed.id])
    return result


def _answers(
    recipe: SynthesizeConfig,
    kind: SynthesisKind,
    seeds: Sequence[Seed],
    asking: Mapping[str, Asks],
    work: Path,
    console: Console,
) -> dict[str, tuple[Completion, ...]]:
    """The completions of one round by the id of their prompt, from one model after the other."""
    by_model: dict[tuple[str, str], list[Ask]] = {}
    models: dict[tuple[str, str], SynthesisModel] = {}
    for seed in seeds:
        drawn_models = models_of(recipe, seed)
        for ask in asking[seed.id].asks:
            model = drawn_models[ask.role]
            thinking = ask.prompt.thinking and model.thinking
            key = (ask.role, model.name)
            models[key] = model
            by_model.setdefault(key, []).append(
                replace(ask, prompt=replace(ask.prompt, thinking=thinking))
            )
    completions: dict[str, list[Completion]] = {}
    for key in sorted(by_model):
        role, name = key
        console.print(f"{role} {name}: {sum(ask.count for ask in by_model[key]):,} completions")
        folder = work / f"{role}-{name}"
        sampled = asyncio.run(_sample(recipe, models[key], kind, by_model[key], folder, console))
        for completion in sampled:
            completions.setdefault(completion.prompt_id, []).append(completion)
    return {prompt_id: tuple(several) for prompt_id, several in completions.items()}


async def _sample(
    recipe: SynthesizeConfig,
    model: SynthesisModel,
    kind: SynthesisKind,
    asks: Sequence[Ask],
    folder: Path,
    console: Console,
) -> list[Completion]:
    """One model's completions of a round, in the order of its requests."""
    tasks = [Task(ask.prompt, index, recipe.seed) for ask in asks for index in range(ask.count)]
    lines = prompt_lines([ask.prompt for ask in asks])
    answers = folder / "samples.jsonl"
    limits = model.sampling.limits()
    async with opened_sampler(model.backend, checkpoint=model.checkpoint) as sampler:
        made_by = {"prompts": digest_of(lines), "sampler": dict(sampler.identity)}
        bind(folder, made_by)
        if not answers.is_file():
            longest = float(limits.parameters.max_tokens)
            with ProgressBar(total=len(tasks), most_tokens=longest, console=console) as progress:
                await generate(
                    tasks,
                    sampler,
                    work=folder,
                    to=answers,
                    open_environment=kind.open_environment,
                    limits=limits,
                    chunk=recipe.chunk,
                    at_once=rollouts_at_once(model.backend),
                    max_failure_rate=recipe.max_failure_rate,
                    progress=progress,
                )
    completions = read_completions(answers)
    if len(completions) != len(tasks):
        raise DataError(
            f"{answers} holds {len(completions):,} completions of {len(tasks):,}: delete {folder} "
            "and start the same command again"
        )
    return completions


def _add(
    result: Synthesis,
    recipe: SynthesizeConfig,
    seed: Seed,
    end: Keep | Discard,
    history: Sequence[Round],
) -> None:
    """Count one seed and take over its rows."""
    models = models_of(recipe, seed)
    asked_roles = {answered.ask.role for answers in history for answered in answers}
    for role in sorted(asked_roles):
        counts = result.models.setdefault(role, {}).setdefault(models[role].name, [0, 0])
        counts[0] += 1
        counts[1] += isinstance(end, Keep)
    for answers in history:
        for answered in answers:
            result.requests[answered.ask.role] += len(answered.completions)
            for completion in answered.completions:
                written = completion.reasoning_tokens + completion.answer_tokens
                result.tokens[answered.ask.role] += written
    shown = sum(row["outcome"] == _outcome(end) for row in result.examples)
    if shown < EXAMPLES:
        result.examples.append(_example(seed, end))
    if isinstance(end, Discard):
        result.dropped[end.reason] += 1
        return
    result.kept += 1
    result.kept_seeds.append(seed)
    for name, value in end.figures.items():
        result.figures.setdefault(name, Counter())[value] += 1
    played = model_names({role: models[role] for role in sorted(asked_roles)})
    for number, row in enumerate(end.rows):
        about = {"kind": recipe.make.kind, "seed": seed.id, "models": played}
        metadata = {**row.get("metadata", {}), "synthesis": about}
        result.rows.append({"id": f"{seed.id}/{number}", **row, "metadata": metadata})


def _outcome(end: Keep | Discard) -> str:
    return "kept" if isinstance(end, Keep) else end.reason


def _example(seed: Seed, end: Keep | Discard) -> Row:
    shown = [chat_message(message) for message in seed.example.messages]
    row: Row = {"outcome": _outcome(end), "seed": seed.id, "messages": shown}
    if isinstance(end, Discard):
        return {**row, "detail": end.detail}
    return {**row, "rows": list(end.rows[:1])}
