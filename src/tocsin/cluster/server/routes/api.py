"""What every route has at hand: the process, the tokens, the publishers' group commits; and who is calling."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, cast

from starlette.requests import HTTPConnection

from tocsin.cluster.engine import DataCluster
from tocsin.cluster.server.group_commit import GroupCommit
from tocsin.cluster.server.metrics import Metrics
from tocsin.cluster.server.process import ClusterProcess
from tocsin.cluster.server.settings import ClusterProcessSettings
from tocsin.cluster.server.tokens import TokenStore
from tocsin.model.ids import BrokerId
from tocsin.runtime.http.callers import Caller, is_broker_id
from tocsin.runtime.http.trusted_keys import TrustedKeys
from tocsin.wire.errors import Code, TocsinError

BODIES_BYTES = 256 << 20
"""Bodies of records in memory at a time, over all connections."""


class Api:
    def __init__(self, process: ClusterProcess, metrics: Metrics, settings: ClusterProcessSettings) -> None:
        self.process = process
        self.metrics = metrics
        self.settings = settings
        self.tokens: TokenStore | None = None
        """None until the catalog is open."""
        self.keys: TrustedKeys | None = None
        """Whose signed tokens are good here, besides the catalog's own; None for nobody's."""
        self.bodies_bytes = 0
        self.taps = 0
        """Open at the moment."""
        self.listening: Counter[BrokerId] = Counter()
        """Streams of announcements that brokers have open."""
        self._commits: dict[str, GroupCommit] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def cluster(self) -> DataCluster:
        return self.process.cluster

    @contextmanager
    def room_for_records(self) -> Iterator[Callable[[int], None]]:
        """What a publisher's body takes in memory, from its first byte to its answer; raises when there is no room."""
        taken_bytes = 0

        def take(size_bytes: int) -> None:
            nonlocal taken_bytes
            if self.bodies_bytes + size_bytes > BODIES_BYTES:
                raise TocsinError(Code.BACKLOGGED, "too many records are on their way at once", retry_after_s=1)
            taken_bytes += size_bytes
            self.bodies_bytes += size_bytes

        try:
            yield take
        finally:
            self.bodies_bytes -= taken_bytes

    def commit_of(self, dataset: str) -> GroupCommit:
        gateway = self.cluster.gateway(dataset)
        found = self._commits.get(dataset.lower())
        if found is None or found.gateway is not gateway:  # dropped and created again
            found = self._commits[dataset.lower()] = GroupCommit(gateway)
        return found

    async def publishers_answered(self, limit_s: float) -> None:
        """Return when nobody waits for an acknowledgement any more; the door lets no new ones in."""
        deadline_s = time.monotonic() + limit_s
        while self.bodies_bytes and time.monotonic() < deadline_s:
            await asyncio.sleep(0.01)

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def api_of(connection: HTTPConnection) -> Api:
    return cast("Api", connection.app.state.api)


def caller_of(connection: HTTPConnection) -> Caller:
    """Who the door let in."""
    return cast("Caller", connection.scope["tocsin.caller"])


def require_admin(connection: HTTPConnection) -> Api:
    caller = caller_of(connection)
    if not caller.is_admin:
        raise _forbidden(caller, "admin")
    return api_of(connection)


def require_read(connection: HTTPConnection) -> Api:
    caller = caller_of(connection)
    if not caller.may_read:
        raise _forbidden(caller, "read")
    return api_of(connection)


def require_publish(connection: HTTPConnection, dataset: str) -> Api:
    caller = caller_of(connection)
    if not caller.may_publish(dataset):
        raise _forbidden(caller, f"publish:{dataset[:128]}")
    return api_of(connection)


def require_broker(connection: HTTPConnection, broker: str | None) -> tuple[Api, BrokerId]:
    """The broker the caller speaks for: the one it named, if it may, else its own."""
    caller = caller_of(connection)
    wanted = caller.own_broker if broker is None else broker
    if not is_broker_id(wanted):
        raise TocsinError(Code.BAD_REQUEST, "a broker id has 1 to 128 letters, digits, dots, dashes and underscores")
    if not caller.may_be(wanted):
        raise _forbidden(caller, f"broker:{wanted}" if broker else "subscribe")
    return api_of(connection), BrokerId(wanted)


def require_broker_or_read(connection: HTTPConnection) -> Api:
    """For what every broker may ask about its own subscriptions; the route looks at which those are."""
    caller = caller_of(connection)
    if not (caller.is_some_broker or caller.may_read):
        raise _forbidden(caller, "subscribe")
    return api_of(connection)


def _forbidden(caller: Caller, scope: str) -> TocsinError:
    has = " ".join(sorted(caller.scopes))
    return TocsinError(Code.FORBIDDEN, f"this needs a token with the scope {scope}; {caller.name} has: {has}")
