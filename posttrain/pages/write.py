"""Write `report.html` for an artifact: its effect, its course and its lineage.

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
    quantization,
    rlvr,
    samples,
    sft_data,
    supervision,
    synthesis,
    training,
)
from posttrain.pages.artifact import count_sections, kept_tile, parent_links, provenance
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

# functions that make an artifact's sections, and the tiles at the head of its page
Page = tuple[Callable[[Node], Sections], Callable[[Node], list[Tile]]]
# of a kind of artifact, or of the checkpoints of one method
PAGES: dict[str, Page] = {
    "audit": (supervision.audit_sections, supervision.audit_tiles),
    "checkpoint": (training.sections, training.tiles),
    "dpo_data": (samples.pair_sections, samples.pair_tiles),
    "evaluation": (evaluation.sections, effects.evaluation_tiles),
    "genrm_data": (judging.data_sections, judging.data_tiles),
    "genrm_evaluation": (judging.evaluation_sections, effects.judge_tiles),
    "pass_rates": (rlvr.profile_sections, rlvr.profile_tiles),
    "quantize": (quantization.sections, quantization.tiles),
    "samples": (samples.sections, samples.tiles),
    "sft_data": (sft_data.sections, sft_data.tiles),
    "synthetic_rows": (synthesis.sections, synthesis.tiles),
    "win_rate": (judging.win_rate_sections, effects.win_rate_tiles),
}


def page_of(node: Node) -> Page | None:
    """Page of an artifact's method if it has one of its own, or else of its kind."""
    return PAGES.get(node.stats.get("method", "")) or PAGES.get(node.kind)


def own_sections(node: Node) -> Sections:
    """Sections of an artifact by its kind; none for an unknown kind."""
    if node.manifest is None:
        return
    page = page_of(node)
    if page is None:
        return
    try:
        yield from page[0](node)
    except KeyError as error:  # an older version may have made the artifact
        reason = f"{node.name} has no {error} in its stats; build it again to see it here"
        yield Section(f"{node.kind} {node.name}", missing=reason)


def tiles_of(node: Node) -> list[Tile]:
    """Tiles at the head of an artifact's page: alerts, then the figures that its stage is for.

    An artifact of a kind without a page of its own has a tile of its rows.
    """
    if node.manifest is None:
        return []
    if page := page_of(node):
        try:
            return [*effects.alert_tiles(node), *page[1](node)][: effects.MOST_TILES]
        except KeyError:  # an older version made it: its sections say what is missing
            pass
    return [kept_tile(node, "rows")]


_ON_A_PAGE = Chart | Columns | Diagram | Fold | Samples


def figures(node: Node) -> Sections:
    """Sections of an artifact for the console: no charts, and nothing that a page folds away.

    A section of which only its introduction would remain is left out.
    """
    for section in own_sections(node):
        blocks = [block for block in section.blocks if not isinstance(block, _ON_A_PAGE)]
        is_complete = len(blocks) == len(section.blocks)
        if is_complete or any(isinstance(block, Table) for block in blocks):
            yield Section(section.title, blocks)


def write_report(artifact: Path | str, *, out: Path | str | None = None) -> Path:
    """Write the report of an artifact, with links to its parents' reports.

    Args:
        artifact: directory of a finished artifact, or of a training run that has begun.
        out: file to write, `report.html` in the artifact's directory by default.

    Raises:
        DataError: no finished artifact, or a file that changed since its manifest was written.
    """
    artifact = Path(artifact)
    target = Path(out) if out is not None else artifact / REPORT
    if is_unfinished(artifact):
        return write_unfinished(artifact, running=is_running(artifact), out=target)
    nodes = trace(artifact)
    root = nodes[0]
    sections = [*own_sections(root), *count_sections(root), provenance(nodes, target)]
    missing = [f"{section.title}: {section.missing}" for section in sections if section.missing]
    missing += [f"{node.kind} {node.name}: {node.missing}" for node in nodes if node.missing]
    sections.append(Section("Not in this report", missing))
    page = page_html(
        sections,
        title=root.name,
        kicker=f"{root.kind.replace('_', ' ')} {root.digest[:12]}",
        tiles=tiles_of(root),
        lead=parent_links(nodes, target),
    )
    atomic_write_text(target, page)
    return target


def ensure_report(artifact: Path | str) -> Path:
    """Write the report of a finished stage, unless there is one already. Returns its file."""
    report = Path(artifact) / REPORT
    if report.is_file():
        with report.open(encoding="utf-8") as page:
            # the page of a run that had not finished carries a mark at its beginning
            if UNFINISHED not in page.read(200):
                return report
    return write_report(artifact)


@dataclass(frozen=True, slots=True)
class TrainingPage:
    """The page of a training run in its output directory, for `TrainingStage.run`."""

    out: Path

    def write_live(self, activity: str, *, next_in: int | None) -> None:
        """Write the page of a run that goes on."""
        write_live(self.out, activity, next_in=next_in)

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
    """Print an artifact's figures and counts, write its report, and print where both are."""
    node = trace(artifact)[0]
    print_sections(console, [*figures(node), *count_sections(node)], charts=False)
    console.print(f"{artifact}  digest {node.digest[:16]}")
    console.print(f"{write_report(artifact)}")


def show_up_to_date(console: Console, artifact: Path) -> None:
    """Print that an artifact was complete before, and write its report if it has none."""
    ensure_report(artifact)
    console.print(f"{artifact} is complete, nothing to do")
