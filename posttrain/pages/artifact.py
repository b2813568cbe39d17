"""Sections, links and tiles that the page of every artifact has, whatever its kind."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from posttrain.lineage import Node, listed_path
from posttrain.report import section as ui
from posttrain.runs import REPORT


def link_to(node: Node, page: Path) -> ui.Link | str:
    """The name of an artifact, as a link to its report where there is one.

    Args:
        page: the file that the link stands in.
    """
    report = node.path / REPORT
    if node.manifest is None or not report.is_file():
        return node.name
    target = os.path.relpath(report.resolve(), page.resolve().parent)
    return ui.Link(node.name, Path(target).as_posix())


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
        sample: makes a sample of a row, with at most so many characters of each text.
        few: the file with some rows, which the page of a descendant shows.
        every: the file, or the folder of the files, with all rows, for the artifact's own page.
        texts: texts of a row, which share the characters of a sample.
    """
    files = node.artifact.files
    shown = [file for file in files if every and file.path.startswith(every)]
    if node.depth or not shown:
        shown = [file for file in files if file.path == few]
    if not shown:
        return ui.Section(title, missing=f"{node.name} lists no {few}")
    total = sum(file.rows or 0 for file in shown)
    number = 0
    rows: list[ui.Row] = []
    for file in shown:
        path = listed_path(node, file.path)
        assert path is not None
        with path.open("rb") as lines:
            for line in lines:
                if ui.is_shown(number, total):
                    rows.append(json.loads(line))
                number += 1
    if not rows:
        return ui.Section(title)
    if len(rows) < total:
        note += f" {len(rows):,} of {total:,}, evenly spread; all are in {every or few}."
    most = ui.room(len(rows), texts)
    blocks: list[ui.Block] = [note.strip()] if note else []
    blocks.append(ui.Samples([sample(row, most) for row in rows]))
    return ui.Section(title, blocks)


@ui.section("Provenance")
def provenance(nodes: Sequence[Node], page: Path) -> Iterator[ui.Block]:
    """The lineage of an artifact, and its config, versions and files."""
    yield (
        "Every artifact is bound to its content and to its parents by digest; digests hold no "
        "time and no path."
    )
    yield ancestry(nodes, page)
    yield details(nodes[0])


def ancestry(nodes: Sequence[Node], page: Path | None = None) -> ui.Table:
    """A line for each artifact; its name is a link where there is a `page` to stand in."""
    rows: list[list[object]] = []
    for node in nodes:
        manifest = node.manifest
        # the artifact's own page is only now being written: no link to it
        link = node.name if page is None or not node.depth else link_to(node, page)
        rows.append(
            [
                ui.TableCell(link, below=node.kind, indent=node.depth),
                ui.Digest(node.digest),
                ui.Digest(manifest and manifest.config_digest),
                ui.Digest(manifest and manifest.template_digest),
                manifest and manifest.seed,
            ]
        )
    return ui.Table(["artifact", "digest", "config", "template", "seed"], rows)


def parent_links(nodes: Sequence[Node], page: Path) -> ui.Words:
    """A line that names an artifact's parents, as links to their reports; empty without parents."""
    words: list[str | ui.Styled | ui.Link] = []
    for parent in nodes[0].artifact.parents:
        node = next(known for known in nodes if known.digest == parent.digest)
        words += [", " if words else "Made from ", link_to(node, page)]
    return words


def kept_tile(node: Node, what: str) -> ui.Tile:
    """A tile of the rows that went into a stage and those that it kept, with why others went."""
    counts = node.artifact.counts
    most_frequent = sorted(counts.dropped.items(), key=lambda item: -item[1])[:2]
    dropped = ui.counted(dict(most_frequent))
    share = ui.ratio(counts.kept, counts.rows_in)
    remark = f"{share} kept" if share else ""
    if dropped:
        remark = f"{remark}; {dropped}"
    return f"{counts.rows_in:,} → {counts.kept:,}", what, remark


def details(node: Node, most_files: int | None = None) -> ui.Fold:
    """Versions, config and files of an artifact, folded away."""
    manifest = node.artifact
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    listed = manifest.files[:most_files]
    files = [[file.path, file.rows, file.bytes, ui.Digest(file.sha256)] for file in listed]
    blocks: list[ui.Block] = [
        f"Versions: {versions}.",
        recipe(manifest.config),
        ui.Table(["file", "rows", "bytes", "sha256"], files),
    ]
    unlisted = len(manifest.files) - len(files)
    if unlisted:
        blocks.append(f"And {unlisted:,} files more.")
    title = f": config, versions, {len(manifest.files)} files"
    return ui.Fold((ui.Styled(node.name, "bold"), title), blocks)


def recipe(config: Mapping[str, Any]) -> ui.Dialogue:
    """A resolved recipe as YAML."""
    return ui.Dialogue(yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=100))


@ui.section("Counts")
def counts(node: Node) -> Iterator[ui.Block]:
    """Rows in, rows kept, and rows dropped for each reason."""
    total = node.artifact.counts
    rows: list[list[object]] = [
        ["in", total.rows_in, None],
        ["kept", total.kept, ui.ratio(total.kept, total.rows_in)],
    ]
    for reason, count in total.dropped.items():
        if count:
            rows.append([f"dropped: {reason}", count, ui.ratio(count, total.rows_in)])
    yield "Nothing is lost silently: what comes in is kept or dropped for a named reason."
    yield ui.Table(["rows", "count", "of in"], rows)
