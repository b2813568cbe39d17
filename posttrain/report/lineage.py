"""An artifact and everything it was made from, as far as it can be found on this machine.

A parent is bound by its digest: whatever else lies at its path is not it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from posttrain.errors import DataError
from posttrain.hashing import sha256_file
from posttrain.jsontext import jsonl_rows
from posttrain.report import section as ui
from posttrain.runs import Manifest, Parent, read_artifact

REPORT = "report.html"


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
    def artifact(self) -> Manifest:
        """The manifest of one that was found."""
        assert self.manifest is not None
        return self.manifest

    @property
    def stats(self) -> Mapping[str, Any]:
        return self.artifact.stats


def trace(artifact: Path) -> list[Node]:
    """The artifact and its ancestors, each once, parents after children. Raises DataError: the
    artifact itself has no manifest or a damaged one."""
    manifest = read_artifact(artifact, verify=False)
    root = Node(artifact.resolve().name, manifest.kind, manifest.digest, 0, artifact, manifest)
    nodes = [root]
    for node in nodes:  # grows as ancestors are met
        for parent in node.manifest.parents if node.manifest else ():
            if all(parent.digest != known.digest for known in nodes):
                nodes.append(_find(parent, node))
    return nodes


def _find(parent: Parent, child: Node) -> Node:
    path, missing = child.path / parent.path, ""
    try:
        manifest = read_artifact(path, verify=False)
        if manifest.digest != parent.digest:
            there = f"{manifest.digest[:12]}…"
            missing = f"another artifact lies at {parent.path} now ({there})"
    except DataError:
        manifest, missing = None, f"not at {parent.path}"
    name, manifest = Path(parent.path).name, None if missing else manifest
    return Node(name, parent.kind, parent.digest, child.depth + 1, path, manifest, missing)


def link_to(node: Node, page: Path) -> ui.Link | str:
    """The name of an artifact, as a link to its report where there is one; `page` is the file that
    the link stands in."""
    report = node.path / REPORT
    if node.manifest is None or not report.is_file():
        return node.name
    target = os.path.relpath(report.resolve(), page.resolve().parent)
    return ui.Link(node.name, Path(target).as_posix())


def listed_path(node: Node, name: str) -> Path | None:
    """A file that the manifest lists, `None` when it lists none of this name. Raises DataError: the
    file is gone, or is not what the manifest says."""
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
    """The rows of a JSONL file that the manifest lists, else `None`; raises as `listed_path`."""
    path = listed_path(node, name)
    return None if path is None else jsonl_rows(path.read_text("utf-8"))


def side_rows(node: Node, name: str) -> list[dict[str, Any]]:
    """The rows of a JSONL file beside the artifact, such as its timing, if there is one."""
    file = node.path / name
    return jsonl_rows(file.read_text("utf-8")) if file.is_file() else []


def samples_to_read(
    node: Node,
    title: str,
    sample: Callable[[ui.Row, int], ui.Sample],
    *,
    few: str,
    every: str = "",
    texts: int = 1,
    note: str = "",
) -> ui.Section:
    """Samples of the rows of listed files; left out where the manifest lists none.

    Args:
        sample: of a row, with so many characters of each of its `texts`.
        few: the file with some rows, which the page of a descendant shows.
        every: the file, or the folder of the files, with all: for the artifact's own page.
    """
    files = node.artifact.files
    shown = [file for file in files if every and file.path.startswith(every)]
    if node.depth or not shown:
        shown = [file for file in files if file.path == few]
    if not shown:
        return ui.Section(title, missing=f"{node.name} lists no {few}")
    total, place, rows = sum(file.rows or 0 for file in shown), 0, list[ui.Row]()
    for file in shown:
        path = listed_path(node, file.path)
        assert path is not None
        with path.open("rb") as lines:
            for line in lines:
                if ui.is_shown(place, total):
                    rows.append(json.loads(line))
                place += 1
    if len(rows) < total:
        note += f" {len(rows):,} of {total:,}, evenly spread; all are in {every or few}."
    most = ui.room(len(rows), texts)
    samples = ui.Samples([sample(row, most) for row in rows])
    return ui.Section(title, [*([note.strip()] if note else []), samples] if rows else [])


# sections that every artifact has


@ui.section("Provenance")
def provenance(nodes: Sequence[Node], page: Path) -> Iterator[ui.Block]:
    yield (
        "Every artifact is bound to its content and to its parents by digest; digests hold no "
        "time and no path."
    )
    yield ancestry(nodes, page)
    yield details(nodes[0])


def ancestry(nodes: Sequence[Node], page: Path | None = None) -> ui.Table:
    """A line an artifact; its name is a link where there is a `page` that the link stands in."""
    rows: list[list[object]] = []
    for node in nodes:
        own = node.manifest
        digests = (node.digest, own and own.config_digest, own and own.template_digest)
        # the page itself is written after this
        link = node.name if page is None or not node.depth else link_to(node, page)
        name = ui.TableCell(link, below=node.kind, indent=node.depth)
        rows.append([name, *map(ui.Digest, digests), own and own.seed])
    return ui.Table(["artifact", "digest", "config", "template", "seed"], rows)


def parent_links(nodes: Sequence[Node], page: Path) -> ui.Words:
    """What an artifact was made from, as links to the reports; nothing where it has no parents."""
    words: list[str | ui.Styled | ui.Link] = []
    for parent in nodes[0].artifact.parents:
        node = next(known for known in nodes if known.digest == parent.digest)
        words += [", " if words else "Made from ", link_to(node, page)]
    return words


def kept_tile(node: Node, what: str) -> ui.Tile:
    """Rows before a stage, and those that it kept."""
    counts = node.artifact.counts
    dropped = ui.counted(dict(sorted(counts.dropped.items(), key=lambda item: -item[1])[:2]))
    share = ui.ratio(counts.kept, counts.rows_in)
    about = f"{share} kept" if share else ""
    if dropped:
        about = f"{about}; {dropped}"
    return f"{counts.rows_in:,} → {counts.kept:,}", what, about


def details(node: Node, most_files: int | None = None) -> ui.Fold:
    manifest = node.artifact
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    files = [[f.path, f.rows, f.bytes, ui.Digest(f.sha256)] for f in manifest.files[:most_files]]
    rest = len(manifest.files) - len(files)
    blocks: list[ui.Block] = [
        f"Versions: {versions}.",
        recipe(manifest.config),
        ui.Table(["file", "rows", "bytes", "sha256"], files),
        *([f"And {rest:,} files more."] if rest else []),
    ]
    title = f": config, versions, {len(manifest.files)} files"
    return ui.Fold((ui.Styled(node.name, "bold"), title), blocks)


def recipe(config: Mapping[str, Any]) -> ui.Dialogue:
    return ui.Dialogue(yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=100))


@ui.section("Counts")
def counts(node: Node) -> Iterator[ui.Block]:
    own = node.artifact.counts
    rows: list[list[object]] = [["in", own.rows_in, None]]
    rows.append(["kept", own.kept, ui.ratio(own.kept, own.rows_in)])
    for reason, count in own.dropped.items():
        if count:
            rows.append([f"dropped: {reason}", count, ui.ratio(count, own.rows_in)])
    yield "Nothing is lost silently: what comes in is kept or dropped for a named reason."
    yield ui.Table(["rows", "count", "of in"], rows)
