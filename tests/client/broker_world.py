"""A world for a subscriber's session: results, minimal brokers and an unreliable network.

The brokers are not copies of Tocsin's broker: they do only what the contract of `wire.session` requires. They repeat
results, forget subscriptions, lose connections with everything in flight, and report a gap after the retention.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from tocsin.client import events
from tocsin.client.session import SubscriberSession
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.wire import session as wire

CHANNEL = ChannelName("C")
NAMES = [SubscriptionId(f"s{number}") for number in range(3)]


@dataclass
class Session:
    """A broker's end of one connection."""

    broker: str
    outbox: deque[wire.ToSubscriber] = field(default_factory=deque)
    positions: dict[SubscriptionId, Cursor] = field(default_factory=dict)
    began: dict[SubscriptionId, Cursor] = field(default_factory=dict)
    """The cursor at which each subscription began. A broker may repeat results, but none before this cursor."""
    furthest: dict[SubscriptionId, Cursor] = field(default_factory=dict)
    """The last cursor sent in each subscription: a repeated result that has expired since is no gap."""
    logged_in: bool = False


class World:
    def __init__(self, session: SubscriberSession) -> None:
        self.session = session
        self.now_s = 0.0
        self.log: dict[SubscriptionId, list[Cursor]] = {name: [] for name in NAMES}
        self.retained: dict[SubscriptionId, int] = dict.fromkeys(NAMES, 0)
        self.acked: dict[SubscriptionId, Cursor] = {}
        self.offset = 1
        self.connections: dict[int, Session] = {}
        self.opening: dict[int, events.BrokerAddress] = {}
        self.sent: deque[tuple[int, wire.FromSubscriber]] = deque()
        self.locating = False
        self.delivered: list[wire.Result | wire.Gap | wire.Recovered] = []
        self.unhandled: deque[wire.Result | wire.Gap] = deque()
        self.subscribed: dict[int, wire.Held] = {}
        self.unsubscribed: list[int] = []
        self.updated: list[int] = []
        self.refused: dict[int, str] = {}
        """Ticket → code."""
        self.failure: events.FailSession | None = None
        self.finished = False

    def handle(self, event: events.Event) -> None:
        for effect in self.session.handle(event, self.now_s):
            self._perform(effect)

    def _perform(self, effect: events.Effect) -> None:
        match effect:
            case events.LocateBroker():
                assert not self.locating, "two requests to the coordinator at once"
                self.locating = True
            case events.OpenConnection(connection, place):
                self.opening[connection] = place
            case events.SendRequest(connection, message):
                self.sent.append((connection, message))
            case events.CloseConnection(connection):
                self.connections.pop(connection, None)
                self.opening.pop(connection, None)
            case events.DeliverMessage(message):
                self.delivered.append(message)
                if not isinstance(message, wire.Recovered):
                    self.unhandled.append(message)
            case events.ReportSubscribed(ticket, held):
                self.subscribed[ticket] = held
            case events.ReportUnsubscribed(ticket):
                self.unsubscribed.append(ticket)
            case events.ReportUpdated(ticket):
                self.updated.append(ticket)
            case events.ReportRefused(ticket, code, _):
                self.refused[ticket] = code
            case events.FailSession():
                self.failure = effect
            case events.FinishSession():
                self.finished = True

    # -- steps ---------------------------------------------------------------------------------------------------------

    def publish(self, choice: int) -> None:
        self.offset += 1 + choice % 5
        self.log[NAMES[choice % len(NAMES)]].append(Cursor(1, self.offset))

    def expire(self, choice: int) -> None:
        name = NAMES[choice % len(NAMES)]
        self.retained[name] = max(self.retained[name], len(self.log[name]) - choice % 3)

    def coordinator_answers(self, choice: int) -> None:
        if self.locating:
            self.locating = False
            broker = f"b{choice % 3}"
            self.handle(events.BrokerLocated(events.BrokerAddress(BrokerId(broker), f"ws://{broker}", "t")))

    def coordinator_is_down(self, choice: int) -> None:
        if self.locating:
            self.locating = False
            self.handle(events.LocateFailed("not_ready", "down", retry=True))

    def connection_opens(self, choice: int) -> None:
        if self.opening:
            number = sorted(self.opening)[choice % len(self.opening)]
            place = self.opening.pop(number)
            self.connections[number] = Session(place.broker)
            self.handle(events.ConnectionOpened(number))

    def connection_fails(self, choice: int) -> None:
        numbers = sorted([*self.opening, *self.connections])
        if numbers:
            number = numbers[choice % len(numbers)]
            self.opening.pop(number, None)
            self.connections.pop(number, None)
            reason = ["reset", "stopping", "slow", "moved", "draining"][choice % 5]
            self.handle(events.ConnectionLost(number, reason))

    def request_arrives(self, choice: int) -> None:
        if self.sent:
            number, message = self.sent.popleft()
            if number in self.connections:
                self._serve(self.connections[number], message, choice)

    def broker_sends(self, choice: int) -> None:
        """The broker sends the next message of some subscription."""
        for session in self._live(choice):
            for name in sorted(session.positions):
                if (message := self._next(session, name)) is not None:
                    session.outbox.append(message)
                    return

    def broker_repeats(self, choice: int) -> None:
        for session in self._live(choice):
            name = NAMES[choice % len(NAMES)]
            began, position = session.began.get(name, Cursor(9, 9)), session.positions.get(name, Cursor(0, 0))
            behind = [cursor for cursor in self.log[name] if began <= cursor < position]
            if behind:
                session.positions[name] = behind[-1 - choice % min(3, len(behind))]
            return

    def broker_sends_progress(self, choice: int) -> None:
        for session in self._live(choice):
            if all(self._next(session, name, look=True) is None for name in session.positions):
                position = Cursor(1, self.offset)
                session.outbox.append(wire.Progress({CHANNEL: str(position)}, self.now_s))
                for name in session.positions:
                    session.positions[name] = max(session.positions[name], position)
            return

    def message_arrives(self, choice: int) -> None:
        ready = [number for number in sorted(self.connections) if self.connections[number].outbox]
        if ready:
            number = ready[choice % len(ready)]
            self.handle(events.MessageReceived(number, self.connections[number].outbox.popleft()))

    def broker_requests_move(self, choice: int) -> None:
        for session in self._live(choice):
            broker = BrokerId(f"b{(choice + 1) % 3}")
            session.outbox.append(wire.Move("m", broker, f"ws://{broker}", "handover", 5.0))
            return

    def application_handles(self, choice: int) -> None:
        for _ in range(1 + choice % 3):
            if self.unhandled:
                message = self.unhandled.popleft()
                cursor = Cursor.parse(message.cursor)
                assert cursor is not None
                self.handle(events.ResultHandled(message.subscription, cursor))

    def time_passes(self, choice: int) -> None:
        self.now_s += [0.1, 1.0, 5.0, 40.0][choice % 4]
        self.handle(events.TimePassed())

    def results_flow(self, choice: int) -> None:
        for step in range(3):
            self.publish(choice + step)
            self.broker_sends(choice)
            self.message_arrives(choice)

    def subscriber_reconnects(self, choice: int) -> None:
        """All steps from the loss of a connection to the next login, which are rare by chance."""
        self.connection_fails(choice)
        self.time_passes(2)
        self.coordinator_answers(choice)
        self.connection_opens(choice)
        self.request_arrives(choice)

    def subscriber_moves(self, choice: int) -> None:
        """All steps of a move up to the login at the other broker; the first connection stays open."""
        self.broker_requests_move(choice)
        for _ in range(3):
            self.message_arrives(choice)
        self.connection_opens(choice)
        self.request_arrives(choice)

    # -- the broker ----------------------------------------------------------------------------------------------------

    def _live(self, choice: int) -> list[Session]:
        live = [session for _, session in sorted(self.connections.items()) if session.logged_in]
        return live[choice % len(live) :] if live else []

    def _serve(self, session: Session, message: wire.FromSubscriber, choice: int) -> None:
        match message:
            case wire.Login():
                session.logged_in = True
                for name, text in message.resume.items():
                    cursor = Cursor.parse(text)
                    assert cursor is not None
                    if choice % 4:  # else the broker does not know this subscription
                        session.positions[name] = session.began[name] = cursor
                held = [self._held(session, name) for name in sorted(session.positions)]
                session.outbox.append(
                    wire.LoggedIn(message.id, SubscriberId("u"), BrokerId(session.broker), "x", held, 10.0)
                )
            case wire.Subscribe():
                name = SubscriptionId(str(message.parameters["name"]))
                if choice % 5 == 4:
                    session.outbox.append(wire.Refused(message.id, "not_ready", "no data cluster", 1.0))
                    return
                after = Cursor.parse(message.after) if message.after else Cursor(1, self.offset)
                assert after is not None
                session.positions.setdefault(name, after)
                session.began.setdefault(name, after)
                session.outbox.append(wire.Subscribed(message.id, self._held(session, name), True))
            case wire.Ack():
                for name, text in message.cursors.items():
                    cursor = Cursor.parse(text)
                    assert cursor is not None
                    self.acked[name] = max(self.acked.get(name, cursor), cursor)
                session.outbox.append(wire.Acked(message.id))
            case wire.Logout():
                session.outbox.append(wire.LoggedOut(message.id))
            case _:
                raise AssertionError(message)

    def _held(self, session: Session, name: SubscriptionId) -> wire.Held:
        return wire.Held(name, CHANNEL, {"name": name}, str(session.positions[name]))

    def _next(self, session: Session, name: SubscriptionId, *, look: bool = False) -> wire.Result | wire.Gap | None:
        position = session.positions[name]
        for index, cursor in enumerate(self.log[name]):
            if cursor <= position:
                continue
            message: wire.Result | wire.Gap
            if index < self.retained[name]:
                cursor = self.log[name][self.retained[name] - 1]
                message = wire.Gap(name, str(cursor))
                if cursor <= session.furthest.get(name, position):
                    continue
            else:
                message = wire.Result(name, CHANNEL, str(cursor), msgspec.Raw(b"{}"))
            if not look:
                session.positions[name] = cursor
                session.furthest[name] = max(cursor, session.furthest.get(name, cursor))
            return message
        return None

    # -- the end -------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Deliver all messages, without further faults."""
        for round_number in range(400):
            self.now_s += 0.5
            self.handle(events.TimePassed())
            self.coordinator_answers(1)
            self.connection_opens(0)
            while self.sent:
                self.request_arrives(1)
            for choice in range(3):
                for _ in range(3):
                    self.broker_sends(choice)
                self.message_arrives(choice)
            if round_number % 10 == 9:
                self.broker_sends_progress(0)
            self.application_handles(2)
            idle = all(not session.outbox for session in self.connections.values())
            if idle and self._caught_up() and not self.unhandled and not self.session.subscriptions.requested:
                return
        raise AssertionError(f"did not settle: {self.session.connections} {self.session.subscriptions}")

    def _caught_up(self) -> bool:
        served = [session for session in self.connections.values() if session.logged_in]
        return bool(served) and all(
            name in served[-1].positions and self._next(served[-1], name, look=True) is None
            for name in self.session.subscriptions.progress
        )

    def check_once_and_in_order(self, began: dict[SubscriptionId, Cursor]) -> None:
        """Each result was delivered once and in order, and every missing one is covered by a gap."""
        for name, start in began.items():
            position = start
            for message in self.delivered:
                if message.subscription != name or isinstance(message, wire.Recovered):
                    continue
                cursor = Cursor.parse(message.cursor)
                assert cursor is not None and cursor > position, f"{name}: {cursor} after {position}"
                if isinstance(message, wire.Result):
                    missing = [other for other in self.log[name] if position < other < cursor]
                    assert not missing, f"{name}: skipped {missing} silently"
                position = cursor
            late = [other for other in self.log[name] if other > position]
            assert not late, f"{name}: never delivered {late}"


def subscribe_requested(ticket: int) -> events.SubscribeRequested:
    return events.SubscribeRequested(ticket, CHANNEL, {"name": NAMES[ticket % len(NAMES)]})


def served_world(*tickets: int) -> World:
    """A subscriber that is logged in and holds a subscription per ticket."""
    world = World(SubscriberSession(lambda: 0.5))
    world.handle(events.Started())
    for ticket in tickets:
        world.handle(subscribe_requested(ticket))
    world.coordinator_answers(0)
    world.connection_opens(0)
    for _ in range(3 + len(tickets)):
        world.request_arrives(1)
        world.message_arrives(0)
    assert sorted(world.subscribed) == sorted(tickets)
    return world
