"""Requests that arrive one by one become batches: all that can come are waited for, then asked.

    gather = Gather(lambda requests: sampler.sample(requests))
    with gather.member(position=3) as member:     # one of those whose requests are waited for
        generation = await member.ask(request)

A batch leaves when every member waits, in the order of their positions. So it depends on who takes
part and not on who came first: the same members make the same batches, and nothing sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


@dataclass(slots=True)
class Gather(Generic[Asked, Answered]):
    """Batches for one callable.

    Args:
        run: one answer for each that is asked, in order.
        expected: members that are still to come; batches wait for them as well.
    """

    run: Callable[[Sequence[Asked]], Awaitable[Sequence[Answered]]]
    expected: int = 0
    _members: int = 0
    _waiting: dict[int, tuple[Asked, asyncio.Future[Answered]]] = field(default_factory=dict)
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    def expect(self, members: int) -> None:
        """Wait for so many more members."""
        self.expected += members

    @contextlib.contextmanager
    def member(self, *, position: int) -> Iterator[Member[Asked, Answered]]:
        """Take part; `position` is unique and orders the batches."""
        self.expected = max(0, self.expected - 1)
        self._members += 1
        try:
            yield Member(self, position)
        finally:
            self._members -= 1
            self._leave_if_all_wait()

    async def ask(self, position: int, asked: Asked) -> Answered:
        """The answer to one request, when its batch has been run."""
        assert position not in self._waiting, f"member {position} asks twice at a time"
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting[position] = (asked, future)
        try:
            self._leave_if_all_wait()
            return await future
        finally:
            # cancelled before its batch left
            if self._waiting.get(position, (None, None))[1] is future:
                del self._waiting[position]

    def _leave_if_all_wait(self) -> None:
        if self._waiting and len(self._waiting) >= self._members + self.expected:
            batch = [self._waiting[position] for position in sorted(self._waiting)]
            self._waiting = {}
            task = asyncio.ensure_future(self._answer(batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _answer(self, batch: Sequence[tuple[Asked, asyncio.Future[Answered]]]) -> None:
        try:
            answers = await self.run([asked for asked, _ in batch])
            assert len(answers) == len(batch), f"{len(answers)} answers for {len(batch)}"
        except Exception as error:  # noqa: BLE001  it is raised where it is awaited
            # one is told, and its error ends the run; the others are cancelled with it. Told to
            # all, inspect would write a traceback with every variable for each
            told = next((future for _, future in batch if not future.done()), None)
            if told is not None:
                told.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)


@dataclass(frozen=True, slots=True)
class Member(Generic[Asked, Answered]):
    """One that takes part."""

    gather: Gather[Asked, Answered]
    position: int

    async def ask(self, asked: Asked) -> Answered:
        """The answer, when every member waits and the batch has been run."""
        return await self.gather.ask(self.position, asked)
