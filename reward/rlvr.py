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
from posttrain.time_limits import WAIT_SECONDS, in_thread
from reward.graders.base import Attempt, Grader
from reward.guard import checked_score, guarded

# verifications under way in one process; workers and sandboxes have limits of their own
AT_ONCE = 64
NO_ANSWER = "unreadable"  # what a grader finds no answer in, though the prompt asks for no format


class Verifier(Protocol):
    """What scores one completion: an environment, or a grader behind `GraderVerifier`."""

    async def verify(self, prompt: Prompt, completion: Completion) -> Score:
        """A value in [0, 1], or none and the kind of failure."""
        ...

    def passes(self, score: Score) -> bool: ...


class GraderVerifier:
    """A grader as a verifier: what it scores with 1 passes."""

    def __init__(self, name: str, grader: Grader) -> None:
        self.name, self._grader = name, grader

    async def verify(self, prompt: Prompt, completion: Completion) -> Score:
        grading = in_thread(lambda: self._grader.grade([Attempt(prompt, completion)]))
        [score] = await asyncio.wrap_future(grading)
        return score

    def passes(self, score: Score) -> bool:
        return score.value == 1.0


@dataclass(frozen=True, slots=True)
class Verified:
    """One completion's score, whether it passes, and the seconds that the verifier took."""

    score: Score
    passed: bool
    seconds: float

    @property
    def kind(self) -> str | None:
        """Why there is no value; None where there is one."""
        return None if self.score.scored else self.score.failure or NO_ANSWER


@dataclass(frozen=True, slots=True)
class Domain:
    """The sources of a domain's prompts, the share of its verifications that may fail, and the
    seconds that one may take."""

    sources: tuple[str, ...]
    max_failure_rate: float
    verifier_seconds: float = WAIT_SECONDS


async def verify_all(
    attempts: Sequence[tuple[Prompt, Completion]], verifier_of: Callable[[Prompt], Verifier]
) -> list[Verified]:
    """Every completion, some at once; in order."""
    gate = asyncio.Semaphore(AT_ONCE)
    return await asyncio.gather(
        *(_verify(*attempt, verifier_of, gate, WAIT_SECONDS) for attempt in attempts)
    )


async def _verify(
    prompt: Prompt,
    completion: Completion,
    verifier_of: Callable[[Prompt], Verifier],
    gate: asyncio.Semaphore,
    seconds: float,
) -> Verified:
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
        verifier_of: a prompt's verifier.
        domains: by name; every source of a prompt is in one of them.
        judge: what decides the labels of judged environments; None: there is no judge.
    """

    def __init__(
        self,
        verifier_of: Callable[[Prompt], Verifier],
        *,
        domains: Mapping[str, Domain],
        judge: Mapping[str, Any] | None = None,
    ) -> None:
        self._verifier_of, self._domains, self._judge = verifier_of, domains, judge
        self._domain_of = {source: name for name, d in domains.items() for source in d.sources}
        # by the identity of the completion, which each task holds
        self._begun: dict[int, asyncio.Task[Verified]] = {}
        self._gate = asyncio.Semaphore(AT_ONCE)

    @property
    def identity(self) -> Mapping[str, Any]:
        domains = {name: list(domain.sources) for name, domain in self._domains.items()}
        return {"reward": "rlvr", "domains": domains, "judge": self._judge}

    def begin(self, prompt: Prompt, completion: Completion) -> None:
        if not _present(completion) or id(completion) in self._begun:
            return
        if not self._begun:
            self._gate = asyncio.Semaphore(AT_ONCE)
        seconds = self._domains[self._domain_of[prompt.source]].verifier_seconds
        job = _verify(prompt, completion, self._verifier_of, self._gate, seconds)
        self._begun[id(completion)] = asyncio.get_running_loop().create_task(job)

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        present = [(group.prompt, c) for group in groups for c in group.completions if _present(c)]
        for attempt in present:
            self.begin(*attempt)
        tasks = [self._begun.pop(id(completion)) for _, completion in present]
        results = iter(await asyncio.gather(*tasks))
        return [
            self._rewards(
                group, [next(results) if _present(c) else None for c in group.completions]
            )
            for group in groups
        ]

    def _rewards(self, group: Group, verified: Sequence[Verified | None]) -> GroupRewards:
        """Rewards of a group; None where the sampler gave the rollout up, which no verifier did."""
        results = [one for one in verified if one is not None]
        scored = [one if one is not None and one.score.scored else None for one in verified]
        return GroupRewards(
            rewards=tuple(None if one is None else one.score.value for one in scored),
            parts={"pass": tuple(None if one is None else float(one.passed) for one in scored)}
            | _unchecked([one and one.score for one in scored]),
            judgements=tuple(
                {"of": k, "answer": one.score.answer, "explanation": one.score.explanation}
                | ({} if one.kind is None else {"failure": one.kind})
                for k, one in enumerate(verified)
                if one is not None
            ),
            requests=len(results),
            failures=tuple(
                Failure(one.kind, one.score.explanation) for one in results if one.kind is not None
            ),
            domain=self._domain_of[group.prompt.source],
            seconds=tuple(one.seconds for one in results),
        )

    def settle(self, requests: int, failures: Sequence[Failure], *, domain: str = "") -> None:
        """As `GroupReward.settle`. Raises TrainingError beyond the domain's `max_failure_rate`.

        An answer that no format was requested of and that cannot be read is no failure.
        """
        failed = [failure for failure in failures if failure.reason != NO_ANSWER]
        most = self._domains[domain].max_failure_rate
        if len(failed) > most * requests:
            kinds = Counter(failure.reason for failure in failed)
            listed = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
            raise TrainingError(
                f"domain {domain!r}: {len(failed):,} of {requests:,} verifications of this step "
                f"failed ({listed}; the first: {failed[0].text}), domains.{domain}."
                f"max_failure_rate allows {most:.2%}; the same command takes the step up again"
            )


def _unchecked(scores: Sequence[Score | None]) -> dict[str, tuple[float | None, ...]]:
    """The share of each rollout's values that its verifier could not check, where it says so."""
    shares = tuple(None if one is None else one.figures.get("unchecked") for one in scores)
    return {"unchecked": shares} if any(share is not None for share in shares) else {}


def _present(completion: Completion) -> bool:
    return completion.finish != "failed"
