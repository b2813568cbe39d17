"""Why a record was dropped: a name to count by, and a detail to act on.

Drop("unknown_tool", "message 4 calls 'get_wether' (did you mean 'get_weather'?)")
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Drop:
    """A filter's verdict. `reason` is a fixed name; `detail` says where in the record and what."""

    reason: str
    detail: str
