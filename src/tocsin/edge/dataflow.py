"""The operators of one node at work: pieces of streams in, pieces for the parent and results out.

A dataflow is the host of a live node's operators (`OperatorHost`): it runs them, measures what they use, and lets them
be frozen, moved and resumed without losing or repeating a row. It knows its operators and its parent, nothing else:
what is addressed to an operator that is not here goes up, because streams only flow upwards.

While an operator is on its way, everything addressed to it waits, in order, at the node that will hand it on: moving
up, the giver keeps it and sends it after the operator; moving down, the taker keeps its own and runs the giver's
leftovers first. Whoever drives it collects `outbox` and `results` after each call.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.edge.messages import Parcel, Piece
from tocsin.edge.operators.contract import BEGINNING_OF_TIME_US, Operator, microseconds, pack, unpack
from tocsin.edge.plan import Entry, QueryPlan, Stage
from tocsin.model.edge import EdgeNodeId, OperatorId, Usage, total_usage


@dataclass(slots=True)
class Running:
    """An operator and how far its inputs have come."""

    operator: Operator
    watermarks_us: list[int]

    @property
    def watermark_us(self) -> int:
        return min(self.watermarks_us)

    def snapshot(self) -> bytes:
        """The operator's state behind the watermarks of its inputs."""
        header = pack({"watermarks_us": self.watermarks_us})
        return len(header).to_bytes(8, "little") + header + self.operator.snapshot()

    def restore(self, state: bytes) -> None:
        length = int.from_bytes(state[:8], "little")
        watermarks_us = [int(one) for one in unpack(state[8 : 8 + length])[0]["watermarks_us"]]
        if len(watermarks_us) != len(self.watermarks_us):
            raise ValueError(f"{len(watermarks_us)} watermarks for {len(self.watermarks_us)} inputs")
        self.watermarks_us = watermarks_us
        if len(state) > 8 + length:
            self.operator.restore(state[8 + length :])


@dataclass(frozen=True, slots=True)
class Result:
    """Rows a query gives, at the root."""

    query: str
    batch: pa.RecordBatch


@dataclass(slots=True)
class Observed:
    """What a driver with a clock has measured of an operator; a pure core cannot."""

    cpu_pct: float = 0.0
    network_pct: float = 0.0


