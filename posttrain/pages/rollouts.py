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
# shown in another way, and shown only where they change something
LENGTHS = ("reasoning_tokens", "answer_tokens")
_VERDICT = ("score_1", "score_2", "ranking")
# what the reward of RLHF adds to the base; the other parts are only watched
ADDED = {
    "reasoning_length": "reasoning length, zero-sum",
    "answer_length": "answer length, zero-sum",
    "reasoning_bonus": "bonus of the shortest reasoning",
    "answer_bonus": "bonus of the shortest answer",
    "style": "style, zero-sum",
    "absolute_penalty": "absolute length penalty",
}
# of every group-relative run: key of the log → its name
MEANS = {
    "reasoning_tokens": "reasoning tokens",
    "answer_tokens": "answer tokens",
    "truncated": "truncated, share",
    "zero_variance": "groups without advantage, share",
    "unscored": "unscored, share",
    "entropy": "entropy, nats a token",
}


def read_groups(node: Node) -> list[ui.Row]:
    """The groups of at most `MOST_STEPS` batches, spread evenly. Raises as `listed_rows`."""
    files = sorted(file.path for file in node.artifact.files if file.path.startswith(FOLDER))
    if len(files) > MOST_STEPS:
        last = len(files) - 1
        files = [files[round(k * last / (MOST_STEPS - 1))] for k in range(MOST_STEPS)]
    return [group for name in files for group in listed_rows(node, name) or ()]


def rollouts_of(groups: Sequence[ui.Row]) -> list[ui.Row]:
    return [rollout for group in groups for rollout in group["rollouts"]]


def part_values(rollouts: Sequence[ui.Row], part: str) -> list[float]:
    return [value for r in rollouts if (value := r["parts"].get(part)) is not None]


def spreads(title: str, groups: Sequence[ui.Row]) -> ui.Section:
    """Histograms of advantages and importance weights over the batches that were read."""
    rollouts = rollouts_of(groups)
    advantages = [r["advantage"] for r in rollouts if r["advantage"] is not None]
    weights = [r["importance"] for r in rollouts if r["importance"] is not None]
    means = [one["mean"] for one in weights if math.isfinite(one["mean"])]
    charts: list[ui.Block] = []
    if advantages:
        above = sum(value > 0 for value in advantages) / len(advantages)
        caption = (
            f"Advantages of {len(advantages):,} scored rollouts, truncated ones included: "
            f"{ui.percent(above)} above zero, the largest {max(map(abs, advantages)):.2f} in size."
        )
        charts.append(histogram(advantages, x="advantage", y="rollouts", caption=caption))
    if means:
        x = "mean importance ratio of a rollout"
        charts.append(histogram(means, x=x, y="rollouts", caption=_ratios(weights, means)))
    return ui.Section(title, charts)


def _ratios(weights: Sequence[ui.Row], means: Sequence[float]) -> str:
    low, high = min(one["low"] for one in weights), max(one["high"] for one in weights)
    out = sum(not one["kept"] for one in weights)
    masked = sum(one["masked"] for one in weights)
    return (
        "Trainer's over sampler's probability, mean over a rollout's tokens, of the "
        f"{len(means):,} rollouts given to the loss; median {statistics.median(means):.4f}. Of "
        f"single tokens: {low:.3g} to {high:.3g}; {masked:,} tokens and {out:,} whole rollouts "
        "were left out."
    )


def groups_to_read(groups: Sequence[ui.Row]) -> ui.Section:
    """The groups of the batches that were read, their rollouts side by side with their verdicts."""
    shown = [one for place, one in enumerate(groups) if ui.is_shown(place, len(groups))]
    most = ui.room(len(shown), 1 + max((len(one["rollouts"]) for one in shown), default=0))
    steps = len({group["step"] for group in groups})
    note = f"{len(shown):,} of {len(groups):,} groups of {steps} batches, spread over the run. "
    note += "The best reward of a group comes first."
    samples = ui.Samples([_group(group, most) for group in shown])
    return ui.Section("Groups to read", [note, samples] if shown else [])


def _group(group: ui.Row, most: int) -> ui.Sample:
    prompt, step = group["prompt"], f"step {group['step']:,}"
    ranked = sorted(
        group["rollouts"], key=lambda r: (r["reward"] is None, -(r["reward"] or 0.0), r["index"])
    )
    rewards = [r["reward"] for r in ranked if r["reward"] is not None]
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
        "tokens": sum(r["reasoning_tokens"] + r["answer_tokens"] for r in ranked),
    }
    about = f" · {prompt['source'] or prompt['id']} · reasoning {values['reasoning']}"
    text = [ui.Styled(ui.shortened(r["text"], most), "mark") for r in ranked]
    sides = [[_figures(r), ui.Dialogue([own])] for r, own in zip(ranked, text, strict=True)]
    blocks = [ui.Dialogue(turns(prompt, most)), ui.Columns(sides)]
    blocks += _judgements(group["judgements"])
    title = (ui.Styled(step, "bold"), f"{about} · rewards {spread}")
    return ui.Sample(title, blocks, values, figures)


def _outcome(rollout: ui.Row) -> str:
    """By the grader where the prompt can be checked, else whether it is trained on."""
    if rollout["reward"] is None:
        return "unscored"
    graded = rollout["parts"].get("pass", rollout["parts"].get("accuracy"))
    if graded is not None:
        return ui.graded(graded)
    return "in the loss" if rollout["in_loss"] else "not in the loss"


def _figures(rollout: ui.Row) -> str:
    reward, advantage = rollout["reward"], rollout["advantage"]
    figures = [f"#{rollout['index']}", "unscored" if reward is None else f"reward {reward:.3f}"]
    if advantage is not None:
        figures.append(f"advantage {advantage:+.3f}")
    figures += [
        f"{name.replace('_', ' ')} {value:.4g}"
        for name, value in rollout["parts"].items()
        if value is not None and name not in LENGTHS and (value or name not in ADDED)
    ]
    figures.append(f"{rollout['reasoning_tokens']:,} + {rollout['answer_tokens']:,} tokens")
    if not rollout["in_loss"]:
        figures.append(f"not in the loss ({rollout['finish']})")
    return " · ".join(figures)


def _judgements(rows: Sequence[ui.Row]) -> list[ui.Block]:
    """One line a pair. Another reward's rows, which need not be of pairs, stand as they are."""
    if any("ranking" not in row for row in rows):
        return [ui.Dialogue(json.dumps(row, ensure_ascii=False, indent=2)) for row in rows]
    shown: list[list[object]] = []
    for row in rows:
        verdict = [None if row[name] is None else f"{row[name]:g}" for name in _VERDICT]
        text = f"failed: {row['reason']}" if row["failed"] else row["text"]
        pair = f"#{row['first']} – #{row['second']}"
        shown.append([pair, *verdict, ui.shortened(text, SHOWN_VERDICT)])
    head = ["shown first – second", "score", "score", "ranking", "judgement"]
    return [ui.Table(head, shown)] if shown else []
