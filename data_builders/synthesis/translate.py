"""Chat rows → the same rows in another language, line by line.

Lines of code, tags, addresses and formulas are not translated (paper, 3.1.3); tool calls, tool
results and declared tools stay as well. A row is kept if every translated line has the numbers and
the protected pieces of its original, none is a refusal, the row is in the language, and its gold, a
field that the recipe may carry along, stands in the answer where it did.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data_builders.filters.language import LanguageCheck
from data_builders.keyed import key64
from data_builders.synthesis.seeds import chat_seeds
from data_builders.synthesis.steps import (
    Answered,
    Ask,
    Discarded,
    Keep,
    KindSetup,
    Making,
    Row,
    Seed,
    SeedSet,
    SynthesisKind,
    ask_usable,
    chat_row,
    prompt_of,
)
from posttrain.config.filters import LanguageFilter
from posttrain.config.synthesize import Translate
from posttrain.records import Example, Message

# lines that begin or end a block of code or a formula
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,}|(?:\$\$|\\\[|\\\])(?=[ \t]*$))")
_END_OF_FENCE = {"\\[": "\\]"}  # others end as they begin
_LETTERS = re.compile(r"[^\W\d_]")
# pieces of a line that a translation repeats to the letter
_PROTECTED = re.compile(
    r"`[^`\n]+`"
    r"|https?://[^\s)>\]]*[^\s)>\].,;:!?]"
    r"|</?[A-Za-z][^<>\n]{0,200}>"
    r"|\\boxed\{(?:[^{}\n]|\{(?:[^{}\n]|\{[^{}\n]*\})*\})*\}"
    r"|\$[^$\n]+\$|\\\(.+?\\\)|\\\[.+?\\\]"
)
# digits with their sign, inner points and commas; a hyphen behind a word or a number is no sign
_NUMBER = re.compile(r"(?:(?<![\w.)\]%°])[-\u2212])?\d+(?:[.,']\d+|[\u00a0\u202f ]\d{3}(?!\d))*")
# what a model says in place of a translation, at the beginning of a line, in the language of the
# request
_REFUSAL = re.compile(
    r"\W*(?:i(?:'m| am) sorry|sorry,|i (?:can(?:no|')t|am unable|won't)|as an ai\b"
    r"|(?:here is|here's) the translation|unable to translate|cannot translate)",
    re.IGNORECASE,
)
# that it cannot translate, in the paper's five languages to translate to
_CANNOT_TRANSLATE = re.compile(
    r"nicht übersetzen|(?:no|non) (?:puedo|posso) tradu|ne (?:peux|puis) pas traduire"
    r"|翻訳(?:する(?:こと)?が?)?(?:は|が)?でき(?:ま|な)",
    re.IGNORECASE,
)
_OF_TRANSLATING = re.compile("translat", re.IGNORECASE)
# letters of the shortest row whose language is identified: fewer than in a filter of rows, since a
# translated chat may be short and another language in it is a failed translation
_MIN_LETTERS = 80
_TRANSLATED_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Line:
    """Line to translate.

    Attributes:
        message: position of its message.
        field: `content` or `reasoning`.
        number: position in the lines of that field.
        text: line without the white space around it.
    """

    message: int
    field: str
    number: int
    text: str


class Translation(SynthesisKind):
    """The kind `translate`; the content of its seeds is an `Example`.

    Raises:
        ConfigError: py3langid is not installed, or does not know the language.
    """

    config: Translate
    spoiled_roles = ("translator",)

    def __init__(self, config: Translate, setup: KindSetup) -> None:
        super().__init__(config, setup)
        limits = LanguageFilter(allowed=(config.language,))
        self._language = LanguageCheck(limits, min_letters=_MIN_LETTERS)

    def seeds(self, work: Path) -> SeedSet:
        return chat_seeds(self.config.sources)

    def max_completions(self, seed: Seed) -> Mapping[str, int]:
        return {"translator": len(list(lines_to_translate(seed.content.messages)))}

    def make(self, seed: Seed) -> Making:
        """Request each line, then check the whole row."""
        example: Example = seed.content
        lines = list(lines_to_translate(example.messages))
        if not lines:
            raise Discarded("nothing_to_translate")
        answers = yield from ask_usable(
            *(self._request(seed, number, line) for number, line in enumerate(lines))
        )
        translations = [answered.text for answered in answers]
        for line, translation in zip(lines, translations, strict=True):
            refuse_broken_line(line.text, translation)
        language_drop = self._language.foreign("\n".join(translations))
        if language_drop is not None:
            raise Discarded("other_language", language_drop.detail)
        messages = with_lines(example.messages, lines, translations)
        metadata: Row = json.loads(example.metadata)  # fields that the recipe carries along
        gold = str(metadata.get("gold", ""))
        if gold in example.messages[-1].content and gold not in messages[-1].content:
            raise Discarded("gold_changed", f"{gold[:80]}: {messages[-1].content[-150:]}")
        metadata |= {"language": self.config.language, "original": example.id}
        row = chat_row(messages, tools=example.tools, **metadata)
        return Keep((row,), checks=("numbers", "protected pieces", "refusal", "language"))

    def bad_answer(self, seed: Seed, answered: Answered) -> str | None:
        """Plant a changed number, a line without its code, or a refusal."""
        line = answered.text
        faults = ["I'm sorry, but I cannot translate this line."]
        if numbers(line):
            faults.append(_NUMBER.sub(lambda number: number[0] + "7", line))
        if protected_pieces(line):
            faults.append(_PROTECTED.sub("", line))
        return faults[key64(self.setup.seed, "fault", answered.ask.prompt.id) % len(faults)]

    def _request(self, seed: Seed, number: int, line: Line) -> Ask:
        text = self.text("translate_line", language=self.config.language_name, line=line.text)
        return Ask("translator", prompt_of(seed, f"line-{number}", text))


def lines_to_translate(messages: Sequence[Message]) -> Iterator[Line]:
    """Yield the lines of prose of texts and traces, in order; not of code and formulas."""
    for position, message in enumerate(messages):
        if message.role not in _TRANSLATED_ROLES:
            continue
        for field in ("reasoning", "content"):
            fence = ""  # marks of the open block
            for number, line in enumerate((getattr(message, field) or "").split("\n")):
                fence_match = _FENCE.match(line)
                if fence_match is not None:
                    marks = fence_match[1]
                    if not fence and marks != "\\]":
                        fence = marks
                    elif marks.startswith(_END_OF_FENCE.get(fence, fence)):
                        fence = ""
                    continue
                prose = _PROTECTED.sub(" ", line)
                if not fence and _LETTERS.search(prose):
                    yield Line(position, field, number, line.strip())


def refuse_broken_line(original: str, translation: str) -> None:
    """Raise Discarded for a line that is no translation of the original."""
    detail = f"{original[:150]} → {translation[:150]}"
    if _REFUSAL.match(translation) and not _REFUSAL.match(original):
        raise Discarded("refusal", detail)
    if _CANNOT_TRANSLATE.search(translation) and not _OF_TRANSLATING.search(original):
        raise Discarded("refusal", detail)
    if "\n" in translation:
        raise Discarded("line_count", detail)
    if protected_pieces(original) != protected_pieces(translation):
        raise Discarded("protected_changed", detail)
    if not same_numbers(numbers(original), numbers(translation)):
        raise Discarded("numbers_changed", detail)


def protected_pieces(line: str) -> Counter[str]:
    """Code, addresses, tags, boxes and formulas of a line, each with its count."""
    return Counter(_PROTECTED.findall(line))


def numbers(line: str) -> list[str]:
    """Numbers of a line outside its protected pieces, in their order."""
    return _NUMBER.findall(_PROTECTED.sub(" ", line))


def same_numbers(original: Sequence[str], translated: Sequence[str]) -> bool:
    """True if both have the same numbers, in any order and in the notation of any language."""
    if len(original) != len(translated):
        return False
    pairs = zip(
        sorted(map(_digits_and_decimals, original)),
        sorted(map(_digits_and_decimals, translated)),
        strict=True,
    )
    return all(
        digits == translated_digits and not set(decimals).isdisjoint(translated_decimals)
        for (digits, decimals), (translated_digits, translated_decimals) in pairs
    )


def _digits_and_decimals(number: str) -> tuple[str, tuple[int, ...]]:
    """Digits of a number with its sign, and how many of them may be decimals.

    Which mark separates thousands depends on the language: 1.234 has no decimals, or three.
    """
    unsigned = number.lstrip("-\u2212")
    # digits of any script
    digits = "".join(str(int(digit)) for digit in unsigned if digit.isdecimal())
    signed = digits if unsigned == number else f"-{digits}"
    marks = re.findall(r"\D", unsigned)
    if not marks or marks[-1] not in ".,":
        return signed, (0,)
    decimals = len(unsigned.rpartition(marks[-1])[2])
    if len(marks) > 1:
        return signed, (0 if len(set(marks)) == 1 else decimals,)
    return signed, (0, 3) if decimals == 3 else (decimals,)


def with_lines(
    messages: Sequence[Message], lines: Sequence[Line], translations: Sequence[str]
) -> list[Message]:
    """Replace lines of messages by translations; the white space around each stays."""
    translated = list(messages)
    for line, translation in zip(lines, translations, strict=True):
        message = translated[line.message]
        texts = getattr(message, line.field).split("\n")
        texts[line.number] = texts[line.number].replace(line.text, translation, 1)
        translated[line.message] = replace(message, **{line.field: "\n".join(texts)})
    return translated
