"""The reward of RLVR: each rollout is verified by the environment that its prompt names.

    domains = {"math": Domain(("dapo", "skywork"), max_failure_rate=0.05)}
    await RoutedReward(environments.verifier, domains=domains).reward([Group(…)], seed=7)

A verification that comes to nothing, whatever its verifier does (`reward.guard`), leaves its
rollout unscored: it is in no mean, no deviation and no loss, and counts against its domain's
`max_failure_rate`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from posttrain.errors import TrainingError
from posttrain.group_rewards import Failure, Group, GroupRewards
from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt
from posttrain.sampling.cancellation import gather_or_cancel
from posttrain.time_limits import WAIT_SECONDS, in_thread
from reward.graders.base import Attempt, Grader
from reward.guard import checked_score, guarded

# concurrent verifications of one process; workers and sandboxes have limits of their own
AT_ONCE = 64
# kind of an unscored answer that a grader cannot read, though the prompt asks for no format
NO_ANSWER = "unreadable"


class Verifier(Protocol):
    """Scorer of one completion: an environment, or a grader behind `GraderVerifier`."""

    async def verify(self, prompt: Prompt, completion: Completion) -> Score:
        """Score a completion: a value in [0, 1], or none and the kind of failure."""
        ...

    def passes(self, score: Score) -> bool: ...


class GraderVerifier:
    """A grader as a verifier: a completion that it scores with 1 passes."""

    def __init__(self, name: str, grader: Grader) -> None:
        self.name = name
        self._grader = grader

    async def verify(self, prompt: Prompt, completion: Completion) -> Score:
        grading = in_thread(lambda: self._grader.grade([Attempt(prompt, completion)]))
        [score] = await asyncio.wrap_future(grading)
        return score

    def passes(self, score: Score) -> bool:
        return score.value == 1.0


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of verifying one completion.

    Attributes:
        seconds: time that the verifier took.
    """

    score: Score
    passed: bool
    seconds: float

    @property
    def kind(self) -> str | None:
        """Kind of the failure that left no value; None where there is one."""
        return None if self.score.scored else self.score.failure or NO_ANSWER


@dataclass(frozen=True, slots=True)
class Domain:
    """Limits of a domain.

    Attributes:
        sources: sources of its prompts.
        max_failure_rate: largest share of its verifications in a step that may fail.
        verifier_seconds: time limit of one verification.
    """

    sources: tuple[str, ...]
    max_failure_rate: float
    verifier_seconds: float = WAIT_SECONDS


async def verify_all(
    attempts: Sequence[tuple[Prompt, Completion]], verifier_of: Callable[[Prompt], Verifier]
) -> list[Verified]:
    """Verify completions, at most `AT_ONCE` at the same time; the results are in order."""
    gate = asyncio.Semaphore(AT_ONCE)
    verifications = [
        _verify(prompt, completion, verifier_of, gate, WAIT_SECONDS)
        for prompt, completion in attempts
    ]
    return await gather_or_cancel(verifications)


async def _verify(
    prompt: Prompt,
    completion: Completion,
    verifier_of: Callable[[Prompt], Verifier],
    gate: asyncio.Semaphore,
    seconds: float,
) -> Verified:
    """Verify a completion once the gate lets it through, within `seconds`."""
    if completion.finish == "failed":
        error = Score(None, None, completion.error or "failed", "service")
        return Verified(error, passed=False, seconds=0.0)
    verifier = verifier_of(prompt)
    name = str(getattr(verifier, "name", type(verifier).__name__))
    async with gate:
        started = time.perf_counter()
        passed = False

        async def verify() -> Score:
            nonlocal passed
            score = checked_score(name, await verifier.verify(prompt, completion))
            passed = score.scored and bool(verifier.passes(score))
            return score

        score = await guarded(name, verify, seconds=seconds)
        return Verified(score, passed, time.perf_counter() - started)


