"""Pairs that came as text: one prompt, two sides, exact masks, every row accounted for."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from data_builders.pairs.encode import PairEncoder, distance
from data_builders.pairs.offline import read_offline
from data_builders.rows.raw import Dropped
from data_builders.rows.read import RowCounts
from posttrain.chat import nemotron_3_nano_template
from posttrain.config.source import SourceConfig
from posttrain.errors import DataError
from posttrain.records import Pair
from posttrain.tokens.tokenizer import encoder_of, load_any_tokenizer
from tests.data_builders.small_build import write_tokenizer


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory):
    folder = write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return encoder_of(load_any_tokenizer(str(folder)))


def read(tmp_path: Path, rows: list[dict], text, **config) -> list[Pair | Dropped]:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    special = ("<|im_end|>", "<|endoftext|>")
    encoder = PairEncoder(nemotron_3_nano_template(), text.encode, special)
    source = SourceConfig(name="s", path="pairs.jsonl", **config)
    found = list(read_offline(source, encoder, base_dir=tmp_path))
    assert sum(taken for _, taken in found) == len(rows)
    return [item for item, _ in found]


ROW = {"prompt": "7*8?", "chosen": "56", "rejected": "54"}


def test_a_pair_shares_its_prompt_and_only_answers_are_trained(tmp_path: Path, text):
    (pair,) = read(tmp_path, [ROW], text)
    assert isinstance(pair, Pair)
    assert pair.category == "offline"
    assert text.decode(pair.prompt_ids).endswith("<|im_start|>assistant\n<think></think>")
    assert text.decode(pair.chosen.ids) == "56<|im_end|>\n"
    assert text.decode(pair.rejected.ids) == "54<|im_end|>\n"
    assert all(pair.chosen.mask)
    assert not pair.thinking


@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_no_side_spells_a_special_token_or_is_null(tmp_path: Path, text, side: str):
    rows = [ROW | {side: "no<|endoftext|>"}, ROW | {side: None}]
    found = read(tmp_path, rows, text, dialect="chosen_rejected")
    assert [item.reason for item in found] == ["special_token", "empty_answer"]
    assert [item.line for item in found] == [1, 2]


def test_earlier_answers_belong_to_the_prompt(tmp_path: Path, text):
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "7*8?"},
    ]
    row = {
        "chosen": [*history, {"role": "assistant", "content": "56"}],
        "rejected": [*history, {"role": "assistant", "content": "x"}],
    }
    (pair,) = read(tmp_path, [row], text)
    assert isinstance(pair, Pair)
    assert "hello" in text.decode(pair.prompt_ids)
    assert text.decode(pair.chosen.ids) == "56<|im_end|>\n"
    assert text.decode(pair.rejected.ids) == "x<|im_end|>\n"


def test_tool_results_inside_a_side_are_masked(tmp_path: Path, text):
    call = {"type": "function", "id": "c", "function": {"name": "look", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}  # fmt: skip
    row = {
        "prompt": [{"role": "user", "content": "price?"}],
        "chosen": [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "SECRET"},
            {"role": "assistant", "content": "42"},
        ],
        "rejected": [{"role": "assistant", "content": "41"}],
        "tools": [tool],
    }
    (pair,) = read(tmp_path, [row], text)
    assert isinstance(pair, Pair)
    sampled = [i for i, kept in zip(pair.chosen.ids, pair.chosen.mask, strict=True) if kept]
    assert "SECRET" in text.decode(pair.chosen.ids)
    assert "SECRET" not in text.decode(sampled)
    assert "<function=look>" in text.decode(sampled)
    assert text.decode(sampled).endswith("42<|im_end|>\n")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "q", "chosen": "a", "rejected": "a"}, "identical"),
        ({"prompt": "q", "chosen": "a"}, "unrecognised"),
        (
            {
                "prompt": "q",
                "chosen": [{"role": "assistant", "content": "a", "reasoning_content": "r"}],
                "rejected": [{"role": "assistant", "content": "b"}],
            },
            "mixed_reasoning",
        ),
        (
            {
                "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
                "rejected": [
                    {"role": "user", "content": "p"},
                    {"role": "assistant", "content": "a"},
                ],
            },
            "different_prompts",
        ),
        ({"prompt": "q", "chosen": "", "rejected": "b"}, "empty_answer"),
        ({"prompt": " ", "chosen": "a", "rejected": "b"}, "empty_user_turn"),
        (
            {
                "prompt": "q",
                "chosen": "a",
                "rejected": {"role": "assistant", "content": [{"type": "text"}]},
            },
            "malformed_message",
        ),
        (
            {
                "prompt": "q",
                "chosen": {"role": "assistant", "content": "a", "loss_weight": 0},
                "rejected": "b",
            },
            "untrained_turn",
        ),
    ],
)
def test_a_row_that_is_no_pair_is_dropped_by_name(tmp_path: Path, text, row, reason: str):
    (dropped,) = read(tmp_path, [row], text)
    assert isinstance(dropped, Dropped)
    assert (dropped.reason, dropped.line) == (reason, 1)


def test_where_and_strict(tmp_path: Path, text):
    rows = [ROW | {"good": True}, ROW | {"good": False, "chosen": "z"}]
    found = read(tmp_path, rows, text, where={"good": True})
    assert [type(f).__name__ for f in found] == ["Pair", "Dropped"]
    with pytest.raises(DataError, match=r"pairs.jsonl:1: identical"):
        read(tmp_path, [{"prompt": "q", "chosen": "a", "rejected": "a"}], text, strict=True)


def test_real_pairs_all_become_pairs(shared: Path, text):
    encoder = PairEncoder(nemotron_3_nano_template(), text.encode)
    source = SourceConfig(name="dpo", path="data/lf_dpo_en.jsonl")
    found = [item for item, _ in read_offline(source, encoder, base_dir=shared)]
    kinds = Counter(f.reason if isinstance(f, Dropped) else "pair" for f in found)
    assert sum(kinds.values()) == 299
    assert kinds["pair"] >= 290, kinds


def ultrafeedback(*scores: object) -> dict:
    completions = [{"response": f"r{k}", "overall_score": s} for k, s in enumerate(scores)]
    return {"source": "flan", "instruction": "q", "models": [], "completions": completions}


def binarized(chosen: float, rejected: float) -> dict:
    sides = {
        side: [{"role": "user", "content": "q"}, {"role": "assistant", "content": side}]
        for side in ("chosen", "rejected")
    }
    return {"prompt": "q", **sides, "score_chosen": chosen, "score_rejected": rejected}


def compared(strength: object) -> dict:
    context = [{"role": "user", "content": "q"}]
    return {"context": context, "response1": "a", "response2": "b", "overall_preference": strength}


def rated(response: str, helpfulness: int, prompt: str = "q") -> dict:
    return {"prompt": prompt, "response": response, "helpfulness": helpfulness, "verbosity": 1}


TURNS = "hi\n<extra_id_1>Assistant\nhello\n<extra_id_1>User\n7*8?"


@pytest.mark.parametrize(
    ("rows", "texts"),
    [
        ([ultrafeedback(2, 9.5, 4)], {("r1", "r0"), ("r1", "r2")}),
        ([ultrafeedback(7, 7.5)], {("r1", "r0")}),
        ([binarized(8.5, 2)], {("chosen", "rejected")}),
        ([compared(-3)], {("a", "b")}),
        ([compared(1)], {("b", "a")}),
        ([{"prompt": "q", "response_1": "a", "response_2": "b", "preference_strength": 2}],
         {("b", "a")}),
        ([rated("a", 1), rated("b", 4)], {("b", "a")}),
        ([rated("a", 1, TURNS), rated("b", 4, TURNS)], {("b", "a")}),
    ],
)  # fmt: skip
def test_published_layouts_are_pairs(tmp_path: Path, text, rows, texts):
    (pair,) = read(tmp_path, rows, text)
    assert isinstance(pair, Pair), pair
    sides = (pair.chosen, pair.rejected)
    assert tuple(side.text.removesuffix("<|im_end|>\n") for side in sides) in texts
    if rows[0].get("prompt") == TURNS:
        assert "hello<|im_end|>" in text.decode(pair.prompt_ids)
        assert "extra_id" not in text.decode(pair.prompt_ids)


@pytest.mark.parametrize(
    ("rows", "reasons"),
    [
        ([ultrafeedback(7, 7, 7)], ["tie"]),
        ([ultrafeedback(7)], ["single_response"]),
        ([ultrafeedback(7, None)], ["malformed_label"]),
        ([ultrafeedback(7, "good")], ["malformed_label"]),
        ([{"instruction": "q", "completions": [{"text": "a"}, {"text": "b"}]}],
         ["malformed_message"]),
        ([binarized(5, 5)], ["tie"]),
        ([binarized(4, 5)], ["scores_reversed"]),
        ([compared(0)], ["tie"]),
        ([compared(None)], ["no_preference"]),
        ([compared(4)], ["malformed_label"]),
        ([rated("a", 2), rated("b", 2)], ["tie"]),
        ([rated("a", 2), rated("b", 3, "other")], ["single_response", "single_response"]),
        ([rated("a", 1, "<extra_id_1>Nobody\nq"), rated("b", 3, "<extra_id_1>Nobody\nq")],
         ["malformed_message"]),
    ],
)  # fmt: skip
def test_rows_that_prefer_nothing_are_dropped_by_name(tmp_path: Path, text, rows, reasons):
    assert [getattr(one, "reason", None) for one in read(tmp_path, rows, text)] == reasons


@pytest.mark.parametrize(
    ("left", "right", "apart"),
    [
        ((1, 2, 3, 4), (1, 2, 3, 4), 0.0),
        ((1, 2, 3, 4), (1, 9, 3, 4), 0.25),
        ((1, 2, 3, 4), (1, 4), 0.5),
        ((1, 2), (3, 4), 1.0),
        ((1, 1, 1), (1, 1), 1 / 3),
        ((), (), 0.0),
    ],
)
def test_distance_is_what_lies_between_common_ends(left, right, apart: float):
    assert distance(left, right) == distance(right, left) == pytest.approx(apart)


def test_columns_that_neither_side_was_read_from_are_counted(tmp_path: Path, text):
    rows = [ROW | {"rating": 4}, ROW | {"rating": None}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    encoder = PairEncoder(nemotron_3_nano_template(), text.encode, ())
    source, counts = SourceConfig(name="s", path="pairs.jsonl"), RowCounts()
    assert len(list(read_offline(source, encoder, base_dir=tmp_path, counts=counts))) == 2
    assert counts.unread == {"rating": (1, "4")}
