"""An edge node: the operators it runs and its part in the load balancing protocol.

`handle(event, now_s)` returns effects. A driver sends pieces and messages in the order given, calls back at
`deadline_s()`, and sends `PeriodElapsed` once a monitoring period. Pieces come before messages, because a message may
refer to pieces already sent. The same class serves a live process and a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tocsin.edge import messages
from tocsin.edge.dataflow import Dataflow
from tocsin.edge.messages import EdgeCode, Piece
from tocsin.edge.negotiation import Negotiator
from tocsin.edge.placement import OperatorPlacement, OperatorSelection
from tocsin.edge.plan import QueryPlan, graph_of
from tocsin.edge.rounds import DEFAULT_TIMING, Timing
from tocsin.model.edge import EdgeNodeId, OperatorId, Tree
from tocsin.policies.operators.transfer import DEFAULT_RULES, TransferRules


@dataclass(frozen=True, slots=True)
class ReadingsArrived:
    """Readings of meters, at the node where their stream enters the tree."""

    stream: str
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class WatermarkAdvanced:
    """No older reading of this stream will enter here. The driver sends it for silent meters."""

    stream: str
    watermark_us: int


@dataclass(frozen=True, slots=True)
class PieceReceived:
    sender: EdgeNodeId
    piece: Piece


Event = messages.Event | ReadingsArrived | WatermarkAdvanced | PieceReceived


@dataclass(frozen=True, slots=True)
class SendPiece:
    """Send a piece to the parent, in order and without loss."""

    receiver: EdgeNodeId
    piece: Piece


@dataclass(frozen=True, slots=True)
class EmitResult:
    """The root has result rows of a query."""

    query: str
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class RejectData:
    """The node rejected readings or a piece, with no other effect. The driver counts and logs it."""

    sender: str
    """A neighbour, or the stream that the readings name."""
    code: EdgeCode


Effect = messages.Effect | SendPiece | EmitResult | RejectData


class EdgeNode:
    def __init__(
        self,
        node: EdgeNodeId,
        tree: Tree,
        plans: Sequence[QueryPlan],
        placement: Mapping[OperatorId, EdgeNodeId],
        memory_bytes: int,
        rules: TransferRules = DEFAULT_RULES,
        timing: Timing = DEFAULT_TIMING,
        epoch: int = 0,
    ) -> None:
        """`placement` gives the current node of every operator of the plans."""
        self._parent = tree.parents.get(node)
        self._children = tree.children[node]
        here = [operator for operator, place in placement.items() if place == node]
        below = [
            operator for operator, place in placement.items() if place != node and tree.is_at_or_above(node, place)
        ]
        self.dataflow = Dataflow(node, self._parent, plans, here, memory_bytes)
        own_placement = OperatorPlacement(node, OperatorSelection(graph_of(plans), tree), here, below)
        peers = dict.fromkeys(tree.neighbours(node), epoch)
        self.negotiator = Negotiator(own_placement, self.dataflow, peers, rules, timing, epoch)

    def deadline_s(self) -> float | None:
        return self.negotiator.deadline_s()

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        effects: list[messages.Effect] = []
        match event:
            case ReadingsArrived(stream, batch):
                if not self.dataflow.matches_declaration(stream, batch.schema):
                    return [RejectData(stream, EdgeCode.WRONG_COLUMNS)]
                self.dataflow.read(stream, batch)
            case WatermarkAdvanced(stream, watermark_us):
                self.dataflow.advance(stream, watermark_us)
            case PieceReceived(sender, piece):
                if sender not in self._children or not self.dataflow.accepts(piece):
                    return [RejectData(sender, EdgeCode.UNKNOWN_OPERATOR)]
                self.dataflow.receive(sender, piece)
            case _:
                effects = self.negotiator.handle(event, now_s)
        pieces, self.dataflow.outbox = self.dataflow.outbox, []
        results, self.dataflow.results = self.dataflow.results, []
        outputs: list[Effect] = [EmitResult(query, batch) for query, batch in results]
        if self._parent is not None:
            outputs += [SendPiece(self._parent, piece) for piece in pieces]
        return [*outputs, *effects]
