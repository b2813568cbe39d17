"""Rows from every kind of file: the same rows, their place, and what is wrong said where it is."""

from __future__ import annotations

import datetime
import decimal
import gzip
import itertools
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from data_builders.rows.files import open_jsonl, open_rows, read_elements
from data_builders.rows.raw import Drop, RawRow
from data_builders.rows.read import read_examples
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError, DataError
from tests.data_builders.small_rows import write_lines

ROWS: list[dict[str, Any]] = [
    {"prompt": f'{i} "[{{,\\', "completion": "½\n", "info": [{"n": [i]}, [], {}]}
    for i in range(300)
]
TABLE = [{key: row[key] for key in ("prompt", "completion")} for row in ROWS]
TEXT = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
PRETTY = json.dumps(ROWS, indent=2, ensure_ascii=False).encode()


def raw(folder: Path, path: str | tuple[str, ...], **more: Any) -> list[Any]:
    """All raw rows of some paths."""
    return list(open_rows(SourceConfig(name="s", path=path, **more), folder))


def good(rows: Iterable[RawRow | Drop]) -> list[dict[str, Any]]:
    """The rows that were read."""
    return [row.row for row in rows if isinstance(row, RawRow)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", TEXT),
        ("a.ndjson", TEXT.rstrip(b"\n")),
        ("a.json", TEXT.replace(b"\n", b"\r\n\r\n")),
        ("b.jsonl", b"\xef\xbb\xbf" + TEXT),
        ("a.jsonl.gz", gzip.compress(TEXT[:9000]) + gzip.compress(TEXT[9000:])),
        ("a.jsonl.zst", zstandard.compress(TEXT[:9000]) + zstandard.compress(TEXT[9000:])),
        ("b.json", json.dumps(ROWS).encode()),
        ("c.json", b"\xef\xbb\xbf \r\n" + PRETTY.replace(b"\n", b"\r\n") + b"\r\n"),
        ("a.json.gz", gzip.compress(PRETTY)),
    ],
)
def test_json_in_lines_and_arrays(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    rows = raw(tmp_path, name)
    assert good(rows) == ROWS
    assert {row.file for row in rows} == {name}
    if "jsonl" in name:
        assert [row.line for row in rows] == list(range(1, 301))
    if name == "c.json":
        lines = content.split(b"\n")
        assert all(lines[row.line - 1].strip() == b"{" for row in rows)


def test_parquet_and_saved_datasets_give_the_same_rows(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(TABLE), tmp_path / "a.parquet")
    data = datasets.Dataset.from_list(TABLE)
    datasets.DatasetDict({"train": data}).save_to_disk(str(tmp_path / "dict"))
    data.set_format("numpy", columns=["prompt"])  # it forgets how it was looked at
    data.save_to_disk(str(tmp_path / "one"))
    for path, file in (("a.parquet", "a.parquet"), ("one", "one"), ("dict", "dict/train")):
        found = raw(tmp_path, path)
        assert good(found) == TABLE
        assert [row.line for row in found] == list(range(1, 301))
        assert {row.file for row in found} == {file}


def test_values_of_arrow_in_terms_of_json(tmp_path: Path) -> None:
    """Nulls that Arrow adds are taken out again; those of JSON columns are somebody's."""
    rows = [{"tools": [{"a": {"x": 1}}], "note": None}, {"tools": [{"b": [None, 2]}], "note": "n"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert good(raw(tmp_path, "a.parquet")) == rows
    row = {"at": datetime.datetime(2026, 1, 2, 3), "day": datetime.date(2026, 1, 2),
           "price": decimal.Decimal("1.50"), "score": math.nan}  # fmt: skip
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    (found,) = good(raw(tmp_path, "a.parquet"))
    assert [*found.values()] == ["2026-01-02T03:00:00", "2026-01-02", "1.50", None]
    rows = [{"tools": {"default": None}}, {"tools": {"other": 1}}]
    features = datasets.Features({"tools": datasets.Json()})
    datasets.Dataset.from_list(rows, features=features).save_to_disk(str(tmp_path / "one"))
    assert good(raw(tmp_path, "one")) == rows


def test_what_is_wrong_with_a_table_is_named(tmp_path: Path) -> None:
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 1, 3, 4)))
    prompts = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"a\xff\xfeb")])
    pq.write_table(pa.table({"prompt": prompts}), tmp_path / "a.parquet")
    first, bad, last = raw(tmp_path, "a.parquet")
    assert good([first, last]) == [{"prompt": "a"}, {"prompt": "b"}]
    assert (bad.reason, bad.line) == ("malformed_row", 2)
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["x", "x"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="two columns are called 'x'"):
        raw(tmp_path, "a.parquet")
    data = datasets.Dataset.from_list([{"n": 1, "pic": {"bytes": b"x", "path": None}}])
    data.cast_column("pic", datasets.Image()).save_to_disk(str(tmp_path / "one"))
    with pytest.raises(DataError, match="'pic' holds media"):
        raw(tmp_path, "one")


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
        (b'{"a": 1e999}', "beyond the range"),
        (b'{"a": %s}' % (b"9" * 5000), "digits"),
        (b'{"a": ' + b"[" * 100_000, "nested too deep"),
        (b"[1, 2]", "found a list"),
        (b"[", "rows are one object a line"),
        (b"{", "write each object on one line"),
        (b"null", "found a NoneType"),
    ],
)
def test_a_line_that_is_no_row_is_named_and_the_next_is_read(
    tmp_path: Path, line: bytes, detail: str
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"ok": 1}\n' + line + b'\n{"ok": 3}\n{"half')
    first, bad, last, cut = raw(tmp_path, "a.jsonl")
    assert (first, last) == (RawRow({"ok": 1}, "a.jsonl", 1), RawRow({"ok": 3}, "a.jsonl", 3))
    assert (bad.reason, bad.line) == ("malformed_json", 2)
    assert detail in bad.detail
    assert "the file may be cut off" in cut.detail


@pytest.mark.parametrize(
    ("text", "rows", "details"),
    [
        ('[{"a": 1, "a": 2}, {"b": 1}]', 1, ["appears twice"]),
        ('[{"a": NaN},\n{"b": 1}, {"c": 1e999}]', 1, ["NaN is not JSON", "beyond the range"]),
        ('[{"a": 1}, 5, "x", [], null]', 1, ["int", "str", "list", "NoneType"]),
        ('[{"a": 1},, {"b": 1},]', 2, ["comma", "comma"]),
        ('[{"a": 1} {"b": 1}, {"c": 1}]', 1, ["Extra data"]),
        ('[{"a": 1}, {"b": "x\\', 1, ["cut off"]),
        ('[{"a": 1}, {"b": 1}', 2, ["no closing bracket"]),
        ('[{"a": 1},', 1, ["no closing bracket"]),
        ('[{"a": 1}]\n[{"b": 1}]', 1, ["behind the end"]),
        ('[{"a": 1]}, {"b": 1}]', 1, ["Expecting"]),
        ("[]", 0, []),
        ("", 0, []),
    ],
)
def test_an_element_that_is_no_row_is_named_and_the_next_is_read(
    tmp_path: Path, text, rows, details
):
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    found = raw(tmp_path, "a.json")
    bad = [item.detail for item in found if isinstance(item, Drop)]
    assert len(found) - len(bad) == rows
    assert all(wanted in detail for detail, wanted in zip(bad, details, strict=True))
    if bad:
        config = SourceConfig(name="s", path="a.json", strict=True, fields={"prompt": "a"})
        with pytest.raises(DataError, match=r"a\.json:\d"):
            list(read_examples(config, tmp_path))


# without a codec, whose characters Hypothesis would first find one by one
KEYS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=3)
VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab"\\[]{},\n漢', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    values=st.lists(VALUES, max_size=5),
    indent=st.none() | st.just(1),
    ascii_only=st.booleans(),
    places=st.lists(st.integers(0, 10**6), max_size=20),
)
def test_blocks_of_an_array_may_end_anywhere(values, indent, ascii_only, places):
    values = [{"is": value} for value in values]
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode()
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    blocks = [text[a:b] for a, b in itertools.pairwise(edges)]
    found = list(read_elements(blocks, "a"))
    assert good(found) == values
    assert len(found) == len(values)


