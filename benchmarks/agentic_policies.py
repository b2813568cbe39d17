"""Scripted policies of the agentic families over many seeds: passes and named failures.

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

Answer = tuple[tuple[str, str], ...]  # path and content of each file that is written


async def outcomes(
    environment: Family, prompts: list[Prompt], policy: str
) -> list[tuple[str | None, str]]:
    """Failure mode of each run (None: it passed), and the checker's explanation."""
    completions = await run_policy(prompts, policy)
    results: list[tuple[str | None, str]] = []
    for prompt, completion in zip(prompts, completions, strict=True):
        score = await environment.verify(prompt, completion)
        solved = (score.value or 0) >= 1
        mode = None if solved else failures(prompt, completion, score)[0].mode
        results.append((mode, score.explanation))
    return results


async def measure(name: str, *, first: int, seeds: int) -> bool:
    """Print a family's line. Returns whether every run ended as its policy has to."""
    environment = ENVIRONMENT_OF[name]()
    started = time.process_time()
    rows = [environment.rows(seed=seed, count=1)[0] for seed in range(first, first + seeds)]
    prompts = [environment.prompt(row) for row in rows]
    prompts_by_policy: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        for policy in environment.policies(prompt):
            prompts_by_policy.setdefault(policy, []).append(prompt)
    counts: list[str] = []
    mistakes: list[str] = []
    for policy, policy_prompts in prompts_by_policy.items():
        right = 0
        results = await outcomes(environment, policy_prompts, policy)
        for prompt, (mode, explanation) in zip(policy_prompts, results, strict=True):
            if mode == policy_of(prompt, policy).fails:
                right += 1
            else:
                mistakes.append(f"  {prompt.id} {policy}: {mode}, {explanation}")
        counts.append(f"{policy} {right}/{len(policy_prompts)}")
    distinct = len({prompt.messages for prompt in prompts})
    seconds = time.process_time() - started
    head = f"{name} ({len(prompts)} seeds, {distinct} distinct, {seconds:.0f} s)"
    print(f"{head}: {', '.join(counts)}")
    print("\n".join(mistakes[:20]), flush=True)
    return not mistakes


async def constant(name: str, *, first: int, seeds: int) -> bool:
    """Print how many tasks the best constant answer solves. Returns whether at most a quarter."""
    environment = ENVIRONMENT_OF[name]()
    rows = [environment.rows(seed=seed, count=1)[0] for seed in range(first, first + seeds)]
    prompts = [environment.prompt(row) for row in rows]
    answers_by_prompt: list[set[Answer]] = []
    for prompt in prompts:
        scripts = [policy.script for policy in environment.policies(prompt).values()]
        answers_by_prompt.append({_written_files(script) for script in scripts})
    all_answers = set().union(*answers_by_prompt) - {()}
    solved = Counter[Answer]()
    for prompt, task_answers in zip(prompts, answers_by_prompt, strict=True):
        fixture = environment.fixture(prompt)
        initial = fixture.initial()
        task_paths = {path for answer in task_answers for path, _ in answer}
        for answer in all_answers:
            paths = tuple(path for path, _ in answer)
            if not task_paths.issuperset(paths):
                continue
            files = initial | {path: content.encode() for path, content in answer}
            try:
                await fixture.check(Final(initial, files, paths))
            except Wrong:
                continue
            solved[answer] += 1
    answer, count = solved.most_common(1)[0]
    print(f"{name} ({seeds} seeds): {count} by {str(answer)[:120]}", flush=True)
    return count <= seeds / 4


def _written_files(script: Script) -> Answer:
    files: list[tuple[str, str]] = []
    for message in script:
        for call in message.tool_calls:
            if call.name == "write_file":
                arguments = json.loads(call.arguments)
                files.append((arguments["path"], arguments["content"]))
    return tuple(files)


def main() -> int:
    parser = argparse.ArgumentParser(description="Every scripted policy over many seeds.")
    parser.add_argument("families", nargs="*", help="all by default; constant before them")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    families = [name for name in options.families if name != "constant"] or [*ENVIRONMENT_OF]
    check = constant if "constant" in options.families else measure
    passes: list[bool] = []
    for name in families:
        passes.append(asyncio.run(check(name, first=options.first, seeds=options.seeds)))
    return 0 if all(passes) else 1


if __name__ == "__main__":
    sys.exit(main())
