"""The example lists of patterns: each pattern matches what it is for, and spares near misses."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from data_builders.filters.patterns import Matcher
from posttrain.config.filters import Pattern, Patterns

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
