"""The protocol between a subscriber and its broker [BAD §3.1: login, subscribe, unsubscribe, logout; §6.1.2: update].

The same messages travel over a WebSocket (JSON text frames, or MessagePack binary frames in the subprotocol
`tocsin.msgpack`), as the bodies of the broker's REST calls, and as the `data` of CloudEvents in the subprotocol
`cloudevents.json`. A request carries an `id` of the client's choice and gets exactly one answer with that id. All
other messages are pushed by the broker.

A frontend subscription has no id of its own: (subscriber, backend subscription) names it. So one encoded result serves
every subscriber that holds the backend subscription.

Cursors are text, `epoch-offset`, and name the *next* position: a subscriber that has processed a result stores the
result's cursor. Class names appear in the broker's AsyncAPI document.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tocsin.model.ids import BrokerId, ChannelName, DatasetName, SubscriberId, SubscriptionId

MSGPACK = "tocsin.msgpack"
JSON = "tocsin.json"
"""The default, also when no subprotocol is named."""
CLOUDEVENTS = "cloudevents.json"

CursorText = str


# -- from the subscriber -----------------------------------------------------------------------------------------------


class Request(msgspec.Struct, tag_field="op", forbid_unknown_fields=True):
    id: int


class Login(Request, tag="login"):
    """Begins a session; the first request on a connection."""

    token: str | None = None
    """Needed if the handshake had none: browsers cannot set headers, and a token in an address would be logged."""
    resume: dict[SubscriptionId, CursorText] = {}
    """The subscriber's positions, as it stored them. They take precedence over the broker's acknowledged positions."""


class Logout(Request, tag="logout"):
    """Ends the session. Subscriptions stay, and results are kept for the channel's retention period."""


class Subscribe(Request, tag="subscribe"):
    channel: ChannelName
    parameters: dict[str, Any] = {}
    after: CursorText | None = None
    """The cursor to start at instead of the present, for a subscriber that the broker does not know any more."""


class Unsubscribe(Request, tag="unsubscribe"):
    subscription: SubscriptionId


class List(Request, tag="list"):
    pass


class Ack(Request, tag="ack"):
    """Results up to these cursors are processed. A later login without `resume` continues from them."""

    cursors: dict[SubscriptionId, CursorText]


class Update(Request, tag="update"):
    """Replaces the subscriber's own record in a KEYED dataset that is declared with OWNED BY.

    An update that still waits at the broker is replaced by a newer one of the same subscriber and dataset. Both get
    the answer to the newer one.
    """

    dataset: DatasetName
    record: dict[str, Any]
    """The columns. The owner column is the subscriber's name; it may be left out, and no other name is accepted."""


class Ping(Request, tag="ping"):
    pass


FromSubscriber = Login | Logout | Subscribe | Unsubscribe | List | Ack | Update | Ping


# -- to the subscriber: answers ----------------------------------------------------------------------------------------


class Answer(msgspec.Struct, tag_field="type"):
    id: int


class Held(msgspec.Struct):
    """One frontend subscription and its position."""

    subscription: SubscriptionId
    channel: ChannelName
    parameters: dict[str, Any]
    cursor: CursorText
    """The broker sends results from here on over this session."""


class LoggedIn(Answer, tag="logged_in"):
    subscriber: SubscriberId
    broker: BrokerId
    session: str
    subscriptions: list[Held]
    """All subscriptions held here. The client subscribes again, with `after`, to those that this list lacks."""
    progress_s: float
    """Longest pause between two messages on a healthy connection: the broker sends `progress` if nothing else."""


class LoggedOut(Answer, tag="logged_out"):
    pass


class Subscribed(Answer, tag="subscribed"):
    held: Held
    stored: bool
    """True if the coordinator has stored the subscription. False if it does not answer: the broker reports later."""


class Unsubscribed(Answer, tag="unsubscribed"):
    subscription: SubscriptionId


class Subscriptions(Answer, tag="subscriptions"):
    subscriptions: list[Held]


class Acked(Answer, tag="acked"):
    """The broker has the acknowledged cursors, and reports them to the coordinator within seconds."""


class Updated(Answer, tag="updated"):
    """The data cluster has the record, or a newer one of this subscriber, on disk."""


class Pong(Answer, tag="pong"):
    at_s: float


class Refused(Answer, tag="refused"):
    code: str
    """A `wire.errors.Code`."""
    message: str
    retry_after_s: float | None = None


# -- to the subscriber: pushed -----------------------------------------------------------------------------------------


class Push(msgspec.Struct, tag_field="type"):
    pass


class Result(Push, tag="result"):
    """One result. Cursors grow per subscription; a repeat (after a reconnect) has an earlier cursor."""

    subscription: SubscriptionId
    channel: ChannelName
    cursor: CursorText
    result: msgspec.Raw
    """The row as a JSON object (as a MessagePack map in that subprotocol)."""


class Recovered(Push, tag="recovered"):
    """A subscription has caught up: all missed results came before this message, except those a `gap` reported."""

    subscription: SubscriptionId
    cursor: CursorText
    recovered: bool
    """False if there was a gap: results are missing."""


class Gap(Push, tag="gap", omit_defaults=True):
    """Results before `cursor` have passed their retention, or belong to an earlier epoch of the channel."""

    subscription: SubscriptionId
    cursor: CursorText
    ended: str | None = None
    """Why the data cluster has ended the subscription: its values make the channel's query fail. No results follow."""


class Progress(Push, tag="progress"):
    """The connection is alive, and every result of this session's subscriptions before these positions was sent."""

    channels: dict[ChannelName, CursorText]
    at_s: float


class Move(Push, tag="move"):
    """Another broker is ready for this subscriber: connect there with this token [BAD §3.3].

    Make-before-break: this session stays open until the session there has begun.
    """

    migration: str
    broker: BrokerId
    address: str
    token: str
    deadline_s: float
    """Seconds from now for which the other broker waits."""


class Closing(Push, tag="closing"):
    """The last message before the connection is closed."""

    code: str
    message: str
    reconnect: bool
    """True: reconnect and resume from the cursors. False: stop; a retry would fail again."""


Answers = LoggedIn | LoggedOut | Subscribed | Unsubscribed | Subscriptions | Acked | Updated | Pong | Refused
Pushes = Result | Recovered | Gap | Progress | Move | Closing
ToSubscriber = Answers | Pushes


# -- close codes -------------------------------------------------------------------------------------------------------

CLOSE_CODES: dict[str, tuple[int, bool]] = {
    "logged_out": (1000, False),
    "stopping": (1012, True),
    "moved": (4000, False),
    "replaced": (4001, False),
    "slow": (4002, True),
    "draining": (4003, True),
    "unauthenticated": (4401, False),
    "expired": (4402, True),
    "revoked": (4403, False),
    "bad_request": (4400, False),
    "too_large": (1009, False),
    "login_timeout": (4408, True),
}
"""Reason → (WebSocket close code, whether the client reconnects). After `moved` the new session is open already."""
