"""Several runs in one page: their figures, curves of the same metrics, differing keys of recipes.

Any kinds of artifact, and training runs that have not finished, up to the number of line styles.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError
from posttrain.lineage import Node, listed_rows
from posttrain.pages import evaluation, training
from posttrain.pages.live import is_unfinished, log_so_far
from posttrain.pages.write import tiles_of
from posttrain.report import section as ui
from posttrain.report.curves import Curve, curves
from posttrain.report.html import page_html
from posttrain.runs import LOG, atomic_write_text, read_artifact, read_owner

_STYLES = "abdecf"
_SHOWN_VALUE = 160  # characters of a recipe's value


@dataclass(frozen=True, slots=True)
class OverlaidRun:
    """One of the runs.

    Attributes:
        node: the artifact; None for a run that has not finished.
        rows: rows of its log.
    """

    name: str
    path: Path
    kind: str
    config: Mapping[str, Any]
    node: Node | None
    rows: Sequence[ui.Row]


def write_overlay(artifacts: Sequence[Path], *, out: Path) -> Path:
    """Write one page about up to `len(_STYLES)` different artifacts.

    Raises:
        ConfigError: too many artifacts, or one of them twice.
        DataError: one is neither finished nor a training run that has begun, or has changed.
    """
    paths = [path.resolve() for path in artifacts]
    if len(paths) > len(_STYLES) or len(set(paths)) < len(paths):
        raise ConfigError(
            f"an overlay takes up to {len(_STYLES)} different runs, these are {len(paths)}, of "
            f"them {len(set(paths))} different"
        )
    runs = [_read_run(path, name) for path, name in zip(paths, _short_names(paths), strict=True)]
    sections = [_headlines(runs), *_curves(runs)]
    sections += _evaluations([run for run in runs if run.node and run.kind == "evaluation"])
    sections += [_overview(runs), _recipes(runs)]
    title = ", ".join(run.name for run in runs)
    page = page_html(sections, title=title, kicker=f"overlay of {len(runs)} runs")
    atomic_write_text(out, page)
    return out


def _short_names(paths: Sequence[Path]) -> list[str]:
    """Last parts of different paths, equally many of each and the fewest that tell them apart."""
    for length in itertools.count(1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise AssertionError("the paths differ")


def _read_run(path: Path, name: str) -> OverlaidRun:
    if is_unfinished(path):
        owner = read_owner(path)
        return OverlaidRun(name, path, owner["kind"], owner["config"], None, log_so_far(path))
    manifest = read_artifact(path, verify=False)
    node = Node(name, manifest.kind, manifest.digest, 0, path, manifest)
    rows = listed_rows(node, LOG) or []
    return OverlaidRun(name, path, manifest.kind, manifest.config, node, rows)


@ui.section("Runs")
def _overview(runs: Sequence[OverlaidRun]) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for run in runs:
        steps = [row["step"] for row in run.rows if "step" in row]
        digest = ui.Digest(run.node.digest) if run.node else "not finished"
        rows.append([run.name, run.kind, digest, int(max(steps)) if steps else None])
    yield ui.Table(["run", "kind", "digest", "last step"], rows)


@ui.section("Figures")
def _headlines(runs: Sequence[OverlaidRun]) -> Iterator[ui.Block]:
    """Figures at the head of each run's own report, side by side."""
    cells: dict[str, dict[str, object]] = defaultdict(dict)
    for run in runs:
        for figure, name, remark in tiles_of(run.node) if run.node else ():
            cells[name].setdefault(run.name, ui.TableCell(figure, below=remark))
    names = [run.name for run in runs]
    rows = [[figure_name, *map(row.get, names)] for figure_name, row in cells.items()]
    if rows:
        yield ui.Table(["", *names], rows)


