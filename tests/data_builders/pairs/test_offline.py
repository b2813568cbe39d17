"""Pairs that came as text: one prompt, two sides, exact masks, every row accounted for."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from data_builders.pairs.encode import PairEncoder, distance
from data_builders.pairs.offline import offline_candidate, read_offline, why_dropped
from data_builders.rows.raw import Drop
from data_builders.rows.read import RowCounts
from posttrain.chat import nemotron_3_nano_template
from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.config.source import SourceConfig
from posttrain.errors import DataError
from posttrain.records import Pair
from posttrain.tokens.tokenizer import encoder_of, load_any_tokenizer
from tests.data_builders.small_build import write_tokenizer

END = "<|im_end|>\n"
ROW = {"prompt": "7*8?", "chosen": "56", "rejected": "54"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory):
    folder = write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return encoder_of(load_any_tokenizer(str(folder)))


def read(folder: Path, rows: list[dict], text, counts=None, **config) -> list[Pair | Drop]:
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    special = ("<|im_end|>", "<|endoftext|>")
    encoder = PairEncoder(nemotron_3_nano_template(), text.arrays, special)
    source = SourceConfig(name="s", path="pairs.jsonl", **config)
    found = list(read_offline(source, encoder, base_dir=folder, counts=counts))
    assert sum(taken for _, taken in found) == len(rows)
    return [item for item, _ in found]


def turn(role: str, content: str, **more) -> dict:
    return {"role": role, "content": content, **more}


def test_only_answers_are_trained_and_earlier_ones_belong_to_the_prompt(tmp_path: Path, text):
    history = [turn("user", "hi"), turn("assistant", "hello"), turn("user", "7*8?")]
    sides = {"chosen": "56", "rejected": "54"}
    whole = {side: [*history, turn("assistant", said)] for side, said in sides.items()}
    bare, longer = read(tmp_path, [ROW, whole], text)
    for pair in (bare, longer):
        assert isinstance(pair, Pair)
        assert (pair.category, pair.thinking) == ("offline", False)
        assert text.decode(pair.prompt_ids).endswith("<|im_start|>assistant\n<think></think>")
        assert [text.decode(side.ids) for side in (pair.chosen, pair.rejected)] == [
            f"56{END}", f"54{END}"
        ]  # fmt: skip
        assert all(pair.chosen.mask)
    assert "hello" in text.decode(longer.prompt_ids)


def test_tool_results_inside_a_side_are_masked(tmp_path: Path, text):
    call = {"type": "function", "id": "c", "function": {"name": "look", "arguments": "{}"}}
    function = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    row = {
        "prompt": [turn("user", "price?")],
        "chosen": [
            turn("assistant", "", tool_calls=[call]),
            turn("tool", "SECRET", tool_call_id="c"),
            turn("assistant", "42"),
        ],
        "rejected": [turn("assistant", "41")],
        "tools": [{"type": "function", "function": function}],
    }
    (pair,) = read(tmp_path, [row], text)
    assert isinstance(pair, Pair)
    sampled = [i for i, kept in zip(pair.chosen.ids, pair.chosen.mask, strict=True) if kept]
    assert "SECRET" in text.decode(pair.chosen.ids)
    assert "SECRET" not in text.decode(sampled)
    assert "<function=look>" in text.decode(sampled)
    assert text.decode(sampled).endswith(f"42{END}")


def test_pairs_of_the_same_texts_under_other_tools_are_other_pairs(tmp_path: Path, text):
    """Also to the order in which they are drawn, which hangs on the seed."""
    rows = [ROW]
    for name in ("look", "find"):
        function = {"name": name, "parameters": {"type": "object", "properties": {}}}
        rows.append({**ROW, "tools": [{"type": "function", "function": function}]})
    pairs = [pair for pair in read(tmp_path, rows, text) if isinstance(pair, Pair)]
    assert len({pair.id for pair in pairs}) == 3
    keys = {offline_candidate(pair, 0, 1, seed).key for pair in pairs for seed in (0, 1)}
    assert len(keys) == 6


QUESTION, OTHER = turn("user", "q"), turn("user", "p")
REASONED = turn("assistant", "a", reasoning_content="r")
ANSWER = turn("assistant", "a")


def ultrafeedback(*scores: object) -> dict:
    completions = [{"response": f"r{k}", "overall_score": s} for k, s in enumerate(scores)]
    return {"source": "flan", "instruction": "q", "models": [], "completions": completions}


def binarized(chosen: float, rejected: float) -> dict:
    sides = {side: [QUESTION, turn("assistant", side)] for side in ("chosen", "rejected")}
    return {"prompt": "q", **sides, "score_chosen": chosen, "score_rejected": rejected}


def compared(strength: object) -> dict:
    context = {"context": [QUESTION], "response1": "a", "response2": "b"}
    return {**context, "overall_preference": strength}


def rated(response: str, helpfulness: int, prompt: str = "q") -> dict:
    return {"prompt": prompt, "response": response, "helpfulness": helpfulness, "verbosity": 1}


TURNS = "hi\n<extra_id_1>Assistant\nhello\n<extra_id_1>User\n7*8?"
NOBODY = "<extra_id_1>Nobody\nq"


@pytest.mark.parametrize(
    ("rows", "reasons"),
    [
        ([ROW | {"chosen": "54"}], ["identical"]),
        ([{"prompt": "q", "chosen": "a"}], ["unrecognised"]),
        ([ROW | {"chosen": [REASONED]}], ["mixed_reasoning"]),
        ([{"chosen": [QUESTION, ANSWER], "rejected": [OTHER, ANSWER]}], ["different_prompts"]),
        ([ROW | {"chosen": ""}], ["empty_answer"]),
        ([ROW | {"prompt": " "}], ["empty_user_turn"]),
        ([ROW | {"rejected": turn("assistant", [{"type": "text"}])}], ["malformed_message"]),
        ([ROW | {"chosen": turn("assistant", "a", loss_weight=0)}], ["untrained_turn"]),
        ([ROW | {"chosen": "no <|endoftext|> here"}], ["special_token"]),
        ([ROW | {"rejected": "no<|endoftext|>"}], ["special_token"]),
        # nothing is preferred
        ([ultrafeedback(7, 7, 7)], ["tie"]),
        ([ultrafeedback(7)], ["single_response"]),
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
        ([rated("a", 1, NOBODY), rated("b", 3, NOBODY)], ["malformed_message"]),
    ],
)  # fmt: skip
def test_a_row_that_is_no_pair_is_dropped_by_name(tmp_path: Path, text, rows, reasons):
    found = read(tmp_path, rows, text)
    assert [getattr(one, "reason", None) for one in found] == reasons
    assert found[0].line == 1


def test_a_row_without_a_preference_says_so(tmp_path: Path, text):
    (dropped,) = read(tmp_path, [compared(None)], text)
    assert isinstance(dropped, Drop)
    assert "does not say which is better" in dropped.detail


@pytest.mark.parametrize(
    ("rows", "texts"),
    [
        ([ultrafeedback(2, 9.5, 4)], {("r1", "r0"), ("r1", "r2")}),
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
    assert tuple(side.text.removesuffix(END) for side in (pair.chosen, pair.rejected)) in texts
    if rows[0].get("prompt") == TURNS:
        assert "hello<|im_end|>" in text.decode(pair.prompt_ids)
        assert "extra_id" not in text.decode(pair.prompt_ids)


def test_where_strict_and_columns_that_neither_side_was_read_from(tmp_path: Path, text):
    rows = [ROW | {"good": True, "rating": 4}, ROW | {"good": None, "chosen": "z"}]
    counts = RowCounts()
    found = read(tmp_path, rows, text, counts, where={"good": True})
    assert [type(one) for one in found] == [Pair, Drop]
    assert counts.unread == {"rating": (1, "4")}
    # a row that is left out does not part the responses around it
    rows = [rated("a", 1), rated("x", 2) | {"verbosity": 0}, rated("b", 4)]
    left_out, pair = read(tmp_path, rows, text, where={"verbosity": 1})
    assert [type(left_out), type(pair)] == [Drop, Pair]
    (null,) = read(tmp_path, [ROW | {"chosen": None}], text, dialect="chosen_rejected")
    assert null.reason == "empty_answer"
    with pytest.raises(DataError, match=r"pairs.jsonl:1: identical"):
        read(tmp_path, [ROW | {"chosen": "54"}], text, strict=True)


def test_real_pairs_all_become_pairs(shared: Path, text):
    encoder = PairEncoder(nemotron_3_nano_template(), text.arrays)
    source = SourceConfig(name="dpo", path="data/lf_dpo_en.jsonl")
    found = [item for item, _ in read_offline(source, encoder, base_dir=shared)]
    kinds = Counter(f.reason if isinstance(f, Drop) else "pair" for f in found)
    assert kinds.total() == 299
    assert kinds["pair"] >= 290, kinds


def test_a_pair_that_cannot_be_used_is_dropped_for_its_reason(tmp_path: Path, text):
    """The limit is the length of the longest pair that stays."""
    rows = [
        {"prompt": "q", "chosen": "56", "rejected": "54, or perhaps 65"},
    ]
    [longer] = (pair for pair in read(tmp_path, rows, text) if isinstance(pair, Pair))
    length = len(longer.prompt_ids) + len(longer.rejected.ids)

    def reason(pair: Pair, *seen: str, **keys: Any) -> str | None:
        share = {"categories": {"offline": 1.0}, "out": "out", "tokenizer": {"path": "tokenizer"}}
        offline = ({"name": "s", "path": "pairs.jsonl"},)
        recipe = BuildDpoConfig.model_validate({**share, "offline": offline, **keys})
        dropped = why_dropped(pair, set(seen), recipe)
        return dropped and dropped["reason"]

    assert reason(longer) is None
    assert reason(longer, max_length=length) is None
    assert reason(longer, max_length=length - 1) == "overlong"
    assert reason(longer, longer.id, max_length=2) == "duplicate"


@pytest.mark.parametrize(
    ("left", "right", "apart"),
    [((1, 2, 3, 4), (1, 2, 3, 4), 0.0), ((1, 2, 3, 4), (1, 9, 3, 4), 0.25), ((), (), 0.0),
     ((1, 2, 3, 4), (1, 4), 0.5), ((1, 2), (3, 4), 1.0), ((1, 1, 1), (1, 1), 1 / 3)],
)  # fmt: skip
def test_distance_is_what_lies_between_common_ends(left, right, apart: float):
    assert distance(left, right) == distance(right, left) == pytest.approx(apart)
