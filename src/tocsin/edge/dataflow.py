"""The running operators of one node: pieces of streams come in; pieces for the parent and results go out.

A dataflow is the `OperatorHost` of a live node. It runs the operators, measures their usage, and freezes, moves and
resumes them without losing or repeating a row. It knows its own operators and its parent only: a piece for an operator
that is not here goes to the parent, because streams flow upwards only.

While an operator is in transit, all data addressed to it waits, in order, at the node that will pass it on. When the
operator moves up, the giver queues the data and sends it after the operator. When the operator moves down, the taker
queues its own data and runs the giver's leftovers first. The driver collects `outbox` and `results` after each call.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.edge.messages import Parcel, Piece
from tocsin.edge.operators.contract import BEGINNING_OF_TIME_US, Operator, microseconds, pack, unpack
from tocsin.edge.plan import Entry, QueryPlan, Stage
from tocsin.model.edge import NOTHING, EdgeNodeId, OperatorId, Usage, total_usage


@dataclass(slots=True)
class HostedOperator:
    """An operator and the watermark of each of its inputs."""

    operator: Operator
    watermarks_us: list[int]

    @property
    def watermark_us(self) -> int:
        return min(self.watermarks_us)

    def snapshot(self) -> bytes:
        """The watermarks of the inputs, followed by the operator's state."""
        header = pack({"watermarks_us": self.watermarks_us})
        return len(header).to_bytes(8, "little") + header + self.operator.snapshot()

    def restore(self, state: bytes) -> None:
        length = int.from_bytes(state[:8], "little")
        watermarks_us = [int(value) for value in unpack(state[8 : 8 + length])[0]["watermarks_us"]]
        if len(watermarks_us) != len(self.watermarks_us):
            raise ValueError(f"{len(watermarks_us)} watermarks for {len(self.watermarks_us)} inputs")
        self.watermarks_us = watermarks_us
        if len(state) > 8 + length:
            self.operator.restore(state[8 + length :])


