"""Graders of a choice among options, of an exact text, and of references that an answer contains.

Patterns in the metadata's `output_regex` (one or a list) are tried before anything else: the
chosen option is the first group of the last match, in any case, of the first pattern that matches.
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
    compared_score,
    no_answer_score,
    one_line,
    unscored,
)
from reward.graders.final_answer import LABEL, LINE, TAG, VERDICT, answer_places, last_boxes
from reward.graders.tidy import bare, tidy
from reward.graders.workers import Job, JobResult, RunJobs, run_shared

Options = Mapping[str, str]
SEVERAL = ""  # in place of a letter: several options are chosen


class MultipleChoice:
    """Grader that accepts the gold's letter, or the gold option's text."""

    def __init__(self, *, run: RunJobs = run_shared) -> None:
        self._run = run

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """Drop reason of each prompt, or None.

        Reasons: no options, a gold that is none of them, equal options, an invalid pattern.
        """
        matches = self._match_patterns([(prompt, "") for prompt in prompts])
        return [
            _refuse_choice(prompt, match.problem)
            for prompt, match in zip(prompts, matches, strict=True)
        ]

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """Score of each attempt, in order."""
        matches = self._match_patterns([(a.prompt, a.completion.answer) for a in attempts])
        return [
            before_reading(attempt) or _grade_choice(attempt, match)
            for attempt, match in zip(attempts, matches, strict=True)
        ]

    def _match_patterns(self, answers: Sequence[tuple[Prompt, str]]) -> list[JobResult]:
        """Match each answer with its prompt's `output_regex`; None as value where there is none.

        The patterns come with the data and may run for ever: they are matched in workers.
        """
        patterns_by_answer = [patterns_of(prompt) for prompt, _ in answers]
        jobs: list[Job] = []
        for patterns, (_, answer) in zip(patterns_by_answer, answers, strict=True):
            if patterns:
                jobs.append(("last_match", [patterns, answer]))
        results = iter(self._run(jobs))
        return [next(results) if patterns else JobResult(None) for patterns in patterns_by_answer]


def options_of(prompt: Prompt) -> dict[str, str]:
    """Options of a prompt, letter → text; empty where it has none."""
    options: Any = metadata_of(prompt).get("options")
    if isinstance(options, list):
        options = dict(zip(ascii_uppercase, cast(list[object], options), strict=False))
    if not isinstance(options, dict):
        return {}
    return {letter.upper(): str(text) for letter, text in cast(dict[str, object], options).items()}


def patterns_of(prompt: Prompt) -> list[Any]:
    """The prompt's `output_regex`, as a list."""
    patterns: Any = metadata_of(prompt).get("output_regex") or []
    return cast(list[Any], patterns) if isinstance(patterns, list) else [patterns]


def _gold_letter(prompt: Prompt) -> str | None:
    return None if prompt.gold is None else read_option(prompt.gold, options_of(prompt))


def _refuse_choice(prompt: Prompt, pattern_problem: str | None) -> str | None:
    options = options_of(prompt)
    gold = _gold_letter(prompt)
    if len(options) < 2:
        return "no_options"
    if prompt.gold is None:
        return "no_gold"
    if gold is None:
        return f"gold_not_an_option: {prompt.gold}"
    if chosen_option(f"The answer is \\boxed{{{gold}}}", options) != gold:
        return f"gold_not_accepted: {prompt.gold}"
    return None if pattern_problem is None else f"bad_output_regex: {pattern_problem}"


def _grade_choice(attempt: Attempt, match: JobResult) -> Score:
    gold = _gold_letter(attempt.prompt)
    options = options_of(attempt.prompt)
    if gold is None:
        return unscored(None, "the gold is none of the prompt's options", "malformed_row")
    if match.problem is not None:
        return unscored(None, f"output_regex: {match.problem}", match.failure)
    if match.value is not None:
        letter = read_option(match.value, options)
    else:
        letter = chosen_option(attempt.completion.answer, options)
        if letter is None:
            return no_answer_score(attempt)
    if letter == SEVERAL:
        return Score(0.0, None, "several options are chosen")
    return compared_score(letter == gold, letter or str(match.value), gold)


