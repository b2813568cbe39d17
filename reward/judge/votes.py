"""A comparison, the calls that a model answers it with, its votes, and where they are kept."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from posttrain.errors import JudgeError
from posttrain.group_rewards import Failure
from posttrain.jsontext import load_json
from posttrain.records import Message, json_text
from posttrain.rollouts import Parameters
from posttrain.sampling.sampler import Generation, Request, seed_of
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
        calls: model calls that this vote took, and their tokens; 0 where it was known already.
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
        return {
            "verdict": self.verdict and [*astuple(self.verdict)],
            "preferred": self.verdict and preferred(self.verdict),
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
    given = [vote.verdict for vote in votes if vote.verdict is not None]
    means = (sum(getattr(one, name) for one in given) / len(given) for name in _FIELDS)
    return Judgement(Verdict(*means) if given else None, tuple(votes))


def failures_of(judgements: Sequence[Judgement]) -> tuple[Failure, ...]:
    lost = [one for one in judgements if one.verdict is None]
    return tuple(Failure(one.reason or "", one.votes[0].text[-_SHOWN:]) for one in lost)


def refuse_failures(
    requested: int, failures: Sequence[Failure], *, max_failure_rate: float
) -> None:
    """Raise JudgeError where more than `max_failure_rate` of the comparisons have no verdict."""
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
    """How one model is called; `identity` decides its answers beside the messages and the seed.

    `attempts` are the calls that a vote may take, `max_characters` those of a prompt's messages.
    """

    identity: Mapping[str, Any]
    parameters: Parameters
    thinking: bool
    attempts: int
    max_characters: int | None = None
    _digest: hashlib.blake2b = field(init=False)  # of all but the messages, taken once

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
    """Called (`next_call`, `take`) until there is a `vote`; it `keeps` one that the model gave.

    Two requests of one key are the same request.
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
            limit = f"ran to judge.sampling.max_tokens {self._settings.parameters.max_tokens:,}"
            reason = "no readable verdict in its answer" if complete else limit
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


# -- votes on disk -------------------------------------------------------------------------------

_FIELDS = ("score_1", "score_2", "ranking")
_COSTS = ("calls", "prompt_tokens", "completion_tokens")
_Place = tuple[int, int, int]  # file descriptor, offset, length


class VerdictCache:
    """Votes by key and seed; a folder, used by any number of processes.

    A line is one vote. What a step finds depends on nothing that other steps or processes did: what
    other processes add is seen when it is opened again. A vote that could not be read counts only
    under the seed of its request. Calls that the backend gave up are not kept. Every process writes
    a file of its own, held by the kernel's lock, and reads all.

    Args:
        any_step: a verdict counts under every seed: whoever asks the same gets it for nothing.
    """

    def __init__(self, folder: Path, *, any_step: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._any_step = any_step
        self._places: dict[tuple[str, int | None], _Place] = {}
        self._lost: dict[tuple[str, int], Vote] = {}
        self._own, own_path = _own_file(folder)
        self._others: list[BinaryIO] = []
        for path in sorted(folder.glob("votes-*.jsonl")):
            if path != own_path:
                self._others.append(path.open("rb"))
                self._read(self._others[-1])
        # a line that a killed process left half-written is written over
        self._end = self._read(self._own)
        self._own.truncate(self._end)

    def __enter__(self) -> VerdictCache:
        return self

    def __exit__(self, *error: object) -> None:
        for file in (self._own, *self._others):
            file.close()

    def get(self, key: str, *, seed: int) -> Vote | None:
        """The vote that is kept. Under the seed of its request it is as it was, costs and all, so
        that a step which was killed and is done again has the same counts."""
        if (lost := self._lost.get((key, seed))) is not None:
            return lost
        # a step's own vote first: a failure was there before any later success
        place = self._places.get((key, seed)) or self._places.get((key, None))
        if place is None:
            return None
        file, offset, length = place
        row: dict[str, Any] = load_json(os.pread(file, length, offset))
        verdict = Verdict(*(row[name] for name in _FIELDS)) if row["reason"] is None else None
        vote = Vote(verdict, reason=row["reason"], text=row["text"])
        if row["seed"] == seed:
            return replace(vote, **{name: row[name] for name in _COSTS})
        return replace(vote, cached=True)

    def add(self, key: str, vote: Vote, *, seed: int) -> None:
        """Keep a vote. One without a verdict is only remembered until `keep_failures`: a judge that
        fails too often to go on is called again by the same command."""
        if vote.verdict is None:
            if (key, seed) not in self._places:
                self._lost.setdefault((key, seed), vote)
            return
        self._write(key, vote, seed=seed)

    def keep_failures(self) -> None:
        """The step goes on: what failed in it stays failed, however often it is done again."""
        lost, self._lost = self._lost, {}
        for (key, seed), vote in lost.items():
            self._write(key, vote, seed=seed)

    def _write(self, key: str, vote: Vote, *, seed: int) -> None:
        if (key, seed) in self._places:
            return
        scores = {n: None if vote.verdict is None else getattr(vote.verdict, n) for n in _FIELDS}
        row = {"key": key, "seed": seed, **scores, "reason": vote.reason}
        row |= {"text": vote.text, **{name: getattr(vote, name) for name in _COSTS}}
        # half of a surrogate pair is no UTF-8: it is written as an escape
        line = (json_text(row).encode("utf-8", "backslashreplace")) + b"\n"
        offset = self._end
        self._own.seek(offset)
        self._own.write(line)
        self._own.flush()
        self._end += len(line)
        self._note(row, (self._own.fileno(), offset, len(line)))

    def _note(self, row: Mapping[str, Any], place: _Place) -> None:
        key, seed, reason = row["key"], row["seed"], row["reason"]
        self._places.setdefault((key, seed), place)
        if self._any_step and reason is None:
            self._places.setdefault((key, None), place)

    def _read(self, file: BinaryIO) -> int:
        """Note what a file holds; returns where its last whole line ends."""
        end = 0
        file.seek(0)
        for line in file:
            if not line.endswith(b"\n"):
                break
            place = (file.fileno(), end, len(line))
            end += len(line)
            try:
                self._note(load_json(line), place)
            except (ValueError, KeyError, TypeError):
                continue  # damaged: requested again
        return end


def _own_file(folder: Path) -> tuple[BinaryIO, Path]:
    """The first file that no other process holds."""
    for number in itertools.count():
        path = folder / f"votes-{number:03}.jsonl"
        file = path.open("a+b")
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        except OSError:
            pass  # a network file system without locks: there the user takes care
        return file, path
    raise AssertionError("there is always a next number")
