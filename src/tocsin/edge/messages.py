"""The messages between neighbouring edge nodes [AMI tables 2–3], and the reasons for rejecting one.

Values only. Beyond the thesis a message carries its round, the number of a hand-over, the operators' state and the
epochs of sender and receiver, so that a node recognises a late or repeated message.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer, Usage
from tocsin.policies.operators.transfer import ReplyUrgency


class MessageType(StrEnum):
    """The types of table 3, in the order in which a round uses them."""

    OP_OFFER_REQUEST = "opOfferRequest"
    OP_OFFER_REPLY = "opOfferReply"
    OP_OFFER_TRANSFER_REQUEST = "opOfferTransferRequest"
    """Sent after an offer, and also as the second half of a demand: see `handover.py`."""
    OP_OFFER_TRANSFER_REPLY = "opOfferTransferReply"
    OP_DEMAND_REQUEST = "opDemandRequest"
    OP_DEMAND_REPLY = "opDemandReply"
    OP_DEMAND_TRANSFER_REQUEST = "opDemandTransferRequest"
    CLEAR = "Clear"
    """Without a hand-over number, the round is over for the receiver.

    With a number, the receiver now runs the operators.
    """


class EdgeCode(StrEnum):
    """The reason why a node rejected a message or data. A rejection changes nothing at that node."""

    NOT_ADJACENT = "NOT_ADJACENT"
    """The message is not from a living neighbour, or not addressed to this node."""
    WRONG_EPOCH = "WRONG_EPOCH"
    """The sender or the receiver of the message has a newer epoch."""
    STALE_ROUND = "STALE_ROUND"
    """The message's round is over at this node."""
    STALE_HANDOVER = "STALE_HANDOVER"
    """The hand-over is already decided."""
    OUTRAN_DATA = "OUTRAN_DATA"
    """Tuples sent before the message have not arrived yet. Its repetition will succeed."""
    ABOVE_UPPER_THRESHOLD = "ABOVE_UPPER_THRESHOLD"
    """The operators would take this node above U_t."""
    INFEASIBLE = "INFEASIBLE"
    """A stream would have to flow downwards: a peer of the operators is on the wrong side, or moving there."""
    UNREADABLE = "UNREADABLE"
    """The operator cannot be restored from this state."""
    UNKNOWN_OPERATOR = "UNKNOWN_OPERATOR"
    """Data for an operator or an input that no query here has, or not from a child."""
    WRONG_COLUMNS = "WRONG_COLUMNS"
    """Readings whose columns differ from the declaration of their stream."""
    UNAVAILABLE = "UNAVAILABLE"
    """An ordered transfer that this node cannot make now."""
    UNSETTLED = "UNSETTLED"
    """An earlier hand-over from the same neighbour is not finished here."""


@dataclass(frozen=True, slots=True)
class RoundId:
    initiator: EdgeNodeId
    number: int


@dataclass(frozen=True, slots=True)
class Parcel:
    """One operator in transit. Every node knows the query, so the next node needs only the state."""

    operator: OperatorId
    usage: Usage
    state: bytes = b""


@dataclass(frozen=True, slots=True)
class Piece:
    """Data for one input of an operator, flowing up the tree: rows, or a watermark, never both.

    Between two nodes pieces arrive in order and none is lost (a live link is TCP). Messages may be lost or reordered.
    """

    operator: OperatorId
    port: int
    batch: pa.RecordBatch | None
    watermark_us: int | None = None

    @property
    def size_bytes(self) -> int:
        return 0 if self.batch is None else int(self.batch.nbytes)


@dataclass(frozen=True, slots=True)
class PeerMessage:
    type: MessageType
    sender: EdgeNodeId
    receiver: EdgeNodeId
    round: RoundId
    urgent: ReplyUrgency = ReplyUrgency.UNSET
    size_pct: float = 0.0
    transfers: tuple[Transfer, ...] = ()
    handover: int | None = None
    """The number of the hand-over. The giver numbers its hand-overs in rising order."""
    parcels: tuple[Parcel, ...] = ()
    refusal: EdgeCode | None = None
    """In an opOfferTransferReply: why the taker refused all parcels."""
    barrier: int = 0
    """How many pieces of data the sender had sent to the receiver before this message."""
    leftovers: tuple[Piece, ...] = ()
    """In a Clear: the data that reached the giver for operators that have moved down, in order."""
    sender_epoch: int = 0
    receiver_epoch: int = 0


# Events of a node.


@dataclass(frozen=True, slots=True)
class PeriodElapsed:
    """A monitoring period T has passed."""


@dataclass(frozen=True, slots=True)
class PeerMessageReceived:
    message: PeerMessage


@dataclass(frozen=True, slots=True)
class EdgeDeadlinePassed:
    """The time `deadline_s()` has been reached."""


@dataclass(frozen=True, slots=True)
class PeerDied:
    """A neighbour is dead. The sender of this event has fenced the neighbour's epoch: it never acts again."""

    peer: EdgeNodeId


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """A neighbour started a new epoch, without the operators and state of the old one."""

    peer: EdgeNodeId
    epoch: int


@dataclass(frozen=True, slots=True)
class TransferOrdered:
    """Operators must move at any load, for example to drain a node. The taker still refuses if it has no room."""

    transfer: Transfer


Event = TransferOrdered | PeriodElapsed | PeerMessageReceived | EdgeDeadlinePassed | PeerDied | PeerJoined


# Effects, which a driver carries out.


@dataclass(frozen=True, slots=True)
class SendPeerMessage:
    message: PeerMessage


@dataclass(frozen=True, slots=True)
class RejectPeerMessage:
    """The driver counts and logs the rejection. It sends no answer."""

    message: PeerMessage
    code: EdgeCode


Effect = SendPeerMessage | RejectPeerMessage
