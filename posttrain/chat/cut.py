"""Located text → its segments, each trained or not.

cut_segments(Located("…assistant\\n<think>\\n4<|im_end|>\\n", …), messages, template, frozenset())
→ (Segment("…assistant\\n<think>\\n", …), Segment("4<|im_end|>\\n", …, trained=True, …))
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence

from posttrain.chat.locate import Located
from posttrain.chat.segments import Segment
from posttrain.chat.template import ChatTemplate
from posttrain.errors import RenderError
from posttrain.records import Message

THINK_CLOSE = "</think>"


def cut_segments(
    located: Located,
    messages: Sequence[Message],
    template: ChatTemplate,
    untrained_close: frozenset[int],
) -> tuple[Segment, ...]:
    """Cut text at mask boundaries, and before messages that begin with a special token.

    Args:
        untrained_close: messages whose first `</think>` is left untrained.

    Raises:
        RenderError: one of these messages has no `</think>` in its rendered text.
    """
    text = located.text
    trained: set[tuple[int, int]] = set()
    for k, span in located.spans.items():
        pieces = _without_close(text, *span) if k in untrained_close else (span,)
        trained.update(pieces)
    heads = {
        start: k
        for k, start in enumerate(located.starts)
        if start is not None and template.special_at(text, start)
    }
    edges = {0, len(text), *heads, *(edge for span in trained for edge in span)}
    ordered = sorted(edges)
    owners = _owners(located, len(messages))
    segments: list[Segment] = []
    for start, stop in itertools.pairwise(ordered):
        k = owners(start)
        segments.append(Segment(text[start:stop], messages[k].role, (start, stop) in trained, k))
    return tuple(segments)


def _without_close(text: str, start: int, stop: int) -> tuple[tuple[int, int], ...]:
    """A trained span minus its first `</think>` and the newline before it."""
    at = text.find(THINK_CLOSE, start, stop)
    if at < 0:
        raise RenderError(
            "a truncated trace has no </think> in its rendered text to leave untrained"
        )
    until = at + len(THINK_CLOSE)
    if at > start and text[at - 1] == "\n":
        at -= 1
    return tuple((a, b) for a, b in ((start, at), (until, stop)) if a < b)


def _owners(located: Located, count: int) -> Callable[[int], int]:
    """A function from offset to the index of the message it belongs to."""
    known = [(start, k) for k, start in enumerate(located.starts) if start is not None]
    if not known:  # only the trained messages were located: what follows one is the next one's
        edges = {stop: k + 1 for k, (_, stop) in located.spans.items()}
        known = sorted({**edges, **{start: k for k, (start, _) in located.spans.items()}}.items())
    offsets = [start for start, _ in known]

    def owner(offset: int) -> int:
        at = bisect.bisect_right(offsets, offset)
        return min(known[at - 1][1] if at else 0, count - 1)

    return owner
