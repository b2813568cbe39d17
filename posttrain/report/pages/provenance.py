"""Sections every artifact has: where it comes from, and what became of its rows; a tiny world."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import yaml

from posttrain.report.lineage import Node
from posttrain.report.section import (
    Block,
    Dialogue,
    Digest,
    Fold,
    LeftOut,
    Section,
    Styled,
    Table,
    TableCell,
    ratio,
    section,
)


@section("Provenance")
def provenance(nodes: Sequence[Node]) -> Iterator[Block]:
    """Lineage with digests, and each artifact's config, versions and files, folded away."""
    yield (
        "Every artifact is bound to its content and to its parents by digest; digests hold no "
        "time and no path."
    )
    yield lineage(nodes)
    yield from (details(node) for node in nodes if node.manifest)


def lineage(nodes: Sequence[Node]) -> Table:
    """An artifact and its ancestors, one a line."""
    rows: list[list[object]] = []
    for node in nodes:
        found = node.manifest
        digests = (node.digest, found and found.config_digest, found and found.template_digest)
        name = TableCell(node.name, indent=node.depth)
        rows.append([name, node.kind, *map(Digest, digests), found.seed if found else None])
    head = ["artifact", "kind", "digest", "config", "template", "seed"]
    return Table(head, rows)


def details(node: Node, most_files: int | None = None) -> Fold:
    """Versions, config and files of one artifact."""
    assert node.manifest is not None
    manifest = node.manifest
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    config = yaml.safe_dump(manifest.config, sort_keys=False, allow_unicode=True, width=100)
    files = [[f.path, f.rows, f.bytes, Digest(f.sha256)] for f in manifest.files[:most_files]]
    rest = len(manifest.files) - len(files)
    blocks: list[Block] = [
        f"Versions: {versions}.",
        Dialogue(config),
        Table(["file", "rows", "bytes", "sha256"], files),
        *([f"And {rest:,} files more."] if rest else []),
    ]
    title = f": config, versions, {len(manifest.files)} files"
    return Fold((Styled(node.name, "bold"), title), blocks)


@section("Counts")
def counts(nodes: Sequence[Node]) -> Iterator[Block]:
    """Of each artifact: in = kept + dropped, by reason."""
    rows: list[list[object]] = []
    for node in nodes:
        if node.manifest is None:
            continue
        own = node.manifest.counts
        rows.append([node.name, node.kind, "in", own.rows_in, None])
        rows.append(["", "", "kept", own.kept, ratio(own.kept, own.rows_in)])
        rows += [
            ["", "", f"dropped: {reason}", count, ratio(count, own.rows_in)]
            for reason, count in own.dropped.items()
            if count
        ]
    head = ["artifact", "kind", "", "count", "of in"]
    yield "Nothing is lost silently: what comes in is kept or dropped for a named reason."
    yield Table(head, rows)


def tiny_world(node: Node) -> Iterator[Section | LeftOut]:
    """Rows of each family of a tiny world, those held out whole included."""
    stats = node.stats
    if "train_rows" not in stats or "heldout_rows" not in stats:
        yield LeftOut("Tiny world", f"{node.name} has no stats on its families")
        return
    train, heldout = stats["train_rows"], stats["heldout_rows"]
    rows = [[n, train.get(n, 0), heldout.get(n, 0)] for n in dict.fromkeys([*train, *heldout])]
    rows.append(["all", sum(train.values()), sum(heldout.values())])
    head = ["family", "training rows", "held-out prompts"]
    table = Table(head, rows, total=True)
    note = [f"Tokenizer of {stats['vocabulary']:,} tokens."] if "vocabulary" in stats else []
    yield Section("Tiny world", [*note, table])
