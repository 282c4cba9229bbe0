"""A subscriber in virtual time: logs in, subscribes, follows when it is handed over, comes back when it is cut off.

It does what the SDK does, as far as the network can tell, and keeps a list of everything it received. Repeats are
removed by cursor, as every client must; what comes out of order is counted, never repaired.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tocsin.broker.effects import SendResults, SendToSessions
from tocsin.broker.hosted import SessionId
from tocsin.broker.result_batch import Batch
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.model.subscription import subscription_id
from tocsin.sim.kernel import Kernel
from tocsin.wire import session as wire

LOGIN_S = 8.0
"""Without an answer for this long a connection is given up."""


class Net(Protocol):
    """What a subscriber needs of the network."""

    def request_broker(self, person: Person, avoid: BrokerId | None) -> None:
        """Answered with `person.placed`, unless the coordinator is away."""

    def connect(
        self, person: Person, broker: BrokerId, resume: Mapping[SubscriptionId, str], migration: str | None
    ) -> SessionId | None: ...

    def send(self, session: SessionId, request: wire.FromSubscriber) -> None: ...

    def hang_up(self, session: SessionId) -> None: ...


@dataclass(slots=True)
class Received:
    """What came of one subscription."""

    start: Cursor
    last: Cursor
    cursors: list[Cursor] = field(default_factory=list)
    repeats: int = 0
    out_of_order: int = 0
    """Came after something later, for the first time."""
    gaps: int = 0


class Person:
    def __init__(
        self, kernel: Kernel, net: Net, identity: SubscriberId, wants: list[tuple[ChannelName, dict[str, Any]]]
    ) -> None:
        self.id = identity
        self.wants = wants
        self.received: dict[SubscriptionId, Received] = {}
        self.moves = 0
        self.reconnects = 0
        self._kernel = kernel
        self._net = net
        self._session: SessionId | None = None
        self._arriving: SessionId | None = None
        """A connection whose login has not been answered."""
        self._broker_of: dict[SessionId, BrokerId] = {}
        self._waiting: dict[int, tuple[ChannelName, dict[str, Any]]] = {}
        self._held: set[tuple[ChannelName, str]] = set()
        self._requests = 0
        self._heard_s = 0.0
        self._progress_s = 15.0
        kernel.every(5.0, self._look_after)

    @property
    def session(self) -> SessionId | None:
        return self._session

    @property
    def is_settled(self) -> bool:
        return self._session is not None and len(self._held) == len(self.wants)

    def join(self) -> None:
        self._net.request_broker(self, None)

    def placed(self, broker: BrokerId) -> None:
        if self._session is None and self._arriving is None:
            self._connect(broker, None)

    def _connect(self, broker: BrokerId, migration: str | None) -> None:
        resume = {identity: str(one.last) for identity, one in self.received.items()}
        session = self._net.connect(self, broker, resume, migration)
        if session is None:
            self._kernel.call_after(1.0, self._net.request_broker, self, broker)
            return
        self._arriving = session
        self._broker_of[session] = broker
        self._kernel.call_after(LOGIN_S, self._give_up, session)

    def _give_up(self, session: SessionId) -> None:
        if self._arriving == session:
            self._net.hang_up(session)
            self.lost(session)

    def lost(self, session: SessionId) -> None:
        """The connection is gone."""
        broker = self._broker_of.pop(session, None)
        if session == self._arriving:
            self._arriving = None
        elif session == self._session:
            self._session = None
        if broker is not None and self._session is None and self._arriving is None:
            self.reconnects += 1
            delay_s = float(self._kernel.stream("people").uniform(0.2, 1.0))
            self._kernel.call_after(delay_s, self._net.request_broker, self, broker)

    def _look_after(self) -> None:
        """Silence for longer than progress would allow is a stall: go elsewhere. Else acknowledge, now and then."""
        session = self._session
        if session is None:
            if self._arriving is None and self._broker_of == {} and self.received:
                self._net.request_broker(self, None)  # asked while the coordinator was away
            return
        if self._kernel.now_s - self._heard_s > 2 * self._progress_s:
            self._net.hang_up(session)
            self.lost(session)
        elif self.received:
            cursors = {identity: str(one.last) for identity, one in self.received.items()}
            self._net.send(session, wire.Ack(self._number(), cursors))

    def _number(self) -> int:
        self._requests += 1
        return self._requests

    # -- what comes over a connection ----------------------------------------------------------------------------------

    def told(self, session: SessionId, effect: SendResults | SendToSessions) -> None:
        if session not in (self._session, self._arriving):
            return
        self._heard_s = self._kernel.now_s
        if isinstance(effect, SendResults):
            self._take(effect.batch)
        else:
            self._message(session, effect.message)

    def _take(self, batch: Batch) -> None:
        received = self.received.get(batch.subscription)
        if received is None:
            return
        for cursor in batch.cursors():
            if cursor <= received.last:
                at = bisect_left(received.cursors, cursor)
                if received.cursors[at : at + 1] == [cursor]:
                    received.repeats += 1
                else:
                    received.out_of_order += 1
            else:
                received.cursors.append(cursor)
                received.last = cursor

    def _message(self, session: SessionId, message: wire.ToSubscriber) -> None:
        match message:
            case wire.LoggedIn():
                self._logged_in(session, message)
            case wire.Subscribed(held=held):
                channel, parameters = self._waiting.pop(message.id)
                self._held.add((channel, str(parameters)))
                start = Cursor.parse(held.cursor)
                assert start is not None
                self.received.setdefault(held.subscription, Received(start, start))
            case wire.Refused():
                if message.id in self._waiting:
                    self._kernel.call_after(2.0, self._subscribe, *self._waiting.pop(message.id))
            case wire.Gap(subscription=identity, cursor=text):
                cursor = Cursor.parse(text)
                assert cursor is not None
                self.received[identity].gaps += 1
                self.received[identity].last = max(self.received[identity].last, cursor)
            case wire.Move():
                if self._arriving is None:
                    self._connect(message.broker, message.migration)

    def _logged_in(self, session: SessionId, message: wire.LoggedIn) -> None:
        former, self._session, self._arriving = self._session, session, None
        self._progress_s = message.progress_s
        if former is not None:
            self.moves += 1
            self._broker_of.pop(former, None)
            self._net.hang_up(former)
        listed = {held.subscription for held in message.subscriptions}
        self._waiting.clear()
        for channel, parameters in self.wants:
            known = (channel, str(parameters)) in self._held
            if not known or not self._is_listed(channel, parameters, listed):
                self._subscribe(channel, parameters)

    def _is_listed(self, channel: ChannelName, parameters: dict[str, Any], listed: set[SubscriptionId]) -> bool:
        return self._identity(channel, parameters) in listed

    def _identity(self, channel: ChannelName, parameters: dict[str, Any]) -> SubscriptionId:
        return subscription_id(channel, tuple(parameters.values()))

    def _subscribe(self, channel: ChannelName, parameters: dict[str, Any]) -> None:
        if self._session is None:
            return
        received = self.received.get(self._identity(channel, parameters))
        number = self._number()
        self._waiting[number] = (channel, parameters)
        after = None if received is None else str(received.last)
        self._net.send(self._session, wire.Subscribe(number, channel, parameters, after))
