"""A comparison, the calls that a model answers it with, its votes, and the judgement they make.

    Comparison(history=(Message("user", "7*8?"),), answer_1="56", answer_2="It is 54.")
    → Judgement(verdict=Verdict(5, 1, 1), votes=(Vote(Verdict(5, 1, 1), text='{"score_1": …'),))

A judgement whose every vote failed has no verdict and says why: nothing is put in its place.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

from posttrain.errors import JudgeError
from posttrain.group_rewards import Failure
from posttrain.records import Message, json_text
from posttrain.sampling.sampler import Generation, Parameters, Request, seed_of
from reward.judge.verdict import Verdict, parse_verdict, preferred

_SHOWN = 200  # characters of an answer in a message


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two final answers to one conversation; `principle` None: the judge's own."""

    history: tuple[Message, ...]
    answer_1: str
    answer_2: str
    principle: str | None = None


@dataclass(frozen=True, slots=True)
class Vote:
    """One model's verdict on a comparison.

    Attributes:
        verdict: None where it failed; `reason` then says how.
        text: its final answer as it was written, of the last call.
        calls: model calls that this vote took; 0 where it was known already.
        prompt_tokens, completion_tokens: of those calls.
        cached: whether it was taken from an equal comparison or another time.
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

    def row(self) -> dict[str, Any]:
        """For a person to read; `preferred` as `verdict.preferred`, None without a verdict."""
        verdict = self.verdict
        return {
            "verdict": None if verdict is None else [*astuple(verdict)],
            "preferred": None if verdict is None else preferred(verdict),
            "reason": self.reason,
            "texts": [vote.text for vote in self.votes],
        }


@dataclass(slots=True)
class JudgeCosts:
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
        self.matches += len(judgements)
        self.failed += sum(judgement.verdict is None for judgement in judgements)
        self.seconds += seconds
        for name in ("calls", "retries", "cached", "prompt_tokens", "completion_tokens"):
            votes = sum(getattr(vote, name) for one in judgements for vote in one.votes)
            setattr(self, name, getattr(self, name) + votes)


def averaged(votes: Sequence[Vote]) -> Judgement:
    given = [astuple(vote.verdict) for vote in votes if vote.verdict is not None]
    means = [sum(field) / len(given) for field in zip(*given, strict=True)]
    return Judgement(Verdict(*means) if given else None, tuple(votes))


def failures_of(judgements: Sequence[Judgement]) -> tuple[Failure, ...]:
    lost = [one for one in judgements if one.verdict is None]
    return tuple(Failure(one.reason or "", one.votes[0].text[-_SHOWN:]) for one in lost)


def refuse_failures(
    requested: int, failures: Sequence[Failure], *, max_failure_rate: float
) -> None:
    """Stop where too few comparisons have a verdict.

    Raises:
        JudgeError: more than `max_failure_rate` of the requested comparisons have no verdict.
    """
    if len(failures) <= max_failure_rate * requested:
        return
    reason, count = Counter(failure.reason for failure in failures).most_common(1)[0]
    example = next(failure.text for failure in failures if failure.reason == reason)
    answer = f"; it answered, for example: {example!r}" if example else ""
    raise JudgeError(
        f"{len(failures):,} of {requested:,} judgements failed "
        f"({len(failures) / requested:.1%}), judge.max_failure_rate allows {max_failure_rate:.1%}; "
        f"most often ({count:,}): {reason}{answer}. Verdicts that came are kept: the same command "
        "asks again for the others once the judge answers"
    )


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """How one model is called.

    Attributes:
        identity: JSON-able, what decides its answers beside the messages and the seed.
        attempts: calls that a vote may take.
        max_characters: of a prompt's messages; None: no limit.
    """

    identity: Mapping[str, Any]
    parameters: Parameters
    thinking: bool
    attempts: int
    max_characters: int | None = None
    # of all but the messages, taken once
    _digest: hashlib.blake2b = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = json_text([self.identity, asdict(self.parameters), self.thinking]).encode()
        object.__setattr__(self, "_digest", hashlib.blake2b(parts, digest_size=16))

    def key(self, messages: Sequence[Message]) -> str:
        """32 hex digits of the messages and of who gets them."""
        digest = self._digest.copy()
        for message in messages:
            # judging prompts hold roles and texts alone; the length says where a text ends
            digest.update(f"\n{message.role} {len(message.content)}\n{message.content}".encode())
        return digest.hexdigest()


class VoteRequest:
    """Called until there is a vote; two requests of one key are the same request.

    request.next_call(seed=7)
    request.take(generation)   # no verdict in it: request.vote is None, so call again
    request.take(generation)   # request.vote == Vote(Verdict(4, 2, 2), calls=2, …)

    Attributes:
        vote: None as long as another call may bring a verdict.
        keeps: whether the vote is worth keeping: the model answered.
    """

    def __init__(self, messages: tuple[Message, ...], settings: RequestSettings) -> None:
        self.key = settings.key(messages)
        self.vote: Vote | None = None
        self.keeps = False
        self._messages, self._settings = messages, settings
        self._calls = self._prompt = self._completion = 0
        length, limit = sum(len(message.content) for message in messages), settings.max_characters
        if limit is not None and length > limit:
            self._end(reason=f"longer than judge.max_characters {limit:,}")

    def next_call(self, seed: int) -> Request:
        """Every call has a seed of its own, which the content decides."""
        return Request(
            messages=self._messages,
            tools=None,
            thinking=self._settings.thinking,
            parameters=self._settings.parameters,
            seed=seed_of(seed, self.key, self._calls),
        )

    def take(self, generation: Generation) -> None:
        """Read the answer to the last call."""
        self._calls += 1
        step = generation.step
        if step is None or generation.error is not None:
            # the backend has tried again by itself
            self._end(reason=generation.error or "the backend gave nothing")
            return
        self._prompt += step.prompt_tokens
        self._completion += step.reasoning_tokens + step.answer_tokens
        complete = step.finish == "stop"
        verdict = parse_verdict(step.parsed.answer) if complete else None
        if verdict is not None:
            self._end(verdict, text=step.parsed.answer)
        elif self._calls >= self._settings.attempts:
            limit = self._settings.parameters.max_tokens
            unreadable = "no readable verdict in its answer"
            reason = unreadable if complete else f"ran to judge.sampling.max_tokens {limit:,}"
            self._end(reason=reason, text=step.parsed.answer or step.text)
        self.keeps = self.vote is not None

    def _end(
        self, verdict: Verdict | None = None, *, reason: str | None = None, text: str = ""
    ) -> None:
        self.vote = Vote(
            verdict,
            reason=reason,
            text=text,
            calls=self._calls,
            prompt_tokens=self._prompt,
            completion_tokens=self._completion,
        )
