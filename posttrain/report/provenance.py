"""Sections every artifact has: where it comes from, and what became of its rows."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.report.html import Markup, folded, json_block, paragraph, percent, short, table, text
from posttrain.report.lineage import Node
from posttrain.report.page import Page


def add_provenance(page: Page, nodes: Sequence[Node]) -> None:
    """Lineage with digests, and each artifact's config, versions and files, folded away."""
    rows = [
        [
            _indented(node),
            node.kind,
            short(node.digest),
            short(node.manifest.config_digest if node.manifest else None),
            short(node.manifest.template_digest if node.manifest else None),
            node.manifest.seed if node.manifest else None,
        ]
        for node in nodes
    ]
    page.add(
        "Provenance",
        paragraph(
            "Every artifact is bound to its content and to its parents by digest; "
            "digests hold no time and no path."
        ),
        table(
            ["artifact", "kind", "digest", "config", "template", "seed"],
            rows,
            numeric={5},
        ),
        *(_details(node) for node in nodes if node.manifest),
    )
    for node in nodes:
        if node.manifest is None:
            page.leave_out(f"{node.kind} {node.name}", node.missing)


def _indented(node: Node) -> Markup:
    lead = "&emsp;" * (node.depth - 1) + "↳ " if node.depth else ""
    return Markup(lead + text(node.name))


def _details(node: Node) -> str:
    assert node.manifest is not None
    manifest = node.manifest
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    files = table(
        ["file", "rows", "bytes", "sha256"],
        [[f.path, f.rows, f.bytes, short(f.sha256)] for f in manifest.files],
        numeric={1, 2},
    )
    return folded(
        Markup(f"<b>{text(node.name)}</b>: config, versions, {len(manifest.files)} files"),
        paragraph(f"Versions: {versions}.") + json_block(manifest.config) + files,
    )


def add_counts(page: Page, nodes: Sequence[Node]) -> None:
    """The books of each artifact: in = kept + dropped, by reason."""
    rows: list[list[object]] = []
    for node in nodes:
        if node.manifest is None:
            continue
        counts = node.manifest.counts
        rows.append([node.name, node.kind, "in", counts.rows_in, None])
        rows.append(["", "", "kept", counts.kept, _share(counts.kept, counts.rows_in)])
        rows += [
            ["", "", f"dropped: {reason}", number, _share(number, counts.rows_in)]
            for reason, number in counts.dropped.items()
            if number
        ]
    page.add(
        "Counts",
        paragraph("Nothing is lost silently: what comes in is kept or dropped for a named reason."),
        table(["artifact", "kind", "", "count", "of in"], rows, numeric={3, 4}),
    )


def _share(part: int, whole: int) -> str | None:
    return percent(part / whole) if whole else None
