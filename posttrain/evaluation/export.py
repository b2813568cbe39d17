"""Exports of a run's figures for other tools: `scores.csv`, `table.md` for a paper, `results.yml`.

`results.yml` is laid out as NeMo Evaluator's (packages/nemo-evaluator, api_dataclasses), whose
classes read it, with the row of all tasks as its group. A standard error there is the 95 %
interval's width over 2 × 1.96: the interval itself is not symmetric. Every file counts the samples
that our side failed to score, which are in no figure.
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
from posttrain.sampling.alerts import alert_texts

EXPORT = "export"
Row = Mapping[str, Any]
_CELL = ("task", "setting", "thinking")
_SPREAD = ("sd", "floor", "debiased", "p", "consistency", "consistency_within")
_ESTIMATE = ("value", "low", "high", "questions", "samples")
UNSCORED = "unscored"


def write_exports(folder: Path, metrics: Row, manifest: Manifest) -> None:
    """Write all exports of a run's `metrics.json`."""
    cells = metrics["cells"]
    sensitivity = metrics.get("sensitivity", [])
    scores = io.StringIO()
    writer = csv.writer(scores, lineterminator="\n")
    writer.writerow(("checkpoint", *_CELL, "figure", *_ESTIMATE, UNSCORED))
    for figures, rows in ((_figures, cells), (_sensitivity, sensitivity)):
        for row in rows:
            for name, estimate in figures(row):
                values = [estimate.get(key) for key in _ESTIMATE]
                key = (row["checkpoint"], *_cell_key(row))
                writer.writerow((*key, name, *values, unscored_of(row)))
    atomic_write_text(folder / "scores.csv", scores.getvalue())
    alerts = "".join(f"{text}\n\n" for text in alert_texts(metrics.get("alerts", [])))
    atomic_write_text(folder / "table.md", alerts + markdown_tables(cells, sensitivity))
    for checkpoint in dict.fromkeys(cell["checkpoint"] for cell in cells):
        checkpoint_cells = [cell for cell in cells if cell["checkpoint"] == checkpoint]
        text = yaml.safe_dump(results_of(checkpoint_cells, manifest), sort_keys=False)
        atomic_write_text(folder / checkpoint / "results.yml", text)


def unscored_of(row: Row) -> int:
    """Samples of a row that the backend, a grader or a judge failed on."""
    if "templates" in row:  # a row of prompt sensitivity counts by template
        return sum(row["unscored"].values())
    return row["failed"] + row["unscored"]


def _cell_key(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in _CELL)


def _figures(cell: Row) -> Iterator[tuple[str, Row]]:
    """Yield name and estimate of all figures of a cell."""
    yield from cell["rates"].items()
    for k, estimate in cell["pass"].items():
        yield f"pass@{k}", estimate
    for name, length in cell["lengths"].items():
        yield name, length["mean"]


def _sensitivity(row: Row) -> Iterator[tuple[str, Row]]:
    """Yield name and estimate of the accuracy in each template, then of measures of its spread."""
    for template in row["templates"]:
        name = f"accuracy in template {template['template']}"
        yield name, {**template, "value": template["mean"]}
    if not row["templates"]:
        return
    for name in _SPREAD:
        estimate = {"value": row[name], "questions": row["questions"]}
        if name == "debiased":
            estimate |= {"low": row["low"], "high": row["high"]}
        yield f"sensitivity {name}", estimate


