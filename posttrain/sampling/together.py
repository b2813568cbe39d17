"""Coroutines run together: the first that fails ends the others, and its error is what is raised.

await gather_or_cancel(fetch(url) for url in urls)
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all; none outlives this call. An error comes as itself, not in a group."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
