"""Rows of a source, from files, directories of `datasets.save_to_disk`, or a hub id as a stream.

Arrow gives every struct of a column the same members: the `null`s that it adds are removed from
nested objects again. In JSON text and `datasets.Json` columns a `null` was written by somebody.

JSON is read as a stream, one object a line or one array: UTF-8, strictly. Text that is no row (a
repeated key, `NaN`, text after the end) is dropped with a reason and the next row is read. A
compressed file that is cut off is a `DataError`: nobody knows how many rows are gone.
"""

from __future__ import annotations

import datetime
import decimal
import difflib
import glob
import io
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_builders.rows.raw import Drop, Opener, RawRow, RawRows
from posttrain.config.paths import refuse_out_of_reach
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError, DataError
from posttrain.hashing import sha256_file
from posttrain.jsontext import load_json

_BATCH_ROWS = 128
_MEDIA = re.compile(r"\b(Image|Audio|Video|Pdf|Nifti)\(")
# bytes of a text file in which lines are counted; the rest is estimated by size
_MAX_COUNTED = 256 * 1024 * 1024
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
# a complete JSON string, a structural character, or the opening quote of a string that goes on in
# the next block
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\],"]', re.DOTALL)
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)


def open_rows(config: SourceConfig, base_dir: Path) -> RawRows:
    """Open all rows of a source, in the order of its paths; a glob's files are sorted by name.

    Args:
        base_dir: folder that paths, also those in the rows, are relative to.

    Raises:
        ConfigError: at once, if a path matches nothing or is of no kind that can be read.
        DataError: while reading, if a file as a whole cannot be read (e.g. is cut off).
    """
    if config.hub is not None:
        return open_hub(config)
    paths = find_files(config, base_dir)
    openers = [open_whole(path, config) for path in paths]  # checked before any row is read

    def rows() -> RawRows:
        for path, opener in zip(paths, openers, strict=True):
            yield from opener(path, os.path.relpath(path, base_dir))

    return rows()


def find_files(config: SourceConfig, base_dir: Path) -> list[Path]:
    """Find the files and dataset directories of a source, each once.

    Raises:
        ConfigError: a path or glob that matches nothing; names the nearest thing that exists.
    """
    paths: dict[Path, None] = {}
    for pattern in config.paths:
        path = base_dir / pattern
        if path.exists():
            paths[path] = None
            continue
        matches = sorted(glob.glob(str(path), recursive=True)) if glob.has_magic(pattern) else []
        if not matches:
            problem = _missing_path(path, pattern)
            raise ConfigError(f"source {config.name!r}: {problem}", path=pattern)
        paths.update(dict.fromkeys(map(Path, matches)))
    return list(paths)


def open_whole(path: Path, config: SourceConfig) -> Opener:
    """Choose the function that opens a path, by its suffix.

    Raises:
        ConfigError: the path is of no kind that can be read.
    """
    if path.is_dir():
        return open_directory(path, config)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".parquet"]:
        return open_parquet
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    if suffixes[-1:] == [".json"]:
        return open_json
    if suffixes[-1:] in ([".jsonl"], [".ndjson"]):
        return open_jsonl
    raise ConfigError(
        f"source {config.name!r}: {path} is of no kind that can be read; known are .jsonl, "
        ".ndjson, .json (one object a line, or one array), each also .gz or .zst, .parquet, and "
        "the directories that datasets' save_to_disk writes",
        path=str(path),
    )


def _missing_path(path: Path, pattern: str) -> str:
    """Message about a path that does not exist, with what its folder holds."""
    folder = path.parent
    name = path.name
    while not folder.is_dir():
        name = folder.name
        folder = folder.parent
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", pattern) and folder == path.parents[1]:
        return (
            f"{pattern!r} does not exist; if it is a data set of the hub, name it with hub: "
            f"{pattern} in place of path:, with its revision and split"
        )
    entries = sorted(entry.name for entry in folder.iterdir())
    close = difflib.get_close_matches(name, entries, n=1, cutoff=0.4)
    problem = "matches no file" if glob.has_magic(pattern) else "does not exist"
    if close:
        return f"{pattern!r} {problem}; the nearest in {folder} is {close[0]!r}"
    return f"{pattern!r} {problem}; {folder} holds {', '.join(entries[:8]) or 'nothing'}"


def input_files(config: SourceConfig, base_dir: Path) -> list[Path]:
    """List the files of a source; a dataset directory stands for the files in it."""
    files: list[Path] = []
    for path in find_files(config, base_dir):
        if path.is_dir():
            files += sorted(file for file in path.rglob("*") if file.is_file())
        else:
            files.append(path)
    return files


