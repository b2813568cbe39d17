"""Rollouts on disk: one file for each batch of rollouts, one line for each group.

    rollouts/step-00001.jsonl
    {"step": 1, "position": 0, "attempt": 0, "dropped": false, "prompt": {"id": "maths-7", …},
     "rollouts": [{"index": 0, "text": "…", "finish": "stop", "tokens": 40, "reward": 3.5,
                   "parts": {"base": 3.5}, "advantage": 0.7, "in_loss": true,
                   "importance": {"mean": 1.0, "low": 1.0, "high": 1.0, "masked": 0,
                                  "strayed": 1.0, "kept": true}}, …],
     "judgements": [{…}, …]}

Where a reward has values for tokens, `token_rewards` lists them, one for each token that the policy
wrote; `reward` is then their sum, and `advantage` the mean of the tokens' advantages.

With `rollouts.lag: 1` each rollout has `version`, the number of batches that its sampling weights
had been trained on; without lag these are all batches before its own.

The file appears whole or not at all; a batch that is made again gives the same bytes. Seconds
differ from run to run, so they are kept out of log and artifact, in a file of their own:

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
from posttrain.training.rl.batch import RolloutKey, ScoredGroup

# decimals of a token's value on disk; few, since a batch has as many values as tokens
TOKEN_DIGITS = 4
RatioStats = Mapping[RolloutKey, Mapping[str, Any]]


def rollout_file(out: Path, step: int) -> Path:
    """Path of the batch of rollouts whose first update is optimiser step `step`, from 1."""
    return out / ROLLOUTS / f"step-{step:05d}.jsonl"


def group_row(
    scored: ScoredGroup, *, step: int, ratios: RatioStats, version: int | None = None
) -> dict[str, Any]:
    """Convert a group to a JSON-able row.

    Args:
        ratios: stats of the importance ratios of each rollout in the loss.
        version: number of batches that the sampling weights had been trained on; None: not written.
    """
    rollouts: list[dict[str, Any]] = []
    for index in range(len(scored.group.completions)):
        row = _rollout_row(scored, index, ratios)
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


def _rollout_row(scored: ScoredGroup, index: int, ratios: RatioStats) -> dict[str, Any]:
    """Convert a rollout to a row: totals, then the values of its tokens where it has any."""
    rewards = scored.rewards
    credit = rewards.rewards[index]
    advantage = scored.advantages[index]
    if isinstance(advantage, tuple):
        advantage = statistics.fmean(advantage or (0.0,))
    ratio_stats = None if scored.dropped else ratios.get((scored.position, index))
    row: dict[str, Any] = {
        **_completion_row(scored.group.completions[index]),
        "reward": total_credit(credit),
        "parts": {name: values[index] for name, values in rewards.parts.items()},
        "advantage": advantage,
        "in_loss": ratio_stats is not None,
        "importance": ratio_stats,
    }
    if isinstance(credit, tuple):
        row["token_rewards"] = [round(value, TOKEN_DIGITS) for value in credit]
    return row


def _completion_row(completion: Completion) -> dict[str, Any]:
    """Convert a completion to a row: its text, why it ended, and its lengths in tokens."""
    texts: list[str] = []
    for step in completion.steps:
        texts.append(step.text)
        texts += [message.content for message in step.results]
    return {
        "index": completion.index,
        "finish": completion.finish,
        "text": "\n".join(texts),
        "answer": completion.answer,
        "prompt_tokens": len(completion.prompt_ids or ()),
        "reasoning_tokens": completion.reasoning_tokens,
        "answer_tokens": completion.answer_tokens,
        "tokens": sum(len(step.ids or ()) for step in completion.steps),
        "error": completion.error,
    }


def write_part(file: Path, rows: Sequence[Mapping[str, Any]], *, process: int) -> None:
    """Write the groups of one process beside the file that `join_parts` makes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    _part_file(file, process).write_text("".join(map(row_line, rows)), "utf-8")


def join_parts(file: Path, *, processes: int) -> None:
    """Join the parts of all processes into the file, in order of position.

    Every process must have written its part.
    """
    parts = [_part_file(file, process) for process in range(processes)]
    lines: list[bytes] = []
    for part in parts:
        lines += part.read_bytes().splitlines(keepends=True)
    lines.sort(key=lambda line: itemgetter("position", "attempt")(json.loads(line)))
    # renamed only when it is on disk, so that the file appears whole or not at all
    partial = file.with_name(f".{file.name}.partial")
    with partial.open("wb") as handle:
        handle.writelines(lines)
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(file)
    for part in parts:
        part.unlink()


def _part_file(file: Path, process: int) -> Path:
    return file.with_name(f".{file.name}.{process}")


class StepClock:
    """Clock of the current batch of rollouts: seconds of each part of the work."""

    def __init__(self, out: Path) -> None:
        self.path = out / TIMING
        self.step = 0
        self.seconds: dict[str, float] = defaultdict(float)
        self.verifiers: dict[str, dict[str, float]] = {}

    def start(self, step: int) -> None:
        """Reset the clock for the batch whose first update is optimiser step `step`, from 1."""
        self.step = step
        self.seconds = defaultdict(float)
        self.verifiers = {}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to this part."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def text(self) -> str:
        """Seconds so far, as the end of a printed line."""
        spent = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.seconds.items())
        return f" ({spent} s)"

    def write(self, *, main: bool) -> None:
        """Append the batch's row to the file, in the main process."""
        if not main:
            return
        row: dict[str, Any] = {"step": self.step}
        for name, seconds in self.seconds.items():
            row[name] = round(seconds, 3)
        if self.verifiers:
            row["verifiers"] = self.verifiers
        with self.path.open("a", encoding="utf-8") as handle:
            handle.write(json_text(row) + "\n")
