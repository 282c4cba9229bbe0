"""What a gateway process has in place of a data cluster: the datasets with shared logs, as the catalog shows them.

The routes that publish use it like a `ClusterProcess` and its data cluster. It has no state: the catalog and the root
have everything, so it may be killed at any time, and any number of such processes may run.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from tocsin.cluster.catalog import Catalog, StoredDataset
from tocsin.cluster.feed.shared_gateway import SharedGateway
from tocsin.cluster.retention import CLOCK_FACT, StoredClock
from tocsin.cluster.server.leading import Leading
from tocsin.cluster.settings import ClusterSettings
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import Code, TocsinError

REFRESH_S = 1.0
"""Pause between two looks at the datasets of the catalog."""
FOLLOW_S = 30.0
"""Pause between two looks at the retention clock of the data cluster, and between two upkeeps."""


class FollowedClock:
    """The data cluster's retention clock, read again and again. The clock of this machine moves it in between."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._offset_s = time.time() - time.monotonic()
        self._followed_s: float | None = None
        self.follow()

    def __call__(self) -> float:
        return self._offset_s + time.monotonic()

    def follow(self) -> None:
        text = self._catalog.fact(CLOCK_FACT)
        if text is not None:
            read_s = msgspec.json.decode(text, type=StoredClock).retention_s
            # The data cluster stores its clock once a minute: what it stored is never later than now.
            if self._followed_s != read_s:
                self._followed_s = read_s
                self._offset_s = read_s - time.monotonic()


@dataclass(frozen=True, slots=True)
class OpenDataset:
    dataset: Dataset
    generation: int
    gateway: SharedGateway | None
    """None if the dataset takes no records, or has a local log."""
    query: object = "the data cluster moves the records"


class SharedDatasets:
    """Thread-safe."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.storage = settings.storage()
        self.storage.check()
        self.catalog = Catalog(settings.catalog_url(), as_it_is=True)
        self.clock = FollowedClock(self.catalog)
        self._lock = threading.Lock()
        self._open: dict[str, OpenDataset] = {}
        self.refresh()

    def now_s(self) -> float:
        return time.time()

    def refresh(self) -> None:
        """Open datasets that are new in the catalog, and close those that were dropped."""
        stored = {entry.dataset.name.lower(): entry for entry in self.catalog.datasets.all()}
        with self._lock:
            for name, opened in list(self._open.items()):
                entry = stored.get(name)
                is_same = entry is not None and (entry.generation, entry.dataset) == (opened.generation, opened.dataset)
                if not is_same or (opened.gateway is not None and opened.gateway.closed):
                    if opened.gateway is not None:
                        opened.gateway.close()
                    del self._open[name]
            for name, entry in stored.items():
                if name not in self._open:
                    self._open[name] = OpenDataset(entry.dataset, entry.generation, self._gateway(entry))

    def _gateway(self, entry: StoredDataset) -> SharedGateway | None:
        state = self.catalog.logs.state(entry.dataset.name, entry.generation)
        if state is None:
            return None
        limits = self.settings.limits
        return SharedGateway(entry.dataset, entry.generation, self.catalog, self.storage, limits, self.clock, state)

    def maintain(self) -> None:
        """Upkeep of what this process alone has: its clock, and its indexes of keys."""
        self.clock.follow()
        for opened in list(self._open.values()):
            if opened.gateway is not None:
                opened.gateway.merge_keys()

    def dataset(self, name: str) -> OpenDataset:
        opened = self._open.get(name.lower())
        if opened is None:
            names = ", ".join(sorted(known.dataset.name for known in self._open.values())) or "none yet"
            raise TocsinError(Code.UNKNOWN_DATASET, f"there is no dataset {name} (there are: {names})")
        return opened

    def gateway(self, name: str) -> SharedGateway:
        opened = self.dataset(name)
        if opened.dataset.kind is DatasetKind.STATIC:
            message = f"{opened.dataset.name} is STATIC: it is loaded from a file and takes no records"
            raise TocsinError(Code.NOT_A_FEED_TARGET, message)
        if opened.gateway is None:
            message = f"{opened.dataset.name} has a local log: publish to the data cluster"
            raise TocsinError(Code.NOT_A_FEED_TARGET, message)
        return opened.gateway

    def close(self) -> None:
        with self._lock:
            for opened in self._open.values():
                if opened.gateway is not None:
                    opened.gateway.close()
            self._open.clear()
        self.catalog.close()


class GatewayProcess:
    """Refreshes the datasets. Runs on one asyncio loop; queries run in threads."""

    watch = None

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._datasets: SharedDatasets | None = None
        self._unreachable = ""
        self._refreshing: asyncio.Task[None] | None = None
        self._on_stop: set[Callable[[], object]] = set()
        self.stopping = asyncio.Event()
        self.leading = Leading(standby=False)
        """Never refuses: a gateway needs no lease, because the transaction that places an object decides."""

    @property
    def cluster(self) -> SharedDatasets:
        """Raises NOT_READY while the process starts or stops."""
        if self._datasets is None or self.stopping.is_set():
            reason = "the gateway is stopping" if self.stopping.is_set() else "the gateway is still starting"
            raise TocsinError(Code.NOT_READY, reason, retry_after_s=2)
        return self._datasets

    def reasons_not_ready(self) -> list[str]:
        if self.stopping.is_set():
            return ["stopping"]
        if self._datasets is None:
            return ["the catalog is being opened"]
        return [self._unreachable] if self._unreachable else []

    async def start(self) -> SharedDatasets:
        self._datasets = await self._opened()
        self._refreshing = asyncio.create_task(self._refresh(self._datasets))
        return self._datasets

    async def _opened(self) -> SharedDatasets:
        """The datasets, as soon as a data cluster has made the catalog: only the leader creates or converts it."""
        waits = False
        while True:
            try:
                return await asyncio.to_thread(SharedDatasets, self._settings)
            except TocsinError as error:
                if error.code is not Code.NOT_FOUND:
                    raise
                if not waits:
                    logger().info("waiting for the catalog", reason=error.message)
                waits = True
                await asyncio.sleep(REFRESH_S)

    async def _refresh(self, datasets: SharedDatasets) -> None:
        followed_s = time.monotonic()
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await asyncio.to_thread(datasets.refresh)
                if time.monotonic() - followed_s > FOLLOW_S:
                    followed_s = time.monotonic()
                    await asyncio.to_thread(datasets.maintain)
                self._unreachable = ""
            except SQLAlchemyError as error:
                if not self._unreachable:
                    logger().error("the catalog does not answer", reason=str(error.__cause__ or error))
                self._unreachable = "the catalog does not answer"
            except Exception as error:  # it goes on: otherwise this process would never see another dataset
                logger().error("upkeep of a gateway failed", exc_info=error)
                self._unreachable = "upkeep of this gateway failed: see its log"

    @contextmanager
    def calling_on_stop(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call `callback` if this process begins to stop inside the block."""
        self._on_stop.add(callback)
        try:
            yield
        finally:
            self._on_stop.discard(callback)

    def begin_stop(self) -> None:
        if not self.stopping.is_set():
            self.stopping.set()
            for callback in list(self._on_stop):
                callback()

    async def stop(self) -> None:
        self.begin_stop()
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        if self._datasets is not None:
            await asyncio.to_thread(self._datasets.close)
