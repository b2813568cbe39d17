"""Conversations to read, with what is trained highlighted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.report.html import Markup, folded, paragraph, text

SHOWN_SAMPLES = 12
SHOWN_CHARACTERS = 6000


def sample_conversations(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Samples of as many sources as there is room for, one of each in turn."""
    by_source: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_source.setdefault(row["source"], []).append(row)
    turns = max((len(some) for some in by_source.values()), default=0)
    dealt = [some[k] for k in range(turns) for some in by_source.values() if k < len(some)]
    chats = [_sample(row, opened=place == 0) for place, row in enumerate(dealt[:SHOWN_SAMPLES])]
    key = Markup('<mark style="background:var(--soft);color:var(--ink)">Highlighted</mark>')
    note = paragraph(key, " text is trained on; the rest is only read.")
    return [note, *chats] if chats else []


def marked_text(segments: Sequence[Sequence[Any]]) -> str:
    """Text with what is trained highlighted, from [role, trained, text]; a long one is cut."""
    pieces: list[str] = []
    room = SHOWN_CHARACTERS
    for role, trained, words in segments:
        if role == "gap":
            pieces.append(f'<span class="faint">{text(words)}</span>')
            continue
        shown = text(words[:room])
        pieces.append(f"<mark>{shown}</mark>" if trained else shown)
        room -= len(words)
        if room <= 0:
            pieces.append(
                f'<span class="faint"> … {-room:,} characters more and what follows</span>'
            )
            break
    return "".join(pieces)


def _sample(row: Mapping[str, Any], *, opened: bool) -> str:
    budget = f", cut to {row['budget']} tokens" if row["budget"] is not None else ""
    about = f"turn {row['turn']}, reasoning {row['reasoning']}{budget}, {row['tokens']:,} tokens"
    summary = Markup(
        f"<b>{text(row['source'])}</b> &middot; {text(about)} &middot; "
        f"<code>{text(row['record_id'][:12])}</code>"
    )
    return folded(summary, f'<pre class="chat">{marked_text(row["segments"])}</pre>', opened=opened)
