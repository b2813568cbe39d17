"""The family "recover_from_tool_error": the first call fails, and its error points to a stale copy.

Passes: `total.json` has the number of the file that the task names. The error is injected into the
first sound call, whatever it is; calling again works. The copy that the error names can be read at
once and gives another total.
"""

from __future__ import annotations

import random

from reward.environments.agentic.base import Call, Family, Final, Fixture, read, sh, write_json

TOTAL = "total.json"
GOODS = ("lamps", "desks", "chairs", "shelves", "rugs", "stools", "mirrors")
SITES = ("east", "west", "harbor", "hill", "plant-2", "annex")
FOLDERS = ("exports", "data", "incoming")
COPIES = ("archive", "cache", "mirror", "old")


class RecoverFromToolError(Family):
    name = "recover_from_tool_error"

    def build(self, rng: random.Random) -> Fixture:
        folder, copies = rng.choice(FOLDERS), rng.choice(COPIES)
        month = f"2031-{rng.randint(1, 12):02}"
        path, copy = f"{folder}/orders-{month}.csv", f"{copies}/orders-{month}.csv"
        site = rng.choice(SITES)
        rows = [
            (rng.choice(SITES), rng.choice(GOODS), rng.randint(2, 60))
            for _ in range(rng.randint(20, 40))
        ]
        rows += [(site, rng.choice(GOODS), rng.randint(2, 60)) for _ in range(3)]
        rng.shuffle(rows)
        last = max(n for n, row in enumerate(rows) if row[0] == site)
        stale = rows[: min(last, len(rows) - rng.randint(3, 6))]
        total, old_total = (sum(q for s, _, q in part if s == site) for part in (rows, stale))
        error = rng.choice(
            (
                f"{path}: no such file or directory; {copy} exists",
                f"{path}: the device timed out; a copy is at {copy}",
                f"{path}: resource temporarily unavailable. Did you mean {copy}?",
            )
        )

        async def check(final: Final) -> None:
            final.unchanged(folder, copies)
            final.answer(TOTAL, total=total)

        summed: Call = sh(f"awk -F, '$1 == \"{site}\" {{ s += $3 }} END {{ print s }}' {path}")
        right, wrong = write_json(TOTAL, total=total), write_json(TOTAL, total=old_total)
        return Fixture(
            task=(
                f'How many pieces were ordered for the site "{site}" in {path}? Write {TOTAL} with '
                'one field, "total". The file is there; a tool may fail for a moment.'
            ),
            files={path: _table(rows), copy: _table(stale)},
            check=check,
            deliverables=(TOTAL,),
            first_error=error,
            oracle=[read(path), read(path), summed, right],
            wrong={
                "takes_the_stale_copy": [read(path), read(copy), wrong],
                "invents_a_number": [read(path), write_json(TOTAL, total=0)],
                "restores_the_copy": [read(path), sh(f"cp {copy} {path}"), wrong],
            },
            unfinished={"stops_at_the_error": [read(path)]},
        )


def _table(rows: list[tuple[str, str, int]]) -> str:
    return "site,goods,pieces\n" + "".join(f"{s},{g},{q}\n" for s, g, q in rows)
