"""The reward of on-policy distillation: each token that the student wrote is worth the difference
of its log-probabilities under its domain's teacher and under the student before the step.

    A_t = log π_T(y_t | s_t) − log π_prox(y_t | s_t)      (Nemotron 3 Ultra, equation 2)

Its mean under the student is minus the reverse KL at the student's own prefixes. A rollout that its
teacher cannot score is left out of the loss.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from posttrain.errors import TrainingError
from posttrain.group_rewards import Credit, Failure, Group, GroupRewards
from posttrain.rollouts import Completion, Prompt
from posttrain.sampling.cancellation import gather_or_cancel
from posttrain.sampling.sampler import ScoreOutput, Scorer, ScoreRequest
from posttrain.training.rl.distillation import advantages_of_rollouts

RolloutPlace = tuple[int, int]  # position of a group in its call, index of a rollout in it


class DistillationReward:
    """A `GroupReward` that scores rollouts with the teacher of their prompt's source.

    Args:
        teachers: scorers of the teachers, by name; two names of one checkpoint may share one.
        teacher_of: source → name of its teacher.
        max_failure_rate: largest share of a domain's rollouts in a step without a score.
        on_checkpoint: called in every process while a checkpoint is written.
    """

    def __init__(
        self,
        teachers: Mapping[str, Scorer],
        *,
        teacher_of: Mapping[str, str],
        max_failure_rate: float,
        on_checkpoint: Callable[[], None] = lambda: None,
    ) -> None:
        self._teachers = teachers
        self._teacher_of = teacher_of
        self._max_failure_rate = max_failure_rate
        self.on_checkpoint = on_checkpoint
        self._policy: Scorer | None = None
        # rollouts that are not rewarded yet with their tasks, by the identity of the completion,
        # which is kept beside its task so that no other completion can have it
        self._begun: dict[int, tuple[Completion, asyncio.Task[list[ScoreOutput]]]] = {}

    @property
    def identity(self) -> Mapping[str, Any]:
        teachers = {name: dict(teacher.identity) for name, teacher in self._teachers.items()}
        return {"reward": "distill", "teachers": teachers, "routes": dict(self._teacher_of)}

    def use_policy(self, policy: Scorer) -> None:
        self._policy = policy

    def begin(
        self, prompt: Prompt, completion: Completion
    ) -> Sequence[asyncio.Task[list[ScoreOutput]]]:
        """Start to score a rollout with a teacher behind a server.

        A teacher in this process scores all rollouts together.
        """
        teacher = self._teachers[self._teacher_of[prompt.source]]
        if teacher.batched or completion.finish == "failed" or id(completion) in self._begun:
            return ()
        scoring = asyncio.ensure_future(teacher.score([score_request(completion)]))
        self._begun[id(completion)] = completion, scoring
        return (scoring,)

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        places_of_teacher: dict[str, list[RolloutPlace]] = {name: [] for name in self._teachers}
        for position, group in enumerate(groups):
            teacher = self._teacher_of[group.prompt.source]
            for index, completion in enumerate(group.completions):
                if completion.finish != "failed":
                    places_of_teacher[teacher].append((position, index))
        credits: dict[RolloutPlace, Credit | Failure] = {}

        async def score(name: str) -> None:
            credits.update(await self._score_with_teacher(name, groups, places_of_teacher[name]))

        async def score_in_process() -> None:
            # one after the other, also those without a rollout here: processes that hold parts of
            # a teacher's weights must call the same teachers in the same order
            for name, teacher in self._teachers.items():
                if teacher.batched:
                    await score(name)

        served = [name for name, teacher in self._teachers.items() if not teacher.batched]
        await gather_or_cancel((score_in_process(), *map(score, served)))
        return [
            self._group_rewards(position, group, credits) for position, group in enumerate(groups)
        ]

    def settle(self, requests: int, failures: Sequence[Failure], *, domain: str = "") -> None:
        if len(failures) <= self._max_failure_rate * requests:
            return
        kinds = Counter(failure.reason for failure in failures)
        listed = ", ".join(f"{kind}: {count:,}" for kind, count in kinds.most_common())
        raise TrainingError(
            f"domain {domain!r}: teachers failed to score {len(failures):,} of {requests:,} "
            f"rollouts of this step ({listed}; the first: {failures[0].text}), max_failure_rate "
            f"allows {self._max_failure_rate:.2%}; rerun the same command to retry the step"
        )

    async def _score_with_teacher(
        self, name: str, groups: Sequence[Group], places: Sequence[RolloutPlace]
    ) -> dict[RolloutPlace, Credit | Failure]:
        """Score a teacher's rollouts: the advantage of each token, or the failure of a rollout.

        Teacher and policy get the same batch: where their weights are equal, every difference is
        exactly 0.
        """
        assert self._policy is not None, "the trainer hands over its policy first"
        requests = [score_request(groups[group].completions[index]) for group, index in places]
        teacher_outputs, policy_outputs = await gather_or_cancel(
            (self._teacher_scores(name, groups, places), self._policy.score(requests))
        )
        credits: dict[RolloutPlace, Credit | Failure] = {}
        scored: list[int] = []
        for number, (place, request) in enumerate(zip(places, requests, strict=True)):
            problem = scoring_problem(teacher_outputs[number], request)
            if problem is None:
                scored.append(number)
            else:
                credits[place] = Failure(f"teacher {name}", problem)
        advantages = advantages_of_rollouts(
            [requests[number] for number in scored],
            teacher=[teacher_outputs[number] for number in scored],
            proximal=[policy_outputs[number] for number in scored],
        )
        for number, token_advantages in zip(scored, advantages, strict=True):
            credits[places[number]] = token_advantages
        return credits

    async def _teacher_scores(
        self, name: str, groups: Sequence[Group], places: Sequence[RolloutPlace]
    ) -> list[ScoreOutput]:
        """Scores of a teacher's rollouts, in order; those of a server may have begun."""
        teacher = self._teachers[name]
        completions = [groups[group].completions[index] for group, index in places]
        if teacher.batched:
            return await teacher.score([score_request(completion) for completion in completions])
        for (group, _), completion in zip(places, completions, strict=True):
            self.begin(groups[group].prompt, completion)
        scoring = [self._begun.pop(id(completion))[1] for completion in completions]
        return [output for [output] in await gather_or_cancel(scoring)]

    def _group_rewards(
        self, position: int, group: Group, credits: Mapping[RolloutPlace, Credit | Failure]
    ) -> GroupRewards:
        rewards: list[Credit] = []
        reverse_kls: list[float | None] = []
        failures: list[Failure] = []
        requests = 0
        for index in range(len(group.completions)):
            credit = credits.get((position, index))
            requests += credit is not None
            if isinstance(credit, Failure):
                failures.append(credit)
                credit = None
            rewards.append(credit)
            reverse_kl = None
            # a rollout without a token has no mean
            if isinstance(credit, tuple) and credit:
                reverse_kl = -statistics.fmean(credit)
            reverse_kls.append(reverse_kl)
        return GroupRewards(
            tuple(rewards),
            {"reverse_kl": tuple(reverse_kls)},
            counts={"teacher_failed": len(failures)},
            requests=requests,
            failures=tuple(failures),
            domain=group.prompt.source,
        )


def score_request(completion: Completion) -> ScoreRequest:
    """Request to score a rollout after its prompt, masked to the tokens that the policy wrote."""
    assert completion.prompt_ids is not None, "rollouts in training have ids"
    ids, written = completion.sampled()
    prompt_mask = (False,) * len(completion.prompt_ids)
    return ScoreRequest((*completion.prompt_ids, *ids), (*prompt_mask, *written))


def scoring_problem(output: ScoreOutput, request: ScoreRequest) -> str | None:
    """Reason why a teacher's scores cannot be trained on; None where they can."""
    if output.error is not None:
        return output.error
    if len(output.logps) != sum(request.mask):
        return f"{len(output.logps)} log-probabilities for {sum(request.mask)} tokens"
    if not all(math.isfinite(logp) for logp in output.logps):
        return "a log-probability is not finite"
    return None
