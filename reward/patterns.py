"""Regular expressions that come with data: run in a worker, since one can take for ever.

last_match(["choice is ([A-J])"], "My choice is B. No: my choice is c.") == "c"
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence


def last_match(patterns: Sequence[str], text: str) -> str | None:
    """Last match of the first pattern that matches: its first group, or all of it.

    Case does not count. None where no pattern matches.
    """
    for pattern in patterns:
        matches = deque(re.finditer(pattern, text, re.IGNORECASE), maxlen=1)
        for found in matches:
            groups = [group for group in found.groups() if group is not None]
            return groups[0] if groups else found.group()
    return None


def pattern_problem(patterns: Sequence[str]) -> str | None:
    """Why these cannot be used, or None."""
    for pattern in patterns:
        try:
            re.compile(pattern, re.IGNORECASE)
        except re.error as error:
            return f"{pattern!r}: {error}"
    return None
