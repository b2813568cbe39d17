"""Sections, links and tiles that the page of every artifact has, whatever its kind."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.config.recipe_files import recipe_text
from posttrain.lineage import Node, listed_path
from posttrain.report import section as ui
from posttrain.runs import REPORT


def link_to(node: Node, page: Path) -> ui.Link | str:
    """Name of an artifact, as a link to its report if it has one.

    Args:
        page: file that the link stands in.
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
    examples: str,
    all_rows: str = "",
    texts: int = 1,
    note: str = "",
) -> ui.Section:
    """Section of samples, from the rows of files that the manifest lists.

    Args:
        sample: function that makes a sample of a row and the most characters of each text.
        examples: file with some rows, for the page of a descendant, or without `all_rows`.
        all_rows: file with all rows, or the folder of such files, for the artifact's own page.
        texts: number of texts of a row, which share the characters of a sample.
    """
    listed = node.artifact.files
    files = [file for file in listed if all_rows and file.path.startswith(all_rows)]
    if node.depth or not files:
        files = [file for file in listed if file.path == examples]
    if not files:
        return ui.Section(title, missing=f"{node.name} lists no {examples}")
    total = sum(file.rows or 0 for file in files)
    number = 0
    rows: list[ui.Row] = []
    for file in files:
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
        note += f" {len(rows):,} of {total:,}, evenly spread; all are in {all_rows or examples}."
    max_characters = ui.room(len(rows), texts)
    blocks: list[ui.Block] = [note.strip()] if note else []
    blocks.append(ui.Samples([sample(row, max_characters) for row in rows]))
    return ui.Section(title, blocks)


@ui.section("Provenance")
def provenance(nodes: Sequence[Node], page: Path) -> Iterator[ui.Block]:
    """Lineage of an artifact, and its config, versions and files."""
    yield (
        "Every artifact is bound to its content and to its parents by digest; digests hold no "
        "time and no path."
    )
    yield ancestry(nodes, page)
    yield details(nodes[0])


def ancestry(nodes: Sequence[Node], page: Path | None = None) -> ui.Table:
    """Table of some artifacts, their names linked to their reports.

    Args:
        page: file that the table stands in; None: no links.
    """
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
    """Line of links to the parents of `nodes[0]`, which `nodes` hold too; empty without parents."""
    node_of_digest = {node.digest: node for node in reversed(nodes)}
    words: list[str | ui.Styled | ui.Link] = []
    # a student may be its own teacher, and a parent twice
    parent_digests = dict.fromkeys(parent.digest for parent in nodes[0].artifact.parents)
    for digest in parent_digests:
        words.append(", " if words else "Made from ")
        words.append(link_to(node_of_digest[digest], page))
    return words


def kept_tile(node: Node, name: str) -> ui.Tile:
    """Tile of the rows that a stage read and kept, with its two most frequent drop reasons."""
    counts = node.artifact.counts
    most_frequent = sorted(counts.dropped.items(), key=lambda reason_count: -reason_count[1])[:2]
    dropped = ui.counted(dict(most_frequent))
    share = ui.ratio(counts.kept, counts.rows_in)
    remark = f"{share} kept" if share else ""
    if dropped:
        remark = f"{remark}; {dropped}"
    return f"{counts.rows_in:,} → {counts.kept:,}", name, remark


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
    """Show a resolved recipe as YAML."""
    return ui.Dialogue(recipe_text(config))


def count_sections(node: Node) -> list[ui.Section]:
    """Section of the counts; none of a stage that takes no rows, as a merge of weights."""
    total = node.artifact.counts
    return [counts(node)] if total.rows_in or total.kept or total.dropped else []


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
