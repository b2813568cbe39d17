"""Batches of requests that come one by one: who is waited for, in what order, and what fails."""

from __future__ import annotations

import asyncio

import pytest

from posttrain.evaluation.gather import Gather


def gathering(*, expected: int = 0, fail: bool = False):
    batches: list[list[int]] = []

    async def run(asked):
        batches.append(list(asked))
        await asyncio.sleep(0)
        if fail:
            raise ZeroDivisionError("broken")
        return [10 * one for one in asked]

    return Gather(run, expected=expected), batches


async def takes_part(gather, position: int, rounds: int, *, ticks: int = 0) -> list[int]:
    for _ in range(ticks):
        await asyncio.sleep(0)
    with gather.member(position=position) as member:
        found = []
        for _ in range(rounds):
            found.append(await member.ask(position))
            for _ in range(ticks):  # a tool runs
                await asyncio.sleep(0)
        return found


def test_batches_are_whole_and_in_order_whoever_comes_first():
    async def main():
        gather, batches = gathering(expected=4)
        parts = [takes_part(gather, k, rounds=1 + k % 2, ticks=7 - k) for k in (3, 1, 2, 0)]
        found = await asyncio.gather(*parts)
        return found, batches

    found, batches = asyncio.run(main())
    assert found == [[30, 30], [10, 10], [20], [0]]
    assert batches == [[0, 1, 2, 3], [1, 3]]


def test_without_an_expectation_those_who_are_there_are_waited_for():
    async def main():
        gather, batches = gathering()
        await asyncio.gather(*(takes_part(gather, k, rounds=2) for k in range(3)))
        return batches

    assert sorted(one for batch in asyncio.run(main()) for one in batch) == [0, 0, 1, 1, 2, 2]


def test_one_who_leaves_without_asking_holds_nobody_up():
    async def main():
        gather, batches = gathering(expected=3)
        await asyncio.gather(*(takes_part(gather, k, rounds=k) for k in range(3)))
        return batches

    assert asyncio.run(main()) == [[1, 2], [2]]


def test_one_who_is_cancelled_holds_nobody_up():
    async def main():
        gather, batches = gathering(expected=3)
        parts = [asyncio.ensure_future(takes_part(gather, k, rounds=1)) for k in range(2)]
        await asyncio.sleep(0)
        parts[0].cancel()
        await asyncio.gather(parts[0], return_exceptions=True)
        last = await takes_part(gather, 2, rounds=1)
        return last, await parts[1], batches

    assert asyncio.run(main()) == ([20], [10], [[1, 2]])


def test_an_error_ends_the_run_and_is_told_once():
    async def main():
        gather, batches = gathering(expected=3, fail=True)
        parts = [asyncio.ensure_future(takes_part(gather, k, rounds=1)) for k in range(3)]
        done, left = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        for part in left:
            part.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        (first,) = done
        return first.exception(), len(left), batches

    error, left, batches = asyncio.run(main())
    assert isinstance(error, ZeroDivisionError)
    assert (left, batches) == (2, [[0, 1, 2]])


def test_nobody_asks_twice_at_a_time():
    async def main():
        gather, _ = gathering(expected=2)
        with gather.member(position=0) as member:
            first = asyncio.ensure_future(member.ask(1))
            await asyncio.sleep(0)
            with pytest.raises(AssertionError, match="asks twice"):
                await member.ask(2)
            first.cancel()

    asyncio.run(main())
