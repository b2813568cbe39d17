"""Grade completions: a score from the prompt's grader, and the calls that the detector finds.

    records = grade_completions("dpo", [(prompt, completion), …], grade)
    record_to_row(records[0])
    → {"checkpoint": "dpo", "prompt": {"id": "maths-7/no_tools/on", …}, "completion": {…},
       "score": {"value": 1.0, "answer": "56", "explanation": "equal to the gold 56"},
       "calls": []}

A row holds all that is needed to grade, measure and read it again, without a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from posttrain.chat.detect import CallDetection, FoundCall, detect_in_completion
from posttrain.errors import DataError
from posttrain.records import Score
from posttrain.rollouts import (
    Completion,
    Prompt,
    completion_from_row,
    completion_to_row,
    prompt_from_row,
    prompt_to_row,
)
from posttrain.runs import atomic_write_text
from posttrain.sampling.generate import row_line

Row = dict[str, Any]
Attempts = Sequence[tuple[Prompt, Completion]]
Grade = Callable[[str, Attempts], Sequence[Score]]
"""A grader's name and attempts → one score each, in order."""
INSPECT = "inspect"  # in place of a grader: inspect runs the task and scores it


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
    by_unit: dict[tuple[str, str], list[Prompt]] = {}
    for prompt in prompts:
        by_unit.setdefault((prompt.source, prompt.setting), []).append(prompt)
    return [
        Unit(task, setting, tuple(own), samples_of(setting))
        for (task, setting), own in by_unit.items()
    ]


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


def by_unit(records: Sequence[Record]) -> dict[str, list[Record]]:
    units: dict[str, list[Record]] = {}
    for record in records:
        units.setdefault(unit_name(record.prompt), []).append(record)
    return units


def grade_completions(checkpoint: str, attempts: Attempts, grade: Grade) -> list[Record]:
    """A record an attempt, each scored by the grader that its prompt names.

    Attempts without a grader, and failed ones, are unscored.
    """
    scores: dict[int, Score] = {}
    by_grader: dict[str, list[int]] = {}
    for i, (prompt, completion) in enumerate(attempts):
        if completion.finish == "failed":
            scores[i] = Score(None, None, f"failed: {completion.error}")
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
    return Record(checkpoint, prompt, completion, score, calls)


def changed_grades(before: Sequence[Record], after: Sequence[Record]) -> tuple[int, int]:
    """The number of scores and of verdicts that are not what they were."""
    pairs = list(zip(before, after, strict=True))
    scores = sum(a.score.value != b.score.value for a, b in pairs)
    return scores, sum(a.verdict.calls != b.verdict.calls for a, b in pairs)


def record_to_row(record: Record) -> Row:
    return {
        "checkpoint": record.checkpoint,
        "prompt": prompt_to_row(record.prompt),
        "completion": completion_to_row(record.completion),
        "score": asdict(record.score),
        "calls": [asdict(call) for call in record.verdict.calls],
    }


def record_from_row(row: Mapping[str, Any]) -> Record:
    """Inverse of `record_to_row`."""
    return Record(
        checkpoint=row["checkpoint"],
        prompt=prompt_from_row(row["prompt"]),
        completion=completion_from_row(row["completion"]),
        score=Score(**row["score"]),
        verdict=CallDetection(tuple(FoundCall(**call) for call in row["calls"])),
    )


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records as JSONL, all of them or none."""
    atomic_write_text(path, "".join(row_line(record_to_row(record)) for record in records))


def read_records(path: Path) -> list[Record]:
    """The records of a file.

    Raises:
        DataError: no such file, or a line that is no record.
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
