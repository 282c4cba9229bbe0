"""The live network in virtual time: the real broker and coordinator logic, message by message, and nothing of asyncio.

The same `broker.core` and `coordinator.core` that run in processes, driven by the event kernel: links with delays,
brokers that crash, pause and come back, a coordinator that is killed and starts again from what it stored. For small
worlds, in which every message matters; `balance_run` has the aggregated model for large ones.

    network = LiveNetwork(Kernel(1), periods_s={ChannelName("C"): 10.0}, sizes=…, brokers=["a", "b", "c"])
    network.add("ada", [(ChannelName("C"), {"k": 1})])
    network.kernel.run(600)
    network.report()  # delivered, lost, out of order
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tocsin.broker import effects as wanted
from tocsin.broker import events as seen
from tocsin.broker.core import Broker
from tocsin.broker.hosted import Requester, SessionId
from tocsin.broker.message_encoding import Encoding
from tocsin.broker.state import Limits
from tocsin.coordinator import effects as decided
from tocsin.coordinator import events
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.ledger import Ledger
from tocsin.coordinator.rules import Rules
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.sim.kernel import Kernel
from tocsin.sim.network.data_cluster import SimulatedCluster, Sizes
from tocsin.sim.network.people import Person
from tocsin.wire import link
from tocsin.wire import session as wire

LINK_S = 0.005
"""Broker to coordinator, and broker to data cluster, one way."""
ACCESS_S = 0.020
"""Subscriber to anybody, one way."""


@dataclass(slots=True)
class _Node:
    """A broker's process."""

    core: Broker
    incarnation: int
    paused: bool = False
    backlog: list[seen.Event] = field(default_factory=list)
    link: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    expected: int
    delivered: int
    lost: int
    out_of_order: int
    unheld: int
    """Moments at which no broker held a subscription that somebody has: make-before-break was broken."""
    repeats: int
    """Removed by cursor at the subscriber."""
    gaps: int
    moves: int
    """Hand-overs that subscribers followed."""
    reconnects: int