def refuse_files_twice(sources: Sequence[SourceConfig], base_dir: Path) -> None:
    """Refuse a file that two sources read in the same way: its rows would count twice.

    Raises:
        ConfigError: names both sources; a copy under another name counts as the same file.
    """
    files_by_size: dict[int, list[tuple[SourceConfig, Path]]] = {}
    for source in sources:
        if source.hub is not None:
            continue
        for file in input_files(source, base_dir):
            same_size = files_by_size.setdefault(file.stat().st_size, [])
            for earlier_source, earlier in same_size:
                if earlier_source is source or not _reads_alike(earlier_source, source):
                    continue
                is_same = earlier.samefile(file)
                if is_same or sha256_file(earlier) == sha256_file(file):
                    relation = "the same file" if is_same else f"a copy of {earlier}"
                    raise ConfigError(
                        f"source {source.name!r}: {file} is {relation} that source "
                        f"{earlier_source.name!r} reads; leave one out, and repeat rows with "
                        "max_epochs"
                    )
            same_size.append((source, file))


def _reads_alike(source: SourceConfig, other_source: SourceConfig) -> bool:
    """True if two sources would take the same rows of a file, and the same texts of each row."""
    return source.where == other_source.where and source.fields == other_source.fields


def count_rows(files: Sequence[Path]) -> int | None:
    """Estimate the rows of the files; `None` when one is compressed or of another kind."""
    if not files:
        return None
    total = 0
    for file in files:
        rows = _estimate_rows(file)
        if rows is None:
            return None
        total += rows
    return total


def _estimate_rows(file: Path) -> int | None:
    """Estimate the rows of one file: exact for Parquet, by lines for text."""
    suffix = file.suffix.lower()
    if suffix == ".parquet":
        return pq.read_metadata(file).num_rows
    if suffix not in (".jsonl", ".ndjson", ".json"):
        return None
    lines = 0
    bytes_read = 0
    with file.open("rb") as handle:
        while bytes_read < _MAX_COUNTED and (block := handle.read(1 << 20)):
            lines += block.count(b"\n")
            bytes_read += len(block)
    return round(lines * file.stat().st_size / max(bytes_read, 1))


def open_parquet(path: Path, name: str, *, groups: range | None = None, line: int = 1) -> RawRows:
    """Read the rows of one Parquet file, or of some of its row groups.

    Args:
        groups: row groups to read; None reads all.
        line: number of the first row that is read.
    """
    try:
        with pq.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            repeated = sorted({column for column in columns if columns.count(column) > 1})
            if repeated:
                raise DataError(f"{name}: two columns are called {repeated[0]!r}")
            if groups is None:
                groups = range(file.num_row_groups)
            batches = file.iter_batches(batch_size=_BATCH_ROWS, row_groups=list(groups))
            rows = (row for batch in batches for row in _batch_rows(batch))
            yield from _raw_rows(rows, name, json_columns=frozenset(), start=line)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{name}: not a readable Parquet file: {error}") from error


def _batch_rows(batch: pa.RecordBatch) -> Iterator[Any]:
    """Yield the rows of a batch; a row that Python cannot hold is replaced by the exception."""
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError):  # text that is no UTF-8, a date beyond Python's
        for index in range(batch.num_rows):
            try:
                yield from batch.slice(index, 1).to_pylist()
            except (ValueError, OverflowError) as error:
                yield error


def open_directory(path: Path, config: SourceConfig, rows: range | None = None) -> Opener:
    """Choose the function that opens a directory that `datasets` saved, at the source's split.

    Args:
        rows: numbers of the rows to read, from 0; None reads all.

    Raises:
        ConfigError: `datasets` did not save it, or the split is missing or must be chosen.
    """
    folder = _saved_split(path, config)
    split_name = "" if folder == path else f"/{folder.name}"
    return lambda _, name: _open_saved(folder, f"{name}{split_name}", rows)


def count_saved(path: Path, config: SourceConfig) -> int:
    """Count the rows of a directory that `datasets` saved. Raises the errors of opening it."""
    return len(_load_saved(_saved_split(path, config), str(path)))


def _saved_split(path: Path, config: SourceConfig) -> Path:
    """Find the folder of the source's split in a directory that `datasets` saved."""
    if (path / "dataset_dict.json").is_file():
        splits = sorted(p.parent.name for p in path.glob("*/state.json"))
        split = config.split or (splits[0] if len(splits) == 1 else None)
        if split in splits:
            return path / split
        problem = f"holds the splits {', '.join(splits)}; split is {config.split!r}"
    elif (path / "state.json").is_file():
        if config.split is None:
            return path
        problem = "is one split; leave split out"
    else:
        entries = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "nothing"
        problem = (
            f"is a directory, but datasets' save_to_disk did not write it (it holds {entries}); "
            f"name its files, e.g. by a glob such as {path.name}/*.jsonl"
        )
    raise ConfigError(f"source {config.name!r}: {path} {problem}")


