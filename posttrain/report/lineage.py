"""An artifact and everything it was made from, as far as it can be found on this machine.

A parent is bound by its digest: whatever else lies at its path is not it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import DataError
from posttrain.hashing import sha256_file
from posttrain.jsontext import jsonl_rows
from posttrain.report.section import Row, Sample, Samples, Section, is_shown, room
from posttrain.runs import FileEntry, Manifest, Parent, read_artifact


@dataclass(frozen=True, slots=True)
class Node:
    """One artifact of a lineage. Without `manifest` it was not found, and `missing` says why."""

    name: str
    kind: str
    digest: str
    depth: int
    path: Path
    manifest: Manifest | None
    missing: str = ""

    @property
    def stats(self) -> Mapping[str, Any]:
        assert self.manifest is not None
        return self.manifest.stats


def trace(artifact: Path) -> list[Node]:
    """The artifact and its ancestors, each once, parents after children.

    Raises:
        DataError: the artifact itself has no manifest or a damaged one.
    """
    manifest = read_artifact(artifact, verify=False)
    root = Node(artifact.resolve().name, manifest.kind, manifest.digest, 0, artifact, manifest)
    nodes = [root]
    for node in nodes:  # grows as ancestors are met
        for parent in node.manifest.parents if node.manifest else ():
            if all(parent.digest != known.digest for known in nodes):
                nodes.append(_find(parent, node))
    return nodes


def _find(parent: Parent, child: Node) -> Node:
    path, name = child.path / parent.path, Path(parent.path).name

    def node(manifest: Manifest | None, missing: str = "") -> Node:
        return Node(name, parent.kind, parent.digest, child.depth + 1, path, manifest, missing)

    try:
        manifest = read_artifact(path, verify=False)
    except DataError:
        return node(None, f"not at {parent.path}")
    if manifest.digest != parent.digest:
        why = f"another artifact lies at {parent.path} now ({manifest.digest[:12]}…)"
        return node(None, why)
    return node(manifest)


def listed_text(node: Node, name: str) -> str | None:
    """A text file that the manifest lists, `None` when it lists none of this name.

    Raises:
        DataError: the file is gone, or is not what the manifest says.
    """
    assert node.manifest is not None
    entry = next((file for file in node.manifest.files if file.path == name), None)
    return None if entry is None else _listed_path(node, entry).read_text("utf-8")


def _listed_path(node: Node, entry: FileEntry) -> Path:
    path = node.path / entry.path
    if not path.is_file() or sha256_file(path) != entry.sha256:
        raise DataError(f"{path} is missing or has changed since its manifest was written")
    return path


def listed_rows(node: Node, name: str) -> list[dict[str, Any]] | None:
    """The rows of a JSONL file that the manifest lists, else `None`; raises as `listed_text`."""
    found = listed_text(node, name)
    return None if found is None else jsonl_rows(found)


def samples_to_read(
    node: Node,
    title: str,
    sample: Callable[[Row, int], Sample],
    *,
    few: str,
    every: str = "",
    texts: int = 1,
    note: str = "",
) -> Section:
    """Samples of the rows of listed files; left out where the manifest lists none.

    Args:
        sample: of a row, with so many characters of each of its `texts`.
        few: the file with some rows, which the page of a descendant shows.
        every: the file, or the folder of the files, with all: for the artifact's own page.
    """
    assert node.manifest is not None
    files = node.manifest.files
    shown = [file for file in files if every and file.path.startswith(every)]
    if node.depth or not shown:
        shown = [file for file in files if file.path == few]
    if not shown:
        return Section(title, missing=f"{node.name} lists no {few}")
    total, place, rows = sum(file.rows or 0 for file in shown), 0, list[Row]()
    for file in shown:
        with _listed_path(node, file).open("rb") as lines:
            for line in lines:
                if is_shown(place, total):
                    rows.append(json.loads(line))
                place += 1
    if len(rows) < total:
        note += f" {len(rows):,} of {total:,}, evenly spread; all are in {every or few}."
    most = room(len(rows), texts)
    samples = Samples([sample(row, most) for row in rows])
    return Section(title, [*([note.strip()] if note else []), samples] if rows else [])


def side_rows(node: Node, name: str) -> list[dict[str, Any]]:
    """The rows of a JSONL file beside the artifact, such as its timing, if there is one."""
    file = node.path / name
    return jsonl_rows(file.read_text("utf-8")) if file.is_file() else []
