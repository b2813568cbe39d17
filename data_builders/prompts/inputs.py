"""What prompts are made from: every file with its hash, and the artifacts that some belong to.

prompt_inputs(sources, Path("."), out=Path("runs/tiny/samples"))
→ ([Input("maths", "runs/tiny/world/train/maths.jsonl", …)], [Parent("../world", "77ab…", …)])
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data_builders.rows.files import find_files
from data_builders.sft.inputs import Input, as_stats, find_parents
from posttrain.artifacts import Manifest, Parent, sha256_file
from posttrain.config.build_genrm import PreferenceSource
from posttrain.config.prompts import AnySource
from posttrain.errors import ConfigError


def prompt_inputs(
    sources: Sequence[AnySource | PreferenceSource], base_dir: Path, *, out: Path
) -> tuple[list[Input], list[Parent]]:
    """All input files, hashed, and the artifacts they lie in, verified.

    Raises:
        ConfigError: a path that matches nothing.
        DataError: an artifact that changed since it was made.
    """
    inputs: list[Input] = []
    paths: list[Path] = []
    for source in sources:
        if source.hub is not None:
            inputs.append(Input(source.name, f"{source.hub}@{source.revision}", None, None))
            continue
        for path in find_files(source.rows(), base_dir):
            files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
            inputs += [Input(source.name, str(p), p.stat().st_size, sha256_file(p)) for p in files]
            paths += files
    return inputs, find_parents(paths, out)


def refuse_changes(manifest: Manifest, inputs: Sequence[Input], parents: Sequence[Parent]) -> None:
    """Refuse to call a finished artifact up to date when what it was made from is not the same.

    Raises:
        ConfigError: naming what changed.
    """
    before = {(i["source"], i["path"], i["sha256"]) for i in manifest.stats["inputs"]}
    now = {(i["source"], i["path"], i["sha256"]) for i in as_stats(inputs)}
    changed = sorted({path for _, path, _ in before ^ now})
    known = {parent.digest for parent in manifest.parents}
    changed += sorted(parent.path for parent in parents if parent.digest not in known)
    if changed:
        raise ConfigError(
            f"this artifact was finished before its input changed ({', '.join(changed)}); choose "
            "another out=, or delete the directory to make it anew"
        )
