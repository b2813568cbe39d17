"""`.json` files that hold one array or pretty-printed objects: read as a stream, as strictly."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_builders.rows.files import open_rows
from data_builders.rows.json_files import layout_of, read_elements
from data_builders.rows.raw import Dropped, RawRow
from data_builders.rows.read import read_examples
from posttrain.config.source import SourceConfig
from posttrain.errors import DataError

ROWS: list[dict[str, Any]] = [
    {"prompt": f'{i} "[{{,\\', "completion": "½\n", "info": [{"n": [i]}, [], {}]}
    for i in range(300)
]


def raw(folder: Path, path: str) -> list[RawRow | Dropped]:
    return list(open_rows(SourceConfig(name="s", path=path), folder))


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_an_array_is_read_as_rows(tmp_path: Path, indent, name: str, ascii_only: bool):
    text = json.dumps(ROWS, indent=indent, ensure_ascii=ascii_only).encode()
    text = b"\xef\xbb\xbf \r\n" + text.replace(b"\n", b"\r\n") + b"\r\n"
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    rows = raw(tmp_path, name)
    assert [row.row for row in rows if isinstance(row, RawRow)] == ROWS
    assert rows[0].line == (2 if indent is None else 3)
    lines = text.split(b"\n")
    if indent == 2:
        assert all(lines[row.line - 1].strip() == b"{" for row in rows)


def test_pretty_printed_objects_are_rows(tmp_path: Path):
    text = "\n".join(json.dumps(row, indent=1) for row in ROWS)
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    assert [row.row for row in raw(tmp_path, "a.json") if isinstance(row, RawRow)] == ROWS
    (tmp_path / "a.jsonl").write_text(text, encoding="utf-8")
    first = raw(tmp_path, "a.jsonl")[0]
    assert isinstance(first, Dropped)
    assert "write each object on one line" in first.detail


VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab"\\[]{},\n漢', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def cut(text: bytes, places: Iterable[int]) -> list[bytes]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    values=st.lists(VALUES, max_size=5),
    indent=st.none() | st.just(1),
    ascii_only=st.booleans(),
    places=st.lists(st.integers(0, 10**6), max_size=20),
)
def test_blocks_may_end_anywhere(values, indent, ascii_only, places):
    values = [{"is": value} for value in values]
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode()
    found = list(read_elements(cut(text, places), "a", "array"))
    assert [item.row for item in found if isinstance(item, RawRow)] == values
    assert len(found) == len(values)


@pytest.mark.parametrize(
    ("text", "rows", "details"),
    [
        ('[{"a": 1, "a": 2}, {"b": 1}]', 1, ["appears twice"]),
        ('[{"a": NaN},\n{"b": 1}, {"c": 1e999}]', 1, ["NaN is not JSON", "beyond the range"]),
        ('[{"a": 1}, 5, "x", [], null]', 1, ["an int", "a str", "a list", "a NoneType"]),
        ('[{"a": 1},, {"b": 1},]', 2, ["a comma", "a comma"]),
        ('[{"a": 1} {"b": 1}, {"c": 1}]', 1, ["Extra data"]),
        ('[{"a": 1}, {"b": ', 1, ["cut off"]),
        ('[{"a": 1}, {"b": "x\\', 1, ["cut off"]),
        ('[{"a": 1}, {"b": 1}', 2, ["no closing bracket"]),
        ('[{"a": 1},', 1, ["no closing bracket"]),
        ('[{"a": 1}]\n[{"b": 1}]', 1, ["behind the end"]),
        ('[{"a": 1]}, {"b": 1}]', 1, ["Expecting"]),
        ("[]", 0, []),
        ("[ ", 0, ["no closing bracket"]),
        ('{\n"a": 1\n}\n{\n"b": NaN}\n{"c": 1}', 2, ["NaN"]),
        ('{\n"a": 1\n}\n{\n"b"', 1, ["cut off"]),
        ("", 0, []),
    ],
)
def test_what_is_no_row_is_named_and_the_next_is_read(tmp_path: Path, text, rows, details):
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    found = raw(tmp_path, "a.json")
    bad = [item.detail for item in found if isinstance(item, Dropped)]
    assert len(found) - len(bad) == rows
    assert len(bad) == len(details)
    for detail, wanted in zip(bad, details, strict=True):
        assert wanted.removeprefix("an ").removeprefix("a ") in detail
    if bad:
        config = SourceConfig(name="s", path="a.json", strict=True, fields={"prompt": "a"})
        with pytest.raises(DataError, match=r"a\.json:\d"):
            list(read_examples(config, tmp_path))


def test_memory_holds_one_element_and_a_block():
    """Elements come out while the file is read, not at its end."""
    read: list[int] = []

    def blocks():
        for number in range(100):
            read.append(number)
            yield b'[{"a": 1}' if number == 0 else b', {"a": 1}'
        yield b"]"

    for count, _ in enumerate(read_elements(blocks(), "a", "array")):
        assert len(read) <= count + 2


def test_lines_stay_lines():
    assert layout_of(b'{"a": 1}\n{"b": 2}') == "lines"
    assert layout_of(b"{}\n") == "lines"
    assert layout_of(b" \n[") == "array"
    assert layout_of(b"{\r\n") == "objects"
    assert layout_of(b"") == "lines"
