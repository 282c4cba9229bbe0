"""Bringing new results here, each once per broker: what was announced is fetched, one fetch per channel at a time.

News that come during a fetch wait for the next one, so a burst of executions costs few requests. A fetch that fails is
tried again later from the same positions: the data cluster being away means waiting and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tocsin.broker.batches import Batch
from tocsin.broker.catchup import CatchUp
from tocsin.broker.effects import Fetch
from tocsin.broker.entities import Backend
from tocsin.broker.events import (
    ExecutionAnnounced,
    FetchEnded,
    FetchFailed,
    GapFound,
    HoldsMissing,
    ProgressAnnounced,
    ResultsFetched,
)
from tocsin.broker.world import World
from tocsin.model.cursor import Cursor, offset_of
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.wire.errors import Code

AT_ONCE = 5_000
"""Subscriptions in one fetch."""
SHORTEST_WAIT_S = 0.2
LONGEST_WAIT_S = 15.0
SAMPLES = 512


@dataclass(slots=True)
class _Channel:
    dirty: dict[SubscriptionId, None]
    """Have, or may have, results after their position."""
    fetch: int | None = None
    wanted: tuple[SubscriptionId, ...] = ()
    failures: int = 0
    retry_at_s: float = 0.0
    finished_s: float = 0.0
    """When the latest execution that was announced ended."""


class Fetching:
    def __init__(self, world: World, catch_up: CatchUp, lost: Callable[[Backend], None]) -> None:
        """`lost` is told of a subscription the data cluster does not know any more."""
        self._world = world
        self._catch_up = catch_up
        self._lost = lost
        self._channels: dict[str, _Channel] = {}
        """By name in small letters: names ignore case, as Spark's do."""
        self._fetches: dict[int, str] = {}
        self._number = 0
        self.delays_s: deque[float] = deque(maxlen=SAMPLES)
        """From the end of an execution to the hand-over of its results to sessions."""

    @property
    def idle(self) -> bool:
        return not self._channels and not self._fetches

    def _channel(self, name: ChannelName) -> _Channel:
        return self._channels.setdefault(name.lower(), _Channel({}))

    # -- news ------------------------------------------------------------------------------------------------------

    def pull(self, backend: Backend) -> None:
        if backend.held:
            self._channel(backend.channel).dirty[backend.id] = None

    def missed(self) -> None:
        """Announcements may have passed by."""
        for backend in self._world.backends.values():
            if backend.held:
                self.pull(backend)
            else:
                self._lost(backend)

    def announced(self, event: ExecutionAnnounced) -> None:
        end = Cursor(event.epoch, offset_of(event.execution + 1))
        for identity in event.subscriptions:
            backend = self._world.backends.get(identity)
            if backend is not None and backend.held and backend.position < end:
                channel = self._channel(backend.channel)
                channel.dirty[identity] = None
                channel.finished_s = max(channel.finished_s, event.finished_s)

    def progressed(self, event: ProgressAnnounced) -> None:
        """Those without news move on with their channel: every result before its position has been announced."""
        self._world.spellings |= {name.lower(): name for name in event.channels}
        heads = {name.lower(): head for name, head in event.channels.items()}
        for backend in self._world.backends.values():
            head = heads.get(backend.channel.lower())
            if head is None or head == backend.position:
                continue
            if not backend.held:
                self._ask_in_another_life(backend, head)
            elif head.epoch != backend.position.epoch:
                self.pull(backend)  # another life of the channel: its results are gone, which the fetch will say
            elif head > backend.position and self.settled(backend):
                backend.position = head
                self._catch_up.position_moved(backend, asked=False)

    def _ask_in_another_life(self, backend: Backend, head: Cursor) -> None:
        """It was refused: its channel took other parameters. In a life after that one it may fit again."""
        if backend.asked_in != head.epoch:
            self._lost(backend)
            backend.asked_in = head.epoch

    def settled(self, backend: Backend) -> bool:
        """Nothing of it has been announced that is not here."""
        if not backend.held:
            return False
        channel = self._channels.get(backend.channel.lower())
        waits = channel is not None and backend.id in channel.dirty
        return not waits and backend.fetch is None and backend.id not in self._world.pulls

    # -- fetches ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Every channel with news, no fetch under way and no failure to wait out."""
        for identity in self._world.pulls:
            if identity in self._world.backends:
                self.pull(self._world.backends[identity])
        self._world.pulls.clear()
        for name, channel in list(self._channels.items()):
            if channel.fetch is not None or channel.retry_at_s > self._world.now_s:
                continue
            if channel.dirty:
                self._start(name, channel)
            else:
                del self._channels[name]

    def _start(self, name: str, channel: _Channel) -> None:
        wanted = [self._world.backends[identity] for identity in list(channel.dirty)[:AT_ONCE]]
        self._number += 1
        channel.fetch = self._number
        channel.wanted = tuple(backend.id for backend in wanted)
        self._fetches[self._number] = name
        for backend in wanted:
            del channel.dirty[backend.id]
            backend.fetch = self._number
        positions = {backend.id: backend.position for backend in wanted}
        self._world.out.append(Fetch(self._number, wanted[0].channel, positions))

    def _backend(self, fetch: int, identity: SubscriptionId) -> Backend | None:
        """None if it is not, or not in this life, what was fetched."""
        backend = self._world.backends.get(identity)
        return backend if backend is not None and backend.fetch == fetch else None

    def fetched(self, event: ResultsFetched) -> None:
        backend = self._backend(event.fetch, event.subscription)
        if backend is None or not event.offsets:
            return
        end = Cursor(event.epoch, event.offsets[-1])
        whole = Batch(backend.id, backend.channel, backend.position, event.epoch, event.offsets, event.rows)
        batch = whole.between(backend.position, end)
        if batch is None:
            return
        self._world.load.fetched(batch.raw_bytes, self._world.now_s)
        backend.rate.add(batch.raw_bytes, self._world.now_s)
        self._world.cache.append(backend, batch)
        self._world.deliver_live(backend, batch)
        channel = self._channels.get(backend.channel.lower())
        if channel is not None and channel.finished_s and backend.live:
            self.delays_s.append(max(0.0, self._world.now_s - channel.finished_s))
        self._catch_up.position_moved(backend, asked=False)

    def gap_found(self, event: GapFound) -> None:
        """Also the results that everybody was waiting for are gone."""
        backend = self._backend(event.fetch, event.subscription)
        if backend is not None:
            self._go_on_from(backend, event.cursor)

    def _go_on_from(self, backend: Backend, cursor: Cursor) -> None:
        """What came before is gone, and whoever listened is told."""
        listening = [identity for group in backend.live.values() for identity in group]
        backend.position = cursor
        self._world.cache.forget(backend)
        for identity in listening:
            session = self._world.sessions[identity]
            self._catch_up.told_gap(session, session.subscriber.frontends[backend.id], cursor)
            self._catch_up.step(session)

    def holds_missing(self, event: HoldsMissing) -> None:
        """The data cluster turns out not to know that we hold these. Nobody can say since when: what was executed since
        then was not announced to us, and where nobody else held them it was not even computed."""
        for identity in event.subscriptions:
            backend = self._world.backends.get(identity)
            if backend is not None and backend.held:
                self._lost(backend)
                self._catch_up.doubt(backend)
                self._go_on_from(backend, backend.position)

    def ended(self, event: FetchEnded) -> None:
        name = self._fetches.pop(event.fetch, None)
        if name is None:
            return
        channel = self._channels[name]
        for identity in channel.wanted:
            backend = self._backend(event.fetch, identity)
            if backend is not None:
                backend.fetch = None
                backend.position = max(backend.position, event.upto)
                self._catch_up.position_moved(backend, asked=self.settled(backend))
        channel.fetch, channel.wanted, channel.failures, channel.retry_at_s = None, (), 0, 0.0

    def failed(self, event: FetchFailed) -> None:
        name = self._fetches.pop(event.fetch, None)
        if name is None:
            return
        channel = self._channels[name]
        held = [backend for one in channel.wanted if (backend := self._backend(event.fetch, one)) is not None]
        let_go = event.code == Code.UNKNOWN_SUBSCRIPTION and len(held) < len(channel.wanted)
        channel.fetch, channel.wanted = None, ()
        for backend in held:
            backend.fetch = None
            if event.unknown and not let_go:
                self._lost(backend)
            else:
                channel.dirty[backend.id] = None
        if let_go:
            return  # the one it does not know is one we gave back while the fetch was under way: ask for the others
        channel.failures += 1
        wait_s = min(LONGEST_WAIT_S, SHORTEST_WAIT_S * 2.0 ** min(channel.failures, 16))
        channel.retry_at_s = self._world.now_s + wait_s * (0.5 + self._world.jitter() / 2)

    def forget(self, backend: Backend) -> None:
        backend.fetch = None
        self._world.pulls.pop(backend.id, None)
        if (channel := self._channels.get(backend.channel.lower())) is not None:
            channel.dirty.pop(backend.id, None)
