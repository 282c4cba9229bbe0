"""Updates: the records that subscribers send about themselves, on their way to the data cluster [BAD §6.1.2].

Updates wait per dataset. One request at a time carries everything that has arrived, so the number of requests does not
grow with the number of subscribers. Only the newest update of a subscriber waits: it replaces an older one, and both
get the answer to the newer one. The data cluster knows which column holds the owner; the broker vouches for the user.
Limits on the unanswered updates of one subscriber keep a subscriber that floods from delaying the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import msgspec

from tocsin.broker.effects import StoreUpdates
from tocsin.broker.events import UpdatesFailed, UpdatesStored
from tocsin.broker.hosted import Requester
from tocsin.broker.state import BrokerState
from tocsin.model.ids import DatasetName, SubscriberId
from tocsin.model.schema import is_name
from tocsin.wire import session as wire
from tocsin.wire.errors import Code

RECORDS_AT_ONCE = 500
"""The most records in one request."""
REQUESTS_AT_ONCE = 8
"""The most requests at the same time, over all datasets: fetches use the same connections to the data cluster."""
UNANSWERED_EACH = 4
"""The most unanswered updates of one subscriber. Half of the requests: one subscriber cannot occupy all of them."""
RETRY_S = 2.0
"""The pause that a refused subscriber should make if the data cluster names none."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Receiver:
    """One request of the subscriber that needs an answer."""

    requester: Requester
    request: int
    since_s: float


@dataclass(slots=True)
class _PendingUpdate:
    record: bytes
    """The record as JSON."""
    receivers: list[_Receiver] = field(default_factory=list)
    place: tuple[float, float] | None = None
    """The subscriber's position, if the record has one."""


@dataclass(slots=True)
class _DatasetQueue:
    dataset: DatasetName
    waiting: dict[SubscriberId, _PendingUpdate] = field(default_factory=dict)
    sent: dict[SubscriberId, _PendingUpdate] = field(default_factory=dict)
    """The updates of the request in flight, in the order of its records; empty if none is in flight."""


