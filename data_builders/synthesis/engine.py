"""Seeds → rows, in rounds: the next requests of all seeds go out together.

Rounds make a killed run cheap to repeat: the answers of a finished round lie in one file, those of
the round under way in a journal, and from them a kind comes to the same decisions again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from data_builders.keyed import key64
from data_builders.registry import all_graders
from data_builders.synthesis.steps import (
    Answered,
    Ask,
    Asks,
    Discarded,
    Grade,
    Keep,
    Making,
    Note,
    Round,
    Row,
    Seed,
    SynthesisKind,
    chat_message,
)
from posttrain.config.synthesize import SynthesisModel, SynthesizeConfig
from posttrain.errors import DataError
from posttrain.evaluation.cost import tokens_of
from posttrain.hashing import digest_of
from posttrain.records import Score
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
from reward.graders.base import Attempt, Grader

EXAMPLES = 5  # seeds shown of those that are kept, and of each reason to drop
CHUNK = 1024  # completions of a model in process that are saved together
End = Keep | Discarded


@dataclass(slots=True)
class Work:
    """Progress of one seed.

    Attributes:
        models: model of each role, unless a request names another.
        making: the kind's generator, which waits for the answer to `move`.
        replay: rounds to send before any is asked for, with the spoiled answer of a planted row.
        rounds: rounds so far.
        notes: values to count.
        move: requests, or attempts to grade, that the generator waits for; None at the end.
        end: rows, or the reason for none; None while the seed goes on.
    """

    seed: Seed
    models: dict[str, SynthesisModel]
    making: Making
    replay: list[Round] = field(default_factory=list[Round])
    rounds: list[Round] = field(default_factory=list[Round])
    notes: list[Note] = field(default_factory=list[Note])
    move: Asks | Grade | None = None
    end: End | None = None

    def go_on(self, answer: Any) -> None:
        """Send the answer to the last move, and take the next one."""
        try:
            move = self.making.send(answer)
            while isinstance(move, Note):
                self.notes.append(move)
                move = self.making.send(None)
            self.move = move
        except StopIteration as finished:
            self.move = None
            self.end = finished.value
        except Discarded as discarded:
            self.move = None
            self.end = discarded


@dataclass(slots=True)
class Planted:
    """Outcomes of finished rows that were spoiled on purpose.

    Attributes:
        dropped: number of rows by the reason of the check that dropped them.
        kept: seeds whose spoiled row passed every check.
    """

    dropped: Counter[str] = field(default_factory=Counter[str])
    kept: list[Row] = field(default_factory=list[Row])

    @property
    def total(self) -> int:
        return self.dropped.total() + len(self.kept)


@dataclass(slots=True)
class Synthesis:
    """Rows and counts of all seeds.

    Attributes:
        rows, pairs, tasks: finished rows, in the order of the seeds.
        kept, dropped: number of seeds; `dropped` by reason.
        by_source: number of seeds of each source, and of those kept.
        examples: a few seeds of each outcome, with their rows or the detail of their drop.
        models: role → name of a model → number of seeds that asked it, and of those kept.
        requests, tokens: completions, and tokens that models wrote, by role.
        used: input and output tokens of each model, by its name.
        figures: values that the kind noted, by name and value.
        kept_seeds: seeds that gave rows, for the comparison of both.
        planted: bad rows that were put among the good ones.
    """

    rows: list[Row] = field(default_factory=list[Row])
    pairs: list[Row] = field(default_factory=list[Row])
    tasks: list[Row] = field(default_factory=list[Row])
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    by_source: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    examples: list[Row] = field(default_factory=list[Row])
    models: dict[str, dict[str, list[int]]] = field(default_factory=dict[str, dict[str, list[int]]])
    requests: Counter[str] = field(default_factory=Counter[str])
    tokens: Counter[str] = field(default_factory=Counter[str])
    used: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    figures: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    kept_seeds: list[Seed] = field(default_factory=list[Seed])
    planted: Planted = field(default_factory=Planted)


def models_of(recipe: SynthesizeConfig, seed: Seed) -> dict[str, SynthesisModel]:
    """Choose the model of each role for a seed, by a keyed hash of its id, with equal chances."""
    chosen: dict[str, SynthesisModel] = {}
    for role, models in recipe.models.items():
        index = key64(recipe.seed, "synthesis_model", role, seed.id) % len(models)
        chosen[role] = models[index]
    return chosen


def synthesize(
    recipe: SynthesizeConfig,
    kind: SynthesisKind,
    seeds: Sequence[Seed],
    *,
    work: Path,
    console: Console,
) -> Synthesis:
    """Put every seed through its rounds, then spoiled rows through the same checks.

    Args:
        work: folder of this run, with the answers that came before it was killed.

    Raises:
        DataError: see `generate`: too many completions failed, or a server is gone.
        ConfigError: answers in `work` were given by another model or to other prompts.
    """
    assert len({seed.id for seed in seeds}) == len(seeds), "ids of seeds differ"
    works = [Work(seed, models_of(recipe, seed), kind.make(seed)) for seed in seeds]
    _run_rounds(recipe, kind, works, work, console)
    result = Synthesis()
    for seed_work in works:
        _add_seed(result, recipe, seed_work)
    result.planted = _plant_bad_rows(recipe, kind, works, work / "planted", console)
    return result


def _run_rounds(
    recipe: SynthesizeConfig,
    kind: SynthesisKind,
    works: Sequence[Work],
    folder: Path,
    console: Console,
) -> None:
    """Go on with all seeds, a round of requests at a time, until all have come to their end."""
    grading = Grading()
    # a round has at least one completion: a kind that takes more rounds would ask for ever
    max_rounds = max((sum(kind.max_completions(work.seed).values()) for work in works), default=0)
    for work in works:
        work.go_on(None)
    for number in range(max_rounds + 1):
        while to_grade := [work for work in works if isinstance(work.move, Grade)]:
            grading.answer(to_grade)
        _replay_rounds(kind, works)
        asking = [work for work in works if isinstance(work.move, Asks)]
        if not asking and not any(work.move for work in works):
            return
        if asking:
            kept = sum(isinstance(work.end, Keep) for work in works)
            dropped = len(works) - len(asking) - kept
            console.print(
                f"round {number + 1}: {len(asking):,} of {len(works):,} seeds ask; {kept:,} kept, "
                f"{dropped:,} dropped so far"
            )
            _answer_round(recipe, kind, asking, folder / f"round-{number:03}", console)
    raise AssertionError(f"a kind that asks for more than the {max_rounds} rounds of its plan")


class Grading:
    """Graders of completions by the names that prompts carry; one call a grader."""

    def __init__(self) -> None:
        self._graders: dict[str, Grader] = all_graders()

    def answer(self, works: Sequence[Work]) -> None:
        """Grade the attempts that seeds wait for, and go on with these seeds."""
        attempts: list[Attempt] = []
        for work in works:
            assert isinstance(work.move, Grade)
            attempts += work.move.attempts
        scores = iter(self._grade(attempts))
        for work in works:
            assert isinstance(work.move, Grade)
            work.go_on([next(scores) for _ in work.move.attempts])

    def _grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """Scores of attempts, in their order."""
        positions_by_grader: dict[str, list[int]] = {}
        for position, attempt in enumerate(attempts):
            positions_by_grader.setdefault(str(attempt.prompt.grader), []).append(position)
        scores: dict[int, Score] = {}
        for name, positions in sorted(positions_by_grader.items()):
            grades = self._graders[name].grade([attempts[position] for position in positions])
            scores |= dict(zip(positions, grades, strict=True))
        return [scores[position] for position in range(len(attempts))]


def _replay_rounds(kind: SynthesisKind, works: Sequence[Work]) -> None:
    """Answer planted seeds from `Work.replay`, as long as they ask and it has a round."""
    for work in works:
        while work.replay and isinstance(work.move, Asks):
            answers = tuple(map(kind.with_languages, work.replay.pop(0)))
            work.rounds.append(answers)
            work.go_on(answers)


def _answer_round(
    recipe: SynthesizeConfig,
    kind: SynthesisKind,
    works: Sequence[Work],
    folder: Path,
    console: Console,
) -> None:
    """Send one round of requests, to one model after the other, and go on with all seeds."""
    asks_of_model: dict[tuple[str, str], list[Ask]] = {}
    models: dict[tuple[str, str], SynthesisModel] = {}
    for work in works:
        assert isinstance(work.move, Asks)
        for ask in work.move.asks:
            model = model_of(recipe, work.models, ask)
            key = (ask.role, model.name)
            models[key] = model
            asks_of_model.setdefault(key, []).append(as_sent(ask, model))
    answers: dict[tuple[str, str, str], list[Completion]] = {}
    for key in sorted(asks_of_model):
        role, name = key
        asks = asks_of_model[key]
        console.print(f"{role} {name}: {sum(ask.count for ask in asks):,} completions")
        sampling = _sample_model(
            recipe, models[key], kind, asks, folder / f"{role}-{name}", console
        )
        for completion in asyncio.run(sampling):
            answers.setdefault((role, name, completion.prompt_id), []).append(completion)
    for work in works:
        assert isinstance(work.move, Asks)
        answered: list[Answered] = []
        for ask in work.move.asks:
            name = model_of(recipe, work.models, ask).name
            completions = answers[ask.role, name, ask.prompt.id]
            answered.append(kind.with_languages(Answered(ask, tuple(completions), name)))
        work.rounds.append(tuple(answered))
        work.go_on(tuple(answered))


def model_of(
    recipe: SynthesizeConfig, seed_models: Mapping[str, SynthesisModel], ask: Ask
) -> SynthesisModel:
    """Model that a request names, else the seed's model for its role."""
    if ask.model is None:
        return seed_models[ask.role]
    return next(model for model in recipe.models[ask.role] if model.name == ask.model)


