"""Where rows come from: files, HF dataset directories and hub ids, one stream of raw rows.

open_rows(SourceConfig(name="chat", path="data/*.jsonl.gz"), Path(".")) → RawRow(…), RawRow(…), …

Rows are read one by one (Arrow: one small batch at a time); memory does not grow with their number.
"""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from data_builders.rows.arrow import open_directory, open_hub, open_parquet
from data_builders.rows.json_files import COMPRESSIONS, open_json, open_jsonl
from data_builders.rows.raw import Opener, RawRows
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError

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
    """What opens a path, by its suffix.

    Raises:
        ConfigError: it is of no kind that can be read.
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
        "the directories that datasets' save_to_disk writes"
    )


def _missing(path: Path, given: str) -> str:
    """What is missing, and what stands in its place."""
    folder, wanted = path.parent, path.name
    while not folder.is_dir():
        folder, wanted = folder.parent, folder.name
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


def count_rows(files: Sequence[Path]) -> int | None:
    """About how many rows the files hold; `None` when one is compressed or of another kind."""
    counts = [_rows(file) for file in files]
    known = [count for count in counts if count is not None]
    return sum(known) if counts and len(known) == len(counts) else None


def _rows(file: Path) -> int | None:
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
