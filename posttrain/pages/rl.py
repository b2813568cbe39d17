"""A checkpoint of group-relative training: RLVR, RLHF, and the training of a judge."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from posttrain.lineage import Node, side_rows
from posttrain.pages import effects, rlvr
from posttrain.pages.rollouts import (
    ADDED,
    LENGTHS,
    MEANS,
    groups_to_read,
    part_values,
    read_groups,
    rollouts_of,
    spreads,
)
from posttrain.report import section as ui
from posttrain.report.curves import Curve, curves

TIMING = "timing.jsonl"


def sections(node: Node, stats: ui.Row, rows: Sequence[ui.Row]) -> ui.Sections:
    """All sections of a run but its speed, drawn from what its stats and its log hold."""
    logs = [row for row in rows if "rollouts" in row]  # rows about a whole batch of rollouts
    groups = read_groups(node)
    timing = side_rows(node, TIMING)
    method: str = stats["method"]
    head = method_title(method)
    means, charts = _reward_figures(logs)
    yield ui.Section(head, [*_run(stats, means), *curves(logs, charts)])
    if "curriculum" in stats:
        yield rlvr.curriculum(stats["curriculum"], logs)
    if "domains" in stats:
        yield rlvr.domains(stats["domains"], timing)
    if "routes" in stats:
        yield teachers(stats)
    yield verdicts(logs)
    yield added_rewards(rollouts_of(groups))
    yield the_judge(logs)
    yield ui.Section("Lengths of rollouts", curves(logs, _LENGTH_CURVES))
    yield ui.Section(f"Health of {head}", curves(rows, _HEALTH_CURVES))
    yield spreads(f"Advantages and importance weights of {head}", groups)
    # the page of a descendant shows the last batch alone
    if node.depth:
        groups = [group for group in groups if group["step"] == groups[-1]["step"]]
    yield groups_to_read(groups)
    title = f"Seconds of {head}"
    if timing:
        yield seconds(title, timing)
    else:
        yield ui.Section(title, missing=f"{node.name} has no {TIMING}")


def method_title(method: str) -> str:
    """Name of a method in titles."""
    return _TITLES.get(method, method.upper())


def _reward_figures(logs: Sequence[ui.Row]) -> tuple[Mapping[str, str], Sequence[Curve]]:
    """Names of the means, and charts, of the reward whose parts a log holds."""
    parts: set[str] = set()
    for row in logs:
        parts |= {key for key in row if key.startswith("part/")}
    for part, means, charts in _REWARDS:
        if part in parts:
            return means, charts
    # a reward that no page knows is drawn part by part
    names = {part: part.removeprefix("part/").replace("_", " ") for part in sorted(parts)}
    means = {"reward": "reward", "reward_std": "deviation of the rewards", **names, **MEANS}
    charts = [Curve("Mean over the scored rollouts of a batch.", "reward", "reward")]
    for part, name in names.items():
        charts.append(Curve(f"Part of the reward: {name}.", "reward", part))
    return means, charts


def tiles(stats: ui.Row, rows: Sequence[ui.Row]) -> list[ui.Tile]:
    """Figures that the run is trained for, means over its first and its last batches."""
    logs: list[ui.Row] = []
    for row in rows:
        if "rollouts" in row:
            logs.append({**row, _TOKENS: sum(row.get(key, 0) for key in LENGTHS)})
    batches = stats["averaged"]
    shown: list[ui.Tile] = []
    if "curriculum" in stats:
        shown.append(rlvr.learned_tile(stats["curriculum"]["prompts"], logs[-batches:]))
    for key, name, is_share in _TILES:
        first_values = [row[key] for row in logs[:batches] if key in row]
        last_values = [row[key] for row in logs[-batches:] if key in row]
        if not first_values or not last_values:
            continue
        # a figure that stayed 0 says nothing, except for the reward
        if any(first_values) or any(last_values) or key == "reward":
            shown.append(_change_tile(name, first_values, last_values, is_share=is_share))
    return shown


_TOKENS = "tokens of a rollout"
_REVERSE_KL = "part/reverse_kl"
# RLHF's reward comes after accuracy: its judge compares rollouts of one policy with each other
_TILES = (
    ("part/accuracy", "right on checkable prompts", True),
    ("part/pass", "of the rollouts pass", True),
    ("part/right_order", "pairs ordered right", True),
    ("part/format", "verdicts in their format", True),
    (_REVERSE_KL, "nats a token, KL from the teachers", False),
    ("reward", "reward", False),
    (_TOKENS, _TOKENS, False),
    ("truncated", "of the rollouts truncated", True),
)


def _change_tile(
    name: str, first_values: Sequence[float], last_values: Sequence[float], *, is_share: bool
) -> ui.Tile:
    """Means of the first and last batches, with Welch's interval of their change.

    A batch is one draw.
    """
    scale = 100 if is_share else 1
    unit = " %" if is_share else ""
    start = scale * statistics.fmean(first_values)
    end = scale * statistics.fmean(last_values)
    digits = 1 if is_share or abs(end) >= 10 else 3
    values = f"{ui.decimal(start, digits)} → {ui.decimal(end, digits)}{unit}"
    if min(len(first_values), len(last_values)) < 2:
        return values, name, f"{ui.signed(end - start, digits)}, of one batch each: no interval"
    # imported here: a report needs no numpy
    from posttrain.evaluation.intervals import welch

    low, high = welch(
        [scale * value for value in first_values], [scale * value for value in last_values]
    )
    change = effects.interval(end - start, low, high, digits)
    return values, name, f"{change}, first and last {len(last_values)} batches"


def _run(stats: ui.Row, names: Mapping[str, str]) -> Iterator[ui.Block]:
    """Table of the run, and of means over its first and its last batches.

    Args:
        names: key of the log → its name, for the means.
    """
    size = f"{stats['prompts_per_step']} prompts × {stats['num_generations']} rollouts"
    run = {
        "batches": f"{stats['batches']:,} of {size}, {stats['epochs']:.2f} epochs",
        "optimiser steps": stats["steps"],
        "tokens": f"{stats['tokens']:,} sampled, {stats['trained']:,} in the loss",
        "processes": f"{stats['world_size']}, sharding {stats['sharding']}",
    }
    yield ui.Table(["run", "value"], [*run.items()])
    start = stats["first"]
    end = stats["last"]
    rows: list[list[object]] = []
    for key, name in names.items():
        if key in start and key in end:
            change = ui.signed(end[key] - start[key], 3)
            rows.append([name, ui.decimal(start[key], 3), ui.decimal(end[key], 3), change])
    yield f"Means over the first and the last {stats['averaged']} of {stats['batches']} batches."
    yield ui.Table(["", "first", "last", "change"], rows)


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


_LENGTH_CURVES = (
    Curve(
        "Mean tokens of a rollout: reasoning (where thinking is on) and answer.",
        "tokens",
        {"reasoning": "reasoning_tokens", "answer": "answer_tokens"},
    ),
    Curve("Sampled tokens of a rollout, everything counted.", "tokens", "completion_tokens"),
    Curve("Rollouts cut off by a limit.", "share", "truncated"),
)


def seconds(title: str, rows: Sequence[ui.Row]) -> ui.Section:
    """Seconds of the main process by the part of a step that took them."""
    # a batch that was sampled again after a kill has two rows: the later one counts
    row_of_step = {row["step"]: row for row in rows}
    batches = len(row_of_step)
    sums: dict[str, float] = {}
    for row in rows:
        sums |= {name: 0.0 for name in row if name not in ("step", "verifiers")}
    for row in row_of_step.values():
        for name in sums:
            sums[name] += row.get(name, 0.0)
    total = sum(sums.values())
    table: list[list[object]] = []
    for name, value in sums.items():
        table.append([name, f"{value:,.1f}", f"{value / batches:,.2f}", ui.ratio(value, total)])
    note = f"Seconds of the main process over {batches:,} batches; other work is not counted."
    return ui.Section(title, [note, ui.Table(["part", "seconds", "a batch", "share"], table)])


# RLHF: a judge compares rollouts

_RLHF_MEANS = {
    "reward": "reward",
    "part/base": "base reward, the judge's",
    "reward_std": "deviation of the rewards",
    "part/accuracy": "accuracy on checkable prompts",
    **MEANS,
}
_REWARD_CURVES = (
    Curve(
        "Mean over the scored rollouts of a batch. A judge compares rollouts of one policy with "
        "each other: this says less than a comparison with the initial policy.",
        "reward",
        {"reward": "reward", "base reward": "part/base"},
    ),
    Curve("Right answers where they can be checked; not rewarded.", "share", "part/accuracy"),
    Curve("Deviation of the rewards over all rollouts of a batch.", "reward", "reward_std"),
)


CURVE_GROUPS = {"Rewards": _REWARD_CURVES, "Lengths": _LENGTH_CURVES, "Health": _HEALTH_CURVES}


@ui.section("Added to the judge's reward")
def added_rewards(rollouts: Sequence[ui.Row]) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for key, name in ADDED.items():
        values = part_values(rollouts, key)
        if values:
            mean = statistics.fmean(values)
            mean_size = statistics.fmean(map(abs, values))
            changed = ui.percent(sum(value != 0 for value in values) / len(values))
            span = f"{ui.signed(min(values), 2)} to {ui.signed(max(values), 2)}"
            rows.append([name, ui.signed(mean, 3), f"{mean_size:.3f}", changed, span])
    head = ["part", "mean", "mean size", "rollouts it changes", "from, to"]
    if rows:
        yield "Over the scored rollouts that were read, in points of the judge's scale."
        yield ui.Table(head, rows)


def _judge_counts(rows: Sequence[ui.Row]) -> Counter[str]:
    """Counts of the judge, added up over some batches."""
    counts = Counter[str]()
    for row in rows:
        for key, value in row.items():
            if key.startswith("count/"):
                counts[key.removeprefix("count/")] += value
    return counts


def _judge_shares(counts: Counter[str]) -> dict[str, float]:
    """Shares that the curves of judges draw, those of nothing left out."""
    wins = counts["position_1_wins"] + counts["position_2_wins"]
    preferences = counts["prefers_1"] + counts["prefers_2"]
    verdicts = preferences + counts["prefers_neither"]
    shares = {
        "failed": (counts["judge_failed"], counts["matches"]),
        "ties": (counts["ties"], counts["matches"] - counts["judge_failed"]),
        "first preferred": (counts["position_1_wins"], wins),
        "prefers first": (counts["prefers_1"], preferences),
        "prefers neither": (counts["prefers_neither"], verdicts),
    }
    return {name: part / total for name, (part, total) in shares.items() if total}


def _with_judge_shares(rows: Sequence[ui.Row]) -> list[ui.Row]:
    return [{**row, **_judge_shares(_judge_counts([row]))} for row in rows]


@ui.section("The judge")
def the_judge(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    judged_rows = [row for row in rows if row.get("count/matches")]
    if not judged_rows:
        return
    counts = _judge_counts(judged_rows)
    shares = _judge_shares(counts)
    matches = counts["matches"]
    decided = counts["position_1_wins"] + counts["position_2_wins"]
    table = {
        "matches": f"{matches:,.0f}, {matches / len(judged_rows):,.1f} a batch",
        "calls": f"{counts['judge_calls']:,.0f}, of them retries {counts['judge_retries']:,.0f}",
        "verdicts from the cache": f"{counts['judge_cached']:,.0f}",
        "tokens read": f"{counts['judge_prompt_tokens']:,.0f}",
        "tokens written": f"{counts['judge_completion_tokens']:,.0f}",
        "failed": ui.percent(shares["failed"], 2),
        "equal scores": ui.percent(shares.get("ties")),
        f"first answer preferred, of {decided:,.0f}": ui.percent(shares.get("first preferred")),
    }
    yield ui.Table(["judge", "value"], [*table.items()])
    yield "A judge without position bias prefers the first answer in 50 %."
    yield from curves(_with_judge_shares(judged_rows), _JUDGE_CURVES)


_JUDGE_CURVES = (
    Curve("Rankings that prefer the first answer, of all that decide.", "share", "first preferred"),
    Curve("Equal scores: parted by the ranking.", "share", "ties"),
    Curve("Matches left without a verdict.", "share", "failed"),
    Curve("Calls of the judge, a batch.", "calls", "count/judge_calls"),
    Curve(
        "Tokens the judge read and wrote, a batch.",
        "tokens",
        {"read": "count/judge_prompt_tokens", "written": "count/judge_completion_tokens"},
    ),
)


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
    Curve("Judgements with the order of gold; half for a draw.", "share", "part/right_order"),
    Curve(
        "Distance of the scores from gold, where there is a verdict.",
        "points",
        {"score 1": "part/score_error_1", "score 2": "part/score_error_2"},
    ),
    Curve("Distance of the ranking from gold.", "points", "part/ranking_error"),
    Curve("Verdicts that prefer the first, of those that decide.", "share", "prefers first"),
    Curve("Verdicts that prefer neither answer.", "share", "prefers neither"),
)


@ui.section("Verdicts against gold")
def verdicts(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    # the first chart is of the plain reward, which every method logs
    if any("part/right_order" in row for row in rows):
        yield from curves(_with_judge_shares(rows), _VERDICT_CURVES)


# distillation: teachers score rollouts token by token

_DISTILL_MEANS = {
    _REVERSE_KL: "reverse KL from the teachers, nats a token",
    "masked_tokens": "tokens masked by importance sampling, share",
    "unscored": "rollouts that no teacher scored, share",
    "answer_tokens": "answer tokens",
    "reasoning_tokens": "reasoning tokens",
    "truncated": "truncated, share",
    "entropy": "entropy, nats a token",
}
_DISTILL_CURVES = (
    Curve(
        "Estimated KL(student ‖ teacher) at what the student wrote, mean over rollouts.",
        "nats a token",
        _REVERSE_KL,
    ),
    Curve("Tokens masked by importance sampling.", "share", "masked_tokens"),
)


@ui.section("Teachers and their domains")
def teachers(stats: ui.Row) -> Iterator[ui.Block]:
    figure = "Mean reward of a token"
    sign = 1
    if _REVERSE_KL in stats["first"] or _REVERSE_KL in stats["last"]:
        figure = "Reverse KL from its teacher in nats a token"
        sign = -1  # a token's reward is minus its share
    yield f"{figure}, over the first and the last batches."
    rows: list[list[object]] = []
    for domain, figures in stats["domains"].items():
        row: list[object] = [domain, stats["routes"][domain]]
        for batches in ("first", "last"):
            token_reward = figures[batches].get("token_reward")
            row.append("–" if token_reward is None else ui.decimal(sign * token_reward, 4))
        row.append(ui.percent(figures["last"].get("unscored")))
        rows.append(row)
    yield ui.Table(["domain", "teacher", "first", "last", "unscored at the end"], rows)


# titles of methods that are no abbreviation
_TITLES = {"distill": "Distillation", "genrm": "GenRM"}
# part that a reward alone logs, the means that a run shows of it, and the charts beside them
_REWARDS: tuple[tuple[str, Mapping[str, str], Sequence[Curve]], ...] = (
    (_REVERSE_KL, _DISTILL_MEANS, _DISTILL_CURVES),
    ("part/right_order", _JUDGE_MEANS, ()),
    ("part/pass", rlvr.RUN_MEANS, rlvr.CURVES),
    ("part/base", _RLHF_MEANS, _REWARD_CURVES),
)
