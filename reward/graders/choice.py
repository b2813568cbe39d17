"""One of a prompt's options, a given text, or references that the answer has to contain.

`output_regex` of metadata, a pattern or several, is tried before anything else: the last match of
the first that matches, whatever its case, and of that its first group.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any, cast

from posttrain.records import Score
from posttrain.rollouts import Prompt, metadata_of
from reward.graders.base import (
    Attempt,
    PlainGrader,
    before_reading,
    no_answer,
    one_line,
    unscored,
    verdict,
)
from reward.graders.final_answer import LABEL, LINE, TAG, answer_places, joined_boxes
from reward.graders.tidy import bare, tidy
from reward.graders.workers import JobResult, RunJobs, run_shared

Options = Mapping[str, str]
SEVERAL = ""  # in place of a letter: several options are chosen


class MultipleChoice:
    """Accepts the gold's letter, or the gold option's text."""

    def __init__(self, *, run: RunJobs = run_shared) -> None:
        self._run = run

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """No options, a gold that is none of them, equal options, or a pattern that is none."""
        tried = self._matches([(prompt, "") for prompt in prompts])
        return [_refusal(prompt, t.problem) for prompt, t in zip(prompts, tried, strict=True)]

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """One score an attempt."""
        matches = self._matches([(a.prompt, a.completion.answer) for a in attempts])
        pairs = zip(attempts, matches, strict=True)
        return [before_reading(attempt) or _grade(attempt, match) for attempt, match in pairs]

    def _matches(self, answers: Sequence[tuple[Prompt, str]]) -> list[JobResult]:
        """What each prompt's patterns match; they are the data's, and may not end."""
        patterns = [patterns_of(prompt) for prompt, _ in answers]
        jobs = zip(patterns, answers, strict=True)
        done = iter(self._run([("last_match", [own, answer]) for own, (_, answer) in jobs if own]))
        return [next(done) if own else JobResult(None) for own in patterns]


def options_of(prompt: Prompt) -> dict[str, str]:
    """Letter → text; empty where the prompt has none."""
    options: Any = metadata_of(prompt).get("options")
    if isinstance(options, list):
        options = dict(zip(ascii_uppercase, cast(list[object], options), strict=False))
    if not isinstance(options, dict):
        return {}
    return {letter.upper(): str(text) for letter, text in cast(dict[str, object], options).items()}


def patterns_of(prompt: Prompt) -> list[Any]:
    """The prompt's `output_regex`, as a list."""
    found: Any = metadata_of(prompt).get("output_regex") or []
    return cast(list[Any], found) if isinstance(found, list) else [found]


def _gold(prompt: Prompt) -> str | None:
    return None if prompt.gold is None else choice(prompt.gold, options_of(prompt))


def _refusal(prompt: Prompt, problem: str | None) -> str | None:
    options, gold = options_of(prompt), _gold(prompt)
    if len(options) < 2:
        return "no_options"
    if prompt.gold is None:
        return "no_gold"
    if gold is None:
        return f"gold_not_an_option: {prompt.gold}"
    if chosen(f"The answer is \\boxed{{{gold}}}", options) != gold:
        return f"gold_not_accepted: {prompt.gold}"
    return None if problem is None else f"bad_output_regex: {problem}"


def _grade(attempt: Attempt, match: JobResult) -> Score:
    gold, options = _gold(attempt.prompt), options_of(attempt.prompt)
    if gold is None:
        return unscored(None, "the gold is none of the prompt's options", "malformed_row")
    if match.problem is not None:
        return unscored(None, f"output_regex: {match.problem}", match.failure)
    if match.value is not None:
        letter = choice(match.value, options)
    elif (letter := chosen(attempt.completion.answer, options)) is None:
        return no_answer(attempt)
    if letter == SEVERAL:
        return Score(0.0, None, "several options are chosen")
    return verdict(letter == gold, letter or str(match.value), gold)


