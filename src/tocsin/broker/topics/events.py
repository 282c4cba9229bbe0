"""The events of the topics core, reported by its driver. The core has no clock of its own."""

from __future__ import annotations

from typing import NewType

import msgspec

from tocsin.broker.message_encoding import Encoding
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.permission import ALL_TOPICS
from tocsin.wire import topic as wire
from tocsin.wire import topic_link
from tocsin.wire.site_link import (
    ExpectReceivers,
    Federate,
    ImportFlows,
    LimitPublishers,
    RedirectReceivers,
    ReleaseVisitors,
    ReportPublishers,
)
from tocsin.wire.topic_log import Epochs, FromFollower, FromHome, Piece, Snapshot

ConnectionId = NewType("ConnectionId", int)
StreamId = NewType("StreamId", int)
"""A connection from a home to this broker as its follower."""
RECORDER = ConnectionId(-1)
"""Reads the log of a persistent topic to record it. No connection has this number."""


class Event(msgspec.Struct, frozen=True):
    pass


class ConnectionOpened(Event, frozen=True):
    """A client with a valid token has logged in on a topic connection."""

    connection: ConnectionId
    user: str
    request: int
    encoding: Encoding = Encoding.MSGPACK
    scopes: frozenset[str] = ALL_TOPICS
    expires_s: float | None = None
    run: int = 0
    """As in `wire.topic.Login`."""


class ConnectionLost(Event, frozen=True):
    connection: ConnectionId


class ConnectionBlocked(Event, frozen=True):
    """More than `topic_queue_bytes` wait in the connection."""

    connection: ConnectionId


class ConnectionDrained(Event, frozen=True):
    """The connection has room again; also the answer to `AwaitDrain`."""

    connection: ConnectionId


class ConnectionRevoked(Event, frozen=True):
    """The token that opened the connection is revoked."""

    connection: ConnectionId


class RequestReceived(Event, frozen=True):
    """A client sent any request except a login."""

    connection: ConnectionId
    request: wire.FromClient


class PublishedAlone(Event, frozen=True):
    """A client published while this home had nothing else to do: accept the messages and send them at once."""

    connection: ConnectionId
    request: wire.Publish


class FlushDue(Event, frozen=True):
    """The turn of the event loop that accepted messages is over: send them."""


class LinkLost(Event, frozen=True):
    pass


class CoordinatorMessageReceived(Event, frozen=True):
    message: topic_link.FromCoordinator


class LimitsReceived(Event, frozen=True):
    """The coordinator limits publishers, or asks for their rates."""

    message: LimitPublishers | ReportPublishers


class SiteMessageReceived(Event, frozen=True):
    """The coordinator moves receivers between edges."""

    message: ExpectReceivers | RedirectReceivers | ReleaseVisitors


class Ticked(Event, frozen=True):
    """Time has passed; the driver reports it several times a second."""


class StopRequested(Event, frozen=True):
    """The process is stopping: close every connection."""


# -- logs of persistent topics -----------------------------------------------------------------------------------------


class LogEvent(Event, frozen=True):
    """The driver carries out the effects of one log in order, and reports these events in the same order."""

    topic: TopicName
    created: int


class LogOpened(LogEvent, frozen=True):
    """The answer to `OpenLog`. Everything that it names is on disk."""

    promised: int
    epochs: Epochs
    start: int
    end: int
    publishers: list[tuple[int, int]]


class LogStored(LogEvent, frozen=True):
    """The pieces up to here are on disk."""

    log_epoch: int
    end: int
    start: int
    """The oldest sequence number that the log keeps."""


class LogAdopted(LogEvent, frozen=True):
    """The answer to `AdoptEpoch` and `ResetLog`."""

    epoch: int
    end: int


class LogRead(LogEvent, frozen=True):
    """The answer to `ReadLog`, with the same reader."""

    reader: ConnectionId | BrokerId
    pieces: list[Piece]
    start: int


