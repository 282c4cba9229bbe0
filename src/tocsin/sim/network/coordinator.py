"""The coordinator process of the simulated network: the real `coordinator.core` with its ledger and its links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Literal, Protocol

from tocsin.broker.events import CoordinatorMessageReceived, Event, LinkLost, LinkOpened
from tocsin.coordinator import effects, events
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.coordinator.storage import InMemoryStore
from tocsin.model.ids import BrokerId
from tocsin.sim.network.data_cluster import SimulatedDataCluster
from tocsin.sim.network.transport import HAND_OVER, LINK_S, Pipe, Transport
from tocsin.wire import link
from tocsin.wire.neighbour_link import Hosting
from tocsin.wire.site_link import visitor_user

RECONNECT_S = 1.0
"""How long after the loss of a link, or the start of a coordinator, a broker opens a new link."""


class LinkedBroker(Protocol):
    """A broker process as the coordinator's end of its link sees it."""

    id: BrokerId
    link: Pipe[link.FromBroker] | None

    @property
    def running(self) -> bool: ...

    def handle(self, event: Event) -> None: ...


class SimulatedLink:
    """A broker's link to the coordinator. `hear` gets the broker's messages."""

    def __init__(
        self,
        transport: Transport,
        number: int,
        broker: LinkedBroker,
        hear: Callable[[SimulatedLink, link.FromBroker], object],
    ) -> None:
        self.number = number
        self.broker = broker
        self.up: Pipe[link.FromBroker] = Pipe(transport, LINK_S, lambda message: hear(self, message))
        self.down: Pipe[link.FromCoordinator] = Pipe(
            transport, LINK_S, lambda message: broker.handle(CoordinatorMessageReceived(message))
        )
        broker.link = self.up
        broker.handle(LinkOpened())

    def close(self) -> None:
        self.up.close()
        self.down.close()
        self.broker.link = None
        self.broker.handle(LinkLost())


class SimulatedCoordinator:
    """Survives its process: `kill` ends the process and `start` begins a new one from the ledger."""

    def __init__(
        self,
        rules: CoordinatorRules,
        transport: Transport,
        cluster: SimulatedDataCluster,
        brokers: Callable[[], Sequence[LinkedBroker]],
    ) -> None:
        self.core: Coordinator | None = None
        """The core of the running coordinator process; None while no process runs."""
        self.ledger = InMemoryStore()
        self.crash_on_message: Literal["before storing", "before sending"] | None = None
        """When to crash while handling the next message of a broker; the process is restarted at once."""
        self.after_event: Callable[[Coordinator], object] = lambda core: None
        """Called after every event that the core handled, for checks."""
        self.to_neighbour: Callable[[effects.SendToNeighbour | effects.CloseNeighbour], None] = lambda effect: None
        """Sends a message to a neighbouring site, or closes the connection to it."""
        self._rules = rules
        self._transport = transport
        self._cluster = cluster
        self._brokers = brokers
        self._links: dict[int, SimulatedLink] = {}
        self._numbers = count(1)

    # -- the process and its links -------------------------------------------------------------------------------------

    def start(self) -> None:
        epoch = f"e{next(self._numbers)}"
        self.core = Coordinator(self._rules, epoch, memory=self.ledger.load(), now_s=self._transport.kernel.now_s)
        for broker in self._brokers():
            self._transport.later(RECONNECT_S, self.open_link, broker)

    def kill(self) -> None:
        self.core = None
        links, self._links = self._links, {}
        for broken in links.values():
            broken.close()

    def restart(self) -> None:
        self.kill()
        self.start()

    def open_link(self, broker: LinkedBroker) -> None:
        if self.core is not None and broker.link is None and broker.running:
            opened = SimulatedLink(self._transport, next(self._numbers), broker, self._hear)
            self._links[opened.number] = opened

    def cut_link(self, broker: LinkedBroker) -> None:
        """Break a broker's link, if it has one. The broker opens another one later."""
        broken = next((open_link for open_link in self._links.values() if open_link.broker is broker), None)
        if broken is None:
            return
        del self._links[broken.number]
        broken.close()
        self._transport.later(RECONNECT_S, self.open_link, broker)
        if self.core is not None:
            self.handle(events.LinkClosed(broker.id, broken.number))

    def _hear(self, source: SimulatedLink, message: link.FromBroker) -> None:
        crash, self.crash_on_message = self.crash_on_message, None
        self.handle(events.LinkMessageReceived(source.broker.id, source.number, message), crash)

    # -- events and effects --------------------------------------------------------------------------------------------

    def tick(self) -> None:
        if self.core is not None:
            self.handle(events.Ticked())

    def handle(self, event: events.Event, crash: str | None = None) -> object:
        """Store the effects, then send them. Returns the answer to a request, None if there is none."""
        assert self.core is not None, "the coordinator is down"
        decided = self.core.handle(event, self._transport.kernel.now_s)
        if crash != "before storing":
            self.ledger.commit(decided)
        if crash is not None:
            self.restart()
            return None
        answer: object = None
        for effect in decided:
            match effect:
                case effects.AnswerRequest(_, value):
                    answer = value
                case _:
                    self._perform(effect)
        self.after_event(self.core)
        return answer

    def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.SendToBroker(_, number, message):
                self._send(number, message)
            case effects.SendHandOver():
                hand_over = link.HandOver(
                    effect.migration,
                    effect.subscriber,
                    effect.target,
                    effect.address,
                    HAND_OVER + effect.migration,
                    effect.deadline_s,
                )
                self._send(effect.link, hand_over)
            case effects.SendToNeighbour() | effects.CloseNeighbour():
                self.to_neighbour(effect)
            case effects.SendHosting(connection, number):
                users = {client: client.rpartition("/")[0] for client in effect.clients}
                tokens = {client: visitor_user(effect.site, user) for client, user in users.items()}
                hosting = Hosting(number, effect.address, effect.home, tokens)
                self.to_neighbour(effects.SendToNeighbour(connection, hosting))
            case effects.CloseLink(_, number, _) if number in self._links:
                self.cut_link(self._links[number].broker)
            case effects.ReleaseAtCluster(broker):
                self._cluster.release_all(broker)
                self._transport.later(LINK_S, self._report_released, broker)

    def _send(self, number: int, message: link.FromCoordinator) -> None:
        if number in self._links:
            self._links[number].down.send(message)

    def _report_released(self, broker: BrokerId) -> None:
        if self.core is not None:
            self.handle(events.BrokerReleased(broker))