class Dataflow:
    def __init__(
        self,
        node: EdgeNodeId,
        parent: EdgeNodeId | None,
        plans: Iterable[QueryPlan],
        here: Iterable[OperatorId],
        memory_bytes: int,
    ) -> None:
        self.node = node
        self._parent = parent
        self._memory_bytes = memory_bytes
        self._plans: dict[OperatorId, QueryPlan] = {}
        self._stages: dict[OperatorId, Stage] = {}
        self._entries: dict[Entry, list[QueryPlan]] = {}
        for plan in plans:
            for stage in plan.stages:
                self._plans[stage.operator], self._stages[stage.operator] = plan, stage
            for feeder in plan.fed_by:
                if isinstance(feeder, Entry) and feeder.node == node:
                    self._entries.setdefault(feeder, []).append(plan)
        self._entry_watermarks_us: dict[tuple[str, Entry], int] = {}
        self._running: dict[OperatorId, HostedOperator] = {operator: self._create(operator) for operator in here}
        self._stopped: dict[OperatorId, HostedOperator] = {}
        """Operators that are frozen for a transfer, or held and not yet started."""
        self._queued: list[Piece] = []
        """Data for stopped operators, in the order of arrival."""
        self._sent: Counter[EdgeNodeId] = Counter()
        self._received: Counter[EdgeNodeId] = Counter()
        self.observed: dict[OperatorId, Usage] = {}
        """CPU and network usage, measured by a driver with a clock. Memory is measured here."""
        self.outbox: list[Piece] = []
        """Pieces to send to the parent."""
        self.results: list[tuple[str, pa.RecordBatch]] = []
        """At the root: result rows with the name of their query."""

    @property
    def running(self) -> frozenset[OperatorId]:
        return frozenset(self._running)

    def late_rows(self) -> dict[OperatorId, int]:
        """Rows that each operator here dropped as late; operators without late rows are left out."""
        hosted = self._running | self._stopped
        return {name: entry.operator.late_rows for name, entry in hosted.items() if entry.operator.late_rows}

    # Data.

    def read(self, stream: str, batch: pa.RecordBatch) -> None:
        """Feed readings that enter here. Each query's watermark follows the newest reading, behind by its lateness."""
        entry = Entry(stream, self.node)
        for plan in self._entries.get(entry, ()):
            self._feed(plan, entry, batch, None)
            newest = pc.max(microseconds(batch.column(plan.streams[stream].time))).as_py()
            if newest is not None:
                self._advance(plan, entry, newest - plan.lateness_us)

    def advance(self, stream: str, watermark_us: int) -> None:
        """Raise the watermark of a stream that enters here, so that a silent meter does not hold up the others."""
        entry = Entry(stream, self.node)
        for plan in self._entries.get(entry, ()):
            self._advance(plan, entry, watermark_us)

    def accepts(self, piece: Piece) -> bool:
        """True if the piece is for an input of a known query that data can reach from here."""
        stage = self._stages.get(piece.operator)
        if stage is None or not -1 <= piece.port < len(stage.inputs):
            return False
        here = piece.operator in self._running or piece.operator in self._stopped
        return here or piece.port < 0 or self._parent is not None

    def matches_declaration(self, stream: str, schema: pa.Schema) -> bool:
        """True if the queries that read the stream here expect these columns."""
        plans = self._entries.get(Entry(stream, self.node), ())
        return all(schema.equals(plan.streams[stream].arrow()) for plan in plans)

    def receive(self, sender: EdgeNodeId, piece: Piece) -> None:
        """Deliver a piece from a child."""
        self._received[sender] += 1
        self._deliver(piece)

    def _advance(self, plan: QueryPlan, entry: Entry, watermark_us: int) -> None:
        before_us = self._entry_watermarks_us.get((plan.name, entry), BEGINNING_OF_TIME_US)
        if watermark_us > before_us:
            self._entry_watermarks_us[plan.name, entry] = watermark_us
            self._feed(plan, entry, None, watermark_us)

    def _feed(
        self, plan: QueryPlan, feeder: OperatorId | Entry, batch: pa.RecordBatch | None, watermark_us: int | None
    ) -> None:
        for operator, port in plan.fed_by.get(feeder, ()):
            self._deliver(Piece(operator, port, batch, watermark_us))
        if feeder == plan.result_of and batch is not None:
            self._deliver(Piece(plan.result_of, -1, batch))

    def _deliver(self, piece: Piece) -> None:
        """Run the piece, queue it or send it up. Port −1 marks result rows of a query, which go to the root."""
        if piece.port < 0:
            if self._parent is None and piece.batch is not None:
                self.results.append((self._plans[piece.operator].name, piece.batch))
            else:
                self._send_up(piece)
        elif piece.operator in self._stopped:
            self._queued.append(piece)
        elif (hosted := self._running.get(piece.operator)) is not None:
            self._process(piece, hosted)
        else:
            self._send_up(piece)

    def _send_up(self, piece: Piece) -> None:
        if self._parent is None:
            raise RuntimeError(f"the root {self.node} does not run {piece.operator}; it runs {self.running}")
        self._sent[self._parent] += 1
        self.outbox.append(piece)

    def _process(self, piece: Piece, hosted: HostedOperator) -> None:
        operator, plan = hosted.operator, self._plans[piece.operator]
        if piece.batch is not None:
            for batch in operator.on_batch(piece.port, piece.batch, hosted.watermark_us):
                self._feed(plan, piece.operator, batch, None)
        if piece.watermark_us is not None:
            before_us = hosted.watermark_us
            hosted.watermarks_us[piece.port] = max(hosted.watermarks_us[piece.port], piece.watermark_us)
            watermark_us = hosted.watermark_us
            if watermark_us > before_us:
                notify_at_us = operator.notify_at()
                if notify_at_us is not None and notify_at_us <= watermark_us:
                    for batch in operator.on_notify(watermark_us):
                        self._feed(plan, piece.operator, batch, None)
                self._feed(plan, piece.operator, None, watermark_us - operator.delay_us)

    # The operator host: see `handover.OperatorHost`.

    def usage(self) -> Usage:
        return self.usage_of((*self._running, *self._stopped))

    def usage_of(self, operators: Iterable[OperatorId]) -> Usage:
        return total_usage(self._usage_of(operator) for operator in operators)

    def _usage_of(self, operator: OperatorId) -> Usage:
        """Memory is the state plus the queued data, in percent of the node's memory."""
        hosted = self._running.get(operator) or self._stopped[operator]
        queued_bytes = sum(piece.size_bytes for piece in self._queued if piece.operator == operator)
        observed = self.observed.get(operator, NOTHING)
        memory_pct = 100 * (hosted.operator.state_bytes() + queued_bytes) / self._memory_bytes
        return Usage(memory_pct, observed.cpu_pct, observed.network_pct)

    def sent_to(self, peer: EdgeNodeId) -> int:
        return self._sent[peer]

    def received_from(self, peer: EdgeNodeId) -> int:
        return self._received[peer]

    def freeze(self, operators: Sequence[OperatorId]) -> tuple[Parcel, ...]:
        for operator in operators:
            self._stopped[operator] = self._running.pop(operator)
        return tuple(
            Parcel(operator, self._usage_of(operator), self._stopped[operator].snapshot()) for operator in operators
        )

    def hold(self, parcels: Sequence[Parcel]) -> bool:
        restored = {parcel.operator: self._create(parcel.operator) for parcel in parcels}
        try:
            for parcel in parcels:
                restored[parcel.operator].restore(parcel.state)
        except (ValueError, LookupError, TypeError, struct.error, pa.ArrowException):
            return False
        self._stopped |= restored
        return True

    def start(self, operators: Sequence[OperatorId], leftovers: Sequence[Piece]) -> None:
        for operator in operators:
            self._running[operator] = self._stopped.pop(operator)
        for piece in (*leftovers, *self._take_queued(operators)):
            self._deliver(piece)

    def release(self, operators: Sequence[OperatorId], taker: EdgeNodeId) -> tuple[Piece, ...]:
        for operator in operators:
            del self._stopped[operator]
            self.observed.pop(operator, None)
        leftovers = self._take_queued(operators)
        if taker != self._parent:
            return leftovers
        for piece in leftovers:
            self._send_up(piece)  # later pieces take the same path, so these arrive first
        return ()

    def _take_queued(self, operators: Sequence[OperatorId]) -> tuple[Piece, ...]:
        taken = tuple(piece for piece in self._queued if piece.operator in operators)
        self._queued = [piece for piece in self._queued if piece.operator not in operators]
        return taken

    def _create(self, operator: OperatorId) -> HostedOperator:
        stage = self._stages[operator]
        return HostedOperator(stage.spec.create(), [BEGINNING_OF_TIME_US] * len(stage.inputs))