def open_hub(config: SourceConfig) -> RawRows:
    """Stream the rows of a hub dataset at its pinned commit; no code of the repository is run.

    Raises:
        ConfigError: the id, subset, split or revision does not exist, or the hub is out of reach.
    """
    refuse_out_of_reach(config.hub, key=f"source {config.name!r}", kind="dataset")
    # imported here: it takes seconds, and a recipe of local files never needs it
    import datasets

    name = f"{config.hub}@{(config.revision or '')[:12]}/{config.split}"
    try:
        rows: Any = datasets.load_dataset(
            str(config.hub),
            name=config.subset,
            split=config.split,
            revision=config.revision,
            streaming=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"source {config.name!r}: cannot open {name}: {error}") from error
    return _raw_rows(rows, name, _json_columns(rows.features))


def _load_saved(path: Path, name: str) -> Any:
    import datasets

    try:
        return datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise DataError(f"{name}: not a readable dataset directory: {error}") from error


def _open_saved(path: Path, name: str, rows: range | None) -> RawRows:
    dataset = _load_saved(path, name)
    media = [column for column, kind in dataset.features.items() if _MEDIA.search(repr(kind))]
    if media:
        raise DataError(f"{name}: column {media[0]!r} holds media; text only: save it without")
    # a dataset remembers the format and the columns that it was last used with
    unformatted = dataset.with_format(None)
    first_row = 1
    if rows is not None:
        unformatted = unformatted.select(rows)
        first_row = rows.start + 1
    json_columns = _json_columns(dataset.features)
    yield from _raw_rows(_dataset_rows(unformatted), name, json_columns, start=first_row)


