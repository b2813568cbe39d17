"""Rows of a source, from files, directories of `datasets.save_to_disk`, or a hub id as a stream.

Arrow gives every struct of a column the same members: the `null`s that it adds are removed from
nested objects again. In JSON text and `datasets.Json` columns a `null` was written by somebody.
"""

from __future__ import annotations

import datetime
import decimal
import difflib
import glob
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_builders.rows.json_files import COMPRESSIONS, open_json, open_jsonl
from data_builders.rows.raw import Drop, Opener, RawRow, RawRows
from posttrain.config.paths import refuse_out_of_reach
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError, DataError
from posttrain.hashing import sha256_file

_BATCH_ROWS = 128
_MEDIA = re.compile(r"\b(Image|Audio|Video|Pdf|Nifti)\(")
# bytes of a text file in which lines are counted; the rest is estimated by size
_MAX_COUNTED = 256 * 1024 * 1024


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
