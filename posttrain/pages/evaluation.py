"""An evaluation: the paper's Table 7 for this run, all figures, completions to read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from posttrain.chat.detect import FoundCall, searched
from posttrain.evaluation.run import record_from_row
from posttrain.lineage import Node, listed_path
from posttrain.pages import agentic, effects
from posttrain.pages.artifact import samples_to_read
from posttrain.report import section as ui
from posttrain.rollouts import Step

if TYPE_CHECKING:
    from posttrain.evaluation.compare import GateRow

METRICS, COSTS = "metrics.json", "costs.json"
_HEADLINE = {"accuracy": "correct", "hallucination": "undeclared calls", "truncated": "truncated"}


def sections(node: Node) -> ui.Sections:
    metrics = read_metrics(node)
    yield effects.alerts(effects.alerts_of(node))
    arms = effects.arms_of(node)
    newest = next(iter(arms.after), arms.before)
    yield from figures(metrics, effects.figures_of(arms.methods[newest])[0])
    # no file of the manifest: prices may change after a run
    path = node.path / COSTS
    spent = json.loads(path.read_text("utf-8")) if path.is_file() else []
    if (found := metrics.get("agentic")) is not None:
        yield from agentic.figures(found, node.artifact.config.get("expect", {}), spent)
    if spent:
        yield costs(spent)
    few, every = "examples.jsonl", "records/"
    yield samples_to_read(node, "Completions to read", _example, few=few, every=every)


def figures(metrics: ui.Row, first: str = "accuracy") -> Iterator[ui.Section]:
    """The sections that need no rows: those that an evaluation prints at its end too; `first` is
    the figure to begin with."""
    yield from comparison(metrics["cells"], metrics["pairs"], first)
    if sensitive := [row for row in metrics.get("sensitivity", []) if row["templates"]]:
        yield prompt_sensitivity(sensitive)
    if varied := metrics.get("variants"):
        yield variants(varied)
    if recovered := metrics.get("recovery"):
        yield recovery(recovered)


@ui.section("Recovery of the teachers' lead")
def recovery(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    """Accuracy of a distilled student before and after, of its teachers, and what it recovered."""
    head = ["task", "setting", "reasoning", "teacher", "questions"]
    head += ["before", "after", "of the teacher", "recovered"]
    table: list[list[object]] = []
    for row in rows:
        names = [row["task"], row["setting"], row["thinking"], row["teacher"], row["questions"]]
        shares = [ui.percent(row[name]) for name in ("before", "after", "teacher_mean")]
        result = row["recovery"]
        recovered = "the teacher's lead is not resolved"
        if result is not None:
            low, high = ui.percent(result["low"]), ui.percent(result["high"])
            recovered = f"{ui.percent(result['value'])} [{low}, {high}]"
        table.append([*names, *shares, recovered])
    yield ui.Table(head, table)
    yield (
        "(after − before) / (teacher − before) over the same questions, with Fieller's 95 % "
        "interval."
    )


@ui.section("Originals and variants")
def variants(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    """Accuracy on questions and on variants of them, over the same questions."""
    head = ["checkpoint", "setting", "reasoning", "questions", "original", "variants", "drop"]
    table: list[list[object]] = []
    for row in rows:
        drop = row["drop"]
        points = f"{100 * drop['value']:+.1f} [{100 * drop['low']:+.1f}, {100 * drop['high']:+.1f}]"
        shares = [ui.percent(row["original"]), ui.percent(row["variant"])]
        names = [row["checkpoint"], row["setting"], row["thinking"], row["questions"]]
        table.append([*names, *shares, points])
    yield ui.Table(head, table)
    yield "The drop is in points, paired by question, with its 95 % interval."


def comparison(
    cells: Sequence[ui.Row], pairs: Sequence[ui.Row], first: str = "accuracy"
) -> Iterator[ui.Section]:
    """Of checkpoints of one run, or of several that were brought together; what is over all tasks
    comes first."""
    cells = sorted(cells, key=lambda cell: cell["task"] != "all")
    pairs = sorted(pairs, key=lambda pair: pair["task"] != "all")
    yield before_and_after(cells, pairs, first)
    yield every_figure(cells)
    yield lengths(cells)
    if pairs:
        yield differences(pairs)


def read_metrics(node: Node) -> ui.Row:
    """The figures of an evaluation, which its manifest lists."""
    path = listed_path(node, METRICS)
    assert path is not None
    return json.loads(path.read_text("utf-8"))


def between(rate: ui.Row) -> str:
    return f"{ui.percent(rate['low'])} – {ui.percent(rate['high'])}"


@ui.section("Before and after")
def before_and_after(
    cells: Sequence[ui.Row], pairs: Sequence[ui.Row], first: str
) -> Iterator[ui.Block]:
    names = list(dict.fromkeys(cell["checkpoint"] for cell in cells))
    rates = sorted(_COMPARED, key=lambda rate: rate != first)
    for rate in rates:
        yield from pictures(cells, names, rate)
    table = _pair_table if len(names) == 2 else _wide_table
    yield table(cells, pairs, names, rates)
    yield (
        "Intervals are 95 %, over questions; of a change in points, over the questions that both "
        "answered, with the p of Student's t over them. Undeclared calls: completions with a tool "
        "call where no tool is declared."
    )


def pictures(cells: Sequence[ui.Row], names: Sequence[str], rate: str) -> Iterator[ui.Block]:
    """A chart a setting and mode: each task's share, checkpoint by checkpoint, all tasks on top."""
    for setting, thinking in dict.fromkeys((c["setting"], c["thinking"]) for c in cells):
        own = [c for c in cells if (c["setting"], c["thinking"]) == (setting, thinking)]
        rows: list[ui.Interval] = []
        for task in dict.fromkeys(cell["task"] for cell in own):
            for cell in own:
                found = cell["rates"].get(rate) if cell["task"] == task else None
                if found is not None:
                    bounds = (found["low"], found["value"], found["high"])
                    style = _STYLES[names.index(cell["checkpoint"]) % len(_STYLES)]
                    rows.append(ui.Interval(task, *bounds, style))
        # a figure that is 0 of every task draws nothing
        if any(row.share for row in rows):
            keys = dict(zip(_STYLES, names, strict=False)) if len(names) > 1 else {}
            title = f"{_COMPARED[rate].capitalize()}: {setting}, reasoning {thinking}."
            yield ui.IntervalChart(rows, "completions, %, with 95 % intervals", title, keys)


