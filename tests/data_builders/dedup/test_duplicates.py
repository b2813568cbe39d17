"""Copies are dropped in any order and layout; distinct records are kept."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from data_builders.dedup.columns import conversation_key, prompt_key, shingles, similarity
from data_builders.dedup.duplicates import REASONS
from data_builders.dedup.words import words_of, words_of_all
from posttrain.config.overlap import DeduplicationConfig, NearConfig
from posttrain.records import Example, Message, make_example
from tests.data_builders.dedup.copies import (
    TOOLS,
    chat,
    deduplicate,
    edited,
    edited_copy,
    sentence,
    with_call,
)

EXACT = DeduplicationConfig()
NEAR = DeduplicationConfig(near=NearConfig())
REFUSAL = """I am sorry, but I am not able to help with this request as it stands. I can offer
general information on the subject, point to public sources that treat it, or help you to put the
question in another way. Please tell me which of these you would like me to do."""


def texts(count: int, *, seed: int, words: int = 60) -> list[Example]:
    rng = random.Random(seed)
    return [chat(sentence(rng, words // 2), sentence(rng, words)) for _ in range(count)]


def likeness(one: Example, other: Example) -> float:
    return similarity(*shingles([one, other]))


def test_words_and_signs():
    def shown(text: str) -> list[str]:
        words, _ = words_of_all([text], signs=True)
        return [words.text[a:b] for a, b in words.spans]

    assert shown("Tom's ﬁne x = 2*(y+1)") == ["tom", "'", "s", "fine", "x", "=", "2", "*(", "y",
                                              "+", "1", ")"]  # fmt: skip
    assert shown("苹果 is 1,000!") == ["苹", "果", "is", "1", ",", "000", "!"]
    one, other = ('{"a": [1, 2]}', '{\n   "a" : [\n 1,\n 2\n ]\n}')
    hashes = [words_of_all([t], signs=True)[0].hashes.tolist() for t in (one, other)]
    assert hashes[0] == hashes[1]
    assert len(set(words_of("ab ba abb bab aab").hashes.tolist())) == 5
    words, starts = words_of_all(["a b", "", "?!", "c"])
    assert starts.tolist() == [0, 2, 2, 2, 3]
    assert words.hashes.tolist() == words_of("a b c").hashes.tolist()


def test_similarity_is_the_jaccard_similarity_of_both_sides():
    """Against sets of tuples, whatever stands beside a record in its batch."""
    rng = random.Random(0)
    records = [chat(sentence(rng, 12), sentence(rng, 30)) for _ in range(6)]
    records += [chat(m[0].content, edited(m[1].content, 0.1, rng)) for m in
                (r.messages for r in records)] + [chat("", "yes"), chat("", "no")]  # fmt: skip

    def grams(text: str) -> set[tuple[str, ...]]:
        words = text.replace(".", " .").split()
        return {tuple(words[k : k + 3]) for k in range(max(len(words) - 2, 1))} if words else set()

    every = shingles(records)
    for one, a in zip(records, every, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, shingles([one])[0], strict=True))
        for other, b in zip(records, every, strict=True):
            pairs = [
                (grams(m.content), grams(n.content))
                for m, n in zip(one.messages, other.messages, strict=True)
            ]
            shared = [len(p & q) for p, q in pairs]
            union = [len(p | q) for p, q in pairs]
            whole = sum(shared) / sum(union)
            near = all(3 * n >= size for n, size in zip(shared, union, strict=True))
            assert similarity(a, b) == pytest.approx(whole if near else 0)


def test_exact_copies_inside_and_across_sources(tmp_path):
    first, second = texts(5, seed=1), texts(5, seed=2)
    sources = {"a": [*first, first[2]], "b": [*second, first[0], with_call(1, call_id="p")]}
    sources["c"] = [with_call(1, call_id="q", indent=4)]
    drops = deduplicate(sources, EXACT, tmp_path)
    assert {REASONS[r] for r in drops.reason} == {"duplicate"}
    assert drops.similarity.tolist() == [1.0, 1.0, 1.0]
    assert list(zip(drops.row.tolist(), drops.kept.tolist(), strict=True)) == [
        (5, 2), (11, 0), (13, 12)
    ]  # fmt: skip
    assert len(deduplicate({"a": [], "b": []}, NEAR, tmp_path).row) == 0


def test_precedence_decides_which_copy_stays(tmp_path):
    rows = texts(20, seed=3)
    sources = {"a": rows, "b": rows[::-1], "c": rows[5:]}
    kept = deduplicate(sources, EXACT, tmp_path)
    assert set(kept.row.tolist()) == set(range(20, 55))
    first_c = deduplicate(sources, DeduplicationConfig(precedence=("c", "b")), tmp_path)
    assert set(first_c.kept.tolist()) == {*range(40, 55), *range(35, 40)}


def test_one_record_for_each_prompt(tmp_path):
    rows = [chat("2+2?", answer) for answer in ("4", "four", "4!")] + [chat("3+3?", "4")]
    assert len(deduplicate({"a": rows}, EXACT, tmp_path).row) == 0
    drops = deduplicate({"a": rows}, DeduplicationConfig(prompt=True), tmp_path)
    assert [REASONS[r] for r in drops.reason] == ["duplicate_prompt"] * 2
    assert len(set(drops.kept.tolist())) == 1
    assert np.isnan(drops.similarity).all()


@pytest.mark.parametrize(("share", "least"), [(0.01, 148), (0.03, 105)])
def test_edited_copies_are_dropped_and_nothing_else(tmp_path, share, least):
    rows = texts(150, seed=4, words=50)
    rng = random.Random(5)
    copies = [edited_copy(e, share, rng) for e in rows]
    drops = deduplicate({"a": rows, "b": copies}, NEAR, tmp_path)
    assert len(drops.row) >= least
    assert all(kept == row - 150 for row, kept in zip(drops.row, drops.kept, strict=True))
    assert 0.8 <= drops.similarity.min() < 0.9


def test_one_text_under_many_system_texts_and_layouts(tmp_path):
    rng = random.Random(14)
    question, answer = sentence(rng, 30), sentence(rng, 40)
    rows = [
        make_example(
            (Message("system", f"Be {word}."), Message("user", question.replace(" ", "\n", k)),
             Message("assistant", answer.replace(". ", ".  "))),
            source="a", dialect="openai",
        )
        for k, word in enumerate(sorted(set(sentence(rng, 200).split())))
    ]  # fmt: skip
    assert len(rows) > 40
    drops = deduplicate({"a": rows, "b": [chat(sentence(rng, 30), "x")]}, NEAR, tmp_path)
    assert len(drops.row) == len(rows) - 1
    assert len(set(drops.kept.tolist())) == 1
    assert set(drops.similarity.tolist()) == {1.0}


def test_records_that_share_a_passage_or_an_answer_are_kept(tmp_path):
    rng = random.Random(7)
    passage = sentence(rng, 300)
    rows = [chat(f"What is {a}+{b}?", str(a + b)) for a in range(20) for b in range(20)]
    rows += [chat(f"{passage} {sentence(rng, 9)}", sentence(rng, 12)) for _ in range(30)]
    rows += [chat(f"What does the word {word} mean?", REFUSAL) for word in "abcdefghij"]
    rows += [chat(sentence(rng, 9), REFUSAL) for _ in range(30)]
    rows += [chat(passage, answer) for answer in ("Yes.", "No.")]
    assert len(deduplicate({"a": rows}, NEAR, tmp_path).row) == 0


def test_a_source_from_a_template_is_left_out_or_has_its_own_threshold(tmp_path):
    frame = sentence(random.Random(8), 60)
    rows = [chat(f"{frame} Add {a} to {a + 3}.", f"{frame} {2 * a + 3}") for a in range(40)]

    def dropped(sources: dict[str, list[Example]], **per_source: float | None) -> list[int]:
        config = DeduplicationConfig(near=NearConfig(per_source=per_source))
        return deduplicate(sources, config, tmp_path).row.tolist()

    assert len(dropped({"a": rows})) == 39
    assert dropped({"a": rows}, a=None) == []
    assert dropped({"a": rows}, a=0.97) == []
    # of two sources the stricter decides
    assert dropped({"a": rows[:1], "b": rows[1:2]}) == [1]
    assert dropped({"a": rows[:1], "b": rows[1:2]}, b=None) == []
    assert dropped({"a": rows[:1], "b": rows[1:2]}, a=0.97) == []


def test_chains_do_not_connect_distant_texts(tmp_path):
    rng = random.Random(8)
    chain = texts(1, seed=9, words=100)
    for _ in range(12):
        chain.append(edited_copy(chain[-1], 0.03, rng))
    drops = deduplicate({str(k): [e] for k, e in enumerate(chain)}, NEAR, tmp_path)
    assert 0 < len(drops.row) < 12
    for row, kept, share in zip(drops.row, drops.kept, drops.similarity, strict=True):
        assert kept not in drops.row
        assert likeness(chain[kept], chain[row]) == share >= 0.8


def test_the_order_of_rows_changes_nothing(tmp_path):
    rng = random.Random(10)
    rows = texts(40, seed=11, words=50)
    rows += [edited_copy(rng.choice(rows), 0.02, rng) for _ in range(60)] + rows[:7]
    outcomes = []
    for seed in (0, 1, 2):
        order = list(range(len(rows)))
        random.Random(seed).shuffle(order)
        drops = deduplicate({"a": [rows[k] for k in order]}, NEAR, tmp_path)
        pairs = zip(drops.row, drops.kept, drops.reason, strict=True)
        outcomes.append(sorted((rows[order[r]].id, rows[order[k]].id, int(w)) for r, k, w in pairs))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert 40 < len(outcomes[0]) <= 67


def test_a_copy_is_dropped_with_the_record_it_is_a_copy_of(tmp_path):
    original = texts(1, seed=12, words=80)[0]
    near = edited_copy(original, 0.02, random.Random(13))
    drops = deduplicate({"a": [original], "b": [near], "c": [near]}, NEAR, tmp_path)
    assert drops.row.tolist() == [1, 2]
    assert drops.kept.tolist() == [0, 0]
    assert [REASONS[r] for r in drops.reason] == ["near_duplicate"] * 2
    assert drops.similarity[0] == drops.similarity[1] < 1


def test_no_two_of_many_copies_are_left(tmp_path):
    rng = random.Random(15)
    frame = sentence(rng, 60)
    rows: list[Example] = []
    for _ in range(4):
        original = chat(f"{frame} {sentence(rng, 20)}", sentence(rng, 40))
        rows += [edited_copy(original, 0.01, rng) for _ in range(60)]
    drops = deduplicate({"a": rows}, NEAR, tmp_path)
    left = shingles([rows[k] for k in sorted(set(range(len(rows))) - set(drops.row.tolist()))])
    assert 4 <= len(left) <= 8
    assert max(similarity(a, b) for a, b in combinations(left, 2)) < 0.8


@pytest.mark.parametrize("first", ["near", "prompt"])
def test_prompts_are_compared_after_near_duplicates(tmp_path, first):
    """No prompt is lost with the near-duplicate that had it, and none is named for an answer that
    was not compared."""
    rng = random.Random(18)
    original = chat(sentence(rng, 50), sentence(rng, 60))
    near = edited_copy(original, 0.02, rng)
    prompt = (near if first == "near" else original).messages[0].content
    sibling = chat(prompt, sentence(rng, 30))
    config = DeduplicationConfig(prompt=True, near=NearConfig())
    if first == "near":
        sources = {"a": [original], "b": [near], "c": [sibling]}
        expected = [(1, 0, "near_duplicate")]
    else:
        sources = {"a": [sibling], "b": [original], "c": [near]}
        expected = [(1, 0, "duplicate_prompt"), (2, 1, "near_duplicate")]
    drops = deduplicate(sources, config, tmp_path)
    reasons = [REASONS[r] for r in drops.reason]
    assert list(zip(drops.row.tolist(), drops.kept.tolist(), reasons, strict=True)) == expected


def test_layout_and_ids_do_not_count():
    one = with_call(3, call_id="call_1")
    other = with_call(3, call_id="x9", indent=2)
    assert one.id != other.id
    assert conversation_key(one) == conversation_key(other)
    assert prompt_key(one) == prompt_key(other)
    reordered = replace(one, tools=json.dumps(json.loads(TOOLS)[::-1], indent=1))
    assert conversation_key(reordered) == conversation_key(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a  b\n\nc ", "a b c"),
        ("caf\u00e9", "cafe\u0301"),
        ('{"b": 1, "a": [1, 2]}', '{\n "a": [1,2],\n "b": 1}'),
        ('{"a": "\\u00e9"}', '{"a": "é"}'),
    ],
)
def test_the_same_text(one: str, other: str):
    assert conversation_key(chat(one, "x")) == conversation_key(chat(other, "x"))
    assert conversation_key(chat("x", one)) == conversation_key(chat("x", other))
    assert conversation_key(chat("x", "y", reasoning=one)) == conversation_key(
        chat("x", "y", reasoning=other)
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 12+7?", "What is 12+8?"),
        ("What is 1 2?", "What is 12?"),
        ("Upper case", "upper case"),
        ("x²", "x2"),
        ('{"a": 1}', '{"a": 2}'),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ('[{"a": 1e999}]', "[]"),
        ("[" * 100_000 + "]" * 100_000, "[]"),
        ("\ud800", "\ud801"),
    ],
)
def test_another_text(one: str, other: str):
    assert conversation_key(chat(one, "x")) != conversation_key(chat(other, "x"))
    assert prompt_key(chat(one, "x")) != prompt_key(chat(other, "x"))


def test_the_prompt_is_what_system_and_user_say():
    one, other = chat("2+2?", "4"), chat("2+2?", "four", reasoning="2 and 2")
    assert prompt_key(one) == prompt_key(other)
    assert conversation_key(one) != conversation_key(other)
    assert prompt_key(replace(one, tools=TOOLS)) != prompt_key(one)
    turns = (Message("system", "Be brief."), *one.messages)
    assert prompt_key(make_example(turns, source="a", dialect="openai")) != prompt_key(one)
    longer = (*one.messages, Message("user", "3+3?"), Message("assistant", "6"))
    assert prompt_key(make_example(longer, source="a", dialect="openai")) != prompt_key(one)


def test_no_text_runs_over_into_the_next():
    assert conversation_key(chat("a", "b c")) != conversation_key(chat("a b", "c"))
    assert conversation_key(chat("q", "b", reasoning="a")) != conversation_key(chat("q", "a b"))