def _dataset_rows(dataset: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a `Dataset`, fetched a batch at a time (one at a time is far slower)."""
    for batch in dataset.iter(batch_size=_BATCH_ROWS):
        for cells in zip(*batch.values(), strict=True):
            yield dict(zip(batch, cells, strict=True))


def _json_columns(features: Any) -> frozenset[str]:
    """Names of the columns that hold `datasets.Json` at any depth."""
    return frozenset(name for name, kind in (features or {}).items() if "Json(" in repr(kind))


def _to_json_types(value: Any) -> Any:
    """Convert a value from Arrow to JSON's types, without the null members of its objects."""
    if isinstance(value, dict):
        return {key: _to_json_types(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_to_json_types(item) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def _raw_rows(
    rows: Iterable[Any], name: str, json_columns: frozenset[str], *, start: int = 1
) -> RawRows:
    """Number rows from `start` and convert their values to JSON's types."""
    for line, row in enumerate(rows, start=start):
        if isinstance(row, Exception):
            yield Drop("malformed_row", str(row), name, line)
            continue
        json_row: dict[str, Any] = {}
        for key, value in row.items():
            json_row[key] = value if key in json_columns else _to_json_types(value)
        yield RawRow(json_row, name, line)


def open_jsonl(
    path: Path, name: str, *, start: int = 0, stop: int | None = None, line: int = 1
) -> RawRows:
    """Read a file of JSON lines; `name` is the file's name in the rows.

    Args:
        start, stop: bytes of a plain file to read, cut at line ends.
        line: number of the line that begins at `start`.

    Raises:
        DataError: a damaged compressed file.
    """
    first_line = line
    with _open_stream(path) as file:
        line = first_line - 1
        try:
            for line, text in enumerate(_read_lines(file, start, stop), start=first_line):
                if line == 1:
                    text = text.removeprefix(_BOM)
                if text.strip():
                    yield _parse_line(text, name, line)
        # pyarrow raises OSError for every damaged stream
        except OSError as error:
            raise DataError(f"{name}: unreadable after line {line}: {error}") from error


def open_json(path: Path, name: str) -> RawRows:
    """Read a `.json` file: an array, or one object a line."""
    row = None
    try:
        with _open_stream(path) as file:
            head = file.read(_BLOCK)
            if is_array(head):
                blocks = itertools.chain((head,), iter(lambda: file.read(_BLOCK), b""))
                for row in read_elements(blocks, name):
                    yield row
                return
    except OSError as error:
        line = row.line if row else 0
        raise DataError(f"{name}: unreadable after line {line}: {error}") from error
    yield from open_jsonl(path, name)


@contextmanager
def _open_stream(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file as a stream of bytes, decompressed by its suffix."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    if compression is None:
        with path.open("rb") as file:
            yield file
    else:
        with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, compression) as stream:
            # NativeFile speaks the raw-stream protocol without being a RawIOBase by type
            yield io.BufferedReader(stream, buffer_size=1 << 20)  # pyright: ignore[reportArgumentType]


def _read_lines(file: io.BufferedReader, start: int, stop: int | None) -> Iterator[bytes]:
    """Yield the lines of a file that begin in the bytes `start` to `stop`."""
    if start:
        file.seek(start)
    if stop is None:
        yield from file
        return
    while start < stop and (text := file.readline()):
        start += len(text)
        yield text


def _parse_line(text: bytes, name: str, line: int) -> RawRow | Drop:
    """Parse a line; the detail of a drop says how a file of JSON lines is to be written."""
    row = _parse_row(text, name, line)
    if isinstance(row, RawRow):
        return row
    hint = ""
    if text.strip() == b"{":
        hint = "; write each object on one line (jq -c .)"
    elif text.lstrip()[:1] == b"[":
        hint = "; rows are one object a line (an array needs a .json file)"
    elif not text.endswith(b"\n"):
        hint = "; the line has no end, the file may be cut off"
    return replace(row, detail=row.detail + hint)


def _parse_row(text: bytes, name: str, line: int) -> RawRow | Drop:
    try:
        row = load_json(text)
    except UnicodeDecodeError as error:
        return Drop("malformed_json", f"not UTF-8 at byte {error.start}", name, line)
    except ValueError as error:
        return Drop("malformed_json", str(error), name, line)
    if not isinstance(row, dict):
        kind = type(row).__name__
        return Drop("malformed_json", f"a row is an object, found a {kind}", name, line)
    return RawRow(row, name, line)


def is_array(head: bytes) -> bool:
    """True if a `.json` file with these first bytes is an array, and not one object a line."""
    return head.removeprefix(_BOM).lstrip(_SPACE).startswith(b"[")


def read_elements(blocks: Iterable[bytes], name: str) -> Iterator[RawRow | Drop]:
    """Read a JSON array from the file's bytes in order, cut anywhere."""
    line = 1
    for text, problem in _split_elements(blocks):
        element = text.lstrip(_SPACE)
        first_line = line + text.count(b"\n", 0, len(text) - len(element))
        line += text.count(b"\n")
        if problem:
            yield Drop("malformed_json", problem, name, first_line)
        elif problem is None:
            yield _parse_row(element, name, first_line)


def _split_elements(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, str | None]]:
    """Split a JSON array into its elements, without the commas.

    Yields all bytes in order: (element, None), (text that is no element, what is wrong with it), or
    (text to skip, "").

    JSON's structure is ASCII, and UTF-8 uses no ASCII bytes inside longer characters, so blocks may
    end anywhere.
    """
    pending = b""
    position = 0  # in `pending`, up to where it was scanned
    depth = 0
    commas = 0
    in_string = False
    opened = False
    closed = False
    for block in blocks:
        pending += block
        start = 0
        if in_string:  # resume where the last block ended: a long string is scanned once
            position += len(_IN_STRING.match(pending, position)[0])  # pyright: ignore[reportOptionalSubscript]  # matches the empty text too
            if not pending.startswith(b'"', position):
                continue
            in_string = False
            position += 1
        for token in () if closed else _TOKEN.finditer(pending, position):
            mark = token[0]
            position = token.end()
            if mark == b'"':  # the string goes on in the next block
                in_string = True
                break
            if not opened:
                # `is_array` saw that this is the opening bracket
                yield pending[start : token.start()], ""
                opened = True
                start = position
            elif mark in (b"{", b"["):
                depth += 1
            elif depth == 0 and mark in (b",", b"]"):
                commas += mark == b","
                closed = mark == b"]"
                element = pending[start : token.start()]
                start = position
                # an empty array has no element, and no comma either
                is_empty_array = closed and not commas
                problem = "" if is_empty_array else "a comma without an element beside it"
                yield element, None if element.strip(_SPACE) else problem
                if closed:
                    break
            elif mark in (b"}", b"]") and depth:
                depth -= 1
        else:
            position = len(pending)
        pending = pending[start:]
        position -= start
        if closed and pending.strip(_SPACE):
            yield pending, "text behind the end of the array"
            return
    if depth or in_string:
        yield pending, "the file ends inside this element: it is cut off"
        return
    if pending.strip(_SPACE):
        yield pending, None
    if not closed:
        yield b"", "the array has no closing bracket: the file may be cut off"