_COMPARED = {"accuracy": "correct", "hallucination": "undeclared calls"}
_STYLES = "bade"  # the first checkpoint is muted


def _pair_table(
    cells: Sequence[ui.Row], pairs: Sequence[ui.Row], names: Sequence[str], rates: Sequence[str]
) -> ui.Table:
    """Two checkpoints: before → after in one cell, so that a telephone shows it."""
    rows: list[list[object]] = []
    for cell in [c for c in cells if c["checkpoint"] == names[0]]:
        where = place(cell)
        after = _find(cells, "checkpoint", names[1], where)
        pair = _find(pairs, "b", names[1], where)
        row: list[object] = [_where(cell)]
        for rate in rates:
            row.append(_before_after(cell, after, pair, rate))
        rows.append([*row, cell["samples"]])
    span = f"{names[0]} → {names[1]}"
    titles = [f"{_COMPARED[rate]}, {span}" for rate in rates]
    return ui.Table(["task", *titles, "samples"], rows)


def _where(row: ui.Row) -> ui.TableCell:
    return ui.TableCell(row["task"], below=f"{row['setting']}, reasoning {row['thinking']}")


def _before_after(before: ui.Row, after: ui.Row, pair: ui.Row, name: str) -> ui.TableCell | None:
    """Shares of two cells, their change, and what our side failed to score where there is any."""
    rates = [cell["rates"].get(name) for cell in (before, after)]
    lost = [_lost(cell) for cell in (before, after)]
    if not any(rates) and (not any(lost) or name != "accuracy"):
        return None
    shown = ["–" if rate is None else f"{100 * rate['value']:.1f}" for rate in rates]
    below: list[str] = []
    if (change := pair["rates"].get(name)) is not None:
        bounds = (100 * change[key] for key in ("difference", "low", "high"))
        below += [effects.interval(*bounds), _p(change)]
    if any(lost):
        below.append(" → ".join(text or "0" for text in lost))
    return ui.TableCell(f"{' → '.join(shown)} %", below=", ".join(below))


def _wide_table(
    cells: Sequence[ui.Row], pairs: Sequence[ui.Row], names: Sequence[str], rates: Sequence[str]
) -> ui.Table:
    """A column a checkpoint, with its change from the first one."""
    rows: list[list[object]] = []
    for cell in [c for c in cells if c["checkpoint"] == names[0]]:
        where = place(cell)
        row: list[object] = [_where(cell)]
        for rate in rates:
            row.append(_rate_and_lost(cell, rate))
            for name in names[1:]:
                row.append(_rate_and_lost(_find(cells, "checkpoint", name, where), rate))
                row.append(_change(_find(pairs, "b", name, where), rate))
        rows.append([*row, cell["samples"]])
    head = ["task"]
    for rate in rates:
        head.append(f"{_COMPARED[rate]}, {names[0]}")
        for name in names[1:]:
            head += [name, "change, p"]
    return ui.Table([*head, "samples"], rows)


