"""Work of a reward that begins with what has ended, while other rollouts are still sampled.

Rollouts and this work fail together: a rollout that ends the run cancels the requests to judges and
teachers that have begun, and a judge or teacher that ends the run cancels the rollouts.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from posttrain.group_rewards import EarlyGroupReward, EarlyReward, Group, GroupReward
from posttrain.rollouts import Completion, Prompt
from posttrain.sampling.cancellation import cancel_all

T = TypeVar("T")


class EarlyWork:
    """Tasks that a reward has begun early, until they end.

    Args:
        loop: event loop of the tasks.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        # the first error of a task
        self._failure: asyncio.Future[None] = loop.create_future()

    def add(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Hold tasks that have begun, until they end."""
        for task in tasks:
            self._tasks.add(task)
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)
            # retrieved here: nobody waits for it between two calls of `beside`
            self._failure.exception()

    async def beside(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine. The first error, its own or that of a task, cancels all others."""
        work = asyncio.ensure_future(coroutine)
        try:
            await asyncio.wait((work, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            return work.result()
        except BaseException:
            await cancel_all((work, *self._tasks))
            # a rollout that ended meanwhile has begun more
            await self.cancel()
            raise

    async def finish(self) -> None:
        """Wait for all tasks that have begun; their errors are those of `beside`."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cancel(self) -> None:
        """Cancel all tasks that have begun."""
        await cancel_all(self._tasks)


def begin_early(
    reward: GroupReward,
    prompts: Sequence[Prompt],
    early: EarlyWork,
    *,
    group_size: int,
    seed: int,
) -> Callable[[int, Completion], None]:
    """Callback for `roll_out` that hands a reward what it can begin with before all has ended.

    Args:
        reward: takes completions as an `EarlyReward`, whole groups as an `EarlyGroupReward`.
        prompts: one a group; the rollouts of group g have the positions g × `group_size` and on.
        early: holder of the tasks that the reward begins.
        seed: seed that `reward` is given for the step.
    """
    ended: dict[int, dict[int, Completion]] = defaultdict(dict)

    # rollouts end in any order
    def begin(position: int, completion: Completion) -> None:
        group, index = divmod(position, group_size)
        if isinstance(reward, EarlyReward):
            early.add(reward.begin(prompts[group], completion))
        ended[group][index] = completion
        if isinstance(reward, EarlyGroupReward) and len(ended[group]) == group_size:
            completions = tuple(ended[group][index] for index in range(group_size))
            early.add(reward.begin_group(Group(prompts[group], completions), seed=seed))

    return begin
