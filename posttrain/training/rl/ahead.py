"""Rollouts of the next step, sampled before or while the current one trains (`rollouts.lag: 1`).

With lag 1 the rollouts of step k come from the weights after step k − 2, whatever the timing: in
this process they are sampled before step k − 1 trains, on a server while it does. A checkpoint
holds them with their rewards, so that a resumed run samples and judges none of them again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import DataError
from posttrain.group_rewards import Group, GroupRewards, group_rewards_from_row
from posttrain.jsontext import jsonl_rows, row_line
from posttrain.rollouts import Prompt, completion_from_row, completion_to_row


@dataclass(frozen=True, slots=True)
class SampledGroups:
    """Groups of a step.

    Attributes:
        rewards: Rewards of each group; None where they are still to be asked for.
    """

    groups: list[Group]
    rewards: list[GroupRewards | None]


Sampling = Coroutine[Any, Any, SampledGroups]


class AheadRollouts:
    """Holder of the next step's rollouts, which are sampled or being sampled.

    Args:
        runner: runner of the reward's event loop; nothing else may use it while it samples.
    """

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._step: int | None = None
        self._sampled: SampledGroups | None = None
        # while a thread samples
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[SampledGroups] | None = None
        self._future: Future[SampledGroups] = Future()

    def put(self, step: int, sampled: SampledGroups) -> None:
        """Keep the rollouts of a step, counted from 0."""
        self._step = step
        self._sampled = sampled

    def begin(self, step: int, sampling: Sampling) -> None:
        """Sample the rollouts of a step, counted from 0, in a thread beside the training."""
        future: Future[SampledGroups] = Future()
        # made before the thread starts, so that it can be cancelled at any moment
        task = self._runner.get_loop().create_task(sampling)

        async def sample() -> SampledGroups:
            return await task

        def run() -> None:
            try:
                future.set_result(self._runner.run(sample()))
            except BaseException as error:  # noqa: BLE001 - raised where the rollouts are taken
                future.set_exception(error)

        self._step = step
        self._future = future
        self._task = task
        self._thread = threading.Thread(target=run, name="rollouts", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the rollouts that are being sampled, and raise the error of their sampling."""
        if self._thread is None:
            return
        # an error and Ctrl-C leave the thread to `close`
        self._sampled = self._future.result()
        self._thread.join()
        self._thread = None

    def take(self, step: int) -> SampledGroups | None:
        """Hand out the rollouts of a step, from 0; None for the first step, sampled by itself."""
        self.wait()
        sampled = self._sampled
        self._sampled = None
        if sampled is None:
            return None
        assert self._step == step, "steps are taken in their order"
        return sampled

    def close(self) -> None:
        """Cancel the rollouts that are being sampled."""
        if self._thread is None:
            return
        assert self._task is not None
        self._runner.get_loop().call_soon_threadsafe(self._task.cancel)
        # the loop is free for others once the thread has left it
        self._thread.join()
        self._thread = None

    # ---- checkpoints ----

    def save(self, file: Path) -> None:
        """Write the rollouts of the next step and their rewards; after the last step, nothing.

        Waits until they are sampled and, where the reward needs no policy, rewarded.
        """
        self.wait()
        if self._sampled is None:
            return
        rows: list[dict[str, Any]] = []
        for group, rewards in zip(self._sampled.groups, self._sampled.rewards, strict=True):
            completions = [completion_to_row(completion) for completion in group.completions]
            row = {"step": self._step, "prompt": group.prompt.id, "completions": completions}
            # what failed is asked for again: kept failures would stop a run that is resumed because
            # there were too many of them
            if rewards is not None and not rewards.failures:
                row["rewards"] = asdict(rewards)
            rows.append(row)
        file.write_text("".join(map(row_line, rows)), "utf-8")

    def load(self, file: Path, *, step: int, prompts: Mapping[str, Prompt]) -> None:
        """Load the rollouts of a step, from 0, and their rewards out of a checkpoint's file.

        Raises:
            DataError: the file holds rollouts of another step.
        """
        groups: list[Group] = []
        rewards: list[GroupRewards | None] = []
        for row in jsonl_rows(file.read_text("utf-8")):
            if row["step"] != step:
                raise DataError(f"{file} holds rollouts of step {row['step'] + 1}, not {step + 1}")
            completions = [completion_from_row(completion) for completion in row["completions"]]
            groups.append(Group(prompts[row["prompt"]], tuple(completions)))
            rewards.append(group_rewards_from_row(row["rewards"]) if "rewards" in row else None)
        self.put(step, SampledGroups(groups, rewards))