def as_sent(ask: Ask, model: SynthesisModel) -> Ask:
    """Request in the form that a model takes: with or without reasoning, and a schema."""
    thinking = ask.prompt.thinking and model.thinking
    schema = ask.prompt.schema if model.structured_output else None
    return replace(ask, prompt=replace(ask.prompt, thinking=thinking, schema=schema))


async def _sample_model(
    recipe: SynthesizeConfig,
    model: SynthesisModel,
    kind: SynthesisKind,
    asks: Sequence[Ask],
    folder: Path,
    console: Console,
) -> list[Completion]:
    """Sample one model's completions of a round, in the order of its requests."""
    tasks = [Task(ask.prompt, index, recipe.seed) for ask in asks for index in range(ask.count)]
    lines = prompt_lines([ask.prompt for ask in asks])
    answers = folder / "samples.jsonl"
    limits = model.sampling.limits()
    async with opened_sampler(model.backend, checkpoint=model.checkpoint) as sampler:
        # answers of another model or to other prompts are refused
        bind(folder, {"prompts": digest_of(lines), "sampler": dict(sampler.identity)})
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
                    chunk=CHUNK,
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


# -- planted bad rows ------------------------------------------------------------------------------


def _plant_bad_rows(
    recipe: SynthesizeConfig,
    kind: SynthesisKind,
    works: Sequence[Work],
    folder: Path,
    console: Console,
) -> Planted:
    """Spoil one answer of some finished rows, and count those that the checks drop."""
    ends: dict[str, Keep] = {}
    for work in works:
        if isinstance(work.end, Keep):
            ends[work.seed.id] = work.end
    kept_works = [work for work in works if work.seed.id in ends]
    # those with a pair first, whose rejected answer is known to be a bad one
    kept_works.sort(
        key=lambda work: (not ends[work.seed.id].pairs, key64(recipe.seed, "planted", work.seed.id))
    )
    planted_works: list[Work] = []
    for work in kept_works:
        if len(planted_works) == recipe.checks.planted:
            break
        rounds = kind.spoil(work.seed, work.rounds, ends[work.seed.id])
        if rounds is not None:
            making = kind.make(work.seed)
            planted_works.append(Work(work.seed, work.models, making, replay=rounds))
    planted = Planted()
    if not planted_works:
        return planted
    console.print(f"{len(planted_works):,} rows are spoiled, and have to be dropped")
    _run_rounds(recipe, kind, planted_works, folder, console)
    for work in planted_works:
        if isinstance(work.end, Discarded):
            planted.dropped[work.end.reason] += 1
        else:
            planted.kept.append(_example_row(work, outcome="planted, and kept"))
    return planted


