"""Chat rows → the same rows in another language, line by line.

Lines of code, tags, addresses and formulas are not translated (paper, 3.1.3); tool calls, tool
results and declared tools stay as well. A row is kept if every translated line has the numbers and
the protected pieces of its original, none is a refusal, and the row is in the language.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from data_builders.filters.patterns import LanguageCheck
from data_builders.synthesis.steps import (
    Ask,
    Asks,
    Discard,
    Keep,
    Move,
    Round,
    Row,
    Seed,
    chat_message,
    filled,
    first_refusal,
)
from posttrain.config.filters import LanguageFilter
from posttrain.config.synthesize import Translate
from posttrain.environments.base import Environment
from posttrain.records import Example, Message, tools_to_template
from posttrain.rollouts import Prompt

LINE = "translate_line"
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_LETTERS = re.compile(r"[^\W\d_]")
# pieces of a line that a translation repeats to the letter
_PROTECTED = re.compile(
    r"`[^`\n]+`"
    r"|https?://[^\s)>\]]*[^\s)>\].,;:!?]"
    r"|</?[A-Za-z][^<>\n]{0,200}>"
    r"|\\boxed\{[^\n]*?\}"
    r"|\$[^$\n]+\$"
)
# digits with their inner points and commas; which of the two separates thousands depends on the
# language, so that numbers are compared by their digits
_NUMBER = re.compile(r"\d+(?:[.,']\d+|[\u00a0\u202f ]\d{3}(?!\d))*")
# what a model says in place of a translation, at the beginning of a line; English, since models
# refuse in the language of the request
_REFUSAL = re.compile(
    r"\W*(?:i(?:'m| am) sorry|sorry,|i (?:can(?:no|')t|am unable|won't)|as an ai\b"
    r"|(?:here is|here's) the translation|unable to translate|cannot translate)",
    re.IGNORECASE,
)
_TRANSLATED_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Line:
    """One line to translate: where it stands, without the white space around it."""

    message: int
    field: str
    number: int
    text: str


class Translation:
    """The kind `translate`; the content of its seeds is an `Example`.

    Raises:
        ConfigError: py3langid is not installed, or does not know the language.
    """

    def __init__(self, config: Translate, templates: Mapping[str, str]) -> None:
        self.templates = templates
        self._config = config
        limits = LanguageFilter(
            allowed=(config.language,), letters=config.letters, confidence=config.confidence
        )
        self._language = LanguageCheck(limits)

    def moves(self, seeds: Sequence[tuple[Seed, Sequence[Round]]]) -> list[Move]:
        """One request a line, then the checks of the whole row."""
        return [self._move(seed, seed.content, rounds) for seed, rounds in seeds]

    def open_environment(self, prompt: Prompt) -> Environment | None:
        """None: nothing is called."""
        return None

    def _move(self, seed: Seed, example: Example, rounds: Sequence[Round]) -> Move:
        lines = list(lines_to_translate(example.messages))
        if not lines:
            return Discard("nothing_to_translate")
        if not rounds:
            return Asks(tuple(self._ask(seed, number, line) for number, line in enumerate(lines)))
        [answers] = rounds
        if (problem := first_refusal(answers)) is not None:
            return problem
        translations = [answered.text for answered in answers]
        for line, translation in zip(lines, translations, strict=True):
            if (problem := broken_line(line.text, translation)) is not None:
                return problem
        if (foreign := self._language.foreign("\n".join(translations))) is not None:
            return Discard("other_language", foreign.detail)
        messages = with_lines(example.messages, lines, translations)
        row: Row = {"messages": [chat_message(message) for message in messages]}
        if example.tools is not None:
            row["tools"] = tools_to_template(example.tools)
        row["metadata"] = {"language": self._config.language, "original": example.id}
        return Keep((row,))

    def _ask(self, seed: Seed, number: int, line: Line) -> Ask:
        text = filled(self.templates[LINE], language=self._config.language_name, line=line.text)
        prompt_id = f"{seed.id}/line-{number}"
        message = Message("user", text)
        return Ask("translator", Prompt(prompt_id, prompt_id, "translate", (message,)))


def lines_to_translate(messages: Sequence[Message]) -> Iterator[Line]:
    """Every line of prose of the texts and traces, in order; fenced code has none."""
    for position, message in enumerate(messages):
        if message.role not in _TRANSLATED_ROLES:
            continue
        for field in ("reasoning", "content"):
            fence = ""
            for number, line in enumerate((getattr(message, field) or "").split("\n")):
                if (opening := _FENCE.match(line)) is not None:
                    marks = opening[1]
                    if not fence:
                        fence = marks
                    elif marks.startswith(fence):
                        fence = ""
                    continue
                prose = _PROTECTED.sub(" ", line)
                if not fence and _LETTERS.search(prose):
                    yield Line(position, field, number, line.strip())


def broken_line(original: str, translation: str) -> Discard | None:
    """The first reason why a line is no translation of another; None: none was found."""
    shown = f"{original[:150]} → {translation[:150]}"
    if _REFUSAL.match(translation) and not _REFUSAL.match(original):
        return Discard("refusal", shown)
    if "\n" in translation:
        return Discard("line_count", shown)
    if protected_pieces(original) != protected_pieces(translation):
        return Discard("protected_changed", shown)
    if numbers(original) != numbers(translation):
        return Discard("numbers_changed", shown)
    return None


def protected_pieces(line: str) -> Counter[str]:
    """Code, addresses, tags, boxes and formulas of a line, each with its count."""
    return Counter(_PROTECTED.findall(line))


def numbers(line: str) -> Counter[str]:
    """Digits of each number of a line outside its protected pieces, each with its count."""
    prose = _PROTECTED.sub(" ", line)
    return Counter(re.sub(r"\D", "", number) for number in _NUMBER.findall(prose))


def with_lines(
    messages: Sequence[Message], lines: Sequence[Line], translations: Sequence[str]
) -> list[Message]:
    """The messages with lines replaced; the white space around each stays."""
    translated = list(messages)
    for line, translation in zip(lines, translations, strict=True):
        message = translated[line.message]
        texts = getattr(message, line.field).split("\n")
        texts[line.number] = texts[line.number].replace(line.text, translation, 1)
        translated[line.message] = replace(message, **{line.field: "\n".join(texts)})
    return translated
