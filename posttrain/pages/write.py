"""Write `report.html` for an artifact: what it changed, how it went, what it was made from.

The page is not part of the artifact: no manifest lists it, and it can be written again at any time.
The same artifact gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from posttrain.lineage import Node, trace
from posttrain.pages import (
    effects,
    evaluation,
    judging,
    rlvr,
    samples,
    sft_data,
    supervision,
    synthesis,
    training,
)
from posttrain.pages.artifact import counts, kept_tile, parent_links, provenance
from posttrain.pages.live import (
    is_running,
    is_unfinished,
    write_interrupted,
    write_live,
    write_unfinished,
)
from posttrain.report.console import print_sections
from posttrain.report.html import UNFINISHED, page_html
from posttrain.report.section import (
    Chart,
    Columns,
    Diagram,
    Fold,
    Samples,
    Section,
    Sections,
    Table,
    Tile,
)
from posttrain.runs import REPORT, atomic_write_text

# kind of artifact → its sections, and on its own page the figures to read first
PAGES: dict[str, tuple[Callable[[Node], Sections], Callable[[Node], list[Tile]]]] = {
    "audit": (supervision.audit_sections, supervision.audit_tiles),
    "checkpoint": (training.sections, training.tiles),
    "dpo_data": (samples.pair_sections, samples.pair_tiles),
    "evaluation": (evaluation.sections, effects.evaluation_tiles),
    "genrm_data": (judging.data_sections, judging.data_tiles),
    "genrm_evaluation": (judging.evaluation_sections, effects.judge_tiles),
    "pass_rates": (rlvr.profile_sections, rlvr.profile_tiles),
    "samples": (samples.sections, samples.tiles),
    "sft_data": (sft_data.sections, sft_data.tiles),
    "synthetic_rows": (synthesis.sections, synthesis.tiles),
    "win_rate": (judging.win_rate_sections, effects.win_rate_tiles),
}


def own_sections(node: Node) -> Sections:
    """The sections of one artifact by its kind; none for an unknown kind."""
    if node.manifest is not None and node.kind in PAGES:
        try:
            yield from PAGES[node.kind][0](node)
        except KeyError as error:  # an ancestor may have been built by an older version
            why = f"{node.name} has no {error} in its stats; build it again to see it here"
            yield Section(f"{node.kind} {node.name}", missing=why)


def tiles_of(node: Node) -> list[Tile]:
    """What an artifact's page opens with: what its stage is for, before and after it; of a kind
    without a page of its own, its rows."""
    if node.manifest is None:
        return []
    if node.kind in PAGES:
        try:
            tiles = [*effects.alert_tiles(node), *PAGES[node.kind][1](node)]
            return tiles[: effects.MOST_TILES]
        except KeyError:  # made by an older version: its sections say what is missing
            pass
    return [kept_tile(node, "rows")]


_ON_A_PAGE = Chart | Columns | Diagram | Fold | Samples


def figures(node: Node) -> Sections:
    """Yield an artifact's sections for the console: no charts, and nothing that a page folds away.

    A section of which only its introduction would be left is left out.
    """
    for part in own_sections(node):
        shown = [block for block in part.blocks if not isinstance(block, _ON_A_PAGE)]
        if len(shown) == len(part.blocks) or any(isinstance(block, Table) for block in shown):
            yield Section(part.title, shown)


def write_report(artifact: Path | str, *, out: Path | str | None = None) -> Path:
    """Write the report of an artifact, with links to its parents'; every stage calls this at its
    end.

    Args:
        artifact: a finished artifact's directory, or that of a training run that has begun.
        out: the file to write, `report.html` in the artifact's directory by default.

    Raises:
        DataError: no finished artifact, or a file that changed since its manifest was written.
    """
    artifact = Path(artifact)
    target = Path(out) if out is not None else artifact / REPORT
    if is_unfinished(artifact):
        return write_unfinished(artifact, running=is_running(artifact), out=target)
    nodes = trace(artifact)
    root = nodes[0]
    parts = [*own_sections(root), counts(root), provenance(nodes, target)]
    missing = [f"{part.title}: {part.missing}" for part in parts if part.missing]
    missing += [f"{node.kind} {node.name}: {node.missing}" for node in nodes if node.missing]
    sections = [*parts, Section("Not in this report", missing)]
    kicker = f"{root.kind.replace('_', ' ')} {root.digest[:12]}"
    tiles = tiles_of(root)
    lead = parent_links(nodes, target)
    page = page_html(sections, title=root.name, kicker=kicker, tiles=tiles, lead=lead)
    atomic_write_text(target, page)
    return target


def ensure_report(artifact: Path | str) -> Path:
    """The report of a stage that has finished: a new one only where there is none of its end."""
    there = Path(artifact) / REPORT
    if there.is_file():
        with there.open(encoding="utf-8") as page:
            if UNFINISHED not in page.read(200):
                return there
    return write_report(artifact)


@dataclass(frozen=True, slots=True)
class TrainingPage:
    """The page of a training run in its output directory, for `TrainingStage.run`."""

    out: Path

    def write_live(self, about: str, *, next_in: int | None) -> None:
        """Write the page of a run that goes on."""
        write_live(self.out, about, next_in=next_in)

    def write_interrupted(self, *, step: int) -> None:
        """Write the page of a run that a signal ends now."""
        write_interrupted(self.out, step=step)

    def write_stopped(self) -> None:
        """Write the page of a run that has stopped."""
        write_unfinished(self.out, running=False)

    def write_finished(self) -> Path:
        """Write the report of the finished run, unless it is there."""
        return ensure_report(self.out)


def show_finished(console: Console, artifact: Path) -> None:
    """Print an artifact's figures and counts, write its report, and say where both are."""
    node = trace(artifact)[0]
    print_sections(console, [*figures(node), counts(node)], charts=False)
    console.print(f"{artifact}  digest {node.digest[:16]}")
    console.print(f"{write_report(artifact)}")


def show_up_to_date(console: Console, artifact: Path) -> None:
    ensure_report(artifact)
    console.print(f"{artifact} is complete, nothing to do")
