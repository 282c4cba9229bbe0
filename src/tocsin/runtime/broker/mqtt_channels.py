"""Channels for MQTT clients: one session of the broker for each user, shared by the user's MQTT sessions.

A filter `$channels/NearMe?me=u1` is a frontend subscription of the user. Results go to every MQTT session of the user
that has the filter. The cursor is acknowledged when the client acknowledges the message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec

from tocsin.broker import events as broker_events
from tocsin.broker.hosted import Requester, SessionId
from tocsin.broker.message_encoding import Encoding
from tocsin.broker.mqtt import effects, events
from tocsin.broker.mqtt.reasons import Reason
from tocsin.broker.result_batch import Batch
from tocsin.model.ids import ChannelName, SubscriberId, SubscriptionId
from tocsin.model.permission import ALL_RIGHTS, Rights
from tocsin.runtime.broker.connection_guard import ConnectionGuard, login_event
from tocsin.runtime.http.credentials import Claims
from tocsin.wire import session as wire
from tocsin.wire.errors import Code, TocsinError

_REASONS = {
    str(Code.FORBIDDEN): Reason.NOT_AUTHORIZED,
    str(Code.UNAUTHENTICATED): Reason.NOT_AUTHORIZED,
    str(Code.UNKNOWN_CHANNEL): Reason.TOPIC_FILTER_INVALID,
    str(Code.BAD_PARAMETER): Reason.TOPIC_FILTER_INVALID,
    str(Code.TOO_MANY): Reason.QUOTA_EXCEEDED,
}
_PLACED_S = 30.0
"""How long a user whose session has moved is refused here: the client needs this time to read the reference."""
_LOSSES = {
    "replaced": (Reason.SESSION_TAKEN_OVER, "another session of this user has begun at this broker"),
    "expired": (Reason.NOT_AUTHORIZED, "the token has expired; connect with a new one"),
    "revoked": (Reason.NOT_AUTHORIZED, "the token was revoked"),
    "stopping": (Reason.SERVER_SHUTTING_DOWN, "this broker is stopping"),
    "draining": (Reason.USE_ANOTHER_SERVER, "this broker takes no sessions now"),
}
Report = Callable[[events.Event], None]


class MqttChannels:
    def __init__(self, guard: ConnectionGuard, report: Report, address_of: Callable[[str], str]) -> None:
        """`address_of` gives the MQTT address of another broker; empty if it has none."""
        self._guard = guard
        self._report = report
        self._address_of = address_of
        self._users: dict[str, _UserChannels] = {}

    def subscribe(self, effect: effects.SubscribeChannel, claims: Claims, token: str) -> None:
        user = self._users.get(effect.user)
        try:
            self._guard.checked(claims, token)
        except TocsinError as error:
            reason = _REASONS.get(str(error.code), Reason.NOT_AUTHORIZED)
            self._report(events.ChannelAnswered(effect.session, effect.pattern, reason, error.message))
            return
        if user is None or user.is_closed:
            previous = user
            user = self._users[effect.user] = _UserChannels(
                self._guard, claims, self._report, self._forget, self._address_of
            )
            user.begin({} if previous is None else previous.filters)
        user.subscribe(effect, claims.rights)

    def unsubscribe(self, effect: effects.UnsubscribeChannel) -> None:
        if (user := self._users.get(effect.user)) is not None:
            user.unsubscribe(effect.session, effect.pattern)

    def acknowledge(self, effect: effects.AcknowledgeCursor) -> None:
        if (user := self._users.get(effect.user)) is not None:
            user.acknowledge(SubscriptionId(effect.subscription), effect.cursor)

    def _forget(self, user: str) -> None:
        self._users.pop(user, None)

    def stop(self) -> None:
        self._users.clear()


@dataclass(slots=True)
class _Filter:
    channel: str
    parameters: dict[str, Any]
    rights: Rights
    """Of the token that requested it last."""
    sessions: dict[str, None] = field(default_factory=dict)
    subscription: SubscriptionId | None = None
    request: int = 0
    gap: bool = False


class _UserChannels:
    """The connection of a user's session in the broker's core, as a WebSocket would be.

    Several tokens of the user share it. Each request has the rights of its own token, and the MQTT core sends a client
    only the results of channels that the client's token permits.
    """

    def __init__(
        self,
        guard: ConnectionGuard,
        claims: Claims,
        report: Report,
        forget: Callable[[str], None],
        address_of: Callable[[str], str],
    ) -> None:
        self.claims: Claims | None = claims
        self.is_closed = False
        self.filters: dict[str, _Filter] = {}
        self._user = SubscriberId(claims.subject)
        self._process = guard.process
        self._report = report
        self._forget = forget
        self._address_of = address_of
        self._numbers = count(1)
        self._is_open = False
        self._unsent: list[str] = []
        """Filters that wait for the login."""
        self._session: SessionId = self._process.new_session(self)

    def begin(self, filters: dict[str, _Filter]) -> None:
        """Log in; `filters` are those of an earlier session of the user."""
        for pattern, known in filters.items():
            self.filters[pattern] = _Filter(known.channel, known.parameters, known.rights, known.sessions)
            self._unsent.append(pattern)
        assert self.claims is not None
        login = login_event(self._session, self.claims, next(self._numbers), {}, Encoding.PLAIN)
        self._process.happened(msgspec.structs.replace(login, rights=ALL_RIGHTS))

    def subscribe(self, effect: effects.SubscribeChannel, rights: Rights) -> None:
        known = self.filters.get(effect.pattern)
        if known is None:
            known = self.filters[effect.pattern] = _Filter(effect.channel, _typed(effect.parameters), rights)
        known.rights = rights
        known.sessions[effect.session] = None
        if known.subscription is not None:
            self._report(events.ChannelAnswered(effect.session, effect.pattern, Reason.SUCCESS))
        elif self._is_open and not known.request:
            self._request(effect.pattern, known)
        elif not self._is_open and effect.pattern not in self._unsent:
            self._unsent.append(effect.pattern)

    def _request(self, pattern: str, known: _Filter) -> None:
        known.request = next(self._numbers)
        self._ask(wire.Subscribe(known.request, ChannelName(known.channel), known.parameters), known.rights)

    def _ask(self, request: wire.FromSubscriber, rights: Rights = ALL_RIGHTS) -> None:
        requester = Requester(session=self._session)
        self._process.happened(broker_events.RequestReceived(requester, self._user, request, rights))

    def unsubscribe(self, session: str, pattern: str) -> None:
        known = self.filters.get(pattern)
        if known is None or known.sessions.pop(session, self) is self:
            return
        if not known.sessions:
            del self.filters[pattern]
            if known.subscription is not None and not self.is_closed:
                self._ask(wire.Unsubscribe(next(self._numbers), known.subscription))
        if not self.filters and not self.is_closed:
            self._ask(wire.Logout(next(self._numbers)))

    def acknowledge(self, subscription: SubscriptionId, cursor: str) -> None:
        if self._is_open and not self.is_closed:
            self._ask(wire.Ack(next(self._numbers), {subscription: cursor}))

    # -- called by the process of the broker ---------------------------------------------------------------------------

    def send_results(self, batch: Batch, data: bytes) -> None:
        for pattern, known in list(self.filters.items()):
            if known.subscription != batch.subscription:
                continue
            gap, known.gap = known.gap, False
            for cursor, row in zip(batch.cursors(), batch.rows, strict=True):
                for session in known.sessions:
                    arrived = events.ChannelResultArrived(
                        session, pattern, batch.subscription, str(cursor), bytes(row), gap
                    )
                    self._report(arrived)
                gap = False

    def send_message(self, message: wire.ToSubscriber, data: bytes) -> None:
        match message:
            case wire.LoggedIn():
                self._is_open = True
                unsent, self._unsent = self._unsent, []
                for pattern in unsent:
                    if (known := self.filters.get(pattern)) is not None:
                        self._request(pattern, known)
            case wire.Subscribed(number, held):
                self._answered(number, held.subscription)
            case wire.Refused(number, code, text):
                self._refused(number, code, text)
            case wire.Gap(subscription):
                for known in self.filters.values():
                    known.gap = known.gap or known.subscription == subscription
            case wire.Move(broker=broker):
                self._on_moved(str(broker))
            case _:
                pass

    def _on_moved(self, broker: str) -> None:
        """The coordinator has placed the user on another broker: send its MQTT clients there, for a while."""
        reference = self._address_of(broker)
        if reference:
            self._report(events.PlacementChanged(reference, True, self._user))
            loop = asyncio.get_running_loop()
            loop.call_later(_PLACED_S, self._report, events.PlacementChanged(None, user=self._user))

    def _answered(self, number: int, subscription: SubscriptionId) -> None:
        for pattern, known in self.filters.items():
            if known.request == number:
                known.request, known.subscription = 0, subscription
                for session in known.sessions:
                    self._report(events.ChannelAnswered(session, pattern, Reason.SUCCESS))

    def _refused(self, number: int, code: str, text: str) -> None:
        if not self._is_open:
            refused = list(self.filters)
            self.close("refused")
        else:
            refused = [pattern for pattern, known in self.filters.items() if known.request == number]
        for pattern in refused:
            known = self.filters.pop(pattern)
            for session in known.sessions:
                reason = _REASONS.get(code, Reason.IMPLEMENTATION_ERROR)
                self._report(events.ChannelAnswered(session, pattern, reason, text))

    def await_drain(self) -> None:
        """Results wait in the bounded queues of the MQTT sessions, so this connection always has room."""
        self._process.happened(broker_events.SessionDrained(self._session))

    def close(self, reason: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._process.session_lost(self._session, reason)
            if not self.filters:
                self._forget(self._user)
            elif reason != "refused":
                code, message = _LOSSES.get(reason, (Reason.SERVER_BUSY, f"the session for channels ended: {reason}"))
                self._report(events.ChannelsLost(self._user, code, message))


def _typed(parameters: dict[str, str]) -> dict[str, Any]:
    """Parameters as JSON values where they are numbers or truth values, else as text."""
    return {name: _value(text) for name, text in parameters.items()}


def _value(text: str) -> Any:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return value if isinstance(value, int | float | bool) else text
