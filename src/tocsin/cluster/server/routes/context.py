"""State that the data cluster's routes share: the process, its tokens, the publishers' group commits, open streams."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, cast

from starlette.requests import HTTPConnection

from tocsin.cluster.engine import DataCluster
from tocsin.cluster.pulling import ResultSource
from tocsin.cluster.server.group_commit import GroupCommit, wasteful
from tocsin.cluster.server.metrics import ClusterMetrics
from tocsin.cluster.server.process import ClusterProcess
from tocsin.cluster.server.proven_users import ProvenUsers
from tocsin.cluster.server.publishers import Publisher, Publishers
from tocsin.cluster.server.settings import ClusterProcessSettings
from tocsin.cluster.server.tokens import TokenStore
from tocsin.model.ids import BrokerId
from tocsin.runtime.http.audit import AuditLog, record_end
from tocsin.runtime.http.callers import Caller
from tocsin.runtime.http.open_requests import OpenRequests
from tocsin.runtime.http.trusted_keys import TrustedKeys
from tocsin.wire.errors import Code, TocsinError

BODIES_BYTES = 256 << 20
"""Most bytes of publishers' bodies in memory at a time, over all connections."""
SHARE_BYTES = BODIES_BYTES // 8
"""Most bytes of one caller's bodies: bodies that one caller sends slowly leave room for the others."""


class ClusterContext:
    def __init__(self, process: ClusterProcess, metrics: ClusterMetrics, settings: ClusterProcessSettings) -> None:
        self.process = process
        self.metrics = metrics
        self.settings = settings
        self.tokens: TokenStore | None = None
        """The data cluster's own tokens; None until the catalog is open."""
        self.keys: TrustedKeys | None = None
        """Keys for tokens that a coordinator signed; None accepts the catalog's own tokens only."""
        self.bodies_bytes = 0
        self._bodies_bytes_of: Counter[str] = Counter()
        """Bytes of bodies in memory by caller."""
        self.publishers = Publishers()
        self.publishing: Counter[str] = Counter()
        """Open WebSockets of publishers by caller."""
        self.subscribing_directly = asyncio.Lock()
        """Held while a user without a broker subscribes, so that its quota is exact."""
        self.taps = 0
        """Taps that are open now."""
        self.listening: Counter[BrokerId] = Counter()
        """Open streams of announcements, by broker."""
        self.proven = ProvenUsers(time.time)
        """The users for which each broker acts."""
        self.open_requests = OpenRequests()
        self.audit: AuditLog | None = None
        self._commits: dict[str, GroupCommit] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def cluster(self) -> DataCluster:
        """The open data cluster. Raises NOT_READY while it starts or stops."""
        return self.process.cluster

    @property
    def source(self) -> ResultSource:
        """What pulls of results read."""
        return self.cluster

    def now_s(self) -> float:
        """The wall clock."""
        return self.cluster.now_s()

    def require_open(self) -> None:
        """Raise NOT_READY while the process starts or stops."""
        if self.tokens is None or self.process.stopping.is_set():
            _ = self.cluster  # raises with the reason
            raise TocsinError(Code.NOT_READY, "the data cluster is still starting", retry_after_s=2)

    @contextmanager
    def publisher(self, caller: str) -> Iterator[Publisher]:
        """The publisher of a request. Raises BACKLOGGED while it must pause because its last bodies were refused."""
        publisher = self.publishers.begin(caller)
        try:
            pause_s = publisher.pause_s(time.monotonic())
            if pause_s:
                refused = wasteful(pause_s)
                raise TocsinError(Code.BACKLOGGED, refused.reason, retry_after_s=refused.retry_after_s)
            yield publisher
        finally:
            self.publishers.end(caller, time.monotonic())

    @contextmanager
    def room_for_records(self, caller: str, declared_bytes: int = 0) -> Iterator[Callable[[int], None]]:
        """Account for a body of this caller, from its first byte to its answer.

        Yields a function that takes a number of bytes and raises BACKLOGGED when there is no room for them. With a
        declared size, the caller's share is checked before a byte is read.
        """
        taken_bytes = of_share_bytes = 0
        of_caller = self._bodies_bytes_of

        def take_of_share(size_bytes: int) -> None:
            nonlocal of_share_bytes
            if of_caller[caller] + size_bytes > SHARE_BYTES:
                message = "your other requests have not arrived completely or are not stored yet"
                raise TocsinError(Code.BACKLOGGED, message, retry_after_s=1)
            of_share_bytes += size_bytes
            of_caller[caller] += size_bytes

        def take(size_bytes: int) -> None:
            nonlocal taken_bytes
            if self.bodies_bytes + size_bytes > BODIES_BYTES:
                raise TocsinError(Code.BACKLOGGED, "too many records are being stored at once", retry_after_s=1)
            take_of_share(max(0, taken_bytes + size_bytes - of_share_bytes))
            taken_bytes += size_bytes
            self.bodies_bytes += size_bytes

        take_of_share(declared_bytes)
        try:
            yield take
        finally:
            self.bodies_bytes -= taken_bytes
            of_caller[caller] -= of_share_bytes
            if not of_caller[caller]:
                del of_caller[caller]

    def commit_of(self, dataset: str) -> GroupCommit:
        gateway = self.cluster.gateway(dataset)
        commit = self._commits.get(dataset.lower())
        if commit is None or commit.gateway is not gateway:  # the dataset was dropped and created again
            commit = self._commits[dataset.lower()] = GroupCommit(gateway, self.process.leading.holds)
        return commit

    def end_revoked(self) -> None:
        """End the requests of callers whose token is revoked, and forget the users that such tokens proved."""
        if self.keys is not None:
            self.open_requests.end(self._is_revoked)
            self.proven.forget_revoked(self.keys.is_revoked)

    def _is_revoked(self, caller: Caller) -> bool:
        if self.keys is None or caller.claims is None or not self.keys.is_revoked(caller.claims):
            return False
        record_end(self.audit, caller)
        return True

    async def end_expired(self) -> None:
        """End streams whose token has expired. A task for the whole life of the server."""
        while True:
            await asyncio.sleep(1.0)
            self.open_requests.end_expired(time.time())

    async def publishers_answered(self, limit_s: float) -> None:
        """Return when every publisher has its acknowledgement. New requests are refused while the process stops."""
        deadline_s = time.monotonic() + limit_s
        while self.bodies_bytes and time.monotonic() < deadline_s:
            await asyncio.sleep(0.01)

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def context_of(connection: HTTPConnection) -> ClusterContext:
    return cast("ClusterContext", connection.app.state.context)
