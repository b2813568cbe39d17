"""What a build reads: every input file with its hash, and the artifacts that some belong to.

find_inputs(recipe, Path("."))
→ [Input("maths", "runs/world/train.jsonl", 1_234_567, "ab12…"), …]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_builders.sources import find_files
from posttrain.artifacts import (
    MANIFEST,
    Manifest,
    Parent,
    digest_of,
    parent_of,
    read_artifact,
    sha256_file,
)
from posttrain.config.build_sft import BuildSftConfig, SftSource
from posttrain.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True)
class Input:
    """One input file of a source; a hub id has neither size nor hash, its revision binds it."""

    source: str
    path: str
    bytes: int | None
    sha256: str | None


def find_inputs(recipe: BuildSftConfig, base_dir: Path) -> list[Input]:
    """All input files, hashed.

    Raises:
        ConfigError: a path that matches nothing.
    """
    found: list[Input] = []
    for source in recipe.sources:
        if source.hub is not None:
            found.append(Input(source.name, f"{source.hub}@{source.revision}", None, None))
            continue
        for path in input_files(source, base_dir):
            name = path.relative_to(base_dir) if path.is_relative_to(base_dir) else path
            size, digest = path.stat().st_size, sha256_file(path)
            found.append(Input(source.name, str(name), size, digest))
    return found


def input_files(source: SftSource, base_dir: Path) -> list[Path]:
    """The files of a source; a dataset directory stands for the files in it."""
    files: list[Path] = []
    for path in find_files(source, base_dir):
        if path.is_dir():
            files += sorted(p for p in path.rglob("*") if p.is_file())
        else:
            files.append(path)
    return files


def fingerprint(
    inputs: Iterable[Input], recipe: BuildSftConfig, source: SftSource, tokens: dict[str, Any]
) -> str:
    """Of everything that decides a source's spool.

    Args:
        inputs: of this source.
        tokens: digests of tokenizer and template.
    """
    shared = recipe.model_dump(
        mode="json", include={"packing", "reasoning", "licences", "seed", "write_dropped"}
    )
    files = [{"bytes": i.bytes, "sha256": i.sha256} for i in inputs]
    own = source.model_dump(mode="json")
    return digest_of({**shared, "source": own, "inputs": files, **tokens})


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


def as_facts(inputs: Iterable[Input]) -> list[dict[str, Any]]:
    """For the manifest: by file name only, since where a file lies is no part of the lineage."""
    return [
        {**asdict(i), "path": i.path if i.sha256 is None else Path(i.path).name} for i in inputs
    ]


def check_unchanged(
    manifest: Manifest, inputs: Sequence[Input], tokenizer: str, template: str
) -> None:
    """Refuse to call a finished data set up to date when what it was made from is not the same.

    Raises:
        ConfigError: naming what changed.
    """
    before = {(i["source"], i["path"], i["sha256"]) for i in manifest.facts["inputs"]}
    now = {(i["source"], i["path"], i["sha256"]) for i in as_facts(inputs)}
    changed = sorted({path for _, path, _ in before ^ now})
    if manifest.facts["tokenizer"]["digest"] != tokenizer:
        changed.append("the tokenizer")
    if manifest.template_digest != template:
        changed.append("the chat template")
    if changed:
        raise ConfigError(
            f"this data set was finished before its input changed ({', '.join(changed)}); choose "
            "another out=, or delete the directory to build it anew"
        )
