"""One page of a chain: effects of its stages, by family too, a diagram, seconds and digests.

The stages are the artifacts in some folders, and the artifacts that these were made from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from posttrain.errors import DataError
from posttrain.lineage import Node, trace
from posttrain.pages.artifact import link_to
from posttrain.pages.effects import EVALUATION, MOST_TILES, Effect, chain_effects, family_effects
from posttrain.pages.write import tiles_of
from posttrain.report import section as ui
from posttrain.report.html import page_html
from posttrain.runs import MANIFEST, REPORT, SECONDS, STAGE, atomic_write_text


def is_chain(folder: Path) -> bool:
    """True if a folder holds artifacts and is none itself."""
    if not folder.is_dir() or (folder / MANIFEST).is_file() or (folder / STAGE).is_file():
        return False
    return any((child / MANIFEST).is_file() for child in folder.iterdir())


def chain_nodes(folders: Sequence[Path]) -> list[Node]:
    """Artifacts of a chain and all their ancestors, parents first.

    Args:
        folders: artifacts, or folders that hold some.

    Raises:
        DataError: a folder holds no finished artifact.
    """
    nodes: dict[str, Node] = {}
    for folder in folders:
        artifacts = [folder]
        if is_chain(folder):
            artifacts = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
        elif not (folder / MANIFEST).is_file():
            raise DataError(f"{folder} is no finished artifact, and no folder that holds some")
        for artifact in artifacts:
            for node in trace(artifact):
                # an artifact whose folder moved is missing as a parent and present by itself
                if node.digest not in nodes or nodes[node.digest].manifest is None:
                    nodes[node.digest] = node
    return _parents_first(nodes)


def _parents_first(nodes: dict[str, Node]) -> list[Node]:
    ordered: dict[str, Node] = {}

    def add(digest: str) -> None:
        node = nodes[digest]
        for parent in node.manifest.parents if node.manifest else ():
            if parent.digest not in ordered:
                add(parent.digest)
        ordered.setdefault(digest, node)

    for digest in nodes:
        add(digest)
    return list(ordered.values())


def write_chain(folders: Sequence[Path], *, out: Path) -> Path:
    """Write the page of a chain.

    Raises:
        DataError: as `chain_nodes`.
    """
    nodes = chain_nodes(folders)
    effects = chain_effects(nodes)
    tiles = [effect.tile() for effect in first_effects(effects)]
    sections = [
        _effects(effects, out),
        _families(nodes, out),
        _diagram(nodes, out),
        _stages(nodes, out),
        ui.Section("Not in this report", _missing(nodes)),
    ]
    title = ", ".join(folder.resolve().name for folder in folders)
    kicker = f"chain of {len(nodes)} stages"
    page = page_html(sections, title=title, kicker=kicker, tiles=tiles[:MOST_TILES])
    atomic_write_text(out, page)
    return out


def first_effects(effects: Sequence[Effect]) -> list[Effect]:
    """First effect of each stage in each evaluation: the figure that the stage is for.

    Of judges and win rates only the first stage's, since control arms come after it.
    """
    firsts: dict[tuple[str, str], Effect] = {}
    for effect in effects:
        node = effect.evaluation
        stage = effect.stage if node.kind == EVALUATION else ""
        firsts.setdefault((node.digest, stage), effect)
    return list(firsts.values())


def show_chain(console: Console, folders: Sequence[Path], *, out: Path | None = None) -> Path:
    """Print all effects of a chain, write its page, and print where that is."""
    for line in effect_lines(chain_effects(chain_nodes(folders))):
        console.print(line, soft_wrap=True)
    page = write_chain(folders, out=out or folders[0] / REPORT)
    console.print(f"{page}", soft_wrap=True)
    return page


def effect_lines(effects: Sequence[Effect]) -> Iterator[str]:
    """Yield a head and a line for each effect, for a console or a log."""
    if not effects:
        return
    head = "before → after"
    name_width = max(len(effect.name) for effect in effects)
    values_width = max(len(head), *(len(effect.values) for effect in effects))
    yield f"{'':<{name_width}}  {head:>{values_width}}   change (95 % interval)"
    for effect in effects:
        line = f"{effect.name:<{name_width}}  {effect.values:>{values_width}}   {effect.interval}"
        yield f"{line}, {effect.extent}"


@ui.section("What the stages changed")
def _effects(effects: Sequence[Effect], out: Path) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for effect in effects:
        figure = ui.TableCell(effect.title, below=effect.stage)
        change = ui.TableCell(effect.values, below=effect.interval)
        rows.append([figure, change, effect.extent, link_to(effect.evaluation, out)])
    if rows:
        yield ui.Table(["figure, stage", "before → after", "of", "in"], rows)
        yield (
            "On held-out questions, each stage against what it started from; below, the change "
            "with its 95 % interval over questions, shares in points. A win rate is compared with "
            "the half that equal answers would get."
        )


@ui.section("By family")
def _families(nodes: Sequence[Node], out: Path) -> Iterator[ui.Block]:
    for node in nodes:
        if node.manifest is None or node.kind != EVALUATION:
            continue
        effects = list(family_effects(node))
        tasks = list(dict.fromkeys(task for task, _ in effects))
        families = {(task, effect.title) for task, effect in effects}
        stages = list(dict.fromkeys(effect.stage for _, effect in effects))
        rows: list[list[object]] = []
        for task, title in sorted(families, key=lambda row: (tasks.index(row[0]), row[1])):
            cells: dict[str, ui.TableCell] = {}
            for effect_task, effect in effects:
                if (effect_task, effect.title) == (task, title):
                    cells[effect.stage] = ui.TableCell(effect.values, below=effect.interval)
            rows.append([ui.TableCell(task, below=title), *map(cells.get, stages)])
        if not rows:
            continue
        yield ("In ", link_to(node, out))
        yield ui.Table(["family", *stages], rows)
        for word, better in (("better", True), ("worse", False)):
            changes = [
                f"{effect.stage} on {task} ({effect.title} {effect.interval})"
                for task, effect in effects
                if effect.is_better is better
            ]
            yield f"Measurably {word}: {', '.join(changes) or 'nothing'}."
        yield (
            "Each stage against what it started from, both modes of reasoning pooled; –: no "
            "undeclared call before and after. Measurable: the 95 % interval leaves out 0, as one "
            f"in twenty of the {len(effects)} changes would by chance."
        )


@ui.section("Stages")
def _diagram(nodes: Sequence[Node], out: Path) -> Iterator[ui.Block]:
    box_of_digest = {node.digest: box for box, node in enumerate(nodes)}
    edges: list[tuple[int, int]] = []
    boxes: list[ui.DiagramNode] = []
    for box, node in enumerate(nodes):
        for parent in node.manifest.parents if node.manifest else ():
            edges.append((box_of_digest[parent.digest], box))
        link = link_to(node, out)
        target = link.target if isinstance(link, ui.Link) else ""
        boxes.append(ui.DiagramNode(node.name, node.kind.replace("_", " "), target))
    caption = "Each stage below what it was made from; a name leads to its page."
    yield ui.Diagram(boxes, edges, caption)


@ui.section("Seconds and digests")
def _stages(nodes: Sequence[Node], out: Path) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    totals = dict.fromkeys(_TIMES, 0.0)
    for node in nodes:
        seconds = seconds_of(node)
        shown: list[str | None] = []
        for key in _TIMES:
            totals[key] += seconds.get(key, 0.0)
            shown.append(f"{seconds[key]:,.1f}" if key in seconds else None)
        tiles = tiles_of(node)
        figure = ui.TableCell(tiles[0][0], below=tiles[0][1]) if tiles else None
        name = ui.TableCell(link_to(node, out), below=node.kind.replace("_", " "))
        rows.append([name, figure, *shown, ui.Digest(node.digest)])
    rows.append(["all", None, *(f"{total:,.1f}" for total in totals.values()), None])
    head = ["stage", "what its page opens with", "seconds", "CPU seconds", "digest"]
    yield ui.Table(head, rows, total=True)
    yield (
        "Seconds by the clock, from the start of the command that finished a stage; CPU seconds of "
        "its process, imports included, and of those that it ended (of several, of the first). "
        "Starts that were ended before are in neither, and stages may run beside each other."
    )


_TIMES = ("seconds", "cpu_seconds")


def seconds_of(node: Node) -> dict[str, float]:
    """Seconds of the command that finished a stage, by the clock and of CPU, as far as known."""
    path = node.path / SECONDS
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def _missing(nodes: Sequence[Node]) -> list[ui.Block]:
    return [f"{node.kind} {node.name}: {node.missing}" for node in nodes if node.missing]
