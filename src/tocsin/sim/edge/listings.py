"""The thesis' listings 3–10 as they are printed, for comparison with the protocol of `edge/`. Simulation only.

A node of this module sends and accepts the same messages as a `Negotiator`, but it has none of its additions: no wait
ends by itself, promises reserve nothing, the taker of a transfer checks nothing, and in a demand the taker runs the
operators before the giver has removed them. So an operator may end up at two nodes, or a stream might have to flow
downwards; `EdgeSimulation.faults` counts both.

Where a listing contradicts its own prose, the prose decides: a node gives an operator once in a round [AMI listing 5,
line 8, its purpose], accepts it once [listing 4, line 11], and demands it once [listing 9, line 18].
The note "while executing: all other received messages ignored" [AMI listing 8] does not say what executes. `ignores`
tries both readings: the receipt of one message, or the whole negotiation.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from tocsin.edge.messages import (
    Effect,
    Event,
    MessageType,
    PeerMessage,
    PeerMessageReceived,
    PeriodElapsed,
    RoundId,
    SendPeerMessage,
)
from tocsin.edge.placement import OperatorSelection
from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer, Tree
from tocsin.policies.operators import transfer as policy
from tocsin.policies.operators.transfer import Reply, ReplyUrgency, TransferRules
from tocsin.sim.edge.host import SizedHost


class ListedSelection(OperatorSelection):
    """Listing 1 and `allSingleUpstream` of listing 2: operators with several upstream peers never move down."""

    def available_transfers(self, node: EdgeNodeId, here: Collection[OperatorId]) -> tuple[Transfer, ...]:
        parent = self.tree.parents.get(node)
        return tuple(
            transfer
            for transfer in super().available_transfers(node, here)
            if transfer.destination == parent or all(len(self.graph.upstream[op]) <= 1 for op in transfer.operators)
        )


@dataclass
class ListedNode:
    """One node. `pending` is the neighbours whose message it awaits, `promised_to` those that await its own decision's
    outcome; both are empty if no negotiation is in progress."""

    node: EdgeNodeId
    tree: Tree
    selection: ListedSelection
    host: SizedHost
    rules: TransferRules
    ignores: bool = False
    """Whether a node in a negotiation ignores the requests of other neighbours."""
    pending: set[EdgeNodeId] = field(default_factory=set)
    promised_to: dict[EdgeNodeId, RoundId] = field(default_factory=dict)
    _round: RoundId | None = None
    _replies: list[Reply] = field(default_factory=list)
    _rounds: int = 0

    def deadline_s(self) -> float | None:
        return None

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case PeriodElapsed():
                messages = self._on_period()
            case PeerMessageReceived(message):
                messages = self._on_message(message)
            case _:
                messages = []
        return [SendPeerMessage(message) for message in messages]

    @property
    def is_negotiating(self) -> bool:
        return bool(self.pending or self.promised_to)

    def _on_period(self) -> list[PeerMessage]:
        """Listing 3: requests to all neighbours."""
        if self.is_negotiating:
            return []
        usage, neighbours = self.host.usage(), self.tree.neighbours(self.node)
        band = self.rules.band(usage)
        if band is policy.Band.NORMAL:
            return []
        self._rounds += 1
        self._round, self._replies, self.pending = RoundId(self.node, self._rounds), [], set(neighbours)
        if band is policy.Band.UNDERLOADED:
            size_pct = policy.demanded_pct(usage, self.rules)
            return [
                replace(self._message(MessageType.OP_DEMAND_REQUEST, peer, self._round), size_pct=size_pct)
                for peer in neighbours
            ]
        offers = policy.offered(self._available(), usage, self.rules)
        return [
            self._message(
                MessageType.OP_OFFER_REQUEST,
                peer,
                self._round,
                tuple(transfer for transfer in offers if transfer.destination == peer),
            )
            for peer in neighbours
        ]

    def _on_message(self, message: PeerMessage) -> list[PeerMessage]:
        match message.type:
            case MessageType.OP_OFFER_REQUEST | MessageType.OP_DEMAND_REQUEST:
                if self.ignores and self.is_negotiating:
                    return []
                self.promised_to[message.sender] = message.round
                return [self._reply(message)]
            case MessageType.OP_OFFER_REPLY | MessageType.OP_DEMAND_REPLY:
                return self._on_reply(message)
            case MessageType.OP_OFFER_TRANSFER_REQUEST:
                return [self._load_offered(message)]
            case MessageType.OP_OFFER_TRANSFER_REPLY | MessageType.OP_DEMAND_TRANSFER_REQUEST:
                self._remove(message)
                return []
            case MessageType.CLEAR:
                self.promised_to.pop(message.sender, None)
                return []

    def _reply(self, request: PeerMessage) -> PeerMessage:
        """Listings 4 and 8."""
        usage = self.host.usage()
        if request.type is MessageType.OP_OFFER_REQUEST:
            transfers = policy.acceptable(request.transfers, usage, self.rules)
            urgency = policy.acceptor_urgency(usage, self.rules)
            if self.rules.band(usage) is policy.Band.OVERLOADED:
                urgency = ReplyUrgency.UNSET
            reply = self._message(MessageType.OP_OFFER_REPLY, request.sender, request.round, transfers)
        else:
            available = tuple(transfer for transfer in self._available() if transfer.destination == request.sender)
            transfers = policy.givable(available, request.size_pct, usage, self.rules)
            urgency = policy.giver_urgency(usage, self.rules)
            reply = self._message(MessageType.OP_DEMAND_REPLY, request.sender, request.round, transfers)
        return replace(reply, urgent=urgency)

    def _on_reply(self, message: PeerMessage) -> list[PeerMessage]:
        """Listings 5 and 9: decide when all replies are there."""
        if message.round != self._round or message.sender not in self.pending:
            return []
        self.pending.discard(message.sender)
        self._replies.append(Reply(message.sender, message.urgent, message.transfers))
        if self.pending:
            return []
        is_offer = message.type is MessageType.OP_OFFER_REPLY
        usage = self.host.usage()
        if is_offer:
            available = {(transfer.destination, transfer.operators): transfer for transfer in self._available()}
            plan = policy.agreed(self._replies, usage, available, self.rules)
        else:
            plan = policy.taken(self._replies, usage, self.rules)
        type_ = MessageType.OP_OFFER_TRANSFER_REQUEST if is_offer else MessageType.OP_DEMAND_TRANSFER_REQUEST
        messages: list[PeerMessage] = []
        for reply in self._replies:
            if transfers := plan.get(reply.sender, ()):
                messages.append(self._message(type_, reply.sender, message.round, transfers))
                if is_offer:
                    self.pending.add(reply.sender)  # until its opOfferTransferReply
                else:
                    self.host.load(_operators(transfers))
            else:
                messages.append(self._message(MessageType.CLEAR, reply.sender, message.round))
        return messages

    def _load_offered(self, message: PeerMessage) -> PeerMessage:
        """Listing 6."""
        self.promised_to.pop(message.sender, None)
        self.host.load(_operators(message.transfers))
        return self._message(MessageType.OP_OFFER_TRANSFER_REPLY, message.sender, message.round, message.transfers)

    def _remove(self, message: PeerMessage) -> None:
        """Listings 7 and 10."""
        if message.type is MessageType.OP_OFFER_TRANSFER_REPLY:
            self.pending.discard(message.sender)
        else:
            self.promised_to.pop(message.sender, None)
        self.host.release(_operators(message.transfers), message.sender)

    def _available(self) -> list[Transfer]:
        return [
            replace(transfer, usage=self.host.usage_of(transfer.operators))
            for transfer in self.selection.available_transfers(self.node, self.host.running)
        ]

    def _message(
        self, type_: MessageType, receiver: EdgeNodeId, round_: RoundId, transfers: tuple[Transfer, ...] = ()
    ) -> PeerMessage:
        return PeerMessage(type_, self.node, receiver, round_, transfers=transfers)


def _operators(transfers: Collection[Transfer]) -> tuple[OperatorId, ...]:
    return tuple(operator for transfer in transfers for operator in transfer.operators)
