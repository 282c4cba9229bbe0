"""The protocol between brokers and the data cluster: HTTP with JSON bodies, and a WebSocket of announcements.

A broker subscribes to sets of parameter values, listens to announcements of executions, and pulls results from its
cursors on. It passes on the records that subscribers send about themselves [BAD §6.1.2]. A broker also compares its
holds with those that the data cluster lists. The coordinator uses the same requests to release the subscriptions of a
broker that it removed. Errors have the form of `wire.errors`. Paths in braces are templates: `str.format` fills them in
a client, and a server registers them as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.wire.session import CursorText

SUBSCRIPTIONS = "/v1/subscriptions"
"""POST `SubscribeRequest` → list of `Granted`. GET with `page_query` → `SubscriptionPage`."""
RELEASES = "/v1/subscriptions/delete"
"""POST `ReleaseRequest` → `ReleaseAnswer`."""
HOLDS = "/v1/brokers/{broker}/holds"
"""GET → `Holds`."""
RESULTS = "/v1/results"
"""POST `ResultsRequest` → one `ResultLine` per line, or an Arrow stream, with the headers below."""
JOINT_RESULTS = "/v1/results/together"
"""POST `JointResultsRequest` → for each channel a `ChannelLine` and its `ResultLine`s. Unknown to earlier releases."""
ANNOUNCEMENTS = "/v1/brokers/{broker}/announcements"
"""WebSocket: one `Announced` message per text frame. GET: the same as server-sent events."""
USERS = "/v1/brokers/{broker}/users"
"""POST `UserProofs` → `ProvenUsers`: the broker proves for which users it acts."""
OWN_RECORDS = "/v1/datasets/{name}/own-records"
"""POST list of `OwnRecord` → `OwnRecordsAnswer`, once the records are on disk."""

CURSOR_HEADER = "Tocsin-Cursor"
"""The cursor to continue from after a complete answer, for every subscription in the request."""
GAP_HEADER = "Tocsin-Gap"
"""The number of subscriptions with a gap. The header is absent if there is none."""
CURSOR_METADATA = "tocsin.cursor"
"""The value of `CURSOR_HEADER`, in the schema metadata of an Arrow stream."""
GAP_METADATA = "tocsin.gap"
"""A JSON object, subscription → cursor after its gap, in the schema metadata of an Arrow stream."""


# -- subscriptions -----------------------------------------------------------------------------------------------------


class SubscribeRequest(msgspec.Struct):
    """Subscribe to one channel with one or more sets of parameter values."""

    channel: str
    parameters: dict[str, Any] | list[dict[str, Any]]
    """Values by name, or a list of such sets."""
    broker: str | None = None
    """The broker that will hold the subscriptions. By default the caller's own broker."""
    users: list[SubscriberId] | None = None
    """The user of each set, from a broker. Channels with a bound parameter need it; the broker proves these users at
    `USERS`. A subscriber's own token stands for its own user."""


class Granted(msgspec.Struct, omit_defaults=True):
    """A backend subscription that the broker holds now. Answers keep the order of the requested sets."""

    id: SubscriptionId
    cursor: CursorText
    """The broker gets results from this cursor on."""
    created: bool
    """False if this or another broker held the subscription already."""
    bound: tuple[str, ...] = ()
    """The channel's parameters that are bound to the session's user: the subscription is for that user alone."""


class ReleaseRequest(msgspec.Struct, omit_defaults=True):
    """Release subscriptions of one channel. Those that the broker does not hold are ignored."""

    channel: str
    subscriptions: list[str]
    broker: str | None = None
    """The broker that holds the subscriptions. By default the caller's own broker."""
    unless_listening: bool = False
    """Refuse while the broker listens to announcements: the caller believes that the broker is gone."""


class ReleaseAnswer(msgspec.Struct):
    released: int
    """The number of subscriptions that the broker held until now."""


class ListedSubscription(msgspec.Struct):
    id: SubscriptionId
    channel: ChannelName
    parameters: msgspec.Raw = msgspec.Raw(b"[]")
    """Values as a JSON array, in the order of the channel's parameters."""
    brokers: list[BrokerId] = []
    """The holders that the caller may know of."""


class SubscriptionPage(msgspec.Struct):
    subscriptions: list[ListedSubscription]
    next: int | None = None
    """`after` of the following page; None at the end."""


class Holds(msgspec.Struct):
    """A summary of the subscriptions that one broker holds. Broker and data cluster compare it."""

    subscriptions: int
    fingerprint: str
    """`model.subscription.fingerprint` of the ids."""


def page_query(broker: str, limit: int, after: int | None = None) -> dict[str, str | int]:
    """Query parameters for one `SubscriptionPage` of what a broker holds; None is the first page."""
    start: dict[str, str | int] = {} if after is None else {"after": after}
    return {"broker": broker, **start, "limit": limit}


# -- users of a broker -------------------------------------------------------------------------------------------------

MOST_PROOFS = 1_000
"""The most tokens in one request, and the most users in one voucher."""


class UserProofs(msgspec.Struct):
    """Tokens that prove for which users a broker acts: users' own tokens, or vouchers of the coordinator."""

    tokens: list[str]


