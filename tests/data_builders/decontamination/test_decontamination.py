"""Evaluation items are found in prompts, answers and traces; what has nothing to do with them is not."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from data_builders.decontamination.index import Overlap, RunIndex
from data_builders.decontamination.items import Item, read_items
from data_builders.decontamination.match import Decontaminator
from data_builders.dedup.words import words_of
from data_builders.rows.raw import Drop
from posttrain.config.overlap import DecontaminationConfig, EvaluationFile
from posttrain.errors import ConfigError, DataError
from posttrain.records import Example, ToolCall
from tests.data_builders.dedup.copies import chat, sentence
from tests.data_builders.small_build import write_rows


def load_files(folder: Path, *files: dict[str, Any], **keys: Any) -> Decontaminator:
    config = DecontaminationConfig.model_validate({"files": files, **keys})
    return Decontaminator.load(config, folder)


def load(
    folder: Path, rows: list[dict], fields: tuple[str, ...] = (), **keys: Any
) -> Decontaminator:
    write_rows(folder / "e.jsonl", rows)
    return load_files(folder, {"path": "e.jsonl", "fields": fields}, **keys)


def dropped(decontaminator: Decontaminator, example: Example) -> Drop | None:
    return decontaminator.drops([example])[0]


def items(count: int, *, seed: int = 0) -> list[dict]:
    rng = random.Random(seed)
    return [{"question": sentence(rng, rng.randrange(12, 60)), "id": k} for k in range(count)]


@pytest.mark.parametrize("where", ["prompt", "answer", "reasoning", "call"])
@pytest.mark.parametrize("form", ["verbatim", "embedded", "layout"])
def test_planted_items_are_found_and_named(tmp_path, where, form):
    rows = items(40)
    found = load(tmp_path, rows)
    rng = random.Random(1)
    for k, row in enumerate(rows):
        text = row["question"]
        if form == "embedded":
            text = f"{sentence(rng, 20)}: {text} {sentence(rng, 20)}"
        elif form == "layout":
            text = f"**{text.upper().replace(' ', chr(10), 5)}**".replace(".", " !")
        example = chat(sentence(rng, 30), sentence(rng, 30))
        ask, answer = example.messages
        if where == "call":
            call = ToolCall("f", json.dumps({"q": text}))
            example = replace(example, messages=(ask, replace(answer, tool_calls=(call,))))
        elif where == "prompt":
            example = replace(example, messages=(replace(ask, content=text), answer))
        else:
            field = {"answer": "content", "reasoning": "reasoning"}[where]
            example = replace(example, messages=(ask, replace(answer, **{field: text})))
        drop = dropped(found, example)
        assert drop is not None
        assert drop.reason == "contaminated"
        assert f"e.jsonl:{k + 1} question" in drop.detail
        assert drop.detail.startswith("message 0" if where == "prompt" else "message 1")


def test_none_of_a_thousand_unrelated_records_is_dropped(tmp_path):
    found = load(tmp_path, items(200))
    rng = random.Random(2)
    records = [chat(sentence(rng, 60), sentence(rng, 200)) for _ in range(1000)]
    assert [dropped(found, r) for r in records] == [None] * 1000


def test_a_part_of_an_item_counts_by_its_share(tmp_path):
    text = " ".join(f"word{k}" for k in range(40))
    found = load(tmp_path, [{"question": text}])
    words = text.split()
    assert dropped(found, chat(" ".join(words[:23]), "x")) is None
    drop = dropped(found, chat(" ".join(words[:24]), "x"))
    assert drop is not None
    assert "60% of" in drop.detail
    assert "word0 word1" in drop.detail
    # two messages do not add up, and no run goes from one into the other
    assert dropped(found, chat(" ".join(words[:15]), " ".join(words[15:30]))) is None
    assert dropped(found, chat(" ".join(words[:7]), " ".join(words[7:14]))) is None


def test_many_together_are_as_one_by_one(tmp_path, monkeypatch):
    rows = [*items(30), {"question": "Who was Ada Lovelace, then?"}]
    found = load(tmp_path, rows)
    rng = random.Random(5)
    records = [chat(sentence(rng, 20), row["question"]) for row in rows for _ in range(2)]
    records += [chat(sentence(rng, 30), "") for _ in range(60)]
    # a run that begins in one record and ends in the next
    begin, end = rows[3]["question"].split()[:6], rows[3]["question"].split()[6:]
    records += [chat("x", " ".join(begin)), chat(" ".join(end[:7]), "x")]
    rng.shuffle(records)
    alone = [dropped(found, record) for record in records]
    assert sum(drop is not None for drop in alone) == 62
    assert found.drops(records) == alone
    monkeypatch.setattr("data_builders.decontamination.match._BATCH_CHARACTERS", 100)
    assert found.drops(records) == alone
    assert found.drops([]) == []


def test_items_of_lists_and_objects_and_chosen_fields(tmp_path):
    row = {"turns": ["first " * 9, {"content": "second " * 9}], "meta": {"note": "third " * 9}}
    path = write_rows(tmp_path / "e.jsonl", [row]).name
    (every,) = read_items(EvaluationFile(path=path), tmp_path)
    assert [i.text.split()[0] for i in every.items] == ["first", "second", "third"]
    (chosen,) = read_items(EvaluationFile(path=path, fields=("meta.note",)), tmp_path)
    assert chosen.items == (Item("e.jsonl", 1, "meta.note", "third " * 9),)


def test_what_cannot_be_read_stops(tmp_path):
    with pytest.raises(
        ConfigError, match=r"no row of e.jsonl has prompt; its fields are id, quest"
    ):
        load(tmp_path, items(2), fields=("question", "prompt"))
    (tmp_path / "bad.jsonl").write_text('{"q": "fine"}\n{"q": \n')
    with pytest.raises(DataError, match=r"bad.jsonl:2: malformed_json"):
        read_items(EvaluationFile(path="bad.jsonl"), tmp_path)
    with pytest.raises(ConfigError, match="no text to look for"):
        load(tmp_path, [{"q": "yes"}])


def test_looking_up_is_counting(tmp_path):
    """Against a plain count of shared runs, for random texts over few words."""
    rng = random.Random(4)

    def drawn(least: int, most: int) -> str:
        body = " ".join(rng.choice("abcdef") for _ in range(rng.randrange(least, most)))
        return f"say it in one {body}" if rng.random() < 0.5 else body

    texts = [drawn(6, 14) for _ in range(30)]
    index = RunIndex((Item("f", k, "q", t) for k, t in enumerate(texts)), ngram=4, common=3)
    grams = [{tuple(t.split()[i : i + 4]) for i in range(len(t.split()) - 3)} for t in texts]
    every: list[Overlap | None] = []
    for _ in range(200):
        text = drawn(8, 16) if rng.random() < 0.4 else f"a b {rng.choice(texts)[:-2]}"
        split = text.split()
        own = {tuple(split[i : i + 4]) for i in range(len(split) - 3)}
        shares = []
        for words, of_item in zip((t.split() for t in texts), grams, strict=True):
            template = {g for g in of_item if sum(g in other for other in grams) > 3}

            def covered(some: set, words: list[str] = words) -> set[int]:
                hits = [i for i in range(len(words) - 3) if tuple(words[i : i + 4]) in some]
                return {i + k for i in hits for k in range(4)}

            mine = set(range(len(words))) - covered(template)
            hit = len(mine & covered(own - template))
            shares.append(hit / len(mine) if hit >= 4 else 0.0)
        found = index.find(words_of(text))
        assert (0 if found is None else found.coverage) == pytest.approx(max(shares))
        if found is not None:
            assert texts[found.item.line] == texts[int(np.argmax(shares))]
            assert index.suspects(["zz", text, ""]).tolist() == [False, True, False]
        every.append(found)
    assert sum(f is None for f in every) > 20
    assert sum(f is not None and f.form != "" for f in every) > 20
    assert sum(f is not None and not f.form for f in every) > 20


VERBS = "Evaluate Simplify Factor Expand Integrate Differentiate Solve Compute Find Derive".split()  # noqa: SIM905  a list reads worse
FRAME = (
    "Work on the following exercise from the mathematics contest and put only your final answer "
    "into a box at the end."
)


def questions(count: int, *, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [sentence(rng, 30) for _ in range(count)]


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
    found = load_files(tmp_path, {"path": "runs/*.jsonl", "fields": ("question",)})
    drops = found.drops([chat(text, "x") for text in asked])
    places = [drop.detail.split(" question")[0] for drop in drops if drop is not None]
    assert places == [f"message 0: 100% of runs/run00.jsonl:{k + 1}" for k in range(20)]
    assert [(b["inside"], b["repeated"]) for b in found.counts] == [(20, 0)] + [(0, 20)] * 10
    assert found.warnings == []


def test_items_that_cannot_be_told_apart_are_refused(tmp_path):
    rows = [{"q": f"{text} sample {k}"} for text in questions(20) for k in range(11)]
    with pytest.raises(ConfigError, match=r"e.jsonl: none of its 220 items .* Raise `common`"):
        load(tmp_path, rows)
    found = load(tmp_path, rows, common=11)
    assert dropped(found, chat(questions(20)[3], "x")) is not None


def test_items_with_few_words_of_their_own_are_counted_and_said(tmp_path):
    found = load(tmp_path, [*short_exercises(60), {"question": questions(1)[0]}])
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
    found = load(tmp_path, [*short_exercises(60), *long])
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
    found = load_files(tmp_path, {"path": "d", "split": "test", "fields": ("question",)})
    drop = dropped(found, chat(asked[4], "x"))
    assert drop is not None
    assert "d/test:5 question" in drop.detail
    assert [(b["file"], b["rows"], b["inside"]) for b in found.counts] == [("d", 12, 12)]


def test_rows_without_text_are_counted_and_warned_of(tmp_path):
    rows: list[dict[str, Any]] = [{"question": text} for text in questions(6)]
    rows += [{"quest": "a b c d e f g h i"}, {"question": None}, {"question": " "}]
    index = load(tmp_path, rows, ("question",))
    (warning,) = index.warnings
    assert warning.startswith("decontamination: e.jsonl: 3 of 9 rows")
    assert [index.counts[0][k] for k in ("rows", "without_text", "inside")] == [9, 3, 6]
    (warning,) = load_files(tmp_path, {"path": "e.jsonl"}).warnings
    assert warning.startswith("decontamination: e.jsonl: 2 of 9 rows")


def test_every_item_is_counted_once(tmp_path):
    rows = [{"q": text} for text in ("yes", "one two three four five six", *questions(3))]
    rows += [*rows[1:3], *short_exercises(11), {"q": "Which of?", "options": ["a b c", "d e f"]}]
    (counts,) = load(tmp_path, rows).counts
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
    index = load(tmp_path, [row], fields)
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
    index = load(
        tmp_path, [{"question": asked, "choices": [formula, "none"]}], ("question", "choices")
    )
    assert dropped(index, chat(f"As we know, {formula}.", formula)) is None
    assert dropped(index, chat(f"As {asked}", "x")) is not None


def test_letters_of_answers_are_no_questions(tmp_path):
    rng = random.Random(3)
    rows = [{"answer": "B", "A": sentence(rng, 5), "B": sentence(rng, 5)} for _ in range(11)]
    # a row a sample: one question, however often
    rows += [{"answer": "Which holds?", "A": sentence(rng, 5), "B": sentence(rng, 5)}] * 11
    index = load(tmp_path, rows)
    assert (index.counts[0]["too_short"], index.counts[0]["with_options"]) == (11, 1)
    written = [chat(f"{row['answer']} {row['A']} {row['B']}", "x") for row in rows]
    assert [drop is None for drop in index.drops(written)] == [True] * 11 + [False] * 11


def test_stems_of_many_questions_need_their_options(tmp_path):
    stem = "Which of the following statements about the subject of this chapter is not correct?"
    rng = random.Random(2)
    rows = [{"question": stem, "choices": [sentence(rng, 5) for _ in range(4)]} for _ in range(30)]
    index = load(tmp_path, rows, ("question", "choices"))
    assert index.counts[0]["with_options"] + index.counts[0]["inside"] == 30
    planted = [chat(f"Go: {stem} A {' B '.join(row['choices'])}", "x") for row in rows]
    assert None not in index.drops(planted)
    other = [chat(f"Go: {stem} {sentence(rng, 20)}", "x") for _ in range(30)]
    assert index.drops(other) == [None] * 30
    assert dropped(index, chat(stem, "x")) is None


def test_a_long_message_of_question_beginnings_takes_no_time(tmp_path):
    index = load(tmp_path, [CAPITALS])
    assert dropped(index, chat(CAPITALS["question"] * 5_000, "x")) is None
