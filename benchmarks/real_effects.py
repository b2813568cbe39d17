"""What `make real` shows: the families that RLVR trains on, and the table of effects.

    python benchmarks/real_effects.py families runs/real     # writes runs/real/chain.yaml
    python benchmarks/real_effects.py table runs/real

Each effect is a change over held-out questions with its 95 % interval. Beside it stands the share
of truncated answers, below it the same over the questions that both models answered to the end: a
model that only answers earlier changes the first and not the last.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

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
    "from → to", "rows", "figure", "before → after, %", "change (95 % interval)", "truncated, %",
    "questions",
)  # fmt: skip
LEAST, MOST, MIDDLE = 0.1, 0.8, 0.45
FAMILIES = 2
SIGNS = str.maketrans("-", "−")
Records = Sequence[Record]


def main() -> None:
    """Print one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["families", "table"])
    parser.add_argument("runs", type=Path)
    given = parser.parse_args()
    if given.what == "families":
        chosen = chosen_families(pass_rates(given.runs / "profile" / "pass_rates.jsonl"))
        write_chain(given.runs / CHAIN, chosen)
        print(f"RLVR trains on {' and '.join(chosen)}")
    else:
        print("\n".join(table(given.runs)))


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
    inside = [family for family, rate in rates.items() if LEAST <= rate <= MOST]
    outside = [family for family in rates if family not in inside]
    outside.sort(key=lambda family: abs(rates[family] - MIDDLE))
    return [*inside, *outside][:FAMILIES]


def table(runs: Path) -> Iterator[str]:
    """The effects as Markdown, of the evaluations that are finished."""
    rates = {}
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
    """A line a task and figure: of graded tasks accuracy, of others the undeclared calls."""
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
    """The records of the prompts of which neither side was cut off."""
    cut = {r.prompt.id for side in (before, after) for r in side if r.completion.truncated}
    return [[r for r in side if r.prompt.id not in cut] for side in (before, after)]


def change(sides: Sequence[Records], figure: str, head: str) -> Iterator[str]:
    """One line, where the figure applies to both sides."""
    values = [values_of(side).get(figure) for side in sides]
    if values[0] is None or values[1] is None or not values[0] or not values[1]:
        return
    d = rate_difference(by_question(values[0]), by_question(values[1]))
    a, b, difference, low, high = (100 * x for x in (d.a, d.b, d.difference, d.low, d.high))
    interval = f"{difference:+.1f} ({low:+.1f} … {high:+.1f})".translate(SIGNS)
    cut = " → ".join(f"{100 * share(side):.1f}" for side in sides)
    yield f"{head} | {a:.1f} → {b:.1f} | {interval} | {cut} | {d.questions} |"


def share(records: Records) -> float:
    """Of the answers, those that a limit cut off."""
    return sum(record.completion.truncated for record in records) / len(records)


if __name__ == "__main__":
    main()
