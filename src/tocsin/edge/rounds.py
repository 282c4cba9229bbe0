"""The rounds of one node: its current round, and the requesting side of the protocol [AMI §3.3, listings 3, 5, 9].

A node takes part in one round at a time. An overloaded node starts a round to offer operators to its neighbours, an
underloaded node starts one to demand operators from them. The node collects the replies, decides
(`policies/operators/transfer.py`), and starts hand-overs or asks the givers for them. `replies.py` answers the rounds
of neighbours on the same `RoundState`, and `negotiation.py` passes the events to both.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tocsin.edge.handover import Handovers, OperatorHost
from tocsin.edge.messages import EdgeCode, Effect, MessageType, PeerMessage, RejectPeerMessage, RoundId, SendPeerMessage
from tocsin.edge.placement import OperatorPlacement
from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer, Usage
from tocsin.policies.operators import transfer as policy
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
    least_pct: float | None = None
    """A giver that makes room for a neighbour gives until this load; None: until T_t."""
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
    """The state of a node's negotiation."""

    placement: OperatorPlacement
    host: OperatorHost
    peers: dict[EdgeNodeId, int]
    """The current epoch of each living neighbour."""
    rules: TransferRules
    timing: Timing
    epoch: int
    phase: Collecting | Promised | Expecting | None = None
    missing_room: tuple[EdgeNodeId, float] | None = None
    """The overloaded neighbour whose offer this node could not accept completely, and the missing load in percent."""

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


