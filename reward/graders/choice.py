"""The grader "multiple_choice": one letter among a prompt's options.

Prompt(gold="B", metadata='{"options":{"A":"3","B":"4"}}')
metadata may hold `output_regex`, a pattern or several, tried before anything else: the last match
of the first that matches, whatever its case, and of that its first group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any, cast

from posttrain.records import Score
from posttrain.rollouts import Prompt, metadata_of
from reward.graders.base import Attempt, before_reading, no_answer, unscored, verdict
from reward.graders.final_answer import LABEL, TAG, has_box, joined_boxes
from reward.graders.tidy import tidy
from reward.graders.workers import JobResult, Workers, shared_workers


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
        pairs = zip(attempts, matches, strict=True)
        return [before_reading(attempt) or _grade(attempt, match) for attempt, match in pairs]

    def _run(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[JobResult]:
        """The job for all that have patterns; they are the data's, and may not end."""
        places = [k for k, (patterns, *_) in enumerate(arguments) if patterns]
        results = [JobResult(None)] * len(arguments)
        if places:
            workers = self._workers or shared_workers()
            done = workers.run([(name, list(arguments[k])) for k in places])
            for place, result in zip(places, done, strict=True):
                results[place] = result
        return results


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


def _refusal(prompt: Prompt, patterns: JobResult) -> str | None:
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


def _grade(attempt: Attempt, match: JobResult) -> Score:
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


Options = Mapping[str, str]
HEDGE = ""  # in place of a letter: several options are chosen

_DRESS = r"[\s*_$`\"'(\[{]*(?:\\\(|\\(?:text|textbf|mathrm|mathbf|boxed)\s*\{)*"
# a letter, with "option" before it or not; group 2 is what is behind
_LETTER = re.compile(
    rf"(?:{_DRESS}(?:the\s+)?(?:correct\s+)?(?:option|choice|letter|answer)\b(?:\s+is)?\s*:?)?"
    rf"{_DRESS}([A-Za-z])(?![A-Za-z0-9'\^_/=+])[\s*_$`\"'\]}})\\]*(.*)",
    re.DOTALL | re.IGNORECASE,
)
# what parts a letter from the option's text or from a remark
_PARTING = re.compile(r"[\s*_$`\"'\]})\\]*(?:[.:)]|[-–—](?!\d))?[\s*_$`\"'\]})\\]*")
_ANOTHER = re.compile(r"(?<![A-Za-z])([A-Z])\s?[.:)]")
_CHOICE = re.compile(r"\b(?:option|choice)[ \t*_]*(?:is|:)[ \t*_:]*", re.IGNORECASE)
_SECOND = re.compile(r"\s*(?:or|and|/|,|&)\s*\W{0,3}([A-Za-z])(?![A-Za-z])", re.IGNORECASE)
_LETTERS = re.compile(r"(?:\W|\b(?:or|and|[A-Z])\b)*", re.IGNORECASE)


def chosen(answer: str, options: Options) -> str | None:
    """The option's letter, HEDGE where several are chosen, None where no option is found.

    Args:
        answer: a completion's answer, without its reasoning.
        options: letter → text. Letters are upper case.
    """
    answer = tidy(answer)
    tags = TAG.findall(answer)
    if tags:
        answer = tags[-1]
    if has_box(answer):
        box = joined_boxes(answer)
        return None if box is None else choice(box, options) or _hedged(box, options)
    labels = [m.end() for m in (*LABEL.finditer(answer), *_CHOICE.finditer(answer))]
    for end in sorted(labels, reverse=True):
        rest = answer[end : end + 2000].strip()
        if rest and (letter := _behind_label(rest, options)) is not _NOTHING:
            return letter
    lines = [line for line in answer.splitlines() if line.strip()]
    last = lines[-1][:2000] if lines else ""
    return choice(answer, options) or choice(last, options) or _hedged(last, options)


def _hedged(text: str, options: Options) -> str | None:
    """HEDGE for a text that is several letters of options: "A or B"."""
    match = _LETTER.match(text.strip())
    second = match and _SECOND.match(match[2])
    if not match or not second or not _LETTERS.fullmatch(match[2]):
        return None
    return HEDGE if {match[1].upper(), second[1].upper()} <= options.keys() else None


_NOTHING = "?"  # a label that introduces neither a letter nor an option's text


def _behind_label(rest: str, options: Options) -> str:
    """What is behind a label: a letter, HEDGE, or _NOTHING for other words."""
    line = rest.split("\n", 1)[0]
    match = _LETTER.match(line)
    if match:
        letter, second = match[1].upper(), _SECOND.match(match[2])
        if second and second[1].upper() in options:
            return HEDGE
        if letter in options and _letter_stands(line, match, options[letter]):
            return _by_text(rest, options, exactly=True) or letter
    found = choice(line, options) or _by_text(line.split(". ")[0], options)
    return found or _by_text(rest, options) or _NOTHING


def _letter_stands(line: str, match: re.Match[str], text: str) -> bool:
    """Whether a letter is an option's name and not the article in "A good guess"."""
    behind = line[match.end(1) :]
    if not behind.strip(" *_$`\"').]}\\") or re.match(r"\s*[.:,;)\]}*$\\–—-]", behind):
        return True
    if _plain(behind).startswith(_plain(text)):
        return True
    return re.match(r"\s+(?:because|since|as|is)\b", behind) is not None


def choice(text: str, options: Options) -> str | None:
    """The option that a short text is: "C", "(c)", "C. 5", "\\\\text{C}", or the text of one."""
    text = text.strip()
    match = _LETTER.fullmatch(text)
    letter = match[1].upper() if match else ""
    if match is None or letter not in options:
        return _by_text(text, options)
    if text != letter and (same := _by_text(text, options, exactly=True)):
        return same  # an option that reads "c", or "a. and c. above"
    behind = text[match.end(1) :]
    rest = behind[_PARTING.match(behind).end() :]  # pyright: ignore[reportOptionalMemberAccess] - matches ""
    if not rest.strip(" .") or _plain(rest) in (_plain(options[letter]), ""):
        return letter
    # "C. because …": a remark on one line, unless it is another option or names one ("A: C")
    if rest == behind.lstrip() or "\n" in text or _ANOTHER.search(rest) or rest in options:
        return _by_text(text, options)
    return letter if _by_text(rest, options) in (None, letter) else None


def _by_text(text: str, options: Options, *, exactly: bool = False) -> str | None:
    """The one option whose text this is; `exactly`: to the letter's case."""
    if exactly:
        found = [letter for letter, option in options.items() if option.strip() == text]
    else:
        found = [letter for letter, option in options.items() if _plain(option) == _plain(text)]
    return found[0] if len(found) == 1 and _plain(text) else None


def _plain(text: str) -> str:
    """As compared: one line of lower case, without what sets it in type, without a final stop."""
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", tidy(text))
    return " ".join(text.split()).strip(" .$*`\"'").lower()
