"""One node's part in the load balancing protocol [AMI §3.3, listings 3–5, 8, 9].

`handle(event, now_s)` returns effects. It reads no clock and opens no socket: the driver (a live node or the simulator)
sends the messages and calls it with `EdgeDeadlinePassed` at `deadline_s()`. Rounds that this node starts are in
`rounds.py`, replies to its neighbours' rounds in `replies.py`, transfers of operators in `handover.py`, and decisions
in `policies/operators/transfer.py`. This module checks each message, routes it, and ends waits.

A busy node replies at once without transfers, where the thesis ignores the message [AMI listing 8] and lets the sender
wait for all its replies. Beyond the thesis:

- with `makes_room`, a node that cannot accept all that an overloaded neighbour must give away starts a round of its own
  at once, so that the neighbour finds room in its next round;
- every wait ends: missing replies count as empty, promises and expected operators expire;
- two neighbours that send requests to each other at the same moment do not refuse each other for ever: an overloaded
  node precedes an underloaded one, then the smaller id; the other node withdraws its round and replies.
"""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.edge.handover import OperatorHost
from tocsin.edge.messages import (
    EdgeCode,
    EdgeDeadlinePassed,
    Effect,
    Event,
    MessageType,
    PeerDied,
    PeerJoined,
    PeerMessage,
    PeerMessageReceived,
    PeriodElapsed,
    RejectPeerMessage,
    SendPeerMessage,
    TransferOrdered,
)
from tocsin.edge.placement import OperatorPlacement
from tocsin.edge.replies import RoundReplies
from tocsin.edge.rounds import DEFAULT_TIMING, Collecting, Expecting, Promised, RoundRequests, RoundState, Timing
from tocsin.model.edge import NOTHING, EdgeNodeId
from tocsin.policies.operators.transfer import DEFAULT_RULES, TransferRules


class Negotiator:
    def __init__(
        self,
        placement: OperatorPlacement,
        host: OperatorHost,
        peers: Mapping[EdgeNodeId, int],
        rules: TransferRules = DEFAULT_RULES,
        timing: Timing = DEFAULT_TIMING,
        epoch: int = 0,
    ) -> None:
        """`peers` gives the epoch of each neighbour."""
        self.placement = placement
        self.host = host
        self.state = RoundState(placement, host, dict(peers), rules, timing, epoch)
        self.handovers = self.state.handovers
        self._requests = RoundRequests(self.state)
        self._replies = RoundReplies(self.state)

    @property
    def is_busy(self) -> bool:
        return self.state.is_busy

    def deadline_s(self) -> float | None:
        """The time at which the driver must send `EdgeDeadlinePassed`; None if nothing is pending."""
        phase = () if self.state.phase is None else (self.state.phase.deadline_s,)
        return min((*phase, *self.handovers.deadlines_s()), default=None)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        effects = self._on_event(event, now_s)
        return effects + self._requests.make_room(now_s)

    def _on_event(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case PeerMessageReceived(message):
                return self._on_message(message, now_s)
            case PeriodElapsed():
                return self._requests.on_period(now_s)
            case EdgeDeadlinePassed():
                return self._on_deadline(now_s)
            case TransferOrdered(transfer):
                return self._requests.on_order(transfer, now_s)
            case PeerDied(peer):
                return self._on_peer_died(peer, now_s)
            case PeerJoined(peer, epoch):
                effects = self._on_peer_died(peer, now_s) if self.state.peers.get(peer, epoch) != epoch else []
                self.state.peers[peer] = epoch
                return effects

    def _on_message(self, message: PeerMessage, now_s: float) -> list[Effect]:
        peers = self.state.peers
        if message.sender not in peers or message.receiver != self.state.node:
            return [RejectPeerMessage(message, EdgeCode.NOT_ADJACENT)]
        if message.sender_epoch != peers[message.sender] or message.receiver_epoch != self.state.epoch:
            return [RejectPeerMessage(message, EdgeCode.WRONG_EPOCH)]
        match message.type:
            case MessageType.OP_OFFER_REQUEST | MessageType.OP_DEMAND_REQUEST:
                return self._requests.withdraw_for(message) + self._replies.on_request(message, now_s)
            case MessageType.OP_OFFER_REPLY | MessageType.OP_DEMAND_REPLY:
                return self._requests.on_reply(message, now_s)
            case MessageType.OP_DEMAND_TRANSFER_REQUEST:
                return self._replies.on_demand_transfer_request(message, now_s)
            case MessageType.OP_OFFER_TRANSFER_REQUEST:
                return self._on_transfer_request(message, now_s)
            case MessageType.OP_OFFER_TRANSFER_REPLY:
                return self._effects_of(self.handovers.on_reply(message), message)
            case MessageType.CLEAR:
                if message.handover is not None:
                    return self._effects_of(self.handovers.on_clear(message), message)
                self._end_round(message)
                return []

    def _on_transfer_request(self, message: PeerMessage, now_s: float) -> list[Effect]:
        phase = self.state.phase
        promised_elsewhere = (
            phase.reserved if isinstance(phase, Promised) and not phase.belongs_to(message) else NOTHING
        )
        answer = self.handovers.on_request(message, promised_elsewhere, now_s)
        if isinstance(answer, PeerMessage):
            self._end_round(message)
        return self._effects_of(answer, message)

    def _end_round(self, message: PeerMessage) -> None:
        """End the sender's part in the message's round."""
        phase = self.state.phase
        if isinstance(phase, Promised) and phase.belongs_to(message):
            self.state.phase = None
        elif isinstance(phase, Expecting) and phase.round == message.round:
            self.state.no_longer_expect(message.sender)

    def _effects_of(self, answer: PeerMessage | EdgeCode | None, message: PeerMessage) -> list[Effect]:
        """The effects of a hand-over's answer to `message`."""
        if isinstance(answer, EdgeCode):
            return [RejectPeerMessage(message, answer)]
        return [] if answer is None else [SendPeerMessage(self.state.stamped(answer))]

    def _on_deadline(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = [
            SendPeerMessage(self.state.stamped(message)) for message in self.handovers.on_deadline(now_s)
        ]
        phase = self.state.phase
        if phase is not None and phase.deadline_s <= now_s:
            if isinstance(phase, Collecting):
                return effects + self._requests.decide(phase, now_s)
            self.state.phase = None
        return effects

    def _on_peer_died(self, peer: EdgeNodeId, now_s: float) -> list[Effect]:
        if self.state.peers.pop(peer, None) is None:
            return []
        self.handovers.on_peer_died(peer)
        phase = self.state.phase
        if isinstance(phase, Collecting):
            return self._requests.on_peer_died(peer, phase, now_s)
        if isinstance(phase, Promised) and phase.reply.receiver == peer:
            self.state.phase = None
        self.state.no_longer_expect(peer)
        return []
