"""A checkpoint of group-relative training: RLHF, and the training of a judge."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from posttrain.report.curves import Curve, curves
from posttrain.report.lineage import Node, side_rows
from posttrain.report.pages.rollouts import RolloutBatch, groups_to_read, read_rollouts, spreads
from posttrain.report.section import (
    Block,
    Definitions,
    LeftOut,
    Row,
    Section,
    Table,
    Tile,
    percent,
    section,
    signed,
)

TIMING = "timing.jsonl"


def sections(node: Node, stats: Row, rows: Sequence[Row]) -> Iterator[Section | LeftOut]:
    """All sections but the speed of one run, by its reward."""
    logs = [row for row in rows if "rollouts" in row]  # rows about a whole batch of rollouts
    batches = read_rollouts(node)
    if stats["method"] == "genrm":
        yield Section("Training of the judge", [_run(stats), *_means(stats, _JUDGE_MEANS)])
        yield verdicts(logs)
        yield verdicts_by_source(batches)
        own, of, to_read = "the judge's training", " of the judge", "Judgements to read"
        yield lengths("Lengths of judgements", logs)
    else:
        yield Section(
            "RLHF", [_run(stats), *_means(stats, _RLHF_MEANS), *curves(logs, _REWARD_CURVES)]
        )
        yield added_rewards(batches)
        own, of, to_read = "RLHF", "", "Groups to read"
        yield lengths("Lengths of rollouts", logs)
        yield the_judge(logs)
    yield Section(f"Health of {own}", curves(rows, _HEALTH_CURVES))
    yield spreads(f"Advantages and importance weights{of}", node, batches)
    yield groups_to_read(to_read, batches)
    title = f"Seconds of {own}"
    timing = side_rows(node, TIMING)
    yield seconds(title, timing) if timing else LeftOut(title, f"{node.name} has no {TIMING}")


def tiles(stats: Row) -> list[Tile]:
    """What the run is trained for, before and after."""
    first, last, averaged = stats["first"], stats["last"], stats["averaged"]
    note = f"mean of the last {averaged} batches"
    found: list[Tile] = []
    if "reward" in first and "reward" in last:
        found.append((f"{last['reward']:.3f}", "reward", f"was {first['reward']:.3f}; {note}"))
    for key, name in (
        ("part/accuracy", "right on checkable prompts"),
        ("part/right_order", "pairs ordered right"),
        ("part/format", "verdicts in their format"),
    ):
        if key in first and key in last:
            share = f"{100 * last[key]:.1f} %"
            found.append((share, name, f"was {percent(first[key])}; {note}"))
    keys = ("reasoning_tokens", "answer_tokens")
    before, after = (sum(some.get(key, 0) for key in keys) for some in (first, last))
    if before:
        change = signed(100 * (after / before - 1), 0, "%")
        found.append((f"{after:,.0f}", "tokens a rollout", f"{change}; was {before:,.0f}"))
    cut, was = f"{100 * last['truncated']:.1f} %", percent(first["truncated"])
    found.append((cut, "of the rollouts truncated", f"was {was}; {note}"))
    return found


def _run(stats: Row) -> Definitions:
    size = f"{stats['prompts_per_step']} prompts × {stats['num_generations']} rollouts"
    return Definitions(
        [
            ("batches", f"{stats['batches']:,} of {size}"),
            ("optimiser steps", stats["steps"]),
            ("epochs", f"{stats['epochs']:.2f}"),
            ("tokens sampled", stats["tokens"]),
            ("of them in the loss", stats["trained"]),
            ("processes", f"{stats['world_size']}, sharding {stats['sharding']}"),
        ]
    )


def _means(stats: Row, names: Mapping[str, str]) -> list[Block]:
    """Means over the first and the last batches; quantities not logged are left out."""
    first, last = stats["first"], stats["last"]
    rows = [
        [name, f"{first[key]:.3f}", f"{last[key]:.3f}", f"{last[key] - first[key]:+.3f}"]
        for key, name in names.items()
        if key in first and key in last
    ]
    averaged, batches = stats["averaged"], stats["batches"]
    note = f"Means over the first and the last {averaged} batches of rollouts."
    if 2 * averaged > batches:
        note += f" The run had {batches}: these are partly the same."
    return [note, Table(["", "first", "last", "change"], rows)]


_HEALTH_CURVES = (
    Curve("Groups without any advantage: nothing to learn from.", "share", "zero_variance"),
    Curve("Entropy of the policy, a token.", "nats", "entropy"),
    Curve("Rollouts without a reward.", "share", "unscored"),
    Curve("Gradient norm before clipping.", "norm", "grad_norm"),
    Curve(
        "Left out of the loss by importance sampling.",
        "share",
        {"tokens": "masked_tokens", "completions": "masked_completions"},
    ),
    Curve("Estimated KL from the initial policy, a token.", "nats", "kl"),
)


def lengths(title: str, rows: Sequence[Row]) -> Section:
    """The length of rollouts, and the share that a limit cut."""
    charts = [
        Curve(
            "Mean tokens of a rollout: reasoning (where thinking is on) and answer.",
            "tokens",
            {"reasoning": "reasoning_tokens", "answer": "answer_tokens"},
        ),
        Curve("Sampled tokens of a rollout, everything counted.", "tokens", "completion_tokens"),
        Curve("Rollouts cut off by a limit.", "share", "truncated"),
    ]
    return Section(title, curves(rows, charts))


def seconds(title: str, rows: Sequence[Row]) -> Section:
    """Where the time went, of the last run of every batch."""
    # a batch that was sampled again after a kill has two rows
    last = {row["step"]: row for row in rows}
    names = [name for name in dict.fromkeys(k for row in rows for k in row) if name != "step"]
    sums = {name: sum(row.get(name, 0.0) for row in last.values()) for name in names}
    total = sum(sums.values())
    if not total:
        return Section(title, [])
    shown = [
        [name, f"{value:,.1f}", f"{value / len(last):,.2f}", percent(value / total)]
        for name, value in sums.items()
    ]
    note = f"Seconds of the main process over {len(last):,} batches; other work is not counted."
    head = ["part", "seconds", "a batch", "share"]
    return Section(title, [note, Table(head, shown)])


# RLHF: a judge compares rollouts

_RLHF_MEANS = {
    "reward": "reward",
    "part/base": "base reward, the judge's",
    "reward_std": "deviation of the rewards",
    "part/accuracy": "accuracy on checkable prompts",
    "reasoning_tokens": "reasoning tokens",
    "answer_tokens": "answer tokens",
    "truncated": "truncated, share",
    "zero_variance": "groups without advantage, share",
    "unscored": "unscored, share",
    "entropy": "entropy, nats a token",
}
# what the reward adds to the base; the other parts are only watched
_ADDED = {
    "reasoning_length": "reasoning length, zero-sum",
    "answer_length": "answer length, zero-sum",
    "reasoning_bonus": "bonus of the shortest reasoning",
    "answer_bonus": "bonus of the shortest answer",
    "style": "style, zero-sum",
    "absolute_penalty": "absolute length penalty",
}
_REWARD_CURVES = (
    Curve(
        "Mean over the scored rollouts of a batch; each batch has other prompts. A judge compares "
        "rollouts of one policy with each other: this curve says less than a comparison with the "
        "initial policy.",
        "reward",
        {"reward": "reward", "base reward": "part/base"},
    ),
    Curve(
        "Right answers on the prompts that can be checked; watched, not rewarded.",
        "share",
        "part/accuracy",
    ),
    Curve("Deviation of the rewards over all rollouts of a batch.", "reward", "reward_std"),
)


@section("Added to the judge's reward")
def added_rewards(batches: Sequence[RolloutBatch]) -> Iterator[Block]:
    """Mean and size of each part that is added, over the batches that were read."""
    rows: list[list[object]] = []
    for key, name in _ADDED.items():
        values = [
            value
            for batch in batches
            for rollout in batch.rollouts
            if (value := rollout["parts"].get(key)) is not None
        ]
        if values:
            mean, size = statistics.fmean(values), statistics.fmean(map(abs, values))
            changed = percent(sum(value != 0 for value in values) / len(values))
            span = f"{min(values):+.2f} to {max(values):+.2f}"
            rows.append([name, f"{mean:+.3f}", f"{size:.3f}", changed, span])
    head = ["part", "mean", "mean size", "rollouts it changes", "from, to"]
    if rows:
        yield f"Over the scored rollouts of {len(batches)} batches, in points of the judge's scale."
        yield Table(head, rows)


def judge_shares(row: Row) -> dict[str, float]:
    """Shares of a batch's judge counts; those without a base are left out."""

    def count(name: str) -> float:
        return row.get(f"count/{name}", 0)

    matches = count("matches")
    judged = matches - count("judge_failed")
    decided = count("position_1_wins") + count("position_2_wins")
    found: dict[str, float] = {}
    if matches:
        found["failed"] = count("judge_failed") / matches
    if judged:
        found["ties"] = count("ties") / judged
    if decided:
        found["first preferred"] = count("position_1_wins") / decided
    return found