@dataclass(slots=True)
class Traffic:
    sent: dict[EdgeNodeId, int] = field(default_factory=dict)
    received: dict[EdgeNodeId, int] = field(default_factory=dict)


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
        self._running: dict[OperatorId, Running] = {operator: self._create(operator) for operator in here}
        self._still: dict[OperatorId, Running] = {}
        """Frozen on the way out, or held and not yet started."""
        self._waiting: list[Piece] = []
        """Addressed to those, in the order of arrival."""
        self._traffic = Traffic()
        self.observed: dict[OperatorId, Observed] = {}
        self.outbox: list[Piece] = []
        """For the parent."""
        self.results: list[Result] = []

    @property
    def running(self) -> frozenset[OperatorId]:
        return frozenset(self._running)

    def late_rows(self) -> dict[OperatorId, int]:
        """Rows dropped because what they belong to was closed, per operator here; those without any left out."""
        held = self._running | self._still
        return {one: running.operator.late_rows for one, running in held.items() if running.operator.late_rows}

    # Data.

    def read(self, stream: str, batch: pa.RecordBatch) -> None:
        """Readings enter here. The watermark of each query's entry follows the newest of them at its lateness."""
        entry = Entry(stream, self.node)
        for plan in self._entries.get(entry, ()):
            self._feed(plan, entry, batch, None)
            newest = pc.max(microseconds(batch.column(plan.streams[stream].time))).as_py()
            if newest is not None:
                self._advance(plan, entry, newest - plan.lateness_us)

    def advance(self, stream: str, watermark_us: int) -> None:
        """No reading older than this will enter here any more: a silent meter must not hold up the others."""
        entry = Entry(stream, self.node)
        for plan in self._entries.get(entry, ()):
            self._advance(plan, entry, watermark_us)

    def takes(self, piece: Piece) -> bool:
        """True if a piece is for an input that a query has, and there is a way to it from here."""
        stage = self._stages.get(piece.operator)
        if stage is None or not -1 <= piece.port < len(stage.inputs):
            return False
        here = piece.operator in self._running or piece.operator in self._still
        return here or piece.port < 0 or self._parent is not None

    def declared(self, stream: str, schema: pa.Schema) -> bool:
        """True if readings with these columns are what the queries that read the stream here expect."""
        plans = self._entries.get(Entry(stream, self.node), ())
        return all(schema.equals(plan.streams[stream].arrow()) for plan in plans)

    def receive(self, sender: EdgeNodeId, piece: Piece) -> None:
        """A piece from a child."""
        self._traffic.received[sender] = self._traffic.received.get(sender, 0) + 1
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
        """Port −1 is the result of a query on its way to the root."""
        if piece.port < 0:
            if self._parent is None and piece.batch is not None:
                self.results.append(Result(self._plans[piece.operator].name, piece.batch))
            else:
                self._send_up(piece)
        elif piece.operator in self._still:
            self._waiting.append(piece)
        elif (running := self._running.get(piece.operator)) is not None:
            self._process(piece, running)
        else:
            self._send_up(piece)

    def _send_up(self, piece: Piece) -> None:
        if self._parent is None:
            raise RuntimeError(f"{piece.operator} is nowhere on the way to the root; {self.node} runs {self.running}")
        self._traffic.sent[self._parent] = self._traffic.sent.get(self._parent, 0) + 1
        self.outbox.append(piece)

    def _process(self, piece: Piece, running: Running) -> None:
        operator, plan = running.operator, self._plans[piece.operator]
        if piece.batch is not None:
            for batch in operator.on_batch(piece.port, piece.batch, running.watermark_us):
                self._feed(plan, piece.operator, batch, None)
        if piece.watermark_us is not None:
            before_us = running.watermark_us
            running.watermarks_us[piece.port] = max(running.watermarks_us[piece.port], piece.watermark_us)
            watermark_us = running.watermark_us
            if watermark_us > before_us:
                wanted_us = operator.notify_at()
                if wanted_us is not None and wanted_us <= watermark_us:
                    for batch in operator.on_notify(watermark_us):
                        self._feed(plan, piece.operator, batch, None)
                self._feed(plan, piece.operator, None, watermark_us - operator.delay_us)

    # The host of operators that move.

    def usage(self) -> Usage:
        return self.usage_of((*self._running, *self._still))

    def usage_of(self, operators: Iterable[OperatorId]) -> Usage:
        return total_usage(self._usage_of(operator) for operator in operators)

    def _usage_of(self, operator: OperatorId) -> Usage:
        """State plus what is queued, in percent of the node's memory."""
        running = self._running.get(operator) or self._still[operator]
        queued_bytes = sum(piece.size_bytes for piece in self._waiting if piece.operator == operator)
        observed = self.observed.get(operator, _UNOBSERVED)
        memory_pct = 100 * (running.operator.state_bytes() + queued_bytes) / self._memory_bytes
        return Usage(memory_pct, observed.cpu_pct, observed.network_pct)

    def sent_to(self, peer: EdgeNodeId) -> int:
        return self._traffic.sent.get(peer, 0)

    def received_from(self, peer: EdgeNodeId) -> int:
        return self._traffic.received.get(peer, 0)

    def freeze(self, operators: Sequence[OperatorId]) -> tuple[Parcel, ...]:
        usages = [self._usage_of(operator) for operator in operators]
        for operator in operators:
            self._still[operator] = self._running.pop(operator)
        return tuple(
            Parcel(operator, usage, self._still[operator].snapshot())
            for operator, usage in zip(operators, usages, strict=True)
        )

    def resume(self, operators: Sequence[OperatorId]) -> None:
        self.start(operators, ())

    def hold(self, parcels: Sequence[Parcel]) -> bool:
        held = {parcel.operator: self._create(parcel.operator) for parcel in parcels}
        try:
            for parcel in parcels:
                held[parcel.operator].restore(parcel.state)
        except (ValueError, LookupError, TypeError, struct.error, pa.ArrowException):
            return False
        self._still |= held
        return True

    def start(self, operators: Sequence[OperatorId], leftovers: Sequence[Piece]) -> None:
        for operator in operators:
            self._running[operator] = self._still.pop(operator)
        for piece in (*leftovers, *self._take_waiting(operators)):
            self._deliver(piece)

    def let_go(self, operators: Sequence[OperatorId], taker: EdgeNodeId) -> tuple[Piece, ...]:
        for operator in operators:
            del self._still[operator]
            self.observed.pop(operator, None)
        leftovers = self._take_waiting(operators)
        if taker != self._parent:
            return leftovers
        for piece in leftovers:
            self._send_up(piece)  # they take the way all later ones take, and arrive before them
        return ()

    def _take_waiting(self, operators: Sequence[OperatorId]) -> tuple[Piece, ...]:
        taken = tuple(piece for piece in self._waiting if piece.operator in operators)
        self._waiting = [piece for piece in self._waiting if piece.operator not in operators]
        return taken

    def _create(self, operator: OperatorId) -> Running:
        stage = self._stages[operator]
        return Running(stage.spec.create(), [BEGINNING_OF_TIME_US] * len(stage.inputs))


_UNOBSERVED = Observed()
