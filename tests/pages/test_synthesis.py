"""Page of synthetic rows: what was made, for whom, and rows that are shown whole."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from data_builders.synthesis.kinds import KINDS
from posttrain.lineage import trace
from posttrain.pages import synthesis
from posttrain.runs import Counts, Run
from tests.pages.conftest import write_rows
from tests.pages.reading import page_of, section

CALL = {"type": "function", "function": {"name": "get_city", "arguments": '{"item": "rug"}'}}
ROW = {
    "messages": [
        {"role": "user", "content": "city of the rug?"},
        {"role": "assistant", "content": "", "reasoning_content": "look up", "tool_calls": [CALL]},
        {"role": "tool", "content": "paris"},
        {"role": "assistant", "content": "It is paris", "reasoning_content": "read it"},
    ]
}
PAIR = {
    "prompt": [{"role": "user", "content": "hello"}],
    "chosen": [{"role": "assistant", "content": "good", "reasoning_content": "why good"}],
    "rejected": [{"role": "assistant", "content": "bad"}],
}
TASK = {"question": "What is 6 times 7?", "gold": "42"}
FIGURES = {
    "rows": 30, "user_turns": 1.0, "characters": 10.0, "lengths": [1, 2, 3], "turns": {"1": 30},
    "distinct_ngrams": 0.5, "near_duplicates": 0.0,
}  # fmt: skip
ASKED = {
    "models": {"generator": {"m": [40, 30]}}, "requests": {"generator": 320},
    "spent": {"m": {"input": 1000, "output": 43_210, "money": None}},
    "planted": {"rows": 4, "dropped": {"none_passes": 4}},
}  # fmt: skip
BY_CODE = {"models": {}, "requests": {}, "spent": {}, "planted": {"rows": 0, "dropped": {}}}


def artifact(out: Path, row: dict, file: str, kind: str, stats: dict, **make: str) -> Path:
    run = Run.open(out, kind="synthetic_rows", config={"make": {"kind": kind, **make}})
    example = {"outcome": "kept", "seed": "s", "messages": [], "rows": [row]}
    sizes = {
        file: write_rows(out / file, [row] * 30),
        "examples.jsonl": write_rows(out / "examples.jsonl", [example]),
    }
    shared = {
        "kind": kind, "seeds": 40, "rows": FIGURES, "kept_seeds": FIGURES, "figures": {},
        "by_source": {"maths": [15, 5], "lookups": [25, 25]},
        "dropped_after_requests": {"none_passes": 10},
    }  # fmt: skip
    run.finish(counts=Counts(40, 30, {"none_passes": 10}), files=sizes, stats=shared | stats)
    return out


def text_of(page: str) -> str:
    """Text of a page or of a part of one, without its tags."""
    return html.unescape(re.sub(r"<[^>]+>", "", page))


def test_the_page_says_what_was_made_and_shows_calls_and_reasoning(tmp_path: Path):
    out = artifact(tmp_path / "out", ROW, "rows.jsonl", "rejection", ASKED)
    page = page_of(out)
    made = text_of(section(page, "What was made"))
    for words in ("grader passes", "rows.jsonl", "conversations", "build_sft"):
        assert words in made
    shown = text_of(section(page, "Seeds and what came of them"))
    for words in ("look up", 'get_city {"item": "rug"}', "[tool] paris", "read it", "It is paris"):
        assert words in shown
    assert "lookups" in section(page, "What became of the seeds")
    assert "The checks dropped all of 4 planted bad rows" in page
    assert page.count("43,210") == 2, "the tile and the table count the same tokens"
    assert [tile[1] for tile in synthesis.tiles(trace(out)[0])] == [
        "seeds → rows", "yield", "completions", "planted bad rows dropped",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "file", "kind", "words"),
    [
        (PAIR, "pairs.jsonl", "safety", ("[chosen]", "why good", "[rejected] bad", "build_dpo")),
        (TASK, "tasks.jsonl", "long_documents", ("What is 6 times 7?", "[gold] 42", "eval")),
    ],
)
def test_pairs_and_tasks_are_shown_and_no_tile_counts_nothing(
    tmp_path: Path, row: dict, file: str, kind: str, words: tuple[str, ...]
):
    out = artifact(tmp_path / "out", row, file, kind, BY_CODE)
    text = text_of(page_of(out))
    for each in words:
        assert each in text
    name = file.removesuffix(".jsonl")
    tiles = [tile[1] for tile in synthesis.tiles(trace(out)[0])]
    assert tiles == [f"seeds → {name}", "yield"]


def test_a_control_arm_is_not_said_to_pass(tmp_path: Path):
    out = artifact(tmp_path / "out", ROW, "rows.jsonl", "rejection", ASKED, keep="any")
    assert "a control arm" in page_of(out)


def test_every_kind_is_explained():
    assert synthesis.KINDS.keys() == KINDS.keys()
