"""What edge nodes say to their neighbours [AMI tables 2–3], and why a message can be turned down.

Values only. Beyond the thesis a message carries the round it belongs to, the number of a hand-over, the operators'
state and the lives (epochs) of sender and receiver, so that a late or repeated message is recognised as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer, Usage
from tocsin.policies.operators.transfer import Urgency


class MessageType(StrEnum):
    """The types of table 3, in the order in which a round uses them."""

    OP_OFFER_REQUEST = "opOfferRequest"
    OP_OFFER_REPLY = "opOfferReply"
    OP_OFFER_TRANSFER_REQUEST = "opOfferTransferRequest"
    """Also the second half of a demand: see `handover.py`."""
    OP_OFFER_TRANSFER_REPLY = "opOfferTransferReply"
    OP_DEMAND_REQUEST = "opDemandRequest"
    OP_DEMAND_REPLY = "opDemandReply"
    OP_DEMAND_TRANSFER_REQUEST = "opDemandTransferRequest"
    CLEAR = "Clear"
    """Without a hand-over number: this round is over for you. With one: the operators are yours, run them."""


class Code(StrEnum):
    """Why a message was turned down. None of them changes anything at the node that answers."""

    NOT_ADJACENT = "NOT_ADJACENT"
    """Not from a living neighbour, or not to this node."""
    WRONG_EPOCH = "WRONG_EPOCH"
    """From or to an earlier life of a node."""
    STALE_ROUND = "STALE_ROUND"
    """The round it belongs to is over here."""
    STALE_HANDOVER = "STALE_HANDOVER"
    """That hand-over was decided long ago."""
    OUTRAN_DATA = "OUTRAN_DATA"
    """Tuples sent before it have not arrived yet; its repetition will find them."""
    ABOVE_UPPER_THRESHOLD = "ABOVE_UPPER_THRESHOLD"
    """The operators would take this node above U_t."""
    INFEASIBLE = "INFEASIBLE"
    """A stream would have to flow downwards: a peer of the operators is on the wrong side, or on its way there."""
    UNREADABLE = "UNREADABLE"
    """The state of an operator is not one that it can go on from."""
    UNKNOWN_OPERATOR = "UNKNOWN_OPERATOR"
    """Data for an operator or an input that no query here has, or not from a child."""
    WRONG_COLUMNS = "WRONG_COLUMNS"
    """Readings that are not as their stream was declared."""
    UNAVAILABLE = "UNAVAILABLE"
    """An ordered transfer that cannot be made from here now."""
    UNSETTLED = "UNSETTLED"
    """An earlier hand-over from the same neighbour is not finished here."""


@dataclass(frozen=True, slots=True)
class RoundId:
    initiator: EdgeNodeId
    number: int


@dataclass(frozen=True, slots=True)
class Parcel:
    """One operator on its way: its state is all that the next node needs besides the query, which every node knows."""

    operator: OperatorId
    usage: Usage
    state: bytes = b""


@dataclass(frozen=True, slots=True)
class Piece:
    """What flows up a tree, addressed to an input of an operator: rows, or a watermark, never both.

    Between two nodes pieces arrive in order and none is lost (a live link is TCP); messages may be lost and overtake.
    """

    operator: OperatorId
    port: int
    batch: pa.RecordBatch | None
    watermark_us: int | None = None

    @property
    def size_bytes(self) -> int:
        return 0 if self.batch is None else int(self.batch.nbytes)


@dataclass(frozen=True, slots=True)
class Message:
    type: MessageType
    sender: EdgeNodeId
    receiver: EdgeNodeId
    round: RoundId
    urgent: Urgency = Urgency.UNSET
    size_pct: float = 0.0
    transfers: tuple[Transfer, ...] = ()
    handover: int | None = None
    """Numbered by the giver, rising."""
    parcels: tuple[Parcel, ...] = ()
    refusal: Code | None = None
    """In an opOfferTransferReply: why none of it was taken."""
    barrier: int = 0
    """How many pieces of data the sender had sent up when it wrote this, on the link between the two."""
    leftovers: tuple[Piece, ...] = ()
    """With Clear: what reached the giver for operators that have moved down, in order."""
    sender_epoch: int = 0
    receiver_epoch: int = 0


# Events: what happened to a node.


@dataclass(frozen=True, slots=True)
class PeriodElapsed:
    """A monitoring period T has passed."""


@dataclass(frozen=True, slots=True)
class MessageReceived:
    message: Message


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """`deadline_s()` has come."""


@dataclass(frozen=True, slots=True)
class PeerDied:
    """A neighbour is dead for good: whoever says so has made sure that this life of it never acts again."""

    peer: EdgeNodeId


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """A neighbour began a new life, with nothing of the old one."""

    peer: EdgeNodeId
    epoch: int


@dataclass(frozen=True, slots=True)
class TransferOrdered:
    """Someone wants operators elsewhere whatever the load: a node is drained, a test shuffles. The taker still decides
    whether it has room."""

    transfer: Transfer


Event = TransferOrdered | PeriodElapsed | MessageReceived | DeadlinePassed | PeerDied | PeerJoined


# Effects: what a driver has to do.


@dataclass(frozen=True, slots=True)
class SendMessage:
    message: Message


@dataclass(frozen=True, slots=True)
class RejectMessage:
    """To count and to log; nothing is sent back by itself."""

    message: Message
    code: Code


Effect = SendMessage | RejectMessage
