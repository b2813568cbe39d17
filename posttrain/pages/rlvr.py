"""Pass rates of prompts, and what RLVR did domain by domain: the paper's figure 6."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from posttrain.lineage import Node
from posttrain.pages import effects
from posttrain.pages.rollouts import MEANS
from posttrain.pages.samples import completions, prompts_by_source, settings
from posttrain.report import section as ui
from posttrain.report.curves import Curve, curves


def profile_sections(node: Node) -> ui.Sections:
    """Sections of a `pass_rates` artifact."""
    yield effects.alerts(effects.alerts_of(node))
    stats = node.stats
    yield pass_rates(stats["rates"], stats["n"])
    yield drift(stats["rates"])
    yield settings(stats["settings"])
    if "sources" in stats:
        yield prompts_by_source(stats)
    yield completions(node, "Rollouts to read")


def profile_tiles(node: Node) -> list[ui.Tile]:
    """Tiles of the prompts for training, the mean pass rate, and the rollouts without a score."""
    sums = Counter[str]()
    for rates in node.stats["rates"].values():
        for key in ("prompts", "kept", "passes", "scored", "rollouts"):
            sums[key] += rates[key]
    scored = sums["scored"]
    rollouts = sums["rollouts"]
    return [
        (f"{sums['prompts']:,} → {sums['kept']:,}", "prompts profiled → for training", ""),
        (ui.ratio(sums["passes"], scored) or "–", "of the rollouts pass", f"{scored:,} scored"),
        (ui.ratio(rollouts - scored, rollouts, 2) or "–", "unscored", f"of {rollouts:,} rollouts"),
    ]


@ui.section("Pass rates")
def pass_rates(rates: Mapping[str, ui.Row], n: int) -> Iterator[ui.Block]:
    """Pass rates, drops and lengths by source, and a histogram of each source's pass rates."""
    rows: list[list[object]] = []
    for source, figures in rates.items():
        rows.append(
            [
                source,
                ui.ratio(figures["passes"], figures["scored"]),
                figures["prompts"],
                figures["kept"],
                ui.ratio(figures["truncated"], figures["rollouts"]),
                ui.counted(figures["unscored"]) or None,
                f"{figures['reasoning_tokens']:.1f}",
                f"{figures['answer_tokens']:.1f}",
                ui.counted(figures["dropped"]) or None,
            ]
        )
    head = ["source", "passes", "prompts", "for training", "truncated", "unscored"]
    yield ui.Table([*head, "reasoning tokens", "answer tokens", "dropped"], rows)
    for source, figures in rates.items():
        bars = [(f"{k}/{n}", (count,)) for k, count in enumerate(figures["buckets"])]
        caption = f"{source}: prompts by passes out of {n}; those with {n} are dropped."
        yield ui.BarChart(bars, "pass rate", "prompts", caption)


@ui.section("Drift between profiles")
def drift(rates: Mapping[str, ui.Row]) -> Iterator[ui.Block]:
    """Changes of the same prompts' pass rates since the previous profile."""
    rows: list[list[object]] = []
    for source, figures in rates.items():
        change = figures.get("drift")
        if change is not None:
            shares = [ui.percent(change["before"]), ui.percent(change["now"])]
            moves = [change[key] for key in ("rose", "fell", "now_solved", "now_unsolved")]
            rows.append([source, change["prompts"], *shares, *moves])
    if rows:
        head = ["source", "prompts", "passed before", "pass now", "rose", "fell"]
        yield ui.Table([*head, "now always", "no longer"], rows)


RUN_MEANS = {
    "reward": "reward",
    "part/pass": "rollouts that pass, share",
    "part/unchecked": "values of structured outputs that no rule could check, share",
    **MEANS,
}
CURVES = (
    Curve(
        "Mean over the scored rollouts of a batch; the curriculum makes prompts harder.",
        "reward",
        "reward",
    ),
)
_MEANS = {
    "reward": "reward",
    "pass_rate": "pass rate",
    "zero_variance": "groups of equal rewards",
    "unscored": "unscored",
    "truncated": "truncated",
    "reasoning_tokens": "reasoning tokens",
    "answer_tokens": "answer tokens",
    "loss_share": "of the tokens in the loss",
}


