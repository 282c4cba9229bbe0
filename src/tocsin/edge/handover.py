"""Hand-over of operators with their state: the second half of every negotiation [AMI listings 6, 7, 10; figure 6].

The giver always leads, also after a demand. In listing 9 the taker loads the operators and then sends a message, and in
listing 10 the giver unloads them when it receives that message. In between, or for ever if the message is lost, both
nodes run the operators. Here an opDemandTransferRequest asks the giver to start what an offer starts by itself:

    giver   freezes the operators, sends opOfferTransferRequest with their state, repeats it until it is answered
    taker   decides once: holds them (not yet running) or refuses; opOfferTransferReply, the same to every repetition
    giver   if accepted, releases them and sends Clear with the tuples that arrived meanwhile; if refused, resumes them
    taker   repeats its acceptance until Clear arrives, then runs them: leftovers first, then its own queue

At every moment exactly one node is responsible for an operator, and at most one runs it. A taker does not pass on
unconfirmed operators, so a giver that learns of the taker's death knows that its frozen copy is the only one, and
resumes it. If neither an answer nor a death is ever reported, the operators stay frozen: resuming them on a guess could
run them twice.

This module sends nothing by itself: `negotiation.py` drives it, and a host holds the operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tocsin.edge.messages import EdgeCode, MessageType, Parcel, PeerMessage, Piece, RoundId
from tocsin.edge.placement import OperatorPlacement
from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer, Usage, total_usage
from tocsin.policies.operators.transfer import TransferRules


class OperatorHost(Protocol):
    """Runs the operators of one node: a dataflow at a live node, numbers in a simulation."""

    def usage(self) -> Usage:
        """The usage of all operators held, including frozen ones and queued data."""

    def usage_of(self, operators: Iterable[OperatorId]) -> Usage: ...

    def sent_to(self, peer: EdgeNodeId) -> int:
        """The number of pieces of data sent to a neighbour so far."""

    def received_from(self, peer: EdgeNodeId) -> int: ...

    def freeze(self, operators: Sequence[OperatorId]) -> tuple[Parcel, ...]:
        """Stop the operators, queue the data that arrives for them, and return their state."""

    def hold(self, parcels: Sequence[Parcel]) -> bool:
        """Restore the operators and queue their data until `start`. Return False, with no change, if that fails."""

    def start(self, operators: Sequence[OperatorId], leftovers: Sequence[Piece]) -> None:
        """Run frozen or held operators: first on the leftovers, then on the queued data."""

    def release(self, operators: Sequence[OperatorId], taker: EdgeNodeId) -> tuple[Piece, ...]:
        """Remove frozen operators. Return their queued data, unless the host itself forwards it to the taker."""


@dataclass(slots=True)
class OpenHandover:
    message: PeerMessage
    """The giver's request or the taker's reply, which is repeated until it is answered."""
    operators: tuple[OperatorId, ...]
    repeat_at_s: float


class Handovers:
    """All hand-overs of one node: with one neighbour at most one in each direction."""

    def __init__(self, placement: OperatorPlacement, host: OperatorHost, rules: TransferRules, repeat_s: float) -> None:
        self._placement = placement
        self._host = host
        self._rules = rules
        self._repeat_s = repeat_s
        self._number = 0
        self.outgoing: dict[EdgeNodeId, OpenHandover] = {}
        self.incoming: dict[EdgeNodeId, OpenHandover] = {}
        self._decided: dict[EdgeNodeId, PeerMessage] = {}
        """The latest reply to each giver: a repeated request gets the same reply, an older request gets none."""
        self._confirmed: dict[EdgeNodeId, PeerMessage] = {}
        """The latest Clear to each taker. The taker accepts no later hand-over before it has received this Clear."""

    @property
    def is_open(self) -> bool:
        return bool(self.outgoing or self.incoming)

    def deadlines_s(self) -> list[float]:
        return [handover.repeat_at_s for handover in (*self.outgoing.values(), *self.incoming.values())]

    def gives_in(self, message: PeerMessage) -> bool:
        """True if this node is handing operators to the sender in the message's round."""
        outgoing = self.outgoing.get(message.sender)
        return outgoing is not None and outgoing.message.round == message.round

    def begin(self, taker: EdgeNodeId, transfers: tuple[Transfer, ...], round_: RoundId, now_s: float) -> PeerMessage:
        operators = tuple(operator for transfer in transfers for operator in transfer.operators)
        if taker in self.outgoing or any(operator in self._placement.leaving for operator in operators):
            raise RuntimeError(f"{self._placement.node} gives {operators} twice; leaving: {self._placement.leaving}")
        self._number += 1
        self._placement.freeze(operators, taker)
        request = PeerMessage(
            MessageType.OP_OFFER_TRANSFER_REQUEST,
            self._placement.node,
            taker,
            round_,
            transfers=transfers,
            handover=self._number,
            parcels=self._host.freeze(operators),
            barrier=self._host.sent_to(taker),
        )
        self.outgoing[taker] = OpenHandover(request, operators, now_s + self._repeat_s)
        return request

    def on_request(self, message: PeerMessage, promised: Usage, now_s: float) -> PeerMessage | EdgeCode:
        """Accept or refuse a giver's parcels. `promised` is the usage this node has promised to other givers."""
        giver = message.sender
        if message.handover is None:
            return EdgeCode.STALE_HANDOVER
        last_reply = self._decided.get(giver)
        if last_reply is not None and last_reply.handover is not None and message.handover <= last_reply.handover:
            return last_reply if message.handover == last_reply.handover else EdgeCode.STALE_HANDOVER
        if self._host.received_from(giver) < message.barrier:
            return EdgeCode.OUTRAN_DATA  # rows that the operators produced at the giver have not arrived yet
        refusal = self._reason_to_refuse(message, promised)
        if refusal is None and not self._host.hold(message.parcels):
            refusal = EdgeCode.UNREADABLE
        reply = PeerMessage(
            MessageType.OP_OFFER_TRANSFER_REPLY,
            self._placement.node,
            giver,
            message.round,
            transfers=() if refusal else message.transfers,
            handover=message.handover,
            refusal=refusal,
            barrier=self._host.sent_to(giver),
        )
        self._decided[giver] = reply
        if refusal is None:
            operators = tuple(parcel.operator for parcel in message.parcels)
            self._placement.arrive(operators)
            self.incoming[giver] = OpenHandover(reply, operators, now_s + self._repeat_s)
        return reply

    def _reason_to_refuse(self, message: PeerMessage, promised: Usage) -> EdgeCode | None:
        if message.sender in self.incoming:
            return EdgeCode.UNSETTLED
        if not self._placement.may_arrive([parcel.operator for parcel in message.parcels], message.sender):
            return EdgeCode.INFEASIBLE
        arriving = total_usage(parcel.usage for parcel in message.parcels)
        # Listing 6 loads every operator it receives. The operators may have grown since this node promised room.
        is_small_enough = self._rules.may_hold(self._host.usage() + promised + arriving)
        return None if is_small_enough else EdgeCode.ABOVE_UPPER_THRESHOLD

    def on_reply(self, message: PeerMessage) -> PeerMessage | EdgeCode | None:
        """Handle the taker's reply. Return the Clear to send, a rejection, or None if the taker refused."""
        taker = message.sender
        confirmed = self._confirmed.get(taker)
        if confirmed is not None and confirmed.handover == message.handover:
            return confirmed
        outgoing = self.outgoing.get(taker)
        if outgoing is None or outgoing.message.handover != message.handover:
            return EdgeCode.STALE_HANDOVER
        if message.refusal is not None:
            self._take_back(taker)
            return None
        if self._host.received_from(taker) < message.barrier:
            return EdgeCode.OUTRAN_DATA  # tuples that the taker sent up before it held the operators
        del self.outgoing[taker]
        leftovers = self._host.release(outgoing.operators, taker)
        self._placement.depart(outgoing.operators)
        node, number = self._placement.node, message.handover
        clear = PeerMessage(MessageType.CLEAR, node, taker, message.round, handover=number, leftovers=leftovers)
        self._confirmed[taker] = clear
        return clear

    def on_clear(self, message: PeerMessage) -> EdgeCode | None:
        incoming = self.incoming.get(message.sender)
        if incoming is None or incoming.message.handover != message.handover:
            return EdgeCode.STALE_HANDOVER
        self._run_taken(message.sender, message.leftovers)
        return None

    def on_deadline(self, now_s: float) -> list[PeerMessage]:
        """The messages to send again now."""
        due: list[PeerMessage] = []
        for handover in (*self.outgoing.values(), *self.incoming.values()):
            if handover.repeat_at_s <= now_s:
                handover.repeat_at_s = now_s + self._repeat_s
                due.append(handover.message)
        return due

    def on_peer_died(self, peer: EdgeNodeId) -> None:
        if peer in self.outgoing:
            self._take_back(peer)
        if peer in self.incoming:
            self._run_taken(peer, ())  # the giver's leftovers are lost, like all other data it held
        self._decided.pop(peer, None)
        self._confirmed.pop(peer, None)

    def _take_back(self, taker: EdgeNodeId) -> None:
        operators = self.outgoing.pop(taker).operators
        self._placement.resume(operators)
        self._host.start(operators, ())

    def _run_taken(self, giver: EdgeNodeId, leftovers: tuple[Piece, ...]) -> None:
        operators = self.incoming.pop(giver).operators
        self._placement.confirm(operators)
        self._host.start(operators, leftovers)