def results_of(cells: Sequence[Row], manifest: Manifest) -> dict[str, Any]:
    """Figures of one checkpoint in the layout of NVIDIA's `results.yml`."""
    results: dict[str, dict[str, Any]] = {"tasks": {}, "groups": {}}
    for cell in cells:
        level = "groups" if cell["task"] == ALL else "tasks"
        metrics = results[level].setdefault(cell["task"], {"metrics": {}})["metrics"]
        score_name = f"{cell['setting']}_{cell['thinking']}"
        for name, estimate in _figures(cell):
            scores = metrics.setdefault(name, {"scores": {}})["scores"]
            stats: dict[str, Any] = {"count": estimate["samples"]}
            if estimate["low"] is not None:
                stats["stderr"] = (estimate["high"] - estimate["low"]) / (2 * Z95)
            scores[score_name] = {"value": estimate["value"], "stats": stats}
        shares = metrics.setdefault(UNSCORED, {"scores": {}})["scores"]
        shares[score_name] = {
            "value": unscored_of(cell) / cell["samples"],
            "stats": {"count": cell["samples"]},
        }
    config = manifest.config
    checkpoint = cells[0]["checkpoint"]
    block = config["checkpoints"].get(checkpoint)
    checkpoint_sampling = block.get("sampling", {}) if isinstance(block, dict) else {}
    sampling = {**config["sampling"], **checkpoint_sampling}
    params: dict[str, Any] = {
        "temperature": sampling["temperature"],
        "top_p": sampling["top_p"],
        "max_new_tokens": config["sampling"]["max_tokens"],
    }
    if "limit" in config:
        params["limit_samples"] = config["limit"]
    params["extra"] = {
        "num_repeats": config["n"],
        "settings": config["settings"],
        "seed": config["seed"],
        "manifest": manifest.digest,
    }
    return {
        "config": {"type": manifest.kind, "params": params},
        "target": {"api_endpoint": {"model_id": checkpoint}},
        "results": results,
    }


def markdown_tables(cells: Sequence[Row], sensitivity: Sequence[Row]) -> str:
    """Markdown tables of accuracies in per cent and of prompt sensitivity in points.

    A table without rows is left out.
    """
    tables: list[str] = []
    if cells:
        table = _markdown_table(_accuracy_rows(cells))
        tables.append(f"Accuracy, %, mean over questions [95 % interval]\n\n{table}")
    if sensitivity:
        table = _markdown_table(_sensitivity_rows(sensitivity))
        tables.append(f"Prompt sensitivity, points [95 % interval]\n\n{table}")
    return "\n\n".join(tables) + "\n"


def _accuracy_rows(cells: Sequence[Row]) -> list[list[str]]:
    """Head, then a row for each task, setting and mode, with a column for each checkpoint."""
    checkpoints = list(dict.fromkeys(cell["checkpoint"] for cell in cells))
    rows = [["task", "setting", "reasoning", "questions", "k", *checkpoints]]
    for key in dict.fromkeys(map(_cell_key, cells)):
        by_checkpoint = {cell["checkpoint"]: cell for cell in cells if _cell_key(cell) == key}
        any_cell = next(iter(by_checkpoint.values()))
        row = [*key, str(any_cell["questions"]), str(any_cell["k"])]
        for checkpoint in checkpoints:
            cell = by_checkpoint.get(checkpoint)
            row.append("" if cell is None else _accuracy(cell))
        rows.append(row)
    return rows


def _sensitivity_rows(sensitivity: Sequence[Row]) -> list[list[str]]:
    """Head, then a row for each row of `sensitivity_rows`."""
    head = ["checkpoint", "task", "setting", "reasoning", "questions", "templates", "sd"]
    rows = [[*head, "noise floor", "debiased", "p of 0", "consistency"]]
    for row in sensitivity:
        spread: dict[str, Row] = {}
        for name, estimate in _sensitivity(row):
            spread[name.removeprefix("sensitivity ")] = estimate
        rows.append(
            [
                row["checkpoint"],
                *_cell_key(row),
                str(row["questions"]),
                str(len(row["templates"])),
                _points(spread.get("sd"), digits=2),
                _points(spread.get("floor"), digits=2),
                _points(spread.get("debiased"), digits=2),
                "" if row.get("p") is None else f"{row['p']:.4g}",
                _points(spread.get("consistency")),
            ]
        )
    return rows


def _accuracy(cell: Row) -> str:
    accuracy = _points(cell["rates"].get("accuracy"))
    unscored = unscored_of(cell)
    if not unscored:
        return accuracy
    return f"{accuracy}; {unscored:,} of {cell['samples']:,} unscored"


def _points(estimate: Row | None, *, digits: int = 1) -> str:
    """Format an estimate in per cent, with its interval if it has one."""
    if estimate is None or estimate["value"] is None:
        return ""
    bounds: list[str] = []
    for key in ("low", "high"):
        if estimate.get(key) is not None:
            bounds.append(f"{100 * estimate[key]:.{digits}f}")
    value = f"{100 * estimate['value']:.{digits}f}"
    return f"{value} [{', '.join(bounds)}]" if bounds else value


def _markdown_table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
