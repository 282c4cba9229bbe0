"""A tree of complete edge nodes. Links carry data in order and without loss; messages may be lost or reordered."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import pyarrow as pa

from tests.edge.edge_readings import in_seconds
from tocsin.edge.messages import (
    EdgeDeadlinePassed,
    PeerMessage,
    PeerMessageReceived,
    Piece,
    SendPeerMessage,
    TransferOrdered,
)
from tocsin.edge.node import (
    ChildConnected,
    CreditReceived,
    EdgeNode,
    EmitResult,
    Event,
    PieceReceived,
    ProcessNext,
    ReadingsArrived,
    SendCredit,
    SendPiece,
    WatermarkAdvanced,
)
from tocsin.edge.operators.contract import BEGINNING_OF_TIME_US, END_OF_TIME_US
from tocsin.edge.plan import QueryPlan
from tocsin.edge.rounds import Timing
from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer, Tree
from tocsin.policies.operators.transfer import TransferRules, TransferThresholds

ROOMY = TransferRules(TransferThresholds(lower_pct=1e6, upper_pct=1e9))


class City:
    def __init__(
        self,
        tree: Tree,
        plans: QueryPlan | list[QueryPlan],
        placement: Mapping[OperatorId, EdgeNodeId],
        memory_bytes: int = 1_000_000,
        rules: TransferRules = ROOMY,
        has_inbox: bool = False,
    ) -> None:
        self.tree = tree
        deployed = plans if isinstance(plans, list) else [plans]
        self.nodes = {
            node: EdgeNode(
                node, tree, deployed, placement, memory_bytes, rules, Timing(0.0, 0.0, 0.0), has_inbox=has_inbox
            )
            for node in tree.nodes
        }
        self.links: dict[EdgeNodeId, deque[Piece]] = {node: deque() for node in tree.nodes}
        """The pieces in transit, by the child that sent them."""
        self.messages: list[PeerMessage] = []
        self.credits: dict[EdgeNodeId, deque[int]] = {node: deque() for node in tree.nodes}
        """The credits on their way to each child."""
        self.results: list[pa.RecordBatch] = []
        self.watermark_us = BEGINNING_OF_TIME_US
        self.moves = 0
        for child, parent in tree.parents.items() if has_inbox else ():
            self.handle(parent, ChildConnected(child))

    def handle(self, node: EdgeNodeId, event: Event) -> None:
        for effect in self.nodes[node].handle(event, 0.0):
            match effect:
                case SendPiece(_, piece):
                    self.links[node].append(piece)
                case EmitResult(_, None, int(watermark_us)):
                    self.watermark_us = watermark_us
                case EmitResult(_, batch):
                    self.results.append(batch)
                case SendCredit(child, through_bytes):
                    self.credits[child].append(through_bytes)
                case SendPeerMessage(message):
                    self.messages.append(message)

    def read(self, node: EdgeNodeId, stream: str, batch: pa.RecordBatch) -> None:
        self.handle(node, ReadingsArrived(stream, batch))

    def carry(self, child: EdgeNodeId) -> None:
        """Deliver the oldest piece on the link from `child` to its parent."""
        piece = self.links[child].popleft()
        self.handle(self.tree.parents[child], PieceReceived(child, piece))

    def credit(self, child: EdgeNodeId) -> None:
        self.handle(child, CreditReceived(self.credits[child].popleft()))

    def process(self, node: EdgeNodeId) -> None:
        self.handle(node, ProcessNext())

    def working(self) -> list[EdgeNodeId]:
        return [name for name, node in self.nodes.items() if node.has_work]

    def deliver(self, number: int) -> None:
        message = self.messages.pop(number)
        before = len(self.nodes[message.receiver].negotiator.placement.here)
        self.handle(message.receiver, PeerMessageReceived(message))
        self.moves += len(self.nodes[message.receiver].negotiator.placement.here) > before

    def possible_moves(self) -> list[tuple[EdgeNodeId, Transfer]]:
        return [
            (node, transfer)
            for node, edge_node in self.nodes.items()
            if not edge_node.negotiator.is_busy
            for transfer in edge_node.negotiator.placement.available_transfers()
        ]

    def order(self, node: EdgeNodeId, transfer: Transfer) -> None:
        self.handle(node, TransferOrdered(transfer))

    def time_out(self, node: EdgeNodeId) -> None:
        self.handle(node, EdgeDeadlinePassed())

    def settle(self) -> None:
        """Deliver all data and messages, and pass deadlines until no hand-over is in progress."""
        for _ in range(10_000):
            for child in self.links:
                while self.links[child]:
                    self.carry(child)
                while self.credits[child]:
                    self.credit(child)
            while self.messages:
                self.deliver(0)
            for name in self.working():
                self.process(name)
            waiting = [name for name, node in self.nodes.items() if node.deadline_s() is not None]
            if not waiting and not self.working() and not any(self.links.values()) and not any(self.credits.values()):
                return
            for name in waiting:
                self.time_out(name)
        raise AssertionError("the city still has pending work")

    def finish(self, streams: Mapping[str, list[EdgeNodeId]]) -> list[tuple[object, ...]]:
        """End the streams and return all results."""
        self.settle()
        for stream, entries in streams.items():
            for node in entries:
                self.handle(node, WatermarkAdvanced(stream, END_OF_TIME_US))
                self.settle()
        assert all(
            not node.dataflow.inbox.size_bytes and not node.dataflow.uplink.waiting_bytes
            for node in self.nodes.values()
        )
        running = [operator for node in self.nodes.values() for operator in node.dataflow.running]
        assert len(running) == len(set(running))
        return in_seconds(self.results)

    def late_rows(self) -> int:
        return sum(count for node in self.nodes.values() for count in node.dataflow.late_rows().values())
