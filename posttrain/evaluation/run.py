"""One evaluation: its units, their graded records, its files, and the lock on what these depend on.

A record holds all that is needed to grade, measure and read it again, without a model. A unit's
records appear whole; samples that are not graded yet are in out/work/. Journals hold the answers
that tasks of inspect and a judge were given. A run that is resumed must have the same lock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.chat.detect import CallDetection, FoundCall, detect_in_completion
from posttrain.errors import DataError
from posttrain.jsontext import row_line
from posttrain.records import Score
from posttrain.rollouts import (
    Completion,
    Prompt,
    completion_from_row,
    completion_to_row,
    prompt_from_row,
    prompt_to_row,
)
from posttrain.runs import (
    Manifest,
    atomic_write_json,
    atomic_write_text,
    read_artifact,
    refuse_other,
)
from posttrain.versions import VERSIONED

KIND = "evaluation"
LOCK = "lock.json"
RECORDS = "records"
WORK = "work"
JOURNALS = "journals"
LABELS = "judge.jsonl"
METRICS = "metrics.json"
EXAMPLES = "examples.jsonl"
INSPECT_LOGS = "inspect"
PACKAGES = (*VERSIONED, "math-verify", "scipy", "vllm", "if-verifiable", "inspect-evals")
INSPECT = "inspect"  # in place of a grader: inspect runs the task and scores it
Lock = dict[str, Any]
Attempts = Sequence[tuple[Prompt, Completion]]
Grade = Callable[[str, Attempts], Sequence[Score]]
"""A grader's name and attempts → one score each, in order."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The prompts of one task in one setting, the same for every checkpoint: a file of records."""

    task: str
    setting: str
    prompts: tuple[Prompt, ...]
    samples: int

    @property
    def name(self) -> str:
        return f"{self.task}.{self.setting}"

    @property
    def size(self) -> int:
        return len(self.prompts) * self.samples


def unit_name(prompt: Prompt) -> str:
    return f"{prompt.source}.{prompt.setting}"


def units_of(prompts: Sequence[Prompt], samples_of: Callable[[str], int]) -> list[Unit]:
    """The units in the order of their prompts; `samples_of` is by setting."""
    units: dict[tuple[str, str], list[Prompt]] = {}
    for prompt in prompts:
        units.setdefault((prompt.source, prompt.setting), []).append(prompt)
    return [Unit(*place, tuple(own), samples_of(place[1])) for place, own in units.items()]


@dataclass(frozen=True, slots=True)
class Record:
    """One completion of one prompt by one checkpoint, graded."""

    checkpoint: str
    prompt: Prompt
    completion: Completion
    score: Score
    verdict: CallDetection

    @property
    def failed(self) -> bool:
        """Whether the backend gave up, so that there is nothing to measure."""
        return self.completion.finish == "failed"

    @property
    def unscored(self) -> bool:
        """Whether our side, and not the checkpoint, is why there is no score: the backend, the
        grader or the judge failed. A prompt without a grader wants no score."""
        return self.score.value is None and self.prompt.grader is not None


def by_unit(records: Sequence[Record]) -> dict[str, list[Record]]:
    units: dict[str, list[Record]] = {}
    for record in records:
        units.setdefault(unit_name(record.prompt), []).append(record)
    return units


def grade_completions(checkpoint: str, attempts: Attempts, grade: Grade) -> list[Record]:
    """A record an attempt, each scored by the grader that its prompt names, as `counted_score`
    says; without one, or failed, there is no score."""
    scores: dict[int, Score] = {}
    by_grader: dict[str, list[int]] = {}
    for i, (prompt, completion) in enumerate(attempts):
        if completion.finish == "failed":
            scores[i] = Score(None, None, f"failed: {completion.error}", "service")
        elif prompt.grader is None:
            scores[i] = Score(None, None, "no grader")
        else:
            by_grader.setdefault(prompt.grader, []).append(i)
    for name, places in by_grader.items():
        graded = grade(name, [attempts[i] for i in places])
        assert len(graded) == len(places), f"grader {name}: {len(graded)} for {len(places)}"
        scores |= dict(zip(places, graded, strict=True))
    return [record_of(checkpoint, *attempt, scores[i]) for i, attempt in enumerate(attempts)]