# -- counts ----------------------------------------------------------------------------------------


def _add_seed(result: Synthesis, recipe: SynthesizeConfig, work: Work) -> None:
    """Count one seed and take over its rows."""
    end = work.end
    assert end is not None, "every seed comes to its end"
    models_by_role: dict[str, set[str]] = {}
    for answered in itertools.chain.from_iterable(work.rounds):
        role = answered.ask.role
        models_by_role.setdefault(role, set()).add(answered.model)
        result.requests[role] += len(answered.completions)
        for completion in answered.completions:
            result.tokens[role] += completion.reasoning_tokens + completion.answer_tokens
            result.used.setdefault(answered.model, Counter()).update(tokens_of(completion))
    for role, names in sorted(models_by_role.items()):
        for name in sorted(names):
            counts = result.models.setdefault(role, {}).setdefault(name, [0, 0])
            counts[0] += 1
            counts[1] += isinstance(end, Keep)
    for note in work.notes:
        result.figures.setdefault(note.name, Counter())[note.value] += 1
    counts = result.by_source.setdefault(work.seed.example.source, [0, 0])
    counts[0] += 1
    counts[1] += isinstance(end, Keep)
    outcome = "kept" if isinstance(end, Keep) else end.reason
    n_examples = sum(row["outcome"] == outcome for row in result.examples)
    if n_examples < EXAMPLES:
        result.examples.append(_example_row(work, outcome))
    if isinstance(end, Discarded):
        result.dropped[end.reason] += 1
        return
    result.kept += 1
    result.kept_seeds.append(work.seed)
    models: dict[str, str | list[str]] = {}
    for role, names in sorted(models_by_role.items()):
        # a role that one model plays, as in almost every row, has its name alone
        models[role] = sorted(names) if len(names) > 1 else next(iter(names))
    origin = {
        "kind": recipe.make.kind,
        "seed": work.seed.id,
        "models": models,
        "checks": list(end.checks),
    }
    result.rows += _with_origin(end.rows, origin)
    result.pairs += _with_origin(end.pairs, origin)
    result.tasks += _with_origin(end.tasks, origin)


def _with_origin(rows: Sequence[Row], origin: Mapping[str, Any]) -> list[Row]:
    """Rows with an id and their origin: kind, seed, models and checks."""
    finished_rows: list[Row] = []
    for number, row in enumerate(rows):
        metadata = {**row.get("metadata", {}), "synthesis": dict(origin)}
        finished_rows.append({"id": f"{origin['seed']}/{number}", **row, "metadata": metadata})
    return finished_rows


def _example_row(work: Work, outcome: str) -> Row:
    """Row for a person to read: the seed, its outcome, and its first row or the reason for none."""
    messages = [chat_message(message) for message in work.seed.example.messages]
    row: Row = {"outcome": outcome, "seed": work.seed.id, "messages": messages}
    if isinstance(work.end, Discarded):
        return {**row, "detail": work.end.detail}
    assert work.end is not None
    first_rows = [*work.end.rows, *work.end.pairs, *work.end.tasks][:1]
    return {**row, "rows": first_rows}
