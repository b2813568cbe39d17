"""Input files of a build: each with its hash, the artifacts that they lie in, and their parts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from data_builders.rows.files import count_saved, find_files
from data_builders.rows.parts import Part, Piece, cut_file, gather, part_size
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError, DataError
from posttrain.hashing import digest_of, sha256_file
from posttrain.runs import MANIFEST, Manifest, Parent, parent_of, read_artifact


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
