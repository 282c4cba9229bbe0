"""A subscriber in virtual time: the SDK's own session, and an application that records everything it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tocsin.broker.events import LoginRequested, RequestReceived, SessionLost
from tocsin.broker.hosted import Requester, SessionId
from tocsin.broker.message_encoding import Encoding
from tocsin.client import events
from tocsin.client.session import SubscriberSession
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, ChannelName, DatasetName, SubscriberId, SubscriptionId
from tocsin.model.subscription import subscription_id
from tocsin.sim.network.broker import SimulatedBroker
from tocsin.sim.network.transport import ACCESS_S, HAND_OVER, Pipe, Transport
from tocsin.wire import session as wire

Locate = Callable[["SimulatedSubscriber", BrokerId | None], object]
"""Asks the coordinator for a broker; answered with `BrokerLocated` or `LocateFailed`."""
Open = Callable[["SimulatedConnection", BrokerId], object]


class SimulatedConnection:
    """A subscriber's connection to a broker. Both sides close it with a last item, after everything they sent."""

    def __init__(self, transport: Transport, subscriber: SimulatedSubscriber, number: int, token: str) -> None:
        self.subscriber = subscriber
        self.number = number
        self.broker: SimulatedBroker | None = None
        """The broker of this connection; None until it has accepted the connection."""
        self.session: SessionId
        self._token = token
        self._left = False
        self._broken = False
        self._closing = False
        self.up: Pipe[wire.FromSubscriber | None] = Pipe(transport, ACCESS_S, self._reach_broker)
        self.down: Pipe[wire.ToSubscriber | str] = Pipe(transport, ACCESS_S, self._reach_subscriber)

    def accept(self, broker: SimulatedBroker | None, session: SessionId) -> None:
        """Open the connection at `broker`; None or a dead broker refuses it."""
        if self._left:
            return
        if broker is None or not broker.running:
            self._broken = True
            self.subscriber.handle(events.ConnectionLost(self.number, "refused"))
            return
        self.broker, self.session = broker, session
        broker.connections[session] = self
        self.subscriber.handle(events.ConnectionOpened(self.number))

    def leave(self) -> None:
        """The subscriber closes the connection and reads nothing more from it."""
        self._left = True
        self.up.send(None)

    def end(self, reason: str) -> None:
        """The broker closes the connection and accepts no more requests on it."""
        self._closing = True
        self.down.send(reason)

    def break_off(self, reason: str = "reset") -> None:
        """Lose everything in flight; both sides notice at once."""
        if self._broken:
            return
        self._broken = True
        self.up.close()
        self.down.close()
        if self.broker is not None:
            self.broker.connections.pop(self.session, None)
            self.broker.handle(SessionLost(self.session, reason))
        if not self._left:
            self.subscriber.handle(events.ConnectionLost(self.number, reason))

    def _reach_broker(self, message: wire.FromSubscriber | None) -> None:
        if message is None:
            self.break_off("left")
        elif self.broker is not None and not self._closing:
            self.broker.handle(self._event(message))

    def _event(self, message: wire.FromSubscriber) -> LoginRequested | RequestReceived:
        asker, subscriber = Requester(session=self.session), self.subscriber.id
        if not isinstance(message, wire.Login):
            return RequestReceived(asker, subscriber, message)
        migration = self._token.removeprefix(HAND_OVER) if self._token.startswith(HAND_OVER) else None
        return LoginRequested(
            asker, subscriber, message.id, message.resume, encoding=Encoding.PLAIN, migration=migration
        )

    def _reach_subscriber(self, message: wire.ToSubscriber | str) -> None:
        if isinstance(message, str):
            self.break_off(message)
        elif not self._left:
            self.subscriber.handle(events.MessageReceived(self.number, message))


@dataclass(slots=True)
class ReceivedResults:
    """The results that the application received from one subscription."""

    start: Cursor
    results: list[tuple[int, bytes]] = field(default_factory=list)
    """The position after each result, and its content."""
    repeats: int = 0
    """Results that the session removed because it had delivered them before."""
    out_of_order: int = 0
    """Results that the session removed although it had not delivered them."""
    gaps: int = 0