def record_of(checkpoint: str, prompt: Prompt, completion: Completion, score: Score) -> Record:
    """A scored completion with the calls that the detector finds in it."""
    failed = completion.finish == "failed"
    calls = CallDetection(()) if failed else detect_in_completion(completion, prompt)
    return Record(checkpoint, prompt, completion, counted_score(prompt, completion, score), calls)


def counted_score(prompt: Prompt, completion: Completion, score: Score) -> Score:
    """The score as an evaluation counts it: no answer, or none that can be read, is wrong, else
    silence would raise the accuracy. What our side failed at stays unscored."""
    ours = completion.finish == "failed" or score.failure is not None
    # inspect's own scorers say themselves what an answer is worth
    if score.value is not None or ours or prompt.grader in (None, INSPECT):
        return score
    why = score.explanation.removeprefix("unscored: ")
    return replace(score, value=0.0, explanation=f"wrong: {why}")


def record_to_row(record: Record) -> dict[str, Any]:
    return {
        "checkpoint": record.checkpoint,
        "prompt": prompt_to_row(record.prompt),
        "completion": completion_to_row(record.completion),
        "score": asdict(record.score),
        "calls": [asdict(call) for call in record.verdict.calls],
    }


def record_from_row(row: Mapping[str, Any]) -> Record:
    """Inverse of `record_to_row`. Records that counted silence as unscored count as any others."""
    prompt = prompt_from_row(row["prompt"])
    completion = completion_from_row(row["completion"])
    return Record(
        checkpoint=row["checkpoint"],
        prompt=prompt,
        completion=completion,
        score=counted_score(prompt, completion, Score(**row["score"])),
        verdict=CallDetection(tuple(FoundCall(**call) for call in row["calls"])),
    )


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records as JSONL, all of them or none."""
    atomic_write_text(path, "".join(row_line(record_to_row(record)) for record in records))


def read_records(path: Path) -> list[Record]:
    """The records of a file. Raises DataError for no such file, or a line that is no record."""
    if not path.is_file():
        raise DataError(f"there are no records at {path}")
    records: list[Record] = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                records.append(record_from_row(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}:{number} is no record ({error!r})") from error
    return records


def record_path(out: Path, checkpoint: str, unit: str) -> Path:
    return out / RECORDS / checkpoint / f"{unit}.jsonl"


def journal_path(out: Path, checkpoint: str, unit: str, role: str = "") -> Path:
    """What a task of inspect was answered, by the checkpoint or in a role."""
    return out / JOURNALS / checkpoint / f"{unit}{role and '.' + role}.jsonl"


def read_run(out: Path) -> tuple[Manifest, dict[str, list[Record]]]:
    """A finished run: its manifest, and its records by checkpoint in the recipe's order. DataError
    for any other, or files that changed."""
    manifest = read_artifact(out, kind=KIND)
    return manifest, records_of(out, manifest.stats["checkpoints"], manifest.stats["units"])


def records_of(
    out: Path, checkpoints: Iterable[str], units: Sequence[str]
) -> dict[str, list[Record]]:
    """The records of each checkpoint, unit by unit."""
    return {
        name: [r for unit in units for r in read_records(record_path(out, name, unit))]
        for name in checkpoints
    }


# -- the lock --------------------------------------------------------------------------------------


def bind_lock(out: Path, lock: Lock, *, finished: bool = False) -> None:
    """Write the lock, or check it against the one that is there: ConfigError, naming what differs.
    With a `finished` run nothing will be mixed, whatever is installed by now."""
    lock = json.loads(json.dumps(lock))
    if not (out / LOCK).is_file():
        atomic_write_json(out / LOCK, lock)
        return
    unbound = {"weights", "versions"} if finished else {"weights"}
    bound = {key: value for key, value in read_lock(out).items() if key not in unbound}
    refuse_other(out, bound, {key: lock.get(key) for key in bound})


def bind_weights(out: Path, checkpoint: str, identity: Mapping[str, Any]) -> None:
    """Add the identity of a checkpoint that was opened to the lock; ConfigError where another is
    there."""
    lock, now = read_lock(out), json.loads(json.dumps(dict(identity)))
    before = lock["weights"].setdefault(checkpoint, now)
    refuse_other(out, {checkpoint: before}, {checkpoint: now})
    atomic_write_json(out / LOCK, lock)


def read_lock(out: Path) -> Lock:
    """The lock of a run. Raises DataError where it cannot be read."""
    try:
        return json.loads((out / LOCK).read_text("utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"{out / LOCK} cannot be read: {error}") from error
