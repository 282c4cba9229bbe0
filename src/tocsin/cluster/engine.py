"""The data cluster: datasets, feeds, channels, subscriptions and results over one data root [BAD §3.1].

`DataCluster` puts the parts together and forwards the most used calls to them. It has no clock loop and no thread of
its own. `cluster.server` decides when channels run, `cluster.upkeep` merges and expires files, `cluster.applying`
applies application files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from tocsin.cluster.announcements import AnnouncementLog
from tocsin.cluster.catalog import Catalog, StoredExecution, channels_of
from tocsin.cluster.channels import Channels, GrantedSubscription
from tocsin.cluster.datasets import Datasets
from tocsin.cluster.deaths import FROM_OUTSIDE
from tocsin.cluster.executions import Executions
from tocsin.cluster.feed.shared_gateway import Gateway
from tocsin.cluster.joint_executions import JointOutcome
from tocsin.cluster.live import EngineContext, LiveChannel, LiveDataset
from tocsin.cluster.pulling import ChannelHead
from tocsin.cluster.retention import RetentionClock, Uptime, machine_uptime
from tocsin.cluster.root_lease import RootLease
from tocsin.cluster.settings import ClusterSettings
from tocsin.cluster.spark.session import Session
from tocsin.cluster.store.readers import Garbage, Readers
from tocsin.cluster.store.results import ResultStore
from tocsin.cluster.store.writes import Writes
from tocsin.cluster.subscriptions import Subscriptions, Users
from tocsin.database.lease import LeaseLost
from tocsin.model.ids import BrokerId, ChannelName, SubscriptionId


class DataCluster:
    """Thread-safe. Only one process at a time has a data root open."""

    def __init__(
        self,
        spark: Session,
        settings: ClusterSettings,
        now_s: Callable[[], float],
        arrived: Callable[[ChannelName], None] | None = None,
        uptime: Uptime | None = None,
        lease: RootLease | None = None,
    ) -> None:
        """`now_s` is the wall clock, `uptime` that of the machine by default.

        `lease` has been acquired; `close` releases it. Without one, the data cluster acquires its own, or raises.

        The data cluster calls `arrived`, from any thread, with the name of each channel that has NEW records.

        `cluster.server` then runs the channel if it is continuous. Without `arrived`, a channel runs only on `execute`.
        """
        self.spark = spark
        self.settings = settings
        self.now_s = now_s
        if lease is None:
            lease = RootLease(settings)
            lease.acquire()
        self.lease = lease
        self.storage = settings.storage()
        self.storage.check()
        self.catalog = Catalog(settings.catalog_url(), lease.lease)
        uptime = uptime or machine_uptime()
        self.retention_s = RetentionClock(self.catalog, now_s, uptime)
        readers = Readers()
        self.garbage = Garbage(self.catalog, self.storage, readers, settings.garbage_after_s, uptime.elapsed_s)
        self.results = ResultStore(self.catalog, self.storage, readers)
        # This process alone has the data root open, so the jobs behind the intents are dead.
        for channel in channels_of(self.catalog.writes.clear()):
            self.catalog.trials.add_death(channel, FROM_OUTSIDE)
        self.writes = Writes(self.catalog, self.storage, readers, self.retention_s)
        context = EngineContext(
            spark, settings, self.catalog, self.storage, self.writes, now_s, self.retention_s, readers, lease.lease
        )
        self.datasets = Datasets(context, lambda: self.channels.all(), arrived)
        self.subscriptions = Subscriptions(self.catalog, settings.rate_window_s, settings.unheld_s, self.retention_s)
        self.announcements = AnnouncementLog(self.catalog, self.results, self.subscriptions.book)
        self.channels = Channels(context, self.datasets, self.subscriptions, self.results, self.announcements)
        self._executions = Executions(context, self.datasets, self.channels, self.results)
        self._closed = False
        self.datasets.load()
        self.channels.load()
        self.datasets.start_backlogs()

    def close(self) -> None:
        """Stop the queries and release the data root."""
        if self._closed:
            return
        self._closed = True
        self.datasets.close()
        with suppress(LeaseLost):
            self.retention_s.store()
        self.catalog.close()
        self.lease.release()

    def dataset(self, name: str) -> LiveDataset:
        return self.datasets.get(name)

    def gateway(self, name: str) -> Gateway:
        return self.datasets.gateway(name)

    def catch_up(self, name: str) -> None:
        self.datasets.catch_up(name)

    def channel(self, name: str) -> LiveChannel:
        return self.channels.get(name)

    def head_of(self, channel: str) -> ChannelHead:
        live = self.channel(channel)
        return ChannelHead(live.name, live.prepared.arrow, self.channels.head(live))

    def numbers_of(self, channel: ChannelName, ids: Iterable[SubscriptionId]) -> Mapping[SubscriptionId, int]:
        requested = list(ids)
        numbers = self.subscriptions.book.announced_numbers(channel, requested)
        return self.catalog.subscriptions.numbers(channel, requested) if numbers is None else numbers

    def held(self, numbers: Sequence[int], brokers: Callable[[BrokerId], bool]) -> npt.NDArray[np.bool_]:
        return self.subscriptions.book.held(np.array(numbers, np.int64), brokers)

    def execute(self, name: str) -> StoredExecution | None:
        return self._executions.execute(name)

    def execute_together(self, names: Sequence[ChannelName]) -> JointOutcome:
        return self._executions.execute_together(names)

    def warm_up(self) -> int:
        return self._executions.warm_up()

    def replay(self, name: str, ids: Sequence[int] | None = None) -> int:
        return self._executions.replay(name, ids)

    def subscribe(
        self, name: str, values: Sequence[Mapping[str, object]], broker: BrokerId, users: Users = None
    ) -> list[GrantedSubscription]:
        return self.channels.subscribe(name, values, broker, users)

    def unsubscribe(self, name: str, ids: Sequence[SubscriptionId], broker: BrokerId) -> int:
        return self.channels.unsubscribe(name, ids, broker)
