"""Samples → graded prompts: every completion scored and read for tool calls.

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
Grades = Sequence[tuple[Completion, Score, CallDetection]]  # of one prompt's completions


def grade_samples(
    samples: Path, graders: Mapping[str, Grader], *, work: Path
) -> Iterator[tuple[Prompt, Grades]]:
    """Every prompt of a `samples` artifact, with each completion, its score and its calls.

    Args:
        graders: by the name a prompt gives; a prompt without a name stays unscored.
        work: where scores are kept from one run to the next.

    Raises:
        ConfigError: a prompt names a grader that is not there.
        DataError: completions that belong to no prompt, or not in order.
    """
    groups, numbers = read_groups(samples), itertools.count()
    while batch := list(itertools.islice(groups, BATCH)):
        file = work / f"scores-{next(numbers):06d}.jsonl"
        if not file.is_file():
            scored = _grade(batch, graders)
            atomic_write_text(file, "".join(f"{json_text(row)}\n" for row in scored))
        rows = jsonl_rows(file.read_text("utf-8"))
        scores = iter([Score(row["value"], row["answer"], row["explanation"]) for row in rows])
        for prompt, completions in batch:
            yield prompt, [(c, next(scores), detect_in_completion(c, prompt)) for c in completions]


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


def unformatted_by_setting(samples: Path) -> Counter[str]:
    """Completions of each setting that end, and show no sign of the format in which their prompt
    asks for its answer; nothing is graded."""
    counts: Counter[str] = Counter()
    for prompt, completions in read_groups(samples):
        ended = [c for c in completions if c.finish == "stop"]
        counts[prompt.setting] += sum(lacks_format(prompt, c.answer) for c in ended)
    return counts


def _grade(
    groups: Sequence[tuple[Prompt, tuple[Completion, ...]]], graders: Mapping[str, Grader]
) -> list[dict[str, Any]]:
    """Scores in order; one call a grader for the whole batch."""
    attempts = [Attempt(p, completion) for p, completions in groups for completion in completions]
    scores = [Score(None, None, "the prompt names no grader")] * len(attempts)
    for name in sorted({a.prompt.grader for a in attempts if a.prompt.grader is not None}):
        if name not in graders:
            raise ConfigError(
                f"a prompt is to be graded by {name!r}; there are {', '.join(sorted(graders))}"
            )
        places = [k for k, attempt in enumerate(attempts) if attempt.prompt.grader == name]
        given = graders[name].grade([attempts[k] for k in places])
        for k, score in zip(places, given, strict=True):
            scores[k] = score
    return [{key: getattr(s, key) for key in ("value", "answer", "explanation")} for s in scores]


_INSIGNIFICANT = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True)
class Graded:
    """A graded completion, the `index`-th of its prompt.

    Attributes:
        score: the grader's value, None where unscored.
        calls: tool calls that the detector found, whether or not they could be parsed.
        length: tokens after the prompt that the model sampled.
        tokens: prompt and completion, tool results and all.
        ids_key: digest of the exact completion; text_key: of its letters and digits, and its calls.
        call_markup: whether it holds what opens or closes calls, called or not.
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
        return self.finish in TRUNCATED


def graded(
    completion: Completion, score: Score, verdict: CallDetection, encoded: Encoded | None
) -> Graded:
    """What pair building keeps of a completion; without ids it counts as failed."""
    text = "".join(
        step.text + "".join(m.content for m in step.results) for step in completion.steps
    )
    calls = [(c.name, c.arguments) for step in completion.steps for c in step.parsed.tool_calls]
    return Graded(
        index=completion.index,
        score=score.value,
        calls=len(verdict.calls),
        finish="failed" if encoded is None else completion.finish,
        length=sum(encoded.mask) if encoded else 0,
        tokens=len(encoded.prompt_ids) + len(encoded.ids) if encoded else 0,
        reasoning_tokens=completion.reasoning_tokens,
        answer_tokens=completion.answer_tokens,
        ids_key=_digest(repr(encoded.ids) if encoded else ""),
        text_key=_digest(json_text([_INSIGNIFICANT.sub("", text).lower(), calls])),
        call_markup=has_call_marker("".join(step.text for step in completion.steps)),
    )


def reading_text(completion: Completion) -> str:
    """All that came after the prompt, calls and tool results included, for a person to read."""
    parts: list[str] = []
    for step in completion.steps:
        # an endpoint that hides its tokens gives calls beside the text, not in it
        calls = step.parsed.tool_calls if step.ids is None else ()
        parts += [step.text, *(f"\n[call {call.name}: {call.arguments}]\n" for call in calls)]
        parts += [f"\n[{m.name or m.role}: {m.content}]\n" for m in step.results]
    return "".join(parts)


def _digest(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=12).hexdigest()