@section("The judge")
def the_judge(rows: Sequence[Row]) -> Iterator[Block]:
    """Totals of the judge over the run, its shares and its cost by batch."""
    judged = [row for row in rows if row.get("count/matches")]
    if not judged:
        return
    charts = [
        Curve(
            "Rankings that prefer the answer shown first, of those that prefer one.",
            "share",
            "first preferred",
        ),
        Curve("Equal scores: parted by the ranking.", "share", "ties"),
        Curve("Matches left without a verdict.", "share", "failed"),
        Curve("Calls of the judge, a batch.", "calls", "count/judge_calls"),
        Curve(
            "Tokens the judge read and wrote, a batch.",
            "tokens",
            {"read": "count/judge_prompt_tokens", "written": "count/judge_completion_tokens"},
        ),
    ]
    yield _judge_totals(judged)
    yield from curves([{**row, **judge_shares(row)} for row in judged], charts)


def _judge_totals(rows: Sequence[Row]) -> Definitions:
    names = {name for row in rows for name in row if name.startswith("count/")}
    total = {name: sum(row.get(name, 0) for row in rows) for name in names}
    shares = judge_shares(total)
    matches, batches = total["count/matches"], len(rows)

    def count(name: str) -> float:
        return total.get(f"count/{name}", 0)

    pairs: list[tuple[str, object]] = [
        ("matches", f"{matches:,.0f}, {matches / batches:,.1f} a batch"),
        ("calls", f"{count('judge_calls'):,.0f}, of them retries {count('judge_retries'):,.0f}"),
        ("verdicts from the cache", f"{count('judge_cached'):,.0f}"),
        (
            "tokens read, written",
            f"{count('judge_prompt_tokens'):,.0f}, {count('judge_completion_tokens'):,.0f}",
        ),
        ("failed", percent(shares["failed"], 2)),
    ]
    if "ties" in shares:
        pairs.append(("equal scores", percent(shares["ties"])))
    if "first preferred" in shares:
        decided = count("position_1_wins") + count("position_2_wins")
        preferred = f"{percent(shares['first preferred'])} of {decided:,.0f} rankings"
        pairs.append(("first answer preferred", f"{preferred} (50 % without position bias)"))
    return Definitions(pairs)


