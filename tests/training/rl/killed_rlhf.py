"""Test-only launcher: `scripts/rlhf.py` that kills itself, as `kill -9` would, while it judges.

python tests/training/rl/killed_rlhf.py 30 --config …            when it has kept 30 votes
python tests/training/rl/killed_rlhf.py never scripted --config …   never; a judge in the process whose
                                                                 verdicts are its seeds' alone
"""

from __future__ import annotations

import contextlib
import os
import random
import runpy
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "rlhf.py"


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


def seat_scripted() -> None:
    """The judge is no model: it answers batch-wise, as one in the process does."""
    from posttrain.sampling import open as opening
    from posttrain.sampling.sampler import Request
    from reward.genrm import Verdict
    from reward.genrm_prompt import verdict_text
    from tests.sampling.scripted import END, Scripted

    def moody(_request: Request, rng: random.Random) -> str:
        verdict = Verdict(rng.randint(1, 5), rng.randint(1, 5), rng.randint(1, 6))
        said = verdict_text(verdict) if rng.random() < 0.95 else "Both are fine."
        return f"hm</think>{said}{END}"

    @contextlib.asynccontextmanager
    async def opened(*_: Any, **__: Any) -> AsyncIterator[Scripted]:
        yield Scripted(moody)

    setattr(opening, "opened_sampler", opened)  # noqa: B010 - pyright knows the type it had


def main() -> None:
    votes, *rest = sys.argv[1:]
    if rest[0] == "scripted":
        seat_scripted()
        rest = rest[1:]
    if votes != "never":
        arm(int(votes))
    sys.argv = [str(SCRIPT), *rest]
    runpy.run_path(str(SCRIPT), run_name="__main__")


if __name__ == "__main__":
    main()
