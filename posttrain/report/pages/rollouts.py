"""The rollouts of a group-relative run: some steps read back, their spreads, groups to read."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from posttrain.report import section as ui
from posttrain.report.curves import histogram
from posttrain.report.lineage import Node, listed_rows
from posttrain.report.pages.samples import turns

FOLDER = "rollouts/"
MOST_STEPS = 8  # a run at scale has gigabytes of rollouts
SHOWN_CHARACTERS = 1500
SHOWN_VERDICT = 200
# shown in another way, and shown only where they change something
_LENGTHS = ("reasoning_tokens", "answer_tokens")
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


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """All groups of one batch of rollouts."""

    step: int
    groups: Sequence[ui.Row]

    @property
    def rollouts(self) -> Iterator[ui.Row]:
        return (rollout for group in self.groups for rollout in group["rollouts"])


def read_rollouts(node: Node) -> list[RolloutBatch]:
    """At most `MOST_STEPS` batches, evenly spread, the first and the last among them.

    Raises:
        DataError: a file is gone, or is not what the manifest says.
    """
    assert node.manifest is not None
    files = sorted(file.path for file in node.manifest.files if file.path.startswith(FOLDER))
    if len(files) > MOST_STEPS:
        last = len(files) - 1
        files = [files[round(k * last / (MOST_STEPS - 1))] for k in range(MOST_STEPS)]
    found = [listed_rows(node, name) for name in files]
    return [RolloutBatch(rows[0]["step"], rows) for rows in found if rows]


def part_values(rollouts: Sequence[ui.Row], part: str) -> list[float]:
    return [value for r in rollouts if (value := r["parts"].get(part)) is not None]


def spreads(title: str, node: Node, batches: Sequence[RolloutBatch]) -> ui.Section:
    """Histograms of advantages and importance weights over the batches that were read."""
    advantages = [r["advantage"] for b in batches for r in b.rollouts if r["advantage"] is not None]
    weights = [r["importance"] for b in batches for r in b.rollouts if r["importance"] is not None]
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
    note = f"Of {len(batches)} of {node.stats['batches']} batches of rollouts, evenly spread."
    return ui.Section(title, [note, *charts] if charts else [])


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


def groups_to_read(title: str, batches: Sequence[RolloutBatch]) -> ui.Section:
    """Of the first, the middle and the last batch: the first group and that of most spread."""
    if not batches:
        return ui.Section(title, [])
    shown: list[ui.Fold] = []
    for place in dict.fromkeys((0, len(batches) // 2, len(batches) - 1)):
        groups = batches[place].groups
        wide = max(groups, key=lambda group: max(_rewards(group)) - min(_rewards(group)))
        chosen = [groups[0]] if wide is groups[0] else [groups[0], wide]
        shown += [_group(batches[place].step, group) for group in chosen]
    note = (
        "From the first, the middle and the last batch that was read: its first group and the one "
        "whose rewards differ most. The best reward comes first."
    )
    return ui.Section(title, [note, *shown])


def rollouts_to_read(title: str, batches: Sequence[RolloutBatch]) -> ui.Section:
    """The rollouts of the batches that were read, one by one."""
    every = [(b.step, g["prompt"], r) for b in batches for g in b.groups for r in g["rollouts"]]
    shown = [one for place, one in enumerate(every) if ui.is_shown(place, len(every))]
    most = ui.room(len(shown), 2)
    note = f"{len(shown):,} of {len(every):,} rollouts of {len(batches)} batches, evenly spread."
    samples = ui.Samples([_sample(step, prompt, r, most) for step, prompt, r in shown])
    return ui.Section(title, [note, samples] if shown else [])


def _sample(step: int, prompt: ui.Row, rollout: ui.Row, most: int) -> ui.Sample:
    tokens = rollout["reasoning_tokens"] + rollout["answer_tokens"]
    values = {
        "step": f"{step:,}",
        "source": prompt["source"] or "none",
        "reasoning": ui.on_off(prompt["thinking"]),
        "outcome": _outcome(rollout),
        "finish": rollout["finish"],
    }
    about = f" · {values['source']} · {values['outcome']} · {_figures(rollout)}"
    blocks = [ui.Dialogue(turns(prompt, most)), ui.Dialogue([_marked(rollout, most)])]
    figures = {"reward": rollout["reward"], "advantage": rollout["advantage"], "tokens": tokens}
    return ui.Sample(ui.Fold((ui.Styled(f"step {step}", "bold"), about), blocks), values, figures)


def _outcome(rollout: ui.Row) -> str:
    """By the grader where the prompt can be checked, else whether it is trained on."""
    if rollout["reward"] is None:
        return "unscored"
    graded = rollout["parts"].get("pass", rollout["parts"].get("accuracy"))
    if graded is not None:
        return ui.graded(graded)
    return "in the loss" if rollout["in_loss"] else "not in the loss"


def _rewards(group: ui.Row) -> list[float]:
    return [r["reward"] for r in group["rollouts"] if r["reward"] is not None] or [0.0]


def _group(step: int, group: ui.Row) -> ui.Fold:
    prompt, rewards = group["prompt"], _rewards(group)
    spread = f"{min(rewards):.2f} to {max(rewards):.2f}"
    thinking = ui.on_off(prompt["thinking"])
    about = f" · {prompt['source'] or prompt['id']} · reasoning {thinking} · rewards {spread}"
    ranked = sorted(
        group["rollouts"], key=lambda r: (r["reward"] is None, -(r["reward"] or 0.0), r["index"])
    )
    blocks: list[ui.Block] = [
        ui.Dialogue(turns(prompt, SHOWN_CHARACTERS)),
        ui.Columns([[_figures(r), ui.Dialogue([_marked(r, SHOWN_CHARACTERS)])] for r in ranked]),
        *_judgements(group["judgements"]),
    ]
    return ui.Fold((ui.Styled(f"step {step}", "bold"), about), blocks)


def _figures(rollout: ui.Row) -> str:
    reward, advantage = rollout["reward"], rollout["advantage"]
    figures = [f"#{rollout['index']}", "unscored" if reward is None else f"reward {reward:.3f}"]
    if advantage is not None:
        figures.append(f"advantage {advantage:+.3f}")
    figures += [
        f"{name.replace('_', ' ')} {value:.4g}"
        for name, value in rollout["parts"].items()
        if value is not None and name not in _LENGTHS and (value or name not in ADDED)
    ]
    figures.append(f"{rollout['reasoning_tokens']:,} + {rollout['answer_tokens']:,} tokens")
    if not rollout["in_loss"]:
        figures.append(f"not in the loss ({rollout['finish']})")
    return " · ".join(figures)


def _marked(rollout: ui.Row, most: int) -> ui.Styled:
    return ui.Styled(ui.shortened(rollout["text"], most), "mark")


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
