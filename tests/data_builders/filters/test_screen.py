"""Filters of what a text says, and the example lists of patterns: what each matches and spares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from data_builders.filters.patterns import Matcher
from data_builders.filters.screen import Screen
from posttrain.config.filters import Filters, Pattern, Patterns
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
    messages[-1] = Message("assistant", turns[-1], reasoning=reasoning)
    return make_example(messages, source="s", dialect="openai")


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
    kept = [example("Q?", text) for text in (ENGLISH, code, "Guten Tag!")]
    foreign = [example("Q?", GERMAN), example("Q?", ENGLISH, reasoning=GERMAN)]
    assert dropped(only, *kept, *foreign) == [None] * 3 + ["language"] * 2
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


CUT, HALF = " ".join(["wording"] * 100), " ".join(["wording"] * 50)


@pytest.mark.parametrize(
    ("filters", "records"),
    [
        ({"copied": {"characters": 20}},
         {"copied_answer": [example(ENGLISH, ENGLISH.replace(" ", "  ", 3)),
                            example("Q?", ENGLISH, "Again?", ENGLISH),
                            example("Q?", ENGLISH, reasoning=f"{ENGLISH}\n")],
          None: [example("Q?", "Yes.", "Sure?", "Yes."), example("Q?", ENGLISH)]}),
        ({"truncated": {"tokens": [100]}},
         {"truncated_text": [example("Q?", CUT), example("Q?", HALF, reasoning=HALF + ". "),
                             example("Q?", f"```\n{CUT[: 99 * 8]}.")],
          None: [example("Q?", CUT + "."), example("Q?", CUT[: 90 * 8])]}),
    ],
)  # fmt: skip
def test_copied_answers_and_texts_cut_off_at_a_known_limit(filters: Any, records: Any):
    for reason, some in records.items():
        assert dropped(OFF | filters, *some) == [reason] * len(some)


FOLDER = Path(__file__).resolve().parents[3] / "recipes" / "nemotron-3-nano"

# for each pattern of a list, in its order: texts that it alone must match
MATCHED = {
    "narratives.yaml": [
        ["This shows how far our great nation has come.", "We must stay loyal to OUR MOTHERLAND."],
        ["Nobody can stop our glorious country.", "Trust in our beloved leader, as always."],
        ["The leadership of our party has always put the people first, so the answer is B."],
        [
            "Such a plan would go against our core values and the interests of the nation.",
            "Western media attack our values.",
        ],
        ["Under the wise leadership of the chairman, harvests doubled."],
        ["The island is an inalienable part of the motherland."],
        ["Such claims hurt the feelings of the Freedonian people."],
        ["We firmly oppose every attempt of separatists to divide the island."],
        ["我们伟大的祖国日益强大。"],
        ["因此，我们党始终代表人民的利益。"],
    ],
    "untranslated.yaml": [
        ["I'm sorry, but I cannot translate this text.", "We could not even translate it."],
        ["I am not able to translate this.", "It is impossible for me to fully translate it."],
        ["As an assistant I am incapable of translating this."],
        ["Sorry, I cannot provide an accurate translation.", "We were unable to give a translation"],
        ["I don't have the ability to translate audio."],
        ["I do not speak this language."],
        ["Translation not available.", "A translation is not possible."],
        ["There is no text to translate.", "No input was provided."],
        ["Please provide the text you would like me to translate.", "Please share a sentence to be translated."],
        ["Je ne peux pas traduire ce texte."],
        ["Lo siento, pero no puedo traducir eso."],
        ["Mi dispiace, non posso tradurre questo testo."],
        ["Leider kann ich diesen Text nicht übersetzen."],
        ["申し訳ありませんが、この文は翻訳できません。", "翻訳することができません"],
        ["抱歉，我无法翻译这段文字。"],
    ],
}  # fmt: skip
SPARED = {
    "narratives.yaml": [
        "The senator told the crowd that our great nation had never been stronger, newspapers said.",
        'The first line is "our nation", which scans as an iamb.',
        "There are 3 people in our party. We would like to check in on Monday.",
        "Our party of six needs a table for dinner, and the people at the inn know it.",
        "It is a full test of our national character.",
        "Our nationality law has two sections.",
        "Honesty and care for customers are our values as a company.",
        "Let x and y be our values, so that x + y = 7.",
        "They will be talking about things that are important to our country, like schools.",
        "Under the leadership of Marie Curie the institute grew.",
        "Under the strong leadership of its founder, the company doubled its sales.",
        "The appendix is an inseparable part of the contract.",
        "I firmly support the beam at both ends.",
        "我国的面积是多少？",
        "我们党派之间的分歧很大。",
    ],
    "untranslated.yaml": [
        "This pun cannot be translated literally; a close rendering is: Time flies.",
        "His skills did not translate into goals.",
        "We cannot say which translation came first, and I don't think translations differ.",
        "The translation of the first line is: I do not understand.",
        "Translate the matrix by two units; we cannot rotate it.",
        "He could not translate his ideas into action.",
        "Maybe the translation is off.",
        "Je peux traduire ce texte : bonjour.",
        "She does not speak, and the language of the letter is Dutch.",
        "翻訳できました。",
        "翻译如下：今天天气很好。",
    ],
}


def patterns_of(name: str) -> tuple[Pattern, ...]:
    return TypeAdapter(Patterns).validate_python(str(FOLDER / name))


@pytest.mark.parametrize("name", MATCHED)
def test_each_pattern_of_a_list_matches_what_it_is_for(name: str):
    patterns = patterns_of(name)
    assert len(patterns) == len(MATCHED[name])
    for pattern, texts in zip(patterns, MATCHED[name], strict=True):
        alone = Matcher([pattern], name)
        for text in texts:
            assert alone.find(text) is not None, f"{pattern.place}: {text}"


@pytest.mark.parametrize("name", SPARED)
def test_near_misses_are_spared(name: str):
    matcher = Matcher(patterns_of(name), name)
    found = {text: matcher.find(text) for text in SPARED[name]}
    assert {text: span.detail for text, span in found.items() if span} == {}
