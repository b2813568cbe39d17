"""Units, graded records, files and lock of an evaluation run.

A record holds all that is needed to grade, measure and read it again, without a model. A unit's
records are written all at once; samples that are not graded yet are in out/work/. Journals hold
the answers to requests of inspect's tasks and of a judge. A run that is resumed must have the same
lock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

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
    without_new_defaults,
)
from posttrain.versions import VERSIONED

KIND = "evaluation"
LOCK = "lock.json"
RECORDS = "records"
WORK = "work"
TIMES = "times"
JOURNALS = "journals"
LABELS = "judge.jsonl"
METRICS = "metrics.json"
EXAMPLES = "examples.jsonl"
INSPECT_LOGS = "inspect"
PACKAGES = (*VERSIONED, "math-verify", "scipy", "vllm", "if-verifiable", "inspect-evals")
INSPECT = "inspect"  # in place of a grader: inspect runs the task and scores it
Lock = dict[str, Any]
Attempts = Sequence[tuple[Prompt, Completion]]
# name of a grader and attempts → a score of each attempt, in order
Grade = Callable[[str, Attempts], Sequence[Score]]


@dataclass(frozen=True, slots=True)
class Unit:
    """Prompts of a task in a setting, the same for all checkpoints; its records are one file.

    Attributes:
        samples: number of completions of each prompt.
    """

    task: str
    setting: str
    prompts: tuple[Prompt, ...]
    samples: int

    @property
    def name(self) -> str:
        """Name of the unit, in files and messages."""
        return f"{self.task}.{self.setting}"

    @property
    def size(self) -> int:
        """Number of completions of a checkpoint."""
        return len(self.prompts) * self.samples


def unit_name(prompt: Prompt) -> str:
    """Name of the unit that a prompt belongs to."""
    return f"{prompt.source}.{prompt.setting}"


def units_of(prompts: Sequence[Prompt], samples_of: Callable[[str], int]) -> list[Unit]:
    """Group prompts into units, in their order; `samples_of` gives a setting's samples a prompt."""
    prompts_by_unit: dict[tuple[str, str], list[Prompt]] = {}
    for prompt in prompts:
        prompts_by_unit.setdefault((prompt.source, prompt.setting), []).append(prompt)
    units: list[Unit] = []
    for (task, setting), unit_prompts in prompts_by_unit.items():
        units.append(Unit(task, setting, tuple(unit_prompts), samples_of(setting)))
    return units


@dataclass(frozen=True, slots=True)
class Record:
    """Graded completion of a prompt by a checkpoint.

    Attributes:
        verdict: tool calls that were detected in the completion.
    """

    checkpoint: str
    prompt: Prompt
    completion: Completion
    score: Score
    verdict: CallDetection

    @property
    def failed(self) -> bool:
        """True if the backend gave up, so that there is nothing to measure."""
        return self.completion.finish == "failed"

    @property
    def unscored(self) -> bool:
        """True if a score is missing because the backend, the grader or the judge failed.

        The checkpoint is not at fault then. A prompt without a grader needs no score.
        """
        return self.score.value is None and self.prompt.grader is not None