_NAMED = r"(?:options?|choices?|letter|answer|opción|opção|réponse|выбираю|вариант|选项|选择|选|選)"
# one letter in its dress, with what follows it
_LETTER = re.compile(
    rf"(?:\W|(?:the|correct|is|la|it\b)\s)*?(?:{_NAMED}(?:\s+is\b)?\W*)?"
    r"[\s*_$`\"'(\[{]*([A-Za-z])(?![A-Za-z0-9'^_/=+])[\s*_$`\"'\]})]*(.*)",
    re.DOTALL | re.IGNORECASE,
)
_MENTION = re.compile(
    rf"(?:(?P<named>(?i:{_NAMED}))\W{{0,4}})?(?<![A-Za-z0-9'\\])(?P<letter>[A-Z])(?![A-Za-z0-9'^_/=+])"
    r"(?P<stop>[\s*_`\"')\]}]*(?:[.,:;)\]}*!?-]|$|[^\x00-\x7f])"
    r"|\s+(?=(?:or|and|because|since|as|is)\b|[/&]))?",
    re.MULTILINE,
)
# "not A or B", "C is wrong"
_DENIED = re.compile(
    r"(?:(?i:\b(?:not|neither|nor|except|anything but|than|rule out|eliminate|no es|nicht|pas))\b"
    r"|n't\b|不是)[^.,;:!?\n]{0,20}?(?<![A-Za-z])[A-Z]\b(?:(?:,| or| nor| and)+ [A-Z]\b)*"
    r"|(?<![A-Za-z])[A-Z]\b(?:(?:,| or| nor| and){1,2} [A-Z]\b){0,8}\W{0,4}"
    r"(?:is|are|can be|would be)(?: not|n't| too| wrong| incorrect| false| ruled out)\b"
)
_AND = re.compile(r"[\s*_)\]}]*(?:\b(?:or|and)\b|[/,&和或])[\s*_(\[{]*", re.IGNORECASE)


def chosen(answer: str, options: Options) -> str | None:
    """The letter of the option that an answer (without its reasoning) chooses: SEVERAL where it
    chooses several, None where no option is found. Letters of options are upper case."""
    answer = _without_echo(tidy(answer), options)
    for place in answer_places(answer):
        line = place.text.split("\n", 1)[0]
        text = line if place.kind == "label" else place.text
        letter = choice(place.text, options) or choice(text, options)
        if letter is None and place.kind == "line":
            first = answer.strip().split("\n", 1)[0]
            letter = choice(answer, options) or choice(first, options)
        if letter is None:
            letter = _mentioned(_DENIED.sub(" ", text), options, place.kind)
        if letter is None and place.kind == "line":
            letter = _by_text(re.split(r"\b(?:is|are)\b", line)[-1], options)
        if letter is not None:
            return letter
    return None


def _without_echo(answer: str, options: Options) -> str:
    """The answer without a list of all the options: its last line is nobody's choice. What names an
    option once more stays."""
    letters = [choice(line, options) for line in answer.split("\n")]
    if not options.keys() <= set(letters):
        return answer
    listed: set[str | None] = {None}
    kept: list[str] = []
    for line, letter in zip(answer.split("\n"), letters, strict=True):
        if letter in listed:
            kept.append(line)
        listed.add(letter)
    return "\n".join(kept)


def _mentioned(text: str, options: Options, kind: str) -> str | None:
    """The option that a sentence names: behind a label the first, in a last line the only one."""
    text = "\n".join(map(bare, text.split("\n")))
    found = [m for m in _MENTION.finditer(text) if m["letter"] in options and _is_name(m)]
    if not found:
        return None
    first, *others = found
    between = text[first.end("letter") : others[0].start("letter")] if others else ""
    if others and first["letter"] != others[0]["letter"]:
        if _AND.fullmatch(between):
            return SEVERAL
        sentence = "." in between and re.search(r"\w", text[others[0].end("letter") :])
        if not (sentence or re.search(r"\w", between)):
            return None  # "A: C"
    if kind == "label" or len({m["letter"] for m in found}) == 1:
        return first["letter"]
    named = {m["letter"] for m in found if m["named"]}
    if len(named) == 1:
        return named.pop()
    if first.start("letter") <= 2 and first["stop"]:  # "D. It cannot be A or B."
        return first["letter"]
    return None


