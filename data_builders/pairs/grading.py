"""Grade the completions of a `samples` artifact and detect their tool calls.

Scores are written batch by batch, so that an interrupted stage grades nothing twice.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_builders.pairs.encode import Encoded
from posttrain.chat.detect import CallDetection, detect_in_completion
from posttrain.chat.detect.markers import has_call_marker
from posttrain.errors import ConfigError, DataError
from posttrain.jsontext import jsonl_rows
from posttrain.records import Score, json_text
from posttrain.rollouts import (
    TRUNCATED,
    Completion,
    Finish,
    Prompt,
    completion_from_row,
    prompt_from_row,
)
from posttrain.runs import atomic_write_text
from reward.graders.base import Attempt, Grader, lacks_format

BATCH = 64  # prompts graded in one call
Group = tuple[Prompt, tuple[Completion, ...]]
Grades = Sequence[tuple[Completion, Score, CallDetection]]  # of one prompt's completions
_INSIGNIFICANT = re.compile(r"[\W_]+")


def grade_samples(
    samples: Path, graders: Mapping[str, Grader], *, work: Path
) -> Iterator[tuple[Prompt, Grades]]:
    """Grade a `samples` artifact: yield each prompt with its completions, their scores and calls.

    Scores that `work` holds already are read from there; new ones are written there.

    Args:
        graders: by the name that prompts use; a prompt that names none stays unscored.
        work: folder that keeps the scores for a resumed run.

    Raises:
        ConfigError: a prompt names an unknown grader.
        DataError: completions that belong to no prompt, or out of order.
    """
    groups = read_groups(samples)
    for number in itertools.count():
        batch = list(itertools.islice(groups, BATCH))
        if not batch:
            return
        file = work / f"scores-{number:06d}.jsonl"
        if not file.is_file():
            rows = _score_rows(batch, graders)
            atomic_write_text(file, "".join(f"{json_text(row)}\n" for row in rows))
        # a resumed run and a first one read the scores from the file: both see equal floats
        rows = jsonl_rows(file.read_text("utf-8"))
        scores = (Score(row["value"], row["answer"], row["explanation"]) for row in rows)
        for prompt, completions in batch:
            grades: list[tuple[Completion, Score, CallDetection]] = []
            for completion in completions:
                detection = detect_in_completion(completion, prompt)
                grades.append((completion, next(scores), detection))
            yield prompt, grades


def read_groups(samples: Path) -> Iterator[Group]:
    """Read each prompt of a `samples` artifact with all its completions, in file order.

    Raises:
        DataError: the completions are not those of the prompts, in their order.
    """
    with (
        (samples / "prompts.jsonl").open(encoding="utf-8") as prompt_lines,
        (samples / "samples.jsonl").open(encoding="utf-8") as completion_lines,
    ):
        all_completions = (completion_from_row(json.loads(line)) for line in completion_lines)
        groups = itertools.groupby(all_completions, key=lambda completion: completion.prompt_id)
        for line in prompt_lines:
            prompt = prompt_from_row(json.loads(line))
            prompt_id, completions = next(groups, (None, iter(())))
            if prompt_id != prompt.id:
                raise DataError(
                    f"{samples / 'samples.jsonl'}: completions of {prompt.id!r} were expected, "
                    f"found {prompt_id!r}"
                )
            yield prompt, tuple(completions)
        if next(groups, None) is not None:
            raise DataError(f"{samples / 'samples.jsonl'} holds completions of no prompt")


def unformatted_by_setting(samples: Path) -> Counter[str]:
    """Number of completions in each setting that ignore the answer format of their prompt.

    Counts completions that ended by themselves, without grading them.
    """
    counts: Counter[str] = Counter()
    for prompt, completions in read_groups(samples):
        for completion in completions:
            if completion.finish == "stop":
                counts[prompt.setting] += lacks_format(prompt, completion.answer)
    return counts


def _score_rows(groups: Sequence[Group], graders: Mapping[str, Grader]) -> list[dict[str, Any]]:
    """Score all completions, in order, with one call of each grader. Returns a row for each."""
    attempts: list[Attempt] = []
    for prompt, completions in groups:
        attempts += [Attempt(prompt, completion) for completion in completions]
    scores = [Score(None, None, "the prompt names no grader")] * len(attempts)
    positions_by_grader: dict[str, list[int]] = {}
    for position, attempt in enumerate(attempts):
        if attempt.prompt.grader is not None:
            positions_by_grader.setdefault(attempt.prompt.grader, []).append(position)
    for name, positions in sorted(positions_by_grader.items()):
        if name not in graders:
            raise ConfigError(
                f"a prompt is to be graded by {name!r}; there are {', '.join(sorted(graders))}"
            )
        grader_scores = graders[name].grade([attempts[position] for position in positions])
        for position, score in zip(positions, grader_scores, strict=True):
            scores[position] = score
    return [
        {"value": score.value, "answer": score.answer, "explanation": score.explanation}
        for score in scores
    ]


@dataclass(frozen=True, slots=True)
class GradedCompletion:
    """Figures of a graded completion that pair building needs, without its text.

    Attributes:
        index: position among the completions of its prompt.
        score: value of the grader, None where unscored.
        calls: number of tool calls that the detector found, parsed or not.
        length: tokens after the prompt that the model sampled.
        tokens: tokens of prompt and completion, tool results included.
        ids_key: digest of the token ids.
        text_key: digest of its letters, digits and calls: equal where only formatting differs.
        call_markup: True where it holds text that opens or closes a call, complete or not.
    """

    index: int
    score: float | None
    calls: int
    finish: Finish
    length: int
    tokens: int
    reasoning_tokens: int
    answer_tokens: int
    ids_key: str
    text_key: str
    call_markup: bool = False

    @property
    def truncated(self) -> bool:
        """True if a limit ended the completion."""
        return self.finish in TRUNCATED


def summarize_completion(
    completion: Completion, score: Score, detection: CallDetection, encoded: Encoded | None
) -> GradedCompletion:
    """Reduce a completion to the figures that pair building needs; without ids it counts as failed.

    The pool holds the figures of all completions in memory, and no text.
    """
    sampled_text = "".join(step.text for step in completion.steps)
    text_parts: list[str] = []
    calls: list[tuple[str, str]] = []
    for step in completion.steps:
        text_parts += [step.text, *(message.content for message in step.results)]
        calls += [(call.name, call.arguments) for call in step.parsed.tool_calls]
    significant = _INSIGNIFICANT.sub("", "".join(text_parts)).lower()
    return GradedCompletion(
        index=completion.index,
        score=score.value,
        calls=len(detection.calls),
        finish="failed" if encoded is None else completion.finish,
        length=sum(encoded.mask) if encoded else 0,
        tokens=len(encoded.prompt_ids) + len(encoded.ids) if encoded else 0,
        reasoning_tokens=completion.reasoning_tokens,
        answer_tokens=completion.answer_tokens,
        ids_key=_digest(repr(encoded.ids) if encoded else ""),
        text_key=_digest(json_text([significant, calls])),
        call_markup=has_call_marker(sampled_text),
    )


def reading_text(completion: Completion) -> str:
    """Text after the prompt for a person to read, calls and tool results included."""
    parts: list[str] = []
    for step in completion.steps:
        parts.append(step.text)
        if step.ids is None:
            # a server that hides its tokens returns calls beside the text, not in it
            parts += [
                f"\n[call {call.name}: {call.arguments}]\n" for call in step.parsed.tool_calls
            ]
        for result in step.results:
            parts.append(f"\n[{result.name or result.role}: {result.content}]\n")
    return "".join(parts)


def _digest(text: str) -> str:
    """Digest of 12 bytes as hexadecimal; a text with half surrogates has one too."""
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=12).hexdigest()