_NAMED = r"(?:options?|choices?|letter|answer|opción|opção|réponse|выбираю|вариант|选项|选择|选|選)"
# a letter with its markup and the words before it; groups: the letter, the text behind it
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
# behind the word I, or an article: "Answer: I don't know", "A guess"; not "I rather than B"
WORD_BEHIND = re.compile(
    r"\s+(?!(?:if|unless|otherwise|or|and|but|is|because|since|as|so|for|which|not|unlike|over"
    r"|rather|instead|then|vs|versus|plus)\b)[a-z]"
)
# "not A or B", "not the answer: A", "✗ B", "C is wrong"
_DENIED = re.compile(
    r"(?:(?i:\b(?:not|neither|nor|except|anything but|than|rule out|eliminate|no es|nicht|pas))\b"
    r"|n't\b|不是)[^.,;:!?\n]{0,20}?(?<![A-Za-z])[A-Z]\b(?:(?:,| or| nor| and)+ [A-Z]\b)*"
    r"|(?i:\bnot (?:\w+ ){0,2}(?:answer|option|choice|solution))\W{1,4}[A-Z]\b"
    r"|(?:^|:)[^\w\n]*(?:✗|\\neq?\b)\W{0,4}[A-Z]\b|(?<![A-Za-z])[A-Z]\b[^\w\n]{0,4}✗"
    r"|(?<![A-Za-z])[A-Z]\b(?:(?:,| or| nor| and){1,2} [A-Z]\b){0,8}\W{0,4}"
    r"(?:is|are|can be|would be)(?: not|n't| too| wrong| incorrect| false| ruled out)\b",
    re.MULTILINE,
)
_AND = re.compile(r"[\s*_)\]}]*(?:\b(?:or|and)\b|[/,&和或])[\s*_(\[{]*", re.IGNORECASE)


def chosen_option(answer: str, options: Options) -> str | None:
    """Option that an answer (without its reasoning) chooses: upper-case letter, SEVERAL or None.

    SEVERAL where it chooses several; None where it names no option.
    """
    answer = _without_list_of_options(tidy(answer), options)
    answer = without_verdict_texts(answer, options)
    for place in answer_places(answer):
        line = place.text.split("\n", 1)[0]
        text = line if place.kind == "label" else place.text
        letter = read_option(place.text, options) or read_option(text, options)
        if letter is None and place.kind == "line":
            opening_line = answer.strip().split("\n", 1)[0]
            letter = read_option(answer, options) or read_option(opening_line, options)
        if letter is None:
            letter = _mentioned_option(_DENIED.sub(" ", text), options, place.kind)
        if letter is None and place.kind == "line":
            letter = _option_with_text(re.split(r"\b(?:is|are)\b", line)[-1], options)
        if letter is not None:
            return letter
    return None


def without_verdict_texts(answer: str, options: Options) -> str:
    """The answer without texts of options that call something wrong, behind their letters.

    "B: False" would be read as a B that is denied.
    """
    for letter, text in options.items():
        if re.fullmatch(VERDICT, text.strip(" ."), re.IGNORECASE):
            option = rf"(?<!\w)({letter}\W{{1,12}}){re.escape(text.strip())}\b"
            answer = re.sub(option, r"\1", answer, flags=re.IGNORECASE)
    return answer


def _without_list_of_options(answer: str, options: Options) -> str:
    """The answer without the first list of all options in it, whose last line is not a choice.

    A line that names an option a second time stays.
    """
    in_one_line = r"[\s,;|]+".join(
        rf"\(?{re.escape(letter)}\b[\s.:)\]-]*{re.escape(text)}" for letter, text in options.items()
    )
    answer = re.sub(in_one_line, " ", answer, count=1)
    letters = [read_option(line, options) for line in answer.split("\n")]
    if not options.keys() <= set(letters):
        return answer
    listed: set[str | None] = {None}
    other_lines: list[str] = []
    for line, letter in zip(answer.split("\n"), letters, strict=True):
        if letter in listed:
            other_lines.append(line)
        listed.add(letter)
    return "\n".join(other_lines)


def _mentioned_option(text: str, options: Options, kind: str) -> str | None:
    """Option that a text names, or SEVERAL: after a label the first, in a last line the only."""
    text = "\n".join(map(bare, text.split("\n")))
    mentions = [m for m in _MENTION.finditer(text) if m["letter"] in options and _names_option(m)]
    if not mentions:
        return None
    main_mention = mentions[0]
    if len(mentions) > 1 and mentions[1]["letter"] != main_mention["letter"]:
        next_mention = mentions[1]
        between = text[main_mention.end("letter") : next_mention.start("letter")]
        if _AND.fullmatch(between):
            return SEVERAL
        is_new_sentence = "." in between and re.search(r"\w", text[next_mention.end("letter") :])
        if not (is_new_sentence or re.search(r"\w", between)):
            return None  # "A: C"
    if kind == "label" or len({mention["letter"] for mention in mentions}) == 1:
        return main_mention["letter"]
    called_options = {mention["letter"] for mention in mentions if mention["named"]}
    if len(called_options) == 1:
        return called_options.pop()
    if main_mention.start("letter") <= 2 and main_mention["stop"]:  # "D. It cannot be A or B."
        return main_mention["letter"]
    return None


