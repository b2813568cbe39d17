"""What a build reads: input files with their hashes, the artifacts that they lie in, the parts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from data_builders.decontamination.items import as_source
from data_builders.decontamination.match import Decontaminator
from data_builders.rows.files import count_saved, find_files, input_files
from data_builders.rows.parts import Part, Piece, cut_file, gather, part_size
from posttrain.config.build_sft import BuildSftConfig, SftSource
from posttrain.config.overlap import DecontaminationConfig
from posttrain.errors import ConfigError, DataError
from posttrain.hashing import digest_of, sha256_file
from posttrain.runs import MANIFEST, Manifest, Parent, parent_of, read_artifact


@dataclass(frozen=True, slots=True)
class Input:
    """One input file of a source; a hub id has neither size nor hash, its revision binds it."""

    source: str
    path: str
    bytes: int | None
    sha256: str | None


def scan_inputs(
    recipe: BuildSftConfig, base_dir: Path
) -> tuple[list[Input], dict[str, list[Part]]]:
    """All input files, hashed, and the parts that each source is read in: one pass over each file.

    Raises:
        ConfigError: a path that matches nothing.
        DataError: a file that changed while it was read.
    """
    inputs: list[Input] = []
    parts: dict[str, list[Part]] = {}
    with ThreadPoolExecutor(recipe.workers) as pool:  # hashing leaves the interpreter free
        for source in recipe.sources:
            paths = find_files(source, base_dir)
            sizes = [path.stat().st_size if path.is_file() else 0 for path in paths]
            scan = partial(_scan, source, base_dir, recipe.part_bytes)
            scanned = list(pool.map(scan, paths, accumulate(sizes, initial=0)))
            if source.hub is not None:
                name = f"{source.hub}@{source.revision}"
                digest = digest_of([source.hub, source.subset, source.revision, source.split])
                piece = Piece(name, name, "hub", 0, 0, 1, None, 1, digest)
                scanned = [([Input(source.name, name, None, None)], [piece])]
            inputs += [file for files, _ in scanned for file in files]
            pieces = [piece for _, own in scanned for piece in own]
            parts[source.name] = gather(source.name, pieces, recipe.part_bytes)
    return inputs, parts


def _scan(
    source: SftSource, base_dir: Path, size: int, path: Path, start: int
) -> tuple[list[Input], list[Piece]]:
    """The inputs and pieces of a path, `start` bytes of its source behind others."""
    name = os.path.relpath(path, base_dir)
    if path.is_file():
        digest, pieces = cut_file(path.absolute(), name, size, start=start)
        return [_input(source.name, path, base_dir, digest)], pieces
    # a dataset directory: its files are inputs, its rows are cut evenly
    files = sorted(p for p in path.rglob("*") if p.is_file())
    inputs = [_input(source.name, file, base_dir, sha256_file(file)) for file in files]
    digest = digest_of([[i.bytes, i.sha256] for i in inputs])
    total, rows = sum(i.bytes or 0 for i in inputs), count_saved(path, source)
    count = min(max(1, -(-total // part_size(total, size))), max(rows, 1))
    edges = pairwise(rows * k // count for k in range(count + 1))
    place, least = str(path.absolute()), max(total // count, 1)
    return inputs, [
        Piece(place, name, "directory", a, b, a + 1, b - a, least, digest) for a, b in edges
    ]


def _input(source: str, path: Path, base_dir: Path, digest: str) -> Input:
    shown = path.relative_to(base_dir) if path.is_relative_to(base_dir) else path
    return Input(source, str(shown), path.stat().st_size, digest)


EVALUATION = "evaluation files"  # no source can have a name with a space


def evaluation_files(config: DecontaminationConfig | None, base_dir: Path) -> list[Input]:
    """All files that decontamination reads, hashed. Raises as `input_files`."""
    entries = config.files if config is not None else ()
    paths = [path for file in entries for path in input_files(as_source(file), base_dir)]
    return [_input(EVALUATION, p, base_dir, sha256_file(p)) for p in dict.fromkeys(paths)]


def load_decontaminator(
    config: DecontaminationConfig | None, base_dir: Path, files: Sequence[Input]
) -> Decontaminator | None:
    """What a recipe asks for, `None` without the block.

    Args:
        files: as `evaluation_files` found them when the build began.

    Raises:
        DataError: one of them is another by now, or cannot be read.
    """
    if config is None:
        return None
    found = Decontaminator.load(config, base_dir)
    if [i.sha256 for i in evaluation_files(config, base_dir)] != [i.sha256 for i in files]:
        raise DataError("an evaluation file was changed while the build read it; start again")
    return found


def find_parents(paths: Sequence[Path], out: Path) -> list[Parent]:
    """The artifacts that the given files or folders lie in, each verified and named once.

    Raises:
        DataError: an artifact that changed since it was made, or a file that is not part of it.
    """
    parents: dict[str, Parent] = {}
    for path in paths:
        root = next((p for p in path.resolve().parents if (p / MANIFEST).is_file()), None)
        if root is None:
            continue
        manifest = read_artifact(root)
        inside = path.resolve().relative_to(root).as_posix()
        if not any(f.path == inside or f.path.startswith(f"{inside}/") for f in manifest.files):
            raise DataError(f"{path} lies in the artifact {root} but its manifest does not list it")
        parents[manifest.digest] = parent_of(root, relative_to=out, manifest=manifest)
    return [parents[digest] for digest in sorted(parents)]


def as_stats(inputs: Iterable[Input]) -> list[dict[str, Any]]:
    """For the manifest: by file name only, since where a file lies is no part of the lineage."""
    return [
        {**asdict(i), "path": i.path if i.sha256 is None else Path(i.path).name} for i in inputs
    ]


def check_unchanged(manifest: Manifest, inputs: Sequence[Input], *others: str) -> None:
    """Refuse to call a finished artifact up to date when its inputs, or `others`, have changed.

    Raises:
        ConfigError: naming what changed.
    """
    before = {(i["source"], i["path"], i["sha256"]) for i in manifest.stats["inputs"]}
    now = {(i["source"], i["path"], i["sha256"]) for i in as_stats(inputs)}
    changed = sorted({path for _, path, _ in before ^ now}) + sorted(others)
    if changed:
        raise ConfigError(
            f"this artifact was finished before its input changed ({', '.join(changed)}); choose "
            "another out=, or delete the directory to make it anew"
        )
