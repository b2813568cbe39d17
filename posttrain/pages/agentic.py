"""Agentic runs in a report: leaderboard, families, failure modes, predictions, failing steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from posttrain.evaluation.run import Record
from posttrain.report import section as ui


def figures(
    results: ui.Row, expect: Mapping[str, tuple[float, float]], costs: Sequence[ui.Row]
) -> Iterator[ui.Section]:
    """Sections of agentic runs.

    Args:
        results: the result of `agentic_figures`.
        expect: predictions of the recipe.
        costs: the result of `cost_rows`.
    """
    yield leaderboard(results, costs)
    yield families(results["models"])
    yield failure_modes(results["models"])
    if expect:
        # imported here: a report needs no numpy
        from posttrain.evaluation.agentic import scored_expectations

        yield predictions([*scored_expectations(results, expect)])


@ui.section("Agentic leaderboard")
def leaderboard(results: ui.Row, costs: Sequence[ui.Row]) -> Iterator[ui.Block]:
    cost_of = {row["checkpoint"]: row for row in costs if row["task"] == "all"}
    rows: list[list[object]] = []
    for rank, model in enumerate(results["models"], 1):
        name = model["checkpoint"]
        over_all_families = model["families"][-1]
        rows.append([str(rank), name, *_solved(over_all_families), *spent(cost_of.get(name))])
    head = ["", "model", "solved", "share", "95 %", "calls a run"]
    yield ui.Table([*head, "money", "per solved run", "seconds a model call, p50", "p95"], rows)
    yield from map(in_words, results["pairs"])
    yield (
        "Intervals are over tasks, whose runs are alike, and have a width at 0 and 1 too. p is of "
        "the paired difference over tasks, not corrected for many models. Money per solved run "
        "includes the runs that fail."
    )


def in_words(pair: ui.Row) -> str:
    """Put a paired difference of two models into sentences."""
    name_a, name_b = pair["names"]
    shares = f"{ui.percent(pair['a'])} of the runs of {name_a}, {ui.percent(pair['b'])} of {name_b}"
    change = f"{shares}, are solved: p = {pair['p']:.2g} over {pair['questions']:,} tasks."
    if pair["p"] < 0.05:
        return f"{change} A difference as large would be rare between equal models."
    return f"{change} Equal models would often differ as much: this does not rank the two."


@ui.section("Agentic families")
def families(models: Sequence[ui.Row]) -> Iterator[ui.Block]:
    for model in models:
        rows = [[row["family"], row["tasks"], *_solved(row)] for row in model["families"]]
        yield (ui.Styled(model["checkpoint"], "bold"),)
        head = ["family", "tasks", "solved", "share", "95 %", "calls a run"]
        yield ui.Table(head, rows, total=True)


def _solved(row: ui.Row) -> list[object]:
    """Cells of the solved runs: count, share, interval, calls a run."""
    span = None
    if row["share"] is not None:
        span = f"{ui.percent(row['low'])} – {ui.percent(row['high'])}"
    unscored = f"{row['unscored']} not scored" if row["unscored"] else ""
    solved = ui.TableCell(f"{row['solved']}/{row['runs']}", below=unscored)
    return [solved, ui.percent(row["share"]), span, f"{row['calls_per_run']:.1f}"]


def spent(row: ui.Row | None) -> list[object]:
    """Cells of a row of costs: money, money a solved run, seconds of a model call."""
    if row is None:
        return [None] * 4
    money = [row["money"], row["money_per_solved"]]
    seconds = [row["latency"] and row["latency"][name] for name in ("p50", "p95")]
    return [value if value is None else f"{value:.3g}" for value in money + seconds]


@ui.section("How agentic runs fail")
def failure_modes(models: Sequence[ui.Row]) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for model in models:
        for mode in model["failures"]:
            if mode["runs"]:
                name = mode["mode"].replace("_", " ")
                rows.append([name, model["checkpoint"], mode["decides"], mode["runs"]])
    yield ui.Table(["failure mode", "model", "decides", "holds of"], rows)
    yield (
        "Several modes may hold of one run. One that is not solved is decided by the first of: "
        "infrastructure error, tool call hallucinated, tool call redundancy, gave up mid plan, "
        "wrong answer."
    )


@ui.section("Predictions")
def predictions(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    table: list[list[object]] = []
    for row in rows:
        low, high = (ui.percent(bound) for bound in row["expected"])
        verdict = "met" if row["met"] else "missed"
        if not row["met"] and not row["contradicted"]:
            verdict = "missed, but so few runs do not contradict it"
        share = f"{row['solved']}/{row['runs']}"
        table.append([row["checkpoint"], row["family"], f"{low} – {high}", share, verdict])
    yield ui.Table(["model", "family", "predicted", "solved", "verdict"], table)
    met = sum(row["met"] for row in rows)
    yield f"{met} of {len(rows)} predictions of the recipe are met."


def failing_step(record: Record) -> tuple[int, str] | None:
    """Step at which an agentic run failed, and its failure modes in words.

    None for a solved run and for any other completion.
    """
    from posttrain.evaluation.agentic import failures, family_of
    from posttrain.evaluation.metrics import correct

    if family_of(record.prompt) is None or correct(record):
        return None
    run_failures = failures(record.prompt, record.completion, record.score)
    modes = [failure.mode.replace("_", " ") for failure in run_failures]
    return run_failures[0].step, ", ".join(modes)