class SnapshotRead(LogEvent, frozen=True):
    """The answer to `ReadSnapshot`."""

    reader: BrokerId
    snapshot: Snapshot


class LogFailed(LogEvent, frozen=True):
    """The disk refused, or the log is damaged. The log is closed; later effects of it were not carried out."""

    message: str


class ReplicaConnected(Event, frozen=True):
    """A connection that `ConnectReplica` requested is open."""

    broker: BrokerId


class ReplicaLost(Event, frozen=True):
    broker: BrokerId
    reason: str


class ReplicaAnswered(Event, frozen=True):
    broker: BrokerId
    message: FromFollower


class HomeMessageReceived(Event, frozen=True):
    """A home that this broker follows sent a message."""

    stream: StreamId
    message: FromHome


# -- relayed topics ----------------------------------------------------------------------------------------------------


class RelayEvent(Event, frozen=True):
    """The home of a relayed topic sent something."""

    topic: TopicName


class RelayAnswered(RelayEvent, frozen=True):
    """This edge is attached to a home: the first one, another one, or the same after a broken connection."""

    epoch: int
    sequence: int
    """Messages after this one follow."""
    since: int
    """The sequence has continued without a gap since this epoch."""


class RelayReceived(RelayEvent, frozen=True):
    """Messages with consecutive sequence numbers behind the last ones, the first of which is `sequence`."""

    epoch: int
    sequence: int
    entries: list[wire.Entry]


class RelayGap(RelayEvent, frozen=True):
    epoch: int
    first: int
    last: int


class RelayRefused(RelayEvent, frozen=True):
    """The home refuses this edge for good."""

    message: str


def relay_event(topic: TopicName, message: wire.ReceiverAttached | wire.Messages | wire.Gap) -> RelayEvent:
    """What a home sent to this edge, as an event."""
    match message:
        case wire.ReceiverAttached():
            return RelayAnswered(topic, message.epoch, message.sequence, message.since)
        case wire.Messages():
            return RelayReceived(topic, message.epoch, message.sequence, message.messages)
        case wire.Gap():
            return RelayGap(topic, message.epoch, message.first, message.last)


class OlderReceived(Event, frozen=True):
    """The home's answer to `FetchOlder`, then its messages: one event for each `ReadOlder`."""

    fetch: int
    message: wire.ReceiverAttached | wire.Messages | wire.Gap


class OlderFailed(Event, frozen=True):
    """The home refuses, or the connection is lost."""

    fetch: int


# -- flows of neighbouring sites ---------------------------------------------------------------------------------------


class FederationReceived(Event, frozen=True):
    """The coordinator names the neighbours of this site, or the flows of a topic."""

    message: Federate | ImportFlows


class ImportReceived(Event, frozen=True):
    """Messages and marks of the flows of an import, in order."""

    number: int
    entries: list[wire.Entry]


class ImportBroken(Event, frozen=True):
    """The import cannot continue where it was: begin it again behind the last numbers."""

    number: int
    message: str


# -- recording into datasets -------------------------------------------------------------------------------------------


class RecordingEvent(Event, frozen=True):
    """The answer to `StoreRecords` or `AskRecorded` of this recorder."""

    recorder: int


class RecordsStored(RecordingEvent, frozen=True):
    """The batch is on disk at the data cluster."""

    refused: int = 0
    """Messages and records of it that do not fit the dataset."""


class RecordedUpto(RecordingEvent, frozen=True):
    """The cursor at the data cluster. If a batch was sent, it was not stored: it begins at another cursor."""

    upto: int


class RecordsRefused(RecordingEvent, frozen=True):
    """The data cluster does not take the batch as a whole: a message is too large, or no text."""

    message: str


class RecordsFailed(RecordingEvent, frozen=True):
    """The data cluster or the coordinator does not answer, or not now. The batch may have been stored."""

    message: str
    retry_after_s: float | None = None
