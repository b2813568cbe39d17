"""One graded completion: what was asked, what came, what it scored and which calls it holds.

    {"checkpoint": "dpo", "prompt": {"id": "maths-7/no_tools/on", …}, "completion": {…},
     "score": {"value": 1.0, "answer": "56", "explanation": "equal to the gold 56"},
     "calls": [], "tokens": {"prompt": 31, "reasoning": 12, "answer": 3, "sampled": 17}}

A row holds all that is needed to grade, measure and read it again, without a model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from posttrain.artifacts import atomic_write_text
from posttrain.chat.detect import FoundCall, Verdict, detect_in_completion
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
from posttrain.sampling.generate import row_line

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """One completion of one prompt by one checkpoint, graded."""

    checkpoint: str
    prompt: Prompt
    completion: Completion
    score: Score
    verdict: Verdict

    @property
    def failed(self) -> bool:
        """Whether the backend gave up, so that nothing can be said of the model."""
        return self.completion.finish == "failed"


def make_record(checkpoint: str, prompt: Prompt, completion: Completion, score: Score) -> Record:
    """The record of a completion; the detector reads it here."""
    verdict = (
        Verdict(()) if completion.finish == "failed" else detect_in_completion(completion, prompt)
    )
    return Record(checkpoint, prompt, completion, score, verdict)


def record_to_row(record: Record) -> Row:
    """The record as one JSON-able row."""
    return {
        "checkpoint": record.checkpoint,
        "prompt": prompt_to_row(record.prompt),
        "completion": completion_to_row(record.completion),
        "score": asdict(record.score),
        "calls": [asdict(call) for call in record.verdict.calls],
        "tokens": token_counts(record.completion),
    }


def record_from_row(row: Mapping[str, Any]) -> Record:
    """Inverse of `record_to_row`."""
    return Record(
        checkpoint=row["checkpoint"],
        prompt=prompt_from_row(row["prompt"]),
        completion=completion_from_row(row["completion"]),
        score=Score(**row["score"]),
        verdict=Verdict(tuple(FoundCall(**call) for call in row["calls"])),
    )


def token_counts(completion: Completion) -> Row:
    """Tokens of the first prompt, of reasoning and answer, and all that the model wrote.

    `sampled` counts tags and stop tokens too, and not what was forced; it is None where a server
    hides its token ids.
    """
    known = all(step.ids is not None for step in completion.steps)
    return {
        "prompt": completion.steps[0].prompt_tokens if completion.steps else 0,
        "reasoning": completion.reasoning_tokens,
        "answer": completion.answer_tokens,
        "sampled": sum(completion.sampled()[1]) if known else None,
    }


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
    found: list[Record] = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                found.append(record_from_row(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}:{number} is no record ({error!r})") from error
    return found


def attempts_of(records: Sequence[Record]) -> list[tuple[Prompt, Completion]]:
    """What a grader is given."""
    return [(record.prompt, record.completion) for record in records]
