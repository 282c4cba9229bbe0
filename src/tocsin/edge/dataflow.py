"""The running operators of one node: pieces of streams come in; pieces for the parent and results go out.

A dataflow is the `OperatorHost` of a live node. It runs the operators, measures their usage, and freezes, moves and
resumes them without losing or repeating a row. It knows its own operators and its parent only: a piece for an operator
that is not here goes to the parent, because streams flow upwards only.

Data waits in three places: in the inbox until it is processed, at a stopped operator until the operator runs, and for
the parent's credit. **All data for an operator passes through its node's inbox, in the order in which it was sent.** So
a hand-over need not wait until a backlog is processed:

- An operator moves up: its older output may still wait in the taker's inbox, but its next input waits behind that
  output, in the same inbox. The giver sends its queued data after the pieces that it sent before.
- An operator moves down: the giver takes the data for it out of its inbox and sends it with `Clear`; the taker
  withdraws what it has not sent up yet. The barrier of the hand-over ensures that nothing else is on the link.
- Data that waited for a hand-over is processed at once when the operator starts, before the rest of the inbox.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.edge.entry_clock import NEVER_S
from tocsin.edge.entry_watermarks import EntryWatermarks
from tocsin.edge.hosted import IDLE_US, HostedOperator
from tocsin.edge.inbox import (
    Inbox,
    WaitingPiece,
    WaitingReadings,
    WaitingWatermark,
    Work,
    cost_bytes,
    weight_bytes,
)
from tocsin.edge.load import LoadMeter, NodeBudget
from tocsin.edge.messages import Parcel, Piece
from tocsin.edge.plan import Entry, QueryPlan, Stage
from tocsin.edge.uplink import Uplink
from tocsin.model.edge import NOTHING, EdgeNodeId, OperatorId, Usage, total_usage


class Dataflow:
    def __init__(
        self,
        node: EdgeNodeId,
        parent: EdgeNodeId | None,
        plans: Iterable[QueryPlan],
        here: Iterable[OperatorId],
        budget: NodeBudget,
        floors_us: Mapping[str, int] | None = None,
        silence_s: float = NEVER_S,
        has_credits: bool = False,
        cpu_clock: Callable[[], float] | None = None,
    ) -> None:
        """`floors_us`: for each query that has results, the time up to which they are accepted.

        With `has_credits` the node sends its parent no more bytes than the parent grants.
        """
        self.node = node
        self._parent = parent
        self._memory_bytes = budget.memory_bytes
        self._floors_us = dict(floors_us or {})
        self._plans: dict[OperatorId, QueryPlan] = {}
        self._stages: dict[OperatorId, Stage] = {}
        entries: dict[str, list[QueryPlan]] = {}
        for plan in plans:
            for stage in plan.stages:
                self._plans[stage.operator], self._stages[stage.operator] = plan, stage
            for feeder in plan.fed_by:
                if isinstance(feeder, Entry) and feeder.node == node:
                    entries.setdefault(feeder.stream, []).append(plan)
        self.entries = EntryWatermarks(entries, self._floors_us, silence_s)
        self._declared = {stream: readers[0].streams[stream] for stream, readers in entries.items()}
        """The streams that enter here; all queries of a node have the same declarations."""
        self._schemas = {stream: declared.arrow() for stream, declared in self._declared.items()}
        self._running: dict[OperatorId, HostedOperator] = {operator: self._create(operator) for operator in here}
        self._stopped: dict[OperatorId, HostedOperator] = {}
        """Operators that are frozen for a transfer, or held and not yet started."""
        self._queued: list[Piece] = []
        """Data for stopped operators, in the order of arrival."""
        self._received: Counter[EdgeNodeId] = Counter()
        self.inbox = Inbox()
        self.uplink = Uplink(has_credits)
        self._meter = LoadMeter(budget, cpu_clock)
        self.observed: dict[OperatorId, Usage] = {}
        """CPU and network usage of each operator in the last period. Memory is measured here at any moment."""
        self.results: list[tuple[str, pa.RecordBatch | None, int | None]] = []
        """At the root, with the name of the query: result rows, or the time up to which the result is complete."""

    @property
    def running(self) -> frozenset[OperatorId]:
        return frozenset(self._running)

    @property
    def held(self) -> tuple[OperatorId, ...]:
        return (*self._running, *self._stopped)

    def late_rows(self) -> dict[OperatorId, int]:
        """Rows that each operator here dropped as late; operators without late rows are left out."""
        hosted = self._running | self._stopped
        return {name: entry.operator.late_rows for name, entry in hosted.items() if entry.operator.late_rows}

    # Data arrives.

    def read(self, stream: str, batch: pa.RecordBatch, publisher: str = "", now_s: float = 0.0) -> None:
        """Accept readings that enter here."""
        plans = self.entries.plans_of(stream)
        operators = [reader for plan in plans for reader, _ in plan.fed_by[Entry(stream, self.node)]]
        if operators:
            self.entries.arrive(stream, publisher, now_s)
            self._put(WaitingReadings(stream, batch, publisher, tuple(operators), int(batch.nbytes)))

    def advance(self, stream: str, watermark_us: int) -> None:
        """Raise the watermark of a stream that enters here, so that a silent meter does not hold up the others."""
        self._put(WaitingWatermark(stream, watermark_us))

    def finish_replay(self) -> None:
        self._put(WaitingWatermark(None))

    def receive(self, sender: EdgeNodeId, piece: Piece) -> None:
        """Accept a piece from a child."""
        self._received[sender] += 1
        self._put(WaitingPiece(piece, sender))

    def _put(self, work: Work) -> None:
        self.inbox.put(work)
        self._meter.arrived(weight_bytes(work))

    def accepts(self, piece: Piece) -> bool:
        """True if the piece is for an input of a known query that data can reach from here."""
        stage = self._stages.get(piece.operator)
        if stage is None or not -1 <= piece.port < len(stage.inputs):
            return False
        here = piece.operator in self._running or piece.operator in self._stopped
        return here or piece.port < 0 or self._parent is not None

    def matches_declaration(self, stream: str, schema: pa.Schema) -> bool:
        """True if the queries that read the stream here expect these columns."""
        return stream not in self._schemas or schema.equals(self._schemas[stream])

    # Data is processed.

    def process_next(self, now_s: float = 0.0) -> None:
        """Process the oldest item of the inbox and all that follows from it at this node."""
        size_bytes, began_s = self.inbox.next_bytes, self._meter.cpu_clock()
        self._process_item(now_s)
        self._meter.processed(size_bytes, self._meter.cpu_clock() - began_s)

    def _process_item(self, now_s: float) -> None:
        match self.inbox.take():
            case WaitingPiece(piece):
                self._deliver(piece)
            case WaitingReadings(stream, batch, publisher):
                self._feed_entry(self.entries.wake(stream))
                for plan in self.entries.plans_of(stream):
                    self._feed(plan, Entry(stream, self.node), batch, None)
                newest = pc.max(batch.column(self._declared[stream].time))  # of type timestamp("us"), as declared
                self.entries.process(stream, publisher, newest.value)
                self._feed_entry(self.entries.changed((stream,), now_s))
            case WaitingWatermark(None):
                self.entries.finish_replay(now_s)
                self.pass_time(now_s)
            case WaitingWatermark(str(stream), watermark_us):
                self.entries.promise(stream, watermark_us)
                self._feed_entry(self.entries.changed((stream,), now_s))

    def pass_time(self, now_s: float) -> None:
        """Leave out the publishers that have become silent."""
        self._feed_entry(self.entries.changed(None, now_s))

    def _feed_entry(self, watermarks: Iterable[tuple[QueryPlan, str, int]]) -> None:
        for plan, stream, watermark_us in watermarks:
            self._feed(plan, Entry(stream, self.node), None, watermark_us)

    def _feed(
        self, plan: QueryPlan, feeder: OperatorId | Entry, batch: pa.RecordBatch | None, watermark_us: int | None
    ) -> None:
        producer = None if isinstance(feeder, Entry) else feeder
        for operator, port in plan.fed_by.get(feeder, ()):
            self._deliver(Piece(operator, port, batch, watermark_us), producer)
        if feeder == plan.result_of:
            self._deliver(Piece(plan.result_of, -1, batch, watermark_us), producer)

    def _deliver(self, piece: Piece, producer: OperatorId | None = None) -> None:
        """Run the piece, queue it or send it up. Port −1 marks the result of a query, which goes to the root."""
        if piece.port < 0 and self._parent is None:
            if piece.watermark_us != IDLE_US:
                self.results.append((self._plans[piece.operator].name, piece.batch, piece.watermark_us))
        elif piece.port < 0:
            self._send_up(piece, producer)
        elif piece.operator in self._stopped:
            self._queued.append(piece)
        elif (hosted := self._running.get(piece.operator)) is not None:
            self._process(piece, hosted)
        else:
            self._send_up(piece, producer)

    def _send_up(self, piece: Piece, producer: OperatorId | None = None) -> None:
        if self._parent is None:
            raise RuntimeError(f"the root {self.node} does not run {piece.operator}; it runs {self.running}")
        if producer is not None:
            self._meter.sent(producer, piece.size_bytes)
        self.uplink.push(piece)

    def _process(self, piece: Piece, hosted: HostedOperator) -> None:
        plan = self._plans[piece.operator]
        if piece.batch is not None:
            batches = self._timed(
                piece.operator, hosted.operator.on_batch, piece.port, piece.batch, hosted.watermark_us
            )
            for batch in batches:
                self._feed(plan, piece.operator, batch, None)
        if piece.watermark_us is not None:
            before_us, was_idle = hosted.watermark_us, hosted.is_idle
            hosted.receive_watermark(piece.port, piece.watermark_us)
            watermark_us = hosted.watermark_us
            notify_at_us = hosted.operator.notify_at() if watermark_us > before_us else None
            if notify_at_us is not None and notify_at_us <= watermark_us:
                for batch in self._timed(piece.operator, hosted.operator.on_notify, watermark_us):
                    self._feed(plan, piece.operator, batch, None)
            if hosted.is_idle:
                if not was_idle:
                    for batch in self._timed(piece.operator, hosted.operator.on_idle):
                        self._feed(plan, piece.operator, batch, None)
                    self._feed(plan, piece.operator, None, IDLE_US)
            elif watermark_us > before_us or was_idle:
                self._feed(plan, piece.operator, None, watermark_us - hosted.operator.delay_us)

    def _timed(
        self, operator: OperatorId, work: Callable[..., list[pa.RecordBatch]], *arguments: object
    ) -> list[pa.RecordBatch]:
        begin_s = self._meter.cpu_clock()
        batches = work(*arguments)
        self._meter.worked(operator, self._meter.cpu_clock() - begin_s)
        return batches

    # The operator host: see `handover.OperatorHost`.

    def measure(self, now_s: float) -> None:
        """End a monitoring period."""
        usages = self._meter.measure(now_s)
        if usages is not None:
            self.observed = {operator: usage for operator, usage in usages.items() if operator in self.held}

    def usage(self) -> Usage:
        """The usage of all operators, plus the data that waits here for other nodes."""
        operators = self.held
        passing = self.inbox.size_bytes - sum(self.inbox.bytes_for(operator) for operator in operators)
        return self.usage_of(operators) + Usage(100 * (passing + self.uplink.waiting_bytes) / self._memory_bytes)

    def usage_of(self, operators: Iterable[OperatorId]) -> Usage:
        return total_usage(self._usage_of(operator) for operator in operators)

    def _usage_of(self, operator: OperatorId) -> Usage:
        """Memory is the state plus the waiting data, in percent of the node's memory."""
        hosted = self._running.get(operator) or self._stopped[operator]
        waiting_bytes = sum(piece.size_bytes for piece in self._queued if piece.operator == operator)
        waiting_bytes += self.inbox.bytes_for(operator)
        observed = self.observed.get(operator, NOTHING)
        memory_pct = 100 * (hosted.operator.state_bytes() + waiting_bytes) / self._memory_bytes
        return Usage(memory_pct, observed.cpu_pct, observed.network_pct)

    def sent_to(self, peer: EdgeNodeId) -> int:
        return self.uplink.sent_pieces if peer == self._parent else 0

    def received_from(self, peer: EdgeNodeId) -> int:
        """Pieces that have arrived, processed or not: `release` also finds those that wait in the inbox."""
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
        self._queued += self.uplink.withdraw(restored.keys())
        for parcel in parcels:
            self.observed[parcel.operator] = Usage(cpu_pct=parcel.usage.cpu_pct)
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
            withdrawn = self.inbox.withdraw(operators)
            self._meter.arrived(-sum(map(cost_bytes, withdrawn)))
            return (*leftovers, *withdrawn)
        for piece in leftovers:
            self._send_up(piece)  # the pieces in the inbox take the same path later, so these arrive first
        return ()

    def _take_queued(self, operators: Sequence[OperatorId]) -> tuple[Piece, ...]:
        taken = tuple(piece for piece in self._queued if piece.operator in operators)
        self._queued = [piece for piece in self._queued if piece.operator not in operators]
        return taken

    def _create(self, operator: OperatorId) -> HostedOperator:
        stage = self._stages[operator]
        hosted = HostedOperator(stage.spec.create(), len(stage.inputs))
        floor_us = self._floors_us.get(self._plans[operator].name)
        if floor_us is not None:
            hosted.operator.start_after(floor_us)
        return hosted