class RoutedReward:
    """A `GroupReward` that verifies a rollout as soon as it ends.

    Args:
        verifier_of: returns a prompt's verifier.
        domains: domains by name; every source of a prompt is in one of them.
        judge: identity of the judge of judged environments; None: there is no judge.
    """

    def __init__(
        self,
        verifier_of: Callable[[Prompt], Verifier],
        *,
        domains: Mapping[str, Domain],
        judge: Mapping[str, Any] | None = None,
    ) -> None:
        self._verifier_of = verifier_of
        self._domains = domains
        self._judge = judge
        self._domain_of: dict[str, str] = {}  # source → name of its domain
        for name, domain in domains.items():
            self._domain_of |= dict.fromkeys(domain.sources, name)
        # tasks of completions that are not rewarded yet, by the identity of the completion, which
        # the step keeps until then
        self._tasks: dict[int, asyncio.Task[Verified]] = {}
        self._gate = asyncio.Semaphore(AT_ONCE)

    @property
    def identity(self) -> Mapping[str, Any]:
        domains = {name: list(domain.sources) for name, domain in self._domains.items()}
        return {"reward": "rlvr", "domains": domains, "judge": self._judge}

    def begin(self, prompt: Prompt, completion: Completion) -> Sequence[asyncio.Task[Verified]]:
        """Start to verify a completion, before its group is complete."""
        if not _is_present(completion) or id(completion) in self._tasks:
            return ()
        if not self._tasks:
            # a semaphore is bound to the event loop in which something first waits for it
            self._gate = asyncio.Semaphore(AT_ONCE)
        seconds = self._domains[self._domain_of[prompt.source]].verifier_seconds
        verification = _verify(prompt, completion, self._verifier_of, self._gate, seconds)
        task = asyncio.get_running_loop().create_task(verification)
        self._tasks[id(completion)] = task
        return (task,)

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        present: list[Completion] = []
        for group in groups:
            for completion in group.completions:
                if _is_present(completion):
                    self.begin(group.prompt, completion)
                    present.append(completion)
        tasks = [self._tasks.pop(id(completion)) for completion in present]
        remaining_results = iter(await gather_or_cancel(tasks))
        rewards: list[GroupRewards] = []
        for group in groups:
            results: list[Verified | None] = []
            for completion in group.completions:
                result = next(remaining_results) if _is_present(completion) else None
                results.append(result)
            rewards.append(self._group_rewards(group, results))
        return rewards

    def _group_rewards(self, group: Group, results: Sequence[Verified | None]) -> GroupRewards:
        """Rewards of a group.

        Args:
            results: result of each rollout; None where its backend gave it up, which no verifier
                did.
        """
        rewards: list[float | None] = []
        passes: list[float | None] = []
        unchecked: list[float | None] = []
        judgements: list[dict[str, Any]] = []
        failures: list[Failure] = []
        seconds: list[float] = []
        for index, result in enumerate(results):
            if result is None or not result.score.scored:
                rewards.append(None)
                passes.append(None)
                unchecked.append(None)
            else:
                rewards.append(result.score.value)
                passes.append(float(result.passed))
                unchecked.append(result.score.figures.get("unchecked"))
            if result is None:
                continue
            judgement: dict[str, Any] = {
                "of": index,
                "answer": result.score.answer,
                "explanation": result.score.explanation,
            }
            if result.kind is not None:
                judgement["failure"] = result.kind
                failures.append(Failure(result.kind, result.score.explanation))
            judgements.append(judgement)
            seconds.append(result.seconds)
        parts = {"pass": tuple(passes)}
        # the share of a rollout's values that its verifier could not check, where it says so
        if any(share is not None for share in unchecked):
            parts["unchecked"] = tuple(unchecked)
        return GroupRewards(
            rewards=tuple(rewards),
            parts=parts,
            judgements=tuple(judgements),
            requests=len(judgements),
            failures=tuple(failures),
            domain=self._domain_of[group.prompt.source],
            seconds=tuple(seconds),
        )

    def settle(self, requests: int, failures: Sequence[Failure], *, domain: str = "") -> None:
        """Stop the run if too many verifications of a domain failed, see `GroupReward.settle`.

        An answer that no format was requested of and that cannot be read is no failure.

        Raises:
            TrainingError: the share is above the domain's `max_failure_rate`.
        """
        counted = [failure for failure in failures if failure.reason != NO_ANSWER]
        max_failure_rate = self._domains[domain].max_failure_rate
        if len(counted) > max_failure_rate * requests:
            kinds = Counter(failure.reason for failure in counted)
            listed = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
            raise TrainingError(
                f"domain {domain!r}: {len(counted):,} of {requests:,} verifications of this step "
                f"failed ({listed}; the first: {counted[0].text}), domains.{domain}."
                f"max_failure_rate allows {max_failure_rate:.2%}; rerun the same command to retry "
                "the step"
            )


def _is_present(completion: Completion) -> bool:
    """Tell whether there is a rollout to verify: its backend did not give it up."""
    return completion.finish != "failed"
