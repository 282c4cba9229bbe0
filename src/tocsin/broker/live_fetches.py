"""Live fetches: fetch newly announced results once per broker, one fetch per channel at a time.

Announcements during a fetch wait for the next one, so a burst of executions costs few requests. A failed fetch is
retried later from the same positions, so an unreachable data cluster only causes a delay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tocsin.broker import events
from tocsin.broker.catch_up import CatchUp
from tocsin.broker.effects import Fetch
from tocsin.broker.hosted import BackendSubscription
from tocsin.broker.result_batch import Batch
from tocsin.broker.state import BrokerState
from tocsin.model.backoff import retry_delay_s
from tocsin.model.cursor import Cursor, offset_of
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.wire.errors import Code

MOST_SUBSCRIPTIONS = 5_000
"""The most subscriptions in one fetch."""
SHORTEST_WAIT_S = 0.2
LONGEST_WAIT_S = 15.0
SAMPLES = 512


@dataclass(slots=True)
class _ChannelFetch:
    dirty: dict[SubscriptionId, None]
    """Subscriptions that have, or may have, results after their position."""
    fetch: int | None = None
    """Number of the running fetch."""
    fetching: tuple[SubscriptionId, ...] = ()
    failures: int = 0
    retry_at_s: float = 0.0
    finished_s: float = 0.0
    """End of the latest announced execution."""


class LiveFetches:
    def __init__(self, state: BrokerState, catch_up: CatchUp, lost: Callable[[BackendSubscription], None]) -> None:
        """`lost` is called with a subscription that the data cluster no longer knows."""
        self._state = state
        self._catch_up = catch_up
        self._lost = lost
        self._channels: dict[str, _ChannelFetch] = {}
        """The state of each channel, by name in lower case: names ignore case, as Spark's do."""
        self._fetches: dict[int, str] = {}
        self._number = 0
        self.delays_s: deque[float] = deque(maxlen=SAMPLES)
        """Delays from the end of an execution to the hand-over of its results to sessions."""

    @property
    def idle(self) -> bool:
        return not self._channels and not self._fetches

    def _channel(self, name: ChannelName) -> _ChannelFetch:
        return self._channels.setdefault(name.lower(), _ChannelFetch({}))

    # -- announcements ---------------------------------------------------------------------------------------------

    def _pull(self, backend: BackendSubscription) -> None:
        if backend.held:
            self._channel(backend.channel).dirty[backend.id] = None

    def on_announcements_missed(self) -> None:
        for backend in self._state.backends.values():
            if backend.held:
                self._pull(backend)
            else:
                self._lost(backend)

    def on_execution(self, event: events.ExecutionAnnounced) -> None:
        end = Cursor(event.epoch, offset_of(event.execution + 1))
        for identity in event.subscriptions:
            backend = self._state.backends.get(identity)
            if backend is not None and backend.held and backend.position < end:
                channel = self._channel(backend.channel)
                channel.dirty[identity] = None
                channel.finished_s = max(channel.finished_s, event.finished_s)

    def on_progress(self, event: events.ProgressAnnounced) -> None:
        """Advance subscriptions without new results: every result before the announced position has been announced."""
        self._state.spellings |= {name.lower(): name for name in event.channels}
        heads = {name.lower(): head for name, head in event.channels.items()}
        for backend in self._state.backends.values():
            head = heads.get(backend.channel.lower())
            if head is None or head == backend.position:
                continue
            if not backend.held:
                self._request_in_new_epoch(backend, head.epoch)
            elif head.epoch != backend.position.epoch:
                self._pull(backend)  # the channel has a new epoch: the fetch will report the lost results as a gap
            elif head > backend.position and self.is_current(backend):
                backend.position = head
                self._catch_up.on_position_moved(backend, complete=False)

    def _request_in_new_epoch(self, backend: BackendSubscription, epoch: int) -> None:
        """Request a refused subscription again, once per epoch: a new epoch may accept its parameters."""
        if backend.requested_in_epoch != epoch:
            self._lost(backend)
            backend.requested_in_epoch = epoch

    def is_current(self, backend: BackendSubscription) -> bool:
        """Whether every announced result of this subscription has been fetched."""
        if not backend.held:
            return False
        channel = self._channels.get(backend.channel.lower())
        is_dirty = channel is not None and backend.id in channel.dirty
        return not is_dirty and backend.fetch is None and backend.id not in self._state.pulls

    # -- fetches ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a fetch for every channel with new results, no running fetch and no pending retry delay."""
        for identity in self._state.pulls:
            if identity in self._state.backends:
                self._pull(self._state.backends[identity])
        self._state.pulls.clear()
        for name, channel in list(self._channels.items()):
            if channel.fetch is not None or channel.retry_at_s > self._state.now_s:
                continue
            if channel.dirty:
                self._start(name, channel)
            else:
                del self._channels[name]

    def _start(self, name: str, channel: _ChannelFetch) -> None:
        backends = [self._state.backends[identity] for identity in list(channel.dirty)[:MOST_SUBSCRIPTIONS]]
        self._number += 1
        channel.fetch = self._number
        channel.fetching = tuple(backend.id for backend in backends)
        self._fetches[self._number] = name
        for backend in backends:
            del channel.dirty[backend.id]
            backend.fetch = self._number
        positions = {backend.id: backend.position for backend in backends}
        self._state.effects.append(Fetch(self._number, backends[0].channel, positions))

    def _backend(self, fetch: int, identity: SubscriptionId) -> BackendSubscription | None:
        """The subscription if it belongs to this fetch; None if it was released, or granted again, since then."""
        backend = self._state.backends.get(identity)
        return backend if backend is not None and backend.fetch == fetch else None

    def on_results(self, event: events.ResultsFetched) -> None:
        backend = self._backend(event.fetch, event.subscription)
        if backend is None or not event.offsets:
            return
        end = Cursor(event.epoch, event.offsets[-1])
        whole = Batch(backend.id, backend.channel, backend.position, event.epoch, event.offsets, event.rows)
        batch = whole.between(backend.position, end)
        if batch is None:
            return
        self._count(backend, batch, event.size_bytes or batch.raw_bytes)
        self._state.cache.append(backend, batch)
        self._state.send_live(backend, batch)
        channel = self._channels.get(backend.channel.lower())
        if channel is not None and channel.finished_s and backend.live:
            self.delays_s.append(max(0.0, self._state.now_s - channel.finished_s))
        self._catch_up.on_position_moved(backend, complete=False)

    def _count(self, backend: BackendSubscription, batch: Batch, size_bytes: int) -> None:
        """Count fetched results into the broker's load and into λ. The first fetch may start with a backlog."""
        load, now_s = self._state.load, self._state.now_s
        old = batch.between(batch.start, backend.live_from) if batch.start < backend.live_from else None
        old_rows = 0 if old is None else old.raw_bytes
        old_bytes = round(size_bytes * old_rows / batch.raw_bytes) if batch.raw_bytes else 0
        load.fetched(old_bytes, old_rows, now_s, catches_up=True)
        load.fetched(size_bytes - old_bytes, batch.raw_bytes - old_rows, now_s)
        if size_bytes > old_bytes:
            backend.rate.add(size_bytes - old_bytes, now_s)

    def on_gap(self, event: events.GapFound) -> None:
        backend = self._backend(event.fetch, event.subscription)
        if backend is not None:
            self._restart_from(backend, event.cursor)

    def _restart_from(self, backend: BackendSubscription, cursor: Cursor) -> None:
        """Continue at `cursor` because the results before it are lost. Report the gap to every live session."""
        live = [identity for group in backend.live.values() for identity in group]
        backend.position = cursor
        self._state.cache.forget(backend)
        for identity in live:
            session = self._state.sessions[identity]
            self._catch_up.report_gap(session, session.subscriber.frontends[backend.id], cursor)
            self._catch_up.step(session)

    def on_holds_missing(self, event: events.HoldsMissing) -> None:
        """Request these subscriptions again and report a gap.

        The broker cannot know when the hold was lost. Executions since then were not announced to this broker. If no
        other broker held the subscription, they computed no results for it.
        """
        for identity in event.subscriptions:
            backend = self._state.backends.get(identity)
            if backend is not None and backend.held:
                self._lost(backend)
                self._catch_up.mark_incomplete(backend)
                self._restart_from(backend, backend.position)

    def on_ended(self, event: events.FetchEnded) -> None:
        name = self._fetches.pop(event.fetch, None)
        if name is None:
            return
        channel = self._channels[name]
        for identity in channel.fetching:
            backend = self._backend(event.fetch, identity)
            if backend is not None:
                backend.fetch = None
                backend.position = max(backend.position, event.upto)
                self._catch_up.on_position_moved(backend, complete=self.is_current(backend))
        channel.fetch, channel.fetching, channel.failures, channel.retry_at_s = None, (), 0, 0.0

    def on_failed(self, event: events.FetchFailed) -> None:
        name = self._fetches.pop(event.fetch, None)
        if name is None:
            return
        channel = self._channels[name]
        requested = len(channel.fetching)
        backends = [
            backend for identity in channel.fetching if (backend := self._backend(event.fetch, identity)) is not None
        ]
        # The unknown subscription is the one that this broker released during the fetch. Fetch the others at once.
        released = event.code == Code.UNKNOWN_SUBSCRIPTION and len(backends) < requested
        channel.fetch, channel.fetching = None, ()
        for backend in backends:
            backend.fetch = None
            if event.unknown and not released:
                self._lost(backend)
            else:
                channel.dirty[backend.id] = None
        if released:
            return
        channel.failures += 1
        jitter = 0.5 + self._state.jitter() / 2
        # `failures + 1`: the first wait is twice the shortest one.
        channel.retry_at_s = self._state.now_s + retry_delay_s(
            channel.failures + 1, shortest_s=SHORTEST_WAIT_S, longest_s=LONGEST_WAIT_S, jitter=jitter
        )

    def forget(self, backend: BackendSubscription) -> None:
        backend.fetch = None
        self._state.pulls.pop(backend.id, None)
        if (channel := self._channels.get(backend.channel.lower())) is not None:
            channel.dirty.pop(backend.id, None)
