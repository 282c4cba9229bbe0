"""One node's side of the load balancing protocol: rounds, promises and time-outs [AMI §3.3, listings 3–5, 8, 9].

`handle(event, now_s)` takes what happened and returns what to do. No clock, no socket: the driver (a live node or the
simulation) calls it with `DeadlinePassed` when `deadline_s()` has come. Decisions are in `policies/transfer.py`, moving
operators is in `handover.py`; this module is who talks to whom about what, and when to stop waiting.

A node takes part in one round at a time, as the one who began it or as one who has promised something. Asked while
busy, it answers at once that it has nothing, where the thesis ignores the message [AMI listing 8] and leaves the other
waiting for all its replies. Beyond the thesis:

- every wait ends: missing replies count as empty, promises and expectations lapse;
- two neighbours that ask each other at the same moment do not turn each other down for ever: an overloaded node goes
  before an underloaded one, then the smaller id; the other withdraws its round and answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tocsin.edge.handover import Handovers, OperatorHost
from tocsin.edge.messages import (
    Code,
    DeadlinePassed,
    Effect,
    Event,
    Message,
    MessageReceived,
    MessageType,
    PeerDied,
    PeerJoined,
    PeriodElapsed,
    RejectMessage,
    RoundId,
    SendMessage,
    TransferOrdered,
)
from tocsin.edge.placement import Placement
from tocsin.edge.rounds import DEFAULT_TIMING, Collecting, Expecting, Promised, Timing
from tocsin.model.edge import NOTHING, EdgeNodeId, OperatorId, Transfer, total_usage
from tocsin.policies.operators import transfer as policy
from tocsin.policies.operators.transfer import DEFAULT_RULES, Band, Reply, Rules, Urgency


class Negotiator:
    def __init__(
        self,
        placement: Placement,
        host: OperatorHost,
        peers: Mapping[EdgeNodeId, int],
        rules: Rules = DEFAULT_RULES,
        timing: Timing = DEFAULT_TIMING,
        epoch: int = 0,
    ) -> None:
        self.node = placement.node
        self.placement = placement
        self.host = host
        self.rules = rules
        self.epoch = epoch
        self.peers = dict(peers)
        """Living neighbours and the life each is in."""
        self.handovers = Handovers(placement, host, rules, timing.repeat_s)
        self.phase: Collecting | Promised | Expecting | None = None
        self._timing = timing
        self._rounds = 0

    @property
    def is_busy(self) -> bool:
        return self.phase is not None or self.handovers.is_open

    def deadline_s(self) -> float | None:
        """When `DeadlinePassed` is wanted; None for never."""
        phase = () if self.phase is None else (self.phase.deadline_s,)
        return min((*phase, *self.handovers.deadlines_s()), default=None)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case MessageReceived(message):
                return self._on_message(message, now_s)
            case PeriodElapsed():
                return self._on_period(now_s)
            case DeadlinePassed():
                return self._on_deadline(now_s)
            case TransferOrdered(transfer):
                return self._on_order(transfer, now_s)
            case PeerDied(peer):
                return self._on_peer_died(peer, now_s)
            case PeerJoined(peer, epoch):
                effects = self._on_peer_died(peer, now_s) if self.peers.get(peer, epoch) != epoch else []
                self.peers[peer] = epoch
                return effects

    # Beginning a round.

    def _on_period(self, now_s: float) -> list[Effect]:
        """[AMI listing 3]. Neighbours to whom there is nothing to offer are not asked: their reply could only be empty,
        and they would be kept from better."""
        if self.is_busy or not self.peers:
            return []
        usage = self.host.usage()
        band = self.rules.band(usage)
        requests: dict[EdgeNodeId, Message] = {}
        round_ = RoundId(self.node, self._rounds + 1)
        if band is Band.OVERLOADED:
            for one in policy.offered(self._available().values(), usage, self.rules):
                if one.destination in self.peers:
                    known = requests.get(one.destination)
                    requests[one.destination] = (
                        self._message(MessageType.OP_OFFER_REQUEST, one.destination, round_, transfers=(one,))
                        if known is None
                        else replace(known, transfers=(*known.transfers, one))
                    )
        elif band is Band.UNDERLOADED:
            size_pct = policy.demanded_pct(usage, self.rules)
            for peer in self.peers:
                requests[peer] = self._message(MessageType.OP_DEMAND_REQUEST, peer, round_, size_pct=size_pct)
        if not requests:
            return []
        self._rounds += 1
        asked = tuple(requests)
        self.phase = Collecting(round_, band, asked, set(asked), now_s + self._timing.reply_within_s)
        return [SendMessage(request) for request in requests.values()]

    def _on_order(self, wanted: Transfer, now_s: float) -> list[Effect]:
        self._rounds += 1
        transfer = self._available().get((wanted.destination, wanted.operators))
        order = self._message(MessageType.OP_OFFER_TRANSFER_REQUEST, self.node, RoundId(self.node, self._rounds))
        if transfer is None or transfer.destination not in self.peers or self.is_busy:
            return [RejectMessage(replace(order, transfers=(wanted,)), Code.UNAVAILABLE)]
        request = self.handovers.begin(transfer.destination, (transfer,), order.round, now_s)
        return [SendMessage(self._stamped(request))]

    # Messages.

    def _on_message(self, message: Message, now_s: float) -> list[Effect]:
        if message.sender not in self.peers or message.receiver != self.node:
            return [RejectMessage(message, Code.NOT_ADJACENT)]
        if message.sender_epoch != self.peers[message.sender] or message.receiver_epoch != self.epoch:
            return [RejectMessage(message, Code.WRONG_EPOCH)]
        match message.type:
            case MessageType.OP_OFFER_REQUEST | MessageType.OP_DEMAND_REQUEST:
                return self._on_request(message, now_s)
            case MessageType.OP_OFFER_REPLY | MessageType.OP_DEMAND_REPLY:
                return self._on_reply(message, now_s)
            case MessageType.OP_DEMAND_TRANSFER_REQUEST:
                return self._on_demand_transfer_request(message, now_s)
            case MessageType.OP_OFFER_TRANSFER_REQUEST:
                return self._on_parcels(message, now_s)
            case MessageType.OP_OFFER_TRANSFER_REPLY:
                return self._answer(message, self.handovers.on_reply(message))
            case MessageType.CLEAR:
                return self._on_clear(message)

    def _on_request(self, message: Message, now_s: float) -> list[Effect]:
        """A neighbour began a round [AMI listings 4 and 8]."""
        effects: list[Effect] = []
        if isinstance(self.phase, Promised) and self.phase.reply.receiver == message.sender:
            if self.phase.reply.round == message.round:
                return [SendMessage(self._stamped(self.phase.reply))]  # a repetition gets the same answer
            self.phase = None  # it began another round, so the one we promised something in is over
        if isinstance(self.phase, Collecting) and self._goes_before_us(message, self.phase):
            effects += self._withdraw(self.phase, message.sender)
        nothing = self.is_busy
        reply = self._offer_reply(message, nothing) if _is_offer(message) else self._demand_reply(message, nothing)
        if reply.transfers:
            reserved = total_usage(one.usage for one in reply.transfers) if _is_offer(message) else NOTHING
            self.phase = Promised(reply, reserved, now_s + self._timing.promise_for_s)
        return [*effects, SendMessage(reply)]

    def _offer_reply(self, message: Message, nothing: bool) -> Message:
        reply = self._message(MessageType.OP_OFFER_REPLY, message.sender, message.round)
        if nothing:
            return reply
        usage = self.host.usage()
        possible = [one for one in message.transfers if self.placement.may_come(one.operators, message.sender)]
        return replace(
            reply,
            transfers=policy.acceptable(possible, usage, self.rules),
            urgent=policy.acceptor_urgency(usage, self.rules),
        )

    def _demand_reply(self, message: Message, nothing: bool) -> Message:
        reply = self._message(MessageType.OP_DEMAND_REPLY, message.sender, message.round)
        usage = self.host.usage()
        if nothing or self.rules.load_pct(usage) <= self.rules.thresholds.target_pct:
            return reply  # [AMI listing 8, lines 2–3]
        theirs = self._available(message.sender).values()
        return replace(
            reply,
            transfers=policy.givable(theirs, message.size_pct, usage, self.rules),
            urgent=policy.giver_urgency(usage, self.rules),
        )

    def _goes_before_us(self, message: Message, ours: Collecting) -> bool:
        """Only between two nodes that wait for each other; anyone else gets an empty reply and tries again."""
        if message.sender not in ours.waiting:
            return False
        theirs = (not _is_offer(message), message.sender)
        return theirs < (ours.band is not Band.OVERLOADED, self.node)

    def _withdraw(self, ours: Collecting, stronger: EdgeNodeId) -> list[Effect]:
        """Others may have promised something already; the stronger one's reply will find the round over."""
        self.phase = None
        return [self._clear(peer, ours.round) for peer in ours.asked if peer != stronger and peer in self.peers]

    def _on_reply(self, message: Message, now_s: float) -> list[Effect]:
        phase = self.phase
        if not isinstance(phase, Collecting) or message.round != phase.round or message.sender not in phase.waiting:
            if message.round.initiator == self.node and message.transfers and not self._is_current(message):
                return [RejectMessage(message, Code.STALE_ROUND), self._clear(message.sender, message.round)]
            return [RejectMessage(message, Code.STALE_ROUND)]
        phase.waiting.discard(message.sender)
        phase.replies.append(Reply(message.sender, message.urgent, message.transfers))
        return [] if phase.waiting else self._decide(phase, now_s)

    def _is_current(self, message: Message) -> bool:
        """True for a repeated reply in a round that still runs or that this node has answered with operators."""
        outgoing = self.handovers.outgoing.get(message.sender)
        return (isinstance(self.phase, Collecting | Expecting) and self.phase.round == message.round) or (
            outgoing is not None and outgoing.request.round == message.round
        )

    def _decide(self, phase: Collecting, now_s: float) -> list[Effect]:
        self.phase = None
        if phase.band is Band.OVERLOADED:
            return self._give(
                phase, policy.agreed(phase.replies, self.host.usage(), self._available(), self.rules), now_s
            )
        return self._take(phase, now_s)

    def _give(self, phase: Collecting, plan: Mapping[EdgeNodeId, tuple[Transfer, ...]], now_s: float) -> list[Effect]:
        """[AMI listing 5]: the chosen get operators, the others Clear."""
        effects: list[Effect] = []
        for peer in phase.asked:
            if peer in plan and peer in self.peers:
                request = self.handovers.begin(peer, plan[peer], phase.round, now_s)
                effects.append(SendMessage(self._stamped(request)))
            elif peer in self.peers:
                effects.append(self._clear(peer, phase.round))
        return effects

    def _take(self, phase: Collecting, now_s: float) -> list[Effect]:
        """[AMI listing 9], except that the operators are loaded when they arrive, not before."""
        replies = [
            replace(
                reply,
                transfers=tuple(one for one in reply.transfers if self.placement.may_come(one.operators, reply.sender)),
            )
            for reply in phase.replies
        ]
        plan = policy.taken(replies, self.host.usage(), self.rules)
        effects: list[Effect] = []
        for peer in phase.asked:
            if peer in plan and peer in self.peers:
                wanted = self._message(MessageType.OP_DEMAND_TRANSFER_REQUEST, peer, phase.round, transfers=plan[peer])
                effects.append(SendMessage(wanted))
            elif peer in self.peers:
                effects.append(self._clear(peer, phase.round))
        if plan:
            self.phase = Expecting(phase.round, set(plan), now_s + self._timing.promise_for_s)
        return effects

    def _on_demand_transfer_request(self, message: Message, now_s: float) -> list[Effect]:
        """[AMI listing 10], as the beginning of a hand-over."""
        if not self._promised_in(message):
            outgoing = self.handovers.outgoing.get(message.sender)
            if outgoing is not None and outgoing.request.round == message.round:
                return []  # a repetition: the operators are on their way
            return [RejectMessage(message, Code.STALE_ROUND), self._clear(message.sender, message.round)]
        self.phase = None
        wanted = Reply(message.sender, Urgency.NORMAL, message.transfers)
        plan = policy.agreed([wanted], self.host.usage(), self._available(), self.rules)
        if message.sender not in plan or message.sender in self.handovers.outgoing:
            return [self._clear(message.sender, message.round)]
        request = self.handovers.begin(message.sender, plan[message.sender], message.round, now_s)
        return [SendMessage(self._stamped(request))]

    def _on_parcels(self, message: Message, now_s: float) -> list[Effect]:
        promised_elsewhere = (
            self.phase.reserved if isinstance(self.phase, Promised) and not self._promised_in(message) else NOTHING
        )
        answer = self.handovers.on_request(message, promised_elsewhere, now_s)
        if isinstance(answer, Message):
            self._round_ended_with(message)
        return self._answer(message, answer)

    def _on_clear(self, message: Message) -> list[Effect]:
        if message.handover is not None:
            return self._answer(message, self.handovers.on_clear(message))
        self._round_ended_with(message)
        return []

    def _round_ended_with(self, message: Message) -> None:
        if self._promised_in(message):
            self.phase = None
        elif isinstance(self.phase, Expecting) and self.phase.round == message.round:
            self.phase.givers.discard(message.sender)
            if not self.phase.givers:
                self.phase = None

    def _promised_in(self, message: Message) -> bool:
        phase = self.phase
        return (
            isinstance(phase, Promised)
            and phase.reply.receiver == message.sender
            and phase.reply.round == message.round
        )

    # Time and death.

    def _on_deadline(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = [SendMessage(self._stamped(one)) for one in self.handovers.on_deadline(now_s)]
        phase = self.phase
        if phase is not None and phase.deadline_s <= now_s:
            if isinstance(phase, Collecting):
                return effects + self._decide(phase, now_s)
            self.phase = None
        return effects

    def _on_peer_died(self, peer: EdgeNodeId, now_s: float) -> list[Effect]:
        if self.peers.pop(peer, None) is None:
            return []
        self.handovers.on_peer_died(peer)
        phase = self.phase
        if isinstance(phase, Promised) and phase.reply.receiver == peer:
            self.phase = None
        elif isinstance(phase, Expecting):
            phase.givers.discard(peer)
            if not phase.givers:
                self.phase = None
        elif isinstance(phase, Collecting):
            phase.replies = [reply for reply in phase.replies if reply.sender != peer]
            phase.waiting.discard(peer)
            if not phase.waiting:
                return self._decide(phase, now_s)
        return []

    # Words.

    def _available(self, only: EdgeNodeId | None = None) -> dict[tuple[EdgeNodeId, tuple[OperatorId, ...]], Transfer]:
        """What could move now (to one neighbour, if named), with what it uses now."""
        return {
            (one.destination, one.operators): Transfer(
                one.operators, one.destination, self.host.usage_of(one.operators)
            )
            for one in self.placement.available_transfers()
            if only is None or one.destination == only
        }

    def _answer(self, message: Message, answer: Message | Code | None) -> list[Effect]:
        if answer is None:
            return []
        if isinstance(answer, Code):
            return [RejectMessage(message, answer)]
        return [SendMessage(self._stamped(answer))]

    def _clear(self, peer: EdgeNodeId, round_: RoundId) -> Effect:
        return SendMessage(self._message(MessageType.CLEAR, peer, round_))

    def _message(
        self,
        type_: MessageType,
        receiver: EdgeNodeId,
        round_: RoundId,
        size_pct: float = 0.0,
        transfers: tuple[Transfer, ...] = (),
    ) -> Message:
        return Message(
            type_, self.node, receiver, round_, size_pct=size_pct, transfers=transfers,
            sender_epoch=self.epoch, receiver_epoch=self.peers.get(receiver, self.epoch),
        )  # fmt: skip

    def _stamped(self, message: Message) -> Message:
        return replace(message, sender_epoch=self.epoch, receiver_epoch=self.peers[message.receiver])


def _is_offer(message: Message) -> bool:
    return message.type is MessageType.OP_OFFER_REQUEST
