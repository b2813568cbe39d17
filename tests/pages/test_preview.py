"""The preview of artifacts: what is trained, where sequences begin, where data came from."""

from __future__ import annotations

import io
import json
import re
import shutil

import pytest
from rich.console import Console

from posttrain.pages.preview import marked_words
from posttrain.report import section as ui
from posttrain.report.console import dialogue_text, print_sections
from posttrain.runs import Counts, Manifest, Run, parent_of, read_artifact
from tests.data_builders.small_build import index, script

WORDS = ["<s>", "ask", " me", "yes", "<e>"]


def decode(ids):
    return "".join(WORDS[i] for i in ids)


def test_trained_runs_stand_in_brackets_or_follow_the_mask_in_colour():
    plain = marked_words([0, 1, 2, 3, 4], [False, False, False, True, True], decode)
    assert dialogue_text(plain, colour=False).plain == "<s>ask me【yes<e>】"
    text = dialogue_text(marked_words([1, 2, 3], [False, True, True], decode), colour=True)
    assert text.plain == "ask meyes"
    styles = [str(span.style) for span in text.spans]
    assert ["green" in style for style in styles] == [False, True, True]
    assert styles[1] != styles[2], "neighbouring tokens can be told apart"


def test_tokens_that_share_a_character_come_as_one_piece():
    raw = "é🙂".encode()

    def bytes_decode(ids):
        return bytes(ids).decode("utf-8", "replace")

    words = marked_words(list(raw), [True] * len(raw), bytes_decode)
    assert [part.text for part in words] == ["é", "🙂"]
    # but never across the edge of the mask
    split = marked_words(list(raw), [True, False, False, False, False, False], bytes_decode)
    assert [part.style for part in split] == ["mark", ""]


def test_script_shows_lineage_counts_and_marked_sequences(finished, capsys):
    data = finished / "sft_data"
    script("preview").main([str(data), "--rows", "1", "--limit", "0"])
    out = capsys.readouterr().out
    assert out.startswith(f"sft_data {data}")
    assert re.search(rf"in +│ +{read_artifact(data).counts.rows_in} ", out)
    assert "Mixture" in out
    # no heading without its content, and no recipe of 150 lines before the rows
    assert "Sample conversations" not in out
    assert "held_out:" not in out
    assert f"{data}/report.html" in out
    first = next(line for line in out.splitlines() if line.startswith("── pack"))
    number, record = int(first.split()[2]), first.rstrip(" ─").split(" · ")[-1]
    assert record in {r["record_id"] for r in index(data) if r["pack"] == number}
    assert "】" in out
    assert "<think></think>【" in out or "<think>\n【" in out
    script("preview").main([str(data), "--rows", "1", "--split", "eval"])
    assert "eval packs" in capsys.readouterr().out


def test_a_file_of_rows_is_sent_to_the_command_that_reads_it(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text("{}\n")
    with pytest.raises(SystemExit):
        script("preview").main([str(tmp_path / "rows.jsonl")])
    assert "build_sft" in capsys.readouterr().err


def test_script_shows_rows_of_other_artifacts(tmp_path, capsys):
    stage = Run.open(tmp_path / "world", kind="tiny_world", config={"a": 1})
    row = {"messages": [{"role": "user", "content": "hello"}], "metadata": {"family": "x"}}
    (tmp_path / "world" / "train.jsonl").write_text(json.dumps(row) + "\n")
    stage.finish(counts=Counts(1, 1), files={"train.jsonl": 1})
    script("preview").main([str(tmp_path / "world")])
    out = capsys.readouterr().out
    assert "[user]\ncontent: hello" in out
    assert '"family": "x"' in out


def test_lineage_says_when_a_parent_is_gone_or_another(tmp_path, capsys):
    def finish(name: str, kind: str, config: dict, **more) -> Manifest:
        stage = Run.open(tmp_path / name, kind=kind, config=config)
        return stage.finish(counts=Counts(0, 0), files={}, **more)

    def shown() -> str:
        script("preview").main([str(tmp_path / "new")])
        return capsys.readouterr().out

    old = finish("old", "rows", {})
    parent = parent_of(tmp_path / "old", relative_to=tmp_path / "new", manifest=old)
    finish("new", "made", {}, parents=[parent])
    assert old.digest[:12] in shown()
    shutil.rmtree(tmp_path / "old")
    assert "old: not at ../old" in shown()
    finish("old", "rows", {"b": 2})
    assert "another artifact lies at ../old now" in shown()


def test_what_data_holds_cannot_steer_the_terminal():
    hostile = "a\x1b]52;c;aGk=\x07\x9b2J\u202e"
    marked = [ui.Styled(hostile, "mark"), ui.Styled(hostile, "")]
    blocks = [
        hostile, ui.Dialogue(marked),
        ui.Dialogue(hostile), ui.Fold(hostile, [hostile]),
        ui.Table([hostile], [[hostile], [ui.TableCell(hostile, below=hostile)]]),
    ]  # fmt: skip
    for terminal in (False, True):
        shown = io.StringIO()
        console = Console(file=shown, force_terminal=terminal, color_system=None)
        print_sections(console, [ui.Section(hostile, blocks)])
        assert not set(shown.getvalue()) & set("\x1b\x07\x9b\u202e")
