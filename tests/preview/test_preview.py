"""The preview of artifacts: what is trained, where sequences begin, where data came from."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from posttrain.artifacts import Counts, StageDir, parent_of
from posttrain.errors import DataError
from posttrain.preview import lineage
from posttrain.preview.marked import marked_text, pieces
from tests.data_builders.small_build import build, index, script, write_recipe

WORDS = ["<s>", "ask", " me", "yes", "<e>"]


def decode(ids):
    return "".join(WORDS[i] for i in ids)


def test_plain_text_puts_brackets_around_trained_runs():
    text = marked_text([0, 1, 2, 3, 4], [False, False, False, True, True], decode, colour=False)
    assert text.plain == "<s>ask me【yes<e>】"


def test_colours_follow_the_mask_token_by_token():
    text = marked_text([1, 2, 3], [False, True, True], decode, colour=True)
    assert text.plain == "ask meyes"
    styles = [str(span.style) for span in text.spans]
    assert "green" not in styles[0]
    assert all("green" in style for style in styles[1:])
    assert styles[1] != styles[2], "neighbouring tokens can be told apart"


def test_long_sequences_show_both_ends_and_say_how_much_is_left_out():
    text = marked_text([1] * 100, [False] * 100, decode, colour=False, limit=4)
    assert text.plain == "askask … 96 tokens … askask"


def test_tokens_that_share_a_character_come_as_one_piece():
    raw = "é🙂".encode()

    def bytes_decode(ids):
        return bytes(ids).decode("utf-8", "replace")

    assert list(pieces(list(raw), bytes_decode)) == ["é", "🙂"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    build(write_recipe(folder))
    return folder / "out"


def test_script_shows_lineage_books_and_marked_sequences(built, capsys):
    script("preview").main([str(built), "--rows", "1", "--limit", "0"])
    out = capsys.readouterr().out
    assert out.startswith(f"sft_data {built}")
    assert "420 in = " in out
    first = next(line for line in out.splitlines() if line.startswith("── pack"))
    number, record = int(first.split()[2]), first.rstrip(" ─").split(" · ")[-1]
    assert record in {r["record_id"] for r in index(built) if r["pack"] == number}
    assert "】" in out
    assert "<think></think>【" in out or "<think>\n【" in out
    script("preview").main([str(built), "--rows", "1", "--split", "eval"])
    assert "eval packs" in capsys.readouterr().out


def test_script_shows_rows_of_other_artifacts(tmp_path, capsys):
    stage = StageDir.open(tmp_path / "world", kind="tiny_world", config={"a": 1})
    row = {"messages": [{"role": "user", "content": "hello"}], "metadata": {"family": "x"}}
    (tmp_path / "world" / "train.jsonl").write_text(json.dumps(row) + "\n")
    stage.finish(counts=Counts(1, 1), files={"train.jsonl": 1})
    script("preview").main([str(tmp_path / "world")])
    out = capsys.readouterr().out
    assert "[user]\ncontent: hello" in out
    assert '"family": "x"' in out


def test_lineage_says_when_a_parent_is_gone_or_another(tmp_path):
    old = StageDir.open(tmp_path / "old", kind="rows", config={}).finish(
        counts=Counts(0, 0), files={}
    )
    parent = parent_of(tmp_path / "old", relative_to=tmp_path / "new", manifest=old)
    new = StageDir.open(tmp_path / "new", kind="made", config={}).finish(
        counts=Counts(0, 0), files={}, parents=[parent]
    )

    def shown() -> str:
        console = Console(file=io.StringIO(), width=200)
        console.print(lineage(tmp_path / "new", new))
        return console.file.getvalue()

    assert old.digest[:12] in shown()
    (tmp_path / "old" / "manifest.json").unlink()
    (tmp_path / "old" / "stage.json").unlink()
    assert "not found" in shown()
    StageDir.open(tmp_path / "old", kind="rows", config={"b": 2}).finish(
        counts=Counts(0, 0), files={}
    )
    assert "another artifact is there now" in shown()


def test_a_directory_without_manifest_is_no_artifact(tmp_path):
    with pytest.raises(DataError, match=r"manifest\.json"):
        script("preview").main([str(tmp_path)])
