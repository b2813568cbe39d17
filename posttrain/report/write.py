"""Write `report.html` for an artifact: what it is, what it was made from, how it went.

    write_report(Path("runs/tiny/sft"))  →  runs/tiny/sft/report.html

The page is not part of the artifact: no manifest lists it, and it can be written again at any time.
The same artifact gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.artifacts import atomic_write_text
from posttrain.errors import DataError
from posttrain.report.accuracy import add_accuracy
from posttrain.report.accuracy import headline as accuracy_headline
from posttrain.report.dpo_data import add_dpo_data
from posttrain.report.dpo_data import headline as pairs_headline
from posttrain.report.evaluation import add_evaluation
from posttrain.report.evaluation import headline as evaluation_headline
from posttrain.report.genrm_data import add_genrm_data
from posttrain.report.genrm_data import headline as judging_headline
from posttrain.report.genrm_evaluation import add_genrm_evaluation
from posttrain.report.genrm_evaluation import headline as judges_headline
from posttrain.report.html import tiles
from posttrain.report.lineage import Node, trace
from posttrain.report.page import Page
from posttrain.report.provenance import add_counts, add_provenance
from posttrain.report.sampling import add_samples
from posttrain.report.sampling import headline as samples_headline
from posttrain.report.sft_data import add_sft_data, fill
from posttrain.report.sft_data import headline as data_headline
from posttrain.report.supervision import add_audit
from posttrain.report.supervision import headline as audit_headline
from posttrain.report.tiny_world import add_tiny_world
from posttrain.report.training import add_training
from posttrain.report.training import headline as training_headline
from posttrain.report.win_rate import add_win_rate
from posttrain.report.win_rate import headline as win_headline

REPORT = "report.html"
ACCURACY = "accuracy.json"
SECTIONS: dict[str, Callable[[Page, Node], None]] = {
    "audit": add_audit,
    "checkpoint": add_training,
    "dpo_data": add_dpo_data,
    "evaluation": add_evaluation,
    "genrm_data": add_genrm_data,
    "genrm_evaluation": add_genrm_evaluation,
    "samples": add_samples,
    "sft_data": add_sft_data,
    "tiny_world": add_tiny_world,
    "win_rate": add_win_rate,
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
    page = build_page(trace(artifact), _read_accuracy(artifact, accuracy))
    target = Path(out) if out is not None else artifact / REPORT
    atomic_write_text(target, page.html())
    return target


def ensure_report(artifact: Path | str) -> Path:
    """The report of a stage that had finished before: a new one only where there is none.

    The one that is there may hold more than the stage knows, such as accuracy measured since.
    """
    there = Path(artifact) / REPORT
    return there if there.is_file() else write_report(artifact)


def build_page(nodes: Sequence[Node], accuracy: Mapping[str, Any] | None) -> Page:
    """The page of an artifact (the first node) and its ancestors."""
    root = nodes[0]
    page = Page(title=f"{root.name}", kicker=f"{root.kind.replace('_', ' ')} {root.digest[:12]}")
    page.lead = tiles(headline(nodes, accuracy))
    if accuracy is not None:
        add_accuracy(page, accuracy, checkpoint=root.digest)
    elif root.kind == "checkpoint":
        page.leave_out("Accuracy", "no accuracy file was given or lies beside the checkpoint")
    for node in nodes:
        if node.manifest is not None and node.kind in SECTIONS:
            SECTIONS[node.kind](page, node)
    add_counts(page, nodes)
    add_provenance(page, nodes)
    return page


def headline(
    nodes: Sequence[Node], accuracy: Mapping[str, Any] | None
) -> list[tuple[str, str, str]]:
    """The figures to read first: (figure, what it is, a remark)."""
    found = accuracy_headline(accuracy, nodes[0].digest) if accuracy is not None else []
    for node in nodes:
        stats = node.manifest.stats if node.manifest is not None else {}
        if node.kind == "checkpoint" and node.depth == 0:
            found += training_headline(stats)
        if node.kind == "audit" and node.depth == 0:
            found += audit_headline(stats)
        if node.kind == "dpo_data" and node.manifest is not None:
            found += pairs_headline(stats)
        if node.kind == "evaluation" and node.depth == 0:
            found += evaluation_headline(node)
        if node.kind == "genrm_data" and node.depth == 0:
            found += judging_headline(stats)
        if node.kind == "genrm_evaluation" and node.depth == 0:
            found += judges_headline(node)
        if node.kind == "win_rate" and node.depth == 0:
            found += win_headline(node)
        if node.kind == "samples" and node.depth == 0:
            found += samples_headline(stats)
        if node.kind == "sft_data" and node.manifest is not None:
            if node.depth == 0:
                found += data_headline(node.manifest)
            elif "splits" in stats:
                found.append(fill(stats))
    return found[:6]


def _read_accuracy(artifact: Path, given: Path | str | None) -> Mapping[str, Any] | None:
    path = Path(given) if given is not None else artifact / ACCURACY
    if given is None and not path.is_file():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"accuracy file {path} cannot be read: {error}") from error
    if not isinstance(found, dict) or "runs" not in found:
        raise DataError(f"{path} is not a file of benchmarks/tiny_accuracy.py: it has no runs")
    return found
