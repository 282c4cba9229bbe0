"""The effects of a broker. The driver carries them out in order and reports the outcome as events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tocsin.broker.hosted import BackendKey, CallId, SessionId
from tocsin.broker.result_batch import Batch
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriberId, SubscriptionId
from tocsin.wire import session as wire
from tocsin.wire.link import FromBroker, Webhook


class Effect:
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SendResults(Effect):
    """Send the same bytes to each of these sessions. Sessions with `Encoding.PLAIN` encode the batch themselves."""

    sessions: tuple[SessionId, ...]
    batch: Batch
    data: bytes


@dataclass(frozen=True, slots=True)
class SendToSessions(Effect):
    sessions: tuple[SessionId, ...]
    message: wire.ToSubscriber
    data: bytes


@dataclass(frozen=True, slots=True)
class AnswerCall(Effect):
    call: CallId
    message: wire.ToSubscriber


@dataclass(frozen=True, slots=True)
class AwaitDrain(Effect):
    """Report `SessionDrained` as soon as the connection has room; at once if it has room now."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class CloseSession(Effect):
    session: SessionId
    reason: str
    """A key of `wire.session.CLOSE_CODES`."""


@dataclass(frozen=True, slots=True)
class CallWebhook(Effect):
    """Log in for this subscriber with a session that calls its webhook."""

    subscriber: SubscriberId
    webhook: Webhook


@dataclass(frozen=True, slots=True)
class RequestBackend(Effect):
    """Ask the data cluster to hold this subscription; retry until it answers."""

    key: BackendKey
    channel: ChannelName
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReleaseBackend(Effect):
    """Release the subscription after every earlier `RequestBackend`. Skip it if the broker holds it again by then."""

    channel: ChannelName
    subscription: SubscriptionId


@dataclass(frozen=True, slots=True)
class Fetch(Effect):
    """Fetch results from these positions on. Do not retry: report `FetchFailed`."""

    fetch: int
    channel: ChannelName
    positions: dict[SubscriptionId, Cursor]


@dataclass(frozen=True, slots=True)
class CancelFetch(Effect):
    """Stop this fetch: no session needs the rest, and the broker expects no more events of it."""

    fetch: int


@dataclass(frozen=True, slots=True)
class SendToCoordinator(Effect):
    message: FromBroker