def learned_tile(prompts: Mapping[str, int], logs: Sequence[ui.Row]) -> ui.Tile:
    """Tile of the pass rate of the same prompts, in the profile and in training.

    Pass rates of batches alone would fall, since the curriculum makes the prompts harder.

    Args:
        prompts: domain → number of its prompts in the run.
        logs: rows of the batches whose prompts are compared.
    """
    # imported here: a report needs no numpy
    from posttrain.evaluation.compare import length_difference
    from posttrain.evaluation.intervals import by_question

    profiled = [100 * _over_domains(prompts, row, "drawn") for row in logs]
    realised = [100 * _over_domains(prompts, row, "pass_rate") for row in logs]
    profiled_mean = statistics.fmean(profiled)
    realised_mean = statistics.fmean(realised)
    remark = f"{ui.signed(realised_mean - profiled_mean, 1)}, of one batch: no interval"
    if len(logs) > 1:
        # a batch is one draw of prompts, as a question is elsewhere
        change = length_difference(
            by_question([(share, batch) for batch, share in enumerate(profiled)]),
            by_question([(share, batch) for batch, share in enumerate(realised)]),
        )
        interval = effects.interval(change.difference, change.low, change.high)
        remark = f"{interval}, prompts of the last {len(logs)} batches"
    values = f"{profiled_mean:.1f} → {realised_mean:.1f} %"
    return values, "pass, in the profile → in training", remark


def _over_domains(prompts: Mapping[str, int], row: ui.Row, key: str) -> float:
    """Mean of a figure over the domains of a batch, weighted by their prompts in the run."""
    total = 0
    weighted_sum = 0.0
    for domain, count in prompts.items():
        share = row.get(f"domain/{domain}/{key}")
        if share is not None:
            total += count
            weighted_sum += count * share
    return weighted_sum / max(total, 1)


@ui.section("Curriculum")
def curriculum(stats: ui.Row, logs: Sequence[ui.Row]) -> Iterator[ui.Block]:
    """Target, drawn and realised pass rates by domain and step."""
    reasons = ui.counted({name.replace("_", " "): n for name, n in stats["reasons"].items()})
    yield (
        f"{stats['different']:,} different prompts; why they were drawn: {reasons}. Drawn is their "
        "pass rate in the profile, realised that of this run's rollouts. Prompts are chosen by the "
        "former, so a part of a rise may be that it was low by chance."
    )
    dropped, refills, empty = (
        sum(row.get(f"count/{name}", 0) for row in logs)
        for name in ("dropped_groups", "refills", "empty_places")
    )
    if dropped:
        yield (
            f"Dynamic sampling dropped {dropped:,.0f} groups of equal rewards; {refills:,.0f} "
            f"further prompts were rolled out, {empty:,.0f} places stayed empty."
        )
    for domain in stats["prompts"]:
        keys = {"realised": "pass_rate", "drawn": "drawn", "target": "target"}
        lines = {name: f"domain/{domain}/{key}" for name, key in keys.items()}
        yield from curves(logs, [Curve(f"{domain}: pass rate of its prompts.", "share", lines)])


@ui.section("Domains")
def domains(stats: Mapping[str, ui.Row], timing: Sequence[ui.Row]) -> Iterator[ui.Block]:
    """All figures of all domains, means of the first and of the last batches."""
    yield "Means of the first and the last batches, first → last."
    yield ui.Table(["domain", *_MEANS.values()], _changes(stats, [*_MEANS]))
    reasons: set[str] = set()
    for figures in stats.values():
        reasons |= {key for key in figures["last"] if key.startswith("unscored_")}
    if reasons:
        head = [reason.removeprefix("unscored_") for reason in sorted(reasons)]
        yield ui.Table(["unscored", *head], _changes(stats, sorted(reasons)))
    verifier_rows = [row["verifiers"] for row in timing if "verifiers" in row]
    if verifier_rows:
        seconds: list[list[object]] = []
        for domain, percentiles in verifier_rows[-1].items():
            seconds.append([domain, f"{percentiles['p50']:.4f}", f"{percentiles['p95']:.4f}"])
        yield ui.Table(["seconds a verification", "median of the last batch", "95 %"], seconds)


def _changes(stats: Mapping[str, ui.Row], keys: Sequence[str]) -> list[list[object]]:
    """A row for each domain, with the change of each figure."""
    rows: list[list[object]] = []
    for domain, figures in stats.items():
        rows.append([domain, *(_change(figures, key) for key in keys)])
    return rows


def _change(figures: ui.Row, key: str) -> str | None:
    values = [figures["first"].get(key), figures["last"].get(key)]
    if values == [None, None]:
        return None
    digits = 1 if key.endswith("tokens") else 3
    return " → ".join("–" if value is None else ui.decimal(value, digits) for value in values)
