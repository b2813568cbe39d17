"""Copies are found in any order and layout; what only looks alike is kept."""

from __future__ import annotations

import random

import numpy as np
import pytest

from data_builders.dedup.duplicates import REASONS
from data_builders.dedup.equal_keys import equal_keys
from data_builders.dedup.near_text import NearText, near_text, squeeze
from data_builders.dedup.signature import NGRAM, rolling
from data_builders.dedup.verify import similarity
from posttrain.config.deduplication import DeduplicationConfig, NearConfig
from posttrain.records import Example, Message, make_example
from tests.data_builders.dedup.copies import (
    chat,
    deduplicate,
    edited_copy,
    sentence,
    with_call,
)

EXACT = DeduplicationConfig()
NEAR = DeduplicationConfig(near=NearConfig())


def texts(count: int, *, seed: int, words: int = 60) -> list[Example]:
    rng = random.Random(seed)
    return [chat(sentence(rng, words // 2), sentence(rng, words)) for _ in range(count)]


def test_equal_keys_in_slices_are_those_of_one_sort():
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 1 << 64, 3000, np.uint64)
    keys[rng.integers(0, 3000, 1500)] = keys[rng.integers(0, 3000, 1500)]
    expected: dict[int, set[int]] = {}
    for row, key in enumerate(keys.tolist()):
        expected.setdefault(key, set()).add(row)
    wanted = sorted(sorted(rows) for rows in expected.values() if len(rows) > 1)
    for size in (100, 1000, 5000):
        found = []
        for groups in equal_keys(keys, size=size):
            found += [sorted(g.tolist()) for g in np.split(groups.rows, groups.starts[1:])]
        assert sorted(found) == wanted
    assert list(equal_keys(np.empty(0, np.uint64))) == []


def test_squeezed_text():
    assert squeeze('  { "A" : 1 ,\n "b": "x  y" } ') == '{"a":1,"b":"x y"}'
    assert squeeze("1 2\t3\n") == "1 2 3"
    assert squeeze("ﬁne") == "fine"
    assert squeeze(" \n ") == ""
    assert near_text(chat("A\nb", "C", reasoning="d")) == NearText("a b", "d\nc")


def test_rolling_hashes_are_those_of_their_windows():
    values = np.arange(40, dtype=np.uint64) * np.uint64(1 << 60) + np.uint64(7)
    for n in (1, 2, 5, NGRAM, 13):
        rolled = rolling(values, n)
        assert len(rolled) == 40 - n + 1
        assert [int(rolling(values[k : k + n], n)[0]) for k in range(5)] == rolled[:5].tolist()


def test_exact_copies_inside_and_across_sources(tmp_path):
    first, second = texts(5, seed=1), texts(5, seed=2)
    sources = {"a": [*first, first[2]], "b": [*second, first[0], with_call(1, call_id="p")]}
    sources["c"] = [with_call(1, call_id="q", indent=4)]
    found = deduplicate(sources, EXACT, tmp_path)
    assert {REASONS[r] for r in found.reason} == {"duplicate"}
    assert found.similarity.tolist() == [1.0, 1.0, 1.0]
    assert found.row.tolist()[1:] == [11, 13]
    assert found.kept.tolist()[1:] == [0, 12]
    assert sorted([found.row[0], found.kept[0]]) == [2, 5]


def test_precedence_says_which_copy_stays(tmp_path):
    rows = texts(20, seed=3)
    sources = {"a": rows, "b": rows[::-1], "c": rows[5:]}
    kept = deduplicate(sources, EXACT, tmp_path)
    assert set(kept.row.tolist()) == set(range(20, 55))
    first_c = deduplicate(sources, DeduplicationConfig(precedence=("c", "b")), tmp_path)
    assert set(first_c.kept.tolist()) == {*range(40, 55), *range(35, 40)}


def test_one_record_for_each_prompt(tmp_path):
    rows = [chat("2+2?", answer) for answer in ("4", "four", "4!")] + [chat("3+3?", "4")]
    assert len(deduplicate({"a": rows}, EXACT, tmp_path).row) == 0
    found = deduplicate({"a": rows}, DeduplicationConfig(prompt=True), tmp_path)
    assert [REASONS[r] for r in found.reason] == ["duplicate_prompt"] * 2
    assert len(set(found.kept.tolist())) == 1
    assert np.isnan(found.similarity).all()


@pytest.mark.parametrize("share", [0.01, 0.03])
def test_edited_copies_are_found_and_nothing_else(tmp_path, share):
    rows = texts(150, seed=4, words=50)
    rng = random.Random(5)
    copies = [edited_copy(e, share, rng) for e in rows]
    found = deduplicate({"a": rows, "b": copies}, NEAR, tmp_path)
    assert len(found.row) >= 147
    assert all(kept == row - 150 for row, kept in zip(found.row, found.kept, strict=True))
    assert found.similarity.min() > 0.94
    assert list(tmp_path.iterdir()) == [], "the index is removed"


def test_republished_under_another_system_text_with_other_ids(tmp_path):
    rng = random.Random(6)
    rows, republished = [], []
    for _ in range(30):
        asked, said = sentence(rng, 20), sentence(rng, 40)
        rows.append(chat(asked, said))
        turns = (
            Message("system", "You are a helpful assistant."),
            Message("user", f" {asked.replace(' ', chr(10), 3)}"),
            Message("assistant", said.replace(". ", ".  ")),
        )
        republished.append(make_example(turns, source="b", dialect="sharegpt"))
    assert len(deduplicate({"a": rows, "b": republished}, EXACT, tmp_path).row) == 0
    assert len(deduplicate({"a": rows, "b": republished}, NEAR, tmp_path).row) == 30


def test_one_text_under_many_system_texts(tmp_path):
    rng = random.Random(14)
    turns = chat(sentence(rng, 30), sentence(rng, 40)).messages
    rows = [
        make_example((Message("system", f"Be {word}."), *turns), source="a", dialect="openai")
        for word in sentence(rng, 120).split()
    ]
    rows = list({row.id: row for row in rows}.values())
    assert len(rows) > 40
    found = deduplicate({"a": rows, "b": [chat(sentence(rng, 30), "x")]}, NEAR, tmp_path)
    assert len(found.row) == len(rows) - 1
    assert len(set(found.kept.tolist())) == 1
    assert set(found.similarity.tolist()) == {1.0}


def test_distinct_questions_of_one_template_are_kept(tmp_path):
    rng = random.Random(7)
    frame = sentence(rng, 60)
    rows = [chat(f"What is {a}+{b}?", str(a + b)) for a in range(30) for b in range(30)]
    rows += [chat(f"{frame} What is {a}+{a + 3}?", str(2 * a + 3)) for a in range(100)]
    rows += [
        chat(f"{frame} What is the capital of {name}?", f"It is {city}. {frame}")
        for name, city in [("France", "Paris"), ("Poland", "Warsaw"), ("Kenya", "Nairobi")]
    ]
    rows += [
        chat(f"{frame} Sort the letters {' '.join(rng.sample('abcdefgh', 8))}.", "a b c d e f g h")
        for _ in range(30)
    ]
    rows += [chat(sentence(rng, 9), f"I cannot help with that. {frame}") for _ in range(30)]
    assert len(deduplicate({"a": rows}, NEAR, tmp_path).row) == 0


def test_chains_do_not_pull_distant_texts_together(tmp_path):
    rng = random.Random(8)
    chain = texts(1, seed=9, words=100)
    for _ in range(12):
        chain.append(edited_copy(chain[-1], 0.03, rng))
    found = deduplicate({str(k): [e] for k, e in enumerate(chain)}, NEAR, tmp_path)
    said = [near_text(e) for e in chain]
    assert 0 < len(found.row) < 12
    for row, kept, share in zip(found.row, found.kept, found.similarity, strict=True):
        assert kept not in found.row
        assert similarity(said[kept], said[row], NearConfig()) == share


def test_the_order_of_rows_changes_nothing(tmp_path):
    rng = random.Random(10)
    rows = texts(40, seed=11, words=50)
    rows += [edited_copy(rng.choice(rows), 0.02, rng) for _ in range(60)] + rows[:7]
    outcomes = []
    for seed in (0, 1, 2):
        order = list(range(len(rows)))
        random.Random(seed).shuffle(order)
        found = deduplicate({"a": [rows[k] for k in order]}, NEAR, tmp_path)
        pairs = zip(found.row, found.kept, found.reason, strict=True)
        outcomes.append(sorted((rows[order[r]].id, rows[order[k]].id, int(w)) for r, k, w in pairs))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert 40 < len(outcomes[0]) <= 67


def test_a_copy_falls_with_the_record_it_was_a_copy_of(tmp_path):
    original = texts(1, seed=12, words=80)[0]
    near = edited_copy(original, 0.02, random.Random(13))
    found = deduplicate({"a": [original], "b": [near], "c": [near]}, NEAR, tmp_path)
    assert found.row.tolist() == [1, 2]
    assert found.kept.tolist() == [0, 0]
    assert [REASONS[r] for r in found.reason] == ["near_duplicate"] * 2
    assert found.similarity[0] == found.similarity[1] < 1


def edited_copies(example: Example, share: float, rng: random.Random, count: int) -> list[Example]:
    return [edited_copy(example, share, rng) for _ in range(count)]


@pytest.mark.parametrize(("words", "copies"), [(60, 80), (600, 40)])
def test_any_number_of_copies_of_one_text_leave_one(tmp_path, words, copies):
    rng = random.Random(15)
    rows = edited_copies(texts(1, seed=16, words=words)[0], 0.01, rng, copies)
    kept: set[str] = set()
    for order in (rows, rows[::-1], rng.sample(rows, len(rows))):
        found = deduplicate({"a": order}, NEAR, tmp_path)
        assert len(found.row) == copies - 1
        kept |= {order[k].id for k in set(range(copies)) - set(found.row.tolist())}
    assert len(kept) == 1


def test_copies_of_several_texts_from_one_template(tmp_path):
    rng = random.Random(17)
    frame = sentence(rng, 60)
    rows: list[Example] = []
    for _ in range(6):
        rows += edited_copies(chat(f"{frame} {sentence(rng, 6)}", sentence(rng, 12)), 0.01, rng, 30)
    found = deduplicate({"a": rows}, NEAR, tmp_path)
    assert len(found.row) == 6 * 29
    assert all(row // 30 == kept // 30 for row, kept in zip(found.row, found.kept, strict=True))


def test_a_prompt_is_not_lost_with_the_near_duplicate_that_had_it(tmp_path):
    rng = random.Random(18)
    first = chat(sentence(rng, 50), sentence(rng, 60))
    near = edited_copy(first, 0.02, rng)
    sibling = chat(near.messages[0].content, sentence(rng, 30))
    config = DeduplicationConfig(prompt=True, near=NearConfig())
    found = deduplicate({"a": [first], "b": [near], "c": [sibling]}, config, tmp_path)
    assert (found.row.tolist(), found.kept.tolist()) == ([1], [0])
    assert [REASONS[r] for r in found.reason] == ["near_duplicate"]


def test_a_near_duplicate_of_what_falls_for_its_prompt(tmp_path):
    rng = random.Random(19)
    first = chat(sentence(rng, 50), sentence(rng, 60))
    near = edited_copy(first, 0.02, rng)
    asked = chat(first.messages[0].content, sentence(rng, 30))
    config = DeduplicationConfig(prompt=True, near=NearConfig())
    sources = {"a": [asked], "b": [first, first], "c": [near]}
    found = deduplicate(sources, config, tmp_path)
    assert [REASONS[r] for r in found.reason] == ["duplicate_prompt"] * 2 + ["near_duplicate"]
    assert found.row.tolist() == [1, 2, 3]
    assert found.kept[:2].tolist() == [0, 0]
    assert found.kept[2] in (1, 2), "it has nothing to do with the answer that was kept"
