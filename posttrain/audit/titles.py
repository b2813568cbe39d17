"""What the kinds of offence are called, and counts as shares: all that a page needs of an audit.

TITLES["no_end"]  →  "no end token after what is trained"

Nothing heavy is imported here, so that a report can be written where numpy is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REPEATED = "repeated"
# in the order in which they are shown
TITLES = {
    REPEATED: "exact copies",
    "nothing_trained": "nothing is trained",
    "no_end": "no end token after what is trained",
    "end_masked": "the end token is there and not trained",
    "turn_tokens": "a token that opens turns, or the pad, is trained",
    "prompt_trained": "a system, user or tool turn is trained",
    "everything_trained": "every token is trained",
    "empty_think": "an answer after an empty trace",
    "least_trained": "the smallest share is trained",
    "longest": "the longest",
}


def share(figures: Mapping[str, Any], name: str) -> float | None:
    """One count as a share: of tokens for `trained`, else of sequences; `None` if unknown."""
    whole = figures["tokens" if name == "trained" else "sequences"]
    count = figures[name]
    return None if count is None or not whole else count / whole