# a judge's training: verdicts against gold

_JUDGE_MEANS = {
    "reward": "reward, at most 0",
    "part/format": "verdicts in their format, share",
    "part/right_order": "pairs ordered right, share",
    "part/score_error_1": "distance of score 1",
    "part/score_error_2": "distance of score 2",
    "part/ranking_error": "distance of the ranking",
    "reasoning_tokens": "reasoning tokens",
    "answer_tokens": "answer tokens",
    "truncated": "truncated, share",
    "zero_variance": "groups without advantage, share",
    "entropy": "entropy, nats a token",
}
_VERDICT_CURVES = (
    Curve(
        "A verdict's distances from gold, in both scores and the ranking, with a minus; a "
        "malformed one pays 10 and the worst distances possible.",
        "reward",
        "reward",
    ),
    Curve("Judgements whose verdict can be read.", "share", "part/format"),
    Curve(
        "Judgements that prefer what the gold prefers; half for a draw.",
        "share",
        "part/right_order",
    ),
    Curve(
        "Distance of the scores from gold, where there is a verdict.",
        "points",
        {"score 1": "part/score_error_1", "score 2": "part/score_error_2"},
    ),
    Curve(
        "Distance of the ranking from gold, where there is a verdict.",
        "points",
        "part/ranking_error",
    ),
    Curve(
        "Verdicts that prefer the first answer, of those that prefer one.", "share", "prefers first"
    ),
    Curve("Verdicts that prefer neither answer.", "share", "prefers neither"),
)


@section("Verdicts against gold")
def verdicts(rows: Sequence[Row]) -> Iterator[Block]:
    """Reward, format, order, distances and preferred place by batch."""
    yield from curves([{**r, **_places(r)} for r in rows], _VERDICT_CURVES)


def _places(row: Row) -> dict[str, float]:
    first, second, neither = (row.get(f"count/prefers_{name}", 0) for name in ("1", "2", "neither"))
    found: dict[str, float] = {}
    if first + second:
        found["prefers first"] = first / (first + second)
    if first + second + neither:
        found["prefers neither"] = neither / (first + second + neither)
    return found


@section("Verdicts by source")
def verdicts_by_source(batches: Sequence[RolloutBatch]) -> Iterator[Block]:
    """Means by the source of the pairs, over the batches that were read."""
    by_source: dict[str, list[Row]] = defaultdict(list)
    for batch in batches:
        for group in batch.groups:
            by_source[group["prompt"]["source"]] += group["rollouts"]
    rows = [
        [source, len(found)]
        + [percent(_mean(found, part)) for part in ("format", "right_order")]
        + [_three(_mean(found, part)) for part in _ERRORS]
        for source, found in sorted(by_source.items())
    ]
    head = ["source", "judgements", "format", "right order", *_ERRORS.values()]
    table = Table(head, rows)
    if rows:
        yield f"Over {len(batches)} batches of the training, the first and the last among them."
        yield table


_ERRORS = {
    "score_error_1": "score 1, off by",
    "score_error_2": "score 2, off by",
    "ranking_error": "ranking, off by",
}


def _mean(rollouts: Sequence[Row], part: str) -> float | None:
    values = [value for r in rollouts if (value := r["parts"].get(part)) is not None]
    return statistics.fmean(values) if values else None


def _three(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"