class ProvenUsers(msgspec.Struct):
    users: list[SubscriberId]
    """The users that the tokens prove. A token that is invalid or expired proves none."""


# -- results -----------------------------------------------------------------------------------------------------------


class ResultsRequest(msgspec.Struct):
    """Results of subscriptions of one channel, each from its own cursor on."""

    channel: str
    subscriptions: dict[str, CursorText | None]
    """Id → cursor; null for all results that are still stored."""


class JointResultsRequest(msgspec.Struct):
    """Results of subscriptions of several channels. Only those that the data cluster has in memory are answered."""

    requests: list[ResultsRequest]


class ChannelLine(msgspec.Struct, omit_defaults=True):
    """One line of JSON: the part of one channel follows, in the order of the requests."""

    channel: str
    """As in the request."""
    cursor: CursorText = ""
    """As in `CURSOR_HEADER`. Empty if the broker must request this channel by itself: some results are only stored, the
    answer would be too large, or the request is refused."""
    lines: int = 0
    """The number of `ResultLine`s that follow. None of them is a gap."""


class ResultLine(msgspec.Struct, omit_defaults=True):
    """One line of JSON: a result, or a gap. Gaps come before the first result."""

    subscription: SubscriptionId
    cursor: CursorText
    """For a result, the position after it. For a gap, the position of the first result that is still stored."""
    bytes: int = 0
    """Size of the row as JSON."""
    result: msgspec.Raw = msgspec.Raw(b"")
    """The row, a JSON object."""
    gap: bool = False
    """Results before `cursor` have passed their retention, or belong to an earlier epoch."""


# -- records of subscribers --------------------------------------------------------------------------------------------

MOST_OWN_RECORDS = 1_000
"""The most records in one request. The answer names every refused one."""


class OwnRecord(msgspec.Struct):
    """A record that a subscriber sent for itself."""

    user: SubscriberId
    """The subscriber, as the broker has verified it."""
    record: dict[str, msgspec.Raw]
    """The columns as JSON. The data cluster fills a missing owner column, and refuses one with another user's name."""


class RefusedRecord(msgspec.Struct):
    """One record that is not stored, although the others of its request are."""

    index: int
    code: str
    """A `wire.errors.Code`."""
    message: str


class OwnRecordsAnswer(msgspec.Struct):
    stored: int
    refused: list[RefusedRecord] = []


# -- announcements -----------------------------------------------------------------------------------------------------


class AnnouncementMessage(msgspec.Struct, tag_field="type"):
    """`sequence` is the number to resume after, once the message has been processed."""


class Ready(AnnouncementMessage, tag="ready"):
    """First message of a stream."""

    sequence: int


class SubscriptionNews(msgspec.Struct, frozen=True):
    """How many results an execution had for one backend subscription, and their size as JSON."""

    id: SubscriptionId
    results: int
    bytes: int


class Execution(AnnouncementMessage, tag="execution"):
    """An execution with results for subscriptions of this broker. A large one comes in several parts."""

    sequence: int
    """The number to resume after, but only when the last part has been processed."""
    channel: ChannelName
    epoch: int
    execution: int
    finished_s: float
    part: int
    """Counted from 1."""
    parts: int
    subscriptions: list[SubscriptionNews]


class ChannelProgress(AnnouncementMessage, tag="progress"):
    """The stream is alive, and every execution up to `sequence` has been announced."""

    sequence: int
    channels: dict[ChannelName, CursorText] = {}
    """New positions of the channels that moved since the previous message."""


class AnnouncementGap(AnnouncementMessage, tag="gap"):
    """Executions after `after` have passed their retention: the broker pulls from its cursors."""

    after: int
    sequence: int


Announced = Ready | Execution | ChannelProgress | AnnouncementGap


def announcements_path(broker: str, after: int | None) -> str:
    """Path and query of a stream that resumes after a sequence number, or begins at the present (None)."""
    return ANNOUNCEMENTS.format(broker=broker) + ("" if after is None else f"?after={after}")


# -- codecs ------------------------------------------------------------------------------------------------------------

encode = msgspec.json.Encoder().encode
decode_granted = msgspec.json.Decoder(list[Granted]).decode
decode_released = msgspec.json.Decoder(ReleaseAnswer).decode
decode_page = msgspec.json.Decoder(SubscriptionPage).decode
decode_holds = msgspec.json.Decoder(Holds).decode
decode_proven = msgspec.json.Decoder(ProvenUsers).decode
decode_own_answer = msgspec.json.Decoder(OwnRecordsAnswer).decode
decode_line = msgspec.json.Decoder(ResultLine).decode
decode_channel_line = msgspec.json.Decoder(ChannelLine).decode
decode_announced = msgspec.json.Decoder(Announced).decode


def encode_own_records(records: Iterable[tuple[SubscriberId, bytes]]) -> bytes:
    """A list of `OwnRecord`, from each user and its record as JSON."""
    return encode([{"user": user, "record": msgspec.Raw(record)} for user, record in records])


def decode_cursor(text: str) -> Cursor:
    """The cursor that the text spells. Raises ValueError for text that is no cursor."""
    cursor = Cursor.parse(text)
    if cursor is None:
        raise ValueError(f"the data cluster sent {text[:40]!r} as a cursor")
    return cursor
