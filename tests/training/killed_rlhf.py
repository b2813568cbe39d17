"""Test-only launcher: `scripts/rlhf.py` that kills itself, as `kill -9` would, while it judges.

python tests/training/killed_rlhf.py 30 --config …      when it has kept 30 votes
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "rlhf.py"


def arm(votes: int) -> None:
    from reward import verdict_cache

    cache: Any = verdict_cache.VerdictCache
    add, kept = cache.add, []

    def counted(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(kept) == votes:
            os.kill(os.getpid(), signal.SIGKILL)
        kept.append(1)
        add(self, *args, **kwargs)

    cache.add = counted


def main() -> None:
    votes, *rest = sys.argv[1:]
    arm(int(votes))
    sys.argv = [str(SCRIPT), *rest]
    runpy.run_path(str(SCRIPT), run_name="__main__")


if __name__ == "__main__":
    main()
