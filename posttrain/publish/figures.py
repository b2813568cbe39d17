"""Figures of an evaluation for a model card: front matter and a table, of this very checkpoint.

    model_figures(Path("runs/tiny/eval"), digest)
    → Figures(results=[EvalResult(metric_type="accuracy", metric_value=0.645, …), …],
              lines=["| maths | no_tools | on | 400 | 64.5 % (59.7 to 69.0) | …", …])

An evaluation names the weights that it sampled by their digest; figures of any other are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import DataError
from posttrain.runs import read_artifact

METRICS = "metrics.json"
# those of `posttrain.evaluation.metrics.RATES` that say most of a model, and their headings
_SHOWN = {"accuracy": "accuracy", "hallucination": "undeclared calls", "truncated": "truncated"}
_SAMPLING = ("temperature", "top_p", "top_k", "max_tokens")


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one evaluation: entries of `model-index` (`EvalResult`), and lines of Markdown."""

    results: Sequence[Any]
    lines: Sequence[str]


def model_figures(evaluation: Path, digest: str) -> Figures:
    """The figures of the checkpoint with this digest.

    Raises:
        DataError: no finished evaluation, or it did not sample this checkpoint.
    """
    from huggingface_hub import EvalResult

    manifest = read_artifact(evaluation, kind="evaluation")
    weights: Mapping[str, Mapping[str, Any]] = manifest.stats["weights"]
    name = next((n for n, identity in weights.items() if identity["weights"] == digest), None)
    if name is None:
        known = ", ".join(f"{n} {str(i['weights'])[:12]}" for n, i in weights.items())
        raise DataError(
            f"{evaluation} did not evaluate checkpoint {digest[:12]}; it has figures of {known}"
        )
    metrics = json.loads((evaluation / METRICS).read_text("utf-8"))
    cells = [cell for cell in metrics["cells"] if cell["checkpoint"] == name]
    hubs = {row["name"]: row.get("hub") for row in manifest.config.get("prompts", ())}
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=hubs.get(cell["task"]) or cell["task"],
            dataset_name=cell["task"],
            # entries of one data set and config would be put together
            dataset_config=f"{cell['setting']}, thinking {cell['thinking']}",
            dataset_args={"questions": rate["questions"], "samples": rate["samples"]},
            metric_type="accuracy",
            metric_name=f"accuracy, 95 % interval {_interval(rate)}",
            metric_value=round(rate["value"], 4),
        )
        for cell in cells
        if (rate := cell["rates"].get("accuracy")) is not None
    ]
    sampling = manifest.config["sampling"]
    settings = ", ".join(f"{key} {sampling[key]}" for key in _SAMPLING if key in sampling)
    head = ("task", "setting", "thinking", "questions", "unscored", *_SHOWN.values())
    lines = [
        f"Evaluation `{manifest.digest}` of checkpoint `{digest}`, {settings}, seed "
        f"{manifest.seed}; in parentheses 95 % intervals over questions.",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *[_row(cell) for cell in cells],
    ]
    return Figures(results, lines)


def _row(cell: Mapping[str, Any]) -> str:
    rates = cell["rates"]
    lost = cell["failed"] + cell["unscored"]
    shown = [
        f"{rates[name]['value']:.1%} ({_interval(rates[name])})" if name in rates else "–"
        for name in _SHOWN
    ]
    named = [cell["task"], cell["setting"], cell["thinking"], f"{cell['questions']:,}", f"{lost:,}"]
    return f"| {' | '.join([*named, *shown])} |"


def _interval(rate: Mapping[str, Any]) -> str:
    return f"{rate['low']:.1%} to {rate['high']:.1%}"
