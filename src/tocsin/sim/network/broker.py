"""A broker process of the simulated network: the real `broker.core` with its link, connections and data cluster."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import msgspec

from tocsin.broker import effects, events
from tocsin.broker.core import Broker
from tocsin.broker.hosted import SessionId
from tocsin.broker.state import Limits
from tocsin.model.ids import BrokerId
from tocsin.sim.network.data_cluster import SimulatedDataCluster
from tocsin.sim.network.process import ProcessState
from tocsin.sim.network.transport import LINK_S, Pipe, Transport
from tocsin.wire import link
from tocsin.wire import session as wire


class BrokerSideConnection(Protocol):
    """The broker's end of a subscriber's connection."""

    down: Pipe[wire.ToSubscriber | str]

    def end(self, reason: str) -> None: ...

    def break_off(self, reason: str = "reset") -> None: ...


class SimulatedBroker:
    """One run of a broker's process. A restarted broker is a new object; a dead one ignores every event."""

    def __init__(
        self, identity: BrokerId, run: int, limits: Limits, transport: Transport, cluster: SimulatedDataCluster
    ) -> None:
        self.id = identity
        self.run = run
        incarnation = f"i{run}"
        jitter = transport.kernel.stream(f"jitter-{identity}").random
        register = link.Register(identity, incarnation, f"ws://{identity}")
        self.core = Broker(identity, incarnation, limits, jitter, register)
        self.process: ProcessState[events.Event] = ProcessState(self._handle, events.Ticked)
        self.link: Pipe[link.FromBroker] | None = None
        """Carries messages to the coordinator; None while the link is down."""
        self.connections: dict[SessionId, BrokerSideConnection] = {}
        self._transport = transport
        self._cluster = cluster
        self._orders: deque[effects.RequestBackend | effects.ReleaseBackend] = deque()
        self._order_in_flight = False
        self._fetches: dict[int, Pipe[events.Event]] = {}
        announcements: Pipe[events.Event] = Pipe(transport, LINK_S, self.handle)
        announcements.send(events.AnnouncementsMissed())
        cluster.announcements[identity] = announcements

    @property
    def running(self) -> bool:
        return self.process.running

    def handle(self, event: events.Event) -> None:
        self.process.happened(event)

    def _handle(self, event: events.Event) -> None:
        for effect in self.core.handle(event, self._transport.kernel.now_s):
            self._perform(effect)

    def kill(self) -> None:
        """End the process. Its connections break at once; the caller closes its link."""
        self.process.running = False
        del self._cluster.announcements[self.id]
        for connection in list(self.connections.values()):
            connection.break_off()

    def block(self, session: SessionId) -> None:
        """Report a full send buffer, and later an empty one."""
        self.handle(events.SessionBlocked(session))
        self._transport.later(0.0, self.handle, events.SessionDrained(session))

    def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.SendResults(sessions, batch, _):
                for cursor, row in zip(batch.cursors(), batch.rows, strict=True):
                    self._send(sessions, wire.Result(batch.subscription, batch.channel, str(cursor), msgspec.Raw(row)))
            case effects.SendToSessions(sessions, message, _):
                self._send(sessions, message)
            case effects.CloseSession(session, reason) if session in self.connections:
                self.connections[session].end(reason)
            case effects.AwaitDrain(session):
                self._transport.later(0.0, self.handle, events.SessionDrained(session))
            case effects.RequestBackend() | effects.ReleaseBackend():
                self._orders.append(effect)
                self._place_order()
            case effects.Fetch():
                self._fetches[effect.fetch] = Pipe(self._transport, LINK_S, self._receive_fetched)
                self._transport.later(LINK_S, self._pull, effect)
            case effects.CancelFetch(number) if number in self._fetches:
                self._fetches.pop(number).close()
            case effects.StoreUpdates():
                self._transport.later(LINK_S, self._store, effect)
            case effects.SendToCoordinator(report) if self.link is not None:
                self.link.send(report)

    def _send(self, sessions: tuple[SessionId, ...], message: wire.ToSubscriber) -> None:
        for session in sessions:
            if session in self.connections:
                self.connections[session].down.send(message)

    # -- the data cluster ----------------------------------------------------------------------------------------------

    def _place_order(self) -> None:
        """Send the next order, one at a time. Skip the release of a subscription that is held again."""
        while self._orders and not self._order_in_flight:
            order = self._orders.popleft()
            if isinstance(order, effects.RequestBackend) or order.subscription not in self.core.state.backends:
                self._order_in_flight = True
                self._transport.later(LINK_S, self._reach_cluster, order)

    def _reach_cluster(self, order: effects.RequestBackend | effects.ReleaseBackend) -> None:
        if not self.running:
            return
        grant: events.BackendGranted | None = None
        if isinstance(order, effects.RequestBackend):
            identity, cursor = self._cluster.subscribe(self.id, order.channel, order.parameters)
            grant = events.BackendGranted(order.key, order.channel, identity, cursor)
        else:
            self._cluster.release(self.id, order.subscription)
        self._transport.later(LINK_S, self._finish_order, grant)

    def _finish_order(self, grant: events.BackendGranted | None) -> None:
        self._order_in_flight = False
        if grant is not None:
            self.handle(grant)
        self._place_order()

    def _store(self, updates: effects.StoreUpdates) -> None:
        if self.running:
            self._cluster.store_own_records(updates)
            self._transport.later(LINK_S, self.handle, events.UpdatesStored(updates.batch))

    def _pull(self, fetch: effects.Fetch) -> None:
        if fetch.fetch in self._fetches:
            for event in self._cluster.pull(self.id, fetch):
                self._fetches[fetch.fetch].send(event)

    def _receive_fetched(self, event: events.Event) -> None:
        if isinstance(event, events.FetchEnded | events.FetchFailed):
            del self._fetches[event.fetch]
        self.handle(event)
