"""An edge node: the operators it runs and its part in the load balancing protocol.

`handle(event, now_s)` returns effects. A driver sends pieces and messages in the order given, calls back at
`deadline_s()`, and sends `PeriodElapsed` once a monitoring period. Pieces come before messages, because a message may
refer to pieces already sent. The same class serves a live process and a simulation.

A live node has a bounded inbox (`has_inbox`): data waits there until the driver sends `ProcessNext`, which it does
while `has_work` and as often as the node's share of the processor allows. A child sends only what `SendCredit` grants;
entries read only while `has_room`. Without an inbox the node processes everything at once, and its parent grants any
amount.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tocsin.edge import messages
from tocsin.edge.dataflow import Dataflow
from tocsin.edge.entry_clock import NEVER_S
from tocsin.edge.load import NodeBudget
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
    publisher: str = ""


@dataclass(frozen=True, slots=True)
class WatermarkAdvanced:
    """No older reading of this stream will enter here. The driver sends it for silent meters."""

    stream: str
    watermark_us: int


@dataclass(frozen=True, slots=True)
class ReplayFinished:
    """All kept readings have been handed in again. Watermarks move from now on."""


@dataclass(frozen=True, slots=True)
class PieceReceived:
    sender: EdgeNodeId
    piece: Piece


@dataclass(frozen=True, slots=True)
class ChildConnected:
    """The data connection from a child is open: it needs its first credit."""

    child: EdgeNodeId


@dataclass(frozen=True, slots=True)
class CreditReceived:
    """The parent accepts this many bytes in total (`inbox.cost_bytes` of each piece) since the generation began."""

    through_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessNext:
    """Process the oldest item of the inbox, if there is one."""


Event = (
    messages.Event
    | ReadingsArrived
    | WatermarkAdvanced
    | ReplayFinished
    | PieceReceived
    | ChildConnected
    | CreditReceived
    | ProcessNext
)


@dataclass(frozen=True, slots=True)
class SendPiece:
    """Send a piece to the parent, in order and without loss."""

    receiver: EdgeNodeId
    piece: Piece


@dataclass(frozen=True, slots=True)
class SendCredit:
    child: EdgeNodeId
    through_bytes: int


@dataclass(frozen=True, slots=True)
class EmitResult:
    """At the root: result rows of a query, or the time up to which its result is complete. One of both is None.

    All rows at or below the watermark have been emitted before it.
    """

    query: str
    batch: pa.RecordBatch | None
    watermark_us: int | None = None


@dataclass(frozen=True, slots=True)
class RejectData:
    """The node rejected readings or a piece, with no other effect. The driver counts and logs it."""

    sender: str
    """A neighbour, or the stream that the readings name."""
    code: EdgeCode


Effect = messages.Effect | SendPiece | SendCredit | EmitResult | RejectData


class EdgeNode:
    def __init__(
        self,
        node: EdgeNodeId,
        tree: Tree,
        plans: Sequence[QueryPlan],
        placement: Mapping[OperatorId, EdgeNodeId],
        memory_bytes: int | NodeBudget,
        rules: TransferRules = DEFAULT_RULES,
        timing: Timing = DEFAULT_TIMING,
        epoch: int = 0,
        floors_us: Mapping[str, int] | None = None,
        has_inbox: bool = False,
        silence_s: float = NEVER_S,
        cpu_clock: Callable[[], float] | None = None,
    ) -> None:
        """`placement` gives the current node of every operator of the plans.

        `silence_s`: publishers that send nothing for so long hold no watermark back.
        """
        self._parent = tree.parents.get(node)
        self._children = tree.children[node]
        self._budget = memory_bytes if isinstance(memory_bytes, NodeBudget) else NodeBudget(memory_bytes)
        self._has_inbox = has_inbox
        self._now_s = 0.0
        self._granted_bytes: dict[EdgeNodeId, int] = {}
        """The credit last sent to each connected child."""
        here = [operator for operator, place in placement.items() if place == node]
        below = [
            operator for operator, place in placement.items() if place != node and tree.is_at_or_above(node, place)
        ]
        has_credits = has_inbox and self._parent is not None
        self.dataflow = Dataflow(
            node, self._parent, plans, here, self._budget, floors_us, silence_s, has_credits, cpu_clock
        )
        own_placement = OperatorPlacement(node, OperatorSelection(graph_of(plans), tree), here, below)
        peers = dict.fromkeys(tree.neighbours(node), epoch)
        self.negotiator = Negotiator(own_placement, self.dataflow, peers, rules, timing, epoch)

    @property
    def has_work(self) -> bool:
        """True if `ProcessNext` has something to do. A node whose parent grants no credit stops and lets data wait."""
        flow = self.dataflow
        return len(flow.inbox) > 0 and flow.uplink.waiting_bytes <= self._budget.uplink_waiting_bytes

    @property
    def has_room(self) -> bool:
        """True if entries may hand in readings. Otherwise they wait, in files or at the publisher."""
        return self.dataflow.inbox.size_bytes < self._budget.inbox_bytes

    def credit_bytes(self, child: EdgeNodeId) -> int:
        """How many bytes the child may have sent in total. Each child has an equal share of the inbox."""
        return self.dataflow.inbox.processed_bytes[child] + self._share_bytes

    @property
    def _share_bytes(self) -> int:
        return self._budget.inbox_bytes // max(1, len(self._children))

    def deadline_s(self) -> float | None:
        deadlines_s = (self.negotiator.deadline_s(), self.dataflow.entries.deadline_s(self._now_s))
        return min((at_s for at_s in deadlines_s if at_s is not None), default=None)

    def begin_replay(
        self, expected: Mapping[str, Iterable[str]], silent: Mapping[str, Collection[str]] | None = None
    ) -> None:
        """Hold the watermarks of all entries until `ReplayFinished`: see `EntryWatermarks.begin_replay`."""
        self.dataflow.entries.begin_replay(expected, silent or {})

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        self._now_s = now_s
        effects: list[Effect] = []
        flow = self.dataflow
        match event:
            case ReadingsArrived(stream, batch, publisher):
                if not flow.matches_declaration(stream, batch.schema):
                    return [RejectData(stream, EdgeCode.WRONG_COLUMNS)]
                flow.read(stream, batch, publisher, now_s)
            case WatermarkAdvanced(stream, watermark_us):
                flow.advance(stream, watermark_us)
            case ReplayFinished():
                flow.finish_replay()
            case PieceReceived(sender, piece):
                if sender not in self._children or not flow.accepts(piece):
                    return [RejectData(sender, EdgeCode.UNKNOWN_OPERATOR)]
                flow.receive(sender, piece)
            case ChildConnected(child):
                self._granted_bytes[child] = -self._share_bytes  # so that the first credit is due
            case CreditReceived(through_bytes):
                flow.uplink.grant(through_bytes)
            case ProcessNext():
                if self.has_work:
                    flow.process_next(now_s)
            case messages.PeriodElapsed():
                flow.measure(now_s)
                effects += self.negotiator.handle(event, now_s)
            case messages.EdgeDeadlinePassed():
                flow.pass_time(now_s)
                effects += self.negotiator.handle(event, now_s)
            case _:
                effects += self.negotiator.handle(event, now_s)
        while not self._has_inbox and len(flow.inbox):
            flow.process_next(now_s)
        return [*self._outputs(), *effects]

    def _outputs(self) -> list[Effect]:
        flow = self.dataflow
        results, flow.results = flow.results, []
        outputs: list[Effect] = [EmitResult(*result) for result in results]
        if self._parent is not None:
            pieces, flow.uplink.outbox = flow.uplink.outbox, []
            outputs += [SendPiece(self._parent, piece) for piece in pieces]
        for child, granted_bytes in self._granted_bytes.items():
            credit_bytes = self.credit_bytes(child)
            if credit_bytes - granted_bytes >= max(1, self._share_bytes // 4):
                self._granted_bytes[child] = credit_bytes
                outputs.append(SendCredit(child, credit_bytes))
        return outputs
