"""What a broker knows: subscribers, their frontend subscriptions, sessions, and backend subscriptions.

Only values and the links between them; who changes what is in the other modules. Kept small on purpose: a broker holds
tens of thousands of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NewType

from tocsin.broker.batches import Batch
from tocsin.broker.encodings import Encoding
from tocsin.broker.load import Rate
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriberId, SubscriptionId
from tocsin.wire.link import Webhook

SessionId = NewType("SessionId", int)
CallId = NewType("CallId", int)
Key = tuple[str, bytes]
"""A channel, and parameters as a subscriber spelled them: two spellings of the same values are two keys of one id."""


@dataclass(slots=True, eq=False)
class Backend:
    """A backend subscription this broker holds at the data cluster [BAD §3.1]."""

    id: SubscriptionId
    channel: ChannelName
    position: Cursor
    """Everything before it has been fetched."""
    kept_from: Cursor
    """The cache holds everything in [kept_from, position)."""
    keys: set[Key] = field(default_factory=set)
    frontends: dict[SubscriberId, Frontend] = field(default_factory=dict)
    live: dict[Encoding, dict[SessionId, None]] = field(default_factory=dict)
    """Sessions that have been sent everything up to `position` and get what comes next as it comes."""
    ahead: dict[SessionId, Frontend] = field(default_factory=dict)
    """Sessions that have seen more than this broker has fetched: they come from one that was faster."""
    batches: list[Batch] = field(default_factory=list)
    fetch: int | None = None
    """The fetch under way that brings its next results."""
    held: bool = True
    """False once the data cluster has said that it does not know it: then it is asked for, and not fetched, so that it
    is in nobody's way."""
    asked_in: int | None = None
    """The life of its channel in which that was asked last; another one may have room for it again."""
    rate: Rate = field(default_factory=Rate)
    """λ_k, in bytes/s."""


@dataclass(slots=True, eq=False)
class Frontend:
    """A subscriber's own subscription: to one backend subscription, at most once."""

    backend: Backend
    parameters: dict[str, Any]
    """As its subscriber spelled them."""
    acked: Cursor
    """Handled up to here, as far as we were told; where a session without a memory of its own begins."""
    sent: Cursor | None = None
    """Where its session stands while that is catching up; None while it is live, or offline."""
    live: bool = False
    tells_recovery: bool = False
    gap: bool = False
    own: bool = False
    """Asked for at this broker, not brought here by the coordinator: it may not know of it yet."""


@dataclass(slots=True, eq=False)
class Subscriber:
    id: SubscriberId
    frontends: dict[SubscriptionId, Frontend] = field(default_factory=dict)
    session: Session | None = None
    webhook: Webhook | None = None


@dataclass(slots=True, eq=False)
class Session:
    """A connection of a subscriber that has logged in."""

    id: SessionId
    subscriber: Subscriber
    encoding: Encoding
    expires_s: float | None = None
    is_webhook: bool = False
    flowing: bool = True
    """False while its connection does not take more: it is not part of any live flow, and catches up later."""
    behind: dict[SubscriptionId, Frontend] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asker:
    """Who gets the answer: an open session or a REST call."""

    session: SessionId | None = None
    call: CallId | None = None
