"""Write `report.html` for an artifact: what it is, what it was made from, how it went.

    write_report(Path("runs/tiny/sft"))  →  runs/tiny/sft/report.html

The page is not part of the artifact: no manifest lists it, and it can be written again at any time.
The same artifact gives the same bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from posttrain.errors import DataError
from posttrain.report.html import page_html
from posttrain.report.lineage import Node, trace
from posttrain.report.pages import (
    accuracy,
    evaluation,
    judging,
    provenance,
    samples,
    sft_data,
    supervision,
    training,
)
from posttrain.report.section import Items, LeftOut, Row, Section, Tile
from posttrain.runs import atomic_write_text

REPORT = "report.html"
ACCURACY = "accuracy.json"
MOST_TILES = 6
# kind of artifact → its sections
SECTIONS: dict[str, Callable[[Node], Iterator[Section | LeftOut]]] = {
    "audit": supervision.audit_sections,
    "checkpoint": training.sections,
    "dpo_data": samples.pair_sections,
    "evaluation": evaluation.sections,
    "genrm_data": judging.data_sections,
    "genrm_evaluation": judging.evaluation_sections,
    "samples": samples.sections,
    "sft_data": sft_data.sections,
    "tiny_world": provenance.tiny_world,
    "win_rate": judging.win_rate_sections,
}
# kind of artifact → the figures to read first, on its own page
TILES: dict[str, Callable[[Node], list[Tile]]] = {
    "audit": supervision.audit_tiles,
    "checkpoint": training.tiles,
    "dpo_data": samples.pair_tiles,
    "evaluation": evaluation.tiles,
    "genrm_data": judging.data_tiles,
    "genrm_evaluation": judging.evaluation_tiles,
    "samples": samples.tiles,
    "sft_data": sft_data.tiles,
    "win_rate": judging.win_rate_tiles,
}


def write_report(
    artifact: Path | str, *, out: Path | str | None = None, accuracy: Path | str | None = None
) -> Path:
    """Write the report of an artifact and its lineage; every stage calls this at its end.

    Args:
        artifact: a finished artifact's directory. Parents are looked for where its manifest says.
        out: the file to write, `report.html` in the artifact's directory by default.
        accuracy: a file that `benchmarks/tiny_accuracy.py` wrote; by default `accuracy.json` in
            the artifact's directory, if there is one.

    Returns:
        The file written.

    Raises:
        DataError: no finished artifact, a file that changed since its manifest was written, or an
            accuracy file that cannot be read.
    """
    artifact = Path(artifact)
    page = _page(trace(artifact), _read_accuracy(artifact, accuracy))
    target = Path(out) if out is not None else artifact / REPORT
    atomic_write_text(target, page)
    return target


def ensure_report(artifact: Path | str) -> Path:
    """The report of a stage that had finished before: a new one only where there is none.

    The one that is there may hold more than the stage knows, such as accuracy measured since.
    """
    there = Path(artifact) / REPORT
    return there if there.is_file() else write_report(artifact)


def _page(nodes: Sequence[Node], measured: Row | None) -> str:
    """The page of an artifact (the first node) and its ancestors."""
    root = nodes[0]
    parts = list(_parts(nodes, measured))
    left_out = [part for _, part in parts if isinstance(part, LeftOut)]
    shown = [(n, part) for n, part in parts if isinstance(part, Section) and part.blocks]
    times = Counter(section.title for _, section in shown)
    sections = [
        s if times[s.title] == 1 or name == root.name else Section(f"{s.title}: {name}", s.blocks)
        for name, s in shown
    ]
    if left_out:
        lines = [f"{part.title}: {part.why}" for part in left_out]
        sections.append(Section("Not in this report", [Items(lines)]))
    tiles = accuracy.tiles(measured, root.digest) if measured is not None else []
    if root.kind in TILES:
        tiles += TILES[root.kind](root)
    kicker = f"{root.kind.replace('_', ' ')} {root.digest[:12]}"
    return page_html(sections, title=root.name, kicker=kicker, tiles=tiles[:MOST_TILES])


def _parts(nodes: Sequence[Node], measured: Row | None) -> Iterator[tuple[str, Section | LeftOut]]:
    """Sections, each with the artifact that it is about."""
    root = nodes[0]
    if measured is not None:
        yield root.name, accuracy.measured_section(measured, checkpoint=root.digest)
    elif root.kind == "checkpoint":
        why = "no accuracy file was given or lies beside the checkpoint"
        yield root.name, LeftOut("Accuracy", why)
    for node in nodes:
        if node.manifest is not None and node.kind in SECTIONS:
            yield from ((node.name, part) for part in SECTIONS[node.kind](node))
    yield root.name, provenance.counts(nodes)
    yield root.name, provenance.provenance(nodes)
    for node in nodes:
        if node.manifest is None:
            yield node.name, LeftOut(f"{node.kind} {node.name}", node.missing)


def _read_accuracy(artifact: Path, path: Path | str | None) -> Row | None:
    file = Path(path) if path is not None else artifact / ACCURACY
    if path is None and not file.is_file():
        return None
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"accuracy file {file} cannot be read: {error}") from error
    if not isinstance(found, dict) or "runs" not in found:
        raise DataError(f"{file} is not a file of benchmarks/tiny_accuracy.py: it has no runs")
    return found
