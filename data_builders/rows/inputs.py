"""Input files of a build: each with its hash, the artifacts that they lie in, and their parts.

A part is stretches of files that are read separately, each with its hash. A file of lines is cut at
line ends, Parquet at row groups, a dataset directory at rows; anything else is one piece. Rows keep
the file and line that they have in the whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from data_builders.rows.files import (
    count_saved,
    find_files,
    is_array,
    open_directory,
    open_hub,
    open_jsonl,
    open_parquet,
    open_whole,
)
from data_builders.rows.raw import RawRows
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError, DataError
from posttrain.hashing import digest_of, sha256_file
from posttrain.runs import MANIFEST, Manifest, Parent, parent_of, read_artifact

Kind = Literal["lines", "parquet", "directory", "whole", "hub"]
# bytes of the largest parts: a worker takes one at a time, and a killed build repeats at most one
# for each worker
PART_BYTES = 1 << 26
# a part has at most 1/32 of the bytes of its source before it, but no less than 1 MiB; ours
_GROWTH = 32
_SMALLEST_PART = 1 << 20
_BLOCK = 1 << 20  # bytes read at a time


@dataclass(frozen=True, slots=True)
class Input:
    """Input file of a source; a hub id has neither size nor hash, its revision pins it."""

    source: str
    path: str
    bytes: int | None
    sha256: str | None


def input_of(source: str, path: Path, base_dir: Path, digest: str | None = None) -> Input:
    """Build an input by its path relative to `base_dir`; hash the file unless `digest` is given."""
    relative_path = path.relative_to(base_dir) if path.is_relative_to(base_dir) else path
    return Input(source, str(relative_path), path.stat().st_size, digest or sha256_file(path))


def scan_inputs(
    sources: Sequence[SourceConfig], base_dir: Path, *, part_bytes: int, threads: int
) -> tuple[list[Input], dict[str, list[Part]]]:
    """Hash all input files and cut each source into parts, in one pass over each file.

    Args:
        part_bytes: maximum size of a part, approximately.

    Returns:
        All inputs, and the parts of each source by its name.

    Raises:
        ConfigError: a path that matches nothing.
        DataError: a file that changed while it was read.
    """
    inputs: list[Input] = []
    parts: dict[str, list[Part]] = {}
    with ThreadPoolExecutor(threads) as pool:  # hashing releases the interpreter's lock
        for source in sources:
            pieces: list[Piece] = []
            if source.hub is not None:
                name = f"{source.hub}@{source.revision}"
                digest = digest_of([source.hub, source.subset, source.revision, source.split])
                inputs.append(Input(source.name, name, None, None))
                pieces.append(Piece(name, name, "hub", 0, 0, 1, None, 1, digest))
            paths = find_files(source, base_dir)
            sizes = [path.stat().st_size if path.is_file() else 0 for path in paths]
            scan = partial(_scan_path, source, base_dir, part_bytes)
            for path_inputs, path_pieces in pool.map(scan, paths, accumulate(sizes, initial=0)):
                inputs += path_inputs
                pieces += path_pieces
            parts[source.name] = gather(source.name, pieces, part_bytes)
    return inputs, parts


def _scan_path(
    source: SourceConfig, base_dir: Path, part_bytes: int, path: Path, start: int
) -> tuple[list[Input], list[Piece]]:
    """Hash and cut a path, which begins at byte `start` of its source."""
    name = os.path.relpath(path, base_dir)
    if path.is_file():
        digest, pieces = cut_file(path.absolute(), name, part_bytes, source_bytes=start)
        return [input_of(source.name, path, base_dir, digest)], pieces
    # a dataset directory: its files are inputs, its rows are cut evenly
    files = sorted(file for file in path.rglob("*") if file.is_file())
    inputs = [input_of(source.name, file, base_dir) for file in files]
    digest = digest_of([[file.bytes, file.sha256] for file in inputs])
    total = sum(file.bytes or 0 for file in inputs)
    rows = count_saved(path, source)
    count = max(1, -(-total // part_size(total, part_bytes)))
    count = min(count, max(rows, 1))
    size = max(total // count, 1)
    pieces: list[Piece] = []
    for first, stop in pairwise(rows * k // count for k in range(count + 1)):
        pieces.append(
            Piece(
                str(path.absolute()),
                name,
                "directory",
                first,
                stop,
                first + 1,
                rows=stop - first,
                bytes=size,
                digest=digest,
            )
        )
    return inputs, pieces


def find_parents(paths: Sequence[Path], out: Path) -> list[Parent]:
    """Find the artifacts that files or folders lie in, each verified and named once.

    Args:
        out: output directory that the parents' paths are relative to.

    Raises:
        DataError: an artifact that changed since it was made, or a file that is not part of it.
    """
    parents: dict[str, Parent] = {}
    for path in paths:
        folders = path.resolve().parents
        root = next((folder for folder in folders if (folder / MANIFEST).is_file()), None)
        if root is None:
            continue
        manifest = read_artifact(root)
        inner_path = path.resolve().relative_to(root).as_posix()
        is_listed = any(
            file.path == inner_path or file.path.startswith(f"{inner_path}/")
            for file in manifest.files
        )
        if not is_listed:
            raise DataError(f"{path} lies in the artifact {root} but its manifest does not list it")
        parents[manifest.digest] = parent_of(root, relative_to=out, manifest=manifest)
    return [parents[digest] for digest in sorted(parents)]


def as_stats(inputs: Iterable[Input]) -> list[dict[str, Any]]:
    """Inputs for the manifest, by file name only: where a file lies is no part of the lineage."""
    rows: list[dict[str, Any]] = []
    for file in inputs:
        name = file.path if file.sha256 is None else Path(file.path).name
        rows.append({**asdict(file), "path": name})
    return rows


def check_unchanged(manifest: Manifest, inputs: Sequence[Input], *other_changes: str) -> None:
    """Refuse to call a finished artifact up to date if its inputs have changed.

    Args:
        other_changes: names of other things that have changed; with any, the artifact is refused.

    Raises:
        ConfigError: names what changed.
    """
    recorded = {_identity(row) for row in manifest.stats["inputs"]}
    current = {_identity(row) for row in as_stats(inputs)}
    changed = sorted({path for _, path, _ in recorded ^ current}) + sorted(other_changes)
    if changed:
        raise ConfigError(
            f"this artifact was finished before its input changed ({', '.join(changed)}); choose "
            "another out=, or delete the directory to make it anew"
        )


def _identity(row: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """Source, path and hash of an input in a manifest."""
    return row["source"], row["path"], row["sha256"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Stretch of one file or directory.

    Attributes:
        start, stop: ends of the stretch, in bytes (`lines`), row groups (`parquet`) or rows
            (`directory`); else 0.
        line: number of its first row in the file.
        rows: estimated rows, for plans; None if they are not known.
        digest: hash of the stretch, or of the whole file if that is cheaper.
        changed: modification time of the file when it was hashed, in nanoseconds; 0: not checked.
    """

    path: str
    file: str
    kind: Kind
    start: int
    stop: int
    line: int
    rows: int | None
    bytes: int
    digest: str
    changed: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Pieces of one source that are prepared together."""

    source: str
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """Bytes to read."""
        return sum(piece.bytes for piece in self.pieces)

    @property
    def rows(self) -> int | None:
        """Estimated rows; None if nobody knows."""
        total = 0
        for piece in self.pieces:
            if piece.rows is None:
                return None
            total += piece.rows
        return total

    def describe(self) -> str:
        """Place of the part, for messages."""
        first = self.pieces[0]
        last = self.pieces[-1]
        end = f" to {last.file}" if last.file != first.file else ""
        return f"{self.source}: {first.file} from row {first.line}{end}"

    def content(self, *, placed: bool) -> str:
        """Digest of the rows; with `placed` of their files and lines too."""
        pieces: list[list[object]] = []
        for piece in self.pieces:
            key: list[object] = [piece.kind, piece.digest]
            if piece.kind != "lines":  # its digest is of the whole file
                key += [piece.start, piece.stop]
            key.append(piece.line == 1)  # a first line may begin with a byte-order mark
            if placed:
                key += [piece.file, piece.line]
            pieces.append(key)
        return digest_of(pieces)


def part_size(position: int, limit: int) -> int:
    """Bytes of the part that begins at this byte of its source: `limit`, or less near the start.

    A power of two near a 32nd of what comes before it, so that a small source too is work for many
    workers. Where a part ends depends on nothing after it: appended rows change no earlier part.
    """
    size = max(position // _GROWTH, _SMALLEST_PART)
    return min(limit, 1 << (size.bit_length() - 1))


def gather(source: str, pieces: Iterable[Piece], limit: int) -> list[Part]:
    """Group pieces, in order, into parts of at most about `limit` bytes."""
    parts: list[Part] = []
    waiting: list[Piece] = []
    position = 0  # bytes of the source before the waiting pieces
    waiting_bytes = 0
    for piece in pieces:
        if waiting and waiting_bytes + piece.bytes > part_size(position, limit):
            parts.append(Part(source, tuple(waiting)))
            position += waiting_bytes
            waiting = []
            waiting_bytes = 0
        waiting.append(piece)
        waiting_bytes += piece.bytes
    if waiting:
        parts.append(Part(source, tuple(waiting)))
    return parts


def open_part(part: Part, config: SourceConfig) -> RawRows:
    """Read the rows of a part.

    Raises:
        DataError: a file changed since it was hashed, or cannot be read.
    """
    for piece in part.pieces:
        yield from _open_piece(piece, config)
        if piece.changed and os.stat(piece.path).st_mtime_ns != piece.changed:
            raise DataError(f"{piece.file} was changed while it was read; start again")


def _open_piece(piece: Piece, config: SourceConfig) -> RawRows:
    path = Path(piece.path)
    name = piece.file
    if piece.kind == "hub":
        return open_hub(config)
    if piece.kind == "lines":
        return open_jsonl(path, name, start=piece.start, stop=piece.stop, line=piece.line)
    if piece.kind == "parquet":
        groups = range(piece.start, piece.stop)
        return open_parquet(path, name, groups=groups, line=piece.line)
    if piece.kind == "directory":
        return open_directory(path, config, range(piece.start, piece.stop))(path, name)
    return open_whole(path, config)(path, name)


def estimate_rows(parts: Sequence[Part]) -> int | None:
    """Estimate the rows of parts; those of unknown count are taken to be like the others."""
    counted_parts = [part for part in parts if part.rows is not None]
    known_rows = sum(part.rows or 0 for part in counted_parts)
    known_bytes = sum(part.bytes for part in counted_parts)
    if not known_bytes:
        return None if parts else 0
    return round(known_rows * sum(part.bytes for part in parts) / known_bytes)


def cut_file(
    path: Path, name: str, limit: int, *, source_bytes: int = 0
) -> tuple[str, list[Piece]]:
    """Hash a file and cut it into pieces of at most about `limit` bytes; an empty file has none.

    Args:
        name: name of the file in its rows.
        source_bytes: bytes of the source before the file.

    Returns:
        sha256 of the file, and its pieces.

    Raises:
        DataError: the file changed meanwhile.
    """
    stat_before = path.stat()
    suffix = path.suffix.lower()
    pieces = None
    if suffix in (".jsonl", ".ndjson") or (suffix == ".json" and not _is_array(path)):
        digest, pieces = _cut_lines(path, name, limit, source_bytes)
    else:
        digest = sha256_file(path)
        if suffix == ".parquet":
            pieces = _cut_row_groups(path, name, limit, source_bytes, digest)
    if pieces is None:
        pieces = [Piece(str(path), name, "whole", 0, 0, 1, None, stat_before.st_size, digest)]
    if path.stat().st_mtime_ns != stat_before.st_mtime_ns:
        raise DataError(f"{name} was changed while it was read; start again")
    filled_pieces = [piece for piece in pieces if piece.bytes]
    changed = stat_before.st_mtime_ns
    return digest, [replace(piece, changed=changed) for piece in filled_pieces]


def _is_array(path: Path) -> bool:
    with path.open("rb") as file:
        return is_array(file.read(_BLOCK))


def _cut_lines(path: Path, name: str, limit: int, source_bytes: int) -> tuple[str, list[Piece]]:
    """Hash a file of lines and cut it at line ends; `source_bytes` of its source come before it."""
    file_digest = hashlib.sha256()
    pieces: list[Piece] = []
    start = 0
    first_line = 1
    with path.open("rb") as file:
        while True:
            digest = hashlib.sha256()
            line_ends = 0
            size = 0
            last_byte = b""
            for block in _blocks(file, part_size(source_bytes + start, limit)):
                file_digest.update(block)
                digest.update(block)
                line_ends += block.count(b"\n")
                size += len(block)
                last_byte = block[-1:]
            if not size:
                return file_digest.hexdigest(), pieces
            pieces.append(
                Piece(
                    str(path),
                    name,
                    "lines",
                    start,
                    start + size,
                    first_line,
                    rows=line_ends + (last_byte != b"\n"),
                    bytes=size,
                    digest=digest.hexdigest(),
                )
            )
            start += size
            first_line += line_ends


def _blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the next `size` bytes of a file, and the rest of their last line."""
    block = b"\n"
    while size > 0 and (block := file.read(min(size, _BLOCK))):
        size -= len(block)
        yield block
    if block and not block.endswith(b"\n"):
        yield file.readline()


def _cut_row_groups(
    path: Path, name: str, limit: int, position: int, digest: str
) -> list[Piece] | None:
    """Cut a Parquet file at row groups; None if its metadata cannot be read."""
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowInvalid, OSError):
        return None  # reading its rows will say what is wrong
    pieces: list[Piece] = []
    start = 0
    first_line = 1
    rows = 0
    size = 0
    for stop in range(1, metadata.num_row_groups + 1):
        group = metadata.row_group(stop - 1)
        rows += group.num_rows
        columns = [group.column(index) for index in range(group.num_columns)]
        size += sum(column.total_compressed_size for column in columns)
        if size >= part_size(position, limit) or stop == metadata.num_row_groups:
            piece = Piece(
                str(path),
                name,
                "parquet",
                start,
                stop,
                first_line,
                rows=rows,
                bytes=max(size, 1),
                digest=digest,
            )
            pieces.append(piece)
            start = stop
            first_line += rows
            position += size
            rows = 0
            size = 0
    return pieces
