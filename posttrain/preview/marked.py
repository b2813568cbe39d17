"""Token ids as text that shows which tokens are trained.

on a terminal       trained tokens green, others dim, neighbouring tokens in two shades
elsewhere           <|im_start|>user⏎2+2?<|im_end|>⏎<|im_start|>assistant⏎【4<|im_end|>⏎】
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from rich.text import Text

Decode = Callable[[Sequence[int]], str]
TRAINED = ("green", "bright_green")
UNTRAINED = ("bright_black", "white")
_PARTIAL = "\N{REPLACEMENT CHARACTER}"


def marked_text(
    ids: Sequence[int],
    trained: Sequence[bool],
    decode: Decode,
    *,
    colour: bool,
    limit: int | None = None,
) -> Text:
    """Decode a sequence with its mask visible.

    Args:
        trained: for every token, whether the loss sees it.
        colour: colours for a terminal; otherwise 【 and 】 around trained runs.
        limit: show this many tokens at most, of the beginning and of the end.
    """
    text = Text()
    for start, stop in _shown(len(ids), limit):
        if start:
            text.append(f" … {start - (limit or 0) // 2:,} tokens … ", "italic yellow")
        for mask, run in itertools.groupby(range(start, stop), key=trained.__getitem__):
            positions = [ids[i] for i in run]
            if colour:
                shades = itertools.cycle(TRAINED if mask else UNTRAINED)
                for piece in pieces(positions, decode):
                    text.append(piece, next(shades))
            else:
                plain = decode(positions)
                text.append(f"【{plain}】" if mask else plain)
    return text


def _shown(length: int, limit: int | None) -> list[tuple[int, int]]:
    if limit is None or length <= limit:
        return [(0, length)]
    half = limit // 2
    return [(0, half), (length - half, length)]


def pieces(ids: Sequence[int], decode: Decode) -> Iterator[str]:
    """The text of each token; tokens that share a character come as one piece."""
    waiting: list[int] = []
    for token in ids:
        waiting.append(token)
        text = decode(waiting)
        if not text.endswith(_PARTIAL):
            yield text
            waiting = []
    if waiting:
        yield decode(waiting)
