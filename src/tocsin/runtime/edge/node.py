"""Drives a `Member`: connections, the entry log and the processor's share around the operators of this node.

Everything runs on one event loop. Events of connections reach the core at once; the work itself waits in the core's
inbox, and `_work` processes it as fast as the node's share of the processor allows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence

import pyarrow as pa
from starlette.websockets import WebSocket

from tocsin.edge import member as membership
from tocsin.edge import messages
from tocsin.edge import node as edge_node
from tocsin.edge.generations import Generation, NodeReport
from tocsin.edge.load import NodeBudget
from tocsin.edge.member import Member
from tocsin.edge.messages import PeerMessage, Piece
from tocsin.edge.plan import Stream
from tocsin.edge.rounds import Timing
from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer, Usage
from tocsin.runtime.edge.codecs import decode_generation, encode_report
from tocsin.runtime.edge.control_links import Control
from tocsin.runtime.edge.data_links import DataDownlink, DataUplink
from tocsin.runtime.edge.entry_log import EntryLog, StreamWatermark
from tocsin.runtime.edge.feed import EntryFeed
from tocsin.runtime.edge.identity import Identity
from tocsin.runtime.edge.links import LOST, Accepted
from tocsin.runtime.edge.measures import CpuBudget, HandoverLog, OverloadLog, Rates
from tocsin.runtime.edge.peer_links import PeerLinks
from tocsin.runtime.edge.publishers import Publishers, Rejection, Stored
from tocsin.runtime.edge.settings import NodeFile
from tocsin.runtime.edge.sources import Sources
from tocsin.runtime.http.logs import logger
from tocsin.wire import edge_data, edge_link, edge_peer
from tocsin.wire.errors import Code, TocsinError

BEAT_S = 0.5
_TICK_S = 0.05
_SLICE_S = 0.005
"""The event loop works at most this long before it looks at its connections."""

_TIMING = Timing(repeat_s=10.0)
"""A connection loses no message while it lasts, and a generation does not outlive it. So a hand-over is repeated only
in case both ends misunderstand each other: a repetition would queue its state once more in front of the answer."""

OnResult = Callable[[int, edge_node.EmitResult], None]
"""Called at the root with the generation and a result."""


class NodeProcess:
    def __init__(self, file: NodeFile, control: Control, on_result: OnResult | None = None) -> None:
        settings = file.node
        self.name = EdgeNodeId(settings.name)
        self.file = file
        self.address = ""
        self._token = file.secret()
        self._control = control
        self._on_result = on_result
        self._identity = Identity(file.data)
        budget = NodeBudget(settings.memory_bytes, settings.cpu_share, settings.uplink_bytes_per_s)
        self.member = Member(
            self.name,
            budget,
            file.rules,
            _TIMING,
            lease_s=settings.lease_s,
            silence_s=settings.publisher_idle_s,
            cpu_clock=time.thread_time,
        )
        log = EntryLog(file.data / "log")
        self._log = log
        self.feed = EntryFeed(log, self)
        self.feed.on_failure = lambda: self.on_failure()
        self.publishers = Publishers(self.name, self.feed.journal, self._attach)
        self.sources = Sources(self, file.path.parent, self._report_position)
        self._uplink: DataUplink | None = None
        self._downlinks: dict[EdgeNodeId, DataDownlink] = {}
        self._broken: dict[EdgeNodeId, None] = {}
        """Neighbours whose connection broke in the current generation."""
        self.peers: PeerLinks | None = None
        """The negotiation with neighbours in the current generation."""
        self._cpu = CpuBudget(settings.cpu_share)
        self._rates = Rates()
        self.handovers = HandoverLog()
        self.overloads = OverloadLog(file.rules.thresholds.upper_pct)
        self._work_event = asyncio.Event()
        self._room = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._bytes_up = 0
        """Of connections that are over."""
        self.rejections: dict[str, int] = {}
        self.on_failure: Callable[[], None] = lambda: None
        """Called if a loop of the node fails: the process must end then."""
        self._stopping = False
        self.generations = 0
        """Generations started since the start of the process."""

    # -- start and stop ------------------------------------------------------------------------------------------------

    def start(self, address: str) -> None:
        self.address = address
        self._identity.start_run()
        self._control.start(self._register, self.receive)
        loops = (self._beat(), self._tick(), self._work(), self._periods())
        self._tasks = [asyncio.create_task(self._supervise(loop)) for loop in loops]

    async def stop(self) -> None:
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._control.stop()
        self._stop_generation()
        await self.feed.close()

    async def _supervise(self, loop: Coroutine[None, None, None]) -> None:
        try:
            await loop
        except Exception as error:
            logger().error("a loop of the node failed", node=self.name, exc_info=error)
            self.on_failure()
            raise

    def _register(self) -> edge_link.Register:
        settings = self.file.node
        sources = [
            edge_link.Source(
                source.name,
                source.stream,
                source.kind,
                source.location,
                {name: _text(value) for name, value in source.options.items()},
            )
            for source in self.file.sources
        ]
        return edge_link.Register(
            self.name, settings.parent, self._identity.run, self.address, list(settings.streams), sources
        )

    # -- events and effects --------------------------------------------------------------------------------------------

    @property
    def generation(self) -> Generation | None:
        return self.member.generation

    def handle(self, event: membership.Event) -> None:
        began_s = time.monotonic()
        effects = self.member.handle(event, began_s)
        for effect in effects:
            if isinstance(effect, messages.SendPeerMessage):
                self.handovers.note(effect.message, began_s, time.monotonic())
        self._carry_out(effects)

    def _in_generation(self, number: int, event: edge_node.Event) -> None:
        self.handle(membership.InGeneration(number, event))

    def _carry_out(self, effects: list[membership.Effect]) -> None:
        for effect in effects:
            match effect:
                case edge_node.SendPiece(_, piece):
                    if self._uplink is not None:
                        self._uplink.send(piece)
                case edge_node.SendCredit(child, through_bytes):
                    if (downlink := self._downlinks.get(child)) is not None:
                        downlink.grant(through_bytes)
                case edge_node.EmitResult():
                    if self._on_result is not None:
                        self._on_result(self._number, effect)
                case messages.SendPeerMessage(message):
                    if self.peers is not None:
                        self.peers.send(message)
                case messages.RejectPeerMessage(message, code):
                    self._count_rejection(code)
                    logger().debug("rejected a neighbour's message", peer=message.sender, kind=message.type, code=code)
                case edge_node.RejectData(sender, code):
                    self._on_rejected_data(sender, code)
                case membership.StopGeneration():
                    self._stop_generation()
                case membership.KeepPublishers(publishers):
                    self.publishers.keep(publishers, self.feed.journal.publishers)
                case membership.ReportReady(number):
                    self._control.send(edge_link.Ready(number))
                case membership.OpenLinks(number, parent):
                    self._open_links(number, parent)
                case membership.ReplayReadings(number, horizons_us):
                    self.feed.start(number, horizons_us, self._start_sources)
                case membership.NeedsNoLonger(horizons_us):
                    self.feed.journal.forget(horizons_us, self.feed.cursor)
                    self.sources.settle(horizons_us)
                case membership.RegisterAgain():
                    logger().warning("this node lost its lease and registers again", node=self.name)
                    self._identity.start_run()
                    self._control.send(self._register())
        node = self.member.edge_node
        if node is not None:
            if node.has_work:
                self._work_event.set()
            if node.has_room:
                self._room.set()

    @property
    def _number(self) -> int:
        return 0 if self.member.generation is None else self.member.generation.number

    def _on_rejected_data(self, sender: str, code: str) -> None:
        self._count_rejection(code)
        logger().warning("rejected data", sender=sender, code=code)
        if EdgeNodeId(sender) in self._downlinks:  # a piece was lost: only a new generation has exact results
            self._report_broken(EdgeNodeId(sender))

    def _report_broken(self, peer: EdgeNodeId) -> None:
        """Report it now and with every beat until the next generation: the control connection may be lost as well."""
        self._broken[peer] = None
        self._control.send(edge_link.LinkBroken(self._number, peer))

    def _count_rejection(self, code: str) -> None:
        self.rejections[str(code)] = self.rejections.get(str(code), 0) + 1

    # -- the root's messages -------------------------------------------------------------------------------------------

    def receive(self, message: edge_link.RootMessage) -> None:
        match message:
            case edge_link.StartGeneration():
                before = self._number
                self.handle(membership.GenerationReceived(decode_generation(message)))
                if self._number == message.number != before:  # the root repeats a generation after a lost connection
                    self.generations += 1
                    self.peers = self._make_peers(message.number)
            case edge_link.RunGeneration(number):
                self.handle(membership.RunReceived(number))
                self.publishers.retry_all()
            case edge_link.BeatAnswer(sent_s, floors_us):
                self.handle(membership.LeaseAnswered(sent_s, floors_us))
            case edge_link.Fenced(run, known):
                self._identity.learn(known)
                if run == self._identity.run:
                    self.handle(membership.FencedReceived())
            case edge_link.GrantPublisher(publisher, stream):
                self.publishers.granted(publisher, stream)
            case edge_link.PublisherRejected(publisher, stream, code, reason):
                self.publishers.rejected(publisher, stream, Rejection(code, reason))
            case edge_link.Rejected(code, reason):
                logger().warning("the root rejected a message of this node", code=code, reason=reason)
            case edge_link.OrderTransfer(request, operators, destination):
                self._order(request, tuple(map(OperatorId, operators)), EdgeNodeId(destination))

    def _order(self, request: int, operators: tuple[OperatorId, ...], destination: EdgeNodeId) -> None:
        """Start an ordered transfer, and answer whether it began."""
        transfer = self._available(operators, destination)
        if transfer is None:
            self._control.send(edge_link.TransferAnswer(request, [], messages.EdgeCode.UNAVAILABLE.value))
            return
        event = membership.InGeneration(self._number, messages.TransferOrdered(transfer))
        began_s = time.monotonic()
        effects = self.member.handle(event, began_s)
        codes = [effect.code.value for effect in effects if isinstance(effect, messages.RejectPeerMessage)]
        for effect in effects:
            if isinstance(effect, messages.SendPeerMessage):
                self.handovers.note(effect.message, began_s, time.monotonic())
        moved = [] if codes else [str(operator) for operator in transfer.operators]
        self._control.send(edge_link.TransferAnswer(request, moved, codes[0] if codes else None))
        self._carry_out(effects)

    def _available(self, operators: tuple[OperatorId, ...], destination: EdgeNodeId) -> Transfer | None:
        """The smallest available transfer with these operators and those that must move with them."""
        node = self.member.edge_node
        if node is None or not self.member.runs:
            return None
        transfers = [
            transfer
            for transfer in node.negotiator.state.available().values()
            if transfer.destination == destination and set(operators) <= set(transfer.operators)
        ]
        return min(transfers, key=lambda transfer: len(transfer.operators), default=None)

    # -- loops ---------------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            self._look_at_load()
            report = encode_report(self.report())
            self._control.send(edge_link.Beat(self._identity.run, time.monotonic(), self.member.runs, report))
            for peer in self._broken:
                self._control.send(edge_link.LinkBroken(self._number, peer))
            await asyncio.sleep(BEAT_S)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            deadline_s = self.member.deadline_s()
            if deadline_s is not None and deadline_s <= time.monotonic():
                self.handle(membership.MemberTimePassed())

    async def _periods(self) -> None:
        while True:
            await asyncio.sleep(self.file.node.period_s)
            if self.member.edge_node is None or not self.member.runs:
                continue
            if self.file.node.negotiates:
                self._in_generation(self._number, messages.PeriodElapsed())
            else:
                self.member.edge_node.dataflow.measure(time.monotonic())
            self._look_at_load()

    def _look_at_load(self) -> None:
        if (node := self.member.edge_node) is not None:
            self.overloads.look(self.file.rules.load_pct(node.dataflow.usage()), time.monotonic())

    async def _work(self) -> None:
        while True:
            node = self.member.edge_node
            if node is None or not self.member.runs or not node.has_work:
                self._work_event.clear()
                await self._work_event.wait()
                continue
            begin_s = time.monotonic()
            cpu_s = time.thread_time()
            while self.member.edge_node is node and node.has_work and time.monotonic() < begin_s + _SLICE_S:
                self._in_generation(self._number, edge_node.ProcessNext())
            await asyncio.sleep(self._cpu.spend(time.thread_time() - cpu_s, time.monotonic()))

    # -- readings (the feed and the sources call these) ----------------------------------------------------------------

    async def wait_for_room(self) -> None:
        while (node := self.member.edge_node) is None or not node.has_room:
            self._room.clear()
            await self._room.wait()

    def take_readings(self, generation: int, stream: str, batch: pa.RecordBatch, publisher: str) -> None:
        self._rates.count(batch.num_rows)
        self._in_generation(generation, edge_node.ReadingsArrived(stream, batch, publisher))

    def take_watermark(self, generation: int, stream: str, watermark_us: int) -> None:
        self._in_generation(generation, edge_node.WatermarkAdvanced(stream, watermark_us))

    def finish_replay(self, generation: int) -> None:
        self._in_generation(generation, edge_node.ReplayFinished())

    async def _start_sources(self) -> None:
        generation = self.member.generation
        if generation is not None:
            own = [
                (spec, generation.streams[spec.stream], position)
                for node, spec, position in generation.sources.values()
                if node == self.name and spec.stream in generation.streams
            ]
            self.sources.start(generation.number, own)

    def _report_position(self, source: str, position: int) -> None:
        self._control.send(edge_link.SourcePosition(source, position))

    def _attach(self, publisher: str, stream: str) -> bool:
        if not self.member.runs:
            return False
        self._control.send(edge_link.AttachPublisher(publisher, stream, self.member.runs))
        return True

    def entry_stream(self, name: str) -> Stream:
        """The declaration of a stream. A stream enters wherever a publisher of it does. Raises `TocsinError`."""
        generation = self.member.generation
        if generation is None:
            raise TocsinError(Code.NOT_READY, "this node is joining the tree", retry_after_s=1)
        stream = generation.streams.get(name)
        if stream is None:
            raise TocsinError(Code.NOT_FOUND, f"there is no stream {name}; declare it at the root")
        if self.feed.waiting_bytes > self.file.node.backlog_bytes:
            raise TocsinError(Code.BACKLOGGED, "too many readings wait here: send less", retry_after_s=2)
        return stream

    async def store(
        self,
        name: str,
        stream: Stream,
        batches: Sequence[pa.RecordBatch],
        publisher: str | None,
        number: int | None,
        durable: int | None = None,
        is_gone: Callable[[], Awaitable[bool]] | None = None,
    ) -> Stored:
        def may_answer() -> bool:
            return self.member.may_acknowledge(time.monotonic())

        return await self.publishers.store(name, stream, batches, publisher, number, may_answer, durable, is_gone)

    async def promise(self, name: str, watermark_us: int) -> None:
        """No older reading of the stream will enter here."""
        await self.feed.journal.append(StreamWatermark(name, watermark_us))

    # -- connections ---------------------------------------------------------------------------------------------------

    def _make_peers(self, number: int) -> PeerLinks:
        def on_message(message: PeerMessage) -> None:
            self._in_generation(number, messages.PeerMessageReceived(message))

        def received_from(peer: EdgeNodeId) -> int:
            node = self.member.edge_node
            return 0 if node is None else node.dataflow.received_from(peer)

        def on_lost(peer: EdgeNodeId, reason: str) -> None:
            self._on_link_lost(number, peer, reason)

        if self.peers is not None:
            self.peers.close()
        return PeerLinks(self.name, number, on_message, received_from, on_lost)

    def _open_links(self, number: int, parent: EdgeNodeId | None) -> None:
        if parent is None or self.member.generation is None or self.peers is None:
            return
        address = self.member.generation.addresses[parent]
        self.peers.open(parent, address, self._token)
        self._uplink = DataUplink(
            self.name,
            parent,
            address,
            self._token,
            number,
            self.file.node.uplink_bytes_per_s,
            lambda through_bytes: self._in_generation(number, edge_node.CreditReceived(through_bytes)),
            lambda reason: self._on_link_lost(number, parent, reason),
        )

    def _on_link_lost(self, number: int, peer: EdgeNodeId, reason: str) -> None:
        if number == self._number and self.member.runs and not self._stopping:
            logger().warning("a connection of the tree broke", node=self.name, peer=peer, reason=reason)
            self._report_broken(peer)

    def _stop_generation(self) -> None:
        if self._uplink is not None:
            self._bytes_up += self._uplink.bytes_up
            self._uplink.close()
            self._uplink = None
        for downlink in self._downlinks.values():
            downlink.close()
        self._downlinks.clear()
        self._broken.clear()
        if self.peers is not None:
            self.peers.close()
        self.handovers.forget_open()
        self.feed.stop()
        self.sources.stop()

    async def accept_data(self, socket: WebSocket) -> None:
        accepted = Accepted(socket)
        try:
            opening = edge_data.decode_opening(await accepted.first())
            child = self._checked_child(opening.node, opening.generation)
        except (*LOST, edge_data.MalformedData, TocsinError) as error:
            await accepted.close(str(error) or type(error).__name__)
            return
        number = opening.generation
        if child in self._downlinks:
            await accepted.close("this node is connected already")
            return

        def on_piece(sender: EdgeNodeId, piece: Piece) -> None:
            if piece.batch is not None:
                self._rates.count(piece.batch.num_rows)
            self._in_generation(number, edge_node.PieceReceived(sender, piece))
            if self.peers is not None:
                self.peers.pieces_arrived()

        downlink = self._downlinks[child] = DataDownlink(child, accepted.channel(child), on_piece)
        self._in_generation(number, edge_node.ChildConnected(child))
        try:
            reason = await downlink.run()
        finally:
            if self._downlinks.get(child) is downlink:
                del self._downlinks[child]
        self._on_link_lost(number, child, reason)
        await accepted.close(reason)

    async def accept_peer(self, socket: WebSocket) -> None:
        accepted = Accepted(socket)
        try:
            opening = edge_peer.decode(await accepted.first())
            if not isinstance(opening, edge_peer.OpenPeer):
                raise ConnectionError("expected the opening message first")
            child = self._checked_child(opening.node, opening.generation)
        except (*LOST, ValueError, TocsinError) as error:
            await accepted.close(str(error) or type(error).__name__)
            return
        assert self.peers is not None, "a generation has peer connections"
        reason = await self.peers.serve(accepted.channel(child))
        self._on_link_lost(opening.generation, child, reason)
        await accepted.close(reason)

    def _checked_child(self, node: str, number: int) -> EdgeNodeId:
        """The child that opened a connection of this generation. Raises `TocsinError` for any other connection."""
        generation = self.member.generation
        if generation is None or generation.number != number:
            raise TocsinError(Code.IN_USE, f"generation {number} does not run here")
        if generation.tree.parents.get(EdgeNodeId(node)) != self.name:
            raise TocsinError(Code.FORBIDDEN, f"{node} is no child of {self.name}")
        return EdgeNodeId(node)

    # -- figures -------------------------------------------------------------------------------------------------------

    @property
    def bytes_up(self) -> int:
        return self._bytes_up + (0 if self._uplink is None else self._uplink.bytes_up)

    @property
    def raw_bytes(self) -> int:
        return self.publishers.raw_bytes + self.sources.raw_bytes

    def report(self) -> NodeReport:
        node = self.member.edge_node
        return NodeReport(
            operators=() if node is None else tuple(sorted(node.dataflow.held)),
            usage=Usage() if node is None else node.dataflow.usage(),
            inbox_bytes=0 if node is None else node.dataflow.inbox.size_bytes,
            rows_per_s=self._rates.per_s(time.monotonic()),
            late_rows=self.member.late_rows,
            bytes_up=self.bytes_up,
            raw_bytes=self.raw_bytes,
        )


def _text(value: str | bool | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
