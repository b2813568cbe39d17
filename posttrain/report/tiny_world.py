"""The section of a tiny world: how many rows of each family."""

from __future__ import annotations

from posttrain.report.html import paragraph, table
from posttrain.report.lineage import Node
from posttrain.report.page import Page


def add_tiny_world(page: Page, node: Node) -> None:
    """Rows of each family, those held out whole included."""
    assert node.manifest is not None
    stats = node.manifest.stats
    if "train_rows" not in stats or "heldout_rows" not in stats:
        page.leave_out("Tiny world", f"{node.name} has no stats on its families")
        return
    train, heldout = stats["train_rows"], stats["heldout_rows"]
    rows = [
        [name, train.get(name, 0), heldout.get(name, 0)]
        for name in dict.fromkeys([*train, *heldout])
    ]
    rows.append(["all", sum(train.values()), sum(heldout.values())])
    page.add(
        "Tiny world",
        paragraph(f"Tokenizer of {stats['vocabulary']:,} tokens." if "vocabulary" in stats else ""),
        table(["family", "training rows", "held-out prompts"], rows, numeric={1, 2}, total=True),
    )
