"""Diagram of boxes and arrows as inline SVG: a layered drawing (Sugiyama 1981), top to bottom.

Every box stands below those that point to it, at most `MOST` in a row, so that its name can be
read on a telephone. An arrow that passes rows has a bend of its own in each of them; boxes and
bends of a row are ordered by the mean position of those they are joined to, which leaves few
crossings.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from markupsafe import Markup

from posttrain.report.section import Diagram, DiagramNode

WIDTH = 480  # pixels of the drawing
ROW = 74  # pixels from a row to the next
BOX = 42  # pixels of a box's height
LANE = 16  # pixels that an arrow takes of a row that it passes
GAP = 10  # pixels between boxes, at least
WIDEST = 150.0  # pixels of a box's width
MOST = 4  # boxes in a row
SWEEPS = 8  # of the ordering of rows; a further one hardly changes it
CHARACTERS = 15  # of a name in the narrowest box
Point = tuple[int, int]  # a box (node, its row) or a bend of an arrow (−edge − 1, row)


def diagram_svg(diagram: Diagram) -> Markup:
    """Draw a diagram as an SVG element; boxes with a target are links."""
    edges = shortest(diagram.edges)
    rows = rows_of(len(diagram.nodes), edges)
    layers, routes = _layers_and_routes(rows, edges)
    _order_layers(layers, routes)
    height = ROW * len(layers) - (ROW - BOX) + 4
    centres, widths = _centres_and_widths(layers)
    shapes = [_arrow(route, centres) for route in routes]
    for number, (node, row) in enumerate(zip(diagram.nodes, rows, strict=True)):
        x, y = centres[number, row]
        shapes.append(_box(node, x, y, widths[row]))
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, diagram.caption, Markup("").join(shapes)
    )


def shortest(edges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Edges without those that others imply: a → c, where there is a path a → b → c."""
    all_edges = sorted(set(edges))
    children: dict[int, set[int]] = defaultdict(set)
    for start, end in all_edges:
        children[start].add(end)

    def is_reachable(start: int, goal: int) -> bool:
        return any(child == goal or is_reachable(child, goal) for child in children[start])

    kept_edges: list[tuple[int, int]] = []
    for start, end in all_edges:
        siblings = children[start] - {end}
        if not any(is_reachable(sibling, end) for sibling in siblings):
            kept_edges.append((start, end))
    return kept_edges


