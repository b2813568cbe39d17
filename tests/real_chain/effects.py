"""Results of `make real`: the families that RLVR trains on, and the table of effects.

Each effect is a change over held-out questions with its 95 % interval. Beside it stands the share
of truncated answers, below it the same over the questions that both models answered to the end: a
model that only answers earlier changes the first and not the last.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from posttrain.config.recipe_files import RECIPES, read_mapping
from posttrain.config.stages import CHAIN
from posttrain.evaluation.compare import rate_difference
from posttrain.evaluation.intervals import by_question
from posttrain.evaluation.metrics import values_of
from posttrain.evaluation.run import Record, read_run
from posttrain.jsontext import jsonl_rows
from posttrain.runs import atomic_write_text

COMPARED = (("eval", "base", "sft"), ("eval", "sft", "dpo"), ("eval_rlvr", "sft", "rlvr"))
# figure of an evaluation → its name in the table
FIGURES = {"hallucination": "undeclared calls", "accuracy": "right"}
COLUMNS = (
    "from → to",
    "rows",
    "figure",
    "before → after, %",
    "change (95 % interval)",
    "truncated, %",
    "questions",
)
# pass rates of the families that RLVR trains on, before it
LOWEST_RATE = 0.1
HIGHEST_RATE = 0.8
MIDDLE_RATE = 0.45
FAMILIES = 2
SIGNS = str.maketrans("-", "−")
Records = Sequence[Record]


def write_chain(path: Path, families: Sequence[str]) -> None:
    """Write the recipes' chain with the families that RLVR trains on."""
    chain = read_mapping(RECIPES / "real" / CHAIN)
    domains = {family: {"ratio": 1 / len(families)} for family in families}
    for step in chain["stages"]:
        if step["stage"] == "rlvr":
            step["overrides"] = [f"domains={json.dumps(domains)}"]
    atomic_write_text(path, json.dumps(chain, indent=2))


def pass_rates(path: Path) -> dict[str, float]:
    """Share of scored rollouts that pass, by family in the order of the profile's file."""
    passes: defaultdict[str, int] = defaultdict(int)
    scored: defaultdict[str, int] = defaultdict(int)
    for row in jsonl_rows(path.read_text("utf-8")):
        passes[row["source"]] += row["passes"]
        scored[row["source"]] += row["scored"]
    return {family: passes[family] / scored[family] for family in scored if scored[family]}


def chosen_families(rates: Mapping[str, float]) -> list[str]:
    """The first families inside the bounds; what is missing is filled by those nearest to 45 %."""
    inside = [family for family, rate in rates.items() if LOWEST_RATE <= rate <= HIGHEST_RATE]
    outside = [family for family in rates if family not in inside]
    outside.sort(key=lambda family: abs(rates[family] - MIDDLE_RATE))
    return [*inside, *outside][:FAMILIES]


def table(runs: Path) -> Iterator[str]:
    """Lines of the table of effects as Markdown, of the evaluations that are finished."""
    if (runs / "profile").is_dir():
        rates = pass_rates(runs / "profile" / "pass_rates.jsonl")
        families = (f"{family} {100 * rate:.1f} %" for family, rate in rates.items())
        trained = " and ".join(chosen_families(rates))
        yield f"Pass rates of the SFT model: {', '.join(families)}; the rule takes {trained}."
        yield ""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for run, before, after in COMPARED:
        if not (runs / run / "manifest.json").is_file():
            continue
        records = read_run(runs / run)[1]
        if {before, after} <= records.keys():
            yield from changes(records[before], records[after], f"{before} → {after}")


def changes(before: Records, after: Records, title: str) -> Iterator[str]:
    """Lines of the changes by task and figure.

    Graded tasks have accuracy, others the undeclared calls.
    """
    for task in dict.fromkeys(record.prompt.source for record in before):
        sides = [[r for r in side if r.prompt.source == task] for side in (before, after)]
        graded = any(record.score.value is not None for record in sides[0])
        main = "accuracy" if graded else "hallucination"
        head = f"| {title} | {task}"
        yield from change(sides, "called_tool", f"{head} | declared calls")
        yield from change(sides, main, f"{head} | {FIGURES[main]}")
        finished = both_finished(*sides)
        if len(finished[0]) < len(sides[0]):
            yield from change(finished, main, f"{head} | {FIGURES[main]}, where both finished")


def both_finished(before: Records, after: Records) -> list[list[Record]]:
    """Records of both sides for the prompts of which neither side was cut off."""
    truncated: set[str] = set()
    for record in (*before, *after):
        if record.completion.truncated:
            truncated.add(record.prompt.id)
    finished: list[list[Record]] = []
    for side in (before, after):
        finished.append([record for record in side if record.prompt.id not in truncated])
    return finished


def change(sides: Sequence[Records], figure: str, head: str) -> Iterator[str]:
    """Line of a change, if the figure applies to both sides."""
    values = [values_of(side).get(figure) for side in sides]
    if values[0] is None or values[1] is None or not values[0] or not values[1]:
        return
    rates = rate_difference(by_question(values[0]), by_question(values[1]))
    bounds = f"{100 * rates.low:+.1f} … {100 * rates.high:+.1f}"
    interval = f"{100 * rates.difference:+.1f} ({bounds})".translate(SIGNS)
    truncated = " → ".join(f"{100 * truncated_share(side):.1f}" for side in sides)
    sides_text = f"{100 * rates.a:.1f} → {100 * rates.b:.1f}"
    yield f"{head} | {sides_text} | {interval} | {truncated} | {rates.questions} |"


def truncated_share(records: Records) -> float:
    """Share of the answers that a limit cut off."""
    return sum(record.completion.truncated for record in records) / len(records)
