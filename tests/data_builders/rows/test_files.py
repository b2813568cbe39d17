"""Rows from every kind of file: the same rows, their place, and what is wrong said where it is."""

from __future__ import annotations

import datetime
import decimal
import gzip
import json
import math
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pydantic import ValidationError

from data_builders.rows.files import open_rows
from data_builders.rows.json_files import open_jsonl
from data_builders.rows.raw import Dropped, RawRow
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError, DataError
from tests.data_builders.small_rows import write_lines

ROWS: list[dict[str, Any]] = [
    {"prompt": f"{i}?", "completion": "½", "info": {"n": i}} for i in range(300)
]
TEXT = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def raw(folder: Path, path: str | tuple[str, ...], **more: Any) -> list[RawRow | Dropped]:
    """All raw rows of some paths."""
    return list(open_rows(SourceConfig(name="s", path=path, **more), folder))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", TEXT),
        ("a.ndjson", TEXT.rstrip(b"\n")),
        ("a.json", TEXT.replace(b"\n", b"\r\n\r\n")),
        ("b.jsonl", b"\xef\xbb\xbf" + TEXT),
        ("a.jsonl.gz", gzip.compress(TEXT[:9000]) + gzip.compress(TEXT[9000:])),
        ("a.jsonl.zst", zstandard.compress(TEXT[:9000]) + zstandard.compress(TEXT[9000:])),
    ],
)
def test_json_lines_plain_and_compressed(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    rows = raw(tmp_path, name)
    assert [row.row for row in rows if isinstance(row, RawRow)] == ROWS
    assert {row.file for row in rows} == {name}
    if b"\r\n\r\n" not in content:
        assert [row.line for row in rows] == list(range(1, 301))


def test_parquet_and_saved_datasets_give_the_same_rows(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": data}).save_to_disk(str(tmp_path / "dict"))
    for path, file in (("a.parquet", "a.parquet"), ("one", "one"), ("dict", "dict/train")):
        rows = raw(tmp_path, path)
        assert [row.row for row in rows if isinstance(row, RawRow)] == ROWS
        assert [row.line for row in rows] == list(range(1, 301))
        assert {row.file for row in rows} == {file}


def test_nulls_that_arrow_adds_are_taken_out_again(tmp_path: Path) -> None:
    rows = [{"tools": [{"a": {"x": 1}}], "note": None}, {"tools": [{"b": [None, 2]}], "note": "n"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert [row.row for row in raw(tmp_path, "a.parquet") if isinstance(row, RawRow)] == rows


def test_what_json_has_no_word_for(tmp_path: Path) -> None:
    row = {"at": datetime.datetime(2026, 1, 2, 3), "day": datetime.date(2026, 1, 2),
           "price": decimal.Decimal("1.50"), "score": math.nan}  # fmt: skip
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    (found,) = raw(tmp_path, "a.parquet")
    assert isinstance(found, RawRow)
    assert found.row == {"at": "2026-01-02T03:00:00", "day": "2026-01-02", "price": "1.50",
                         "score": None}  # fmt: skip


def test_nulls_in_json_columns_are_somebodys(tmp_path: Path) -> None:
    rows = [{"tools": {"default": None}}, {"tools": {"other": 1}}]
    features = datasets.Features({"tools": datasets.Json()})
    data = datasets.Dataset.from_list(rows, features=features)
    data.save_to_disk(str(tmp_path / "one"))
    assert [row.row for row in raw(tmp_path, "one") if isinstance(row, RawRow)] == rows


def test_globs_are_sorted_and_no_file_comes_twice(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.jsonl", "a.jsonl", "deep/c.jsonl"):
        write_lines(tmp_path / name, [{"prompt": name}])
    files = [row.file for row in raw(tmp_path, ("**/*.jsonl", "a.jsonl"))]
    assert files == ["a.jsonl", "b.jsonl", "deep/c.jsonl"]


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        (b'{"a": 1', "Expecting"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
        (b'{"a": 1, "a": 2}', "key 'a' appears twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": -Infinity}', "-Infinity is not JSON"),
        (b'{"a": 1e999}', "beyond the range"),
        (b'{"a": %s}' % (b"9" * 5000), "digits"),
        (b'{"a": ' + b"[" * 100_000, "nested too deep"),
        (b"[1, 2]", "found a list"),
        (b"[", "rows are one object a line"),
        (b'"text"', "found a str"),
        (b"null", "found a NoneType"),
    ],
)
def test_a_line_that_is_no_row_is_named_and_the_next_is_read(
    tmp_path: Path, line: bytes, detail: str
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"ok": 1}\n' + line + b'\n{"ok": 3}\n')
    first, bad, last = raw(tmp_path, "a.jsonl")
    assert (first, last) == (RawRow({"ok": 1}, "a.jsonl", 1), RawRow({"ok": 3}, "a.jsonl", 3))
    assert isinstance(bad, Dropped)
    assert (bad.reason, bad.line) == ("malformed_json", 2)
    assert detail in bad.detail


def test_a_half_written_last_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(TEXT[:-10])
    rows = raw(tmp_path, "a.jsonl")
    assert len(rows) == 300
    assert isinstance(rows[-1], Dropped)
    assert "the file may be cut off" in rows[-1].detail


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl.gz", gzip.compress(TEXT)[:-20]),
        ("a.jsonl.zst", zstandard.compress(TEXT)[:-20]),
        ("b.jsonl.zst", TEXT),
        ("a.parquet", b"PAR1 no more"),
    ],
)
def test_a_file_that_is_cut_off_stops_the_reading(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        raw(tmp_path, name)


def test_what_is_missing_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_lines(tmp_path / "data" / "alpaca_en.jsonl", [])
    with pytest.raises(ConfigError, match=r"'data/alpaca_eng.jsonl' does not exist.*alpaca_en"):
        raw(tmp_path, "data/alpaca_eng.jsonl")
    with pytest.raises(ConfigError, match=r"'data/\*.parquet' matches no file.*alpaca_en"):
        raw(tmp_path, "data/*.parquet")
    with pytest.raises(ConfigError, match=r"nearest in .* is 'data'"):
        raw(tmp_path, "date/x/y.jsonl")


def test_what_is_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n")
    (tmp_path / "plain").mkdir()
    write_lines(tmp_path / "plain" / "a.jsonl", [])
    data = datasets.DatasetDict({k: datasets.Dataset.from_list(ROWS) for k in ("test", "train")})
    data.save_to_disk(str(tmp_path / "dict"))
    with pytest.raises(ConfigError, match="of no kind that can be read"):
        raw(tmp_path, "a.csv")
    with pytest.raises(ConfigError, match=r"by a glob such as plain/\*.jsonl"):
        raw(tmp_path, "plain")
    with pytest.raises(ConfigError, match="holds the splits test, train"):
        raw(tmp_path, "dict")
    with pytest.raises(ConfigError, match="holds the splits test, train"):
        raw(tmp_path, "dict", split="trian")
    assert len(raw(tmp_path, "dict", split="train")) == 300


def test_the_hub_is_streamed_at_its_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def load_dataset(path: str, **settings: Any) -> Any:
        asked.update(settings, path=path)
        return datasets.Dataset.from_list([{"a": {"b": 1}}, {"a": {"c": 2}}]).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    config = SourceConfig(name="s", hub="org/chat", revision="0a" * 20, subset="en", split="train")
    rows = list(open_rows(config, tmp_path))
    assert asked == {"path": "org/chat", "name": "en", "split": "train", "revision": "0a" * 20,
                     "streaming": True}  # fmt: skip
    assert rows == [
        RawRow({"a": {"b": 1}}, "org/chat@0a0a0a0a0a0a/train", 1),
        RawRow({"a": {"c": 2}}, "org/chat@0a0a0a0a0a0a/train", 2),
    ]


def test_a_hub_that_cannot_be_reached_is_a_config_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load_dataset(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("no such dataset")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    config = SourceConfig(name="s", hub="org/chat", revision="0a" * 20, split="train")
    with pytest.raises(ConfigError, match="cannot open org/chat"):
        open_rows(config, tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one of path and hub"),
        ({"path": "a", "hub": "b"}, "exactly one of path and hub"),
        ({"path": ()}, "path is empty"),
        ({"path": "a", "revision": "0a" * 20}, "belong to a hub id"),
        ({"hub": "a/b", "split": "train"}, "40-digit commit"),
        ({"hub": "a/b", "split": "train", "revision": "main"}, "found 'main'"),
        ({"hub": "a/b", "revision": "0a" * 20}, "needs its split"),
        ({"path": "a", "metadata": ("x.id", "id")}, "'id'"),
        ({"path": "a", "dialect": "chatml"}, "dialect"),
        ({"path": "a", "filters": {"no_such": True}}, "no_such"),
    ],
)
def test_a_source_that_means_nothing_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SourceConfig(name="s", **settings)


def test_rows_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    """A reader that took in the whole file would meet its damaged end before its first row."""
    packed = zstandard.compress(
        b"".join(b'{"n": %d, "%s": 0}\n' % (i, b"x" * 999) for i in range(9000))
    )
    (tmp_path / "a.jsonl.zst").write_bytes(packed + b"damaged")
    rows = open_jsonl(tmp_path / "a.jsonl.zst", "a")
    assert next(rows) == RawRow({"n": 0, "x" * 999: 0}, "a", 1)
    with pytest.raises(DataError, match=r"unreadable after line \d{4}:"):
        list(rows)


CHAT: list[dict[str, Any]] = [{"messages": [{"role": "user", "content": "q"}], "n": 1}]


@pytest.mark.parametrize("kind", ["numpy", "pandas", "arrow"])
def test_a_saved_dataset_forgets_the_format_it_was_looked_at_in(tmp_path: Path, kind: str) -> None:
    data = datasets.Dataset.from_list(CHAT)
    data.set_format(kind, columns=["n"])
    data.save_to_disk(str(tmp_path / "one"))
    assert [row.row for row in raw(tmp_path, "one") if isinstance(row, RawRow)] == CHAT


def test_media_columns_of_a_saved_dataset_are_named(tmp_path: Path) -> None:
    data = datasets.Dataset.from_list([{**CHAT[0], "pic": {"bytes": b"x", "path": None}}])
    data.cast_column("pic", datasets.Image()).save_to_disk(str(tmp_path / "one"))
    with pytest.raises(DataError, match="'pic' holds media"):
        raw(tmp_path, "one")


def test_a_parquet_row_that_is_no_text_is_dropped_alone(tmp_path: Path) -> None:
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 1, 3, 4)))
    prompts = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"a\xff\xfeb")])
    pq.write_table(pa.table({"prompt": prompts}), tmp_path / "a.parquet")
    first, bad, last = raw(tmp_path, "a.parquet")
    assert isinstance(first, RawRow)
    assert isinstance(last, RawRow)
    assert (first.row, last.row) == ({"prompt": "a"}, {"prompt": "b"})
    assert isinstance(bad, Dropped)
    assert (bad.reason, bad.line) == ("malformed_row", 2)


def test_two_columns_of_one_name_are_no_table(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["x", "x"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="two columns are called 'x'"):
        raw(tmp_path, "a.parquet")
