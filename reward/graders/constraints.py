"""The graders "ifeval" and "ifbench": 1 where every constraint of a prompt holds for the answer.

Of the figures, `loose` is the same where a first line, a last line or asterisks may be left out;
the other two are shares of constraints. The checkers are those of if-verifiable (extra
`eval-suite`), which come from the benchmarks' own code.
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
LONGEST = 200_000  # characters of an answer
Results = list[tuple[bool, bool]]  # strict, loose
FIGURES = ("loose", "constraints", "constraints_loose")
_PROBE = "A plain sentence. And another one, with words in it!"


class Constraints:
    """Grades by the constraints that a prompt's metadata lists.

    Args:
        benchmark: "ifeval" or "ifbench": whose checkers.
    """

    def __init__(self, benchmark: str, *, run: RunJobs = run_shared) -> None:
        self._benchmark, self._run = benchmark, run

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """Unknown constraints, missing arguments, or data of NLTK that is not installed."""
        checks = [_checks(prompt) for prompt in prompts]
        results = iter(self._check([(check, _PROBE) for check in checks if check]))
        return [next(results)[1] if check else "no_constraints" for check in checks]

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """One score an attempt; an empty answer keeps no constraint."""
        scores = [_unchecked(attempt) for attempt in attempts]
        pairs = list(zip(attempts, scores, strict=True))
        jobs = [(_checks(a.prompt) or [], a.completion.answer) for a, score in pairs if not score]
        checked = iter(self._check(jobs))
        return [score or _score(attempt, *next(checked)) for attempt, score in pairs]

    def _check(self, jobs: Sequence[tuple[list[Any], str]]) -> list[tuple[JobResult, str | None]]:
        """Per check and answer: what the worker found, and the problem."""
        results = self._run(
            [("constraints", [self._benchmark, *check, answer]) for check, answer in jobs]
        )
        return [(r, r.problem or cast(dict[str, Any], r.value)["problem"]) for r in results]


def _unchecked(attempt: Attempt) -> Score | None:
    """The score of what needs no checking, or cannot be checked."""
    answer = attempt.completion.answer
    # without figures of its own, what was cut off would be left out of their denominators
    nothing_kept: dict[str, float] = dict.fromkeys(FIGURES, 0.0)
    if (early := before_reading(attempt)) is not None:
        return early if early.value is None else replace(early, figures=nothing_kept)
    if len(answer) > LONGEST:
        return Score(0.0, None, f"longer than {LONGEST} characters", figures=nothing_kept)
    if not answer.strip():
        return Score(0.0, None, f"{NO_ANSWER}: empty", figures=nothing_kept)
    if _checks(attempt.prompt) is None:
        return unscored(None, "no constraints", "malformed_row")
    return None


def _checks(prompt: Prompt) -> list[Any] | None:
    """Names and arguments, and the question that some constraints repeat; None where malformed."""
    task = metadata_of(prompt)
    names: Any = task.get("instruction_id_list")
    arguments: Any = task.get("kwargs")
    if not isinstance(names, list) or not isinstance(arguments, list) or not names:
        return None
    kept = [
        {key: value for key, value in cast(dict[str, Any], one).items() if value is not None}
        for one in cast(list[Any], arguments)
        if isinstance(one, dict)
    ]
    if len(kept) != len(cast(list[Any], names)):
        return None
    question = next((m.content for m in reversed(prompt.messages) if m.role == "user"), "")
    return [[str(name) for name in cast(list[Any], names)], kept, question]


def _score(attempt: Attempt, result: JobResult, problem: str | None) -> Score:
    if problem is not None:
        return unscored(None, problem, result.failure or "malformed_row")
    strict, loose = zip(*result.value["results"], strict=True)
    names = metadata_of(attempt.prompt)["instruction_id_list"]
    broken = [name for name, holds in zip(names, strict, strict=True) if not holds]
    why = f"breaks {', '.join(broken)}" if broken else f"all {len(strict)} constraints"
    shares = float(all(loose)), sum(strict) / len(strict), sum(loose) / len(loose)
    figures: dict[str, float] = dict(zip(FIGURES, shares, strict=True))
    return Score(float(not broken), None, why, figures=figures)


def _no_download(*_: object, **__: object) -> bool:
    return False


def _plain(value: Any) -> Any:
    """An argument as checkers keep it: stripped, in lower case, lists in any order."""
    if isinstance(value, list):
        return sorted(map(_plain, cast(list[Any], value)))
    return value.strip().lower() if isinstance(value, str) else value


def check_constraints(
    benchmark: str, names: list[str], arguments: list[dict[str, Any]], question: str, answer: str
) -> dict[str, Any]:
    """The job of a worker: whether each constraint holds, strictly and loosely, or the problem."""
    nltk: Any = importlib.import_module("nltk")
    nltk.download = _no_download  # an import must not reach for the network
    langdetect: Any = importlib.import_module("langdetect")
    langdetect.DetectorFactory.seed = 0  # else the same text is of one language today only
    common: Any = importlib.import_module(f"{PACKAGE}.common")
    registry: Any = importlib.import_module(f"{PACKAGE}.{benchmark}.instructions_registry")
    checkers: dict[str, Callable[[str], Any]] = registry.INSTRUCTION_DICT
    results: Results = []
    readings: list[str] = common.get_loose_transformations(answer)
    variants = [text for text in readings if text.strip()]
    for name, given in zip(names, arguments, strict=True):
        if name not in checkers:
            return {"problem": f"unknown_constraint: {name}"}
        checker = checkers[name](name)
        keys: set[str] = {*(checker.get_instruction_args_keys() or ())}
        given = given | ({"prompt": question} if "prompt" in keys else {})
        checker.build_description(**given)
        lacking = keys - {*given}
        if lacking:  # the checker would draw one by itself
            return {"problem": f"missing_argument: {name} {', '.join(sorted(lacking))}"}
        if name == "keywords:letter_frequency":
            # the checker draws another where it is no letter, as in two of IFEval's prompts
            checker._letter = given["letter"].strip().lower()
        used: dict[str, Any] = checker.get_instruction_args() or {}
        replaced = [key for key, value in given.items() if _plain(used.get(key)) != _plain(value)]
        if replaced:  # as it does where it cannot use one, such as a letter that is none
            return {"problem": f"unusable_argument: {name} {', '.join(sorted(replaced))}"}
        try:
            strict = bool(answer.strip() and checker.check_following(answer))
            results.append((strict, any(checker.check_following(text) for text in variants)))
        except LookupError:
            return {"problem": NLTK_DATA}
    return {"problem": None, "results": results}