def _is_name(mention: re.Match[str]) -> bool:
    """Whether a letter names an option, and is not the article of "A good guess" or the word I."""
    return mention["letter"] not in "AI" or bool(mention["named"]) or mention["stop"] is not None


def choice(text: str, options: Options) -> str | None:
    """The option that a short text is: "C", "(c)", "C. 5", "\\\\text{C}", or the text of one."""
    match = _LETTER.fullmatch(bare(text)) if len(text) <= LINE else None
    letter = match[1].upper() if match else ""
    if match is None or letter not in options:
        return _by_text(text, options)
    if match[1] not in options and (same := _by_text(match[1], options)):
        letter = same  # an option that reads "c"
    dress = " .:*_$`\"'-\\"
    behind = match[2].lstrip(dress + ")]}").rstrip(dress)
    rest = behind.rstrip(dress + ")]}")  # the bracket may be the option's own: "B. Blot (Western)"
    if not rest or letter in (_by_text(behind, options), _by_text(rest, options)):
        return letter
    return _by_text(text, options)


def _by_text(text: str, options: Options) -> str | None:
    found = [letter for letter, option in options.items() if option.strip() == text.strip()]
    if not found and len(text) <= LINE and (plain := _plain(text)):
        found = [letter for letter, option in options.items() if _plain(option) == plain]
    return found[0] if len(found) == 1 and text.strip() else None


@functools.lru_cache(maxsize=1024)
def _plain(text: str) -> str:
    return bare(text).strip("\"' ").lower()


def _refuse_text(prompt: Prompt) -> str | None:
    if prompt.gold is None or not prompt.gold.strip():
        return "no_gold"
    own = answer_text(prompt.gold)
    accepted = own is not None and own.split() == prompt.gold.split()
    return None if accepted else f"gold_not_accepted: {prompt.gold}"


def _grade_text(attempt: Attempt) -> Score:
    gold, answer = attempt.prompt.gold, answer_text(attempt.completion.answer)
    if gold is None:
        return unscored(None, "the prompt has no gold", "malformed_row")
    if answer is None:
        return no_answer(attempt)
    one, other = " ".join(gold.split()), " ".join(answer.split())
    if metadata_of(attempt.prompt).get("ignore_case") is True:
        one, other = one.casefold(), other.casefold()
    return verdict(one == other, answer, gold)


def exact() -> PlainGrader:
    """Accepts the gold's text: white space aside, and case where `ignore_case` is true."""
    return PlainGrader(_refuse_text, _grade_text)


def contains(*, enough: bool) -> PlainGrader:
    """The share of the prompt's `outputs` that the answer contains, whatever their case; with
    `enough` one counts as all. RULER's metrics (NVIDIA/RULER, scripts/eval/synthetic/constants.py),
    but that a completion which a limit ended is wrong."""

    def grade(attempt: Attempt) -> Score:
        references, answer = _references(attempt.prompt), attempt.completion.answer.lower()
        if not references:
            return unscored(None, "the prompt has no outputs", "malformed_row")
        found = [text for text in references if text.lower() in answer]
        share = float(bool(found)) if enough else len(found) / len(references)
        why = f"{len(found)} of {len(references)} references"
        return Score(share, one_line(", ".join(found)) or None, why)

    return PlainGrader(lambda prompt: None if _references(prompt) else "no_outputs", grade)


def _references(prompt: Prompt) -> list[str]:
    texts: Any = metadata_of(prompt).get("outputs")
    sound = isinstance(texts, list) and all(isinstance(t, str) and t for t in cast(Any, texts))
    return cast(list[str], texts) if sound else []


def answer_text(answer: str) -> str | None:
    """The last tag or box of a completion, what follows a leading label, or all of it; None where
    there is nothing, or a box that does not close."""
    tags = TAG.findall(answer)
    text = tags[-1].strip() if tags else answer.strip()
    box = joined_boxes(text)
    if box is not None:
        return box or None
    label = LABEL.match(text)
    return (text[label.end() :] if label else text).strip() or None