@ui.section("Recipes")
def _recipes(runs: Sequence[OverlaidRun]) -> Iterator[ui.Block]:
    """Keys in which the recipes of runs of one kind differ."""
    for kind in dict.fromkeys(run.kind for run in runs):
        configs = {run.name: _flat(run.config) for run in runs if run.kind == kind}
        if len(configs) < 2:
            continue
        keys: dict[str, None] = {}
        for config in configs.values():
            keys |= dict.fromkeys(config)
        differing: list[list[object]] = []
        for key in keys:
            values = [config.get(key) for config in configs.values()]
            if any(value != values[0] for value in values[1:]):
                differing.append([key, *values])
        if differing:
            yield ui.Table([f"{kind}, key", *configs], differing)
        else:
            yield f"The recipes of kind {kind} are equal; inputs are named in them by digest."


def _flat(config: Any, key: str = "") -> dict[str, object]:
    """Values of a config by dotted key, as short texts; a list of blocks is keyed by position."""
    inner = config
    if isinstance(config, list) and any(isinstance(element, Mapping) for element in config):
        inner = {str(position): element for position, element in enumerate(config)}
    if isinstance(inner, Mapping) and inner:
        prefix = f"{key}." if key else ""
        values: dict[str, object] = {}
        for name, value in inner.items():
            values |= _flat(value, f"{prefix}{name}")
        return values
    if isinstance(config, str) and key.endswith("digest"):
        return {key: ui.Digest(config)}
    text = config if isinstance(config, str) else json.dumps(config, ensure_ascii=False)
    return {key: ui.shortened(text, _SHOWN_VALUE)}


def _curves(runs: Sequence[OverlaidRun]) -> Iterator[ui.Section]:
    """Chart of each metric that two runs logged, with a line for each run."""
    logs = {run.name: run.rows for run in runs if run.rows}
    rows: list[ui.Row] = []
    logged: set[str] = set()
    for run, log in logs.items():
        for row in log:
            if "step" in row:
                values = {f"{run}:{key}": value for key, value in row.items()}
                logged |= values.keys()
                rows.append({"step": row["step"], **values})
    groups: dict[str, dict[str, Curve]] = defaultdict(dict)
    for log in logs.values():
        for title, charts in training.curve_groups(log).items():
            for curve in charts:
                # a chart of several metrics becomes a chart for each
                for name, key in curve.named().items():
                    lines = {run: f"{run}:{key}" for run in logs if f"{run}:{key}" in logged}
                    if len(lines) < 2:
                        continue
                    caption = curve.caption if name == key else f"{curve.caption[:-1]}: {name}."
                    groups[title].setdefault(key, replace(curve, caption=caption, keys=lines))
    for title, overlaid in groups.items():
        yield ui.Section(title, curves(rows, list(overlaid.values()), _STYLES))


def _evaluations(runs: Sequence[OverlaidRun]) -> Iterator[ui.Section]:
    """Figures of all checkpoints, and their paired changes from the first run's first one."""
    if len(runs) < 2:
        return
    from posttrain.evaluation.compare import RunCheckpoint, compare_runs
    from posttrain.evaluation.run import read_lock, read_run

    cells: list[ui.Row] = []
    pairs: list[ui.Row] = []
    left_out: dict[str, str] = {}
    base: RunCheckpoint | None = None
    for run in runs:
        assert run.node is not None
        run_cells = evaluation.read_metrics(run.node)["cells"]
        shown_keys = [evaluation.cell_key(cell) for cell in cells]
        # a run that shares no task and setting with the first ones has no row in their table
        if not cells or any(evaluation.cell_key(cell) in shown_keys for cell in run_cells):
            for cell in run_cells:
                cells.append({**cell, "checkpoint": f"{run.name}:{cell['checkpoint']}"})
        for name, records in read_run(run.path)[1].items():
            side = RunCheckpoint(run.path, name, records, read_lock(run.path))
            if base is None:
                base = side
                continue
            labels = {"a": f"{runs[0].name}:{base.checkpoint}", "b": f"{run.name}:{name}"}
            try:
                pairs += [row | labels for row in compare_runs(base, side)]
            except ConfigError as error:
                left_out[run.name] = f"{run.name} is not compared question by question: {error}."
    comparison, *further_sections = evaluation.comparison(cells, pairs)
    yield ui.Section(comparison.title, [*left_out.values(), *comparison.blocks])
    yield from further_sections
