"""Completions as ids: as sampled where the backend gave them, rendered where a server hid them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from data_builders.pairs.encode import PairEncoder, encode_completions
from data_builders.pairs.grading import reading_text, summarize_completion
from data_builders.pairs.shards import read_pairs, write_pairs
from posttrain.chat import nemotron_3_nano_template, parse_completion
from posttrain.chat.detect import detect_in_completion
from posttrain.records import Message, Pair, Score, Side, ToolCall
from posttrain.rollouts import Completion, Prompt, Step
from posttrain.tokens.tokenizer import encoder_of, load_any_tokenizer
from tests.data_builders.small_build import write_tokenizer

PROMPT = Prompt("t/s/on", "t", "s", (Message("user", "7*8?"),))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory):
    folder = write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return encoder_of(load_any_tokenizer(str(folder)))


def completion(said: str, ids: tuple[int, ...] | None) -> Completion:
    step = Step(
        text=said,
        parsed=parse_completion(said, thinking=True),
        finish="stop",
        reasoning_tokens=1,
        answer_tokens=1,
        prompt_tokens=3,
        ids=ids,
    )
    return Completion("t/s/on", 0, (step,), "stop", None if ids is None else (1, 2, 3))


def test_sampled_ids_stay_and_hidden_ones_are_rendered(text):
    encoder = PairEncoder(nemotron_3_nano_template(), text.arrays)
    said = "7*8 is 56.\n</think>\n56<|im_end|>"
    # ids that no rendering would give: they must come back untouched
    odd = completion(said, (90, 91, 92))
    forced = replace(odd, steps=(replace(odd.steps[0], forced=(1, 2), results_ids=(7,)),))
    hidden, failed = completion(said, None), Completion("t/s/on", 1, (), "failed")
    found = encode_completions(PROMPT, [odd, forced, hidden, failed], encoder)
    assert found[0] is not None
    assert (found[0].prompt_ids, found[0].ids) == ((1, 2, 3), (90, 91, 92))
    assert found[1] is not None
    assert found[1].ids == (90, 91, 92, 7)
    assert found[1].mask == (True, False, True, False)
    assert found[2] is not None
    assert text.decode(found[2].prompt_ids).endswith("<|im_start|>assistant\n<think>\n")
    assert text.decode(found[2].ids) == "7*8 is 56.\n</think>\n56<|im_end|>\n"
    assert all(found[2].mask)
    assert found[3] is None


def test_a_structured_call_is_part_of_what_a_completion_is_and_is_shown():
    bare = completion("Let me see.", None)
    call = ToolCall("search", '{"q":"7*8"}')
    parsed = replace(bare.steps[0].parsed, tool_calls=(call,))
    calling = replace(bare, steps=(replace(bare.steps[0], parsed=parsed),))
    reformatted = replace(bare, steps=(replace(bare.steps[0], text="let me see"),))
    keys = [
        summarize_completion(
            one, Score(0.0, None, ""), detect_in_completion(one, PROMPT), None
        ).text_key
        for one in (bare, calling, reformatted)
    ]
    assert keys[0] == keys[2] != keys[1]
    assert "search" in reading_text(calling)
    assert "7*8" in reading_text(calling)


def test_shards_hold_every_pair_in_order_and_leftovers_go(tmp_path: Path):
    sides = Side((1,), (True,), "a"), Side((2, 3), (True, False), "b", index=4, score=0.0)
    pairs = [Pair(f"p{k}", "t", "no_tools", True, (9, k), *sides, source="s") for k in range(5)]
    (tmp_path / "train-00007.parquet").write_bytes(b"of an interrupted run")
    files = write_pairs(iter(pairs), tmp_path, "train", shard_pairs=2)
    assert files == {f"train-0000{k}.parquet": n for k, n in enumerate((2, 2, 1))}
    assert list(read_pairs(tmp_path, "train")) == pairs
