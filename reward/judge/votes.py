"""Comparisons, the calls that ask a model for its vote, votes, and their cache on disk."""

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

_SHOWN_CHARACTERS = 200  # of an answer in an error message
_VERDICT_FIELDS = ("score_1", "score_2", "ranking")
_COST_FIELDS = ("calls", "prompt_tokens", "completion_tokens")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two final answers to one conversation; without a `principle` the judge's own applies."""

    history: tuple[Message, ...]
    answer_1: str
    answer_2: str
    principle: str | None = None


@dataclass(frozen=True, slots=True)
class Vote:
    """One model's verdict on a comparison.

    Attributes:
        verdict: None where the model failed; `reason` then says how.
        text: final answer of the last call.
        calls: model calls that the vote took, 0 if it was cached; likewise their tokens.
        cached: True if it was taken from an equal comparison or an earlier run.
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
        """Number of calls after the first one."""
        return max(0, self.calls - 1)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The mean of the votes that have a verdict; None with a reason where none has."""

    verdict: Verdict | None
    votes: tuple[Vote, ...]

    @property
    def reason(self) -> str | None:
        """Reason why there is no verdict; None where there is one."""
        return None if self.verdict is not None else self.votes[0].reason

    def row(self) -> dict[str, Any]:
        """Row for a person to read: verdict, preferred answer, reason and the models' answers."""
        return {
            "verdict": self.verdict and [*astuple(self.verdict)],
            "preferred": self.verdict and preferred(self.verdict),
            "reason": self.reason,
            "texts": [vote.text for vote in self.votes],
        }


@dataclass(slots=True)
class JudgeCosts:
    """Costs of judging so far in this process; `seconds` of the wall clock."""

    matches: int = 0
    failed: int = 0
    calls: int = 0
    retries: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def add(self, judgements: Sequence[Judgement], *, seconds: float) -> None:
        """Add judgements and the seconds that they took together."""
        self.matches += len(judgements)
        self.failed += sum(judgement.verdict is None for judgement in judgements)
        self.seconds += seconds
        for judgement in judgements:
            for vote in judgement.votes:
                self.calls += vote.calls
                self.retries += vote.retries
                self.cached += vote.cached
                self.prompt_tokens += vote.prompt_tokens
                self.completion_tokens += vote.completion_tokens


def average_votes(votes: Sequence[Vote]) -> Judgement:
    """Join votes into a judgement with the mean of their verdicts; failed votes have none."""
    verdicts = [vote.verdict for vote in votes if vote.verdict is not None]
    if not verdicts:
        return Judgement(None, tuple(votes))
    means: list[float] = []
    for name in _VERDICT_FIELDS:
        total = sum(getattr(verdict, name) for verdict in verdicts)
        means.append(total / len(verdicts))
    return Judgement(Verdict(*means), tuple(votes))


def failures_of(judgements: Sequence[Judgement]) -> tuple[Failure, ...]:
    """List the judgements without a verdict: the reason, and the end of what a model answered."""
    failures: list[Failure] = []
    for judgement in judgements:
        if judgement.verdict is None:
            answer = judgement.votes[0].text
            failures.append(Failure(judgement.reason or "", answer[-_SHOWN_CHARACTERS:]))
    return tuple(failures)


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
    """Settings of the calls of one model.

    Attributes:
        identity: everything else that decides its answers beside the messages and the seed.
        attempts: most calls for one vote.
        max_characters: most characters of a prompt's messages.
    """

    identity: Mapping[str, Any]
    parameters: Parameters
    thinking: bool
    attempts: int
    max_characters: int | None = None
    _digest: hashlib.blake2b = field(init=False)  # everything but the messages, hashed once

    def __post_init__(self) -> None:
        parts = json_text([self.identity, asdict(self.parameters), self.thinking]).encode()
        object.__setattr__(self, "_digest", hashlib.blake2b(parts, digest_size=16))

    def key(self, messages: Sequence[Message]) -> str:
        """Digest of a request, 32 hex digits: the messages and the settings that decide answers."""
        digest = self._digest.copy()
        for message in messages:
            # judging prompts have roles and texts only; the length marks where a text ends
            digest.update(f"\n{message.role} {len(message.content)}\n{message.content}".encode())
        return digest.hexdigest()


