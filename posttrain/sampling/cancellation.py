"""Concurrent work that ends together: nothing outlives the call that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def gather_or_cancel(coroutines: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all coroutines, and return their results in order.

    None outlives this call: the first error cancels the others, and is raised as itself.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await cancel_all(tasks)


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait until they have ended; what they raise is ignored."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
