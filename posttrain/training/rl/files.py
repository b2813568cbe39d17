"""Every rollout on disk: a file a batch of rollouts, a line a group.

    rollouts/step-00001.jsonl
    {"step": 1, "position": 0, "attempt": 0, "dropped": false, "prompt": {"id": "maths-7", …},
     "rollouts": [{"index": 0, "text": "…", "finish": "stop", "tokens": 40, "reward": 3.5,
                   "parts": {"base": 3.5}, "advantage": 0.7, "in_loss": true,
                   "importance": {"mean": 1.0, "low": 1.0, "high": 1.0, "masked": 0,
                                  "strayed": 1.0, "kept": true}}, …],
     "judgements": [{…}, …]}

Where a reward has values for tokens, `token_rewards` has them, one for each token that the policy
wrote; `reward` is then their sum, and `advantage` the mean of the tokens' advantages.

With `rollouts.lag: 1` each rollout has `version`, the number of batches that the weights that wrote
it had been trained on; without lag these are all batches before its own.

The file appears whole or not at all; a batch that is made again gives the same bytes. Seconds
differ from run to run, so they are in neither log nor artifact, but in a file of their own:

    timing.jsonl
    {"step": 1, "rollout": 4.1, "reward": 2.0, "train": 6.3, "verifiers": {"math": {"p50": 0.1}}}
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from posttrain.group_rewards import total_credit
from posttrain.jsontext import row_line
from posttrain.records import json_text
from posttrain.rollouts import Completion, prompt_to_row
from posttrain.training.output import ROLLOUTS, TIMING
from posttrain.training.rl.batch import ScoredGroup

# digits of a token's value on disk: a batch has as many values as tokens
TOKEN_DIGITS = 4
Place = tuple[int, int]
Stats = Mapping[Place, Mapping[str, Any]]


def rollout_file(out: Path, step: int) -> Path:
    """Of the batch whose first update is optimiser step `step`, from 1."""
    return out / ROLLOUTS / f"step-{step:05d}.jsonl"


def group_row(
    scored: ScoredGroup, *, step: int, stats: Stats, version: int | None = None
) -> dict[str, Any]:
    """A group as one JSON-able row; `stats` are ratios of the rollouts in the loss, by place.

    Args:
        version: of the weights that sampled it, in batches of training; None: not written.
    """
    rollouts: list[dict[str, Any]] = []
    for index in range(len(scored.group.completions)):
        row = _rollout_row(scored, index, stats)
        if version is not None:
            row["version"] = version
        rollouts.append(row)
    return {
        "step": step,
        "position": scored.position,
        "attempt": scored.attempt,
        "dropped": scored.dropped,
        "prompt": prompt_to_row(scored.group.prompt),
        "rollouts": rollouts,
        "judgements": [dict(row) for row in scored.rewards.judgements],
    }


def _rollout_row(scored: ScoredGroup, index: int, stats: Stats) -> dict[str, Any]:
    """A rollout as a row; where each token has a value, the totals and then the tokens' own."""
    rewards = scored.rewards
    credit, advantage = rewards.rewards[index], scored.advantages[index]
    row: dict[str, Any] = {
        **_completion_row(scored.group.completions[index]),
        "reward": total_credit(credit),
        "parts": {name: values[index] for name, values in rewards.parts.items()},
        "advantage": statistics.fmean(advantage or (0.0,))
        if isinstance(advantage, tuple)
        else advantage,
        "in_loss": not scored.dropped and (scored.position, index) in stats,
        "importance": None if scored.dropped else stats.get((scored.position, index)),
    }
    if isinstance(credit, tuple):
        row["token_rewards"] = [round(value, TOKEN_DIGITS) for value in credit]
    return row


def _completion_row(completion: Completion) -> dict[str, Any]:
    steps = completion.steps
    return {
        "index": completion.index,
        "finish": completion.finish,
        "text": "\n".join(
            part for step in steps for part in (step.text, *(m.content for m in step.results))
        ),
        "answer": completion.answer,
        "prompt_tokens": len(completion.prompt_ids or ()),
        "reasoning_tokens": completion.reasoning_tokens,
        "answer_tokens": completion.answer_tokens,
        "tokens": sum(len(step.ids or ()) for step in steps),
        "error": completion.error,
    }


def write_part(file: Path, rows: Sequence[Mapping[str, Any]], *, process: int) -> None:
    """What one process made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    _part(file, process).write_text("".join(map(row_line, rows)), "utf-8")


def join_parts(file: Path, *, processes: int) -> None:
    """Put all parts into the file, in order of position; every process has written its part."""
    parts = [_part(file, process) for process in range(processes)]
    lines = [line for part in parts for line in part.read_bytes().splitlines(keepends=True)]
    lines.sort(key=lambda line: itemgetter("position", "attempt")(json.loads(line)))
    partial = file.with_name(f".{file.name}.partial")
    with partial.open("wb") as handle:
        handle.writelines(lines)
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(file)
    for part in parts:
        part.unlink()


def _part(file: Path, process: int) -> Path:
    return file.with_name(f".{file.name}.{process}")


class StepClock:
    """Seconds of one batch of rollouts by part."""

    def __init__(self, out: Path) -> None:
        self.path = out / TIMING
        self.step = 0
        self.seconds: dict[str, float] = defaultdict(float)
        self.verifiers: dict[str, dict[str, float]] = {}

    def start(self, step: int) -> None:
        """A new batch, whose first update is this step."""
        self.step, self.seconds, self.verifiers = step, defaultdict(float), {}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block's seconds to this part."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def text(self) -> str:
        """The seconds so far, behind a printed line."""
        spent = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.seconds.items())
        return f" ({spent} s)"

    def write(self, *, main: bool) -> None:
        """Append the batch's row."""
        if main:
            row: dict[str, Any] = {k: round(v, 3) for k, v in self.seconds.items()}
            row = {"step": self.step, **row}
            if self.verifiers:
                row["verifiers"] = self.verifiers
            with self.path.open("a", encoding="utf-8") as handle:
                handle.write(json_text(row) + "\n")
