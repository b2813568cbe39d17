"""Evaluation items are found in prompts, answers and traces; what has nothing to do with them is not."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_builders.decontamination.index import Overlap, RunIndex
from data_builders.decontamination.items import Item, read_items
from data_builders.decontamination.match import Decontaminator
from data_builders.dedup.words import words_of
from data_builders.filters.drop import Drop
from posttrain.config.decontamination import DecontaminationConfig, EvaluationFile
from posttrain.errors import ConfigError, DataError
from posttrain.records import Example, ToolCall
from tests.data_builders.dedup.copies import chat, sentence
from tests.data_builders.small_build import write_rows


def load(folder: Path, rows: list[dict], **keys) -> Decontaminator:
    file = EvaluationFile(path=write_rows(folder / "eval.jsonl", rows).name, **keys)
    return Decontaminator.load(DecontaminationConfig(files=(file,)), folder)


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
        assert f"eval.jsonl:{k + 1} question" in drop.detail
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
    monkeypatch.setattr("data_builders.decontamination.match._CHARACTERS", 100)
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
        ConfigError, match=r"no row of eval.jsonl has prompt; its fields are id, quest"
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
    index = RunIndex.build((Item("f", k, "q", t) for k, t in enumerate(texts)), ngram=4, common=3)
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
