"""A diagram of boxes and arrows as inline SVG: a layered drawing (Sugiyama 1981), top to bottom.

Every box stands below those that point to it, at most `MOST` in a row, so that its name can be
read on a telephone. An arrow that passes rows has a place of its own in each of them; rows are
ordered by the mean place of what their boxes are joined to, which leaves few crossings.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from markupsafe import Markup

from posttrain.report.section import Diagram, DiagramNode

WIDTH, ROW, BOX, LANE = 480, 74, 42, 16  # pixels: drawing, row, a box's height, an arrow's way
MOST, GAP = 4, 10
WIDEST = 150.0
SWEEPS = 8
CHARACTERS = 15  # of a name in the narrowest box
Place = tuple[int, int]  # a box (node, its row) or a bend of an arrow (−edge − 1, row)


def diagram_svg(diagram: Diagram) -> Markup:
    """The drawing; its boxes are links where they have a target."""
    edges = shortest(diagram.edges)
    rows = rows_of(len(diagram.nodes), edges)
    layers, ways = _layers(rows, edges)
    _order(layers, ways)
    height = ROW * len(layers) - (ROW - BOX) + 4
    centres, widths = _centres(layers)
    parts = [_arrow(way, centres) for way in ways]
    parts += [
        _box(node, *centres[place, row], widths[row])
        for place, (node, row) in enumerate(zip(diagram.nodes, rows, strict=True))
    ]
    drawn = Markup("").join(parts)
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, diagram.caption, drawn
    )


def shortest(edges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The edges without those that others imply: a → c, where there is a way a → b → c."""
    kept = sorted(set(edges))
    after: dict[int, set[int]] = defaultdict(set)
    for start, end in kept:
        after[start].add(end)

    def reached(start: int, goal: int) -> bool:
        return any(end == goal or reached(end, goal) for end in after[start])

    return [
        (start, end)
        for start, end in kept
        if not any(reached(other, end) for other in after[start] if other != end)
    ]


def rows_of(nodes: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The row of each node: below all that point to it, in the first that has room."""
    parents: dict[int, list[int]] = defaultdict(list)
    for start, end in edges:
        parents[end].append(start)
    rows: dict[int, int] = {}
    taken: dict[int, int] = defaultdict(int)
    while len(rows) < nodes:
        known = [n for n in range(nodes) if n not in rows and all(p in rows for p in parents[n])]
        assert known, "the edges of a diagram go round in a circle"
        # what can stand highest first, so that a full row pushes down what comes last
        node = min(known, key=lambda n: max((rows[p] for p in parents[n]), default=-1))
        row = 1 + max((rows[p] for p in parents[node]), default=-1)
        while taken[row] >= MOST:
            row += 1
        rows[node] = row
        taken[row] += 1
    return [rows[node] for node in range(nodes)]


def _layers(
    rows: Sequence[int], edges: Sequence[tuple[int, int]]
) -> tuple[list[list[Place]], list[list[Place]]]:
    """What stands in each row, boxes and bends, and the places that each arrow passes."""
    layers: list[list[Place]] = [[] for _ in range(max(rows, default=-1) + 1)]
    for node, row in enumerate(rows):
        layers[row].append((node, row))
    ways: list[list[Place]] = []
    for number, (start, end) in enumerate(edges):
        bends = [(-number - 1, row) for row in range(rows[start] + 1, rows[end])]
        for bend in bends:
            layers[bend[1]].append(bend)
        ways.append([(start, rows[start]), *bends, (end, rows[end])])
    return layers, ways


def _order(layers: Sequence[list[Place]], ways: Sequence[Sequence[Place]]) -> None:
    """Sort each row by the mean place of its neighbours above, then below, some times over."""
    above: dict[Place, list[Place]] = defaultdict(list)
    below: dict[Place, list[Place]] = defaultdict(list)
    for way in ways:
        for first, second in itertools.pairwise(way):
            below[first].append(second)
            above[second].append(first)
    for sweep in range(SWEEPS):
        neighbours = below if sweep % 2 else above
        for layer in reversed(layers) if sweep % 2 else layers:
            centres, _ = _centres(layers)
            means = {
                place: sum(centres[n][0] for n in neighbours[place]) / len(neighbours[place])
                if neighbours[place]
                else centres[place][0]
                for place in layer
            }
            layer.sort(key=lambda place: means[place])


def _centres(
    layers: Sequence[Sequence[Place]],
) -> tuple[dict[Place, tuple[float, float]], list[float]]:
    """The middle of each place, and how wide the boxes of each row are."""
    centres: dict[Place, tuple[float, float]] = {}
    widths: list[float] = []
    for row, layer in enumerate(layers):
        boxes = sum(place[0] >= 0 for place in layer)
        bends = len(layer) - boxes
        room = WIDTH - GAP * len(layer) - LANE * bends
        width = min(WIDEST, room / max(boxes, 1))
        widths.append(width)
        spare = (WIDTH - boxes * width - bends * LANE) / (len(layer) + 1)
        left = spare
        for place in layer:
            own = width if place[0] >= 0 else LANE
            centres[place] = (left + own / 2, row * ROW + BOX / 2 + 2)
            left += own + spare
    return centres, widths


def _arrow(way: Sequence[Place], centres: Mapping[Place, tuple[float, float]]) -> Markup:
    """A curve from the bottom of a box to the top of another."""
    points = [centres[place] for place in way]
    x, y = points[0]
    path = f"M {x:.1f} {y + BOX / 2:.1f}"
    bottom = y + BOX / 2
    for number, (x_next, y_next) in enumerate(points[1:], start=1):
        top = y_next - BOX / 2
        middle = (bottom + top) / 2
        path += f" C {x:.1f} {middle:.1f} {x_next:.1f} {middle:.1f} {x_next:.1f} {top:.1f}"
        bottom = y_next + BOX / 2
        if number < len(points) - 1:
            path += f" L {x_next:.1f} {bottom:.1f}"
        x = x_next
    tip = points[-1][1] - BOX / 2
    head = f"M {x - 4:.1f} {tip - 6:.1f} L {x:.1f} {tip:.1f} L {x + 4:.1f} {tip - 6:.1f}"
    return Markup(
        '<path d="{} {}" style="fill:none;stroke:var(--third);stroke-width:1.3"/>'
    ).format(path, head)


def _box(node: DiagramNode, x: float, y: float, width: float) -> Markup:
    name = node.name if len(node.name) <= CHARACTERS else f"{node.name[: CHARACTERS - 1]}…"
    size = 13 if len(name) <= 12 or width > 120 else 11.5
    colour = "accent" if node.target else "ink"
    lines = [
        Markup('<text x="{:.1f}" y="{:.1f}" style="{}">{}</text>').format(
            x,
            y + (-2 if node.below else 4.5),
            f"font-size:{size}px;text-anchor:middle;fill:var(--{colour})",
            name,
        )
    ]
    if node.below:
        lines.append(
            Markup('<text x="{:.1f}" y="{:.1f}" style="{}">{}</text>').format(
                x, y + 13, "font-size:11px;text-anchor:middle;fill:var(--muted)", node.below
            )
        )
    outline = Markup(
        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" rx="4" style="{}"/>'
    ).format(x - width / 2, y - BOX / 2, width, BOX, "fill:var(--wash);stroke:var(--second)")
    inner = Markup("<title>{}</title>{}{}").format(node.name, outline, Markup("").join(lines))
    if not node.target:
        return Markup("<g>{}</g>").format(inner)
    return Markup('<a href="{}">{}</a>').format(quote(node.target), inner)