def _style(row: ui.Row, names: Sequence[str]) -> str:
    return "b" if row["checkpoint"] == names[0] and len(names) > 1 else "a"


def place(row: ui.Row) -> list[str]:
    return [row[key] for key in ("task", "setting", "thinking")]


def _find(rows: Sequence[ui.Row], key: str, name: str, where: Sequence[str]) -> ui.Row:
    found = (r for r in rows if r[key] == name and place(r) == where)
    return next(found, {"rates": {}, "lengths": {}})


def _rate(cell: ui.Row, name: str) -> ui.TableCell | None:
    rate = cell["rates"].get(name)
    return None if rate is None else ui.TableCell(ui.percent(rate["value"], 2), below=between(rate))


def _rate_and_lost(cell: ui.Row, name: str) -> ui.TableCell | None:
    """A rate, its interval, and what our side failed to score where there is any."""
    rate, lost = cell["rates"].get(name), _lost(cell)
    if rate is None:
        return None if lost is None else ui.TableCell("–", below=lost)
    below = between(rate) if lost is None else f"{between(rate)}; {lost}"
    return ui.TableCell(ui.percent(rate["value"], 2), below=below)


def _change(pair: ui.Row, name: str) -> ui.TableCell | None:
    found = pair["rates"].get(name)
    if found is None:
        return None
    return ui.TableCell(ui.signed(100 * found["difference"], 2), below=_p(found))


def _p(change: ui.Row) -> str:
    return f"p {change['p']:.3f}" if change["p"] >= 0.001 else f"p {change['p']:.0e}"


@ui.section("Every figure")
def every_figure(cells: Sequence[ui.Row]) -> Iterator[ui.Block]:
    for name in dict.fromkeys(cell["checkpoint"] for cell in cells):
        own = [cell for cell in cells if cell["checkpoint"] == name]
        rates = list(dict.fromkeys(rate for cell in own for rate in cell["rates"]))
        rates = [rate for rate in rates if rate not in ("accuracy", "hallucination")]
        rows = [
            [_where(cell), *(_rate(cell, rate) for rate in rates), _passes(cell), _lost(cell)]
            for cell in own
        ]
        head = ["task", *(rate.replace("_", " ") for rate in rates)]
        head += ["pass@k", "without a figure"]
        yield (ui.Styled(name, "bold"),)
        yield ui.Table(head, rows)
    yield "Adherence: with reasoning on, a closed and filled think block a step; off, no think tag."


def _passes(cell: ui.Row) -> str | None:
    found = [f"@{k} {ui.percent(rate['value'])}" for k, rate in cell["pass"].items() if k != "1"]
    return ", ".join(found) or None


def _lost(cell: ui.Row) -> str | None:
    found = [f"{name} {cell[name]:,}" for name in ("failed", "unscored") if cell.get(name)]
    return ", ".join(found) or None


@ui.section("Lengths")
def lengths(cells: Sequence[ui.Row]) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for cell in cells:
        for name, found in cell["lengths"].items():
            levels = [ui.estimate(found[s]) for s in ("mean", "median", "p90")]
            rows.append([cell["checkpoint"], *place(cell), name.replace("_", " "), *levels])
    head = ["checkpoint", "task", "setting", "reasoning", "length", "mean", "median", "90 %"]
    yield ui.Table(head, rows)
    yield "Tokens of a completion, all its steps; bootstrap intervals over questions."


@ui.section("Differences")
def differences(pairs: Sequence[ui.Row]) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for pair in pairs:
        for name, found in {**pair["rates"], **pair["lengths"]}.items():
            scale = 100 if name in pair["rates"] else 1
            low, high = (ui.signed(scale * found[key], 2) for key in ("low", "high"))
            sides = [f"{scale * found[side]:.2f}" for side in ("a", "b")]
            change = [ui.signed(scale * found["difference"], 2), f"{low} … {high}"]
            figure = _HEADLINE.get(name, name.replace("_", " "))
            row = [f"{pair['a']} → {pair['b']}", *place(pair), figure, *sides, *change]
            lost = pair.get("unscored", {"a": 0, "b": 0})  # runs of before have none
            unscored = f"{lost['a']:,} → {lost['b']:,}" if any(lost.values()) else None
            rows.append([*row, f"{found['p']:.3g}", found["questions"], unscored])
    head = ["checkpoints", "task", "setting", "reasoning", "figure", "before", "after", "change"]
    head += ["95 %", "p", "questions", "unscored samples"]
    title = f"{len(rows):,} figures; shares in per cent and points"
    yield ui.Fold(title, [ui.Table(head, rows)])


