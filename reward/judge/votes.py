"""What a judge is asked and what came of it: matches in, judgements out, one at a time.

    Match(history=(Message("user", "7*8?"),), answer_1="56", answer_2="It is 54.")
    → Judgement(verdict=Verdict(5, 1, 1), votes=(Vote(Verdict(5, 1, 1), text='{"score_1": …'),))

A judgement whose every vote failed has no verdict and says why: nothing is put in its place.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from posttrain.errors import JudgeError
from posttrain.group_rewards import Failure
from posttrain.records import Message, json_text
from posttrain.rollouts import Step
from posttrain.sampling.protocol import Generation, Parameters, Request, seed_of
from reward.judge.verdict import Verdict, parse_verdict

_SHOWN = 200  # characters of an answer in a message


@dataclass(frozen=True, slots=True)
class Match:
    """Two final answers to one conversation; `principle` None: the judge's own."""

    history: tuple[Message, ...]
    answer_1: str
    answer_2: str
    principle: str | None = None


@dataclass(frozen=True, slots=True)
class Vote:
    """What one model said of a match.

    Attributes:
        verdict: None where it failed; `reason` then says how.
        text: its final answer as it was written, the last one if it was asked again.
        calls: model calls that this vote took; 0 where it was known already.
        prompt_tokens, completion_tokens: of those calls.
        cached: whether it was taken from another match or another time.
    """

    verdict: Verdict | None
    reason: str | None = None
    text: str = ""
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached: bool = False

    @property
    def retries(self) -> int:
        """Calls after the first."""
        return max(0, self.calls - 1)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The mean of the votes that have a verdict; None with a reason where none has."""

    verdict: Verdict | None
    votes: tuple[Vote, ...]

    @property
    def reason(self) -> str | None:
        """Why there is no verdict; None where there is one."""
        return None if self.verdict is not None else self.votes[0].reason


@dataclass(slots=True)
class Ledger:
    """What judging has cost so far in this process; `seconds` are of the wall clock."""

    matches: int = 0
    failed: int = 0
    calls: int = 0
    retries: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def add(self, judgements: Sequence[Judgement], *, seconds: float) -> None:
        """Count the judgements of one batch."""
        votes = [vote for judgement in judgements for vote in judgement.votes]
        self.matches += len(judgements)
        self.failed += sum(judgement.verdict is None for judgement in judgements)
        self.calls += sum(vote.calls for vote in votes)
        self.retries += sum(vote.retries for vote in votes)
        self.cached += sum(vote.cached for vote in votes)
        self.prompt_tokens += sum(vote.prompt_tokens for vote in votes)
        self.completion_tokens += sum(vote.completion_tokens for vote in votes)
        self.seconds += seconds


def averaged(votes: Sequence[Vote]) -> Judgement:
    """One judgement of several votes."""
    given = [vote.verdict for vote in votes if vote.verdict is not None]
    if not given:
        return Judgement(None, tuple(votes))

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    verdict = Verdict(
        mean([v.score_1 for v in given]),
        mean([v.score_2 for v in given]),
        mean([v.ranking for v in given]),
    )
    return Judgement(verdict, tuple(votes))


def failures_of(judgements: Sequence[Judgement]) -> tuple[Failure, ...]:
    """Those that have no verdict."""
    lost = [one for one in judgements if one.verdict is None]
    return tuple(Failure(one.reason or "", one.votes[0].text[-_SHOWN:]) for one in lost)


def refuse_failures(asked: int, failures: Sequence[Failure], *, max_failure_rate: float) -> None:
    """Stop where too few matches are left to go by.

    Raises:
        JudgeError: more than `max_failure_rate` of the matches that were asked have no verdict.
    """
    if len(failures) <= max_failure_rate * asked:
        return
    reason, count = Counter(failure.reason for failure in failures).most_common(1)[0]
    example = next(failure.text for failure in failures if failure.reason == reason)
    said = f"; it answered, for example: {example!r}" if example else ""
    raise JudgeError(
        f"{len(failures):,} of {asked:,} judgements failed "
        f"({len(failures) / asked:.1%}), judge.max_failure_rate allows {max_failure_rate:.1%}; "
        f"most often ({count:,}): {reason}{said}. Verdicts that came are kept: the same command "
        "asks again for the others once the judge answers"
    )


@dataclass(frozen=True, slots=True)
class Asker:
    """How questions are put to one model.

    Attributes:
        identity: JSON-able, what decides its answers beside the question and the seed.
        attempts: calls that a question may take.
        max_characters: of a question's messages; None: no limit.
    """

    identity: Mapping[str, Any]
    parameters: Parameters
    thinking: bool
    attempts: int
    max_characters: int | None = None
    # of all but the question, taken once
    _digest: hashlib.blake2b = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = json_text([self.identity, asdict(self.parameters), self.thinking]).encode()
        object.__setattr__(self, "_digest", hashlib.blake2b(parts, digest_size=16))

    def key(self, messages: Sequence[Message]) -> str:
        """32 hex digits of what is asked of whom."""
        digest = self._digest.copy()
        for message in messages:
            # judging prompts hold roles and texts alone; the length says where a text ends
            digest.update(f"\n{message.role} {len(message.content)}\n{message.content}".encode())
        return digest.hexdigest()


class Question:
    """Asked until there is a vote; two questions of one key are the same question.

    Attributes:
        vote: None as long as another call may bring a verdict.
        keeps: whether the vote is worth keeping: the model was asked and answered.
    """

    __slots__ = ("_asker", "_calls", "_completion", "_messages", "_prompt", "keeps", "key", "vote")

    def __init__(self, messages: tuple[Message, ...], asker: Asker) -> None:
        self.key = asker.key(messages)
        self.vote: Vote | None = None
        self.keeps = False
        self._messages, self._asker = messages, asker
        self._calls = self._prompt = self._completion = 0
        length, limit = sum(len(message.content) for message in messages), asker.max_characters
        if limit is not None and length > limit:
            self.vote = Vote(None, reason=f"longer than judge.max_characters {limit:,}")

    def request(self, seed: int) -> Request:
        """The next call; every attempt has a seed of its own, which the content decides."""
        return Request(
            messages=self._messages,
            tools=None,
            thinking=self._asker.thinking,
            parameters=self._asker.parameters,
            seed=seed_of(seed, self.key, self._calls),
        )

    def take(self, generation: Generation) -> None:
        """Read what came of the last request."""
        self._calls += 1
        step = generation.step
        if step is None or generation.error is not None:
            # the backend has tried again by itself
            self._end(reason=generation.error or "the backend gave nothing")
            return
        self._prompt += step.prompt_tokens
        self._completion += step.reasoning_tokens + step.answer_tokens
        whole = step.finish == "stop"
        verdict = parse_verdict(step.parsed.answer) if whole else None
        if verdict is None and self._calls < self._asker.attempts:
            return
        self.keeps = True
        self.vote = Vote(
            verdict,
            reason=None if verdict is not None else _why(step, self._asker.parameters.max_tokens),
            text=step.parsed.answer or ("" if verdict is not None else step.text),
            calls=self._calls,
            prompt_tokens=self._prompt,
            completion_tokens=self._completion,
        )

    def _end(self, *, reason: str) -> None:
        self.vote = Vote(
            None,
            reason=reason,
            calls=self._calls,
            prompt_tokens=self._prompt,
            completion_tokens=self._completion,
        )


def _why(step: Step, limit: int) -> str:
    if step.finish != "stop":
        return f"ran to judge.sampling.max_tokens {limit:,}"
    return "no readable verdict in its answer"
