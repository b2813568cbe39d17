"""Rows with a question, a right answer and perhaps options → questions with a user message.

{"question": "2+2?", "A": "3", "B": "4", "answer": "B"}
→ "2+2?\\n\\nA) 3\\nB) 4\\n\\nGive the letter …", gold "B", options {"A": "3", "B": "4"}
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from data_builders.dialects import RowProblem
from data_builders.keyed import key64
from data_builders.prompts.question import Question, Row, carried, field_of, text_of
from posttrain.config.prompts import OPTION_LETTERS, PLACEHOLDER, QuestionPrompts
from posttrain.records import Message


def read_question(row: Row, source: QuestionPrompts) -> Question:
    """The question of one row.

    Raises:
        RowProblem: a field is missing or empty, or the gold is not to be found in it.
    """
    asked = text_of(row, source.question)
    options = _options(row, source, asked)
    gold = _letter(row, source, options) if options else _gold(row, source)
    text = _fill(source.text, asked, options)
    messages = (Message("user", text),)
    if source.system is not None:
        messages = (Message("system", source.system), *messages)
    more = {"options": options} if options else {}
    metadata = carried(row, source.metadata, **more)
    return Question(messages=messages, tools=None, gold=gold, metadata=metadata, row=row)


def _gold(row: Row, source: QuestionPrompts) -> str:
    text = text_of(row, source.gold)
    if source.gold_pattern is None:
        return text
    found = list(re.finditer(source.gold_pattern, text))
    gold = (found[-1][1] or "").strip() if found else ""
    if not gold:
        raise RowProblem("gold_unreadable", source.gold, f"no match of {source.gold_pattern!r}")
    return gold


def _texts(row: Row, source: QuestionPrompts) -> list[str]:
    """The options' texts in the row's own order."""
    if len(source.options) == 1:
        listed = field_of(row, source.options[0])
        if not isinstance(listed, list) or not 2 <= len(listed) <= len(OPTION_LETTERS):
            raise RowProblem("malformed_field", source.options[0], "not a list of options")
        return [text_of({"option": item}, "option") for item in listed]
    return [text_of(row, path) for path in source.options]


def _options(row: Row, source: QuestionPrompts, asked: str) -> dict[str, str]:
    """Letter → text, in the order shown."""
    if not source.options:
        return {}
    texts = _texts(row, source)
    if len(set(texts)) < len(texts):
        raise RowProblem("equal_options", source.options[0], "two options say the same")
    if source.shuffle:
        # by the text of each option, so that the row's own order gives nothing away
        texts.sort(key=lambda text: key64(0, "option", asked, text))
    return dict(zip(OPTION_LETTERS, texts, strict=False))


def _letter(row: Row, source: QuestionPrompts, options: Mapping[str, str]) -> str:
    """The letter, among those shown, of the right option."""
    own = _texts(row, source)
    value = field_of(row, source.gold)
    gold = _gold(row, source)
    readings = {text for text in own if text == gold}
    if isinstance(value, int) and not isinstance(value, bool):
        readings.update(own[value : value + 1] if value >= 0 else ())
    elif len(gold) == 1 and gold in OPTION_LETTERS:
        place = OPTION_LETTERS.index(gold)
        readings.update(own[place : place + 1])
    if len(readings) != 1:
        kind = "gold_ambiguous" if readings else "gold_unreadable"
        raise RowProblem(kind, source.gold, f"{value!r:.80} names {len(readings)} of the options")
    return next(letter for letter, text in options.items() if text in readings)


def _fill(template: str, asked: str, options: Mapping[str, str]) -> str:
    """The template with its placeholders filled; what is filled in is not looked at again."""
    listed = "\n".join(f"{letter}) {text}" for letter, text in options.items())
    values = {"question": asked, "options": listed, **options}
    return PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)
