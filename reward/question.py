"""One match as one model is asked it, from the first call to the vote.

question = Question(messages, asker)
question.request(seed=7)
question.take(generation)      # not readable: question.vote is None, so ask again
question.take(generation)      # question.vote == Vote(Verdict(4, 2, 2), calls=2, …)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from posttrain.records import Message, json_text
from posttrain.rollouts import Step
from posttrain.sampling.sampler import Generation, Parameters, Request, seed_of
from reward.genrm import parse_verdict
from reward.judgements import Vote


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
