"""What a subscriber and its broker say to each other [BAD §3.1: login, subscribe, unsubscribe, logout].

The same messages over a WebSocket (JSON text frames, or MessagePack binary frames in the subprotocol
`tocsin.msgpack`), as the bodies of the broker's REST calls, and as the `data` of CloudEvents in the subprotocol
`cloudevents.json`. Requests carry an `id` of the client's choice and get exactly one answer with it. Everything else
is pushed.

A frontend subscription needs no id of its own: a subscriber holds a backend subscription or it does not, so
(subscriber, backend subscription) names it, and one encoded result serves everybody who holds it.

Cursors are text, `epoch-offset`, and name the *next* position: whoever has handled a result remembers its cursor.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId

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
    """Needed here when the handshake had none: browsers cannot set headers, and addresses end up in logs."""
    resume: dict[SubscriptionId, CursorText] = {}
    """Where the subscriber stands, by its own memory. It wins over what the broker remembers of acknowledgements."""


class Logout(Request, tag="logout"):
    """Ends the session. Subscriptions stay, and results wait for as long as the channel retains them."""


class Subscribe(Request, tag="subscribe"):
    channel: ChannelName
    parameters: dict[str, Any] = {}
    after: CursorText | None = None
    """Start here rather than at the present: for a subscriber that comes back to a broker that does not know it."""


class Unsubscribe(Request, tag="unsubscribe"):
    subscription: SubscriptionId


class List(Request, tag="list"):
    pass


class Ack(Request, tag="ack"):
    """Handled up to here: what a session of this subscriber that brings no memory of its own resumes from."""

    cursors: dict[SubscriptionId, CursorText]


class Ping(Request, tag="ping"):
    pass


FromSubscriber = Login | Logout | Subscribe | Unsubscribe | List | Ack | Ping


# -- to the subscriber: answers ----------------------------------------------------------------------------------------


class Answer(msgspec.Struct, tag_field="type"):
    id: int


class Held(msgspec.Struct):
    """One frontend subscription and where it stands."""

    subscription: SubscriptionId
    channel: ChannelName
    parameters: dict[str, Any]
    cursor: CursorText
    """Results from here on come over this session."""


class LoggedIn(Answer, tag="logged_in"):
    subscriber: SubscriberId
    broker: BrokerId
    session: str
    subscriptions: list[Held]
    """All it holds here. One that the client knows and this list does not is to be subscribed again, with `after`."""
    progress_s: float
    """A healthy connection is never silent for longer than this: `progress` comes when nothing else does."""


class LoggedOut(Answer, tag="logged_out"):
    pass


class Subscribed(Answer, tag="subscribed"):
    held: Held
    stored: bool
    """True once the coordinator has it on disk. False while that is out of reach: the broker hands it in later."""


class Unsubscribed(Answer, tag="unsubscribed"):
    subscription: SubscriptionId


class Subscriptions(Answer, tag="subscriptions"):
    subscriptions: list[Held]


class Acked(Answer, tag="acked"):
    """Taken note of; written down with the broker's next report, within seconds."""


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
    """One result. In order of cursors per subscription; a repeat (after a reconnect) has a cursor already seen."""

    subscription: SubscriptionId
    channel: ChannelName
    cursor: CursorText
    result: msgspec.Raw
    """The row as a JSON object (as a MessagePack map in that subprotocol)."""


class Recovered(Push, tag="recovered"):
    """A subscription that was behind has caught up: all it missed came before this, or a `gap` said what not."""

    subscription: SubscriptionId
    cursor: CursorText
    recovered: bool
    """False if there was a gap: never a partial recovery presented as a whole one."""


class Gap(Push, tag="gap"):
    """Results before `cursor` have passed their retention, or belong to an earlier life of the channel."""

    subscription: SubscriptionId
    cursor: CursorText


class Progress(Push, tag="progress"):
    """Alive, and nothing withheld: every result before these positions, of this session's subscriptions, was sent."""

    channels: dict[ChannelName, CursorText]
    at_s: float


class Move(Push, tag="move"):
    """Another broker is ready for this subscriber: connect there with this token [BAD §3.3].

    Make-before-break: this session goes on until the other one has begun.
    """

    migration: str
    broker: BrokerId
    address: str
    token: str
    deadline_s: float
    """Seconds from now within which the other broker waits."""


class Closing(Push, tag="closing"):
    """The last message before the connection is closed."""

    code: str
    message: str
    reconnect: bool
    """Whether to come back (resuming from the cursor) or to give up and ask a person."""


ToSubscriber = (
    LoggedIn | LoggedOut | Subscribed | Unsubscribed | Subscriptions | Acked | Pong | Refused
    | Result | Recovered | Gap | Progress | Move | Closing
)  # fmt: skip


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
    "bad_request": (4400, False),
    "too_large": (1009, False),
    "login_timeout": (4408, True),
}
"""Reason → (WebSocket close code, whether the client should come back). `moved`: the new session is already there."""