def _names_option(mention: re.Match[str]) -> bool:
    """Tell a letter that names an option from the article of "A good guess" and the word I."""
    if mention["letter"] not in "AI" or mention["stop"] is not None:
        return True
    is_word = WORD_BEHIND.match(mention.string, mention.end("letter"))
    return bool(mention["named"]) and not (mention["letter"] == "I" and is_word)


def read_option(text: str, options: Options) -> str | None:
    """Letter of the option that a short text is: "C", "(c)", "C. 5", "\\\\text{C}", or its text."""
    match = _LETTER.fullmatch(bare(text)) if len(text) <= LINE else None
    letter = match[1].upper() if match else ""
    if match is None or letter not in options or "✗" in match.string:
        return _option_with_text(text, options)
    if match[1] not in options and (letter_of_text := _option_with_text(match[1], options)):
        letter = letter_of_text  # the text of an option is "c"
    markup = " .:*_$`\"'-\\"
    behind = match[2].lstrip(markup + ")]}").rstrip(markup)
    # the bracket may belong to the option: "B. Blot (Western)"
    without_bracket = behind.rstrip(markup + ")]}")
    if not without_bracket:
        return letter
    behind_letters = (
        _option_with_text(behind, options),
        _option_with_text(without_bracket, options),
    )
    return letter if letter in behind_letters else _option_with_text(text, options)


def _option_with_text(text: str, options: Options) -> str | None:
    """Letter of the only option with this text, by each character or else plainly; None if none."""
    letters = [letter for letter, option in options.items() if option.strip() == text.strip()]
    if not letters and len(text) <= LINE and (plain := _plain_text(text)):
        letters = [letter for letter, option in options.items() if _plain_text(option) == plain]
    return letters[0] if len(letters) == 1 and text.strip() else None


@functools.lru_cache(maxsize=1024)
def _plain_text(text: str) -> str:
    return bare(text).strip("\"' ").lower()


def _refuse_text(prompt: Prompt) -> str | None:
    if prompt.gold is None or not prompt.gold.strip():
        return "no_gold"
    answer = answer_text(prompt.gold)
    accepted = answer is not None and answer.split() == prompt.gold.split()
    return None if accepted else f"gold_not_accepted: {prompt.gold}"


def _grade_text(attempt: Attempt) -> Score:
    gold = attempt.prompt.gold
    answer = answer_text(attempt.completion.answer)
    if gold is None:
        return unscored(None, "the prompt has no gold", "malformed_row")
    if answer is None:
        return no_answer_score(attempt)
    gold_words = " ".join(gold.split())
    answer_words = " ".join(answer.split())
    if metadata_of(attempt.prompt).get("ignore_case") is True:
        gold_words = gold_words.casefold()
        answer_words = answer_words.casefold()
    return compared_score(gold_words == answer_words, answer, gold)


def exact_grader() -> PlainGrader:
    """Grader that accepts the gold's text, up to white space and, with `ignore_case`, case."""
    return PlainGrader(_refuse_text, _grade_text)


def contains_grader(*, one_is_enough: bool) -> PlainGrader:
    """Grader by the share of the prompt's `outputs` that the answer contains, in any case.

    With `one_is_enough` one of them scores 1. These are RULER's metrics (NVIDIA/RULER,
    scripts/eval/synthetic/constants.py), except that a truncated completion is wrong.
    """

    def grade(attempt: Attempt) -> Score:
        references = _references(attempt.prompt)
        answer = attempt.completion.answer.lower()
        if not references:
            return unscored(None, "the prompt has no outputs", "malformed_row")
        contained = [text for text in references if text.lower() in answer]
        share = float(bool(contained)) if one_is_enough else len(contained) / len(references)
        explanation = f"{len(contained)} of {len(references)} references"
        return Score(share, one_line(", ".join(contained)) or None, explanation)

    return PlainGrader(lambda prompt: None if _references(prompt) else "no_outputs", grade)


def _references(prompt: Prompt) -> list[str]:
    texts: Any = metadata_of(prompt).get("outputs")
    well_formed = isinstance(texts, list) and all(
        isinstance(t, str) and t for t in cast(Any, texts)
    )
    return cast(list[str], texts) if well_formed else []


def answer_text(answer: str) -> str | None:
    """The last tag or box of a completion, else what follows a leading label, else all of it.

    None where there is nothing, or a box that does not close.
    """
    tags = TAG.findall(answer)
    text = tags[-1].strip() if tags else answer.strip()
    box = last_boxes(text)
    if box is not None:
        return box or None
    label = LABEL.match(text)
    return (text[label.end() :] if label else text).strip() or None
