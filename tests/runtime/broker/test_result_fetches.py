"""Fetches of results: one request for several channels, and one for each that the answer leaves out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec
import pytest

from tests.runtime.broker.running_broker import row
from tocsin.benchmarks.shared.data_cluster import EmulatedCluster
from tocsin.broker import events
from tocsin.broker.effects import CancelFetch, Fetch
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.runtime.broker import result_fetches
from tocsin.runtime.broker.result_fetches import ResultFetches, joint_parts
from tocsin.wire import cluster as wire
from tocsin.wire.errors import Code

CHANNELS = [ChannelName(f"C{number}") for number in range(3)]


class FetchedChannels:
    """Three channels with a subscription and a result each, and what the broker's logic hears of its fetches."""

    def __init__(self, cluster: EmulatedCluster, client: httpx.AsyncClient) -> None:
        self.cluster = cluster
        self.events: list[Any] = []
        self.fetches = ResultFetches(self.events.append, lambda: client, dict)
        self._client = client
        self.ids: list[SubscriptionId] = []

    async def prepare(self) -> None:
        for number, channel in enumerate(CHANNELS):
            request = wire.SubscribeRequest(channel, {"kind": "fire"}, "north")
            answer = await self._client.post(wire.SUBSCRIPTIONS, content=wire.encode(request))
            self.ids.append(wire.decode_granted(answer.content)[0].id)
            self.cluster.execute(channel, {self.ids[-1]: [row(number)]})

    def fetch(self, number: int, after: int = 0) -> None:
        start = Cursor(1, after or (1 << 20))
        self.fetches.fetch(Fetch(number, CHANNELS[number], {self.ids[number]: start}))

    async def until_all_ended(self, count: int = 3) -> None:
        async with asyncio.timeout(10):
            while sum(isinstance(event, events.FetchEnded | events.FetchFailed) for event in self.events) < count:
                await asyncio.sleep(0.005)

    @property
    def rows(self) -> dict[int, list[int]]:
        """The numbers that each fetch has brought."""
        return {
            event.fetch: [msgspec.json.decode(row)["n"] for row in event.rows]
            for event in self.events
            if isinstance(event, events.ResultsFetched)
        }


def run(scenario: Callable[[FetchedChannels], Awaitable[None]]) -> None:
    async def prepared() -> None:
        async with EmulatedCluster(*CHANNELS) as cluster, httpx.AsyncClient(base_url=cluster.url) as client:
            channels = FetchedChannels(cluster, client)
            await channels.prepare()
            await scenario(channels)
            await channels.fetches.stop()

    asyncio.run(prepared())


def test_fetches_that_start_together_share_one_request() -> None:
    async def scenario(channels: FetchedChannels) -> None:
        for number in range(3):
            channels.fetch(number)
        await channels.until_all_ended()
        assert channels.cluster.fetches == 1
        assert channels.rows == {0: [0], 1: [1], 2: [2]}
        ended = [event for event in channels.events if isinstance(event, events.FetchEnded)]
        assert [(event.fetch, event.upto) for event in ended] == [(n, Cursor(1, 2 << 20)) for n in range(3)]
        channels.fetch(0)
        await channels.until_all_ended(4)
        assert channels.cluster.fetches == 2

    run(scenario)


def test_channel_that_the_answer_leaves_out_is_fetched_alone() -> None:
    async def scenario(channels: FetchedChannels) -> None:
        channels.cluster.expire("C1")
        channels.cluster.held["north"].discard(channels.ids[2])
        for number in range(3):
            channels.fetch(number)
        await channels.until_all_ended()
        assert channels.cluster.fetches == 3
        assert channels.rows == {0: [0]}
        assert [event.fetch for event in channels.events if isinstance(event, events.GapFound)] == [1]
        [failed] = [event for event in channels.events if isinstance(event, events.FetchFailed)]
        assert (failed.fetch, failed.code) == (2, Code.UNKNOWN_SUBSCRIPTION)

    run(scenario)


def test_earlier_data_cluster_gets_one_request_for_each_channel() -> None:
    async def scenario(channels: FetchedChannels) -> None:
        channels.cluster.answers_joint_requests = False
        for _ in range(2):
            for number in range(3):
                channels.fetch(number)
            await channels.until_all_ended()
            assert channels.rows == {0: [0], 1: [1], 2: [2]}
            channels.events.clear()
        assert channels.cluster.fetches == 6

    run(scenario)


def test_failed_joint_request_fails_each_of_its_fetches() -> None:
    async def scenario(channels: FetchedChannels) -> None:
        channels.cluster.away = True
        for number in range(3):
            channels.fetch(number)
        await channels.until_all_ended()
        assert [(event.fetch, event.code) for event in channels.events] == [(n, Code.NOT_READY) for n in range(3)]

    run(scenario)


def test_cancelled_fetch_of_a_joint_request_brings_no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(channels: FetchedChannels) -> None:
        for number in range(3):
            channels.fetch(number)
        channels.fetches.cancel_fetch(CancelFetch(0))
        pull = channels.fetches._pull_together

        async def cancelled_meanwhile(effects: list[Fetch]) -> Any:
            parts = await pull(effects)
            channels.fetches.cancel_fetch(CancelFetch(1))
            return parts

        monkeypatch.setattr(channels.fetches, "_pull_together", cancelled_meanwhile)
        await channels.until_all_ended(1)
        assert channels.rows == {2: [2]} and channels.cluster.fetches == 1

    run(scenario)


def test_large_fetches_do_not_share_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_fetches, "SUBSCRIPTIONS_TOGETHER", 2)

    async def scenario(channels: FetchedChannels) -> None:
        for number in range(3):
            channels.fetch(number)
        await channels.until_all_ended()
        assert channels.cluster.fetches == 2 and channels.rows == {0: [0], 1: [1], 2: [2]}

    run(scenario)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"channel":"C0","cursor":"1-5","lines":1}\n', "other channels"),
        (b'{"channel":"C9"}\n{"channel":"C1"}\n', "other channels"),
        (b'{"channel":"C0"}\n', "before its last channel"),
        (b'{"channel":"C0"}\n{"chan', "middle of a line"),
        (b'{"channel":"C0","cursor":"x"}\n{"channel":"C1"}\n', "as a cursor"),
    ],
)
def test_answer_that_does_not_fit_the_request_is_refused(content: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        joint_parts(content, CHANNELS[:2])
