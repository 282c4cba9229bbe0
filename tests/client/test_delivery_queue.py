"""The delivery queue: turns, order, cancellation, the end of a session and a full queue."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tocsin.client.delivery_queue import DeliveryQueue
from tocsin.client.errors import SessionEnded, Unread
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.wire.errors import Code
from tocsin.wire.session import Result

A, B = SubscriptionId("a"), SubscriptionId("b")


def result(name: SubscriptionId, offset: int) -> Result:
    return Result(name, ChannelName("C"), f"1-{offset}", msgspec.Raw(b"{}"))


async def take(queue: DeliveryQueue, name: SubscriptionId | None) -> str:
    item = await queue.take(name)
    assert isinstance(item, Result), item
    return item.subscription + item.cursor[2:]


def test_subscriptions_take_turns_and_each_keeps_its_order() -> None:
    async def scenario() -> list[str]:
        queue = DeliveryQueue(10)
        for offset in (1, 2, 3):
            queue.put(A, result(A, offset))
        queue.put(B, result(B, 1))
        return [await take(queue, None) for _ in range(4)]

    assert asyncio.run(scenario()) == ["a1", "b1", "a2", "a3"]


def test_several_readers_take_each_result_once() -> None:
    async def scenario() -> list[str]:
        queue = DeliveryQueue(10)
        readers = [asyncio.create_task(take(queue, name)) for name in (A, None, A)]
        await asyncio.sleep(0)
        for offset in (1, 2, 3):
            queue.put(A, result(A, offset))
        return sorted(await asyncio.gather(*readers))

    assert asyncio.run(scenario()) == ["a1", "a2", "a3"]


def test_cancelled_reader_leaves_its_result_in_the_queue() -> None:
    async def scenario() -> str:
        queue = DeliveryQueue(10)
        reader = asyncio.create_task(take(queue, A))
        await asyncio.sleep(0)
        queue.put(A, result(A, 1))
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        return await take(queue, A)

    assert asyncio.run(scenario()) == "a1"


def test_queued_results_can_be_taken_after_the_end() -> None:
    async def scenario() -> None:
        queue = DeliveryQueue(10)
        queue.put(A, result(A, 1))
        queue.end(SessionEnded(Code.NOT_READY, "over"))
        assert await take(queue, A) == "a1"
        assert isinstance(await queue.take(A), SessionEnded)

    asyncio.run(scenario())


@pytest.mark.parametrize("others_read", [False, True])
def test_reader_behind_unread_results_gets_an_error(others_read: bool) -> None:
    async def scenario() -> object:
        queue = DeliveryQueue(2, unread_s=0.05)
        for offset in (1, 2, 3):
            queue.put(B, result(B, offset))
        assert queue.full
        reader = asyncio.create_task(queue.take(A))
        await asyncio.sleep(0.02)
        if others_read:
            await queue.take(B)
            await queue.take(B)
            queue.put(A, result(A, 1))
        return await reader

    assert isinstance(asyncio.run(scenario()), Result if others_read else Unread)
