"""Sections every artifact has: where it comes from, and what became of its rows; a tiny world."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import yaml

from posttrain.report import section as ui
from posttrain.report.lineage import Node


@ui.section("Provenance")
def provenance(nodes: Sequence[Node]) -> Iterator[ui.Block]:
    yield (
        "Every artifact is bound to its content and to its parents by digest; digests hold no "
        "time and no path."
    )
    yield lineage(nodes)
    yield from (details(node) for node in nodes if node.manifest)


def lineage(nodes: Sequence[Node]) -> ui.Table:
    rows: list[list[object]] = []
    for node in nodes:
        found = node.manifest
        digests = (node.digest, found and found.config_digest, found and found.template_digest)
        name = ui.TableCell(node.name, indent=node.depth)
        rows.append([name, node.kind, *map(ui.Digest, digests), found.seed if found else None])
    head = ["artifact", "kind", "digest", "config", "template", "seed"]
    return ui.Table(head, rows)


def details(node: Node, most_files: int | None = None) -> ui.Fold:
    assert node.manifest is not None
    manifest = node.manifest
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    config = yaml.safe_dump(manifest.config, sort_keys=False, allow_unicode=True, width=100)
    files = [[f.path, f.rows, f.bytes, ui.Digest(f.sha256)] for f in manifest.files[:most_files]]
    rest = len(manifest.files) - len(files)
    blocks: list[ui.Block] = [
        f"Versions: {versions}.",
        ui.Dialogue(config),
        ui.Table(["file", "rows", "bytes", "sha256"], files),
        *([f"And {rest:,} files more."] if rest else []),
    ]
    title = f": config, versions, {len(manifest.files)} files"
    return ui.Fold((ui.Styled(node.name, "bold"), title), blocks)


@ui.section("Counts")
def counts(nodes: Sequence[Node]) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for node in nodes:
        if node.manifest is None:
            continue
        own = node.manifest.counts
        rows.append([node.name, node.kind, "in", own.rows_in, None])
        rows.append(["", "", "kept", own.kept, ui.ratio(own.kept, own.rows_in)])
        rows += [
            ["", "", f"dropped: {reason}", count, ui.ratio(count, own.rows_in)]
            for reason, count in own.dropped.items()
            if count
        ]
    head = ["artifact", "kind", "", "count", "of in"]
    yield "Nothing is lost silently: what comes in is kept or dropped for a named reason."
    yield ui.Table(head, rows)


def tiny_world(node: Node) -> ui.Sections:
    """Rows of each family of a tiny world, those held out whole included."""
    stats = node.stats
    train, heldout = stats["train_rows"], stats["heldout_rows"]
    rows = [[n, train.get(n, 0), heldout.get(n, 0)] for n in dict.fromkeys([*train, *heldout])]
    rows.append(["all", sum(train.values()), sum(heldout.values())])
    head = ["family", "training rows", "held-out prompts"]
    table = ui.Table(head, rows, total=True)
    yield ui.Section("Tiny world", [f"Tokenizer of {stats['vocabulary']:,} tokens.", table])
