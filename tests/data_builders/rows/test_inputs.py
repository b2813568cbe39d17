"""Files in parts: every row in one, small first ones, and what is added at the end moves nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_builders.rows import inputs as module
from data_builders.rows.inputs import Part, cut_file, estimate_rows, gather, open_part, part_size
from data_builders.rows.raw import RawRow
from posttrain.config.source import SourceConfig

MIB = 1 << 20


def test_parts_grow_with_what_comes_before_them_up_to_the_most():
    sizes = [part_size(position * MIB, 64 * MIB) // MIB for position in (0, 31, 63, 64, 200, 2048)]
    assert sizes == [1, 1, 1, 2, 4, 64]
    assert part_size(100_000 * MIB, 64 * MIB) == 64 * MIB
    assert part_size(0, 4000) == 4000, "asked for less than the least"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts begin with 256 bytes, as a MiB is much for a test."""
    monkeypatch.setattr(module, "_SMALLEST_PART", 256)


def _lines(path: Path, rows: int) -> None:
    path.write_text("".join(json.dumps({"n": n, "x": "é" * (n % 9)}) + "\n" for n in range(rows)))


def _parquet(path: Path, rows: int) -> None:
    table = pa.Table.from_pylist([{"n": n, "x": f"{n:x<40}"} for n in range(rows)])
    pq.write_table(table, path, row_group_size=10, compression="none")


def _parts(path: Path, start: int = 0) -> list[Part]:
    return gather("s", cut_file(path, path.name, 4096, source_bytes=start)[1], 4096)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("name", "write"), [("a.jsonl", _lines), ("a.parquet", _parquet)])
def test_every_row_is_in_one_part_and_small_parts_come_first(tmp_path, name, write):
    path = tmp_path / name
    write(path, 3000)
    parts = _parts(path)
    config = SourceConfig(name="s", path=str(path))
    read = [raw for part in parts for raw in open_part(part, config)]
    assert all(isinstance(raw, RawRow) and raw.row["n"] + 1 == raw.line for raw in read)
    assert [raw.line for raw in read] == list(range(1, 3001))
    assert estimate_rows(parts) == 3000
    sizes = [part.bytes for part in parts]
    assert sizes[0] < max(sizes) / 4
    assert max(sizes) < sum(sizes) / 16, "a worker's last part is a small share of the work"


@pytest.mark.usefixtures("small")
def test_rows_at_the_end_leave_the_parts_before_them(tmp_path):
    path = tmp_path / "a.jsonl"
    _lines(path, 1000)
    before = [part.content(placed=True) for part in _parts(path)]
    _lines(path, 1500)
    after = [part.content(placed=True) for part in _parts(path)]
    assert after[: len(before) - 1] == before[:-1]
    assert len(after) > len(before)


@pytest.mark.usefixtures("small")
def test_later_files_of_a_source_are_cut_as_their_place_says(tmp_path):
    path = tmp_path / "a.jsonl"
    _lines(path, 1000)
    first = _parts(path)[0].pieces[0]
    assert 256 <= first.bytes < 400
    late = [piece.bytes for part in _parts(path, start=32 * 4096) for piece in part.pieces]
    assert len(late) > 2
    assert all(4096 <= size < 4300 for size in late[:-1])


@pytest.mark.usefixtures("small")
def test_many_small_files_share_parts(tmp_path):
    pieces = []
    for k in range(40):
        path = tmp_path / f"{k}.jsonl"
        _lines(path, 3)
        pieces += cut_file(path, path.name, 4096)[1]
    assert len(pieces) == 40
    parts = gather("s", pieces, 4096)
    assert 10 < len(parts) < 30
    assert [piece.file for part in parts for piece in part.pieces] == [
        f"{k}.jsonl" for k in range(40)
    ]
