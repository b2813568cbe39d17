"""The worker process: runs comparisons and patterns that may never end, one job at a time.

    python -m reward.graders.worker_main CPU_SECONDS BYTES
    stdin ["equal", ["x", "x"]] → stdout {"value": true}, a line each

The kernel itself ends the process when a job has used up its CPU seconds, so that a loop in C is
stopped too; and the process ends by itself when its parent is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import json
import os
import re
import resource
import select
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from posttrain.records import Score
from posttrain.rollouts import completion_from_row, prompt_from_row
from reward.graders.constraints import check_constraints
from reward.graders.workers import Job, JobResult


def last_match(patterns: Sequence[str], text: str) -> str | None:
    """Last match of the first pattern that matches, in any case: its first group, or all of it."""
    for pattern in [re.compile(pattern, re.IGNORECASE) for pattern in patterns]:
        for match in deque(pattern.finditer(text), maxlen=1):
            return next((group for group in match.groups() if group is not None), match[0])
    return None


def equal(gold: str, answer: str) -> bool:
    """Tell whether two formulas are equal. Imports sympy, which most jobs do without."""
    from reward.graders.algebra import formulas_equal

    return formulas_equal(gold, answer)


def _environment_class(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def verify(reference: str, prompt: dict[str, Any], completion: dict[str, Any]) -> list[Any]:
    """Fields of the score of an environment of ours; `reference` is `module:class`."""
    environment = _environment_class(reference)()
    score: Score = environment.check(prompt_from_row(prompt), completion_from_row(completion))
    figures = dict(score.figures)
    return [score.value, score.answer, score.explanation, score.failure, figures]


@functools.cache
def _outside_environment(reference: str) -> Any:
    from reward.environments.outside import make_inner

    return make_inner(reference)


def verify_outside(reference: str, prompt: dict[str, Any], completion: dict[str, Any]) -> list[Any]:
    """Fields of the score of an environment from outside the project.

    It has a `check` or a `score`.
    """
    from reward.environments.outside import check_or_score

    environment = _outside_environment(reference)
    score = asyncio.run(
        check_or_score(environment, prompt_from_row(prompt), completion_from_row(completion))
    )
    return [score.value, score.answer, score.explanation, score.failure]


def run_inline(jobs: Sequence[Job]) -> list[JobResult]:
    """Run jobs in this process; a job that raises has a problem and no value."""
    results: list[JobResult] = []
    for name, arguments in jobs:
        try:
            results.append(JobResult(JOBS[name](*arguments)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - no fault of a job ends the worker
            results.append(JobResult(None, f"{type(error).__name__}: {error}"[:200]))
    return results


JOBS: dict[str, Callable[..., Any]] = {
    "equal": equal,
    "verify": verify,
    "verify_outside": verify_outside,
    "last_match": last_match,
    "constraints": check_constraints,
}
# imports of a job, done before its time starts: a slow disk's seconds are not the verifier's
LOADERS: dict[str, Callable[[str], Any]] = {
    "equal": lambda _gold: importlib.import_module("reward.graders.algebra"),
    "verify": lambda reference: _environment_class(reference).load(),
    "verify_outside": _outside_environment,
}
# milliseconds between looks at the parent: a fork of it may hold our stdin open after its death
PARENT_CHECK = 5000


def main() -> None:
    """Answer jobs until stdin closes or the parent is gone."""
    parent = os.getppid()
    cpu_seconds = float(sys.argv[1])
    memory = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # a library that prints must not write among the answers
    stdin_poll = select.poll()
    stdin_poll.register(0, select.POLLIN | select.POLLHUP)
    print(json.dumps({"value": None}), file=answers, flush=True)  # tells that we have started
    while os.getppid() == parent:
        if not stdin_poll.poll(PARENT_CHECK):
            continue
        line = sys.stdin.readline()  # one job: the next comes when this one is answered
        if not line.endswith("\n"):
            return
        name, arguments = json.loads(line)
        if name in LOADERS:
            with contextlib.suppress(Exception, SystemExit):  # the job then fails the same way
                LOADERS[name](arguments[0])
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        [result] = run_inline([(name, arguments)])
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(asdict(result)), file=answers, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
