"""The effects of the topics core. The driver carries them out in order."""

from __future__ import annotations

import msgspec

from tocsin.broker.topics.events import ConnectionId, StreamId
from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire import site_link, topic_link
from tocsin.wire import topic as wire
from tocsin.wire.topic_log import FromFollower, FromHome, Piece, Snapshot


class Effect(msgspec.Struct, frozen=True):
    pass


class Send(Effect, frozen=True):
    """Send the same frame to each of these connections. `data` is `message` in the connections' encoding."""

    connections: tuple[ConnectionId, ...]
    message: wire.ToClient
    data: bytes


class AwaitDrain(Effect, frozen=True):
    """Report `ConnectionDrained` as soon as the connection has room; at once if it has room now."""

    connection: ConnectionId


class CloseConnection(Effect, frozen=True):
    connection: ConnectionId
    reason: str
    """A key of `wire.session.CLOSE_CODES`."""


class RecordRefusal(Effect, frozen=True):
    """Record in the audit log that a user lacked the right to send to, or to receive, a topic."""

    user: str
    action: str
    topic: TopicName


class SendToCoordinator(Effect, frozen=True):
    message: topic_link.FromBroker | site_link.FromBroker


class RequestFlush(Effect, frozen=True):
    """Report `FlushDue` at the end of this turn of the event loop."""


# -- logs of persistent topics -----------------------------------------------------------------------------------------


class LogEffect(Effect, frozen=True):
    """An operation on a log. The driver carries out those of one log one after the other, never on the event loop."""

    topic: TopicName
    created: int


class OpenLog(LogEffect, frozen=True):
    """Open the log, or create it, and report `LogOpened`; also if it is open already."""


class AppendToLog(LogEffect, frozen=True):
    """Append and fsync; appends that wait together share one fsync. Report `LogStored`."""

    piece: Piece


class AdoptEpoch(LogEffect, frozen=True):
    """Cut the log after `end`, inside `last_epoch`, and store the promise. None keeps the log as it is.
    Report `LogAdopted`."""

    epoch: int
    cut: tuple[int, int] | None
    """(last epoch, end)."""


class ResetLog(LogEffect, frozen=True):
    """Replace the log by an empty one that begins at the snapshot, and store the promise. Report `LogAdopted`."""

    epoch: int
    snapshot: Snapshot


class ReadLog(LogEffect, frozen=True):
    """Read about `limit_bytes` after `after`, at least one message, and report `LogRead`."""

    reader: ConnectionId | BrokerId
    after: int
    upto: int
    limit_bytes: int


class ReadSnapshot(LogEffect, frozen=True):
    """Report the snapshot with which the log begins as `SnapshotRead`."""

    reader: BrokerId


class TrimLog(LogEffect, frozen=True):
    """Delete whole segments: those before `before` if it is given, else the oldest ones beyond the retention."""

    before: int | None = None
    retain_bytes: int | None = None
    retain_s: float | None = None


class DropLog(LogEffect, frozen=True):
    """Delete the log."""


class KeepLogs(Effect, frozen=True):
    """Delete every log on disk that is not one of these (topic, created)."""

    logs: list[tuple[TopicName, int]]


class ConnectReplica(Effect, frozen=True):
    """Keep a connection to this broker open, and report `ReplicaConnected` and `ReplicaLost`."""

    broker: BrokerId
    address: str


class DisconnectReplica(Effect, frozen=True):
    broker: BrokerId


class SendToReplica(Effect, frozen=True):
    broker: BrokerId
    message: FromHome


class AnswerHome(Effect, frozen=True):
    stream: StreamId
    message: FromFollower


# -- relayed topics ----------------------------------------------------------------------------------------------------


class StartRelay(Effect, frozen=True):
    """Attach to the home as a receiver and follow the topic to other homes; report `RelayEvent`s."""

    topic: TopicName


class StopRelay(Effect, frozen=True):
    topic: TopicName


class FetchOlder(Effect, frozen=True):
    """Attach to the home once more, over a connection of its own, behind this position. Report `OlderReceived` with the
    answer, and read the next frame after each `ReadOlder`."""

    fetch: int
    topic: TopicName
    after: tuple[int, int]


class ReadOlder(Effect, frozen=True):
    fetch: int


class EndFetch(Effect, frozen=True):
    """Close the connection."""

    fetch: int


# -- flows of neighbouring sites ---------------------------------------------------------------------------------------


class UseNeighbours(Effect, frozen=True):
    """Imports reach the neighbours with these addresses and tokens from now on."""

    neighbours: list[site_link.NeighbourAccess]


class StartImport(Effect, frozen=True):
    """Attach to the topic's home at a neighbour as a receiver of these sites' flows, and follow it to other homes.
    Report `ImportReceived` and `ImportBroken` with this number."""

    number: int
    topic: TopicName
    neighbour: str
    sources: tuple[str, ...]


class StopImport(Effect, frozen=True):
    number: int


# -- recording into datasets -------------------------------------------------------------------------------------------


class AskRecorded(Effect, frozen=True):
    """Ask the data cluster how far a persistent topic is recorded, and report `RecordedUpto`."""

    recorder: int
    topic: TopicName
    plan: topic_link.RecordPlan


class StoreRecords(Effect, frozen=True):
    """Send messages to the data cluster. Report `RecordsStored`, `RecordedUpto`, `RecordsRefused` or
    `RecordsFailed`."""

    recorder: int
    topic: TopicName
    plan: topic_link.RecordPlan
    messages: list[tuple[str, bytes]]
    """(position, message)."""
    after: int | None
    """Persistent topics: the cursor in front of the messages and behind them. None for volatile topics."""
    upto: int | None
    key: str | None
    """Volatile topics: the Idempotency-Key."""
