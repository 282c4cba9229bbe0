"""Results wait for the application: in turn, one subscription at a time, and never unnoticed."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tocsin.client.errors import SessionEnded, Unread
from tocsin.client.waiting import Waiting
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.wire.errors import Code
from tocsin.wire.session import Result

A, B = SubscriptionId("a"), SubscriptionId("b")


def result(name: SubscriptionId, offset: int) -> Result:
    return Result(name, ChannelName("C"), f"1-{offset}", msgspec.Raw(b"{}"))


async def taken(waiting: Waiting, name: SubscriptionId | None) -> str:
    item = await waiting.take(name)
    assert isinstance(item, Result), item
    return item.subscription + item.cursor[2:]


def test_subscriptions_take_turns_and_each_keeps_its_order() -> None:
    async def story() -> list[str]:
        waiting = Waiting(10)
        for offset in (1, 2, 3):
            waiting.put(A, result(A, offset))
        waiting.put(B, result(B, 1))
        return [await taken(waiting, None) for _ in range(4)]

    assert asyncio.run(story()) == ["a1", "b1", "a2", "a3"]


def test_each_result_is_taken_once_whoever_takes_it() -> None:
    async def story() -> list[str]:
        waiting = Waiting(10)
        takers = [asyncio.create_task(taken(waiting, name)) for name in (A, None, A)]
        await asyncio.sleep(0)
        for offset in (1, 2, 3):
            waiting.put(A, result(A, offset))
        return sorted(await asyncio.gather(*takers))

    assert asyncio.run(story()) == ["a1", "a2", "a3"]


def test_a_taker_that_is_cancelled_takes_nothing_with_it() -> None:
    async def story() -> str:
        waiting = Waiting(10)
        taker = asyncio.create_task(taken(waiting, A))
        await asyncio.sleep(0)
        waiting.put(A, result(A, 1))
        taker.cancel()
        await asyncio.gather(taker, return_exceptions=True)
        return await taken(waiting, A)

    assert asyncio.run(story()) == "a1"


def test_what_is_there_can_be_taken_after_the_end() -> None:
    async def story() -> None:
        waiting = Waiting(10)
        waiting.put(A, result(A, 1))
        waiting.end(SessionEnded(Code.NOT_READY, "over"))
        assert await taken(waiting, A) == "a1"
        assert isinstance(await waiting.take(A), SessionEnded)

    asyncio.run(story())


@pytest.mark.parametrize("others_take", [False, True])
def test_who_waits_behind_results_that_nobody_takes_is_told(others_take: bool) -> None:
    async def story() -> object:
        waiting = Waiting(2, unread_s=0.05)
        for offset in (1, 2, 3):
            waiting.put(B, result(B, offset))
        assert waiting.full
        taker = asyncio.create_task(waiting.take(A))
        await asyncio.sleep(0.02)
        if others_take:
            await waiting.take(B)
            await waiting.take(B)
            waiting.put(A, result(A, 1))
        return await taker

    assert isinstance(asyncio.run(story()), Result if others_take else Unread)
