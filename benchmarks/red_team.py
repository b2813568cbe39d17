"""Wrong answers that verifiers accept and right ones that they refuse, by environment.

    python -m benchmarks red_team [--tasks 60] [--half second] [--seed 1] [environment …]

Every attack form is in one of two halves (a checksum of its name): the verifiers were hardened with
the first in view, the second was kept back. What it showed was repaired; "later" forms were written
after that and kept back in their turn, and "last" ones of multiple choice after those. "right" are
right answers alone, in more forms, in two halves by the same checksum. "tricks" came later again,
wrong and right, in two halves: what reinforcement would find. Tasks come from the seed.
Mutants of programs that pass the task's own tests when simply run are left out.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from argparse import ArgumentParser, Namespace
from collections import Counter, defaultdict

from posttrain.evaluation.intervals import wilson
from posttrain.rollouts import Prompt
from reward.environments import ENVIRONMENTS
from reward.environments.base import admit, replay
from tests.reward.environments.attacks.base import Attack
from tests.reward.environments.attacks.every_form import RIGHT_FORM, TRICK, attacks_on
from tests.reward.environments.generated_tasks import rows

HALVES = {
    "first": (0,), "second": (1,), "later": (2,), "last": (3,), "all": (0, 1, 2, 3),
    "right-first": (4,), "right-second": (5,), "right": (4, 5),
    "tricks-first": (6,), "tricks-second": (7,), "tricks": (6, 7),
}  # fmt: skip
AT_ONCE = 64


async def measure(name: str, *, tasks: int, half: str, seed: int) -> None:
    """Print an environment's line, and the attacks that its verifier is wrong about."""
    environment = ENVIRONMENTS[name]()
    generated = rows(name, seed=seed, count=tasks)
    if not generated:
        print(f"| {name} | its tasks come from data | | | | |")
        return
    admitted = await admit(iter(generated), {name: environment})
    chosen = [
        (prompt, attack)
        for prompt, attack in attacks_on(environment, admitted.prompts, seed)
        if half_of(attack.form) in HALVES[half]
    ]
    gate = asyncio.Semaphore(AT_ONCE)
    mistakes = defaultdict[str, list[str]](list)
    counts = Counter[tuple[bool, str]]()
    unscored = Counter[str]()

    async def verify(prompt: Prompt, attack: Attack) -> None:
        async with gate:
            completion = await replay(environment, prompt, attack.script)
            score = await environment.verify(prompt, completion)
        if score.value is None:
            unscored[f"{score.failure} ({attack.form})"] += 1
            return
        passed = environment.passes(score)
        counts[attack.right, "passed" if passed else "refused"] += 1
        if passed != attack.right:
            answer = attack.script[0].content
            verdict = "refused" if attack.right else "ACCEPTED"
            example = f"{prompt.gold!r:.60} {answer!r:.90} {score.explanation:.90}"
            mistakes[f"{verdict}: {attack.form}"].append(example)

    start = time.monotonic()
    await asyncio.gather(*(verify(prompt, attack) for prompt, attack in chosen))
    seconds = time.monotonic() - start
    wrong = (counts[False, "passed"], counts[False, "passed"] + counts[False, "refused"])
    right = (counts[True, "refused"], counts[True, "passed"] + counts[True, "refused"])
    print(
        f"| {name} | {len(admitted.prompts)}/{len(generated)} | {rate(*wrong)} | {rate(*right)} | "
        f"{sum(unscored.values())} | {len(chosen) / seconds:.0f}/s |",
        flush=True,
    )
    for form, examples in sorted(mistakes.items()):
        print(f"    {len(examples)} × {form}: {examples[0]}")
    for kind, number in unscored.most_common(6):
        print(f"    {number} × unscored: {kind}")


def half_of(form: str) -> int:
    """Half of a form: 0 or 1 by a checksum, 2 and 3 for those written after a hardening.

    Right answers have 4 or 5, tricks 6 or 7, by a checksum.
    """
    if form.startswith(RIGHT_FORM):
        return 4 + zlib.crc32(form.removeprefix(RIGHT_FORM).encode()) % 2
    if form.startswith(TRICK):
        return 6 + zlib.crc32(form.encode()) % 2
    if form.startswith(("later:", "last:")):
        return 2 if form.startswith("later:") else 3
    return zlib.crc32(form.encode()) % 2


def rate(count: int, total: int) -> str:
    """Text of a count and its share with a 95 % interval."""
    if not total:
        return "–"
    low, high = wilson(count / total, total)
    return f"{count} of {total}: {count / total:.2%} [{low:.2%}, {high:.2%}]"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("environments", nargs="*", default=list(ENVIRONMENTS))
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--half", choices=list(HALVES), default="all")
    parser.add_argument("--seed", type=int, default=1)


def main(options: Namespace) -> None:
    """Print a table in Markdown."""
    print("| environment | gold passes | false accepts | false rejects | unscored | speed |")
    print("|---|---|---|---|---|---|")
    for name in options.environments:
        asyncio.run(measure(name, tasks=options.tasks, half=options.half, seed=options.seed))
