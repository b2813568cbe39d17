"""Judges: their data, their evaluation on held-out pairs, and comparisons that they judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from posttrain.lineage import Node
from posttrain.pages import effects
from posttrain.pages.artifact import samples_to_read
from posttrain.pages.evaluation import read_metrics
from posttrain.report import section as ui

# data


def data_sections(node: Node) -> ui.Sections:
    """Sections of a `genrm_data` artifact."""
    yield judging_prompts(node.stats)
    yield pairs_by_source(node.stats["sources"])


def data_tiles(node: Node) -> list[ui.Tile]:
    """Tiles of the pairs for training and of those held out."""
    train = node.stats["train"]
    held_out = node.stats["held_out"]
    return [
        (
            f"{train['pairs']:,} → {train['prompts']:,}",
            "pairs → judging prompts",
            "each in both orders" if node.stats["swap"] else "each in one order",
        ),
        (f"{held_out['pairs']:,}", "pairs held out", "each in both orders"),
    ]


@ui.section("Judging prompts")
def judging_prompts(stats: ui.Row) -> Iterator[ui.Block]:
    columns = ["pairs", "prompts", "with_scores", "with_principle", "scores_and_ranking_at_odds"]
    rows: list[list[object]] = []
    for name, split in (("train", stats["train"]), ("held out", stats["held_out"])):
        characters = [split["characters"][key] for key in ("median", "longest")]
        rankings = ", ".join(f"{rank}: {count:,}" for rank, count in split["rankings"].items())
        rows.append([name, *(split[key] for key in columns), *characters, rankings])
    head = ["", *(name.replace("_", " ") for name in columns)]
    head += ["median characters", "longest", "rankings"]
    swap = "in both orders" if stats["swap"] else "in one order"
    yield f"Layout {stats['layout']}; trained {swap}. Questions are held out whole, not pairs."
    yield ui.Table(head, rows)


@ui.section("Pairs by source")
def pairs_by_source(sources: ui.Row) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for name, source in sources.items():
        kept_share = ui.percent(source["kept"] / max(1, source["rows_in"]))
        dialects = ui.counted(source["dialects"])
        counts = [source["rows_in"], source["kept"], kept_share, source["held_out"]]
        rows.append([name, *counts, dialects])
    yield ui.Table(["source", "rows", "pairs", "kept", "held out", "read as"], rows)
    if dropped := ui.dropped_rows(sources):
        yield ui.Table(["source", "dropped as", "rows", "such as"], dropped)


# evaluation of judges

_RATES = {
    "pairwise_accuracy": "pairwise accuracy",
    "right_in_both_orders": "right in both orders",
    "position_consistency": "position consistency",
    "format": "format kept",
    "prefers_first": "prefers the first",
    "same_scores": "equal scores",
    "truncated": "truncated",
}
_MEANS = {
    "score_error": "score error",
    "ranking_error": "ranking error",
    "reward": "reward",
    "tokens": "tokens",
}
# compared figure → factor of its unit: shares are shown in points
_COMPARED = {"pairwise_accuracy": 100, "position_consistency": 100, "format": 100, "reward": 1}


def evaluation_sections(node: Node) -> ui.Sections:
    """Sections of a `genrm_evaluation` artifact."""
    yield effects.alerts(effects.alerts_of(node))
    yield from evaluation_figures(read_metrics(node))
    title = "Judgements to read"
    yield samples_to_read(node, title, _judgement, examples="examples.jsonl", texts=2)


def evaluation_figures(metrics: ui.Row) -> Iterator[ui.Section]:
    """Sections that need no rows; an evaluation prints them at its end too."""
    yield judges(metrics["cells"], metrics["failed"])
    yield judges_compared(metrics["differences"])


@ui.section("Judges on held-out pairs")
def judges(cells: Sequence[ui.Row], failed: ui.Row) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for cell in cells:
        judge = ui.TableCell(cell["checkpoint"], below=cell["source"])
        shares = [_estimate(cell[name], scale=100) for name in _RATES]
        means = [_estimate(cell[name], digits=2) for name in _MEANS]
        rows.append([judge, *shares, *means, cell["pairs"]])
    rates = [f"{name}, %" for name in _RATES.values()]
    head = ["judge", *rates, *_MEANS.values(), "pairs"]
    lost = ui.counted(failed)
    yield ui.Table(head, rows)
    yield (
        "Every pair is judged in both orders. Pairwise accuracy: gold's response is preferred, by "
        "the scores and at equal scores by the ranking; no preference is half right. Position "
        "consistency: the same winner in both orders, of pairs with two readable verdicts. Prefers "
        "the first: half without position bias. Intervals are 95 %, by question."
        + (f" Lost by the backend and in no figure: {lost}." if lost else "")
    )


@ui.section("Judges compared")
def judges_compared(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    table: list[list[object]] = []
    for row in rows:
        changes = [_change(row.get(name), scale) for name, scale in _COMPARED.items()]
        judges = ui.TableCell(f"{row['a']} → {row['b']}", below=row["source"])
        table.append([judges, *changes])
    head = ["judges", "pairwise accuracy, points", "position consistency, points"]
    if table:
        yield ui.Table([*head, "format, points", "reward"], table)


def _estimate(row: ui.Row | None, *, scale: float = 1, digits: int = 1) -> ui.TableCell | None:
    """Cell of a value, with its interval, if any, below; None for None."""
    if row is None:
        return None
    value = ui.decimal(scale * row["value"], digits)
    if row["low"] is None:
        return ui.TableCell(value)
    low, high = (ui.decimal(scale * row[key], digits) for key in ("low", "high"))
    return ui.TableCell(value, below=f"{low} … {high}")


def _change(change: ui.Row | None, scale: float) -> ui.TableCell | None:
    if change is None:
        return None
    difference = ui.signed(scale * change["difference"], 2)
    return ui.TableCell(difference, below=f"{_span(change, scale)}, p {change['p']:.2g}")


def _span(estimate: ui.Row, scale: float = 1) -> str:
    return f"{ui.signed(scale * estimate['low'], 1)} … {ui.signed(scale * estimate['high'], 1)}"


def _judgement(row: ui.Row, most: int) -> ui.Sample:
    reward = "lost" if row["reward"] is None else f"reward {ui.decimal(0.0 + row['reward'], 1)}"
    answer = ui.Styled(ui.shortened(row["answer"], most), "mark")
    gold = (ui.Styled("\n[gold]", "faint"), f" {row['gold']}")
    words = [f"{ui.shortened(row['request'], most)}\n", answer, *gold]
    title = (ui.Styled(row["checkpoint"], "bold"), f" · {row['prompt']} · {reward}")
    values = {"judge": row["checkpoint"]}
    return ui.Sample(title, [ui.Dialogue(words)], values, {"reward": row["reward"]})


# win rate

_OUTCOME_RATES = {
    "score": "won + tied / 2",
    "win": "won",
    "tie": "tied",
    "loss": "lost",
    "disagree": "orders disagree",
}
_OUTCOMES = {1.0: "won", 0.5: "tied", 0.0: "lost", None: "unjudged"}


def win_rate_sections(node: Node) -> ui.Sections:
    """Sections of a `win_rate` artifact."""
    yield win_rate(read_metrics(node)["rows"], node.stats)
    yield samples_to_read(node, "Answers side by side", _duel, examples="duels.jsonl", texts=3)


@ui.section("Win rate")
def win_rate(rows: Sequence[ui.Row], stats: ui.Row) -> Iterator[ui.Block]:
    cells: list[list[object]] = []
    for row in rows:
        tokens = row["tokens"]
        values = tokens and f"{tokens['a']:.1f} → {tokens['b']:.1f}"
        change = values and ui.TableCell(values, below=_span(tokens))
        shares = [_estimate(row[name], scale=100) for name in _OUTCOME_RATES]
        counts = [row.get(name, 0) for name in ("duels", "same", "unanswered", "unjudged")]
        cells.append([row["unit"], *shares, change, *counts])
    cells.sort(key=lambda row: row[0] != "all")
    head = ["task", *_OUTCOME_RATES.values(), "tokens"]
    head += ["pairs", "same answer", "one answer only", "unjudged"]
    yield f"{stats['after']} against {stats['before']}."
    yield ui.Table(head, cells)
    yield (
        "Won: both orders prefer the new answer; lost: both prefer the old one; all else is a tie, "
        "the same answer without being judged. No answer loses to one, without being judged. Per "
        "cent with 95 % intervals, all samples of a question one cluster; unjudged pairs are in no "
        "figure."
    )


def _duel(row: ui.Row, most: int) -> ui.Sample:
    words = [ui.Styled("[prompt]", "faint"), f" {ui.shortened(row['request'], most)}\n"]
    for name in ("before", "after"):
        answer = ui.Styled(ui.shortened(row[name], most), "mark")
        words += [ui.Styled(f"[{name}]", "faint"), " ", answer, "\n"]
    for name, order in (("before_first", "old first"), ("after_first", "new first")):
        if name in row:
            verdict = row[name]["verdict"] or row[name]["reason"]
            words += [ui.Styled(f"[{order}]", "faint"), f" {verdict}\n"]
    outcome = _OUTCOMES[row["outcome"]]
    title = (ui.Styled(outcome, "bold"), f" · {row['prompt']}")
    characters = {f"{side}, characters": len(row[side]) for side in ("before", "after")}
    return ui.Sample(title, [ui.Dialogue(words)], {"outcome": outcome}, characters)
