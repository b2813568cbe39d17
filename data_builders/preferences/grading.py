"""Samples → graded prompts: every completion scored and read for tool calls.

    for asked in grade_samples(Path("runs/tiny/samples"), graders, work=…):
        asked.prompt, asked.completions, asked.rows   # one prompt with all its samples

Scores are written batch by batch, so that an interrupted stage grades nothing twice.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.artifacts import atomic_write_text
from posttrain.chat.detect import Verdict, detect_in_completion
from posttrain.errors import ConfigError, DataError
from posttrain.records import Score, json_text
from posttrain.rollouts import Completion, Prompt, completion_from_row, prompt_from_row
from reward.grader import Attempt, Grader

BATCH = 64  # prompts graded in one call


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt of a sampling artifact, with its completions and their scores, in order."""

    number: int
    prompt: Prompt
    completions: tuple[Completion, ...]
    scores: tuple[Score, ...]
    verdicts: tuple[Verdict, ...]


def grade_samples(
    samples: Path, graders: Mapping[str, Grader], *, work: Path, first: int = 0
) -> Iterator[Asked]:
    """Every prompt of a `samples` artifact, graded.

    Args:
        samples: the artifact.
        graders: by the name a prompt gives; a prompt without a name stays unscored.
        work: where scores are kept from one run to the next.
        first: number of the first prompt.

    Raises:
        ConfigError: a prompt names a grader that is not there.
        DataError: completions that belong to no prompt, or not in order.
    """
    groups = enumerate(read_groups(samples), first)
    for batch_number in itertools.count():
        batch = list(itertools.islice(groups, BATCH))
        if not batch:
            return
        file = work / f"scores-{batch_number:06d}.jsonl"
        if not file.is_file():
            scored = _grade([group for _, group in batch], graders)
            atomic_write_text(file, "".join(f"{json_text(row)}\n" for row in scored))
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        scores = iter([Score(row["value"], row["answer"], row["explanation"]) for row in rows])
        for number, (prompt, completions) in batch:
            yield Asked(
                number,
                prompt,
                completions,
                tuple(next(scores) for _ in completions),
                tuple(detect_in_completion(c, prompt) for c in completions),
            )


def read_groups(samples: Path) -> Iterator[tuple[Prompt, tuple[Completion, ...]]]:
    """Prompts with all their completions, as they lie in a `samples` artifact."""
    with (
        (samples / "prompts.jsonl").open(encoding="utf-8") as prompts,
        (samples / "samples.jsonl").open(encoding="utf-8") as rows,
    ):
        completions = (completion_from_row(json.loads(row)) for row in rows)
        groups = itertools.groupby(completions, key=lambda c: c.prompt_id)
        for line in prompts:
            prompt = prompt_from_row(json.loads(line))
            key, group = next(groups, (None, iter(())))
            if key != prompt.id:
                raise DataError(
                    f"{samples / 'samples.jsonl'}: completions of {prompt.id!r} were expected, "
                    f"found {key!r}"
                )
            yield prompt, tuple(group)
        if next(groups, None) is not None:
            raise DataError(f"{samples / 'samples.jsonl'} holds completions of no prompt")


def _grade(
    groups: Sequence[tuple[Prompt, tuple[Completion, ...]]], graders: Mapping[str, Grader]
) -> list[dict[str, Any]]:
    """Scores in order; one call a grader for the whole batch."""
    attempts = [Attempt(p, completion) for p, completions in groups for completion in completions]
    scores: list[Score] = [Score(None, None, "the prompt names no grader")] * len(attempts)
    named = [(k, a.prompt.grader) for k, a in enumerate(attempts) if a.prompt.grader is not None]
    for name in sorted({name for _, name in named}):
        if name not in graders:
            raise ConfigError(
                f"a prompt is to be graded by {name!r}; there are {', '.join(sorted(graders))}"
            )
        places = [k for k, grader in named if grader == name]
        for k, score in zip(
            places, graders[name].grade([attempts[k] for k in places]), strict=True
        ):
            scores[k] = score
    return [
        {"value": s.value, "answer": s.answer, "explanation": s.explanation} for s in scores
    ]  # fmt: skip
