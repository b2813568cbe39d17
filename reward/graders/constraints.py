"""The graders "ifeval" and "ifbench": 1 if every constraint of a prompt holds for the answer.

The figure `loose` is the same verdict where the first line, the last line or asterisks may be left
out (IFEval's loose accuracy); the other two figures are shares of constraints. The checkers are
those of if-verifiable (extra `eval-suite`), which come from the benchmarks' own code.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from posttrain.records import NO_ANSWER, Score
from posttrain.rollouts import Prompt, metadata_of
from reward.graders.base import Attempt, before_reading, unscored
from reward.graders.workers import JobResult, RunJobs, run_shared

PACKAGE = "if_verifiable"
NLTK_DATA = "nltk_data_missing: python -m nltk.downloader punkt_tab"
LONGEST = 200_000  # characters of an answer; a longer one is wrong unread
FIGURES = ("loose", "constraints", "constraints_loose")
# text for trying a prompt's constraints before any answer is there
_PROBE = "A plain sentence. And another one, with words in it!"


class Constraints:
    """Grader by the constraints that a prompt's metadata lists.

    Args:
        benchmark: benchmark whose checkers are used, "ifeval" or "ifbench".
    """

    def __init__(self, benchmark: str, *, run: RunJobs = run_shared) -> None:
        self._benchmark = benchmark
        self._run = run

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """Drop reason of each prompt, or None.

        Reasons: unknown constraints, missing arguments, NLTK's data is not installed.
        """
        tasks = [_constraint_task(prompt) for prompt in prompts]
        results = iter(self._check([(task, _PROBE) for task in tasks if task]))
        return [next(results)[1] if task else "no_constraints" for task in tasks]

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """Score of each attempt, in order; an empty answer meets no constraint."""
        early_scores = [_score_unchecked(attempt) for attempt in attempts]
        jobs: list[tuple[list[Any], str]] = []
        for attempt, early_score in zip(attempts, early_scores, strict=True):
            if early_score is None:
                jobs.append((_constraint_task(attempt.prompt) or [], attempt.completion.answer))
        results = iter(self._check(jobs))
        return [
            early_score or _score_result(attempt, *next(results))
            for attempt, early_score in zip(attempts, early_scores, strict=True)
        ]

    def _check(self, jobs: Sequence[tuple[list[Any], str]]) -> list[tuple[JobResult, str | None]]:
        """Check each answer against the constraints of its task; returns results and problems."""
        results = self._run(
            [("constraints", [self._benchmark, *task, answer]) for task, answer in jobs]
        )
        return [(r, r.problem or cast(dict[str, Any], r.value)["problem"]) for r in results]


def _score_unchecked(attempt: Attempt) -> Score | None:
    """The score of an attempt that needs no checking or cannot be checked; None for any other."""
    answer = attempt.completion.answer
    # a truncated answer without figures would be left out of the figures' denominators
    no_constraint_met: dict[str, float] = dict.fromkeys(FIGURES, 0.0)
    if (early_score := before_reading(attempt)) is not None:
        if early_score.value is None:
            return early_score
        return replace(early_score, figures=no_constraint_met)
    if len(answer) > LONGEST:
        return Score(0.0, None, f"longer than {LONGEST} characters", figures=no_constraint_met)
    if not answer.strip():
        return Score(0.0, None, f"{NO_ANSWER}: empty", figures=no_constraint_met)
    if _constraint_task(attempt.prompt) is None:
        return unscored(None, "no constraints", "malformed_row")
    return None


def _constraint_task(prompt: Prompt) -> list[Any] | None:
    """[names, arguments, question] of a prompt's constraints; None where its metadata is malformed.

    Some constraints repeat the question.
    """
    metadata = metadata_of(prompt)
    names: Any = metadata.get("instruction_id_list")
    arguments: Any = metadata.get("kwargs")
    if not isinstance(names, list) or not isinstance(arguments, list) or not names:
        return None
    set_arguments: list[dict[str, Any]] = []
    for entry in cast(list[Any], arguments):
        if isinstance(entry, dict):
            # the benchmarks' files list every argument of every constraint, most of them null
            fields = cast(dict[str, Any], entry)
            set_arguments.append({key: v for key, v in fields.items() if v is not None})
    if len(set_arguments) != len(cast(list[Any], names)):
        return None
    question = next((m.content for m in reversed(prompt.messages) if m.role == "user"), "")
    return [[str(name) for name in cast(list[Any], names)], set_arguments, question]


def _score_result(attempt: Attempt, result: JobResult, problem: str | None) -> Score:
    if problem is not None:
        return unscored(None, problem, result.failure or "malformed_row")
    strict, loose = zip(*result.value["results"], strict=True)
    names = metadata_of(attempt.prompt)["instruction_id_list"]
    broken = [name for name, holds in zip(names, strict, strict=True) if not holds]
    explanation = f"breaks {', '.join(broken)}" if broken else f"all {len(strict)} constraints"
    figures = {
        "loose": float(all(loose)),
        "constraints": sum(strict) / len(strict),
        "constraints_loose": sum(loose) / len(loose),
    }
    return Score(float(not broken), None, explanation, figures=figures)


def _no_download(*_: object, **__: object) -> bool:
    return False


def _plain_argument(value: Any) -> Any:
    """An argument in the form that checkers keep: stripped, lower case, lists in any order."""
    if isinstance(value, list):
        return sorted(map(_plain_argument, cast(list[Any], value)))
    return value.strip().lower() if isinstance(value, str) else value


def check_constraints(
    benchmark: str, names: list[str], arguments: list[dict[str, Any]], question: str, answer: str
) -> dict[str, Any]:
    """Check an answer against each constraint, inside a worker.

    Returns `problem`, None or why nothing could be checked, and `results`: (holds strictly, holds
    loosely) of each constraint.
    """
    nltk: Any = importlib.import_module("nltk")
    nltk.download = _no_download  # an import must not reach for the network
    langdetect: Any = importlib.import_module("langdetect")
    langdetect.DetectorFactory.seed = 0  # without it the language of a text differs between runs
    common: Any = importlib.import_module(f"{PACKAGE}.common")
    registry: Any = importlib.import_module(f"{PACKAGE}.{benchmark}.instructions_registry")
    checkers: dict[str, Callable[[str], Any]] = registry.INSTRUCTION_DICT
    transformed: list[str] = common.get_loose_transformations(answer)
    loose_variants = [text for text in transformed if text.strip()]
    results: list[tuple[bool, bool]] = []
    for name, set_arguments in zip(names, arguments, strict=True):
        if name not in checkers:
            return {"problem": f"unknown_constraint: {name}"}
        checker = checkers[name](name)
        keys: set[str] = {*(checker.get_instruction_args_keys() or ())}
        checker_arguments = (
            {**set_arguments, "prompt": question} if "prompt" in keys else set_arguments
        )
        checker.build_description(**checker_arguments)
        missing = keys - {*checker_arguments}
        if missing:  # the checker would draw a random one
            return {"problem": f"missing_argument: {name} {', '.join(sorted(missing))}"}
        if name == "keywords:letter_frequency":
            # the checker draws another where it is no letter, as in two of IFEval's prompts
            checker._letter = checker_arguments["letter"].strip().lower()
        kept_arguments: dict[str, Any] = checker.get_instruction_args() or {}
        replaced_names = [
            key
            for key, value in checker_arguments.items()
            if _plain_argument(kept_arguments.get(key)) != _plain_argument(value)
        ]
        if replaced_names:  # a checker replaces an argument that it cannot use
            return {"problem": f"unusable_argument: {name} {', '.join(sorted(replaced_names))}"}
        try:
            strict = bool(answer.strip() and checker.check_following(answer))
            loose = any(checker.check_following(text) for text in loose_variants)
            results.append((strict, loose))
        except LookupError:
            return {"problem": NLTK_DATA}
    return {"problem": None, "results": results}
