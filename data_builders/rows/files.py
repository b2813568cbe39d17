"""Where rows come from: files, directories of `datasets.save_to_disk`, hub ids as a stream.

Arrow gives every struct of a column the same members: the `null`s that it adds are taken out of
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
from data_builders.rows.raw import Dropped, Opener, RawRow, RawRows
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError, DataError
from posttrain.hashing import sha256_file

_BATCH_ROWS = 128
_MEDIA = re.compile(r"\b(Image|Audio|Video|Pdf|Nifti)\(")
_COUNTED = 256 * 1024 * 1024  # bytes read of a text file; beyond, its size tells the rest


def open_rows(config: SourceConfig, base_dir: Path) -> RawRows:
    """All rows of a source, in the order of its paths; a glob's files are sorted by name.

    Args:
        base_dir: relative paths start here; rows name their file relative to it.

    Raises:
        ConfigError: at once, when a path matches nothing or is of no kind that can be read.
        DataError: while reading, when a file as a whole cannot be read (e.g. is cut off).
    """
    if config.hub is not None:
        return open_hub(config)
    opened = [(open_whole(path, config), path) for path in find_files(config, base_dir)]
    return (row for opener, path in opened for row in opener(path, os.path.relpath(path, base_dir)))


def find_files(config: SourceConfig, base_dir: Path) -> list[Path]:
    """The files and dataset directories of a source, each once.

    Raises:
        ConfigError: a path or glob that matches nothing, naming the nearest thing that exists.
    """
    found: dict[Path, None] = {}
    for given in config.paths:
        path = base_dir / given
        if path.exists():
            found[path] = None
            continue
        matches = sorted(glob.glob(str(path), recursive=True)) if glob.has_magic(given) else []
        if not matches:
            raise ConfigError(f"source {config.name!r}: {_missing(path, given)}")
        found.update(dict.fromkeys(map(Path, matches)))
    return list(found)


def open_whole(path: Path, config: SourceConfig) -> Opener:
    """What opens a path, by its suffix. Raises ConfigError: it is of no kind that can be read."""
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
        "the directories that datasets' save_to_disk writes"
    )


def _missing(path: Path, given: str) -> str:
    """What is missing, and what stands in its place."""
    folder, wanted = path.parent, path.name
    while not folder.is_dir():
        folder, wanted = folder.parent, folder.name
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", given) and folder == path.parents[1]:
        return (
            f"{given!r} does not exist; if it is a data set of the hub, name it with hub: {given} "
            "in place of path:, with its revision and split"
        )
    names = sorted(entry.name for entry in folder.iterdir())
    close = difflib.get_close_matches(wanted, names, n=1, cutoff=0.4)
    what = "matches no file" if glob.has_magic(given) else "does not exist"
    if close:
        return f"{given!r} {what}; the nearest in {folder} is {close[0]!r}"
    return f"{given!r} {what}; {folder} holds {', '.join(names[:8]) or 'nothing'}"


def input_files(config: SourceConfig, base_dir: Path) -> list[Path]:
    """The files of a source; a dataset directory stands for the files in it."""
    files: list[Path] = []
    for path in find_files(config, base_dir):
        if path.is_dir():
            files += sorted(p for p in path.rglob("*") if p.is_file())
        else:
            files.append(path)
    return files


def refuse_files_twice(sources: Sequence[SourceConfig], base_dir: Path) -> None:
    """Raises ConfigError for a file that two sources read in the same way, under whatever name: its
    rows would count twice in the mixture."""
    known: dict[int, list[tuple[SourceConfig, Path]]] = {}
    for source in sources:
        for file in [] if source.hub is not None else input_files(source, base_dir):
            alike = known.setdefault(file.stat().st_size, [])
            for other, earlier in alike:
                if other is source or other.where != source.where or other.fields != source.fields:
                    continue
                if earlier.samefile(file) or sha256_file(earlier) == sha256_file(file):
                    what = "the same file" if earlier.samefile(file) else f"a copy of {earlier}"
                    raise ConfigError(
                        f"source {source.name!r}: {file} is {what} that source {other.name!r} "
                        "reads; leave one out, and repeat rows with max_epochs"
                    )
            alike.append((source, file))


def count_rows(files: Sequence[Path]) -> int | None:
    """About how many rows the files hold; `None` when one is compressed or of another kind."""
    counts = [_rows_of(file) for file in files]
    return None if None in counts or not counts else sum(count or 0 for count in counts)


def _rows_of(file: Path) -> int | None:
    suffix = file.suffix.lower()
    if suffix == ".parquet":
        return pq.read_metadata(file).num_rows
    if suffix not in (".jsonl", ".ndjson", ".json"):
        return None
    lines = read = 0
    with file.open("rb") as handle:
        while read < _COUNTED and (block := handle.read(1 << 20)):
            lines += block.count(b"\n")
            read += len(block)
    return round(lines * file.stat().st_size / max(read, 1))


def open_parquet(path: Path, name: str, *, groups: range | None = None, line: int = 1) -> RawRows:
    """Rows of one Parquet file, or of some of its row groups, the first of which is row `line`."""
    try:
        with pq.ParquetFile(path) as file:
            chosen = range(file.num_row_groups) if groups is None else groups
            batches = file.iter_batches(batch_size=_BATCH_ROWS, row_groups=list(chosen))
            names = file.schema_arrow.names
            twice = sorted({column for column in names if names.count(column) > 1})
            if twice:
                raise DataError(f"{name}: two columns are called {twice[0]!r}")
            rows = (row for batch in batches for row in _batch_rows(batch))
            yield from _number(rows, name, json_columns=frozenset(), start=line)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{name}: not a readable Parquet file: {error}") from error


def _batch_rows(batch: pa.RecordBatch) -> Iterator[Any]:
    """Rows of a batch; in the place of one that Python cannot hold, the error that says why."""
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError):  # text that is no UTF-8, a date beyond Python's
        for index in range(batch.num_rows):
            try:
                yield from batch.slice(index, 1).to_pylist()
            except (ValueError, OverflowError) as error:
                yield error


def open_directory(path: Path, config: SourceConfig, rows: range | None = None) -> Opener:
    """An opener for a directory that `datasets` saved, at the source's split.

    Args:
        rows: only these, counted from 0.

    Raises:
        ConfigError: it is no such directory, or the split is missing or must be chosen.
    """
    folder = _saved_split(path, config)
    inner = "" if folder == path else f"/{folder.name}"
    return lambda _, name: _open_saved(folder, f"{name}{inner}", rows)


def count_saved(path: Path, config: SourceConfig) -> int:
    """Rows of such a directory. Raises what opening it raises."""
    return len(_load(_saved_split(path, config), str(path)))


def _saved_split(path: Path, config: SourceConfig) -> Path:
    if (path / "dataset_dict.json").is_file():
        splits = sorted(p.parent.name for p in path.glob("*/state.json"))
        chosen = config.split or (splits[0] if len(splits) == 1 else None)
        if chosen in splits:
            return path / chosen
        problem = f"holds the splits {', '.join(splits)}; split is {config.split!r}"
    elif (path / "state.json").is_file():
        if config.split is None:
            return path
        problem = "is one split; leave split out"
    else:
        holds = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "nothing"
        problem = (
            f"is a directory, but datasets' save_to_disk did not write it (it holds {holds}); "
            f"name its files, e.g. by a glob such as {path.name}/*.jsonl"
        )
    raise ConfigError(f"source {config.name!r}: {path} {problem}")


def open_hub(config: SourceConfig) -> RawRows:
    """Rows of a hub dataset at its pinned commit, streamed; no code of the repository is run.

    Raises:
        ConfigError: the id, subset, split or revision does not exist, or the hub is out of reach.
    """
    # here and not above: it takes seconds to import, and a recipe of local files never needs it
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
    return _number(rows, name, _json_columns(rows.features))


def _load(path: Path, name: str) -> Any:
    import datasets

    try:
        return datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise DataError(f"{name}: not a readable dataset directory: {error}") from error


def _open_saved(path: Path, name: str, rows: range | None) -> RawRows:
    data = _load(path, name)
    media = [column for column, kind in data.features.items() if _MEDIA.search(repr(kind))]
    if media:
        raise DataError(f"{name}: column {media[0]!r} holds media; text only: save it without")
    # a dataset remembers the format it was last looked at in, and the columns
    plain = data.with_format(None)
    start = 1
    if rows is not None:
        plain, start = plain.select(rows), rows.start + 1
    yield from _number(_rows(plain), name, _json_columns(data.features), start=start)


def _rows(data: Any) -> Iterator[dict[str, Any]]:
    """Rows of a `Dataset`, fetched a batch at a time (one at a time is slower by far)."""
    for batch in data.iter(batch_size=_BATCH_ROWS):
        for cells in zip(*batch.values(), strict=True):
            yield dict(zip(batch, cells, strict=True))


def _json_columns(features: Any) -> frozenset[str]:
    """Columns that hold `datasets.Json` at any depth."""
    return frozenset(name for name, kind in (features or {}).items() if "Json(" in repr(kind))


def _plain(value: Any) -> Any:
    """A value from Arrow in JSON's terms, without the null members of its objects."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def _number(
    rows: Iterable[Any], name: str, json_columns: frozenset[str], *, start: int = 1
) -> RawRows:
    for line, row in enumerate(rows, start=start):
        if isinstance(row, Exception):
            yield Dropped("malformed_row", str(row), name, line)
            continue
        clean = {k: v if k in json_columns else _plain(v) for k, v in row.items()}
        yield RawRow(clean, name, line)
