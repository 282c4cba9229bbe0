"""The state of each dataset, feed and channel in memory.

The data cluster rebuilds it from the catalog at every start.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from tocsin.cluster.catalog import Catalog
from tocsin.cluster.feed.shared_gateway import Gateway
from tocsin.cluster.settings import ClusterSettings
from tocsin.cluster.spark.dataset_writer import DatasetWriter
from tocsin.cluster.spark.gateway_ingestion import GatewayIngestion
from tocsin.cluster.spark.ingestion import FailedStart, Ingestion
from tocsin.cluster.spark.preparing import PreparedChannel
from tocsin.cluster.spark.session import Session
from tocsin.cluster.spark.subscribers import SubscriptionFrames
from tocsin.cluster.store.readers import Readers
from tocsin.cluster.store.storage import Storage
from tocsin.cluster.store.writes import Writes
from tocsin.database.lease import Lease
from tocsin.model.entities import Dataset, Feed
from tocsin.model.ids import ChannelName, DatasetName, FeedName, SubscriptionId

MATCHING_S = 0.25
"""The longest time that Spark delays the next micro-batch while continuous channels match the one before.

An earlier micro-batch would find those channels busy, and reading small batches back to back takes the processor away
from their executions. A channel that is slower than this does not delay the others.
"""


@dataclass(frozen=True, slots=True)
class EngineContext:
    """The objects that all parts of a data cluster share."""

    spark: Session
    settings: ClusterSettings
    catalog: Catalog
    storage: Storage
    writes: Writes
    now_s: Callable[[], float]
    """The wall clock, for display."""
    retention_s: Callable[[], float]
    """The clock for retention: see `cluster.retention`."""
    readers: Readers
    lease: Lease


@dataclass(slots=True)
class LiveDataset:
    dataset: Dataset
    generation: int
    writer: DatasetWriter
    gateway: Gateway | None
    """The gateway that accepts records; None for STATIC datasets."""
    query: GatewayIngestion | None = None
    """Moves accepted records from the gateway into the dataset; None until the first record."""
    _starting: threading.Lock = field(default_factory=threading.Lock)
    _dropping: bool = False
    """True if no query may start unless `keep` is called."""
    _closing: bool = False
    """True if no query may start any more."""

    @property
    def name(self) -> DatasetName:
        return self.dataset.name

    def start_query(self, start: Callable[[Gateway], GatewayIngestion]) -> None:
        """Start the ingestion query, unless it runs or the dataset is STATIC, closing or being dropped."""
        with self._starting:
            if self.gateway is not None and self.query is None and not (self._closing or self._dropping):
                self.query = start(self.gateway)

    def stop_query(self, *, dropping: bool = False, closing: bool = False) -> None:
        """Stop the ingestion query, also one that another thread is starting.

        With `dropping`, none starts again unless `keep` is called; with `closing`, none starts again.
        """
        with self._starting:
            self._dropping = self._dropping or dropping
            self._closing = self._closing or closing
            if self.query is not None:
                self.query.stop()
                self.query = None

    def keep(self) -> None:
        """Undo `dropping`, because the dataset was not dropped."""
        self._dropping = False


@dataclass(slots=True)
class LiveFeed:
    feed: Feed
    generation: int
    query: Ingestion | FailedStart

    @property
    def name(self) -> FeedName:
        return self.feed.name


@dataclass(slots=True)
class LiveChannel:
    prepared: PreparedChannel
    epoch: int
    execution: int
    """The last execution number used."""
    positions: dict[DatasetName, int]
    """The last version of each dataset that the channel has read: NEW covers the versions above it.

    These positions are ahead of the catalog's only while the channel has no subscription.
    """
    subscribers: SubscriptionFrames
    _running: threading.Lock = field(default_factory=threading.Lock)
    uncertain: bool = False
    """True if it is unknown whether the last execution was committed. The next execution reads the catalog first."""
    tried: int = 0
    """Subscriptions up to this number have taken part in an execution."""
    deaths: int = 0
    """The evidence of deaths of Spark during executions, since the last success: see `cluster.deaths`."""
    refused: dict[SubscriptionId, str] = field(default_factory=dict)
    """Subscriptions that were ended because their values made the query fail, with the reason.

    The channel refuses them until it is declared again.
    """
    strikes: Counter[int] = field(default_factory=Counter)
    """How many records each subscription that never had a result was blamed for."""
    notices: deque[str] = field(default_factory=lambda: deque(maxlen=100))
    """Subscriptions ended and records passed over, for the log."""
    warm: bool = False
    """True if this process has planned the channel, for an execution or before one."""
    executions: int = 0
    """Executions since this process started, also those without results."""
    empty: int = 0
    """Executions without results since this process started."""
    failures: int = 0
    last_error: str | None = None
    last_started_s: float | None = None
    last_duration_s: float | None = None
    last_results: int = 0
    widest_result: int = 0
    """Bytes of the widest result of the last execution that had results."""
    is_suspect: bool = False
    """True if a joint execution with this channel failed, and the channel has not run by itself since."""
    alone: int = 0
    """The number of the next executions that the channel runs by itself: see `cluster.joint_executions`."""
    matches_ahead: bool = field(init=False)
    """True if the channel may match records before they are stored. Its execution is committed after them.

    False if the query also reads the same dataset in full, because a full read finds only stored records.
    """
    oldest_s: float = -math.inf
    """No stored execution was committed before this moment of the retention clock."""

    def __post_init__(self) -> None:
        query = self.prepared.query
        whole = {name.lower() for name in query.datasets}
        is_continuous = self.prepared.channel.period_s is None
        self.matches_ahead = is_continuous and not any(name.lower() in whole for name in query.new_datasets)

    @property
    def name(self) -> ChannelName:
        return self.prepared.channel.name

    def exclusive(self) -> AbstractContextManager[object]:
        """A block in which only the caller may execute this channel."""
        return self._running

    @contextmanager
    def exclusive_at_once(self) -> Iterator[bool]:
        """Like `exclusive`, but without waiting: False if the channel is being executed."""
        held = self._running.acquire(blocking=False)
        try:
            yield held
        finally:
            if held:
                self._running.release()

    def note_execution(self, started_s: float, finished_s: float, results: int, widest: int | None) -> None:
        """Count an execution. `widest` are the bytes of its widest result, None if it had no results."""
        self.warm = True
        self.executions += 1
        self.last_started_s, self.last_duration_s = started_s, finished_s - started_s
        self.last_results = results
        self.widest_result = self.widest_result if widest is None else widest

    @property
    def results_folder(self) -> str:
        """The folder of the channel's results, relative to the data root."""
        return f"results/{self.name}-{self.epoch}"

    @property
    def datasets(self) -> frozenset[str]:
        """The datasets that the query reads, by lower-case name."""
        query = self.prepared.query
        return frozenset(name.lower() for name in query.datasets | query.new_datasets)


