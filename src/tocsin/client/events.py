"""Events (past tense) and effects (imperative) of a subscriber's session. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, ChannelName, DatasetName, SubscriptionId
from tocsin.wire.session import FromSubscriber, Gap, Held, Recovered, Result, ToSubscriber


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker to connect to, and the token for logging in there."""

    broker: BrokerId
    address: str
    token: str


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    pass


@dataclass(frozen=True, slots=True)
class BrokerLocated:
    """The coordinator assigned a broker."""

    address: BrokerAddress


@dataclass(frozen=True, slots=True)
class LocateFailed:
    """The coordinator did not assign a broker."""

    code: str
    message: str
    retry: bool
    """Whether another request may succeed: False for a token that is not valid."""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    connection: int


@dataclass(frozen=True, slots=True)
class MessageReceived:
    connection: int
    message: ToSubscriber


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    connection: int
    reason: str
    """A key of `wire.session.CLOSE_CODES` if the broker sent one, else the network's error."""


@dataclass(frozen=True, slots=True)
class SubscribeRequested:
    """The application requests a subscription. `ReportSubscribed` or `ReportRefused` carries the ticket back."""

    ticket: int
    channel: ChannelName
    parameters: dict[str, Any]
    after: str | None = None
    """A cursor to start at; None starts with the next result."""


@dataclass(frozen=True, slots=True)
class UnsubscribeRequested:
    """The application releases a subscription. `ReportUnsubscribed` carries the ticket back."""

    ticket: int
    subscription: SubscriptionId


@dataclass(frozen=True, slots=True)
class UpdateRequested:
    """The application updates its own record. `ReportUpdated` or `ReportRefused` carries the ticket back."""

    ticket: int
    dataset: DatasetName
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResultHandled:
    """The application has handled every result of a subscription up to `cursor`."""

    subscription: SubscriptionId
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time that `SubscriberSession.due_s` returned has been reached."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The application closes the session."""


ApplicationEvent = Started | SubscribeRequested | UnsubscribeRequested | UpdateRequested | ResultHandled | Stopped
NetworkEvent = BrokerLocated | LocateFailed | ConnectionOpened | MessageReceived | ConnectionLost
Event = ApplicationEvent | NetworkEvent | TimePassed


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LocateBroker:
    """Ask the coordinator for a broker; report `BrokerLocated` or `LocateFailed`."""

    avoid: BrokerId | None


@dataclass(frozen=True, slots=True)
class OpenConnection:
    connection: int
    address: BrokerAddress


@dataclass(frozen=True, slots=True)
class SendRequest:
    connection: int
    message: FromSubscriber


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection after all queued messages are sent. Report nothing more from it, not even its end."""

    connection: int


@dataclass(frozen=True, slots=True)
class DeliverMessage:
    """Queue a message for the application."""

    message: Result | Gap | Recovered


@dataclass(frozen=True, slots=True)
class ReportSubscribed:
    ticket: int
    held: Held


@dataclass(frozen=True, slots=True)
class ReportUnsubscribed:
    ticket: int


@dataclass(frozen=True, slots=True)
class ReportUpdated:
    ticket: int


@dataclass(frozen=True, slots=True)
class ReportRefused:
    """A subscribe or update request was refused for good."""

    ticket: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class EndSubscription:
    """Report that a subscription has ended without the application's request: its channel was dropped."""

    subscription: SubscriptionId
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class FailSession:
    """Report that the session has failed and that retrying is useless."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class FinishSession:
    """Report that the session has stopped as requested; every connection is closed."""


NetworkEffect = LocateBroker | OpenConnection | SendRequest | CloseConnection
RequestReport = ReportSubscribed | ReportUnsubscribed | ReportUpdated | ReportRefused
Report = RequestReport | EndSubscription | FailSession | FinishSession
Effect = NetworkEffect | DeliverMessage | Report