def test_rows_come_while_the_file_is_read(tmp_path: Path) -> None:
    """A reader that took in the whole file would meet its damaged end before its first row."""
    lines = b"".join(b'{"n": %d, "%s": 0}\n' % (i, b"x" * 999) for i in range(9000))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(lines) + b"damaged")
    rows = open_jsonl(tmp_path / "a.jsonl.zst", "a")
    assert next(rows) == RawRow({"n": 0, "x" * 999: 0}, "a", 1)
    with pytest.raises(DataError, match=r"unreadable after line \d{4}:"):
        list(rows)
    read: list[int] = []

    def blocks():
        for number in range(100):
            read.append(number)
            yield b'[{"a": 1}' if number == 0 else b', {"a": 1}'
        yield b"]"

    for count, _ in enumerate(read_elements(blocks(), "a")):
        assert len(read) <= count + 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl.gz", gzip.compress(TEXT)[:-20]),
        ("a.jsonl.zst", zstandard.compress(TEXT)[:-20]),
        ("b.jsonl.zst", TEXT),
        ("a.json.gz", gzip.compress(PRETTY)[:-20]),
        ("a.parquet", b"PAR1 no more"),
    ],
)
def test_a_file_that_is_cut_off_stops_the_reading(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        raw(tmp_path, name)


def test_what_is_missing_or_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_lines(tmp_path / "data" / "alpaca_en.jsonl", [])
    (tmp_path / "a.csv").write_text("a,b\n")
    data = datasets.DatasetDict({k: datasets.Dataset.from_list(TABLE) for k in ("test", "train")})
    data.save_to_disk(str(tmp_path / "dict"))
    for path, more, pattern in (
        ("data/alpaca_eng.jsonl", {}, r"'data/alpaca_eng.jsonl' does not exist.*alpaca_en"),
        ("data/*.parquet", {}, r"'data/\*.parquet' matches no file.*alpaca_en"),
        ("date/x/y.jsonl", {}, r"nearest in .* is 'data'"),
        ("a.csv", {}, "of no kind that can be read"),
        ("data", {}, r"by a glob such as data/\*.jsonl"),
        ("dict", {}, "holds the splits test, train"),
        ("dict", {"split": "trian"}, "holds the splits test, train"),
        ("dict/train", {"split": "train"}, "leave split out"),
    ):
        with pytest.raises(ConfigError, match=pattern):
            raw(tmp_path, path, **more)
    assert len(raw(tmp_path, "dict", split="train")) == 300


def test_the_hub_is_streamed_at_its_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def load_dataset(path: str, **settings: Any) -> Any:
        if asked:
            raise FileNotFoundError("no such dataset")
        asked.update(settings, path=path)
        return datasets.Dataset.from_list([{"a": {"b": 1}}, {"a": {"c": 2}}]).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = SourceConfig(name="s", hub="org/chat", revision="0a" * 20, subset="en", split="train")
    # refused at once, where the library would try for half a minute and name no way out
    with pytest.raises(
        ConfigError, match=r"source 's': .*'org/chat'.* HF_HUB_OFFLINE is set: .* local path"
    ):
        open_rows(config, tmp_path)
    (tmp_path / "org___chat").mkdir()
    rows = list(open_rows(config, tmp_path))
    assert asked == {"path": "org/chat", "name": "en", "split": "train", "revision": "0a" * 20,
                     "streaming": True}  # fmt: skip
    assert rows == [
        RawRow({"a": {"b": 1}}, "org/chat@0a0a0a0a0a0a/train", 1),
        RawRow({"a": {"c": 2}}, "org/chat@0a0a0a0a0a0a/train", 2),
    ]
    with pytest.raises(ConfigError, match="cannot open org/chat"):
        open_rows(config, tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "a", "hub": "b"}, "exactly one of path and hub"),
        ({"path": ()}, "path is empty"),
        ({"path": "a", "revision": "0a" * 20}, "belong to a hub id"),
        ({"hub": "a/b", "split": "train", "revision": "main"}, "found 'main'"),
        ({"hub": "a/b", "revision": "0a" * 20}, "needs its split"),
        ({"path": "a", "metadata": ("x.id", "id")}, "'id'"),
    ],
)
def test_a_source_that_means_nothing_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SourceConfig(name="s", **settings)
