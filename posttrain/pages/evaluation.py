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

METRICS = "metrics.json"
COSTS = "costs.json"
_HEADLINE = {"accuracy": "correct", "hallucination": "undeclared calls", "truncated": "truncated"}


def sections(node: Node) -> ui.Sections:
    """Sections of an `evaluation` artifact."""
    metrics = read_metrics(node)
    yield effects.alerts(effects.alerts_of(node))
    arms = effects.arms_of(node)
    newest = next(iter(arms.after), arms.before)
    yield from figures(metrics, effects.figures_of(arms.methods[newest])[0])
    # the manifest does not list this file: prices may change after a run
    path = node.path / COSTS
    cost_rows = json.loads(path.read_text("utf-8")) if path.is_file() else []
    agentic_results = metrics.get("agentic")
    if agentic_results is not None:
        predictions = node.artifact.config.get("expect", {})
        yield from agentic.figures(agentic_results, predictions, cost_rows)
    if cost_rows:
        yield costs(cost_rows)
    if dropped := ui.dropped_rows(node.stats.get("sources", {})):
        yield unasked_rows(dropped)
    yield samples_to_read(
        node, "Completions to read", _example, examples="examples.jsonl", all_rows="records/"
    )


@ui.section("Rows that were not asked")
def unasked_rows(dropped: Sequence[Sequence[object]]) -> Iterator[ui.Block]:
    """Rows of the tasks that gave no prompt, by reason; the counts below are of prompts."""
    yield ui.Table(["task", "dropped because", "rows", "such as"], dropped)
    yield "Rows that gave no prompt. The counts below are of the prompts that the others gave."


def figures(metrics: ui.Row, main_figure: str = "accuracy") -> Iterator[ui.Section]:
    """Sections that need no rows; an evaluation prints them at its end too.

    Args:
        main_figure: figure to begin with.
    """
    yield from comparison(metrics["cells"], metrics["pairs"], main_figure)
    if sensitivity_rows := [row for row in metrics.get("sensitivity", []) if row["templates"]]:
        yield prompt_sensitivity(sensitivity_rows)
    if variant_rows := metrics.get("variants"):
        yield variants(variant_rows)
    if long_context_rows := metrics.get("long_context"):
        yield long_context(long_context_rows)
    if recovery_rows := metrics.get("recovery"):
        yield recovery(recovery_rows)


