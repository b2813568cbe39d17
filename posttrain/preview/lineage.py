"""An artifact and all it was made from, as a tree.

sft_data runs/tiny/sft_data  3f2a91c0…
└── tiny_world runs/tiny/world  77ab04de…
"""

from __future__ import annotations

from pathlib import Path

from rich.text import Text
from rich.tree import Tree

from posttrain.artifacts import Manifest, Parent, read_artifact
from posttrain.errors import DataError


def lineage(path: Path, manifest: Manifest) -> Tree:
    """The tree of an artifact's ancestors, as far as they are still where they were."""
    tree = Tree(_label(manifest.kind, path, manifest.digest))
    _grow(tree, path, manifest.parents)
    return tree


def _grow(tree: Tree, path: Path, parents: tuple[Parent, ...]) -> None:
    for parent in parents:
        place = path / parent.path
        label = _label(parent.kind, place, parent.digest)
        try:
            found = read_artifact(place, kind=parent.kind, verify=False)
        except DataError as error:
            tree.add(label.append(f"  (not found: {error})", "yellow"))
            continue
        if found.digest != parent.digest:
            tree.add(label.append("  (another artifact is there now)", "red"))
        else:
            _grow(tree.add(label), place, found.parents)


def _label(kind: str, path: Path, digest: str) -> Text:
    return Text.assemble((kind, "bold"), f" {path}  ", (digest[:12], "dim"))
