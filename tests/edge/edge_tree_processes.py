"""The processes of a live tree in memory, as drivers of the pure cores: nodes, root with tree control, publishers.

A process can be killed, restarted and stopped for a while. What it has on disk survives, unless the disk is lost, too.
`edge_tree_world.py` gives these processes a clock and a network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tests.edge.edge_readings import STREAMS
from tocsin.edge import member as members
from tocsin.edge import tree_control as control
from tocsin.edge.generations import ControlState, NodeReport, SourceSpec
from tocsin.edge.member import InGeneration, Member
from tocsin.edge.messages import PeerMessageReceived, RejectPeerMessage, SendPeerMessage, TransferOrdered
from tocsin.edge.node import (
    ChildConnected,
    CreditReceived,
    EmitResult,
    PieceReceived,
    ProcessNext,
    ReadingsArrived,
    RejectData,
    ReplayFinished,
    SendCredit,
    SendPiece,
)
from tocsin.edge.node import Event as NodeEvent
from tocsin.edge.retention import Admission, EntryRetention, PublisherMark, SourceProgress, StoredBatch
from tocsin.edge.rounds import Timing
from tocsin.edge.tree_control import TreeControl
from tocsin.model.edge import EdgeNodeId
from tocsin.policies.operators.transfer import TransferRules, TransferThresholds

if TYPE_CHECKING:
    from tests.edge.edge_tree_world import TreeWorld

ROOMY = TransferRules(TransferThresholds(lower_pct=1e6, upper_pct=1e9))


@dataclass
class Disk:
    batches: dict[tuple[str, int], tuple[StoredBatch, pa.RecordBatch]] = field(default_factory=dict)
    marks: dict[str, PublisherMark] = field(default_factory=dict)


def newest_us(stream: str, batch: pa.RecordBatch) -> int:
    return int(pc.max(batch.column(STREAMS[stream].time).cast(pa.int64())).as_py())


class NodeProcess:
    """One process: a member with its entry log and its source."""

    def __init__(self, world: TreeWorld, node: EdgeNodeId, disk: Disk, run: int) -> None:
        self.world, self.node, self.disk, self.run = world, node, disk, run
        self.is_dead = False
        self.paused_until_s = 0.0
        self.connection = 0
        """The number of the control connection; messages of an earlier one are lost."""
        self.connected_to: TreeControl | None = None
        self.retention = EntryRetention(disk.marks.values(), [batch for batch, _ in disk.batches.values()])
        self.granted: set[tuple[str, str]] = set()
        self.requests: dict[tuple[str, str], Request] = {}
        """Batches that wait for a grant."""
        self.progress: dict[str, SourceProgress] = {}
        self.is_processing = False
        self.member = Member(node, 60_000, ROOMY, Timing(0.5, 1.0, 0.3))

    def start(self) -> None:
        self.register()
        self.beat()

    def register(self) -> None:
        """Open a new control connection."""
        self.connection += 1
        self.connected_to = self.world.root.control
        sources = (self.world.source,) if self.node == self.world.source_home else ()
        streams = ("Readings",) if self.node in self.world.leaves else ()
        parent = self.world.home.parents.get(self.node)
        self.to_root(control.NodeRegistered(self.node, parent, self.run, str(self.node), streams, sources))

    def beat(self) -> None:
        member = self.member
        held = () if member.edge_node is None else member.edge_node.dataflow.held
        now_s = self.world.now_s
        self.to_root(control.NodeBeat(self.node, self.run, now_s, member.runs, NodeReport(operators=tuple(held))))
        self.world.after(0.5, self, self.beat)

    def to_root(self, event: control.Event) -> None:
        self.world.send_to_root(self, event)

    def handle(self, event: members.Event) -> None:
        self.perform(self.member.handle(event, self.world.now_s))
        deadline_s = self.member.deadline_s()
        if deadline_s is not None:
            self.world.at(deadline_s, self, self.on_deadline)
        self.work()

    def on_deadline(self) -> None:
        deadline_s = self.member.deadline_s()
        if deadline_s is not None and deadline_s <= self.world.now_s:
            self.handle(members.MemberTimePassed())

    def work(self) -> None:
        node = self.member.edge_node
        if not self.is_processing and node is not None and node.has_work:
            self.is_processing = True
            self.world.after(self.world.chance.uniform(0.0, 0.03), self, self.process_next)

    def process_next(self) -> None:
        self.is_processing = False
        self.inner(self.member.generation.number if self.member.generation else 0, ProcessNext())
        self.work()

    def inner(self, number: int, event: NodeEvent) -> None:
        self.handle(InGeneration(number, event))

    def perform(self, effects: list[members.Effect]) -> None:
        for effect in effects:
            match effect:
                case members.StopGeneration(number):
                    self.world.close_links(self, number)
                case members.KeepPublishers(publishers):
                    self.forget(self.retention.keep(publishers))
                    self.granted = {item for item in self.granted if item[0] in publishers}
                case members.ReportReady(number):
                    self.to_root(control.NodeReady(self.node, number))
                case members.OpenLinks(number, parent):
                    if parent is not None:
                        self.world.open_link(self, parent, number)
                case members.ReplayReadings(number, horizons_us):
                    self.replay(number, horizons_us)
                case members.NeedsNoLonger(horizons_us):
                    self.forget(self.retention.release(horizons_us))
                    for name, progress in self.progress.items():
                        position = progress.release(horizons_us.get("Readings", 0))
                        self.to_root(control.SourcePositionReported(name, position))
                case members.RegisterAgain():
                    self.run += 1
                    self.register()
                case SendPiece(_, piece):
                    self.world.send_up(self, PieceReceived(self.node, piece), "data")
                case SendCredit(child, through_bytes):
                    self.world.send_down(self, child, CreditReceived(through_bytes), "data")
                case SendPeerMessage(message):
                    event = PeerMessageReceived(message)
                    if message.receiver == self.world.parent_now(self):
                        self.world.send_up(self, event, "peer")
                    else:
                        self.world.send_down(self, message.receiver, event, "peer")
                case EmitResult():
                    self.world.root.on_result(self, effect)
                case RejectData():
                    raise AssertionError(effect)
                case RejectPeerMessage():
                    pass

    # Entry.

    def forget(self, batches: list[StoredBatch]) -> None:
        for batch in batches:
            del self.disk.batches[batch.publisher, batch.number]
        self.disk.marks = {name: self.retention.mark(name) for name in self.retention.publishers}

    def replay(self, number: int, horizons_us: Mapping[str, int]) -> None:
        for batch in self.retention.replay(horizons_us):
            rows = self.disk.batches[batch.publisher, batch.number][1]
            self.inner(number, ReadingsArrived(batch.stream, rows, batch.publisher))
            self.world.replayed += 1
        self.inner(number, ReplayFinished())
        assert self.member.generation is not None
        self.progress = {}
        for name, (owner, spec, position) in self.member.generation.sources.items():
            if owner == self.node:
                self.progress[name] = SourceProgress(position)
                self.world.after(0.1, self, self.read_source, number, spec, position)

    def read_source(self, number: int, spec: SourceSpec, position: int) -> None:
        chunks = self.world.source_chunks
        if self.member.runs != number or position >= len(chunks):
            return
        self.progress[spec.name].read(position + 1, newest_us(spec.stream, chunks[position]))
        self.inner(number, ReadingsArrived(spec.stream, chunks[position], spec.publisher))
        self.world.after(self.world.chance.uniform(0.2, 0.6), self, self.read_source, number, spec, position + 1)

    def on_request(self, request: Request) -> None:
        if not self.member.may_acknowledge(self.world.now_s) or not self.member.is_running:
            self.world.answer(request, None)
            return
        place = (request.publisher, request.stream)
        if place not in self.granted:
            self.requests[place] = request
            event = control.PublisherAttached(self.node, request.publisher, request.stream, self.member.runs)
            self.to_root(event)
            return
        match self.retention.admit(request.publisher, request.number):
            case Admission.STORE:
                self.world.after(self.world.chance.uniform(0.0, 0.03), self, self.on_fsync, request)
            case Admission.REPEAT:
                self.acknowledge(request)
            case _:
                self.world.answer(request, None)

    def on_grant(self, publisher: str, stream: str) -> None:
        self.granted.add((publisher, stream))
        request = self.requests.pop((publisher, stream), None)
        if request is not None:
            self.on_request(request)

    def on_fsync(self, request: Request) -> None:
        batch = StoredBatch(request.publisher, request.number, request.stream, newest_us(request.stream, request.batch))
        if not self.retention.store(batch):
            self.world.answer(request, None)
            return
        self.disk.batches[batch.publisher, batch.number] = (batch, request.batch)
        self.disk.marks[batch.publisher] = self.retention.mark(batch.publisher)
        self.acknowledge(request)
        self.inner(self.member.runs, ReadingsArrived(request.stream, request.batch, request.publisher))

    def acknowledge(self, request: Request) -> None:
        is_allowed = self.member.may_acknowledge(self.world.now_s)
        durable_through = self.retention.durable_through(request.publisher)
        self.world.answer(request, durable_through if is_allowed else None)

    def order_transfer(self) -> None:
        node = self.member.edge_node
        if node is not None and self.member.is_running and not node.negotiator.is_busy:
            moves = node.negotiator.placement.available_transfers()
            if moves:
                self.inner(self.member.runs, TransferOrdered(self.world.chance.choice(moves)))
                self.world.ordered += 1

    def child_opened(self, child: EdgeNodeId, number: int) -> bool:
        if self.member.generation is None or self.member.generation.number != number:
            return False
        self.inner(number, ChildConnected(child))
        return True


@dataclass
class Request:
    publisher: str
    number: int
    stream: str
    batch: pa.RecordBatch
    attempt: int


class RootProcess:
    """The process with the tree control and the outbox. The member of the root node lives and dies with it."""

    def __init__(self, world: TreeWorld) -> None:
        self.world = world
        self.stored = ControlState()
        self.floors_us: dict[str, int] = {}
        self.outbox: list[tuple[str, pa.RecordBatch]] = []
        self.pending: list[tuple[int, str, pa.RecordBatch]] = []
        self.control: TreeControl | None = None
        self.connections: dict[EdgeNodeId, tuple[NodeProcess, int]] = {}

    def start(self) -> None:
        state = replace(self.stored, floors_us=dict(self.floors_us))
        self.control = TreeControl(self.world.home.root, state)
        self.pending, self.connections = [], {}
        self.handle(control.TimePassed())

    def stop(self) -> None:
        self.control = None

    def on_event(self, process: NodeProcess, connection: int, event: control.Event) -> None:
        if isinstance(event, control.NodeRegistered):
            self.connections[process.node] = (process, connection)
        for rejection in self.handle(event):
            if isinstance(event, control.PublisherAttached):
                self.world.to_node(process, connection, process.requests.pop, (event.publisher, event.stream), None)
            else:
                raise AssertionError(rejection)

    def on_lost(self, node: EdgeNodeId, run: int) -> None:
        """The control connection of a node closed."""
        if self.control is not None:
            self.handle(control.ControlLost(node, run))

    def handle(self, event: control.Event) -> list[control.RejectRequest]:
        assert self.control is not None
        rejections: list[control.RejectRequest] = []
        for effect in self.control.handle(event, self.world.now_s):
            match effect:
                case control.StoreControl(state):
                    self.stored = state
                case control.SendGeneration(node, generation):
                    self.send(node, members.GenerationReceived(generation))
                case control.SendRun(node, number):
                    self.send(node, members.RunReceived(number))
                case control.SendBeatAnswer(node, sent_s, floors_us):
                    self.send(node, members.LeaseAnswered(sent_s, floors_us))
                case control.SendFenced(node, run, _):
                    process, connection = self.connections[node]
                    self.world.to_node(process, connection, self.fence, process, run)
                case control.GrantPublisher(node, publisher, stream):
                    process, connection = self.connections[node]
                    self.world.to_node(process, connection, process.on_grant, publisher, stream)
                case control.RejectRequest():
                    rejections.append(effect)
        deadline_s = self.control.deadline_s()
        if deadline_s is not None:
            self.world.at(deadline_s, self.control, self.on_deadline, self.control)
        return rejections

    def fence(self, process: NodeProcess, run: int) -> None:
        if process.run == run:
            process.handle(members.FencedReceived())

    def on_deadline(self, current: TreeControl) -> None:
        deadline_s = current.deadline_s()
        if current is self.control and deadline_s is not None and deadline_s <= self.world.now_s:
            self.handle(control.TimePassed())

    def send(self, node: EdgeNodeId, event: members.Event) -> None:
        if node in self.connections:
            process, connection = self.connections[node]
            self.world.to_node(process, connection, process.handle, event)

    def on_result(self, process: NodeProcess, result: EmitResult) -> None:
        """Rows wait for the time up to which they are complete, and are stored together with it."""
        assert self.control is not None
        generation = process.member.runs
        if not self.control.may_accept(generation):
            return
        if result.batch is not None:
            self.pending.append((generation, result.query, result.batch))
            return
        assert result.watermark_us is not None
        rows = [item for item in self.pending if item[0] == generation and item[1] == result.query]
        self.pending = [item for item in self.pending if item[0] == generation and item[1] != result.query]
        self.outbox += [(query, batch) for _, query, batch in rows]
        self.floors_us[result.query] = max(result.watermark_us, self.floors_us.get(result.query, result.watermark_us))
        self.handle(control.ResultsAccepted(result.query, result.watermark_us, generation))


class Publisher:
    """Sends its batches one after the other. After a failure it sends everything again that is not durable."""

    def __init__(
        self, world: TreeWorld, name: str, home: EdgeNodeId, stream: str, batches: list[pa.RecordBatch]
    ) -> None:
        self.world, self.name, self.home, self.stream, self.batches = world, name, home, stream, batches
        self.at = home
        self.process: NodeProcess | None = None
        """The process to which the publisher is connected."""
        self.durable_through = 0
        self.next_number = 1
        self.acknowledged: set[int] = set()
        self.attempt = 0
        self.failures = 0

    @property
    def is_done(self) -> bool:
        return len(self.acknowledged) == len(self.batches)

    def send(self) -> None:
        """Send the next batch; a new connection begins behind the durable batches."""
        process = self.world.processes[self.at]
        if process is not self.process or process.is_dead:
            self.process, self.next_number = process, self.durable_through + 1
        if self.next_number > len(self.batches):
            self.world.after(1.0, None, self.send)  # the publisher watches its connection until all is durable
            return
        self.attempt += 1
        request = Request(self.name, self.next_number, self.stream, self.batches[self.next_number - 1], self.attempt)
        self.world.request(process, request)
        self.world.after(1.5, None, self.on_answer, request, None)

    def on_answer(self, request: Request, durable_through: int | None) -> None:
        if request.attempt != self.attempt:
            return
        self.attempt += 1
        chance = self.world.chance
        if durable_through is None:
            self.process = None
            self.failures += 1
            if self.failures >= 3:
                self.move()
            self.world.after(chance.uniform(0.1, 0.4), None, self.send)
            return
        self.failures = 0
        self.acknowledged.add(request.number)
        self.durable_through = max(self.durable_through, durable_through)
        self.next_number = request.number + 1
        is_repeat = self.next_number in self.acknowledged
        self.world.after(0.01 if is_repeat else chance.uniform(0.1, 0.9), None, self.send)

    def move(self) -> None:
        """Continue at another node of the path from home to the root."""
        path = self.world.home.path_up(self.home)
        self.at = path[(path.index(self.at) + 1) % len(path)]
        self.failures = 0
        self.process = None