@ui.section("Recovery")
def recovery(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    """Accuracy of a distilled student before and after, of its teachers, and what is recovered.

    A quantised checkpoint has no student before it; its teacher is its source.
    """
    has_before = rows[0]["before"] is not None  # one recipe: all rows or none
    teacher = "teacher" if has_before else "source"
    accuracies = {"after": "after", "teacher_mean": f"of the {teacher}"}
    if has_before:
        accuracies = {"before": "before", **accuracies}
    head = ["task", "setting", "reasoning", teacher, "questions"]
    head += [*accuracies.values(), "recovered"]
    table: list[list[object]] = []
    for row in rows:
        names = [row["task"], row["setting"], row["thinking"], row["teacher"], row["questions"]]
        shares = [ui.percent(row[name]) for name in accuracies]
        result = row["recovery"]
        lead = "the teacher's lead" if has_before else "the source's accuracy"
        recovered = f"too few questions to tell {lead} from 0"
        if result is not None:
            low, high = (ui.decimal(100 * result[end], 1) for end in ("low", "high"))
            recovered = f"{ui.percent(result['value'])} ({low} … {high})"
        table.append([*names, *shares, recovered])
    yield ui.Table(head, table)
    ratio = "(after − before) / (teacher − before)" if has_before else "after / source"
    yield f"{ratio} over the same questions, with Fieller's 95 % interval."


@ui.section("Originals and variants")
def variants(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    """Accuracy on questions and on variants of them, over the same questions."""
    head = ["checkpoint", "setting", "reasoning", "questions", "original", "variants", "drop"]
    table: list[list[object]] = []
    for row in rows:
        drop = row["drop"]
        points = effects.interval(*(100 * drop[key] for key in ("value", "low", "high")))
        shares = [ui.percent(row["original"]), ui.percent(row["variant"])]
        names = [row["checkpoint"], row["setting"], row["thinking"], row["questions"]]
        table.append([*names, *shares, points])
    yield ui.Table(head, table)
    yield "The drop is in points, paired by question, with its 95 % interval."


@ui.section("Long context")
def long_context(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    """Accuracy by family and length, and a heat map of it by position and length."""
    modes = dict.fromkeys((row["checkpoint"], row["setting"], row["thinking"]) for row in rows)
    for mode in modes:
        columns = [
            row for row in rows if (row["checkpoint"], row["setting"], row["thinking"]) == mode
        ]
        checkpoint, setting, thinking = mode
        lengths = [f"{row['length']:,} tokens" for row in columns]
        yield (ui.Styled(checkpoint, "bold"), f" · {setting}, reasoning {thinking}")
        families = dict.fromkeys(family for row in columns for family in row["families"])
        table: list[list[object]] = []
        for family in families:
            cells = [_length_cell(row["families"].get(family)) for row in columns]
            table.append([family.replace("_", " "), *cells])
        yield ui.Table(["questions", *lengths], table)
        heat_map: list[list[object]] = []
        parts = len(columns[0]["parts"])
        for part in range(parts):
            position = f"{100 * part // parts} – {100 * (part + 1) // parts} %"
            cells = [_length_cell(row["parts"][part], shaded=True) for row in columns]
            heat_map.append([position, *cells])
        yield ui.Table(["position of what is needed", *lengths], heat_map)
    yield (
        "Right answers with their 95 % intervals over questions. The position is the share of the "
        "documents before a needed one; a question counts in each part that holds one."
    )


def _length_cell(rate: ui.Row | None, *, shaded: bool = False) -> ui.TableCell | None:
    if rate is None:
        return None
    below = f"{_interval(rate)}, n = {rate['questions']:,}"
    shade = rate["value"] if shaded else None
    return ui.TableCell(ui.percent(rate["value"]), below=below, shade=shade)


def comparison(
    cells: Sequence[ui.Row], pairs: Sequence[ui.Row], main_figure: str = "accuracy"
) -> Iterator[ui.Section]:
    """Sections that compare checkpoints, of one run or of several; rows over all tasks come first.

    Args:
        cells: figures of each checkpoint, task, setting and mode of reasoning.
        pairs: paired changes between two checkpoints.
    """
    cells = sorted(cells, key=lambda cell: cell["task"] != "all")
    pairs = sorted(pairs, key=lambda pair: pair["task"] != "all")
    yield before_and_after(cells, pairs, main_figure)
    yield every_figure(cells)
    yield lengths(cells)
    if pairs:
        yield differences(pairs)


def read_metrics(node: Node) -> ui.Row:
    """Read the figures of an evaluation."""
    path = listed_path(node, METRICS)
    assert path is not None, "every evaluation lists its figures"
    return json.loads(path.read_text("utf-8"))


@ui.section("Before and after")
def before_and_after(
    cells: Sequence[ui.Row], pairs: Sequence[ui.Row], main_figure: str
) -> Iterator[ui.Block]:
    names = list(dict.fromkeys(cell["checkpoint"] for cell in cells))
    rates = sorted(_COMPARED, key=lambda rate: rate != main_figure)
    for rate in rates:
        yield from _rate_charts(cells, names, rate)
    make_table = _pair_table if len(names) == 2 else _wide_table
    yield make_table(cells, pairs, names, rates)
    yield (
        "Intervals are 95 %, over questions; of a change in points, over the questions that both "
        "answered, with the p of Student's t over them. Undeclared calls: completions with a tool "
        "call where no tool is declared."
    )


def _rate_charts(cells: Sequence[ui.Row], names: Sequence[str], rate: str) -> Iterator[ui.Block]:
    """Chart of a share for each setting and mode of reasoning, by task and checkpoint."""
    cells_by_mode: dict[tuple[str, str], list[ui.Row]] = {}
    for cell in cells:
        cells_by_mode.setdefault((cell["setting"], cell["thinking"]), []).append(cell)
    for (setting, thinking), mode_cells in cells_by_mode.items():
        task_order = list(dict.fromkeys(cell["task"] for cell in mode_cells))
        styles = _line_styles(names)
        intervals: list[ui.Interval] = []
        for cell in sorted(mode_cells, key=lambda cell: task_order.index(cell["task"])):
            share = cell["rates"].get(rate)
            if share is not None:
                bounds = (share["low"], share["value"], share["high"])
                style, name = styles[cell["checkpoint"]]
                intervals.append(ui.Interval(cell["task"], *bounds, style, name))
        # a figure that is 0 for all tasks is not drawn
        if any(interval.share for interval in intervals):
            keys: dict[str, str] = {}
            if 1 < len(names) <= len(_STYLES):
                keys = dict(zip(_STYLES, names, strict=False))
            title = f"{_COMPARED[rate].capitalize()}: {setting}, reasoning {thinking}."
            yield ui.IntervalChart(intervals, "completions, %, with 95 % intervals", title, keys)


_COMPARED = {"accuracy": "correct", "hallucination": "undeclared calls"}
_STYLES = "bad"  # muted, accent, dark; the first checkpoint is muted


def _line_styles(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Style of each checkpoint's lines, and its name beside them where styles do not suffice."""
    if len(names) <= len(_STYLES):
        return {name: (style, "") for name, style in zip(names, _STYLES, strict=False)}
    first, *others, last = names
    muted, accent, dark = _STYLES
    return {
        first: (muted, first),
        **{name: (accent, name) for name in others},
        last: (dark, last),
    }


def _pair_table(
    cells: Sequence[ui.Row], pairs: Sequence[ui.Row], names: Sequence[str], rates: Sequence[str]
) -> ui.Table:
    """Table of two checkpoints, with both values in one cell, which fits a telephone's screen."""
    rows: list[list[object]] = []
    for cell in cells:
        if cell["checkpoint"] != names[0]:
            continue
        new_cell = _find(cells, "checkpoint", names[1], cell_key(cell))
        pair = _find(pairs, "b", names[1], cell_key(cell))
        row: list[object] = [_task_cell(cell)]
        for rate in rates:
            row.append(_change_cell(cell, new_cell, pair, rate))
        rows.append([*row, cell["samples"]])
    span = f"{names[0]} → {names[1]}"
    titles = [f"{_COMPARED[rate]}, {span}" for rate in rates]
    return ui.Table(["task", *titles, "samples"], rows)


def _task_cell(row: ui.Row) -> ui.TableCell:
    return ui.TableCell(row["task"], below=f"{row['setting']}, reasoning {row['thinking']}")


def _change_cell(
    old_cell: ui.Row, new_cell: ui.Row, pair: ui.Row, name: str
) -> ui.TableCell | None:
    """Shares of two checkpoints, above their change and the samples that were not scored."""
    rates = [cell["rates"].get(name) for cell in (old_cell, new_cell)]
    unscored = [_unscored_text(cell) for cell in (old_cell, new_cell)]
    if not any(rates) and (not any(unscored) or name != "accuracy"):
        return None
    values = ["–" if rate is None else f"{100 * rate['value']:.1f}" for rate in rates]
    below: list[str] = []
    change = pair["rates"].get(name)
    if change is not None:
        bounds = (100 * change[key] for key in ("difference", "low", "high"))
        below += [effects.interval(*bounds), _p(change)]
    if any(unscored):
        below.append(" → ".join(text or "0" for text in unscored))
    return ui.TableCell(f"{' → '.join(values)} %", below=", ".join(below))


def _wide_table(
    cells: Sequence[ui.Row], pairs: Sequence[ui.Row], names: Sequence[str], rates: Sequence[str]
) -> ui.Table:
    """Table with a column for each checkpoint, and its change from the first one."""
    rows: list[list[object]] = []
    for cell in cells:
        if cell["checkpoint"] != names[0]:
            continue
        key = cell_key(cell)
        row: list[object] = [_task_cell(cell)]
        for rate in rates:
            row.append(_rate_and_unscored(cell, rate))
            for name in names[1:]:
                row.append(_rate_and_unscored(_find(cells, "checkpoint", name, key), rate))
                row.append(_change(_find(pairs, "b", name, key), rate))
        rows.append([*row, cell["samples"]])
    head = ["task"]
    for rate in rates:
        head.append(f"{_COMPARED[rate]}, {names[0]}")
        for name in names[1:]:
            head += [name, "change, p"]
    return ui.Table([*head, "samples"], rows)


def _style(row: ui.Row, names: Sequence[str]) -> str:
    return "b" if row["checkpoint"] == names[0] and len(names) > 1 else "a"


def cell_key(row: ui.Row) -> list[str]:
    """Task, setting and mode of reasoning of a row."""
    return [row[key] for key in ("task", "setting", "thinking")]


def _find(rows: Sequence[ui.Row], column: str, name: str, key: Sequence[str]) -> ui.Row:
    """Row of a checkpoint in a cell; one without figures if there is none."""
    for row in rows:
        if row[column] == name and cell_key(row) == key:
            return row
    return {"rates": {}, "lengths": {}}


def _interval(rate: ui.Row) -> str:
    return f"{ui.percent(rate['low'])} – {ui.percent(rate['high'])}"


def _rate(cell: ui.Row, name: str) -> ui.TableCell | None:
    rate = cell["rates"].get(name)
    if rate is None:
        return None
    return ui.TableCell(ui.percent(rate["value"], 2), below=_interval(rate))


def _rate_and_unscored(cell: ui.Row, name: str) -> ui.TableCell | None:
    """A rate, above its interval and the samples that were not scored."""
    rate = cell["rates"].get(name)
    unscored = _unscored_text(cell)
    if rate is None:
        return None if unscored is None else ui.TableCell("–", below=unscored)
    below = _interval(rate) if unscored is None else f"{_interval(rate)}; {unscored}"
    return ui.TableCell(ui.percent(rate["value"], 2), below=below)


def _change(pair: ui.Row, name: str) -> ui.TableCell | None:
    change = pair["rates"].get(name)
    if change is None:
        return None
    return ui.TableCell(ui.signed(100 * change["difference"], 2), below=_p(change))


def _p(change: ui.Row) -> str:
    return f"p {change['p']:.3f}" if change["p"] >= 0.001 else f"p {change['p']:.0e}"


@ui.section("Every figure")
def every_figure(cells: Sequence[ui.Row]) -> Iterator[ui.Block]:
    for name in dict.fromkeys(cell["checkpoint"] for cell in cells):
        checkpoint_cells = [cell for cell in cells if cell["checkpoint"] == name]
        known_rates: dict[str, None] = {}
        for cell in checkpoint_cells:
            known_rates |= dict.fromkeys(cell["rates"])
        # those of `before_and_after` are not repeated
        rates = [rate for rate in known_rates if rate not in _COMPARED]
        rows: list[list[object]] = []
        for cell in checkpoint_cells:
            shares = [_rate(cell, rate) for rate in rates]
            rows.append([_task_cell(cell), *shares, _passes(cell), _unscored_text(cell)])
        head = ["task", *(rate.replace("_", " ") for rate in rates)]
        head += ["pass@k", "without a figure"]
        yield (ui.Styled(name, "bold"),)
        yield ui.Table(head, rows)
    yield "Adherence: with reasoning on, a closed and filled think block a step; off, no think tag."


def _passes(cell: ui.Row) -> str | None:
    rates = [f"@{k} {ui.percent(rate['value'])}" for k, rate in cell["pass"].items() if k != "1"]
    return ", ".join(rates) or None


def _unscored_text(cell: ui.Row) -> str | None:
    """Samples that the backend, a grader or a judge failed on, in words; None without any."""
    counts = [f"{name} {cell[name]:,}" for name in ("failed", "unscored") if cell.get(name)]
    return ", ".join(counts) or None


@ui.section("Lengths")
def lengths(cells: Sequence[ui.Row]) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for cell in cells:
        for name, length in cell["lengths"].items():
            levels = [ui.estimate(length[level]) for level in ("mean", "median", "p90")]
            rows.append([cell["checkpoint"], *cell_key(cell), name.replace("_", " "), *levels])
    head = ["checkpoint", "task", "setting", "reasoning", "length", "mean", "median", "90 %"]
    yield ui.Table(head, rows)
    yield (
        "Tokens of a completion, all its steps. Intervals are over questions: Student's of means, "
        "bootstraps of quantiles. Fewer than 6 bound no median, fewer than 36 no 90 %."
    )


@ui.section("Differences")
def differences(pairs: Sequence[ui.Row]) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for pair in pairs:
        lost = pair.get("unscored", {"a": 0, "b": 0})  # metrics of older versions lack the key
        unscored = f"{lost['a']:,} → {lost['b']:,}" if any(lost.values()) else None
        for name, change in {**pair["rates"], **pair["lengths"]}.items():
            scale = 100 if name in pair["rates"] else 1
            low = ui.signed(scale * change["low"], 2)
            high = ui.signed(scale * change["high"], 2)
            rows.append(
                [
                    f"{pair['a']} → {pair['b']}",
                    *cell_key(pair),
                    _HEADLINE.get(name, name.replace("_", " ")),
                    f"{scale * change['a']:.2f}",
                    f"{scale * change['b']:.2f}",
                    ui.signed(scale * change["difference"], 2),
                    f"{low} … {high}",
                    f"{change['p']:.3g}",
                    change["questions"],
                    unscored,
                ]
            )
    head = ["checkpoints", "task", "setting", "reasoning", "figure", "before", "after", "change"]
    head += ["95 %", "p", "questions", "unscored samples"]
    title = f"{len(rows):,} figures; shares in per cent and points"
    yield ui.Fold(title, [ui.Table(head, rows)])


@ui.section("Prompt sensitivity")
def prompt_sensitivity(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    head = ["checkpoint", "task", "setting", "reasoning", "templates", "questions", "sd"]
    head += ["noise floor", "debiased", "95 %", "p of 0", "consistency", "within", "unscored"]
    table: list[list[object]] = []
    for row in rows:
        table.append(
            [
                row["checkpoint"],
                *cell_key(row),
                len(row["templates"]),
                ui.TableCell(row["questions"], below=f"{row['left_out']:,} left out"),
                _points(row["sd"]),
                _points(row["floor"]),
                _points(row["debiased"]),
                _points(row["low"], row["high"]),
                _p_value(row["p"]),
                ui.percent(row["consistency"]),
                ui.percent(row["consistency_within"]),
                sum(row["unscored"].values()),
            ]
        )
    yield ui.Table(head, table)
    yield (
        "Points. sd: over templates, of their mean accuracies; the floor is what samples alone "
        "give, as often as p says; debiased is sd without it. Consistency: pairs of answers that "
        "agree, between templates and within one. A question is scored under all or left out."
    )
    names = list(dict.fromkeys(row["checkpoint"] for row in rows))
    for key in dict.fromkeys(tuple(cell_key(row)) for row in rows):
        cell_rows = [row for row in rows if tuple(cell_key(row)) == key]
        intervals: list[ui.Interval] = []
        # template by template, the checkpoints one below the other
        for results in zip(*(row["templates"] for row in cell_rows), strict=True):
            for row, result in zip(cell_rows, results, strict=True):
                unscored = f" ({result['unscored']:,} unscored)" if result["unscored"] else ""
                label = f"{result['template']}, {row['checkpoint']}{unscored}"
                bounds = (result["low"], result["mean"], result["high"])
                intervals.append(ui.Interval(label, *bounds, _style(row, names)))
        task, setting, thinking = key
        caption = f"{task}, {setting}, reasoning {thinking}: 95 % intervals of sampling alone."
        yield ui.IntervalChart(intervals, "accuracy by template", caption)


def _p_value(p: float | None) -> str | None:
    """A p-value of two digits; a tail that floating point rounds to 0 is not 0."""
    if p is None:
        return None
    return f"{p:.2g}" if p >= 1e-99 else "< 1e-99"


def _points(*shares: float | None) -> str | None:
    """Shares in points, with a dash between them; None if one is not known."""
    texts: list[str] = []
    for share in shares:
        if share is None:
            return None
        texts.append(f"{100 * share:.2f}")
    return " – ".join(texts)


@ui.section("Costs")
def costs(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    head = ["checkpoint", "task", "setting", "solved", "model calls", "input tokens", "cached"]
    head += ["output tokens", "reasoning", "money", "per solved", "seconds a call, p50", "p95"]
    table: list[list[object]] = []
    for row in rows:
        solved = f"{row['solved']:,}/{row['completions']:,}"
        cell = [row["checkpoint"], row["task"], row["setting"], solved, row["calls"]]
        speed = row["tokens_per_second"] and f"{row['tokens_per_second']:,.0f}"
        table.append([*cell, *row["tokens"].values(), *agentic.spent(row), speed])
    yield ui.Table([*head, "tokens a second"], table)
    over_all_tasks = [row for row in rows if row["task"] == "all"]
    calls = sum(row["calls"] for row in over_all_tasks)
    reported = sum(row["cached_reported"] for row in over_all_tasks)
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
        cell = [row.verdict, row.figure, row.task, row.setting, row.thinking]
        numbers = (row.change, row.low, row.high, row.margin)
        texts = (f"{scale * number:.2f}" for number in numbers)
        table.append([*cell, *texts, row.questions, ui.percent(row.unscored)])
    head = ["verdict", "figure", "task", "setting", "reasoning", "change", "low", "high", "margin"]
    yield ui.Table([*head, "questions", "unscored"], table)
    yield (
        "Less is worse. A row fails where `high` is below −margin, or where more samples of a side "
        "are unscored than the gate's max_unscored; it passes where `low` is above −margin. The "
        "bounds are one-sided and share the gate's level."
    )


@ui.section("What it would take")
def estimated(rows: Sequence[ui.Row], speeds: Mapping[str, str]) -> Iterator[ui.Block]:
    """Calls, tokens, money and minutes of each unit on each checkpoint.

    Args:
        speeds: checkpoint → its measured speed, or the reason why there is none.
    """
    head = ["checkpoint", "task and setting", "completions", "calls at most", "input tokens"]
    head += ["output tokens", "money", "minutes"]
    names = ("requests", "most_requests", "input", "output", "money", "seconds")
    total: ui.Row = {"checkpoint": "all", "unit": ""}
    for name in names:
        values = [row[name] for row in rows if row[name] is not None]
        total[name] = sum(values) if values else None
    table: list[list[object]] = []
    for row in (*rows, total):
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
    """A record as a sample, with at most `most` characters of each text."""
    record = record_from_row(row)
    prompt = record.prompt
    completion = record.completion
    outcome = ui.graded(record.score.value)
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
    remark = f" · {prompt.source}, {prompt.setting}, reasoning {values['reasoning']} · {outcome}"
    remark += f" · {tokens:,} tokens" + (f" · {calls}" if calls else "")
    text = "\n".join(f"{message.role}: {message.content}" for message in prompt.messages)
    blocks: list[ui.Block] = [ui.Dialogue(ui.shortened(text, most))]
    most_of_step = ui.each(most, len(completion.steps))
    for number, step in enumerate(completion.steps):
        if failed is not None and number == failed[0]:
            mark = ui.Styled(f"Step {number}, where the run failed: {failed[1]}", "mark")
            blocks.append((mark,))
        step_calls = [call for call in record.verdict.calls if call.step == number]
        blocks.append(ui.Dialogue(_step_words(step, step_calls, most_of_step)))
        for result in step.results:
            name = ui.Styled(f"{result.name or result.role} → ", "faint")
            blocks.append(ui.Dialogue([name, ui.shortened(result.content, most_of_step)]))
    for call in record.verdict.calls:
        name = "" if call.name is None else f" of {call.name}"
        blocks.append(f"{call.kind}{name} in the {call.part}, step {call.step}: {call.form}")
    blocks.append(f"{record.score.explanation} · gold {prompt.gold}")
    title = (ui.Styled(record.checkpoint, "bold"), remark)
    return ui.Sample(title, blocks, values, {"score": record.score.value, "tokens": tokens})


def _step_words(step: Step, calls: Sequence[FoundCall], most: int) -> list[str | ui.Styled]:
    """Text of a step, its trace faint and its tool calls highlighted."""
    reasoning, answer = searched(step)
    answer_words = _marked(answer, [call for call in calls if call.part == "answer"], most)
    if reasoning is None:
        return answer_words
    words: list[str | ui.Styled] = []
    for word in _marked(reasoning, [call for call in calls if call.part == "reasoning"], most):
        words.append(ui.Styled(word, "faint") if isinstance(word, str) else word)
    closing_tag = "" if "unclosed_think" in step.parsed.problems else "\n</think>"
    return [*words, ui.Styled(f"{closing_tag}\n", "faint"), *answer_words]


def _marked(text: str, calls: Sequence[FoundCall], most: int) -> list[str | ui.Styled]:
    """Text with the spans of calls highlighted, each stretch shortened to `most` characters."""
    words: list[str | ui.Styled] = []
    marked_end = 0
    for start, end in sorted({(call.start, call.end) for call in calls if call.end > call.start}):
        if start < marked_end:
            continue  # a call within a call is marked already
        words.append(ui.shortened(text[marked_end:start], most))
        words.append(ui.Styled(ui.shortened(text[start:end], most), "mark"))
        marked_end = end
    return [*words, ui.shortened(text[marked_end:], most)]
