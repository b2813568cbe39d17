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
    """All sections but the speed of one run; which of them, its stats and its log say."""
    logs = [row for row in rows if "rollouts" in row]  # rows about a whole batch of rollouts
    groups = read_groups(node)
    timing = side_rows(node, TIMING)
    head, means, charts = _HEADS.get(stats["method"]) or _described_by_parts(stats, logs)
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
    # a descendant's page shows those of the last batch
    yield groups_to_read([g for g in groups if not node.depth or g["step"] == groups[-1]["step"]])
    title = f"Seconds of {head}"
    why = f"{node.name} has no {TIMING}"
    yield seconds(title, timing) if timing else ui.Section(title, missing=why)


def _described_by_parts(
    stats: ui.Row, logs: Sequence[ui.Row]
) -> tuple[str, Mapping[str, str], Sequence[Curve]]:
    """Name, means and charts of a method with a reward of its own: the parts that it logged."""
    parts = sorted({key for row in logs for key in row if key.startswith("part/")})
    names = {key: key.removeprefix("part/").replace("_", " ") for key in parts}
    means = {"reward": "reward", "reward_std": "deviation of the rewards", **names, **MEANS}
    charts = [Curve("Mean over the scored rollouts of a batch.", "reward", "reward")]
    charts += [Curve(f"Part of the reward: {name}.", "reward", key) for key, name in names.items()]
    return stats["method"].upper(), means, charts


def tiles(stats: ui.Row, rows: Sequence[ui.Row]) -> list[ui.Tile]:
    """What the run is trained for, as it measured itself: means of its first and last batches."""
    logs = [{**row, TOKENS: sum(row.get(key, 0) for key in LENGTHS)} for row in rows]
    logs = [row for row in logs if "rollouts" in row]
    batches = stats["averaged"]
    found: list[ui.Tile] = []
    if "curriculum" in stats:
        found.append(rlvr.learned_tile(stats["curriculum"]["prompts"], logs[-batches:]))
    for key, name, share in _TILES:
        first = [row[key] for row in logs[:batches] if key in row]
        last = [row[key] for row in logs[-batches:] if key in row]
        if first and last and (any(first) or any(last) or key == "reward"):
            found.append(_changed(name, first, last, share=share))
    return found


TOKENS = "tokens of a rollout"
# RLHF's reward comes behind accuracy: its judge compares rollouts of one policy with each other
_TILES = (
    ("part/accuracy", "right on checkable prompts", True),
    ("part/pass", "of the rollouts pass", True),
    ("part/right_order", "pairs ordered right", True),
    ("part/format", "verdicts in their format", True),
    ("reward", "reward", False),
    (TOKENS, TOKENS, False),
    ("truncated", "of the rollouts truncated", True),
)


def _changed(name: str, first: Sequence[float], last: Sequence[float], *, share: bool) -> ui.Tile:
    """Means of batches with Welch's interval of their change, in which a batch is one draw."""
    scale, unit = (100, " %") if share else (1, "")
    before, after = scale * statistics.fmean(first), scale * statistics.fmean(last)
    digits = 1 if share or abs(after) >= 10 else 3
    values = f"{before:.{digits}f} → {after:.{digits}f}{unit}".replace("-", "−")
    if min(len(first), len(last)) < 2:
        return values, name, f"{ui.signed(after - before, digits)}, of one batch each: no interval"
    # imported here: a report needs no numpy
    from posttrain.evaluation.intervals import welch

    low, high = welch([scale * value for value in first], [scale * value for value in last])
    about = effects.interval(after - before, low, high, digits)
    return values, name, f"{about}, first and last {len(last)} batches"


def _run(stats: ui.Row, names: Mapping[str, str]) -> Iterator[ui.Block]:
    """The run, and means over its first and its last batches of the quantities that it logged."""
    size = f"{stats['prompts_per_step']} prompts × {stats['num_generations']} rollouts"
    run = {
        "batches": f"{stats['batches']:,} of {size}, {stats['epochs']:.2f} epochs",
        "optimiser steps": stats["steps"],
        "tokens": f"{stats['tokens']:,} sampled, {stats['trained']:,} in the loss",
        "processes": f"{stats['world_size']}, sharding {stats['sharding']}",
    }
    yield ui.Table(["run", "value"], [*run.items()])
    first, last = stats["first"], stats["last"]
    rows = [
        [name, f"{first[key]:.3f}", f"{last[key]:.3f}", f"{last[key] - first[key]:+.3f}"]
        for key, name in names.items()
        if key in first and key in last
    ]
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
    """Where the time went, of the last run of every batch."""
    # a batch that was sampled again after a kill has two rows
    last = {row["step"]: row for row in rows}
    names = dict.fromkeys(key for row in rows for key in row if key not in ("step", "verifiers"))
    sums = {name: sum(row.get(name, 0.0) for row in last.values()) for name in names}
    shown = [
        [name, f"{value:,.1f}", f"{value / len(last):,.2f}", ui.ratio(value, sum(sums.values()))]
        for name, value in sums.items()
    ]
    note = f"Seconds of the main process over {len(last):,} batches; other work is not counted."
    return ui.Section(title, [note, ui.Table(["part", "seconds", "a batch", "share"], shown)])


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
            mean, size = statistics.fmean(values), statistics.fmean(map(abs, values))
            changed = ui.percent(sum(value != 0 for value in values) / len(values))
            span = f"{min(values):+.2f} to {max(values):+.2f}"
            rows.append([name, f"{mean:+.3f}", f"{size:.3f}", changed, span])
    head = ["part", "mean", "mean size", "rollouts it changes", "from, to"]
    if rows:
        yield "Over the scored rollouts that were read, in points of the judge's scale."
        yield ui.Table(head, rows)


