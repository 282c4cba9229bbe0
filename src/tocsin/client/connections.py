"""The connections of a session, and the search for a broker: when to connect, and which broker to avoid. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tocsin.client import events
from tocsin.client.subscriptions import Purpose
from tocsin.client.timing import Jitter, Patience
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, SubscriptionId
from tocsin.wire import session as wire
from tocsin.wire.errors import Code

_FINAL = {"replaced", Code.BAD_REQUEST, Code.FORBIDDEN, Code.TOO_LARGE}
"""Close reasons after which reconnecting is useless. `moved` is not one: the subscriber still needs a session."""


@dataclass(slots=True)
class ConnectionState:
    number: int
    address: events.BrokerAddress
    deadline_s: float
    """When the login must have succeeded; for a retiring connection, the latest time to close it."""
    login_sent: bool = False
    logged_in_s: float | None = None
    """When the login succeeded; None before."""
    heard_s: float = 0.0
    """When the last message arrived."""
    progress_s: float = 0.0
    """The broker promised to send a message at least this often."""
    holds: set[SubscriptionId] = field(default_factory=set)
    """The subscriptions that this broker holds for the session."""
    reached: dict[SubscriptionId, Cursor] = field(default_factory=dict)
    """The position of this broker: first the cursor that the session sent, then the last one from the broker."""
    requests: dict[int, Purpose] = field(default_factory=dict)
    """Requests without an answer, by id."""
    closing: wire.Closing | None = None
    """The broker's announcement that it closes the connection."""

    def log_in(self, message: wire.LoggedIn, now_s: float) -> None:
        self.logged_in_s, self.progress_s = now_s, message.progress_s
        self.holds = {held.subscription for held in message.subscriptions}
        for identity, cursor in _positions(message.subscriptions).items():
            self.reached[identity] = max(cursor, self.reached.get(identity, cursor))

    def stalled_s(self, timing: Patience) -> float:
        """When the connection counts as stalled, unless a message arrives before."""
        return self.heard_s + timing.stall_after_s(self.progress_s)

    def note_answer(self, answer: wire.Answer) -> None:
        """Record the subscriptions that the broker holds according to this answer."""
        match answer:
            case wire.Subscribed(held=held):
                self.holds.add(held.subscription)
                self.reached |= _positions([held])
            case wire.Unsubscribed(subscription=identity):
                self.holds.discard(identity)
            case wire.Subscriptions(subscriptions=listed):
                self.holds = {held.subscription for held in listed}
                self.reached |= _positions(listed)


def _positions(listed: Iterable[wire.Held]) -> dict[SubscriptionId, Cursor]:
    return {held.subscription: cursor for held in listed if (cursor := Cursor.parse(held.cursor)) is not None}


@dataclass(slots=True)
class ConnectionSet:
    """At most one connection in each role."""

    by_number: dict[int, ConnectionState] = field(default_factory=dict)
    serving: ConnectionState | None = None
    """The connection that is logged in; requests are sent over it."""
    opening: ConnectionState | None = None
    """The connection that is not logged in yet."""
    retiring: ConnectionState | None = None
    """The connection to the broker that a move leaves. That broker still delivers."""

    def open(self, number: int, address: events.BrokerAddress, deadline_s: float) -> None:
        self.by_number[number] = self.opening = ConnectionState(number, address, deadline_s)

    def drop(self, connection: ConnectionState | None) -> list[events.Effect]:
        """Forget a connection and close it. Does nothing for None."""
        if connection is None:
            return []
        self.by_number.pop(connection.number, None)
        self.serving = None if self.serving is connection else self.serving
        self.opening = None if self.opening is connection else self.opening
        self.retiring = None if self.retiring is connection else self.retiring
        return [events.CloseConnection(connection.number)]

    def drop_all(self) -> list[events.Effect]:
        return [effect for connection in list(self.by_number.values()) for effect in self.drop(connection)]

    def deadlines(self, timing: Patience, *, paused: bool) -> list[float]:
        """Times at which a login is late, a connection is stalled or a retiring one must be closed.

        While the session is `paused`, no connection counts as stalled.
        """
        times = [] if self.retiring is None else [self.retiring.deadline_s]
        for connection in self.by_number.values():
            if connection.logged_in_s is None:
                times.append(connection.deadline_s)
            elif not paused:
                times.append(connection.stalled_s(timing) + 0.001)
        return times

    def serve_opened(self, retire_by_s: float) -> list[events.Effect]:
        """Make the opening connection, now logged in, serve. The former one retires by `retire_by_s` at the latest.

        A connection that still retires from an earlier move is closed.
        """
        former, self.serving, self.opening = self.serving, self.opening, None
        if former is None:
            return []
        effects = self.drop(self.retiring)
        self.retiring = former
        former.deadline_s = retire_by_s
        return effects

    def serve_retiring(self) -> None:
        """Return to the connection that a move was leaving."""
        self.serving, self.retiring = self.retiring, None


