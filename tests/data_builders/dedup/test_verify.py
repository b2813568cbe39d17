"""What is one text with slips in it, and what says something else."""

from __future__ import annotations

import random

import pytest

from data_builders.dedup.near_text import NearText, near_text
from data_builders.dedup.spans import WINDOW, differing
from data_builders.dedup.verify import similarity
from posttrain.config.deduplication import NearConfig
from tests.data_builders.dedup.copies import chat, deduplicate, edited, sentence
from tests.data_builders.dedup.test_duplicates import NEAR

CANNED = """I am sorry, but I am not able to help with this request as it stands. I can offer
general information on the subject, point to public sources that treat it, or help you to put the
question in another way. Please tell me which of these you would like me to do."""
ANIMALS = """cat cow cod dog hen hog owl elk rat bat ram ewe eel hat cap cup fox ox bear deer lion
horse goose moose mouse house swan crow dove hawk kite gull tern fern wren robin""".split()  # noqa: SIM905  a list of thirty strings reads worse


def shared(one: tuple[str, str], other: tuple[str, str]) -> float | None:
    return similarity(near_text(chat(*one)), near_text(chat(*other)), NearConfig())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("positive", "negative"),
        ("minimum", "maximum"),
        ("hot", "cold"),
        ("may", "may not"),
        ("now", "not now"),
        ("can", "can't"),
        ("possible", "impossible"),
        ("legal", "illegal"),
        ("increase", "decrease"),
        ("cat", "cap"),
        ("Si", "Zn"),
        ("five", "nine"),
        ("3", "5"),
        ("x^2+3x", "x^2-3x"),
        ("v > 0", "v < 0"),
        ("1.5", "15"),
        ("total * price", "total / price"),
        ("!ready", "ready"),
        ("(price + tax) * rate", "price + (tax * rate)"),
        ("#...#", "#..#."),
        ("是", "不是"),
        ("大", "小"),
    ],
)
def test_another_word_number_or_sign_is_another_question(one, other):
    rng = random.Random(1)
    text, answer = sentence(rng, 60), sentence(rng, 60)
    asked = [f"{text} Is the {word} one in the second half of the text?" for word in (one, other)]
    assert shared((asked[0], "Yes"), (asked[1], "No")) is None
    assert shared((asked[0], "Yes"), (asked[1], "Yes")) is None
    assert shared((asked[0], answer), (asked[1], answer)) is None
    assert shared((asked[0], f"{answer} {one}"), (asked[1], f"{answer} {other}")) is None


def test_the_last_sign_of_a_board_is_part_of_it():
    text = sentence(random.Random(11), 60)
    assert shared((f"{text} ..#..", "yes"), (f"{text} ..#.#", "yes")) is None
    assert shared((f"{text} That is all", "yes"), (f"{text} That is all.", "yes")) is not None


def test_a_short_side_differs_only_where_the_other_does(tmp_path):
    rows = [chat(f"What does the word {word} mean?", CANNED) for word in ANIMALS]
    assert len(deduplicate({"a": rows}, NEAR, tmp_path).row) == 0
    asked = sentence(random.Random(2), 60)
    assert shared((asked, "Yes"), (asked, "No")) is None
    assert shared((asked, "The house is red."), (asked, "The horse is red.")) is None
    question, answer = (
        "Which of the stones lies nearest to the river?",
        sentence(random.Random(3), 60),
    )
    slips = answer.replace("e", "", 3)
    assert shared((question, answer), (question.replace("nearest", "neaarest"), slips)) is not None
    assert shared((question, answer), (question.replace("nearest", "neaarest"), answer)) is None


def test_exercises_from_one_template_are_kept(tmp_path):
    rng = random.Random(4)
    names = "Tom Tim Sam Pam Kim Jim Ben Ken Dan Jan Ann Amy Eva Ava Leo Lea Max Mia".split()  # noqa: SIM905  as above
    counts = "one two three four five six seven eight nine ten".split()  # noqa: SIM905  as above
    rows = []
    for _ in range(80):
        name, a, b = rng.choice(names), rng.randrange(11, 99), rng.randrange(2, 9)
        asked = (
            f"{name} went to the market on Saturday morning and bought {a} apples for the family. "
            f"On the way home {name} gave {b} of the apples to a neighbour who had helped with the "
            f"garden, and then {name} shared what was left equally over the baskets in the "
            "kitchen. How many apples did everybody find there?"
        )
        rows.append(chat(asked, f"{name} bought {a} and gave away {b}. The answer is {a - b}."))
    for a in range(8):
        for b in range(8):
            asked = (
                f"A farmer walked to the market on Saturday and bought {counts[a]} baskets for the "
                f"family. On the way home the farmer found {counts[b]} more behind the old garden "
                "wall, where a neighbour had left them in the rain after the long and sudden storm "
                "of the week before. How many baskets are there now?"
            )
            rows.append(chat(asked, f"There are {a + b + 2} baskets."))
    distinct = list({row.id: row for row in rows}.values())
    assert len(distinct) > 130
    assert len(deduplicate({"a": distinct}, NEAR, tmp_path).row) == 0


def test_one_change_made_everywhere_is_no_slip():
    text, answer = sentence(random.Random(5), 50), sentence(random.Random(6), 50)
    maria = f"Maria has a garden. {text} Where does Maria live?"
    assert shared((maria, answer), (maria.replace("Maria", "Marie"), answer)) is None
    assert shared((maria, answer), (maria.replace("Maria", "Mariia", 1), answer)) is not None


def test_in_the_answer_to_one_question_short_words_may_differ():
    text, answer = sentence(random.Random(7), 50), sentence(random.Random(8), 50)
    assert shared((text, f"{answer} it is so"), (text, f"{answer} it s so")) is not None
    assert shared((text, f"{answer} 12"), (text, f"{answer} 13")) is None


def test_long_texts_are_compared_in_windows():
    rng = random.Random(9)
    text = sentence(rng, 12_000)
    assert len(text) > 30 * WINDOW
    copy = edited(text, 0.02, rng)
    spans = differing(text, copy, most=len(text))
    assert spans is not None
    at = other_at = 0
    rebuilt = ""
    for start, end, other_start, other_end in spans:
        assert text[at:start] == copy[other_at:other_start]
        rebuilt += text[at:start] + copy[other_start:other_end]
        at, other_at = end, other_end
    assert rebuilt + text[at:] == copy
    assert sum(span.edits for span in spans) <= 1.02 * 0.02 * len(text)
    assert differing(text, sentence(rng, 12_000)[: len(text)], most=len(text) // 20) is None
    assert similarity(NearText("a", text), NearText("a", copy), NearConfig()) is not None
