"""Every scripted policy of every agentic family over many seeds: passes and named failures.

    python benchmarks/agentic_policies.py [--seeds 50] [--first 0] [family …]
    python benchmarks/agentic_policies.py constant [family …] --seeds 300 --first 500

A line a family: the tasks, and of the runs of each policy how many came out as they have to. With
`constant`: how many tasks the best constant answer solves, of all that a policy of one task writes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from posttrain.evaluation.agentic import failures
from posttrain.rollouts import Prompt
from reward.environments.agentic.base import Family, Final, Wrong
from reward.environments.agentic.policies import ENVIRONMENT_OF, policy_of
from reward.environments.base import Script
from tests.reward.environments.scoring import run_policy

Answer = tuple[tuple[str, str], ...]  # each file that is written, with its content


async def outcomes(
    environment: Family, prompts: list[Prompt], policy: str
) -> list[tuple[str | None, str]]:
    """What decided each run (None: it passed), and the checker's words."""
    completions = await run_policy(prompts, policy)
    results: list[tuple[str | None, str]] = []
    for prompt, completion in zip(prompts, completions, strict=True):
        score = await environment.verify(prompt, completion)
        solved = (score.value or 0) >= 1
        mode = None if solved else failures(prompt, completion, score)[0].mode
        results.append((mode, score.explanation))
    return results


async def measure(name: str, *, first: int, seeds: int) -> bool:
    """Print a family's line; whether all of it is as it has to be."""
    environment, started = ENVIRONMENT_OF[name](), time.process_time()
    rows = [environment.rows(seed=seed, count=1)[0] for seed in range(first, first + seeds)]
    prompts = [environment.prompt(row) for row in rows]
    policies = list(dict.fromkeys(n for p in prompts for n in environment.policies(p)))
    right, runs, mistakes = Counter[str](), Counter[str](), list[str]()
    for policy in policies:
        own = [p for p in prompts if policy in environment.policies(p)]
        for prompt, (mode, why) in zip(own, await outcomes(environment, own, policy), strict=True):
            runs[policy] += 1
            right[policy] += mode == policy_of(prompt, policy).fails
            if mode != policy_of(prompt, policy).fails:
                mistakes.append(f"  {prompt.id} {policy}: {mode}, {why}")
    distinct = len({prompt.messages for prompt in prompts})
    seconds = time.process_time() - started
    shown = ", ".join(f"{policy} {right[policy]}/{runs[policy]}" for policy in policies)
    print(f"{name} ({len(prompts)} seeds, {distinct} distinct, {seconds:.0f} s): {shown}")
    print("\n".join(mistakes[:20]), flush=True)
    return not mistakes


async def constant(name: str, *, first: int, seeds: int) -> bool:
    """Print how many tasks the best constant answer solves; whether that is at most a quarter."""
    environment = ENVIRONMENT_OF[name]()
    rows = [environment.rows(seed=seed, count=1)[0] for seed in range(first, first + seeds)]
    prompts = [environment.prompt(row) for row in rows]
    fixtures = [(environment.fixture(p), environment.fixture(p).initial()) for p in prompts]
    answers = [{_written(p.script) for p in environment.policies(q).values()} for q in prompts]
    solved = Counter[Answer]()
    for (fixture, initial), own in zip(fixtures, answers, strict=True):
        paths = {path for answer in own for path, _ in answer}
        for answer in set().union(*answers) - {()}:
            if {path for path, _ in answer} <= paths:
                files = initial | {path: content.encode() for path, content in answer}
                try:
                    await fixture.check(Final(initial, files, tuple(path for path, _ in answer)))
                except Wrong:
                    continue
                solved[answer] += 1
    answer, most = solved.most_common(1)[0]
    print(f"{name} ({seeds} seeds): {most} by {str(answer)[:120]}", flush=True)
    return most <= seeds / 4


def _written(script: Script) -> Answer:
    calls = [call for message in script for call in message.tool_calls if call.name == "write_file"]
    arguments = (json.loads(call.arguments) for call in calls)
    return tuple((given["path"], given["content"]) for given in arguments)


def main() -> int:
    parser = argparse.ArgumentParser(description="Every scripted policy over many seeds.")
    parser.add_argument("families", nargs="*", help="all by default; constant before them")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    families = [name for name in options.families if name != "constant"] or [*ENVIRONMENT_OF]
    check = constant if "constant" in options.families else measure
    good = [asyncio.run(check(name, first=options.first, seeds=options.seeds)) for name in families]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
