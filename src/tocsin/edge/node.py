"""An edge node: its operators at work and its side of the protocol, as one thing to drive.

`handle(event, now_s)` returns effects; a driver sends pieces and messages in the order given, calls back at
`deadline_s()`, and beats the monitoring period. Pieces go before messages, because a message may speak of pieces
already sent. The same class serves a live process and a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tocsin.edge import messages
from tocsin.edge.dataflow import Dataflow
from tocsin.edge.messages import Code, Piece
from tocsin.edge.negotiation import Negotiator
from tocsin.edge.placement import Placement
from tocsin.edge.plan import QueryPlan, graph_of
from tocsin.edge.rounds import DEFAULT_TIMING, Timing
from tocsin.edge.selection import Selection
from tocsin.model.edge import EdgeNodeId, OperatorId, Tree
from tocsin.policies.operators.transfer import DEFAULT_RULES, Rules


@dataclass(frozen=True, slots=True)
class ReadingsArrived:
    """From meters, at the node where their stream enters the tree."""

    stream: str
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class WatermarkAdvanced:
    """No reading of this stream older than this will enter here: the clock of a silent meter."""

    stream: str
    watermark_us: int


@dataclass(frozen=True, slots=True)
class PieceReceived:
    sender: EdgeNodeId
    piece: Piece


Event = messages.Event | ReadingsArrived | WatermarkAdvanced | PieceReceived


@dataclass(frozen=True, slots=True)
class SendPiece:
    """To the parent, in order and without loss."""

    receiver: EdgeNodeId
    piece: Piece


@dataclass(frozen=True, slots=True)
class EmitResult:
    """The root has rows of a query for whoever asked for it."""

    query: str
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class RejectData:
    """Readings or a piece that were turned down: to count and to log. Nothing else happened."""

    sender: str
    """A neighbour, or the stream the readings claim to be."""
    code: Code


Effect = messages.Effect | SendPiece | EmitResult | RejectData


class EdgeNode:
    def __init__(
        self,
        node: EdgeNodeId,
        tree: Tree,
        plans: Sequence[QueryPlan],
        placement: Mapping[OperatorId, EdgeNodeId],
        memory_bytes: int,
        rules: Rules = DEFAULT_RULES,
        timing: Timing = DEFAULT_TIMING,
        epoch: int = 0,
    ) -> None:
        """`placement` says where every operator of the plans is at this moment."""
        self.node = node
        self._parent = tree.parent(node)
        self._children = tree.children[node]
        here = [operator for operator, place in placement.items() if place == node]
        below = [
            operator for operator, place in placement.items() if place != node and tree.is_at_or_above(node, place)
        ]
        self.dataflow = Dataflow(node, self._parent, plans, here, memory_bytes)
        known = Placement(node, Selection(graph_of(plans), tree), here, below)
        peers = dict.fromkeys(tree.neighbours(node), epoch)
        self.negotiator = Negotiator(known, self.dataflow, peers, rules, timing, epoch)

    def deadline_s(self) -> float | None:
        return self.negotiator.deadline_s()

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        effects: list[messages.Effect] = []
        match event:
            case ReadingsArrived(stream, batch):
                if not self.dataflow.declared(stream, batch.schema):
                    return [RejectData(stream, Code.WRONG_COLUMNS)]
                self.dataflow.read(stream, batch)
            case WatermarkAdvanced(stream, watermark_us):
                self.dataflow.advance(stream, watermark_us)
            case PieceReceived(sender, piece):
                if sender not in self._children or not self.dataflow.takes(piece):
                    return [RejectData(sender, Code.UNKNOWN_OPERATOR)]
                self.dataflow.receive(sender, piece)
            case _:
                effects = self.negotiator.handle(event, now_s)
        return [*self._drained(), *effects]

    def _drained(self) -> list[Effect]:
        pieces, self.dataflow.outbox = self.dataflow.outbox, []
        results, self.dataflow.results = self.dataflow.results, []
        effects: list[Effect] = [EmitResult(result.query, result.batch) for result in results]
        if self._parent is not None:
            effects += [SendPiece(self._parent, piece) for piece in pieces]
        return effects
