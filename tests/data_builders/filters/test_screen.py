"""Filters of what a text says: loops in, honest repetition out; patterns, language, length, copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_builders.filters.screen import Screen
from posttrain.config.filters import Filters
from posttrain.config.load import validate
from posttrain.errors import ConfigError
from posttrain.records import Example, Message, make_example

OFF: dict[str, Any] = {"repetition": None}
ENGLISH = (
    "The train leaves the station at nine in the morning and reaches the coast before noon, so "
    "we can walk along the harbour, have a late lunch with our friends there, and still be home "
    "before it is dark. Nobody has to get up early, and the tickets are not expensive at all."
)
GERMAN = (
    "Der Zug verlässt den Bahnhof um neun Uhr morgens und erreicht die Küste noch vor dem Mittag, "
    "sodass wir am Hafen entlanggehen, mit unseren Freunden spät zu Mittag essen und trotzdem vor "
    "der Dunkelheit wieder zu Hause sein können. Niemand muss früh aufstehen, und teuer ist es nicht."
)


def words(texts: Any) -> Any:
    """One token a word."""
    return [np.arange(len(text.split()), dtype=np.int32) for text in texts]


def example(*turns: str, reasoning: str | None = None) -> Example:
    """User and assistant in turn; the trace is the last answer's."""
    messages = [Message("user" if k % 2 == 0 else "assistant", t) for k, t in enumerate(turns)]
    if reasoning is not None:
        messages[-1] = Message("assistant", turns[-1], reasoning=reasoning)
    return make_example(
        tuple(messages), tools=None, source="s", license="MIT", dialect="openai", metadata="{}"
    )


def dropped(filters: dict[str, Any], *records: Example) -> list[str | None]:
    screen = Screen(validate(filters, Filters, where="test"), words)
    return [None if drop is None else drop.reason for drop in map(screen, records)]


SENTENCE = "But wait, maybe I should check whether the first case really gives seven. "


def test_a_loop_is_dropped_from_traces_and_answers_and_shown():
    text = ENGLISH + SENTENCE * 60
    loop = example("Q?", "7", reasoning=text)
    assert dropped({}, loop, example("Q?", text), example("Q?", ENGLISH)) == [
        "repetition", "repetition", None
    ]  # fmt: skip
    assert dropped(OFF, loop) == [None]
    assert dropped({"repetition": {"min_words": 5000}}, loop) == [None]
    drop = Screen(Filters(), words)(loop)
    assert drop is not None
    assert drop.span is not None
    assert (drop.span.message, drop.span.part) == (1, "reasoning")
    assert SENTENCE[:20] in text[drop.span.start : drop.span.end]


def test_patterns_with_context():
    rule = {"pattern": r"\bour (great )?nation\b", "unless": "said|quote", "within": 30}
    both = OFF | {"narratives": [rule, r"\bour values\b"]}
    assert dropped(
        both,
        example("Q?", "We serve our great nation."),
        example("Q?", 'The senator said "our nation" twice.'),
        example("Q?", "56", reasoning="This agrees with OUR VALUES."),
        example("our nation?", "Which one?"),
        example("Q?", "Our nationality law."),
    ) == ["narrative", None, "narrative", None, None]
    near = OFF | {"refusals": [{"pattern": "i cannot", "near": "assist"}]}
    assert dropped(
        near,
        example("Q?", "I cannot assist with that."),
        example("Q?", "I cannot see why."),
        example("Q?", "Sure.", reasoning="I cannot assist with that."),
    ) == ["refusal", None, None]
    assert dropped(
        OFF | {"untranslated": ["(unable|not able) to translate"]},
        example("Q?", "I am not able to translate this."),
    ) == ["untranslated"]


def test_a_file_of_patterns_is_read_and_its_mistakes_name_their_line(tmp_path: Path):
    file = tmp_path / "narratives.yaml"
    file.write_text("patterns:\n  - '\\bour values\\b'\n  - {pattern: 'our (great', within: 5}\n")
    with pytest.raises(ConfigError, match=r"narratives\.yaml:3: 'our \(great' is no pattern"):
        dropped(OFF | {"narratives": str(file)}, example("Q?", "A."))
    file.write_text("patterns:\n  - '\\bour values\\b'\n")
    assert dropped(OFF | {"narratives": str(file)}, example("Q?", "By our values.")) == [
        "narrative"
    ]
    with pytest.raises(ConfigError, match=r"pattern 1: .*look-around"):
        dropped(OFF | {"refusals": ["(?=a)b"]}, example("Q?", "A."))


def test_languages():
    pytest.importorskip("py3langid", reason="the extra language is not installed")
    only = OFF | {"language": {"allowed": ["en"]}}
    code = "```python\n" + "for zahl in liste:\n    drucke(zahl)\n" * 30 + "```"
    assert dropped(
        only,
        example("Q?", ENGLISH),
        example("Q?", GERMAN),
        example("Q?", ENGLISH, reasoning=GERMAN),
        example("Q?", code),
        example("Q?", "Guten Tag!"),
    ) == [None, "language", "language", None, None]
    assert dropped(OFF | {"language": {"allowed": ["de", "en"]}}, example("Q?", GERMAN)) == [None]
    with pytest.raises(ConfigError, match="xx is no language"):
        dropped(OFF | {"language": {"allowed": ["xx"]}}, example("Q?", "A."))


def test_turns_and_tokens():
    bounds = OFF | {"length": {"min_turns": 2, "max_turns": 3, "min_tokens": 5, "max_tokens": 9}}
    records = [example(*["a", "b"] * turns) for turns in (1, 2, 3, 4)]
    assert dropped(bounds, *records) == ["too_few_turns", None, None, "too_many_turns"]
    screen = Screen(validate(bounds, Filters, where="test"), words)
    found = [screen.by_length(tokens) for tokens in (4, 5, 9, 10)]
    assert [d and d.reason for d in found] == ["too_short", None, None, "too_long"]
    with pytest.raises(ConfigError, match="above the most"):
        dropped({"length": {"min_turns": 3, "max_turns": 2}})


def test_copied_answers():
    on = OFF | {"copied": {"characters": 20}}
    assert dropped(
        on,
        example(ENGLISH, ENGLISH.replace(" ", "  ", 3)),
        example("Q?", ENGLISH, "Again?", ENGLISH),
        example("Q?", ENGLISH, reasoning=f"{ENGLISH}\n"),
        example("Q?", "Yes.", "Sure?", "Yes."),
        example("Q?", ENGLISH),
    ) == ["copied_answer", "copied_answer", "copied_answer", None, None]


def test_texts_cut_off_at_a_known_limit():
    on = OFF | {"truncated": {"tokens": [100], "slack": 0.02}}
    cut, short = " ".join(["wording"] * 100), " ".join(["wording"] * 90)
    half = " ".join(["wording"] * 50)
    assert dropped(
        on,
        example("Q?", cut),
        example("Q?", cut + "."),
        example("Q?", short),
        example("Q?", half, reasoning=half + ". "),
        example("Q?", "```\n" + " ".join(["wording"] * 98) + "."),
    ) == ["truncated_text", None, None, "truncated_text", "truncated_text"]
