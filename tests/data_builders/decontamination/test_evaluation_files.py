"""What of evaluation files is looked for: items in many places, templates, splits, rows without text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict

from data_builders.decontamination.match import Decontaminator
from posttrain.config.decontamination import DecontaminationConfig
from posttrain.errors import ConfigError
from tests.data_builders.decontamination.test_decontamination import dropped
from tests.data_builders.dedup.copies import chat, sentence
from tests.data_builders.small_build import write_rows

VERBS = "Evaluate Simplify Factor Expand Integrate Differentiate Solve Compute Find Derive".split()  # noqa: SIM905  a list reads worse
FRAME = (
    "Work on the following exercise from the mathematics contest and put only your final answer "
    "into a box at the end."
)


def questions(count: int, *, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [sentence(rng, 30) for _ in range(count)]


def load(folder: Path, *files: dict[str, Any], **keys: Any) -> Decontaminator:
    return Decontaminator.load(
        DecontaminationConfig.model_validate({"files": files, **keys}), folder
    )


def short_exercises(count: int) -> list[dict[str, Any]]:
    """Six words each has for itself."""
    rng = random.Random(1)
    drawn = (f"{rng.choice(VERBS)} {rng.choice('pqrst')} when b is {k}" for k in range(count))
    return [{"question": f"{FRAME} {text}"} for text in drawn]


def test_the_same_items_in_many_files_are_one_item_each(tmp_path):
    asked = questions(20)
    for k in range(11):
        rows = [{"question": text, "answer": f"of model {k}"} for text in asked]
        write_rows(tmp_path / "runs" / f"run{k:02}.jsonl", rows)
    found = load(tmp_path, {"path": "runs/*.jsonl", "fields": ("question",)})
    drops = found.drops([chat(text, "x") for text in asked])
    places = [drop.detail.split(" question")[0] for drop in drops if drop is not None]
    assert places == [f"message 0: 100% of runs/run00.jsonl:{k + 1}" for k in range(20)]
    assert [(b["inside"], b["repeated"]) for b in found.counts] == [(20, 0)] + [(0, 20)] * 10
    assert found.warnings == []


def test_items_that_cannot_be_told_apart_are_refused(tmp_path):
    rows = [{"q": f"{text} sample {k}"} for text in questions(20) for k in range(11)]
    write_rows(tmp_path / "e.jsonl", rows)
    with pytest.raises(ConfigError, match=r"e.jsonl: none of its 220 items .* Raise `common`"):
        load(tmp_path, {"path": "e.jsonl"})
    found = load(tmp_path, {"path": "e.jsonl"}, common=11)
    assert dropped(found, chat(questions(20)[3], "x")) is not None


def test_items_with_few_words_of_their_own_are_counted_and_said(tmp_path):
    write_rows(tmp_path / "e.jsonl", [*short_exercises(60), {"question": questions(1)[0]}])
    found = load(tmp_path, {"path": "e.jsonl"})
    (counts,) = found.counts
    assert [counts[k] for k in ("inside", "template", "whole_message", "rows")] == [1, 60, 0, 61]
    (warning,) = found.warnings
    assert warning.startswith(
        "decontamination: e.jsonl: 60 of 61 items are found as whole messages"
    )
    # as a whole message each is found, amid other words none
    asked = [row["question"] for row in short_exercises(60)]
    drops = found.drops([chat(text.upper(), "x") for text in asked])
    assert all(
        drop is not None and "question without its template" in drop.detail for drop in drops
    )
    assert found.drops([chat(f"Hello. {text}", "x") for text in asked]) == [None] * 60


def test_other_questions_under_the_same_instruction_are_kept(tmp_path):
    rng = random.Random(3)
    long = [
        {
            "question": f"{FRAME} {rng.choice(VERBS)} the sum of {sentence(rng, rng.randrange(8, 30))}"
        }
        for _ in range(60)
    ]
    write_rows(tmp_path / "e.jsonl", [*short_exercises(60), *long])
    found = load(tmp_path, {"path": "e.jsonl"})
    other = [
        chat(f"{FRAME} {rng.choice(VERBS)} the sum of all {sentence(rng, 12)} number {k}", "x")
        for k in range(200)
    ]
    assert found.drops(other) == [None] * 200
    planted = [chat(f"Hello. {row['question']} Thanks.", "x") for row in long]
    assert None not in found.drops(planted)


def test_a_split_of_a_dataset_directory(tmp_path):
    asked = questions(12)
    test = Dataset.from_list([{"question": text} for text in asked])
    train = Dataset.from_list([{"question": "something else that nobody asks for here"}])
    DatasetDict({"test": test, "train": train}).save_to_disk(str(tmp_path / "d"))
    found = load(tmp_path, {"path": "d", "split": "test", "fields": ("question",)})
    drop = dropped(found, chat(asked[4], "x"))
    assert drop is not None
    assert "d/test:5 question" in drop.detail
    assert [(b["file"], b["rows"], b["inside"]) for b in found.counts] == [("d", 12, 12)]


def test_rows_without_text_are_counted_and_warned_of(tmp_path):
    rows: list[dict[str, Any]] = [{"question": text} for text in questions(6)]
    rows += [{"quest": "a b c d e f g h i"}, {"question": None}, {"question": " "}]
    write_rows(tmp_path / "e.jsonl", rows)
    index = load(tmp_path, {"path": "e.jsonl", "fields": ("question",)})
    (warning,) = index.warnings
    assert warning.startswith("decontamination: e.jsonl: 3 of 9 rows")
    assert [index.counts[0][k] for k in ("rows", "without_text", "inside")] == [9, 3, 6]
    (warning,) = load(tmp_path, {"path": "e.jsonl"}).warnings
    assert warning.startswith("decontamination: e.jsonl: 2 of 9 rows")


def test_every_item_is_counted_once(tmp_path):
    rows = [{"q": text} for text in ("yes", "one two three four five six", *questions(3))]
    rows += [*rows[1:3], *short_exercises(11), {"q": "Which of?", "options": ["a b c", "d e f"]}]
    write_rows(tmp_path / "e.jsonl", rows)
    (counts,) = load(tmp_path, {"path": "e.jsonl"}).counts
    assert counts == {
        "file": "e.jsonl", "rows": 19, "without_text": 0, "inside": 3, "with_options": 1,
        "whole_message": 1, "template": 11, "too_short": 1, "repeated": 2,
    }  # fmt: skip


CAPITALS = {
    "question": "What is the capital of Australia?",
    "choices": ["Sydney", "Canberra", "Melbourne", "None of the above"],
}


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        (CAPITALS, ("question", "choices")),
        (CAPITALS, ()),
        (dict(zip(["question", *"ABCD"], [CAPITALS["question"], *CAPITALS["choices"]], strict=True)),
         ("question", "A", "B", "C", "D")),
        ({"question": CAPITALS["question"], "mine": CAPITALS["choices"]}, ("question", "mine")),
    ],
)  # fmt: skip
def test_a_short_question_is_found_with_its_options(tmp_path, row, fields):
    write_rows(tmp_path / "e.jsonl", [row])
    index = load(tmp_path, {"path": "e.jsonl", "fields": fields})
    assert [c["with_options"] for c in index.counts] == [1]
    question, options = row["question"], CAPITALS["choices"]
    labelled = "\n".join(f"({label}) {o}" for label, o in zip("ABCD", options, strict=True))
    contaminated = [
        f"Hello!\nQuestion: {question}\nOptions:\n{labelled}\nAnswer:",
        f"{question} {' '.join(options[::-1])} Explain.",
        question,
    ]
    clean = [
        f"Hello. {question} I forgot.",
        f"Hello.\n{labelled}",
        f"Hello. {question}\n{labelled.replace('Sydney', 'Perth')}",
        f"Hello. {question} {sentence(random.Random(0), 60)}\n{labelled}",
        f"What is the capital of Austria?\n{labelled}",
    ]
    assert None not in index.drops([chat(text, "x") for text in contaminated])
    assert index.drops([chat(text, "x") for text in clean]) == [None] * len(clean)
    drop = dropped(index, chat(contaminated[0], "x"))
    assert drop is not None
    assert "question with its options: 'what is the capital" in drop.detail
    # two options with the same words need two places
    assert dropped(index, chat(f"{question} Sydney Canberra Melbourne the above", "x")) is None


def test_options_are_no_items(tmp_path):
    formula = "P(A and B) = P(A) times P(B) for independent events A and B only"
    asked = "Which of these holds for two independent events of any experiment?"
    write_rows(tmp_path / "e.jsonl", [{"question": asked, "choices": [formula, "none"]}])
    index = load(tmp_path, {"path": "e.jsonl", "fields": ("question", "choices")})
    assert dropped(index, chat(f"As we know, {formula}.", formula)) is None
    assert dropped(index, chat(f"As {asked}", "x")) is not None


def test_letters_of_answers_are_no_questions(tmp_path):
    rng = random.Random(3)
    rows = [{"answer": "B", "A": sentence(rng, 5), "B": sentence(rng, 5)} for _ in range(11)]
    # a row a sample: one question, however often
    rows += [{"answer": "Which holds?", "A": sentence(rng, 5), "B": sentence(rng, 5)}] * 11
    write_rows(tmp_path / "e.jsonl", rows)
    index = load(tmp_path, {"path": "e.jsonl"})
    assert (index.counts[0]["too_short"], index.counts[0]["with_options"]) == (11, 1)
    written = [chat(f"{row['answer']} {row['A']} {row['B']}", "x") for row in rows]
    assert [drop is None for drop in index.drops(written)] == [True] * 11 + [False] * 11


def test_stems_of_many_questions_need_their_options(tmp_path):
    stem = "Which of the following statements about the subject of this chapter is not correct?"
    rng = random.Random(2)
    rows = [{"question": stem, "choices": [sentence(rng, 5) for _ in range(4)]} for _ in range(30)]
    write_rows(tmp_path / "e.jsonl", rows)
    index = load(tmp_path, {"path": "e.jsonl", "fields": ("question", "choices")})
    assert index.counts[0]["with_options"] + index.counts[0]["inside"] == 30
    planted = [chat(f"Go: {stem} A {' B '.join(row['choices'])}", "x") for row in rows]
    assert None not in index.drops(planted)
    other = [chat(f"Go: {stem} {sentence(rng, 20)}", "x") for _ in range(30)]
    assert index.drops(other) == [None] * 30
    assert dropped(index, chat(stem, "x")) is None


def test_a_long_message_of_question_beginnings_takes_no_time(tmp_path):
    write_rows(tmp_path / "e.jsonl", [CAPITALS])
    index = load(tmp_path, {"path": "e.jsonl"})
    assert dropped(index, chat(CAPITALS["question"] * 5_000, "x")) is None
