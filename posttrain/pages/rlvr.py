"""Pass rates of prompts, and what RLVR did domain by domain: the paper's figure 6."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from posttrain.lineage import Node
from posttrain.pages import effects
from posttrain.pages.rollouts import MEANS
from posttrain.pages.samples import completions, prompts_by_source, settings
from posttrain.report import section as ui
from posttrain.report.curves import Curve, curves


def profile_sections(node: Node) -> ui.Sections:
    """All sections of one `pass_rates` artifact."""
    yield effects.alerts(effects.alerts_of(node))
    stats = node.stats
    yield pass_rates(stats["rates"], stats["n"])
    yield drift(stats["rates"])
    yield settings(stats["settings"])
    if "sources" in stats:
        yield prompts_by_source(stats)
    yield completions(node, "Rollouts to read")


def profile_tiles(node: Node) -> list[ui.Tile]:
    """Prompts for training, the mean pass rate, what could not be scored."""
    found = node.stats["rates"].values()
    prompts, kept, passes, scored, rollouts = (
        sum(own[key] for own in found)
        for key in ("prompts", "kept", "passes", "scored", "rollouts")
    )
    return [
        (f"{prompts:,} → {kept:,}", "prompts profiled → for training", ""),
        (ui.ratio(passes, scored) or "–", "of the rollouts pass", f"{scored:,} scored"),
        (ui.ratio(rollouts - scored, rollouts, 2) or "–", "unscored", f"of {rollouts:,} rollouts"),
    ]


@ui.section("Pass rates")
def pass_rates(rates: Mapping[str, ui.Row], n: int) -> Iterator[ui.Block]:
    """By source: how often prompts pass, what was dropped, lengths; a histogram each."""
    head = ["source", "passes", "prompts", "for training", "truncated", "unscored"]
    rows: list[list[object]] = []
    for source, own in rates.items():
        shares = [ui.ratio(own["passes"], own["scored"])]
        shares += [ui.ratio(own["truncated"], own["rollouts"]), ui.counted(own["unscored"]) or None]
        lengths = [f"{own[name]:.1f}" for name in ("reasoning_tokens", "answer_tokens")]
        dropped = ui.counted(own["dropped"]) or None
        passes, *others = shares
        rows.append([source, passes, own["prompts"], own["kept"], *others, *lengths, dropped])
    yield ui.Table([*head, "reasoning tokens", "answer tokens", "dropped"], rows)
    for source, own in rates.items():
        bars = [(f"{k}/{n}", (count,)) for k, count in enumerate(own["buckets"])]
        caption = f"{source}: prompts by passes out of {n}; those with {n} are dropped."
        yield ui.BarChart(bars, "pass rate", "prompts", caption)


@ui.section("Drift between profiles")
def drift(rates: Mapping[str, ui.Row]) -> Iterator[ui.Block]:
    """How the pass rates of the same prompts moved since the profile before."""
    rows = [
        [source, own["prompts"], ui.percent(own["before"]), ui.percent(own["now"])]
        + [own[key] for key in ("rose", "fell", "now_solved", "now_unsolved")]
        for source, found in rates.items()
        if (own := found.get("drift")) is not None
    ]
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
    """How often the prompts of some batches passed in the profile, and how often they do now:
    shares of a batch would fall where the curriculum makes it harder."""
    # imported here: a report needs no numpy
    from posttrain.evaluation.compare import length_difference
    from posttrain.evaluation.intervals import by_question

    sides: list[list[float]] = []
    for key in ("drawn", "pass_rate"):
        sides.append([100 * _over_domains(prompts, row, key) for row in logs])
    before, after = (statistics.fmean(side) for side in sides)
    about = f"{ui.signed(after - before, 1)}, of one batch: no interval"
    if len(logs) > 1:
        # a batch is one draw of prompts, as a question is elsewhere
        batches = (by_question([(share, n) for n, share in enumerate(side)]) for side in sides)
        found = length_difference(*batches)
        change = effects.interval(found.difference, found.low, found.high)
        about = f"{change}, prompts of the last {len(logs)} batches"
    return f"{before:.1f} → {after:.1f} %", "pass, in the profile → in training", about


def _over_domains(prompts: Mapping[str, int], row: ui.Row, key: str) -> float:
    """The mean over the domains of a batch, by how many prompts the run has of each."""
    shares = {name: row.get(f"domain/{name}/{key}") for name in prompts}
    known = {name: share for name, share in shares.items() if share is not None}
    total = sum(prompts[name] for name in known)
    return sum(prompts[name] * share for name, share in known.items()) / max(total, 1)


@ui.section("Curriculum")
def curriculum(stats: ui.Row, logs: Sequence[ui.Row]) -> Iterator[ui.Block]:
    """Pass rate aimed at, drawn and realised by domain and step."""
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
        named = {name: f"domain/{domain}/{key}" for name, key in keys.items()}
        yield from curves(logs, [Curve(f"{domain}: pass rate of its prompts.", "share", named)])


@ui.section("Domains")
def domains(stats: Mapping[str, ui.Row], timing: Sequence[ui.Row]) -> Iterator[ui.Block]:
    """Every figure of every domain, means of the first and of the last batches."""
    rows = [[name, *(_change(own, key) for key in _MEANS)] for name, own in stats.items()]
    yield "Means of the first and the last batches, first → last."
    yield ui.Table(["domain", *_MEANS.values()], rows)
    kinds = sorted(
        {key for own in stats.values() for key in own["last"] if key.startswith("unscored_")}
    )
    if kinds:
        rows = [[name, *(_change(own, key) for key in kinds)] for name, own in stats.items()]
        yield ui.Table(["unscored", *(kind.removeprefix("unscored_") for kind in kinds)], rows)
    seconds = [row["verifiers"] for row in timing if "verifiers" in row]
    if seconds:
        rows = [
            [name, *(f"{own[k]:.4f}" for k in ("p50", "p95"))] for name, own in seconds[-1].items()
        ]
        yield ui.Table(["seconds a verification", "median of the last batch", "95 %"], rows)


def _change(own: ui.Row, key: str) -> str | None:
    first, last = own["first"].get(key), own["last"].get(key)
    if first is None and last is None:
        return None
    digits = 1 if key.endswith("tokens") else 3
    return " → ".join("–" if value is None else f"{value:.{digits}f}" for value in (first, last))