@dataclass(slots=True)
class BrokerSearch:
    """Decides when to request a broker from the coordinator, how long to back off, and when to stop trying."""

    timing: Patience
    jitter: Jitter
    pending: bool = False
    """True if a request to the coordinator has no answer yet."""
    retry_s: float | None = None
    """When to request a broker from the coordinator again; None if no request is planned."""
    avoid: BrokerId | None = None
    """The broker that the coordinator should not assign."""
    _last: events.BrokerAddress | None = None
    """The last known broker, for when the coordinator is down."""
    _token: str = ""
    """The coordinator's latest token. Every broker accepts it, and it outlasts the hand-over tokens of moves."""
    _failures: int = 0
    _denials: int = 0
    _late_logins: dict[BrokerId, float] = field(default_factory=dict)
    """Brokers that may still receive a login that the session no longer waits for, and until when."""

    def located(self, address: events.BrokerAddress) -> None:
        self.pending = False
        self._last, self._token = address, address.token

    def logged_in(self, address: events.BrokerAddress) -> None:
        self.avoid, self.retry_s, self._denials = None, None, 0
        self._last = events.BrokerAddress(address.broker, address.address, self._token or address.token)

    def fall_back(self) -> events.BrokerAddress | None:
        """The last known broker, which needs no coordinator. None if there is none or it was tried just before."""
        if self._last is None or self._last.broker == self.avoid:
            self.avoid = None
            return None
        self.avoid = self._last.broker
        return self._last

    def back_off(self, now_s: float, at_least_s: float | None = None) -> None:
        self._failures += 1
        self.retry_s = now_s + max(at_least_s or 0.0, self.timing.delay_s(self._failures, self.jitter))

    def note_unanswered_login(self, connection: ConnectionState, now_s: float) -> None:
        if connection.login_sent and connection.logged_in_s is None:
            self._late_logins[connection.address.broker] = now_s + self.timing.open_s

    def failure(self, connection: ConnectionState, reason: str, now_s: float) -> str | None:
        """The error code with which the session fails after losing its only connection; None if it should reconnect."""
        if reason in (Code.UNAUTHENTICATED, "expired"):
            self._denials += 1
        if self._denials >= self.timing.denials:
            return "unauthenticated"
        if reason == "replaced" and self._late_logins.pop(connection.address.broker, now_s) > now_s:
            return None  # this session replaced itself: an abandoned login arrived late
        return reason if reason in _FINAL else None

    def reconnect_after(self, connection: ConnectionState, reason: str, now_s: float, at_least_s: float | None) -> None:
        """Back off.

        Avoid a broker that did not log the session in or fell silent. A lost broker may be back already.
        """
        if connection.logged_in_s is not None and now_s - connection.logged_in_s >= self.timing.steady_s:
            self._failures = 0
        failed = connection.logged_in_s is None or reason == "stalled"
        self.avoid = connection.address.broker if failed else None
        self.back_off(now_s, at_least_s)
