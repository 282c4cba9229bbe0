"""What a broker wants done, in this order. The driver does it and reports with events what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tocsin.broker.batches import Batch
from tocsin.broker.entities import CallId, Key, SessionId
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriberId, SubscriptionId
from tocsin.wire import session as wire
from tocsin.wire.link import FromBroker, Webhook


@dataclass(frozen=True, slots=True)
class Deliver:
    """The same bytes to each of these sessions; who encodes for itself (`PLAIN`) takes the batch."""

    sessions: tuple[SessionId, ...]
    batch: Batch
    data: bytes


@dataclass(frozen=True, slots=True)
class SendMessage:
    sessions: tuple[SessionId, ...]
    message: wire.ToSubscriber
    data: bytes


@dataclass(frozen=True, slots=True)
class AnswerCall:
    call: CallId
    message: wire.ToSubscriber


@dataclass(frozen=True, slots=True)
class AskDrained:
    """Report `SessionDrained` as soon as its connection has room: at once, if it has."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class CloseSession:
    session: SessionId
    reason: str
    """A key of `wire.session.CLOSE_CODES`."""


@dataclass(frozen=True, slots=True)
class CallWebhook:
    """Log in for this subscriber with a session that calls its webhook."""

    subscriber: SubscriberId
    webhook: Webhook


@dataclass(frozen=True, slots=True)
class AskBackend:
    """Hold this at the data cluster; until it answers, for as long as that takes."""

    key: Key
    channel: ChannelName
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReleaseBackend:
    """After every `AskBackend` that came before it; not if it is held again by the time its turn comes."""

    channel: ChannelName
    subscription: SubscriptionId


@dataclass(frozen=True, slots=True)
class Fetch:
    """Pull results from these positions on; once, without trying again."""

    fetch: int
    channel: ChannelName
    positions: dict[SubscriptionId, Cursor]


@dataclass(frozen=True, slots=True)
class CancelFetch:
    """Nobody waits for the rest of it; no event is expected any more."""

    fetch: int


@dataclass(frozen=True, slots=True)
class TellCoordinator:
    message: FromBroker


Effect = (
    Deliver | SendMessage | AnswerCall | AskDrained | CloseSession | CallWebhook
    | AskBackend | ReleaseBackend | Fetch | CancelFetch | TellCoordinator
)  # fmt: skip