def by_unit(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Group records by the name of their unit."""
    units: dict[str, list[Record]] = {}
    for record in records:
        units.setdefault(unit_name(record.prompt), []).append(record)
    return units


def grade_completions(checkpoint: str, attempts: Attempts, grade: Grade) -> list[Record]:
    """Score each attempt by the grader that its prompt names, and make records of them, in order.

    Scores are those of `counted_score`; a failed completion, or a prompt without a grader, has
    none.
    """
    scores: dict[int, Score] = {}
    indices_by_grader: dict[str, list[int]] = {}
    for index, (prompt, completion) in enumerate(attempts):
        if completion.finish == "failed":
            scores[index] = Score(None, None, f"failed: {completion.error}", "service")
        elif prompt.grader is None:
            scores[index] = Score(None, None, "no grader")
        else:
            indices_by_grader.setdefault(prompt.grader, []).append(index)
    for name, indices in indices_by_grader.items():
        grader_scores = grade(name, [attempts[index] for index in indices])
        counts = f"{len(grader_scores)} for {len(indices)}"
        assert len(grader_scores) == len(indices), f"grader {name}: {counts}"
        scores |= dict(zip(indices, grader_scores, strict=True))
    records: list[Record] = []
    for index, (prompt, completion) in enumerate(attempts):
        records.append(record_of(checkpoint, prompt, completion, scores[index]))
    return records


def record_of(checkpoint: str, prompt: Prompt, completion: Completion, score: Score) -> Record:
    """Make a record: the detected tool calls, and a missing answer counted as wrong.

    See `counted_score`.
    """
    failed = completion.finish == "failed"
    detection = CallDetection(()) if failed else detect_in_completion(completion, prompt)
    score = counted_score(prompt, completion, score)
    return Record(checkpoint, prompt, completion, score, detection)


def counted_score(prompt: Prompt, completion: Completion, score: Score) -> Score:
    """Count a missing or unreadable answer as wrong, else silence would raise the accuracy.

    A score stays missing if the backend, the grader or the judge failed.
    """
    our_failure = completion.finish == "failed" or score.failure is not None
    # inspect's own scorers decide what a missing answer is worth
    if score.value is not None or our_failure or prompt.grader in (None, INSPECT):
        return score
    reason = score.explanation.removeprefix("unscored: ")
    return replace(score, value=0.0, explanation=f"wrong: {reason}")


def record_to_row(record: Record) -> dict[str, Any]:
    """Convert a record to a JSON-able row."""
    return {
        "checkpoint": record.checkpoint,
        "prompt": prompt_to_row(record.prompt),
        "completion": completion_to_row(record.completion),
        "score": asdict(record.score),
        "calls": [asdict(call) for call in record.verdict.calls],
    }


def record_from_row(row: Mapping[str, Any]) -> Record:
    """Inverse of `record_to_row`; a missing answer counts as wrong in records of older runs too."""
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
    """Read the records of a file.

    Raises:
        DataError: there is no such file, or a line is no record.
    """
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
    """Path of the records of a unit and checkpoint."""
    return out / RECORDS / checkpoint / f"{unit}.jsonl"


def journal_path(out: Path, checkpoint: str, unit: str, role: str = "") -> Path:
    """Path of the journal of a task of inspect: answers of the checkpoint, or of another role."""
    suffix = f".{role}" if role else ""
    return out / JOURNALS / checkpoint / f"{unit}{suffix}.jsonl"


def times_path(out: Path, checkpoint: str, unit: str) -> Path:
    """Path of the file of a unit's call times, which a `TimedSampler` appends to."""
    return out / TIMES / checkpoint / f"{unit}.jsonl"


def read_run(out: Path) -> tuple[Manifest, dict[str, list[Record]]]:
    """Read a finished run: its manifest, and its records by checkpoint in the recipe's order.

    Raises:
        DataError: no finished evaluation, or files that changed.
    """
    manifest = read_artifact(out, kind=KIND)
    return manifest, records_of(out, manifest.stats["checkpoints"], manifest.stats["units"])


def records_of(
    out: Path, checkpoints: Iterable[str], units: Sequence[str]
) -> dict[str, list[Record]]:
    """Read the records of each checkpoint, unit by unit."""
    records: dict[str, list[Record]] = {name: [] for name in checkpoints}
    for name, checkpoint_records in records.items():
        for unit in units:
            checkpoint_records += read_records(record_path(out, name, unit))
    return records


# -- the lock --------------------------------------------------------------------------------------


def bind_lock(
    out: Path, lock: Lock, *, recipe: BaseModel | None = None, finished: bool = False
) -> None:
    """Write the lock of a new run, or check that a run which is resumed has the same.

    Args:
        recipe: what the lock was made from, as for `Run.open`.
        finished: the run is complete, so that versions of packages may differ.

    Raises:
        ConfigError: the locks differ; the message names the keys.
    """
    lock = json.loads(json.dumps(lock))  # as it reads from the file: tuples are lists
    if not (out / LOCK).is_file():
        atomic_write_json(out / LOCK, lock)
        return
    ignored = {"weights", "versions"} if finished else {"weights"}
    bound = {key: value for key, value in read_lock(out).items() if key not in ignored}
    current = {key: lock.get(key) for key in bound}
    refuse_other(out, bound, without_new_defaults(current, bound, recipe))


def bind_weights(out: Path, checkpoint: str, identity: Mapping[str, Any]) -> None:
    """Add a checkpoint's identity to the lock. Raises ConfigError if the lock has another one."""
    lock = read_lock(out)
    current_identity = json.loads(json.dumps(dict(identity)))
    locked_identity = lock["weights"].setdefault(checkpoint, current_identity)
    refuse_other(out, {checkpoint: locked_identity}, {checkpoint: current_identity})
    atomic_write_json(out / LOCK, lock)


def read_lock(out: Path) -> Lock:
    """Read the lock of a run. Raises DataError if it cannot be read."""
    try:
        return json.loads((out / LOCK).read_text("utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"{out / LOCK} cannot be read: {error}") from error