class Updates:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._queues: dict[str, _DatasetQueue] = {}
        """Dataset in lower case → its updates."""
        self._ready: dict[str, None] = {}
        """Queues with waiting updates and no request in flight, the longest ready first."""
        self._batches: dict[int, _DatasetQueue] = {}
        """Requests in flight."""
        self._numbers = count(1)
        self._unanswered: Counter[SubscriberId] = Counter()
        self.pending = 0
        """Updates without an answer."""
        self.stored = 0
        """Updates that were answered with `updated`."""
        self.refused = 0
        """Updates that were refused."""

    @property
    def idle(self) -> bool:
        return not self._queues and not self.pending

    # -- subscribers -----------------------------------------------------------------------------------------------

    def request(self, requester: Requester, name: SubscriberId, request: wire.Update) -> None:
        """Let the update wait for the next request to the data cluster, or refuse it."""
        if not is_name(request.dataset):
            message = f"there is no dataset {request.dataset[:64]!r}"
            self._refuse(requester, request.id, Code.UNKNOWN_DATASET, message)
            return
        record = _encoded(request.record)
        if record is None:
            message = "the record holds a value that JSON cannot carry"
            self._refuse(requester, request.id, Code.BAD_RECORDS, message)
            return
        limit_bytes = self._state.limits.update_bytes
        if len(record) > limit_bytes:
            message = f"a record of a subscriber has at most {limit_bytes:,} bytes"
            self._refuse(requester, request.id, Code.TOO_LARGE, message)
        elif self._unanswered[name] >= UNANSWERED_EACH:
            message = f"{UNANSWERED_EACH} of your updates have no answer yet; wait for one of them"
            self._refuse(requester, request.id, Code.BACKLOGGED, message, RETRY_S)
        elif self.pending >= self._state.limits.updates:
            message = "too many updates wait for the data cluster; try again"
            self._refuse(requester, request.id, Code.BACKLOGGED, message, RETRY_S)
        else:
            receiver = _Receiver(requester, request.id, self._state.now_s)
            self._add(name, request.dataset, record, receiver, _place_of(request.record))

    def _add(
        self,
        name: SubscriberId,
        dataset: DatasetName,
        record: bytes,
        receiver: _Receiver,
        place: tuple[float, float] | None,
    ) -> None:
        key = dataset.lower()
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _DatasetQueue(dataset)
        update = queue.waiting.get(name)
        if update is None:
            update = queue.waiting[name] = _PendingUpdate(record)
        update.record, update.place = record, place
        update.receivers.append(receiver)
        self._unanswered[name] += 1
        self.pending += 1
        if not queue.sent:
            self._ready[key] = None

    def _refuse(
        self, requester: Requester, request: int, code: Code | str, message: str, retry_after_s: float | None = None
    ) -> None:
        self.refused += 1
        self._state.refuse(requester, request, code, message, retry_after_s)

    # -- the data cluster ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Send the waiting updates of each dataset that has no request in flight."""
        while self._ready and len(self._batches) < REQUESTS_AT_ONCE:
            key = next(iter(self._ready))
            del self._ready[key]
            queue = self._queues[key]
            if not queue.waiting:  # they have expired
                del self._queues[key]
                continue
            names = list(islice(queue.waiting, RECORDS_AT_ONCE))
            queue.sent = {name: queue.waiting.pop(name) for name in names}
            batch = next(self._numbers)
            self._batches[batch] = queue
            records = [(name, update.record) for name, update in queue.sent.items()]
            self._state.effects.append(StoreUpdates(batch, queue.dataset, records))

    def on_stored(self, event: UpdatesStored) -> None:
        """Answer each update of a request: the data cluster may have refused some records and stored the others."""
        refused = {refusal.index: refusal for refusal in event.refused}
        for index, (name, update) in enumerate(self._finish(event.batch)):
            if update.place is not None and index not in refused and name in self._state.subscribers:
                self._state.places[name] = update.place
            for receiver in self._take_receivers(name, update):
                if (refusal := refused.get(index)) is not None:
                    self._refuse(receiver.requester, receiver.request, refusal.code, refusal.message)
                else:
                    self.stored += 1
                    self._state.answer(receiver.requester, wire.Updated(receiver.request))

    def on_failed(self, event: UpdatesFailed) -> None:
        """Refuse every update of a request. The subscribers decide whether to send theirs again."""
        is_temporary = event.code in (Code.NOT_READY, Code.BACKLOGGED)
        retry_after_s = (event.retry_after_s or RETRY_S) if is_temporary else None
        for name, update in self._finish(event.batch):
            for receiver in self._take_receivers(name, update):
                self._refuse(receiver.requester, receiver.request, event.code, event.message, retry_after_s)

    def _finish(self, batch: int) -> list[tuple[SubscriberId, _PendingUpdate]]:
        """End a request: return its updates, and let the dataset's next request start."""
        queue = self._batches.pop(batch)
        updates, queue.sent = list(queue.sent.items()), {}
        self._ready[queue.dataset.lower()] = None
        return updates

    def _take_receivers(
        self, name: SubscriberId, update: _PendingUpdate, before_s: float = float("inf")
    ) -> list[_Receiver]:
        """Take out the receivers that have waited since before `before_s`, to answer them now."""
        taken = [receiver for receiver in update.receivers if receiver.since_s < before_s]
        update.receivers = [receiver for receiver in update.receivers if receiver.since_s >= before_s]
        self.pending -= len(taken)
        self._unanswered[name] -= len(taken)
        if not self._unanswered[name]:
            del self._unanswered[name]
        return taken

    # -- time ------------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Refuse updates that are older than `request_s`. A record without any receiver left is not sent."""
        before_s = self._state.now_s - self._state.limits.request_s
        message = "the data cluster does not answer at the moment; try again"
        for queue in self._queues.values():
            for name, update in (*queue.waiting.items(), *queue.sent.items()):
                for receiver in self._take_receivers(name, update, before_s):
                    self._refuse(receiver.requester, receiver.request, Code.NOT_READY, message, RETRY_S)
            queue.waiting = {name: update for name, update in queue.waiting.items() if update.receivers}


def _encoded(record: Mapping[str, Any]) -> bytes | None:
    """The record as JSON; None if a value, such as a MessagePack extension, has no form in JSON."""
    try:
        return _encode(record)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return None


def _place_of(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """(lat, lon) in degrees, if the record has both as numbers on the globe."""
    lat: Any = record.get("lat")
    lon: Any = record.get("lon")
    if type(lat) not in (int, float) or type(lon) not in (int, float):
        return None
    return (float(lat), float(lon)) if abs(lat) <= 90 and abs(lon) <= 180 else None