def rows_of(nodes: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Row of each node: the first with room below all nodes that point to it."""
    parents: dict[int, list[int]] = defaultdict(list)
    for start, end in edges:
        parents[end].append(start)
    rows: dict[int, int] = {}

    def lowest_parent_row(node: int) -> int:
        return max((rows[parent] for parent in parents[node]), default=-1)

    nodes_in_row: dict[int, int] = defaultdict(int)
    while len(rows) < nodes:
        candidates: list[int] = []
        for node in range(nodes):
            if node not in rows and all(parent in rows for parent in parents[node]):
                candidates.append(node)
        assert candidates, "the edges of a diagram go round in a circle"
        # the node that can stand highest goes first, so that a full row pushes down later ones
        node = min(candidates, key=lowest_parent_row)
        row = 1 + lowest_parent_row(node)
        while nodes_in_row[row] >= MOST:
            row += 1
        rows[node] = row
        nodes_in_row[row] += 1
    return [rows[node] for node in range(nodes)]


def _layers_and_routes(
    rows: Sequence[int], edges: Sequence[tuple[int, int]]
) -> tuple[list[list[Point]], list[list[Point]]]:
    """Boxes and bends of each row; and the route of each arrow, from its box to the other."""
    layers: list[list[Point]] = [[] for _ in range(max(rows, default=-1) + 1)]
    for node, row in enumerate(rows):
        layers[row].append((node, row))
    routes: list[list[Point]] = []
    for number, (start, end) in enumerate(edges):
        bends = [(-number - 1, row) for row in range(rows[start] + 1, rows[end])]
        for bend in bends:
            layers[bend[1]].append(bend)
        routes.append([(start, rows[start]), *bends, (end, rows[end])])
    return layers, routes


def _order_layers(layers: Sequence[list[Point]], routes: Sequence[Sequence[Point]]) -> None:
    """Sort each row in place by the mean position of its neighbours, in sweeps down and up."""
    above: dict[Point, list[Point]] = defaultdict(list)
    below: dict[Point, list[Point]] = defaultdict(list)
    for route in routes:
        for upper, lower in itertools.pairwise(route):
            below[upper].append(lower)
            above[lower].append(upper)
    for sweep in range(SWEEPS):
        upwards = sweep % 2 == 1
        neighbours = below if upwards else above
        for layer in reversed(layers) if upwards else layers:
            centres, _ = _centres_and_widths(layers)
            means: dict[Point, float] = {}
            for point in layer:
                # a point without neighbours stays where it is
                joined = neighbours[point] or [point]
                means[point] = sum(centres[neighbour][0] for neighbour in joined) / len(joined)
            layer.sort(key=means.__getitem__)


def _centres_and_widths(
    layers: Sequence[Sequence[Point]],
) -> tuple[dict[Point, tuple[float, float]], list[float]]:
    """Centre (x, y) of each box and bend, and the width of the boxes of each row, in pixels."""
    centres: dict[Point, tuple[float, float]] = {}
    box_widths: list[float] = []
    for row, layer in enumerate(layers):
        boxes = sum(number >= 0 for number, _ in layer)
        bends = len(layer) - boxes
        room = WIDTH - GAP * len(layer) - LANE * bends
        box_width = min(WIDEST, room / max(boxes, 1))
        box_widths.append(box_width)
        spacing = (WIDTH - boxes * box_width - bends * LANE) / (len(layer) + 1)
        left_edge = spacing
        for point in layer:
            is_box = point[0] >= 0
            width = box_width if is_box else LANE
            centres[point] = (left_edge + width / 2, row * ROW + BOX / 2 + 2)
            left_edge += width + spacing
    return centres, box_widths


def _arrow(route: Sequence[Point], centres: Mapping[Point, tuple[float, float]]) -> Markup:
    """Curve from the bottom of a box through the bends of its route to the top of another."""
    points = [centres[point] for point in route]
    x, y = points[0]
    path = f"M {x:.1f} {y + BOX / 2:.1f}"
    bottom = y + BOX / 2
    for number, (x_next, y_next) in enumerate(points[1:], start=1):
        top = y_next - BOX / 2
        middle = (bottom + top) / 2
        path += f" C {x:.1f} {middle:.1f} {x_next:.1f} {middle:.1f} {x_next:.1f} {top:.1f}"
        bottom = y_next + BOX / 2
        if number < len(points) - 1:  # straight through the row of a bend
            path += f" L {x_next:.1f} {bottom:.1f}"
        x = x_next
    tip = points[-1][1] - BOX / 2
    head = f"M {x - 4:.1f} {tip - 6:.1f} L {x:.1f} {tip:.1f} L {x + 4:.1f} {tip - 6:.1f}"
    return Markup(
        '<path d="{} {}" style="fill:none;stroke:var(--third);stroke-width:1.3"/>'
    ).format(path, head)


def _box(node: DiagramNode, x: float, y: float, width: float) -> Markup:
    """Box of a node around the centre (x, y), with its name, the smaller line and a tooltip."""
    name = node.name if len(node.name) <= CHARACTERS else f"{node.name[: CHARACTERS - 1]}…"
    # a long name fits a narrow box only in a smaller font
    font_size = 13 if len(name) <= 12 or width > 120 else 11.5
    colour = "accent" if node.target else "ink"
    # the name makes room for the line below it
    name_y = y - 2 if node.below else y + 4.5
    lines = [_box_text(x, name_y, name, font_size=font_size, colour=colour)]
    if node.below:
        lines.append(_box_text(x, y + 13, node.below, font_size=11, colour="muted"))
    outline = Markup(
        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" rx="4" style="{}"/>'
    ).format(x - width / 2, y - BOX / 2, width, BOX, "fill:var(--wash);stroke:var(--second)")
    content = Markup("<title>{}</title>{}{}").format(node.name, outline, Markup("").join(lines))
    if not node.target:
        return Markup("<g>{}</g>").format(content)
    return Markup('<a href="{}">{}</a>').format(quote(node.target), content)


def _box_text(x: float, y: float, text: str, *, font_size: float, colour: str) -> Markup:
    style = f"font-size:{font_size}px;text-anchor:middle;fill:var(--{colour})"
    return Markup('<text x="{:.1f}" y="{:.1f}" style="{}">{}</text>').format(x, y, style, text)
