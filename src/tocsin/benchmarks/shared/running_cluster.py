"""A data cluster with its schedule in this process, and a puller that acts as its broker; without HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tocsin.benchmarks.shared.harness import declare

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
    reader = _Reader(cluster, broker)
    try:
        while True:
            announced.clear()
            await asyncio.to_thread(reader.read_announcements)
            if not reader.wanted:
                await announced.wait()
                continue
            channel, results = await asyncio.to_thread(reader.pull)
            received(channel, results, time.perf_counter())
    finally:
        stop_listening()


class _Reader:
    """Pulls every announced result once, as brokers do (`broker.live_fetches`).

    The announcements that came during a pull are read before the next one, and a pull returns everything from the
    cursor of each subscription on. So a channel that was announced several times is pulled once.
    """

    def __init__(self, cluster: Any, broker: Any) -> None:
        self._cluster = cluster
        self._broker = broker
        self._sequence = cluster.announcements.sequence
        self.wanted: dict[str, dict[Any, Any]] = {}
        """Channel → subscription → the cursor of its first result that is not pulled yet; the longest waiting first."""
        self._pulled_upto: dict[Any, Any] = {}

    def read_announcements(self) -> None:
        from tocsin.model.cursor import Cursor, offset_of

        while (news := self._cluster.announcements.since(self._broker, self._sequence)).sequence != self._sequence:
            self._sequence = news.sequence
            for announcement in news.announcements:
                start = Cursor(announcement.epoch, offset_of(announcement.execution))
                wanted = self.wanted.setdefault(announcement.channel, {})
                for subscription in announcement.subscriptions:
                    if self._pulled_upto.get(subscription.id, start) <= start:
                        wanted.setdefault(subscription.id, start)

    def pull(self) -> tuple[str, list[Any]]:
        """The results of the channel that waits longest."""
        channel = next(iter(self.wanted))
        return channel, self._pull(channel, self.wanted.pop(channel))

    def _pull(self, channel: str, wanted: dict[Any, Any]) -> list[Any]:
        """The results of these subscriptions. One that was unsubscribed since its announcement has none."""
        from tocsin.cluster.pulling import open_pull, pulled
        from tocsin.wire.errors import Code, TocsinError

        while wanted:
            try:
                pull = open_pull(self._cluster, channel, {key: str(cursor) for key, cursor in wanted.items()})
            except TocsinError as error:
                if error.code is not Code.UNKNOWN_SUBSCRIPTION:
                    raise
                known = self._cluster.catalog.subscriptions.numbers(channel, list(wanted))
                wanted = {key: cursor for key, cursor in wanted.items() if key in known}
                continue
            self._pulled_upto.update(dict.fromkeys(wanted, pull.upto))
            return [result for part in pulled(self._cluster.results, pull) for result in part]
        return []