@ui.section("Prompt sensitivity")
def prompt_sensitivity(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    def points(row: ui.Row, *names: str) -> str | None:
        known = [row[name] for name in names]
        return None if None in known else " – ".join(f"{100 * value:.2f}" for value in known)

    head = ["checkpoint", "task", "setting", "reasoning", "templates", "questions", "sd"]
    head += ["noise floor", "debiased", "95 %", "p of 0", "consistency", "within", "unscored"]
    table: list[list[object]] = []
    for row in rows:
        questions = ui.TableCell(row["questions"], below=f"{row['left_out']:,} left out")
        sds = [points(row, *names) for names in (["sd"], ["floor"], ["debiased"], ["low", "high"])]
        p = None if row["p"] is None else f"{row['p']:.2g}"
        agree = [ui.percent(row[name]) for name in ("consistency", "consistency_within")]
        own = [row["checkpoint"], *place(row), len(row["templates"]), questions]
        table.append([*own, *sds, p, *agree, sum(row["unscored"].values())])
    yield ui.Table(head, table)
    yield (
        "Points. sd: over templates, of their mean accuracies; the floor is what samples alone "
        "give, as often as p says; debiased is sd without it. Consistency: pairs of answers that "
        "agree, between templates and within one. A question is scored under all or left out."
    )
    names = list(dict.fromkeys(row["checkpoint"] for row in rows))
    for where in dict.fromkeys(tuple(place(row)) for row in rows):
        same = [row for row in rows if tuple(place(row)) == where]
        bars: list[ui.Interval] = []
        for places in zip(*(row["templates"] for row in same), strict=True):
            for row, one in zip(same, places, strict=True):
                lost = f" ({one['unscored']:,} unscored)" if one["unscored"] else ""
                label = f"{one['template']}, {row['checkpoint']}{lost}"
                low, mean, high = (one[name] for name in ("low", "mean", "high"))
                bars.append(ui.Interval(label, low, mean, high, _style(row, names)))
        task, setting, thinking = where
        caption = f"{task}, {setting}, reasoning {thinking}: 95 % intervals of sampling alone."
        yield ui.IntervalChart(bars, "accuracy by template", caption)


@ui.section("Costs")
def costs(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    head = ["checkpoint", "task", "setting", "solved", "model calls", "input tokens", "cached"]
    head += ["output tokens", "reasoning", "money", "per solved", "seconds a call, p50", "p95"]
    table: list[list[object]] = []
    for row in rows:
        solved = f"{row['solved']:,}/{row['completions']:,}"
        own = [row["checkpoint"], row["task"], row["setting"], solved, row["calls"]]
        rate = row["tokens_per_second"] and f"{row['tokens_per_second']:,.0f}"
        table.append([*own, *row["tokens"].values(), *agentic.spent(row), rate])
    yield ui.Table([*head, "tokens a second"], table)
    every = [row for row in rows if row["task"] == "all"]
    calls, reported = (sum(row[name] for row in every) for name in ("calls", "cached_reported"))
    yield (
        f"Cached input tokens are the server's for {reported:,} of {calls:,} model calls, "
        "and none of the others. Reasoning is part of the output. "
        "Money needs `prices`; that of all completions is divided by the solved ones."
    )


@ui.section("The gate")
def gated(rows: Sequence[GateRow]) -> Iterator[ui.Block]:
    # imported here: a report needs no numpy
    from posttrain.evaluation.metrics import LENGTHS

    table: list[list[object]] = []
    for row in rows:
        scale = 1 if row.figure in LENGTHS else 100
        numbers = (row.change, row.low, row.high, row.margin)
        about = [row.verdict, row.figure, row.task, row.setting, row.thinking]
        shown = (f"{scale * number:.2f}" for number in numbers)
        table.append([*about, *shown, row.questions, ui.percent(row.unscored)])
    head = ["verdict", "figure", "task", "setting", "reasoning", "change", "low", "high", "margin"]
    yield ui.Table([*head, "questions", "unscored"], table)
    yield (
        "Less is worse. A row fails where `high` is below −margin, or where more samples of a side "
        "are unscored than the gate's max_unscored; it passes where `low` is above −margin. The "
        "bounds are one-sided and share the gate's level."
    )


@ui.section("What it would take")
def estimated(rows: Sequence[ui.Row], speeds: Mapping[str, str]) -> Iterator[ui.Block]:
    """Of each unit on each checkpoint; `speeds` says of each what was measured, or why not."""
    head = ["checkpoint", "task and setting", "completions", "calls at most", "input tokens"]
    head += ["output tokens", "money", "minutes"]
    names = ("requests", "most_requests", "input", "output", "money", "seconds")
    known = {name: [row[name] for row in rows if row[name] is not None] for name in names}
    total = {name: sum(values) if values else None for name, values in known.items()}
    table: list[list[object]] = []
    for row in (*rows, {"checkpoint": "all", "unit": "", **total}):
        money = None if row["money"] is None else f"{row['money']:.4g}"
        minutes = None if row["seconds"] is None else f"{row['seconds'] / 60:.1f}"
        counts = [row[name] for name in names[:4]]
        table.append([row["checkpoint"], row["unit"], *counts, money, minutes])
    yield ui.Table(head, table)
    for name, speed in speeds.items():
        yield f"{name}: {speed}"
    yield (
        "Output tokens are those of `estimate`, or the most that limits allow; input tokens of one "
        "call a completion; minutes without tools and graders. Money needs `prices`."
    )


def _example(row: ui.Row, most: int) -> ui.Sample:
    record = record_from_row(row)
    value, prompt, completion = record.score.value, record.prompt, record.completion
    outcome = ui.graded(value)
    failed = agentic.failing_step(record)
    if failed is not None:
        outcome += f": {failed[1].partition(',')[0]}"
    calls = ", ".join(dict.fromkeys(f"{c.form}: {c.kind}" for c in record.verdict.calls))
    tokens = completion.reasoning_tokens + completion.answer_tokens
    values = {
        "checkpoint": record.checkpoint,
        "source": prompt.source,
        "setting": prompt.setting,
        "reasoning": ui.on_off(prompt.thinking),
        "outcome": outcome,
        "calls": calls or "no call",
        "finish": completion.finish,
    }
    about = f" · {prompt.source}, {prompt.setting}, reasoning {values['reasoning']} · {outcome}"
    about += f" · {tokens:,} tokens" + (f" · {calls}" if calls else "")
    text = "\n".join(f"{message.role}: {message.content}" for message in prompt.messages)
    blocks: list[ui.Block] = [ui.Dialogue(ui.shortened(text, most))]
    each = ui.each(most, len(completion.steps))
    for number, step in enumerate(completion.steps):
        if failed is not None and number == failed[0]:
            mark = ui.Styled(f"Step {number}, where the run failed: {failed[1]}", "mark")
            blocks.append((mark,))
        own = [call for call in record.verdict.calls if call.step == number]
        blocks.append(ui.Dialogue(_step(step, own, each)))
        for result in step.results:
            name = ui.Styled(f"{result.name or result.role} → ", "faint")
            blocks.append(ui.Dialogue([name, ui.shortened(result.content, each)]))
    for call in record.verdict.calls:
        name = "" if call.name is None else f" of {call.name}"
        blocks.append(f"{call.kind}{name} in the {call.part}, step {call.step}: {call.form}")
    blocks.append(f"{record.score.explanation} · gold {prompt.gold}")
    title = (ui.Styled(record.checkpoint, "bold"), about)
    return ui.Sample(title, blocks, values, {"score": value, "tokens": tokens})


def _step(step: Step, calls: Sequence[FoundCall], most: int) -> list[str | ui.Styled]:
    reasoning, answer = searched(step)
    shown = _marked(answer, [call for call in calls if call.part == "answer"], most)
    if reasoning is None:
        return shown
    trace = _marked(reasoning, [call for call in calls if call.part == "reasoning"], most)
    closed = "" if "unclosed_think" in step.parsed.problems else "\n</think>"
    faint = [ui.Styled(part, "faint") if isinstance(part, str) else part for part in trace]
    return [*faint, ui.Styled(f"{closed}\n", "faint"), *shown]


def _marked(text: str, calls: Sequence[FoundCall], most: int) -> list[str | ui.Styled]:
    """The text with the calls' spans highlighted, each stretch shortened."""
    words: list[str | ui.Styled] = []
    at = 0
    for start, end in sorted({(call.start, call.end) for call in calls if call.end > call.start}):
        if start < at:
            continue  # a call within a call is marked already
        words.append(ui.shortened(text[at:start], most))
        words.append(ui.Styled(ui.shortened(text[start:end], most), "mark"))
        at = end
    return [*words, ui.shortened(text[at:], most)]