class VoteRequest:
    """Request for one vote, over one or several calls (`next_call`, `take`) until `vote` is set.

    Two requests with the same `key` are the same request. `is_cacheable` is True if the vote is the
    model's, not a failure of the backend.
    """

    def __init__(self, messages: tuple[Message, ...], settings: RequestSettings) -> None:
        """Begin a request; one that is too long has a failed vote at once, without a call."""
        self.key = settings.key(messages)
        self.vote: Vote | None = None
        self.is_cacheable = False
        self._messages = messages
        self._settings = settings
        self._calls = 0
        self._prompt_tokens = 0
        self._completion_tokens = 0
        length = sum(len(message.content) for message in messages)
        limit = settings.max_characters
        if limit is not None and length > limit:
            self._set_vote(reason=f"longer than judge.max_characters {limit:,}")

    def next_call(self, seed: int) -> Request:
        """Build the next call, with a seed that depends on its content and number."""
        return Request(
            messages=self._messages,
            tools=None,
            thinking=self._settings.thinking,
            parameters=self._settings.parameters,
            seed=seed_of(seed, self.key, self._calls),
        )

    def take(self, generation: Generation) -> None:
        """Take the result of a call; a verdict, a failed call or the last attempt sets the vote."""
        self._calls += 1
        step = generation.step
        if step is None or generation.error is not None:
            # no further attempt: the backend has retried by itself
            self._set_vote(reason=generation.error or "the backend gave nothing")
            return
        self._prompt_tokens += step.prompt_tokens
        self._completion_tokens += step.reasoning_tokens + step.answer_tokens
        complete = step.finish == "stop"
        verdict = parse_verdict(step.parsed.answer) if complete else None
        if verdict is not None:
            self._set_vote(verdict, text=step.parsed.answer)
        elif self._calls >= self._settings.attempts:
            max_tokens = self._settings.parameters.max_tokens
            reason = f"ran to judge.sampling.max_tokens {max_tokens:,}"
            if complete:
                reason = "no readable verdict in its answer"
            self._set_vote(reason=reason, text=step.parsed.answer or step.text)
        self.is_cacheable = self.vote is not None

    def _set_vote(
        self, verdict: Verdict | None = None, *, reason: str | None = None, text: str = ""
    ) -> None:
        """Set the vote, with the costs of all calls so far."""
        self.vote = Vote(
            verdict,
            reason=reason,
            text=text,
            calls=self._calls,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
        )


# -- votes on disk -------------------------------------------------------------------------------

_LinePosition = tuple[int, int, int]  # file descriptor, offset, length