class SimulatedSubscriber:
    def __init__(self, identity: SubscriberId, transport: Transport, locate: Locate, open_at: Open) -> None:
        self.id = identity
        self.session = SubscriberSession(transport.kernel.stream(f"jitter-{identity}").random)
        self.received: dict[SubscriptionId, ReceivedResults] = {}
        """One entry per subscription that this subscriber holds."""
        self.pending: dict[int, SubscriptionId] = {}
        """Requests without an answer: ticket → subscription."""
        self.connections: dict[int, SimulatedConnection] = {}
        self.unexpected = 0
        """Deliveries for a subscription that this subscriber does not hold."""
        self.unstored = 0
        """Updates that the data cluster has not confirmed yet."""
        self.moves = 0
        """Hand-overs that this subscriber followed."""
        self.searches = 0
        """Requests to the coordinator for a broker; the first one starts the session."""
        self._transport = transport
        self._locate, self._open_at = locate, open_at
        self._tickets = count(1)
        self._unhandled: Pipe[tuple[SubscriptionId, Cursor]] = Pipe(transport, 0.0, self._finish_result)

    @property
    def is_settled(self) -> bool:
        return self.session.serving is not None and not self.pending

    def start(self, subscriptions: Sequence[tuple[ChannelName, dict[str, Any]]]) -> None:
        self.handle(events.Started())
        for channel, parameters in subscriptions:
            self.subscribe(channel, parameters)

    def subscribe(self, channel: ChannelName, parameters: dict[str, Any]) -> None:
        """Do nothing if the subscription is held or a request for it is pending."""
        identity = subscription_id(channel, tuple(parameters.values()))
        if identity not in self.received and identity not in self.pending.values():
            ticket = next(self._tickets)
            self.pending[ticket] = identity
            self.handle(events.SubscribeRequested(ticket, channel, parameters))

    def unsubscribe(self, identity: SubscriptionId) -> None:
        """Do nothing if the subscription is not held or a request for it is pending."""
        if identity in self.received and identity not in self.pending.values():
            ticket = next(self._tickets)
            self.pending[ticket] = identity
            self.handle(events.UnsubscribeRequested(ticket, identity))

    def update(self, dataset: DatasetName, record: dict[str, Any]) -> None:
        """Update the subscriber's own record. `unstored` counts the updates without an answer."""
        self.unstored += 1
        self.handle(events.UpdateRequested(next(self._tickets), dataset, record))

    def tick(self) -> None:
        if self.session.due_s() <= self._transport.kernel.now_s:
            self.handle(events.TimePassed())

    def handle(self, event: events.Event) -> None:
        before = self.session.serving
        effects = self.session.handle(event, self._transport.kernel.now_s)
        if isinstance(event, events.MessageReceived):
            if isinstance(event.message, wire.LoggedIn):
                self.moves += before is not None and self.session.serving is not before
            elif isinstance(event.message, wire.Result) and not effects:
                self._count_removed(event.message)
        for effect in effects:
            self._perform(effect)

    def _count_removed(self, message: wire.Result) -> None:
        received, cursor = self.received.get(message.subscription), Cursor.parse(message.cursor)
        if received is not None and cursor is not None and cursor > received.start:
            if any(offset == cursor.offset for offset, _ in reversed(received.results)):
                received.repeats += 1
            else:
                received.out_of_order += 1

    def _perform(self, effect: events.Effect) -> None:
        match effect:
            case events.LocateBroker(avoid):
                self.searches += 1
                self._locate(self, avoid)
            case events.OpenConnection(number, address):
                self.connections[number] = SimulatedConnection(self._transport, self, number, address.token)
                self._open_at(self.connections[number], address.broker)
            case events.SendRequest(number, message):
                self.connections[number].up.send(message)
            case events.CloseConnection(number):
                self.connections.pop(number).leave()
            case events.DeliverMessage(delivered):
                self._deliver(delivered)
            case events.ReportSubscribed(ticket, held):
                start = Cursor.parse(held.cursor)
                assert start is not None and self.pending.pop(ticket) == held.subscription
                self.received[held.subscription] = ReceivedResults(start)
            case events.ReportUnsubscribed(ticket):
                del self.received[self.pending.pop(ticket)]
            case events.ReportUpdated():
                self.unstored -= 1
            case events.ReportRefused() | events.EndSubscription() | events.FailSession():
                raise AssertionError(f"{self.id}: {effect}")

    def _deliver(self, message: wire.Result | wire.Gap | wire.Recovered) -> None:
        identity = message.subscription
        received, cursor = self.received.get(identity), Cursor.parse(message.cursor)
        assert cursor is not None
        if received is None:
            # A broker may hold a subscription whose grant was lost. The next grant has its start.
            self.unexpected += identity not in self.pending.values()
        elif isinstance(message, wire.Gap):
            received.gaps += 1
        elif isinstance(message, wire.Result):
            received.results.append((cursor.offset, bytes(message.result)))
            self._unhandled.send((identity, cursor))

    def _finish_result(self, handled: tuple[SubscriptionId, Cursor]) -> None:
        """Mark a result as handled, unless the application has unsubscribed meanwhile."""
        if handled[0] in self.received:
            self.handle(events.ResultHandled(*handled))
