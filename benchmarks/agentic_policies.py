"""Every scripted policy of every agentic family over many seeds: passes and named failures.

    python benchmarks/agentic_policies.py [--seeds 50] [--first 0] [family …]

A line a family: the tasks, and of the runs of each policy how many came out as they have to.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from posttrain.evaluation.agentic import deciding
from posttrain.rollouts import Prompt
from reward.environments.agentic.base import AgenticEnvironment
from reward.environments.agentic.policies import ENVIRONMENT_OF, policy_of, run_policy


async def outcomes(
    environment: AgenticEnvironment, prompts: list[Prompt], policy: str
) -> list[tuple[str | None, str]]:
    """What decided each run (None: it passed), and the checker's words."""
    completions = await run_policy(prompts, policy)
    results: list[tuple[str | None, str]] = []
    for prompt, completion in zip(prompts, completions, strict=True):
        score = await environment.verify(prompt, completion)
        failure = deciding(prompt, completion, score)
        results.append((failure and failure.mode, score.explanation))
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


def main() -> int:
    parser = argparse.ArgumentParser(description="Every scripted policy over many seeds.")
    parser.add_argument("families", nargs="*", default=list(ENVIRONMENT_OF))
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    good = [
        asyncio.run(measure(name, first=options.first, seeds=options.seeds))
        for name in options.families
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
