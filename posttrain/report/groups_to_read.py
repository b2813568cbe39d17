"""Groups of rollouts side by side, best reward first, with what the judge said of each pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.report.html import Markup, folded, json_block, paragraph, table, text
from posttrain.report.rollout_files import Batch

Row = Mapping[str, Any]
SHOWN_CHARACTERS = 1500
SHOWN_VERDICT = 200
# shown in another way, and shown only where they change something
_LENGTHS = ("reasoning_tokens", "answer_tokens")
_ADDED = ("reasoning_length", "answer_length", "reasoning_bonus", "answer_bonus", "style")


def groups_to_read(batches: Sequence[Batch]) -> list[str]:
    """Of the first, the middle and the last batch: the first group and that of most spread."""
    if not batches:
        return []
    places = dict.fromkeys((0, len(batches) // 2, len(batches) - 1))
    shown = [
        _group(batches[place].step, group) for place in places for group in _chosen(batches[place])
    ]
    note = (
        "From the first, the middle and the last batch that was read: its first group and the one "
        "whose rewards differ most. The best reward comes first."
    )
    return [paragraph(note), *shown]


def _chosen(batch: Batch) -> list[Row]:
    widest = max(batch.groups, key=_width)
    first = batch.groups[0]
    return [first] if widest is first else [first, widest]


def _width(group: Row) -> float:
    rewards = [r["reward"] for r in group["rollouts"] if r["reward"] is not None]
    return max(rewards) - min(rewards) if rewards else -1.0


def _group(step: int, group: Row) -> str:
    prompt = group["prompt"]
    rewards = [r["reward"] for r in group["rollouts"] if r["reward"] is not None]
    spread = f"{min(rewards):.2f} to {max(rewards):.2f}" if rewards else "none"
    summary = Markup(
        f"<b>step {step}</b> &middot; {text(prompt['source'] or prompt['id'])} &middot; reasoning "
        f"{'on' if prompt['thinking'] else 'off'} &middot; rewards {text(spread)}"
    )
    asked = "\n".join(f"[{m['role']}] {m['content']}" for m in prompt["messages"])
    gold = "" if prompt["gold"] is None else f"\n[gold] {prompt['gold']}"
    ranked = sorted(
        group["rollouts"], key=lambda r: (r["reward"] is None, -(r["reward"] or 0.0), r["index"])
    )
    parts = [f'<pre class="chat">{text(_cut(asked + gold, SHOWN_CHARACTERS))}</pre>']
    parts.append(f'<div class="pair">{"".join(map(_rollout, ranked))}</div>')
    parts.append(_judgements(group["judgements"]))
    return folded(summary, "".join(parts))


def _rollout(rollout: Row) -> str:
    reward, advantage = rollout["reward"], rollout["advantage"]
    said = [f"#{rollout['index']}", "unscored" if reward is None else f"reward {reward:.3f}"]
    if advantage is not None:
        said.append(f"advantage {advantage:+.3f}")
    said += [
        f"{name.replace('_', ' ')} {value:.4g}"
        for name, value in rollout["parts"].items()
        if value is not None and name not in _LENGTHS and (value or name not in _ADDED)
    ]
    said.append(f"{rollout['reasoning_tokens']:,} + {rollout['answer_tokens']:,} tokens")
    if not rollout["in_loss"]:
        said.append(f"not in the loss ({rollout['finish']})")
    words = _cut(rollout["text"], SHOWN_CHARACTERS)
    return (
        f"<div><p>{text(' · '.join(said))}</p>"
        f'<pre class="chat"><mark>{text(words)}</mark></pre></div>'
    )


def _judgements(rows: Sequence[Row]) -> str:
    """One line a pair. Another reward's rows, which need not be of pairs, stand as they are."""
    if any("ranking" not in row for row in rows):
        return "".join(map(json_block, rows))
    if not rows:
        return ""
    shown = [
        [
            f"#{row['first']} – #{row['second']}",
            *(_figure(row[name]) for name in ("score_1", "score_2", "ranking")),
            _cut(row["text"], SHOWN_VERDICT) if not row["failed"] else f"failed: {row['reason']}",
        ]
        for row in rows
    ]
    head = ["shown first – second", "score", "score", "ranking", "said"]
    return table(head, shown, numeric={1, 2, 3})


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"


def _cut(value: str, most: int) -> str:
    rest = len(value) - most
    return value if rest <= 0 else f"{value[:most]} … {rest:,} characters more"
