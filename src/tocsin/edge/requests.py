"""The asking side of the load balancing protocol: the rounds that a node starts [AMI listings 3, 5, 9].

An overloaded node offers operators to its neighbours, an underloaded node demands operators from them. The node
collects the replies, decides (`policies/operators/transfer.py`), and starts hand-overs or asks the givers for them.
"""

from __future__ import annotations

from dataclasses import replace

from tocsin.edge.messages import EdgeCode, Effect, MessageType, PeerMessage, RejectPeerMessage, RoundId, SendPeerMessage
from tocsin.edge.rounds import Collecting, Expecting, RoundState
from tocsin.model.edge import EdgeNodeId, Transfer
from tocsin.policies.operators import transfer as policy
from tocsin.policies.operators.transfer import Band, Reply


class RoundRequests:
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
            offers: dict[EdgeNodeId, tuple[Transfer, ...]] = {}
            for transfer in policy.offered(state.available().values(), usage, state.rules):
                if transfer.destination in state.peers:
                    offers[transfer.destination] = (*offers.get(transfer.destination, ()), transfer)
            requests = [
                state.message(MessageType.OP_OFFER_REQUEST, peer, round_, transfers=transfers)
                for peer, transfers in offers.items()
            ]
        elif band is Band.UNDERLOADED:
            size_pct = policy.demanded_pct(usage, state.rules)
            requests = [
                state.message(MessageType.OP_DEMAND_REQUEST, peer, round_, size_pct=size_pct) for peer in state.peers
            ]
        if not requests:
            return []
        self._rounds += 1
        asked = tuple(request.receiver for request in requests)
        state.phase = Collecting(round_, band, asked, set(asked), now_s + state.timing.reply_within_s)
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
        """[AMI listing 5]."""
        state = self._state
        return policy.agreed(phase.replies, state.host.usage(), state.available(), state.rules)

    def _demanded(self, phase: Collecting) -> dict[EdgeNodeId, tuple[Transfer, ...]]:
        """[AMI listing 9], except that this node loads the operators when they arrive, not before."""
        state = self._state
        replies = [
            replace(reply, transfers=state.placement.feasible(reply.transfers, reply.sender)) for reply in phase.replies
        ]
        return policy.taken(replies, state.host.usage(), state.rules)
