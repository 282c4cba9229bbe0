"""A data cluster with its schedule in this process, and a puller that acts as its broker; without HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tocsin.benchmarks.shared.harness import declare

PULLED_TOGETHER = 64
"""As `runtime.broker.result_fetches` does."""

Received = Callable[[str, list[Any], float], None]
"""Takes the name of a channel, its pulled results (`cluster.pulling.Pulled`) and the time of their arrival."""


@asynccontextmanager
async def running_cluster(root: str, application: str) -> AsyncIterator[Any]:
    """A `DataCluster` whose channels run by themselves. Spark goes on after the block: another cluster may use it."""
    from tocsin.cluster.engine import DataCluster
    from tocsin.cluster.server.metrics import ClusterMetrics
    from tocsin.cluster.server.process import ClusterProcess
    from tocsin.cluster.settings import ClusterSettings
    from tocsin.cluster.spark.session import make_session

    process = ClusterProcess(
        lambda arrived: DataCluster(make_session(), ClusterSettings(root=root), time.time, arrived),
        ClusterMetrics(),
    )
    cluster = await process.start()
    try:
        if application:
            await asyncio.to_thread(declare, cluster, application)
            await process.refresh()
        yield cluster
    finally:
        await process.stop()


@asynccontextmanager
async def pulling(cluster: Any, broker: Any, received: Received) -> AsyncIterator[None]:
    """Act as a broker during the block: wait for announcements and pull what they name. Raises if a pull failed."""
    task = asyncio.create_task(_pull_for_ever(cluster, broker, received))
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _pull_for_ever(cluster: Any, broker: Any, received: Received) -> None:
    loop = asyncio.get_running_loop()
    announced = asyncio.Event()
    stop_listening = cluster.announcements.listen(lambda: loop.call_soon_threadsafe(announced.set))
    sequence = cluster.announcements.sequence
    pulled_upto: dict[Any, Any] = {}
    try:
        while True:
            announced.clear()
            news = await asyncio.to_thread(cluster.announcements.since, broker, sequence)
            if news.sequence == sequence:
                await announced.wait()
                continue
            sequence = news.sequence
            # A broker pulls the channels that were announced together with one request.
            for start in range(0, len(news.announcements), PULLED_TOGETHER):
                together = news.announcements[start : start + PULLED_TOGETHER]
                pulled = await asyncio.to_thread(_pull_all, cluster, together, pulled_upto)
                for announcement, results in zip(together, pulled, strict=True):
                    received(announcement.channel, results, time.perf_counter())
    finally:
        stop_listening()


def _pull_all(cluster: Any, announcements: list[Any], pulled_upto: dict[Any, Any]) -> list[list[Any]]:
    return [_pull(cluster, announcement, pulled_upto) for announcement in announcements]


def _pull(cluster: Any, announcement: Any, pulled_upto: dict[Any, Any]) -> list[Any]:
    """The results of an announced execution and of later ones, for subscriptions that have not got them yet.

    As brokers do: a pull returns everything from a cursor on, and `pulled_upto` has the next cursor of each
    subscription. An announcement that comes later finds its results pulled already. A subscription that was
    unsubscribed since has none.
    """
    from tocsin.cluster.pulling import open_pull, pulled
    from tocsin.model.cursor import Cursor, offset_of
    from tocsin.wire.errors import Code, TocsinError

    start = Cursor(announcement.epoch, offset_of(announcement.execution))
    wanted = [news.id for news in announcement.subscriptions if pulled_upto.get(news.id, start) <= start]
    while wanted:
        try:
            pull = open_pull(cluster, announcement.channel, dict.fromkeys(wanted, str(start)))
        except TocsinError as error:
            if error.code is not Code.UNKNOWN_SUBSCRIPTION:
                raise
            known = cluster.catalog.subscriptions.numbers(announcement.channel, wanted)
            wanted = [subscription for subscription in wanted if subscription in known]
            continue
        pulled_upto.update(dict.fromkeys(wanted, pull.upto))
        return [result for part in pulled(cluster.results, pull) for result in part]
    return []
