"""Seeds → rows, in rounds: the next requests of all seeds go out together.

Rounds are what makes a killed run cheap to repeat: the answers of a finished round lie in one file,
those of the round under way in a journal, and a kind decides again from them what it had decided.
"""

from __future__ import annotations

import asyncio
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
_MOST_ROUNDS = 400  # of a kind that would otherwise ask for ever
End = Keep | Discarded


@dataclass(slots=True)
class Work:
    """One seed on its way.

    Attributes:
        models: the model that plays each role, unless a request names another.
        making: the kind's generator, which waits for the answer to `move`.
        replay: rounds that are sent in the place of answers, of a planted bad row.
        rounds: rounds so far.
        notes: values to count.
        end: what came of it; None while it goes on.
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
    """What became of finished rows that were spoiled.

    Attributes:
        dropped: by the reason of the check that found them.
        kept: seeds whose spoiled row passed every check.
    """

    dropped: Counter[str] = field(default_factory=Counter[str])
    kept: list[Row] = field(default_factory=list[Row])

    @property
    def total(self) -> int:
        return self.dropped.total() + len(self.kept)


@dataclass(slots=True)
class Synthesis:
    """What came of all seeds.

    Attributes:
        rows, pairs, tasks: what is finished, in the order of the seeds.
        kept, dropped: seeds; `dropped` by reason.
        examples: seeds and what came of them, a few of each outcome.
        models: role → name of a model → seeds that it was asked for, and those kept.
        requests, tokens: completions, and tokens that models wrote, by role.
        used: tokens of each model, input and output, by its name.
        figures: values that the kind noted, by name and value.
        kept_seeds: seeds that gave rows, for the comparison of both.
        planted: bad rows that were put among the good ones.
    """

    rows: list[Row] = field(default_factory=list[Row])
    pairs: list[Row] = field(default_factory=list[Row])
    tasks: list[Row] = field(default_factory=list[Row])
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    examples: list[Row] = field(default_factory=list[Row])
    models: dict[str, dict[str, list[int]]] = field(default_factory=dict[str, dict[str, list[int]]])
    requests: Counter[str] = field(default_factory=Counter[str])
    tokens: Counter[str] = field(default_factory=Counter[str])
    used: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    figures: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    kept_seeds: list[Seed] = field(default_factory=list[Seed])
    planted: Planted = field(default_factory=Planted)


def models_of(recipe: SynthesizeConfig, seed: Seed) -> dict[str, SynthesisModel]:
    """The model that plays each role for a seed, chosen by a keyed hash of its id."""
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
    """Put every seed through its rounds, then spoiled rows through the same checks.

    Args:
        work: a folder of this run, with the answers that came before it was killed.

    Raises:
        DataError: as `generate`: too many completions failed, or a server is gone.
        ConfigError: answers in `work` were given by another model or to other prompts.
    """
    assert len({seed.id for seed in seeds}) == len(seeds), "ids of seeds differ"
    works = [Work(seed, models_of(recipe, seed), kind.make(seed)) for seed in seeds]
    _run(recipe, kind, works, work, console)
    result = Synthesis()
    for each in works:
        _add(result, recipe, each)
    result.planted = _plant(recipe, kind, works, work / "planted", console)
    return result


def _run(
    recipe: SynthesizeConfig,
    kind: SynthesisKind,
    works: Sequence[Work],
    folder: Path,
    console: Console,
) -> None:
    """Go on with all seeds, a round of requests at a time, until each has come to its end."""
    grading = Grading()
    for each in works:
        each.go_on(None)
    for number in range(_MOST_ROUNDS):
        while to_grade := [each for each in works if isinstance(each.move, Grade)]:
            grading.answer(to_grade)
        _replay(works)
        asking = [each for each in works if isinstance(each.move, Asks)]
        if not asking and not any(each.move for each in works):
            return
        if asking:
            console.print(f"round {number + 1}: {len(asking):,} of {len(works):,} seeds ask")
            _answer(recipe, kind, asking, folder / f"round-{number:03}", console)
    raise AssertionError(f"a kind that asks for more than {_MOST_ROUNDS} rounds")


class Grading:
    """Grades completions by the graders that their prompts name, one call a grader."""

    def __init__(self) -> None:
        self._graders: dict[str, Grader] = all_graders()

    def answer(self, works: Sequence[Work]) -> None:
        """Grade what seeds wait for, and go on with them."""
        attempts: list[Attempt] = []
        for each in works:
            assert isinstance(each.move, Grade)
            attempts += each.move.attempts
        scores = iter(self._scores(attempts))
        for each in works:
            assert isinstance(each.move, Grade)
            each.go_on([next(scores) for _ in each.move.attempts])

    def _scores(self, attempts: Sequence[Attempt]) -> list[Score]:
        scores: dict[int, Score] = {}
        for name in sorted({str(attempt.prompt.grader) for attempt in attempts}):
            positions = [k for k, each in enumerate(attempts) if each.prompt.grader == name]
            verdicts = self._graders[name].grade([attempts[k] for k in positions])
            scores |= dict(zip(positions, verdicts, strict=True))
        return [scores[k] for k in range(len(attempts))]


def _replay(works: Sequence[Work]) -> None:
    """Send rounds that are known to seeds that wait for them, until none is left to send."""
    for each in works:
        while each.replay and isinstance(each.move, Asks):
            answers = each.replay.pop(0)
            each.rounds.append(answers)
            each.go_on(answers)


def _answer(
    recipe: SynthesizeConfig,
    kind: SynthesisKind,
    works: Sequence[Work],
    folder: Path,
    console: Console,
) -> None:
    """Put one round of requests, from one model after the other, and go on with all seeds."""
    asks_of_model: dict[tuple[str, str], list[Ask]] = {}
    models: dict[tuple[str, str], SynthesisModel] = {}
    for each in works:
        assert isinstance(each.move, Asks)
        for ask in each.move.asks:
            model = _model_of(recipe, each, ask)
            thinking = ask.prompt.thinking and model.thinking
            key = (ask.role, model.name)
            models[key] = model
            prompt = replace(ask.prompt, thinking=thinking)
            asks_of_model.setdefault(key, []).append(replace(ask, prompt=prompt))
    answers: dict[tuple[str, str, str], list[Completion]] = {}
    for key in sorted(asks_of_model):
        role, name = key
        console.print(f"{role} {name}: {sum(a.count for a in asks_of_model[key]):,} completions")
        sampling = _sample(
            recipe, models[key], kind, asks_of_model[key], folder / f"{role}-{name}", console
        )
        for completion in asyncio.run(sampling):
            answers.setdefault((role, name, completion.prompt_id), []).append(completion)
    for each in works:
        assert isinstance(each.move, Asks)
        answered: list[Answered] = []
        for ask in each.move.asks:
            name = _model_of(recipe, each, ask).name
            completions = answers[ask.role, name, ask.prompt.id]
            answered.append(Answered(ask, tuple(completions), name))
        each.rounds.append(tuple(answered))
        each.go_on(tuple(answered))


def _model_of(recipe: SynthesizeConfig, work: Work, ask: Ask) -> SynthesisModel:
    if ask.model is None:
        return work.models[ask.role]
    return next(model for model in recipe.models[ask.role] if model.name == ask.model)


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


# -- planted bad rows ------------------------------------------------------------------------------


def _plant(
    recipe: SynthesizeConfig,
    kind: SynthesisKind,
    works: Sequence[Work],
    folder: Path,
    console: Console,
) -> Planted:
    """Spoil one answer of finished rows, and see whether the checks drop them."""
    kept = [each for each in works if isinstance(each.end, Keep)]
    kept.sort(key=lambda each: key64(recipe.seed, "planted", each.seed.id))
    planted_works: list[Work] = []
    for each in kept:
        if len(planted_works) == recipe.checks.planted:
            break
        rounds = kind.spoil(each.seed, each.rounds)
        if rounds is not None:
            making = kind.make(each.seed)
            planted_works.append(Work(each.seed, each.models, making, replay=rounds))
    planted = Planted()
    if not planted_works:
        return planted
    console.print(f"{len(planted_works):,} rows are spoiled, and have to be dropped")
    _run(recipe, kind, planted_works, folder, console)
    for each in planted_works:
        if isinstance(each.end, Discarded):
            planted.dropped[each.end.reason] += 1
        else:
            planted.kept.append(_example(each, outcome="planted, and kept"))
    return planted


# -- counts ----------------------------------------------------------------------------------------


def _add(result: Synthesis, recipe: SynthesizeConfig, work: Work) -> None:
    """Count one seed and take over its rows."""
    end = work.end
    assert end is not None, "every seed comes to its end"
    names: dict[str, set[str]] = {}
    for answers in work.rounds:
        for answered in answers:
            role = answered.ask.role
            names.setdefault(role, set()).add(answered.model)
            result.requests[role] += len(answered.completions)
            for completion in answered.completions:
                used = tokens_of(completion)
                result.tokens[role] += completion.reasoning_tokens + completion.answer_tokens
                result.used.setdefault(answered.model, Counter()).update(used)
    for role, several in sorted(names.items()):
        for name in sorted(several):
            counts = result.models.setdefault(role, {}).setdefault(name, [0, 0])
            counts[0] += 1
            counts[1] += isinstance(end, Keep)
    for note in work.notes:
        result.figures.setdefault(note.name, Counter())[note.value] += 1
    outcome = "kept" if isinstance(end, Keep) else end.reason
    shown = sum(row["outcome"] == outcome for row in result.examples)
    if shown < EXAMPLES:
        result.examples.append(_example(work, outcome))
    if isinstance(end, Discarded):
        result.dropped[end.reason] += 1
        return
    result.kept += 1
    result.kept_seeds.append(work.seed)
    played = {role: _names(several) for role, several in sorted(names.items())}
    about = {
        "kind": recipe.make.kind,
        "seed": work.seed.id,
        "models": played,
        "checks": list(end.checks),
    }
    result.rows += _with_origin(end.rows, about)
    result.pairs += _with_origin(end.pairs, about)
    result.tasks += _with_origin(end.tasks, about)


def _names(names: set[str]) -> str | list[str]:
    return sorted(names) if len(names) > 1 else next(iter(names))


def _with_origin(rows: Sequence[Row], about: Mapping[str, Any]) -> list[Row]:
    """Rows with an id and their origin: seed, models and checks."""
    finished: list[Row] = []
    for number, row in enumerate(rows):
        metadata = {**row.get("metadata", {}), "synthesis": dict(about)}
        finished.append({"id": f"{about['seed']}/{number}", **row, "metadata": metadata})
    return finished


def _example(work: Work, outcome: str) -> Row:
    shown = [chat_message(message) for message in work.seed.example.messages]
    row: Row = {"outcome": outcome, "seed": work.seed.id, "messages": shown}
    if isinstance(work.end, Discarded):
        return {**row, "detail": work.end.detail}
    assert work.end is not None
    first = [*work.end.rows, *work.end.pairs, *work.end.tasks][:1]
    return {**row, "rows": first}
