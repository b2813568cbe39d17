"""The grader "multiple_choice": one letter among a prompt's options.

Prompt(gold="B", metadata='{"options":{"A":"3","B":"4"}}')
metadata may hold `output_regex`, a pattern or several, tried before anything else: the last match
of the first that matches, whatever its case, and of that its first group.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any, cast

from posttrain.records import Score
from posttrain.rollouts import Prompt, metadata_of
from reward.grader import Attempt
from reward.multiple_choice import HEDGE, choice, chosen
from reward.outcomes import before_reading, no_answer, unscored, verdict
from reward.worker import Outcome
from reward.workers import Workers, shared_workers


class MultipleChoice:
    """Accepts the gold's letter, or the gold option's text."""

    def __init__(self, *, workers: Workers | None = None) -> None:
        self._workers = workers

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """No options, a gold that is none of them, equal options, or a pattern that is none."""
        problems = self._run("pattern_problem", [(_patterns(p),) for p in prompts])
        return [
            _refusal(prompt, problem) for prompt, problem in zip(prompts, problems, strict=True)
        ]

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """One score an attempt."""
        matches = self._run(
            "last_match",
            [
                (_patterns(a.prompt) if before_reading(a) is None else [], a.completion.answer)
                for a in attempts
            ],
        )
        return [_grade(attempt, match) for attempt, match in zip(attempts, matches, strict=True)]

    def _run(self, name: str, asked: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        """The job for all that have patterns; they are the data's, and may not end."""
        places = [k for k, arguments in enumerate(asked) if arguments[0]]
        outcomes = [Outcome(None)] * len(asked)
        if places:
            workers = self._workers or shared_workers()
            done = workers.run([(name, list(asked[k])) for k in places])
            for place, outcome in zip(places, done, strict=True):
                outcomes[place] = outcome
        return outcomes


def options_of(prompt: Prompt) -> dict[str, str]:
    """Letter → text; empty where the prompt has none."""
    options: Any = metadata_of(prompt).get("options")
    if isinstance(options, list):
        texts = cast(list[object], options)
        return {letter: str(text) for letter, text in zip(ascii_uppercase, texts, strict=False)}
    if isinstance(options, dict):
        named = cast(dict[str, object], options)
        return {letter.upper(): str(text) for letter, text in named.items()}
    return {}


def _patterns(prompt: Prompt) -> list[Any]:
    found: Any = metadata_of(prompt).get("output_regex") or []
    return cast(list[Any], found) if isinstance(found, list) else [found]


def _gold(prompt: Prompt) -> str | None:
    return None if prompt.gold is None else choice(prompt.gold, options_of(prompt))


def _refusal(prompt: Prompt, patterns: Outcome) -> str | None:
    options = options_of(prompt)
    if len(options) < 2:
        return "no_options"
    if prompt.gold is None:
        return "no_gold"
    if _gold(prompt) is None:
        return f"gold_not_an_option: {prompt.gold}"
    if chosen(f"The answer is \\boxed{{{_gold(prompt)}}}", options) != _gold(prompt):
        return f"gold_not_accepted: {prompt.gold}"
    problem = patterns.problem or patterns.value
    return None if problem is None else f"bad_output_regex: {problem}"


def _grade(attempt: Attempt, match: Outcome) -> Score:
    score = before_reading(attempt)
    if score is not None:
        return score
    gold, options = _gold(attempt.prompt), options_of(attempt.prompt)
    if gold is None:
        return unscored(None, "the gold is none of the prompt's options")
    if match.problem is not None:
        return unscored(None, f"output_regex: {match.problem}")
    if match.value is not None:
        letter = choice(match.value, options)
    else:
        letter = chosen(attempt.completion.answer, options)
    if letter is None and match.value is None:
        return no_answer(attempt)
    if letter == HEDGE:
        return Score(0.0, None, "several options are chosen")
    return verdict(letter == gold, letter or str(match.value), gold)
