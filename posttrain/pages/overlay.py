"""Several runs in one page: how their recipes differ, curves of the same metrics, evaluations.

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

STYLES, SHOWN_VALUE = "abdecf", 160


@dataclass(frozen=True, slots=True)
class OverlaidRun:
    """One of the runs. `node` is None where it has not finished; `rows` are those of its log."""

    name: str
    path: Path
    kind: str
    config: Mapping[str, Any]
    node: Node | None
    rows: Sequence[ui.Row]


def write_overlay(artifacts: Sequence[Path], *, out: Path) -> Path:
    """Write one page about several artifacts.

    Raises:
        ConfigError: too many artifacts, or one of them twice.
        DataError: one is neither finished nor a training run that has begun, or has changed.
    """
    paths = [path.resolve() for path in artifacts]
    if len(paths) > len(STYLES) or len(set(paths)) < len(paths):
        raise ConfigError(
            f"an overlay takes up to {len(STYLES)} different runs, these are {len(paths)}, of "
            f"them {len(set(paths))} different"
        )
    # as many of the last parts of the paths as tell them from each other
    names = (["/".join(path.parts[-k:]) for path in paths] for k in itertools.count(1))
    distinct = next(found for found in names if len(set(found)) == len(found))
    runs = [_read(path, name) for path, name in zip(paths, distinct, strict=True)]
    sections = [_overview(runs), _headlines(runs), _recipes(runs), *_curves(runs)]
    sections += _evaluations([run for run in runs if run.node and run.kind == "evaluation"])
    title, kicker = ", ".join(run.name for run in runs), f"overlay of {len(runs)} runs"
    atomic_write_text(out, page_html(sections, title=title, kicker=kicker))
    return out


def _read(path: Path, name: str) -> OverlaidRun:
    if is_unfinished(path):
        owner = read_owner(path)
        return OverlaidRun(name, path, owner["kind"], owner["config"], None, log_so_far(path))
    found = read_artifact(path, verify=False)
    node = Node(name, found.kind, found.digest, 0, path, found)
    return OverlaidRun(name, path, found.kind, found.config, node, listed_rows(node, LOG) or [])


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
    """The figures at the head of each run's own report."""
    found: dict[str, dict[str, object]] = defaultdict(dict)
    for run in runs:
        for figure, name, remark in tiles_of(run.node) if run.node else ():
            found[name].setdefault(run.name, ui.TableCell(figure, below=remark))
    names = [run.name for run in runs]
    rows = [[name, *map(own.get, names)] for name, own in found.items()]
    if rows:
        yield ui.Table(["", *names], rows)


@ui.section("Recipes")
def _recipes(runs: Sequence[OverlaidRun]) -> Iterator[ui.Block]:
    """The keys in which runs of one kind differ."""
    for kind in dict.fromkeys(run.kind for run in runs):
        own = {run.name: _flat(run.config) for run in runs if run.kind == kind}
        keys = dict.fromkeys(key for config in own.values() for key in config)
        rows = [[key, *(config.get(key) for config in own.values())] for key in keys]
        differing = [row for row in rows if any(value != row[1] for value in row[2:])]
        if len(own) > 1 and differing:
            yield ui.Table([f"{kind}, key", *own], differing)
        elif len(own) > 1:
            yield f"The recipes of kind {kind} are equal; inputs are named in them by digest."


def _flat(config: Any, key: str = "") -> dict[str, object]:
    """Values by dotted key, those of lists by their places."""
    inner = config
    if isinstance(config, list) and any(isinstance(item, Mapping) for item in config):
        inner = {str(place): item for place, item in enumerate(config)}
    if isinstance(inner, Mapping) and inner:
        dot = f"{key}." if key else ""
        return {k: v for name in inner for k, v in _flat(inner[name], f"{dot}{name}").items()}
    if isinstance(config, str) and key.endswith("digest"):
        return {key: ui.Digest(config)}
    text = config if isinstance(config, str) else json.dumps(config, ensure_ascii=False)
    return {key: ui.shortened(text, SHOWN_VALUE)}


def _curves(runs: Sequence[OverlaidRun]) -> Iterator[ui.Section]:
    """A chart of each metric that two runs logged, with a line a run."""
    logs = {run.name: run.rows for run in runs if run.rows}
    rows = [
        {"step": row["step"], **{f"{name}:{key}": value for key, value in row.items()}}
        for name, log in logs.items()
        for row in log
        if "step" in row
    ]
    logged = {key for row in rows for key in row}
    groups: dict[str, dict[str, Curve]] = defaultdict(dict)
    for log in logs.values():
        for title, wanted in training.curve_groups(log).items():
            for curve, (name, key) in ((c, item) for c in wanted for item in c.named().items()):
                own = {run: f"{run}:{key}" for run in logs if f"{run}:{key}" in logged}
                about = curve.caption if name == key else f"{curve.caption[:-1]}: {name}."
                if len(own) > 1:
                    groups[title].setdefault(key, replace(curve, caption=about, keys=own))
    for title, charts in groups.items():
        yield ui.Section(title, curves(rows, list(charts.values()), STYLES))


def _evaluations(runs: Sequence[OverlaidRun]) -> Iterator[ui.Section]:
    """Figures of all checkpoints, and their paired changes from the first one of the first run."""
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
        own = evaluation.read_metrics(run.node)["cells"]
        if not cells or any(evaluation.place(a) == evaluation.place(b) for a in cells for b in own):
            cells += [{**cell, "checkpoint": f"{run.name}:{cell['checkpoint']}"} for cell in own]
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
    before, *others = evaluation.comparison(cells, pairs)
    yield ui.Section(before.title, [*left_out.values(), *before.blocks])
    yield from others