class LiveNetwork:
    def __init__(
        self,
        kernel: Kernel,
        periods_s: Mapping[ChannelName, float],
        sizes: Sizes,
        brokers: Sequence[str],
        rules: Rules = Rules(),
        limits: Limits = Limits(),
    ) -> None:
        self.kernel = kernel
        self.cluster = SimulatedCluster(kernel, periods_s, sizes)
        self.people: dict[SubscriberId, Person] = {}
        self.brokers: dict[BrokerId, _Node] = {}
        self.coordinator: Coordinator | None = None
        self.ledger = Ledger()
        self._rules, self._limits = rules, limits
        self._sessions: dict[SessionId, tuple[Person, BrokerId, int]] = {}
        self._session_numbers, self._link_numbers = count(1), count(1)
        self._links: dict[int, tuple[BrokerId, int]] = {}
        self._asks: dict[int, Person] = {}
        self._ask_numbers = count(1)
        self._starts = count(1)
        self._unheld = 0
        self.start_coordinator()
        for name in brokers:
            self.start_broker(BrokerId(name))
        kernel.every(0.25, self._tick_coordinator)
        kernel.every(0.5, self._tick_brokers)
        kernel.every(0.1, self._check_held)

    def add(self, name: str, wants: list[tuple[ChannelName, dict[str, Any]]], at_s: float = 0.0) -> Person:
        person = Person(self.kernel, self, SubscriberId(name), wants)
        self.people[person.id] = person
        self.kernel.call_at(max(at_s, self.kernel.now_s), person.join)
        return person

    # -- processes start and end ---------------------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        epoch = f"e{next(self._starts)}"
        self.coordinator = Coordinator(self._rules, epoch, memory=self.ledger.load(), now_s=self.kernel.now_s)
        for broker in self.brokers:
            self.kernel.call_after(LINK_S, self._open_link, broker)

    def kill_coordinator(self) -> None:
        self.coordinator = None
        self._asks.clear()
        for number in list(self._links):
            self._break_link(number)

    def start_broker(self, broker: BrokerId) -> None:
        former = self.brokers.get(broker)
        incarnation = 1 if former is None else former.incarnation + 1
        stream = self.kernel.stream(f"jitter-{broker}")
        register = link.Register(broker, f"i{incarnation}", f"ws://{broker}")
        core = Broker(broker, f"i{incarnation}", self._limits, stream.random, register)
        self.brokers[broker] = _Node(core, incarnation)
        self.cluster.listeners[broker] = lambda event: self._later(LINK_S, broker, incarnation, event)
        self._later(0.0, broker, incarnation, seen.AnnouncementsMissed())
        self.kernel.call_after(LINK_S, self._open_link, broker)

    def kill_broker(self, broker: BrokerId) -> None:
        """Connections break at once, as those of a killed process do."""
        node = self.brokers[broker]
        self.cluster.listeners.pop(broker, None)
        if node.link is not None:
            self._break_link(node.link)
        self.brokers[broker] = _Node(node.core, node.incarnation + 1, paused=True)  # whatever is on its way is too late
        for session, (person, at, _) in list(self._sessions.items()):
            if at == broker:
                del self._sessions[session]
                self.kernel.call_after(ACCESS_S, person.lost, session)

    def pause_broker(self, broker: BrokerId, seconds: float) -> None:
        """As SIGSTOP does: nothing breaks, nothing happens, and then everything at once."""
        self.brokers[broker].paused = True
        self.kernel.call_after(seconds, self._resume_broker, broker, self.brokers[broker].incarnation)

    def _resume_broker(self, broker: BrokerId, incarnation: int) -> None:
        node = self.brokers[broker]
        if node.incarnation != incarnation:
            return
        node.paused = False
        backlog, node.backlog = node.backlog, []
        for event in backlog:
            self._handle(broker, incarnation, event)

    # -- links ---------------------------------------------------------------------------------------------------------

    def _open_link(self, broker: BrokerId) -> None:
        node = self.brokers[broker]
        if self.coordinator is None or node.link is not None or broker not in self.cluster.listeners:
            return
        node.link = next(self._link_numbers)
        self._links[node.link] = (broker, node.incarnation)
        self._handle(broker, node.incarnation, seen.LinkOpened())

    def _break_link(self, number: int) -> None:
        broker, incarnation = self._links.pop(number)
        node = self.brokers[broker]
        if node.link == number:
            node.link = None
            self._later(LINK_S, broker, incarnation, seen.LinkLost())
            if self.coordinator is not None:
                self._coordinate(events.LinkClosed(broker, number))
                self.kernel.call_after(1.0, self._open_link, broker)

    def _heard(self, number: int, message: link.FromBroker) -> None:
        if number in self._links and self.coordinator is not None:
            self._coordinate(events.Heard(self._links[number][0], number, message))

    # -- brokers -------------------------------------------------------------------------------------------------------

    def _later(self, delay_s: float, broker: BrokerId, incarnation: int, event: seen.Event) -> None:
        self.kernel.call_after(delay_s, self._handle, broker, incarnation, event)

    def _handle(self, broker: BrokerId, incarnation: int, event: seen.Event) -> None:
        node = self.brokers[broker]
        if node.incarnation != incarnation:
            return
        if node.paused:
            if not isinstance(event, seen.Ticked):
                node.backlog.append(event)
            return
        for effect in node.core.handle(event, self.kernel.now_s):
            self._do(broker, node, effect)

    def _do(self, broker: BrokerId, node: _Node, effect: wanted.Effect) -> None:
        number = node.incarnation
        match effect:
            case wanted.SendResults(sessions=sessions) | wanted.SendToSessions(sessions=sessions):
                for session in sessions:
                    if session in self._sessions:
                        self.kernel.call_after(ACCESS_S, self._sessions[session][0].told, session, effect)
            case wanted.AwaitDrain(session):
                self._later(0.0, broker, number, seen.SessionDrained(session))
            case wanted.CloseSession(session, reason):
                known = self._sessions.pop(session, None)
                if known is not None:
                    self.kernel.call_after(ACCESS_S, known[0].lost, session)
                    self._later(0.0, broker, number, seen.SessionLost(session, reason))
            case wanted.RequestBackend(key, channel, parameters):
                self.kernel.call_after(LINK_S, self._grant, broker, number, key, channel, parameters)
            case wanted.ReleaseBackend(_, subscription):
                self.kernel.call_after(LINK_S, self.cluster.release, broker, subscription)
            case wanted.Fetch():
                self.kernel.call_after(LINK_S, self._pull, broker, number, effect)
            case wanted.SendToCoordinator(message):
                if node.link is not None:
                    self.kernel.call_after(LINK_S, self._heard, node.link, message)

    def _grant(
        self, broker: BrokerId, incarnation: int, key: Any, channel: ChannelName, parameters: dict[str, Any]
    ) -> None:
        identity, cursor = self.cluster.subscribe(broker, channel, parameters)
        self._later(LINK_S, broker, incarnation, seen.BackendGranted(key, channel, identity, cursor))

    def _pull(self, broker: BrokerId, incarnation: int, fetch: wanted.Fetch) -> None:
        for event in self.cluster.pull(fetch):
            self._later(LINK_S, broker, incarnation, event)

    def _tick_brokers(self) -> None:
        for broker, node in list(self.brokers.items()):
            if broker in self.cluster.listeners:
                self._handle(broker, node.incarnation, seen.Ticked())

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def _tick_coordinator(self) -> None:
        if self.coordinator is not None:
            self._coordinate(events.Ticked())

    def _coordinate(self, event: events.Event) -> object:
        assert self.coordinator is not None
        answer: object = None
        effects = self.coordinator.handle(event, self.kernel.now_s)
        self.ledger.commit(effects)
        for effect in effects:
            match effect:
                case decided.Send(_, number, message):
                    self._say(number, message)
                case decided.SendHandOver():
                    message = link.HandOver(
                        effect.migration, effect.subscriber, effect.target, effect.address, "token", effect.deadline_s
                    )
                    self._say(effect.link, message)
                case decided.CloseLink(_, number, _):
                    if number in self._links:
                        self._break_link(number)
                case decided.Answer(_, value):
                    answer = value
                case decided.ReleaseAtCluster(broker):
                    self.cluster.release_all(broker)
                    self.kernel.call_after(LINK_S, self._released, broker)
        return answer

    def _released(self, broker: BrokerId) -> None:
        if self.coordinator is not None:
            self._coordinate(events.BrokerReleased(broker))

    def _say(self, number: int, message: link.FromCoordinator) -> None:
        if number in self._links:
            broker, incarnation = self._links[number]
            self._later(LINK_S, broker, incarnation, seen.CoordinatorMessageReceived(message))

    def ask(self, event: events.Event) -> object:
        """As an administrator would."""
        return self._coordinate(event)

    # -- what subscribers see ------------------------------------------------------------------------------------------

    def request_broker(self, person: Person, avoid: BrokerId | None) -> None:
        self.kernel.call_after(ACCESS_S, self._request, person, avoid)

    def _request(self, person: Person, avoid: BrokerId | None) -> None:
        placed: object = None
        if self.coordinator is not None:
            self._coordinate(events.UserRegistered(next(self._ask_numbers), person.id))
            shunned = frozenset() if avoid is None else frozenset({avoid})
            placed = self._coordinate(events.BrokerRequested(next(self._ask_numbers), person.id, avoid=shunned))
        if isinstance(placed, events.Placed):
            self.kernel.call_after(ACCESS_S, person.placed, placed.broker)
        else:
            self.kernel.call_after(1.0, self._request, person, avoid)

    def connect(
        self, person: Person, broker: BrokerId, resume: Mapping[SubscriptionId, str], migration: str | None
    ) -> SessionId | None:
        node = self.brokers.get(broker)
        if node is None or broker not in self.cluster.listeners:
            return None
        session = SessionId(next(self._session_numbers))
        self._sessions[session] = (person, broker, node.incarnation)
        login = seen.LoginRequested(
            Requester(session=session), person.id, 0, dict(resume), Encoding.PLAIN, None, migration
        )  # fmt: skip
        self._later(ACCESS_S, broker, node.incarnation, login)
        return session

    def send(self, session: SessionId, request: wire.FromSubscriber) -> None:
        if session in self._sessions:
            person, broker, incarnation = self._sessions[session]
            received = seen.RequestReceived(Requester(session=session), person.id, request)
            self._later(ACCESS_S, broker, incarnation, received)

    def hang_up(self, session: SessionId) -> None:
        known = self._sessions.pop(session, None)
        if known is not None:
            self._later(ACCESS_S, known[1], known[2], seen.SessionLost(session, "left"))

    # -- what came of it -----------------------------------------------------------------------------------------------

    def report(self) -> Report:
        expected = delivered = lost = out_of_order = repeats = gaps = 0
        for person in self.people.values():
            for identity, received in person.received.items():
                due = [one for one in self.cluster.subscriptions[identity].offsets if one > received.start.offset]
                got = [cursor.offset for cursor in received.cursors]
                expected += len(due)
                delivered += len(got)
                lost += len(set(due) - set(got))
                out_of_order += received.out_of_order
                repeats += received.repeats
                gaps += received.gaps
        moves = sum(person.moves for person in self.people.values())
        reconnects = sum(person.reconnects for person in self.people.values())
        return Report(expected, delivered, lost, out_of_order, self._unheld, repeats, gaps, moves, reconnects)

    def _check_held(self) -> None:
        """A subscription that nobody holds, if only for a moment, may miss an execution."""
        for person in self.people.values():
            for identity in person.received:
                self._unheld += not self.cluster.subscriptions[identity].brokers
