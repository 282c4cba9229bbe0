"""Handing operators over with their state: the second half of every negotiation [AMI listings 6, 7, 10; figure 6].

The giver always leads, in a demand too. In listing 9 the taker loads the operators and then says so, in listing 10 the
giver unloads them when it hears: between the two, or for good if that message is lost, they run twice. Here an
opDemandTransferRequest asks the giver to begin what an offer begins by itself:

    giver   freezes the operators, sends opOfferTransferRequest with their state, repeats it until it is answered
    taker   decides once: holds them (not yet running) or refuses; opOfferTransferReply, the same to every repetition
    giver   on yes lets go, sends Clear with the tuples that reached it meanwhile; on no resumes from its own copy
    taker   repeats its yes until Clear has come, then runs them: leftovers first, then what it has queued itself

At every moment exactly one node is responsible for an operator, and at most one runs it. A taker does not pass on what
is not confirmed, so a giver that learns of the taker's death knows that its frozen copy is the only one and resumes it.
If neither an answer nor a death is ever reported, the operators stay frozen: to guess would be to run them twice.

This module is pure and sends nothing by itself; `negotiation.py` drives it and a host holds the operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tocsin.edge.messages import Code, Message, MessageType, Parcel, Piece, RoundId
from tocsin.edge.placement import Placement
from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer, Usage, total_usage
from tocsin.policies.operators.transfer import Rules


class OperatorHost(Protocol):
    """Who really runs the operators: a dataflow at a live node, numbers in a simulation."""

    def usage(self) -> Usage:
        """Of everything held, frozen and queued included."""

    def usage_of(self, operators: Iterable[OperatorId]) -> Usage: ...

    def sent_to(self, peer: EdgeNodeId) -> int:
        """Pieces of data sent to a neighbour so far."""

    def received_from(self, peer: EdgeNodeId) -> int: ...

    def freeze(self, operators: Sequence[OperatorId]) -> tuple[Parcel, ...]:
        """Stop running them, keep what arrives for them, return their state."""

    def resume(self, operators: Sequence[OperatorId]) -> None:
        """Run them again, first on what arrived meanwhile."""

    def hold(self, parcels: Sequence[Parcel]) -> bool:
        """Restore them, but keep what arrives for them until `start`. False, and nothing changed, if that fails."""

    def start(self, operators: Sequence[OperatorId], leftovers: Sequence[Piece]) -> None:
        """Run them: first on the leftovers, then on what arrived meanwhile."""

    def let_go(self, operators: Sequence[OperatorId], taker: EdgeNodeId) -> tuple[Piece, ...]:
        """Forget them and return what arrived for them meanwhile, unless the host itself forwards it to the taker."""


@dataclass(slots=True)
class Outgoing:
    request: Message
    operators: tuple[OperatorId, ...]
    repeat_at_s: float


@dataclass(slots=True)
class Incoming:
    reply: Message
    operators: tuple[OperatorId, ...]
    repeat_at_s: float


class Handovers:
    """All hand-overs of one node; with one neighbour at most one in each direction."""

    def __init__(self, placement: Placement, host: OperatorHost, rules: Rules, repeat_s: float) -> None:
        self._placement = placement
        self._host = host
        self._rules = rules
        self._repeat_s = repeat_s
        self._number = 0
        self.outgoing: dict[EdgeNodeId, Outgoing] = {}
        self.incoming: dict[EdgeNodeId, Incoming] = {}
        self._decided: dict[EdgeNodeId, Message] = {}
        """The latest reply to each giver: a repeated request gets the same answer, an older one none."""
        self._confirmed: dict[EdgeNodeId, Message] = {}
        """The latest Clear to each taker, until a later hand-over to it succeeds, which it cannot before that Clear."""

    @property
    def is_open(self) -> bool:
        return bool(self.outgoing or self.incoming)

    def deadlines_s(self) -> Iterator[float]:
        yield from (one.repeat_at_s for one in self.outgoing.values())
        yield from (one.repeat_at_s for one in self.incoming.values())

    def begin(self, taker: EdgeNodeId, transfers: tuple[Transfer, ...], round_: RoundId, now_s: float) -> Message:
        operators = tuple(operator for one in transfers for operator in one.operators)
        if taker in self.outgoing or any(operator in self._placement.leaving for operator in operators):
            raise RuntimeError(f"{self._placement.node} gives {operators} twice; leaving: {self._placement.leaving}")
        self._number += 1
        self._placement.freeze(operators, taker)
        request = Message(
            MessageType.OP_OFFER_TRANSFER_REQUEST, self._placement.node, taker, round_,
            transfers=transfers, handover=self._number, parcels=self._host.freeze(operators),
            barrier=self._host.sent_to(taker),
        )  # fmt: skip
        self.outgoing[taker] = Outgoing(request, operators, now_s + self._repeat_s)
        return request

    def on_request(self, message: Message, promised: Usage, now_s: float) -> Message | Code:
        """A giver's parcels. `promised` is what this node has promised to take from others meanwhile."""
        giver = message.sender
        if message.handover is None:
            return Code.STALE_HANDOVER
        known = self._decided.get(giver)
        if known is not None and known.handover is not None and message.handover <= known.handover:
            return known if message.handover == known.handover else Code.STALE_HANDOVER
        if self._host.received_from(giver) < message.barrier:
            return Code.OUTRAN_DATA  # results the operators produced at the giver are still on their way to us
        refusal = self._reason_to_refuse(message, promised)
        if refusal is None and not self._host.hold(message.parcels):
            refusal = Code.UNREADABLE
        operators = tuple(parcel.operator for parcel in message.parcels)
        reply = Message(
            MessageType.OP_OFFER_TRANSFER_REPLY, self._placement.node, giver, message.round,
            transfers=() if refusal else message.transfers, handover=message.handover, refusal=refusal,
            barrier=self._host.sent_to(giver),
        )  # fmt: skip
        self._decided[giver] = reply
        if refusal is None:
            self._placement.arrive(operators)
            self.incoming[giver] = Incoming(reply, operators, now_s + self._repeat_s)
        return reply

    def _reason_to_refuse(self, message: Message, promised: Usage) -> Code | None:
        if message.sender in self.incoming:
            return Code.UNSETTLED
        if not self._placement.may_come([parcel.operator for parcel in message.parcels], message.sender):
            return Code.INFEASIBLE
        arriving = total_usage(parcel.usage for parcel in message.parcels)
        # Listing 6 loads whatever it is sent. The operators may have grown since they were promised a place.
        return None if self._rules.may_hold(self._host.usage() + promised + arriving) else Code.ABOVE_UPPER_THRESHOLD

    def on_reply(self, message: Message) -> Message | Code | None:
        """The taker's answer. Returns the Clear to send, a rejection, or None when it refused."""
        taker = message.sender
        confirmed = self._confirmed.get(taker)
        if confirmed is not None and confirmed.handover == message.handover:
            return confirmed
        outgoing = self.outgoing.get(taker)
        if outgoing is None or outgoing.request.handover != message.handover:
            return Code.STALE_HANDOVER
        if message.refusal is not None:
            self._take_back(taker)
            return None
        if self._host.received_from(taker) < message.barrier:
            return Code.OUTRAN_DATA  # tuples for the operators that the taker sent up before it held them
        del self.outgoing[taker]
        leftovers = self._host.let_go(outgoing.operators, taker)
        self._placement.depart(outgoing.operators)
        clear = Message(
            MessageType.CLEAR, self._placement.node, taker, message.round,
            handover=message.handover, leftovers=leftovers,
        )  # fmt: skip
        self._confirmed[taker] = clear
        return clear

    def on_clear(self, message: Message) -> Code | None:
        incoming = self.incoming.get(message.sender)
        if incoming is None or incoming.reply.handover != message.handover:
            return Code.STALE_HANDOVER
        self._settle(message.sender, message.leftovers)
        return None

    def on_deadline(self, now_s: float) -> list[Message]:
        due: list[Message] = []
        for out in self.outgoing.values():
            if out.repeat_at_s <= now_s:
                out.repeat_at_s = now_s + self._repeat_s
                due.append(out.request)
        for inc in self.incoming.values():
            if inc.repeat_at_s <= now_s:
                inc.repeat_at_s = now_s + self._repeat_s
                due.append(inc.reply)
        return due

    def on_peer_died(self, peer: EdgeNodeId) -> None:
        if peer in self.outgoing:
            self._take_back(peer)
        if peer in self.incoming:
            self._settle(peer, ())  # what the giver still kept for them died with it, like all data in its hands
        self._decided.pop(peer, None)
        self._confirmed.pop(peer, None)

    def _take_back(self, taker: EdgeNodeId) -> None:
        operators = self.outgoing.pop(taker).operators
        self._placement.resume(operators)
        self._host.resume(operators)

    def _settle(self, giver: EdgeNodeId, leftovers: tuple[Piece, ...]) -> None:
        operators = self.incoming.pop(giver).operators
        self._placement.confirm(operators)
        self._host.start(operators, leftovers)