class ArrivalNotifier:
    """Reports to `arrived` which channels have NEW records, and lets Spark wait until those records are matched.

    Called from any thread. Without `arrived` it neither reports nor waits.
    """

    def __init__(
        self, channels: Callable[[], Iterable[LiveChannel]], arrived: Callable[[ChannelName], None] | None
    ) -> None:
        self._channels = channels
        self._arrived = arrived
        self._executed = threading.Condition()

    def notify(self, dataset: DatasetName, *, ahead: bool) -> None:
        """Report the channels that read a dataset with new records.

        With `ahead`, the records are not committed yet, and only channels that match ahead are reported.
        """
        if self._arrived is not None:
            for live in self._channels():
                if dataset in live.positions and (live.matches_ahead or not ahead):
                    self._arrived(live.name)

    def run_again(self, live: LiveChannel) -> None:
        """Report a channel whose execution left NEW records for the next one."""
        if self._arrived is not None:
            self._arrived(live.name)

    def wait_matched(self, dataset: DatasetName, version: int) -> None:
        """Return when the channels that match ahead have matched `version`, or after `MATCHING_S`."""
        if self._arrived is not None:
            with self._executed:
                self._executed.wait_for(lambda: not self._is_behind(dataset, version), MATCHING_S)

    def executed(self) -> None:
        """Wake the threads in `wait_matched`: an execution has ended."""
        with self._executed:
            self._executed.notify_all()

    def _is_behind(self, dataset: DatasetName, version: int) -> bool:
        return any(
            live.positions.get(dataset, version) < version and live.matches_ahead and live.subscribers.count
            for live in self._channels()
        )
