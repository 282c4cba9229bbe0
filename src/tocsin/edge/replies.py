"""The answering side of the load balancing protocol: replies to the rounds of neighbours [AMI listings 4, 8, 10]."""

from __future__ import annotations

from tocsin.edge.messages import EdgeCode, Effect, MessageType, PeerMessage, RejectPeerMessage, SendPeerMessage
from tocsin.edge.rounds import Promised, RoundState
from tocsin.model.edge import NOTHING, total_usage
from tocsin.policies.operators import transfer as policy
from tocsin.policies.operators.transfer import Reply, ReplyUrgency


class RoundReplies:
    def __init__(self, state: RoundState) -> None:
        self._state = state

    def on_request(self, message: PeerMessage, now_s: float) -> list[Effect]:
        """Reply to a neighbour that started a round. A busy node replies without transfers."""
        state, phase = self._state, self._state.phase
        if isinstance(phase, Promised) and phase.reply.receiver == message.sender:
            if phase.belongs_to(message):
                return [SendPeerMessage(state.stamped(phase.reply))]  # a repeated request gets the same reply
            state.phase = None  # the neighbour started another round, so its earlier round is over
        is_offer = message.type is MessageType.OP_OFFER_REQUEST
        if state.is_busy:
            type_ = MessageType.OP_OFFER_REPLY if is_offer else MessageType.OP_DEMAND_REPLY
            return [SendPeerMessage(state.message(type_, message.sender, message.round))]
        reply = self._offer_reply(message) if is_offer else self._demand_reply(message)
        if reply.transfers:
            reserved = total_usage(transfer.usage for transfer in reply.transfers) if is_offer else NOTHING
            state.phase = Promised(reply, reserved, now_s + state.timing.promise_for_s)
        return [SendPeerMessage(reply)]

    def _offer_reply(self, message: PeerMessage) -> PeerMessage:
        state, usage = self._state, self._state.host.usage()
        feasible = state.placement.feasible(message.transfers, message.sender)
        accepted = policy.acceptable(feasible, usage, state.rules)
        missing_pct = message.size_pct - state.rules.load_pct(total_usage(transfer.usage for transfer in accepted))
        if state.rules.makes_room and missing_pct > 0.0 and len(accepted) < len(feasible):
            state.missing_room = (message.sender, missing_pct)
        return state.message(
            MessageType.OP_OFFER_REPLY,
            message.sender,
            message.round,
            policy.acceptor_urgency(usage, state.rules),
            transfers=accepted,
        )

    def _demand_reply(self, message: PeerMessage) -> PeerMessage:
        state, usage = self._state, self._state.host.usage()
        reply = MessageType.OP_DEMAND_REPLY
        if state.rules.load_pct(usage) <= state.rules.thresholds.target_pct:
            return state.message(reply, message.sender, message.round)  # [AMI listing 8, lines 2–3]
        available = state.available(message.sender).values()
        transfers = policy.givable(available, message.size_pct, usage, state.rules)
        urgency = policy.giver_urgency(usage, state.rules)
        return state.message(reply, message.sender, message.round, urgency, transfers=transfers)

    def on_demand_transfer_request(self, message: PeerMessage, now_s: float) -> list[Effect]:
        """Start the hand-over of promised operators [AMI listing 10]."""
        state, peer = self._state, message.sender
        if not isinstance(state.phase, Promised) or not state.phase.belongs_to(message):
            if state.handovers.gives_in(message):
                return []  # a repeated request: the hand-over is in progress
            return [RejectPeerMessage(message, EdgeCode.STALE_ROUND), state.clear(peer, message.round)]
        state.phase = None
        demand = Reply(peer, ReplyUrgency.NORMAL, message.transfers)
        plan = policy.agreed([demand], state.host.usage(), state.available(), state.rules)
        if peer not in plan or peer in state.handovers.outgoing:
            return [state.clear(peer, message.round)]
        return [state.begin_handover(peer, plan[peer], message.round, now_s)]