class RoundRequests:
    """The rounds that this node starts."""

    def __init__(self, state: RoundState) -> None:
        self._state = state
        self._rounds = 0

    def on_period(self, now_s: float) -> list[Effect]:
        """Start a round if the load requires it [AMI listing 3].

        A neighbour for which there is no offer gets no request: its reply could only be empty, and the request would
        keep it from taking part in another round.
        """
        state = self._state
        if state.is_busy or not state.peers:
            return []
        usage = state.host.usage()
        band = state.rules.band(usage)
        round_ = RoundId(state.node, self._rounds + 1)
        requests: list[PeerMessage] = []
        if band is Band.OVERLOADED:
            requests = self._offers(usage, round_)
        elif band is Band.UNDERLOADED:
            size_pct = policy.demanded_pct(usage, state.rules)
            requests = [
                state.message(MessageType.OP_DEMAND_REQUEST, peer, round_, size_pct=size_pct) for peer in state.peers
            ]
        return self._begin(round_, band, requests, now_s)

    def make_room(self, now_s: float) -> list[Effect]:
        """Offer operators to the other neighbours, so that an overloaded neighbour finds room in its next round."""
        state = self._state
        if state.missing_room is None or state.is_busy:
            return []
        (neighbour, missing_pct), state.missing_room = state.missing_room, None
        usage = state.host.usage()
        least_pct = policy.room_pct(usage, missing_pct, state.rules)
        round_ = RoundId(state.node, self._rounds + 1)
        requests = self._offers(usage, round_, least_pct, besides=neighbour)
        return self._begin(round_, Band.OVERLOADED, requests, now_s, least_pct)

    def _offers(
        self, usage: Usage, round_: RoundId, least_pct: float | None = None, besides: EdgeNodeId | None = None
    ) -> list[PeerMessage]:
        state = self._state
        offers: dict[EdgeNodeId, tuple[Transfer, ...]] = {}
        for transfer in policy.offered(state.available().values(), usage, state.rules, least_pct):
            if transfer.destination in state.peers and transfer.destination != besides:
                offers[transfer.destination] = (*offers.get(transfer.destination, ()), transfer)
        # A neighbour that makes room needs the amount. A node that makes room itself requests no more of it.
        is_excess = state.rules.makes_room and least_pct is None
        size_pct = policy.excess_pct(usage, state.rules) if is_excess else 0.0
        return [
            state.message(MessageType.OP_OFFER_REQUEST, peer, round_, size_pct=size_pct, transfers=transfers)
            for peer, transfers in offers.items()
        ]

    def _begin(
        self, round_: RoundId, band: Band, requests: list[PeerMessage], now_s: float, least_pct: float | None = None
    ) -> list[Effect]:
        if not requests:
            return []
        self._rounds += 1
        asked = tuple(request.receiver for request in requests)
        deadline_s = now_s + self._state.timing.reply_within_s
        self._state.phase = Collecting(round_, band, asked, set(asked), deadline_s, least_pct)
        return [SendPeerMessage(request) for request in requests]

    def on_order(self, ordered: Transfer, now_s: float) -> list[Effect]:
        """Start the ordered hand-over at once, without a round of requests and replies."""
        state = self._state
        self._rounds += 1
        round_ = RoundId(state.node, self._rounds)
        transfer = state.available().get((ordered.destination, ordered.operators))
        if transfer is None or transfer.destination not in state.peers or state.is_busy:
            order = state.message(MessageType.OP_OFFER_TRANSFER_REQUEST, state.node, round_, transfers=(ordered,))
            return [RejectPeerMessage(order, EdgeCode.UNAVAILABLE)]
        return [state.begin_handover(transfer.destination, (transfer,), round_, now_s)]

    def withdraw_for(self, request: PeerMessage) -> list[Effect]:
        """Withdraw this node's round if the sender of `request` owes it a reply and has precedence.

        An overloaded node precedes an underloaded one, then the smaller id decides. Any other neighbour gets an empty
        reply and starts another round later. Neighbours that may have promised transfers get a Clear. The preceding
        neighbour needs none: this node rejects its reply as stale.
        """
        state, phase = self._state, self._state.phase
        if not isinstance(phase, Collecting) or request.sender not in phase.waiting:
            return []
        theirs = (request.type is not MessageType.OP_OFFER_REQUEST, request.sender)
        if theirs > (phase.band is not Band.OVERLOADED, state.node):
            return []
        state.phase = None
        return [
            state.clear(peer, phase.round) for peer in phase.asked if peer != request.sender and peer in state.peers
        ]

    def on_reply(self, message: PeerMessage, now_s: float) -> list[Effect]:
        state, phase = self._state, self._state.phase
        if not isinstance(phase, Collecting) or message.round != phase.round or message.sender not in phase.waiting:
            effects: list[Effect] = [RejectPeerMessage(message, EdgeCode.STALE_ROUND)]
            if message.round.initiator == state.node and message.transfers and not self._is_current(message):
                effects.append(state.clear(message.sender, message.round))
            return effects
        phase.waiting.discard(message.sender)
        phase.replies.append(Reply(message.sender, message.urgent, message.transfers))
        return [] if phase.waiting else self.decide(phase, now_s)

    def _is_current(self, message: PeerMessage) -> bool:
        """True for a repeated reply whose round is in progress here, or in which this node now hands over operators."""
        phase = self._state.phase
        return (isinstance(phase, Collecting | Expecting) and phase.round == message.round) or (
            self._state.handovers.gives_in(message)
        )

    def on_peer_died(self, peer: EdgeNodeId, phase: Collecting, now_s: float) -> list[Effect]:
        phase.replies = [reply for reply in phase.replies if reply.sender != peer]
        phase.waiting.discard(peer)
        return [] if phase.waiting else self.decide(phase, now_s)

    def decide(self, phase: Collecting, now_s: float) -> list[Effect]:
        """End the wait for replies: chosen neighbours give or get operators, the others get a Clear."""
        state = self._state
        state.phase = None
        effects: list[Effect] = []
        plan = self._agreed(phase) if phase.band is Band.OVERLOADED else self._demanded(phase)
        for peer in phase.asked:
            if peer not in state.peers:
                continue
            if peer not in plan:
                effects.append(state.clear(peer, phase.round))
            elif phase.band is Band.OVERLOADED:
                effects.append(state.begin_handover(peer, plan[peer], phase.round, now_s))
            else:
                demand = MessageType.OP_DEMAND_TRANSFER_REQUEST
                effects.append(SendPeerMessage(state.message(demand, peer, phase.round, transfers=plan[peer])))
        if plan and phase.band is not Band.OVERLOADED:
            state.phase = Expecting(phase.round, set(plan), now_s + state.timing.promise_for_s)
        return effects

    def _agreed(self, phase: Collecting) -> dict[EdgeNodeId, tuple[Transfer, ...]]:
        """The transfers that this node makes after an offer [AMI listing 5]."""
        state = self._state
        return policy.agreed(phase.replies, state.host.usage(), state.available(), state.rules, phase.least_pct)

    def _demanded(self, phase: Collecting) -> dict[EdgeNodeId, tuple[Transfer, ...]]:
        """The transfers to request [AMI listing 9]. This node loads the operators when they arrive, not before."""
        state = self._state
        replies = [
            replace(reply, transfers=state.placement.feasible(reply.transfers, reply.sender)) for reply in phase.replies
        ]
        return policy.taken(replies, state.host.usage(), state.rules)