def _counted(rows: Sequence[ui.Row]) -> tuple[Counter[str], dict[str, float]]:
    """The counts of some batches, added up, and the shares that curves of judges draw of them."""
    n = Counter[str]()
    for row in rows:
        n.update({k.removeprefix("count/"): v for k, v in row.items() if k.startswith("count/")})
    first, placed = n["position_1_wins"], n["prefers_1"] + n["prefers_2"]
    parts = {
        "failed": (n["judge_failed"], n["matches"]),
        "ties": (n["ties"], n["matches"] - n["judge_failed"]),
        "first preferred": (first, first + n["position_2_wins"]),
        "prefers first": (n["prefers_1"], placed),
        "prefers neither": (n["prefers_neither"], placed + n["prefers_neither"]),
    }
    return n, {name: part / whole for name, (part, whole) in parts.items() if whole}


@ui.section("The judge")
def the_judge(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    judged = [row for row in rows if row.get("count/matches")]
    if not judged:
        return
    n, shares = _counted(judged)
    decided = n["position_1_wins"] + n["position_2_wins"]
    table = {
        "matches": f"{n['matches']:,.0f}, {n['matches'] / len(judged):,.1f} a batch",
        "calls": f"{n['judge_calls']:,.0f}, of them retries {n['judge_retries']:,.0f}",
        "verdicts from the cache": f"{n['judge_cached']:,.0f}",
        "tokens read": f"{n['judge_prompt_tokens']:,.0f}",
        "tokens written": f"{n['judge_completion_tokens']:,.0f}",
        "failed": ui.percent(shares["failed"], 2),
        "equal scores": ui.percent(shares.get("ties")),
        f"first answer preferred, of {decided:,.0f}": ui.percent(shares.get("first preferred")),
    }
    yield ui.Table(["judge", "value"], [*table.items()])
    yield "A judge without position bias prefers the first answer in 50 %."
    yield from curves([{**row, **_counted([row])[1]} for row in judged], _JUDGE_CURVES)


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
    yield from curves([{**row, **_counted([row])[1]} for row in rows], _VERDICT_CURVES)


# distillation: teachers score rollouts token by token

_DISTILL_MEANS = {
    "part/reverse_kl": "reverse KL from the teachers, nats a token",
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
        "part/reverse_kl",
    ),
    Curve("Tokens masked by importance sampling.", "share", "masked_tokens"),
)


@ui.section("Teachers and their domains")
def teachers(stats: ui.Row) -> Iterator[ui.Block]:
    yield "Reverse KL from its teacher in nats a token, over the first and the last batches."
    rows: list[list[object]] = []
    for domain, figures in stats["domains"].items():
        kls = [figures[part].get("token_reward") for part in ("first", "last")]
        shown = ["–" if kl is None else f"{-kl:.4f}" for kl in kls]
        unscored = ui.percent(figures["last"].get("unscored"))
        rows.append([domain, stats["routes"][domain], *shown, unscored])
    yield ui.Table(["domain", "teacher", "first", "last", "unscored at the end"], rows)


# method → how its sections are named, its means before and after, the charts beside them
_HEADS: dict[str, tuple[str, Mapping[str, str], Sequence[Curve]]] = {
    "grpo": ("GRPO", _RLHF_MEANS, _REWARD_CURVES),
    "rlhf": ("RLHF", _RLHF_MEANS, _REWARD_CURVES),
    "rlvr": ("RLVR", rlvr.RUN_MEANS, rlvr.CURVES),
    "distill": ("Distillation", _DISTILL_MEANS, _DISTILL_CURVES),
    "genrm": ("GenRM", _JUDGE_MEANS, ()),
}
