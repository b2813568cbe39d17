"""The figures of a run for other tools: `scores.csv`, `table.md` for a paper, `results.yml`.

`results.yml` is laid out as NeMo Evaluator's (packages/nemo-evaluator, api_dataclasses), whose
classes read it, with the row of all tasks as its group. A standard error there is the 95 %
interval's width over 2 × 1.96: the interval itself is not symmetric. Every file says how many
samples our side failed to score, which no figure holds.
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
from posttrain.sampling.alerts import alert_text

EXPORT = "export"
Row = Mapping[str, Any]
_PLACE = ("task", "setting", "thinking")
_SPREAD = ("sd", "floor", "debiased", "p", "consistency", "consistency_within")
_ESTIMATE = ("value", "low", "high", "questions", "samples")
UNSCORED = "unscored"


def write_exports(folder: Path, metrics: Row, manifest: Manifest) -> None:
    """Write every export of a run's `metrics.json`."""
    cells, sensitive = metrics["cells"], metrics.get("sensitivity", [])
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(("checkpoint", *_PLACE, "figure", *_ESTIMATE, UNSCORED))
    for figures, rows in ((_figures, cells), (_sensitivity, sensitive)):
        for row in rows:
            place = (row["checkpoint"], *_place(row))
            for name, found in figures(row):
                estimate = [found.get(key) for key in _ESTIMATE]
                writer.writerow((*place, name, *estimate, unscored_of(row)))
    atomic_write_text(folder / "scores.csv", lines.getvalue())
    first = "".join(f"{alert_text(row)}\n\n" for row in metrics.get("alerts", []))
    atomic_write_text(folder / "table.md", first + markdown_tables(cells, sensitive))
    for checkpoint in dict.fromkeys(cell["checkpoint"] for cell in cells):
        own = [cell for cell in cells if cell["checkpoint"] == checkpoint]
        text = yaml.safe_dump(results_of(own, manifest), sort_keys=False)
        atomic_write_text(folder / checkpoint / "results.yml", text)


def unscored_of(row: Row) -> int:
    """Samples of a row that the backend, a grader or a judge failed on."""
    if "templates" in row:  # of prompt sensitivity: by template
        return sum(row["unscored"].values())
    return row["failed"] + row["unscored"]


def _place(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in _PLACE)


def _figures(cell: Row) -> Iterator[tuple[str, Row]]:
    """Every estimate of a cell, by its name."""
    yield from cell["rates"].items()
    yield from ((f"pass@{k}", found) for k, found in cell["pass"].items())
    yield from ((name, found["mean"]) for name, found in cell["lengths"].items())


def _sensitivity(row: Row) -> Iterator[tuple[str, Row]]:
    """The accuracy in each template, and what their spread is."""
    for one in row["templates"]:
        yield f"accuracy in template {one['template']}", {**one, "value": one["mean"]}
    for name in _SPREAD if row["templates"] else ():
        bounds = {key: row[key] for key in ("low", "high")} if name == "debiased" else {}
        yield f"sensitivity {name}", {"value": row[name], "questions": row["questions"], **bounds}


def results_of(cells: Sequence[Row], manifest: Manifest) -> dict[str, Any]:
    """One checkpoint's figures in the layout of NVIDIA's `results.yml`."""
    results: dict[str, dict[str, Any]] = {"tasks": {}, "groups": {}}
    for cell in cells:
        kind = "groups" if cell["task"] == ALL else "tasks"
        metrics = results[kind].setdefault(cell["task"], {"metrics": {}})["metrics"]
        for name, found in _figures(cell):
            scores = metrics.setdefault(name, {"scores": {}})["scores"]
            error = (found["high"] - found["low"]) / (2 * Z95)
            scores[f"{cell['setting']}_{cell['thinking']}"] = {
                "value": found["value"],
                "stats": {"count": found["samples"], "stderr": error},
            }
        shares = metrics.setdefault(UNSCORED, {"scores": {}})["scores"]
        shares[f"{cell['setting']}_{cell['thinking']}"] = {
            "value": unscored_of(cell) / cell["samples"],
            "stats": {"count": cell["samples"]},
        }
    stated = manifest.config
    block = stated["checkpoints"].get(cells[0]["checkpoint"])
    own = block.get("sampling", {}) if isinstance(block, dict) else {}
    sampled = {**stated["sampling"], **own}
    params = {name: sampled[name] for name in ("temperature", "top_p")}
    params |= {"max_new_tokens": stated["sampling"]["max_tokens"]}
    params |= {"limit_samples": stated["limit"]} if "limit" in stated else {}
    params["extra"] = {
        "num_repeats": stated["n"],
        "settings": stated["settings"],
        "seed": stated["seed"],
        "manifest": manifest.digest,
    }
    return {
        "config": {"type": manifest.kind, "params": params},
        "target": {"api_endpoint": {"model_id": cells[0]["checkpoint"]}},
        "results": results,
    }


def markdown_tables(cells: Sequence[Row], sensitive: Sequence[Row]) -> str:
    """Accuracies in per cent, and prompt sensitivity in points."""
    names = list(dict.fromkeys(cell["checkpoint"] for cell in cells))
    head = ["task", "setting", "reasoning", "questions"]
    rows = [[*head, "k", *names]]
    for place in dict.fromkeys(map(_place, cells)):
        own = {cell["checkpoint"]: cell for cell in cells if _place(cell) == place}
        first = next(iter(own.values()))
        shown = [_accuracy(own[n]) if n in own else "" for n in names]
        rows.append([*place, str(first["questions"]), str(first["k"]), *shown])
    varied = [["checkpoint", *head, "templates", "sd", "noise floor", "debiased", "p of 0",
               "consistency"]]  # fmt: skip
    for row in sensitive:
        found = {name.partition(" ")[2]: one for name, one in _sensitivity(row)}
        p = "" if row.get("p") is None else f"{row['p']:.4g}"
        varied.append([
            row["checkpoint"], *_place(row), str(row["questions"]), str(len(row["templates"])),
            *(_points(found.get(name), digits=2) for name in ("sd", "floor", "debiased")),
            p, _points(found.get("consistency")),
        ])  # fmt: skip
    parts = {
        "Accuracy, %, mean over questions [95 % interval]": rows,
        "Prompt sensitivity, points [95 % interval]": varied,
    }
    return "\n\n".join(f"{name}\n\n{_table(own)}" for name, own in parts.items() if own[1:]) + "\n"


def _accuracy(cell: Row) -> str:
    shown, unscored = _points(cell["rates"].get("accuracy")), unscored_of(cell)
    return f"{shown}; {unscored:,} of {cell['samples']:,} unscored" if unscored else shown


def _points(found: Row | None, *, digits: int = 1) -> str:
    """An estimate in per cent, with its interval where it has one."""
    if found is None or found["value"] is None:
        return ""
    numbers = (found[key] for key in _ESTIMATE[:3] if found.get(key) is not None)
    value, *bounds = (f"{100 * number:.{digits}f}" for number in numbers)
    return f"{value} [{', '.join(bounds)}]" if bounds else value


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
