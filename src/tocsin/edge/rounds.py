"""What a node knows while it negotiates: its neighbours, its current round and its time limits [AMI §3.3].

A node takes part in one round at a time. `requests.py` runs the rounds that this node starts and `replies.py` answers
the rounds of its neighbours; both work on the same `RoundState`. `negotiation.py` passes the events to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tocsin.edge.handover import Handovers, OperatorHost
from tocsin.edge.messages import Effect, MessageType, PeerMessage, RoundId, SendPeerMessage
from tocsin.edge.placement import OperatorPlacement
from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer, Usage
from tocsin.policies.operators.transfer import Band, Reply, ReplyUrgency, TransferRules


@dataclass(frozen=True, slots=True)
class Timing:
    """Time limits in seconds. The thesis waits for ever. Each limit must be longer than a round trip to a neighbour."""

    reply_within_s: float = 1.0
    """How long the node that started a round waits for replies."""
    promise_for_s: float = 3.0
    """How long a promise is kept, and how long promised operators are awaited. Longer than the wait for replies."""
    repeat_s: float = 1.0
    """The interval at which an unanswered hand-over message is sent again."""


DEFAULT_TIMING = Timing()


@dataclass(slots=True)
class Collecting:
    """This node started a round and waits for replies."""

    round: RoundId
    band: Band
    asked: tuple[EdgeNodeId, ...]
    waiting: set[EdgeNodeId]
    deadline_s: float
    replies: list[Reply] = field(default_factory=list)


@dataclass(slots=True)
class Promised:
    """This node promised transfers in a neighbour's round and waits for the neighbour's decision."""

    reply: PeerMessage
    reserved: Usage
    deadline_s: float

    def belongs_to(self, message: PeerMessage) -> bool:
        return self.reply.receiver == message.sender and self.reply.round == message.round


@dataclass(slots=True)
class Expecting:
    """This node demanded operators from neighbours and waits for them to arrive."""

    round: RoundId
    givers: set[EdgeNodeId]
    deadline_s: float


@dataclass
class RoundState:
    placement: OperatorPlacement
    host: OperatorHost
    peers: dict[EdgeNodeId, int]
    """The current epoch of each living neighbour."""
    rules: TransferRules
    timing: Timing
    epoch: int
    phase: Collecting | Promised | Expecting | None = None

    def __post_init__(self) -> None:
        self.node = self.placement.node
        self.handovers = Handovers(self.placement, self.host, self.rules, self.timing.repeat_s)

    @property
    def is_busy(self) -> bool:
        return self.phase is not None or self.handovers.is_open

    def available(self, only: EdgeNodeId | None = None) -> dict[tuple[EdgeNodeId, tuple[OperatorId, ...]], Transfer]:
        """Every transfer possible now (to `only`, if given), with its current usage."""
        return {
            (transfer.destination, transfer.operators): replace(transfer, usage=self.host.usage_of(transfer.operators))
            for transfer in self.placement.available_transfers()
            if only is None or transfer.destination == only
        }

    def no_longer_expect(self, giver: EdgeNodeId) -> None:
        """Stop waiting for operators of `giver`; the round ends with the last giver."""
        if isinstance(self.phase, Expecting):
            self.phase.givers.discard(giver)
            if not self.phase.givers:
                self.phase = None

    def begin_handover(
        self, taker: EdgeNodeId, transfers: tuple[Transfer, ...], round_: RoundId, now_s: float
    ) -> Effect:
        return SendPeerMessage(self.stamped(self.handovers.begin(taker, transfers, round_, now_s)))

    def clear(self, peer: EdgeNodeId, round_: RoundId) -> Effect:
        return SendPeerMessage(self.message(MessageType.CLEAR, peer, round_))

    def message(
        self,
        type_: MessageType,
        receiver: EdgeNodeId,
        round_: RoundId,
        urgent: ReplyUrgency = ReplyUrgency.UNSET,
        size_pct: float = 0.0,
        transfers: tuple[Transfer, ...] = (),
    ) -> PeerMessage:
        return self.stamped(PeerMessage(type_, self.node, receiver, round_, urgent, size_pct, transfers))

    def stamped(self, message: PeerMessage) -> PeerMessage:
        """The message with the current epochs of its sender and its receiver."""
        receiver_epoch = self.peers.get(message.receiver, self.epoch)
        return replace(message, sender_epoch=self.epoch, receiver_epoch=receiver_epoch)
