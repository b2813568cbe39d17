"""The rollouts of a group-relative run: some batches read back, their spreads, groups to read."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence

from posttrain.lineage import Node, listed_rows
from posttrain.pages.samples import turns
from posttrain.report import section as ui
from posttrain.report.curves import histogram

FOLDER = "rollouts/"
MOST_STEPS = 8  # a run at scale has gigabytes of rollouts
SHOWN_VERDICT = 200
# parts that are lengths: a rollout's line shows them as a sum
LENGTHS = ("reasoning_tokens", "answer_tokens")
_VERDICT = ("score_1", "score_2", "ranking")
# parts that RLHF adds to the base reward, shown where they change something; parts of other names
# are only watched
ADDED = {
    "reasoning_length": "reasoning length, zero-sum",
    "answer_length": "answer length, zero-sum",
    "reasoning_bonus": "bonus of the shortest reasoning",
    "answer_bonus": "bonus of the shortest answer",
}
# key of the log of any group-relative run → its name
MEANS = {
    "reasoning_tokens": "reasoning tokens",
    "answer_tokens": "answer tokens",
    "truncated": "truncated, share",
    "zero_variance": "groups without advantage, share",
    "unscored": "unscored, share",
    "entropy": "entropy, nats a token",
}


def read_groups(node: Node) -> list[ui.Row]:
    """Read the groups of at most `MOST_STEPS` batches, spread evenly over the run.

    Raises:
        DataError: as `listed_rows`.
    """
    files = sorted(file.path for file in node.artifact.files if file.path.startswith(FOLDER))
    if len(files) > MOST_STEPS:
        stride = (len(files) - 1) / (MOST_STEPS - 1)
        files = [files[round(k * stride)] for k in range(MOST_STEPS)]
    groups: list[ui.Row] = []
    for file in files:
        groups += listed_rows(node, file) or ()
    return groups


def rollouts_of(groups: Sequence[ui.Row]) -> list[ui.Row]:
    """Rollouts of all groups in one list."""
    rollouts: list[ui.Row] = []
    for group in groups:
        rollouts += group["rollouts"]
    return rollouts


def part_values(rollouts: Sequence[ui.Row], part: str) -> list[float]:
    """Values of a part of the reward, of the rollouts that have one."""
    values = [rollout["parts"].get(part) for rollout in rollouts]
    return [value for value in values if value is not None]


def spreads(title: str, groups: Sequence[ui.Row]) -> ui.Section:
    """Histograms of advantages and importance weights over the batches that were read."""
    rollouts = rollouts_of(groups)
    advantages = [r["advantage"] for r in rollouts if r["advantage"] is not None]
    weights = [r["importance"] for r in rollouts if r["importance"] is not None]
    means = [weight["mean"] for weight in weights if math.isfinite(weight["mean"])]
    charts: list[ui.Block] = []
    if advantages:
        positive = sum(advantage > 0 for advantage in advantages) / len(advantages)
        largest = max(map(abs, advantages))
        caption = (
            f"Advantages of {len(advantages):,} scored rollouts, truncated ones included: "
            f"{ui.percent(positive)} above zero, the largest {largest:.2f} in size."
        )
        charts.append(histogram(advantages, x="advantage", y="rollouts", caption=caption))
    if means:
        low = min(weight["low"] for weight in weights)
        high = max(weight["high"] for weight in weights)
        rollouts_out = sum(not weight["kept"] for weight in weights)
        tokens_out = sum(weight["masked"] for weight in weights)
        caption = (
            "Trainer's over sampler's probability, mean over a rollout's tokens, of the "
            f"{len(means):,} rollouts given to the loss; median {statistics.median(means):.4f}. Of "
            f"single tokens: {low:.3g} to {high:.3g}; {tokens_out:,} tokens and {rollouts_out:,} "
            "whole rollouts were left out."
        )
        x = "mean importance ratio of a rollout"
        charts.append(histogram(means, x=x, y="rollouts", caption=caption))
    return ui.Section(title, charts)


def groups_to_read(groups: Sequence[ui.Row]) -> ui.Section:
    """Section of the groups that were read, their rollouts side by side with their verdicts."""
    shown = [group for n, group in enumerate(groups) if ui.is_shown(n, len(groups))]
    # the prompt of a group is one text more
    most_texts = 1 + max((len(group["rollouts"]) for group in shown), default=0)
    most = ui.room(len(shown), most_texts)
    steps = len({group["step"] for group in groups})
    note = f"{len(shown):,} of {len(groups):,} groups of {steps} batches, spread over the run. "
    note += "The best reward of a group comes first."
    samples = ui.Samples([_group(group, most) for group in shown])
    return ui.Section("Groups to read", [note, samples] if shown else [])


def _group(group: ui.Row, most: int) -> ui.Sample:
    """A group as a sample, its rollouts from the best reward to the worst, unscored ones last.

    Args:
        most: characters of a text at most.
    """
    prompt = group["prompt"]
    step = f"step {group['step']:,}"
    ranked = sorted(
        group["rollouts"], key=lambda r: (r["reward"] is None, -(r["reward"] or 0.0), r["index"])
    )
    rewards = [rollout["reward"] for rollout in ranked if rollout["reward"] is not None]
    spread = f"{rewards[-1]:.2f} to {rewards[0]:.2f}" if rewards else "none"
    values = {
        "step": step,
        "source": prompt["source"] or "none",
        "reasoning": ui.on_off(prompt["thinking"]),
        "best": _outcome(ranked[0]),
        "worst": _outcome(ranked[-1]),
    }
    figures = {
        "best reward": rewards[0] if rewards else None,
        "spread of rewards": rewards[0] - rewards[-1] if rewards else None,
        "tokens": sum(rollout["reasoning_tokens"] + rollout["answer_tokens"] for rollout in ranked),
    }
    columns: list[list[ui.Block]] = []
    for rollout in ranked:
        text = ui.Styled(ui.shortened(rollout["text"], most), "mark")
        columns.append([_figures_line(rollout), ui.Dialogue([text])])
    blocks = [ui.Dialogue(turns(prompt, most)), ui.Columns(columns)]
    blocks += _judgements(group["judgements"])
    remark = f" · {prompt['source'] or prompt['id']} · reasoning {values['reasoning']}"
    title = (ui.Styled(step, "bold"), f"{remark} · rewards {spread}")
    return ui.Sample(title, blocks, values, figures)


def _outcome(rollout: ui.Row) -> str:
    """Grade in words if the prompt can be checked, else whether the rollout is trained on."""
    if rollout["reward"] is None:
        return "unscored"
    graded = rollout["parts"].get("pass", rollout["parts"].get("accuracy"))
    if graded is not None:
        return ui.graded(graded)
    return "in the loss" if rollout["in_loss"] else "not in the loss"


def _figures_line(rollout: ui.Row) -> str:
    """Reward, advantage, parts and length of a rollout in a line."""
    reward = rollout["reward"]
    advantage = rollout["advantage"]
    figures = [f"#{rollout['index']}", "unscored" if reward is None else f"reward {reward:.3f}"]
    if advantage is not None:
        figures.append(f"advantage {ui.signed(advantage, 3)}")
    for name, value in rollout["parts"].items():
        if value is None or name in LENGTHS:
            continue
        if value or name not in ADDED:
            figures.append(f"{name.replace('_', ' ')} {value:.4g}")
    figures.append(f"{rollout['reasoning_tokens']:,} + {rollout['answer_tokens']:,} tokens")
    if not rollout["in_loss"]:
        figures.append(f"not in the loss ({rollout['finish']})")
    return " · ".join(figures)


def _judgements(rows: Sequence[ui.Row]) -> list[ui.Block]:
    """Table of a judge's verdicts, a line for each pair; rows of another reward as JSON."""
    if any("ranking" not in row for row in rows):
        return [ui.Dialogue(json.dumps(row, ensure_ascii=False, indent=2)) for row in rows]
    table: list[list[object]] = []
    for row in rows:
        verdict = [None if row[name] is None else f"{row[name]:g}" for name in _VERDICT]
        text = f"failed: {row['reason']}" if row["failed"] else row["text"]
        pair = f"#{row['first']} – #{row['second']}"
        table.append([pair, *verdict, ui.shortened(text, SHOWN_VERDICT)])
    head = ["shown first – second", "score", "score", "ranking", "judgement"]
    return [ui.Table(head, table)] if table else []
