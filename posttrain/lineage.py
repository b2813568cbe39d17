"""An artifact and everything it was made from, as far as it can be found on this machine.

A parent is bound by its digest: whatever else lies at its path is not it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import DataError
from posttrain.hashing import sha256_file
from posttrain.jsontext import jsonl_rows
from posttrain.runs import Manifest, Parent, read_artifact


@dataclass(frozen=True, slots=True)
class Node:
    """One artifact of a lineage.

    Attributes:
        depth: generations between the artifact that was asked for and this one.
        manifest: None if the artifact is not on this machine.
        missing: why there is no manifest; empty where there is one.
    """

    name: str
    kind: str
    digest: str
    depth: int
    path: Path
    manifest: Manifest | None
    missing: str = ""

    @property
    def artifact(self) -> Manifest:
        """The manifest of an artifact that is on this machine."""
        assert self.manifest is not None
        return self.manifest

    @property
    def stats(self) -> Mapping[str, Any]:
        """The stats of the manifest."""
        return self.artifact.stats


def trace(artifact: Path) -> list[Node]:
    """The artifact and its ancestors, each once, parents after children.

    Raises:
        DataError: the artifact itself has no manifest or a damaged one.
    """
    manifest = read_artifact(artifact, verify=False)
    root = Node(
        name=artifact.resolve().name,
        kind=manifest.kind,
        digest=manifest.digest,
        depth=0,
        path=artifact,
        manifest=manifest,
    )
    nodes = [root]
    for node in nodes:  # grows while it is walked, as ancestors are met
        if node.manifest is None:
            continue
        for parent in node.manifest.parents:
            if all(parent.digest != node.digest for node in nodes):
                nodes.append(_parent_node(parent, node))
    return nodes


def _parent_node(parent: Parent, child: Node) -> Node:
    """The parent as it lies where the child's manifest says, or why it does not."""
    path = child.path / parent.path
    missing = ""
    try:
        manifest = read_artifact(path, verify=False)
        if manifest.digest != parent.digest:
            digest = f"{manifest.digest[:12]}…"
            missing = f"another artifact lies at {parent.path} now ({digest})"
    except DataError:
        manifest = None
        missing = f"not at {parent.path}"
    return Node(
        name=Path(parent.path).name,
        kind=parent.kind,
        digest=parent.digest,
        depth=child.depth + 1,
        path=path,
        manifest=None if missing else manifest,
        missing=missing,
    )


def listed_path(node: Node, name: str) -> Path | None:
    """A file that the manifest lists; None if it lists no file of this name.

    Raises:
        DataError: the file is gone, or its content is not what the manifest says.
    """
    entry = next((file for file in node.artifact.files if file.path == name), None)
    if entry is None:
        return None
    path = node.path / name
    if not path.is_file() or sha256_file(path) != entry.sha256:
        raise DataError(f"{path} is missing or has changed since its manifest was written")
    return path


def read_json(node: Node, name: str) -> Any:
    """The content of a JSON file that the manifest lists; raises as `listed_path`."""
    path = listed_path(node, name)
    assert path is not None, f"{node.name} lists no {name}"
    return json.loads(path.read_text("utf-8"))


def listed_rows(node: Node, name: str) -> list[dict[str, Any]] | None:
    """The rows of a JSONL file that the manifest lists, else None; raises as `listed_path`."""
    path = listed_path(node, name)
    return None if path is None else jsonl_rows(path.read_text("utf-8"))


def side_rows(node: Node, name: str) -> list[dict[str, Any]]:
    """The rows of a JSONL file beside the artifact, such as its timing; empty without one."""
    file = node.path / name
    return jsonl_rows(file.read_text("utf-8")) if file.is_file() else []
