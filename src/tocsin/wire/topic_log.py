"""The log of a persistent topic as brokers exchange it: the plan, pieces of it, and the protocol of home and follower.

The home connects to each follower and sends the messages of `FromHome`, msgpack frames on a WebSocket of their own; the
follower answers with `FromFollower`. Decision 16 describes the protocol and why it loses nothing. Sequence numbers of a
persistent topic continue through all epochs.
"""

from __future__ import annotations

import msgspec

from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire.topic import Entry
from tocsin.wire.topic_state import TopicState

PATH = "/v1/replicas"

Epochs = list[tuple[int, int]]
"""(epoch, the first sequence number that it ordered), in order. An epoch may have ordered nothing."""


class Replica(msgspec.Struct, frozen=True):
    broker: BrokerId
    address: str


class LogPlan(msgspec.Struct, frozen=True):
    """How the home keeps a topic's log."""

    created: int
    """The topic's first epoch: it tells the logs of two topics with the same name apart."""
    replicas: list[Replica]
    """Every broker that keeps the log, the home included."""
    quorum: int
    retain_bytes: int
    retain_s: float | None = None
    least: int = 0
    """The home's log must reach this sequence number, or the home refuses: its disk was replaced."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Messages that one epoch ordered, with consecutive sequence numbers. Without messages: the epoch begins here."""

    epoch: int
    first: int
    entries: list[Entry]

    @property
    def last(self) -> int:
        return self.first + len(self.entries) - 1

    @property
    def size_bytes(self) -> int:
        return sum(len(entry[2]) + 16 for entry in self.entries)


class Snapshot(msgspec.Struct, frozen=True):
    """The state of a log in front of a sequence number."""

    first: int
    epochs: Epochs
    publishers: list[tuple[int, int]]
    """(publisher, its last number before `first`)."""


# -- from the home -----------------------------------------------------------------------------------------------------


class FromHomeMessage(msgspec.Struct, tag_field="op"):
    pass


class Begin(FromHomeMessage, tag="begin"):
    """Follow this home. The follower cuts off what this home's log does not have, and answers `Began`."""

    topic: TopicName
    created: int
    epoch: int
    start: int
    """The oldest sequence number that the home keeps."""
    end: int
    epochs: Epochs


class Install(FromHomeMessage, tag="install"):
    """Forget the log and begin at this snapshot: the home does not keep what the follower would need first."""

    topic: TopicName
    epoch: int
    snapshot: Snapshot


class Append(FromHomeMessage, tag="append"):
    topic: TopicName
    epoch: int
    """The home's epoch; `piece.epoch` is an earlier one while the follower catches up."""
    piece: Piece
    start: int
    """The oldest sequence number that the home keeps: the follower removes segments before it."""


class HandOver(FromHomeMessage, tag="hand_over"):
    """From the source of a volatile topic's move to its target: open the topic. The source accepts nothing more."""

    topic: TopicName
    epoch: int
    """The epoch in which the target opens the topic."""
    state: TopicState


FromHome = Begin | Install | Append | HandOver

# -- from the follower -------------------------------------------------------------------------------------------------


class FromFollowerMessage(msgspec.Struct, tag_field="type"):
    pass


class Began(FromFollowerMessage, tag="began"):
    topic: TopicName
    epoch: int
    end: int | None
    """The last sequence number that both logs have; None asks for a snapshot."""
    log_epoch: int = 0
    """The last epoch that began in the follower's log."""


class Stored(FromFollowerMessage, tag="stored"):
    """The follower has the log up to here on disk."""

    topic: TopicName
    epoch: int
    log_epoch: int
    """The last epoch that began in the follower's log. Below `epoch` the follower still catches up."""
    end: int


class NotStored(FromFollowerMessage, tag="not_stored"):
    """The follower does not follow: a later epoch has begun, or its disk refuses."""

    topic: TopicName
    epoch: int
    message: str


FromFollower = Began | Stored | NotStored


def common_point(epochs: Epochs, end: int, other_epochs: Epochs, other_end: int) -> tuple[int, int]:
    """The last (epoch, sequence) up to which two logs of a topic are equal; (0, 0) if they have no epoch in common.

    One home orders an epoch and only appends. So two logs that contain the begin of the same epoch are equal in front
    of it, and inside it one is a prefix of the other: the highest common epoch decides (as in Raft's log matching, and
    in Kafka's leader epochs).
    """
    ends, other_ends = _ends(epochs, end), _ends(other_epochs, other_end)
    epoch = max(ends.keys() & other_ends.keys(), default=0)
    return (epoch, min(ends[epoch], other_ends[epoch])) if epoch else (0, 0)


def _ends(epochs: Epochs, end: int) -> dict[int, int]:
    """Epoch → the last sequence number up to and including it."""
    following = [first - 1 for _, first in epochs[1:]]
    return {epoch: last for (epoch, _), last in zip(epochs, [*following, end], strict=False)}


def with_epoch(epochs: Epochs, piece: Piece) -> Epochs:
    """The epochs of a log after this piece was appended."""
    return epochs if epochs and epochs[-1][0] >= piece.epoch else [*epochs, (piece.epoch, piece.first)]


def cut_epochs(epochs: Epochs, last_epoch: int) -> Epochs:
    """The epochs of a log that is cut inside `last_epoch`."""
    return [(epoch, first) for epoch, first in epochs if epoch <= last_epoch]