class VerdictCache:
    """Votes on disk by key and seed, in a folder that any number of processes may use.

    Every process writes a file of its own, held by the kernel's lock, a line per vote, and reads
    all files when it opens the cache; votes that others add later are not seen, so that a step does
    not depend on other processes. An unreadable vote counts only under the seed of its request.
    Calls that the backend gave up are not kept.

    Args:
        any_step: a verdict counts under every seed, so that equal requests of later steps are free.
    """

    def __init__(self, folder: Path, *, any_step: bool = False) -> None:
        """Open and lock the file of this process, and index the votes of all files in the folder.

        A line at the end of the own file that a killed process left half-written is cut off.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._any_step = any_step
        self._positions: dict[tuple[str, int | None], _LinePosition] = {}
        self._failures: dict[tuple[str, int], Vote] = {}  # in memory until `keep_failures`
        self._output, output_path = _open_locked_file(folder)
        self._inputs: list[BinaryIO] = []
        for path in sorted(folder.glob("votes-*.jsonl")):
            if path != output_path:
                file = path.open("rb")
                self._inputs.append(file)
                self._index_file(file)
        self._end = self._index_file(self._output)
        self._output.truncate(self._end)

    def __enter__(self) -> VerdictCache:
        return self

    def __exit__(self, *error: object) -> None:
        for file in (self._output, *self._inputs):
            file.close()

    def get(self, key: str, *, seed: int) -> Vote | None:
        """Look a vote up; None if there is none. One of another seed is marked as cached.

        Under the seed of its request it has its costs, so that a step which is repeated after an
        interruption has the same counts; a cached one costs nothing.
        """
        if (failure := self._failures.get((key, seed))) is not None:
            return failure
        # the step's own vote first: its failure came before any later success
        position = self._positions.get((key, seed)) or self._positions.get((key, None))
        if position is None:
            return None
        file, offset, length = position
        row: dict[str, Any] = load_json(os.pread(file, length, offset))
        verdict = None
        if row["reason"] is None:
            verdict = Verdict(*(row[name] for name in _VERDICT_FIELDS))
        vote = Vote(verdict, reason=row["reason"], text=row["text"])
        if row["seed"] == seed:
            return replace(vote, **{name: row[name] for name in _COST_FIELDS})
        return replace(vote, cached=True)

    def add(self, key: str, vote: Vote, *, seed: int) -> None:
        """Keep a vote; one without a verdict stays in memory until `keep_failures`.

        Otherwise the same command, started again after too many failures, would not ask again.
        """
        if vote.verdict is None:
            if (key, seed) not in self._positions:
                self._failures.setdefault((key, seed), vote)
            return
        self._write(key, vote, seed=seed)

    def keep_failures(self) -> None:
        """Write the failures so far: the step goes on, and if repeated it has the same failures."""
        failures = self._failures
        self._failures = {}
        for (key, seed), vote in failures.items():
            self._write(key, vote, seed=seed)

    def _write(self, key: str, vote: Vote, *, seed: int) -> None:
        """Append a vote to the file of this process and index it; nothing if it is there."""
        if (key, seed) in self._positions:
            return
        row: dict[str, Any] = {"key": key, "seed": seed}
        for name in _VERDICT_FIELDS:
            row[name] = None if vote.verdict is None else getattr(vote.verdict, name)
        row["reason"] = vote.reason
        row["text"] = vote.text
        for name in _COST_FIELDS:
            row[name] = getattr(vote, name)
        # half of a surrogate pair is no UTF-8: it is written as an escape
        line = json_text(row).encode("utf-8", "backslashreplace") + b"\n"
        offset = self._end
        self._output.seek(offset)
        self._output.write(line)
        self._output.flush()
        self._end += len(line)
        self._index_row(row, (self._output.fileno(), offset, len(line)))

    def _index_row(self, row: Mapping[str, Any], position: _LinePosition) -> None:
        """Index a row under its seed and, with `any_step`, a verdict under every seed."""
        key = row["key"]
        reason = row["reason"]
        self._positions.setdefault((key, row["seed"]), position)
        if self._any_step and reason is None:
            self._positions.setdefault((key, None), position)

    def _index_file(self, file: BinaryIO) -> int:
        """Index the votes of a file; returns the position behind its last whole line."""
        end = 0
        file.seek(0)
        for line in file:
            if not line.endswith(b"\n"):
                break
            position = (file.fileno(), end, len(line))
            end += len(line)
            try:
                self._index_row(load_json(line), position)
            except (ValueError, KeyError, TypeError):
                continue  # a damaged line: its vote is requested again
        return end


def _open_locked_file(folder: Path) -> tuple[BinaryIO, Path]:
    """Open the first file of votes that no other process holds, locked if the disk has locks."""
    for number in itertools.count():
        path = folder / f"votes-{number:03}.jsonl"
        file = path.open("a+b")
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        except OSError:
            pass  # a network file system without locks: the user must not share the folder
        return file, path
    raise AssertionError("there is always a next number")
