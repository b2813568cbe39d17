"""The figures of a run for other tools: NVIDIA's evaluator, spreadsheets, papers.

    export/scores.csv            a line each checkpoint × task × setting × mode × figure
    export/table.md              accuracies with intervals, a column a checkpoint, and costs
    export/CHECKPOINT/results.yml
        {config: {type, params}, results: {tasks: {TASK: {metrics: {FIGURE: {scores:
         {SETTING_on: {value, stats: {count, stderr}}}}}}}, groups: {…}}}

`results.yml` is laid out as NeMo Evaluator's (packages/nemo-evaluator, api_dataclasses), with the
row of all tasks as its group. A standard error there is the
95 % interval's width over 2 × 1.96: the interval itself is not symmetric.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from posttrain.evaluation.intervals import Z95
from posttrain.evaluation.metrics import ALL
from posttrain.runs import Manifest, atomic_write_text

EXPORT = "export"
Row = Mapping[str, Any]
_HEAD = ("checkpoint", "task", "setting", "thinking", "figure", "value", "low", "high", "questions",
         "samples")  # fmt: skip


def write_exports(folder: Path, metrics: Row, costs: Sequence[Row], manifest: Manifest) -> None:
    """Write every export of a run's `metrics.json` and `costs.json`."""
    cells = metrics["cells"]
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(_HEAD)
    writer.writerows(_figures(cells))
    atomic_write_text(folder / "scores.csv", lines.getvalue())
    atomic_write_text(folder / "table.md", markdown_table(cells, costs))
    for checkpoint in dict.fromkeys(cell["checkpoint"] for cell in cells):
        own = [cell for cell in cells if cell["checkpoint"] == checkpoint]
        text = yaml.safe_dump(results_of(own, manifest), sort_keys=False)
        atomic_write_text(folder / checkpoint / "results.yml", text)


def _figures(cells: Sequence[Row]) -> Iterator[list[Any]]:
    for cell in cells:
        place = [cell[name] for name in _HEAD[:4]]
        figures = {**cell["rates"], **{f"pass@{k}": found for k, found in cell["pass"].items()}}
        figures |= {name: found["mean"] for name, found in cell["lengths"].items()}
        for name, found in figures.items():
            yield [*place, name, *(found[key] for key in _HEAD[5:])]


def results_of(cells: Sequence[Row], manifest: Manifest) -> dict[str, Any]:
    """One checkpoint's figures in the layout of NVIDIA's `results.yml`."""
    results: dict[str, dict[str, Any]] = {"tasks": {}, "groups": {}}
    for cell in cells:
        kind = "groups" if cell["task"] == ALL else "tasks"
        metrics = results[kind].setdefault(cell["task"], {"metrics": {}})["metrics"]
        for name, found in cell["rates"].items():
            scores = metrics.setdefault(name, {"scores": {}})["scores"]
            error = (found["high"] - found["low"]) / (2 * Z95)
            scores[f"{cell['setting']}_{cell['thinking']}"] = {
                "value": found["value"],
                "stats": {"count": found["samples"], "stderr": error},
            }
    stated = manifest.config
    params = {key: stated[key] for key in ("sampling", "n", "seed") if key in stated}
    config = {"type": manifest.kind, "params": {**params, "manifest": manifest.digest}}
    return {"config": config, "results": results}


def markdown_table(cells: Sequence[Row], costs: Sequence[Row]) -> str:
    """Accuracies in per cent with 95 % intervals, then tokens, money and time."""
    names = list(dict.fromkeys(cell["checkpoint"] for cell in cells))
    places = dict.fromkeys((c["task"], c["setting"], c["thinking"]) for c in cells)
    rows = [["task", "setting", "reasoning", "questions", "k", *names]]
    for place in places:
        own = {
            c["checkpoint"]: c for c in cells
            if (c["task"], c["setting"], c["thinking"]) == place
        }  # fmt: skip
        first = next(iter(own.values()))
        shown = [_accuracy(own[name]) if name in own else "" for name in names]
        rows.append([*place, str(first["questions"]), str(first["k"]), *shown])
    spent = [["checkpoint", "task", "setting", "solved", "input tokens", "output tokens", "money",
              "money / solved", "p50 s", "p95 s", "tokens / s"]]  # fmt: skip
    for row in costs:
        latency, tokens = row["latency"] or {}, row["tokens"]
        numbers = (row["money"], row["money_per_solved"], latency.get("p50"), latency.get("p95"))
        spent.append([
            row["checkpoint"], row["task"], row["setting"], f"{row['solved']}/{row['completions']}",
            f"{tokens['input']:,}", f"{tokens['output']:,}",
            *(_number(number) for number in (*numbers, row["tokens_per_second"])),
        ])  # fmt: skip
    return "\n\n".join(["Accuracy, %, mean over questions [95 % interval]", _table(rows),
                        "Costs", _table(spent)]) + "\n"  # fmt: skip


def _accuracy(cell: Row) -> str:
    found = cell["rates"].get("accuracy")
    if found is None:
        return ""
    return f"{100 * found['value']:.1f} [{100 * found['low']:.1f}, {100 * found['high']:.1f}]"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
