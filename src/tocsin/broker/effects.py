"""The effects of a broker. The driver carries them out in order and reports the outcome as events."""

from __future__ import annotations

from typing import Any

import msgspec

from tocsin.broker.hosted import BackendKey, CallId, SessionId
from tocsin.broker.result_batch import Batch
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, DatasetName, SubscriberId, SubscriptionId
from tocsin.wire import session as wire
from tocsin.wire.link import FromBroker, Webhook


class Effect(msgspec.Struct, frozen=True):
    pass


class SendResults(Effect, frozen=True):
    """Send the same bytes to each of these sessions. Sessions with `Encoding.PLAIN` encode the batch themselves."""

    sessions: tuple[SessionId, ...]
    batch: Batch
    data: bytes


class SendToSessions(Effect, frozen=True):
    sessions: tuple[SessionId, ...]
    message: wire.ToSubscriber
    data: bytes


class AnswerCall(Effect, frozen=True):
    call: CallId
    message: wire.ToSubscriber


class AwaitDrain(Effect, frozen=True):
    """Report `SessionDrained` as soon as the connection has room; at once if it has room now."""

    session: SessionId


class CloseSession(Effect, frozen=True):
    session: SessionId
    reason: str
    """A key of `wire.session.CLOSE_CODES`."""


class CallWebhook(Effect, frozen=True):
    """Log in for this subscriber with a session that calls its webhook."""

    subscriber: SubscriberId
    webhook: Webhook


class RequestBackend(Effect, frozen=True):
    """Ask the data cluster to hold this subscription; retry until it answers."""

    key: BackendKey
    channel: ChannelName
    parameters: dict[str, Any]
    user: SubscriberId = SubscriberId("")
    """The subscriber that needs the subscription: bound parameters have its name."""


class ReleaseBackend(Effect, frozen=True):
    """Release the subscription after every earlier `RequestBackend`.

    Skip the release if the broker holds the subscription again by then.
    """

    channel: ChannelName
    subscription: SubscriptionId


class Fetch(Effect, frozen=True):
    """Fetch results from these positions on. Do not retry: report `FetchFailed`."""

    fetch: int
    channel: ChannelName
    positions: dict[SubscriptionId, Cursor]


class CancelFetch(Effect, frozen=True):
    """Stop this fetch: no session needs its other results, and the broker expects no more events of it."""

    fetch: int


class StoreUpdates(Effect, frozen=True):
    """Store one record for each of these subscribers. Do not retry: report `UpdatesStored` or `UpdatesFailed`."""

    batch: int
    dataset: DatasetName
    records: list[tuple[SubscriberId, bytes]]
    """(subscriber, its record as JSON)."""


class SendToCoordinator(Effect, frozen=True):
    message: FromBroker
