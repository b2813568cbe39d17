"""How many tokens of a completion are reasoning and how many answer.

    count_parts((31, 8, 5, 40, 2), reasons=True, close_id=5, stop_ids=(2,))  →  (2, 1)

Tags, the stop token and forced ids are neither. An answer includes its tool calls.
"""

from __future__ import annotations

from collections.abc import Sequence


def count_parts(
    ids: Sequence[int],
    *,
    reasons: bool,
    close_id: int,
    stop_ids: Sequence[int],
    open_id: int | None = None,
    forced: tuple[int, int] | None = None,
) -> tuple[int, int]:
    """Tokens of the reasoning and of the answer.

    Args:
        ids: as they were sampled, forced ones included.
        reasons: whether it begins with reasoning; without a close, all of it is.
        close_id: the token `</think>`.
        stop_ids: the last id is not counted if it is one of them.
        open_id: the token `<think>`, where the model wrote that itself.
        forced: [start, end) of the ids that were put in to close the reasoning.
    """
    written = len(ids) - (bool(ids) and ids[-1] in stop_ids)
    if not reasons:
        return 0, written
    start = 0
    if open_id is not None and open_id in ids:
        start = ids.index(open_id) + 1
    if forced is not None:
        return forced[0] - start, max(0, written - forced[1])
    if close_id not in ids:
        return max(0, written - start), 0
    closed = ids.index(close_id)
    return max(0, closed - start), written - closed - 1
