"""Drives the tree control at the root: one loop that handles events, stores the changes, and only then sends messages.

Results of the root's own operators are accepted in the same loop. So no generation can start between the check that a
result is of the current generation and the transaction that stores it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec
import pyarrow as pa
import sqlalchemy as sa

from tocsin.client.publisher import Batching
from tocsin.edge import tree_events as events
from tocsin.edge.generations import Generation
from tocsin.edge.layout import prepare
from tocsin.edge.node import EmitResult
from tocsin.edge.query import QueryRejected
from tocsin.edge.statements import parse_statements
from tocsin.edge.tree_control import TreeControl
from tocsin.model.edge import EdgeNodeId
from tocsin.runtime.edge.codecs import decode_report, decode_source, encode_generation
from tocsin.runtime.edge.control_links import ControlLinks, LocalControl
from tocsin.runtime.edge.outbox import OutboxPublisher
from tocsin.runtime.edge.root_store import OutboxEntry, Results, RootStore
from tocsin.runtime.edge.settings import NodeFile
from tocsin.runtime.http.logs import logger
from tocsin.wire import edge_link as wire
from tocsin.wire.errors import Code, TocsinError

_FLUSH_S = 0.05
"""The least time between two transactions with results."""
_FLOOR_S = 0.25
"""The least time between two changes of a floor without rows."""
_RETRY_S = 1.0
_ANSWER_S = 5.0
_CODES = {"EXISTS": Code.EXISTS, "UNKNOWN_QUERY": Code.NOT_FOUND}


@dataclass(slots=True)
class _Pending:
    """Results of a query that are not accepted yet."""

    generation: int
    complete: list[pa.RecordBatch] = field(default_factory=list)
    """Rows at or below the watermark."""
    rest: list[pa.RecordBatch] = field(default_factory=list)
    watermark_us: int | None = None
    accepted_s: float = 0.0

    def add(self, result: EmitResult) -> None:
        if result.batch is not None:
            self.rest.append(result.batch)
        if result.watermark_us is not None:
            self.complete += self.rest
            self.rest = []
            self.watermark_us = result.watermark_us

    def due_s(self) -> float | None:
        if self.watermark_us is None:
            return None
        return self.accepted_s + (_FLUSH_S if self.complete else _FLOOR_S)


@dataclass(frozen=True, slots=True)
class _Request:
    events: Sequence[events.Event]
    answer: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class TransferBegun:
    operators: Sequence[str]
    node: str


class RootProcess:
    def __init__(self, file: NodeFile) -> None:
        self.file = file
        settings = file.node
        self.store = RootStore(file.data / "root.sqlite")
        self.control = TreeControl(
            EdgeNodeId(settings.name), self.store.load(), settings.lease_s, settings.grace_s, settings.publisher_idle_s
        )
        self.links = ControlLinks(self._receive, self._lost)
        self.local = self.links.local = LocalControl(self._receive)
        self.links.local_node = settings.name
        self.publisher: OutboxPublisher | None = None
        if file.sink is not None:
            self.publisher = OutboxPublisher(self.store, file.sink.gateway, file.sink_secret(), self._published)
        self.result_rows = self.store.result_rows()
        self.outbox_size = self.store.outbox_size()
        self._events: list[tuple[events.Event, str]] = []
        self._requests: list[_Request] = []
        self._pending: dict[str, _Pending] = {}
        self._datasets: dict[str, str] = {}
        """Text of a query → where its results go."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called if the loop of the tree control fails: the process must end then."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._request_numbers = count(1)
        self._transfers: dict[int, asyncio.Future[wire.TransferAnswer]] = {}
        self._noted = 0
        self.refused_results = 0
        """Batches of results of an earlier generation, which are computed again."""

    async def start(self) -> None:
        self._task = asyncio.create_task(self._supervise())
        if self.publisher is not None:
            self.publisher.start()
        if self.file.node.application is not None:
            text = self.file.resolve(self.file.node.application).read_text(encoding="utf-8")
            await self.apply(text, ignore_existing=True)

    async def stop(self) -> None:
        self.links.close_all()
        if self.publisher is not None:
            await self.publisher.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self.store.close)

    # -- messages of nodes ---------------------------------------------------------------------------------------------

    def _receive(self, node: str, message: wire.NodeMessage) -> None:
        name = EdgeNodeId(node)
        match message:
            case wire.Register(_, parent, run, address, streams, sources):
                above = None if parent is None else EdgeNodeId(parent)
                specs = tuple(map(decode_source, sources))
                self._post(events.NodeRegistered(name, above, run, address, tuple(streams), specs), node)
            case wire.Beat(run, sent_s, generation, report):
                self._post(events.NodeBeat(name, run, sent_s, generation, decode_report(report)), node)
            case wire.Ready(generation):
                self._post(events.NodeReady(name, generation), node)
            case wire.LinkBroken(generation, peer):
                self._post(events.LinkLost(name, generation, EdgeNodeId(peer)), node)
            case wire.AttachPublisher(publisher, stream, generation):
                self._post(events.PublisherAttached(name, publisher, stream, generation), node)
            case wire.SourcePosition(source, position):
                self._post(events.SourcePositionReported(source, position), node)
            case wire.TransferAnswer(request):
                future = self._transfers.get(request)
                if future is not None and not future.done():
                    future.set_result(message)

    def _lost(self, node: str, run: int) -> None:
        self._post(events.ControlLost(EdgeNodeId(node), run), node)

    def _post(self, event: events.Event, node: str) -> None:
        self._events.append((event, node))
        self._wake.set()

    def on_result(self, generation: int, result: EmitResult) -> None:
        """A result of the root's operators."""
        pending = self._pending.get(result.query)
        if pending is None or pending.generation != generation:
            pending = self._pending[result.query] = _Pending(generation)
        pending.add(result)
        self._wake.set()

    # -- the loop ------------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        try:
            await self._run()
        except Exception as error:
            logger().error("the tree control failed", exc_info=error)
            self.on_failure()
            raise

    async def _run(self) -> None:
        while True:
            await self._wait()
            await self._accept_results()
            posted, self._events = self._events, []
            requests, self._requests = self._requests, []
            effects: list[tuple[events.Effect, str, events.Event | None]] = []
            for event, node in posted:
                effects += [(effect, node, event) for effect in self._handle(event)]
            outcomes = [(request, self._handle_request(request, effects)) for request in requests]
            effects += [(effect, "", None) for effect in self._handle(events.TimePassed())]
            await self._carry_out(effects)
            for request, rejection in outcomes:
                if not request.answer.done():
                    if rejection is None:
                        request.answer.set_result(None)
                    else:
                        request.answer.set_exception(_error(rejection))

    async def _wait(self) -> None:
        """Return when there is an event, a request or a result to accept, or a deadline has passed."""
        now_s = time.monotonic()
        due_s = [at_s for pending in self._pending.values() if (at_s := pending.due_s()) is not None]
        deadline_s = self.control.deadline_s()
        next_s = min((*due_s, *([] if deadline_s is None else [deadline_s])), default=now_s + 1.0)
        if self._events or self._requests or next_s <= now_s:
            await asyncio.sleep(0)
            return
        self._wake.clear()
        try:
            async with asyncio.timeout(min(next_s - now_s, 1.0)):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _handle(self, event: events.Event) -> list[events.Effect]:
        return self.control.handle(event, time.monotonic())

    def _handle_request(
        self, request: _Request, effects: list[tuple[events.Effect, str, events.Event | None]]
    ) -> events.RejectRequest | None:
        """Handle the events of a request up to the first rejection."""
        for event in request.events:
            own = self._handle(event)
            effects += [(effect, "", None) for effect in own if not isinstance(effect, events.RejectRequest)]
            for effect in own:
                if isinstance(effect, events.RejectRequest):
                    return effect
        return None

    async def _accept_results(self) -> None:
        """Store the results that are due, one query at a time: each may lead to the next generation."""
        now_s = time.monotonic()
        for query, pending in list(self._pending.items()):
            if not self._is_of_present_query(query, pending.generation):
                del self._pending[query]  # it was dropped
                continue
            due_s = pending.due_s()
            if due_s is None or due_s > now_s or pending.watermark_us is None:
                continue
            if not self.control.may_accept(pending.generation):
                if self.control.generation is not None and pending.generation < self.control.generation.number:
                    self.refused_results += len(pending.complete)
                    del self._pending[query]
                continue
            batches, floor_us, pending.complete, pending.watermark_us = pending.complete, pending.watermark_us, [], None
            pending.accepted_s = now_s
            if not batches and floor_us <= self.control.state.floors_us.get(query, floor_us - 1):
                continue  # a new generation has not caught up yet
            results = await asyncio.to_thread(_results, query, self.dataset_of(query), batches, floor_us)
            await self._stored(self.store.accept, [results])
            self.result_rows[query] = self.result_rows.get(query, 0) + results.rows
            self.outbox_size += len(results.batches)
            effects = self._handle(events.ResultsAccepted(query, floor_us, pending.generation))
            await self._carry_out([(effect, "", None) for effect in effects])
            if self.publisher is not None and results.batches:
                self.publisher.wake()

    def _is_of_present_query(self, name: str, number: int) -> bool:
        """False if the query was dropped, also if another query of this name waits for the next generation."""
        text, generation = self.control.state.queries.get(name), self.control.generation
        is_current = generation is not None and generation.number == number
        return text is not None and (not is_current or generation is None or text in generation.queries)

    async def _stored(self, store: Any, value: Any) -> None:
        """Retry until the database has stored the value: nothing may happen before that."""
        while True:
            try:
                await asyncio.to_thread(store, value)
                return
            except (sa.exc.OperationalError, OSError) as error:
                logger().error("the root's store cannot be written; retrying", exc_info=error)
                await asyncio.sleep(_RETRY_S)

    async def _carry_out(self, effects: list[tuple[events.Effect, str, events.Event | None]]) -> None:
        states = [effect.state for effect, _, _ in effects if isinstance(effect, events.StoreControl)]
        if states:
            await self._stored(self.store.save, states[-1])
        encoded: dict[int, wire.StartGeneration] = {}
        for effect, node, event in effects:
            match effect:
                case events.SendGeneration(receiver, generation):
                    if generation.number not in encoded:
                        encoded[generation.number] = encode_generation(generation)
                        self._note_generation(generation)
                    self.links.send(receiver, encoded[generation.number])
                case events.SendRun(receiver, number):
                    self.links.send(receiver, wire.RunGeneration(number))
                case events.SendBeatAnswer(receiver, sent_s, floors_us):
                    self.links.send(receiver, wire.BeatAnswer(sent_s, dict(floors_us)))
                case events.SendFenced(receiver, run, known):
                    logger().warning("fenced a node", node=receiver, run=run)
                    self.links.send(receiver, wire.Fenced(run, known))
                case events.GrantPublisher(receiver, publisher, stream):
                    self.links.send(receiver, wire.GrantPublisher(publisher, stream))
                case events.RejectRequest(code, reason) if node:
                    if isinstance(event, events.PublisherAttached):
                        rejected = wire.PublisherRejected(event.publisher, event.stream, code, reason)
                        self.links.send(node, rejected)
                    else:
                        logger().warning("rejected a node's message", node=node, code=code, reason=reason)
                        self.links.send(node, wire.Rejected(code, reason))

    def _note_generation(self, generation: Generation) -> None:
        if generation.number == self._noted:
            return  # sent again to a node that lost its connection
        self._noted = generation.number
        logger().info(
            "a generation starts",
            number=generation.number,
            nodes=len(generation.tree.nodes),
            queries=len(generation.queries),
        )

    # -- requests ------------------------------------------------------------------------------------------------------

    async def apply(self, text: str, *, ignore_existing: bool = False) -> int:
        """Apply statements in order, up to the first that is wrong. Returns how many there are."""
        statements = parse_statements(text)
        if isinstance(statements, QueryRejected):
            raise TocsinError(Code.BAD_SQL, f"{statements.code}: {statements.reason}")
        for statement in statements:
            try:
                await self._request(statement)
            except TocsinError as error:
                if not (ignore_existing and error.code is Code.EXISTS):
                    raise
        return len(statements)

    async def drop(self, query: str) -> None:
        await self._request(events.QueryDropped(query))

    async def _request(self, event: events.Event) -> None:
        request = _Request([event], asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self._wake.set()
        await request.answer

    async def transfer(self, operators: Sequence[str], destination: str) -> TransferBegun:
        """Order the node that holds the operators to hand them over. Raises `TocsinError` if it does not begin."""
        holders = [
            node for node, living in self.control.living.items() if set(operators) <= set(living.report.operators)
        ]
        if not holders or not operators:
            raise TocsinError(Code.NOT_FOUND, f"no living node holds {', '.join(operators) or 'no operators'} together")
        number = next(self._request_numbers)
        future = self._transfers[number] = asyncio.get_running_loop().create_future()
        try:
            self.links.send(holders[0], wire.OrderTransfer(number, list(operators), destination))
            async with asyncio.timeout(_ANSWER_S):
                answer = await future
        except TimeoutError:
            raise TocsinError(Code.NOT_READY, f"{holders[0]} does not answer", retry_after_s=1) from None
        finally:
            del self._transfers[number]
        if answer.code is not None:
            reason = f"{answer.code}: {holders[0]} cannot hand them over to {destination} now"
            raise TocsinError(Code.IN_USE, reason, retry_after_s=1)
        return TransferBegun(answer.operators, holders[0])

    # -- what the routes show ------------------------------------------------------------------------------------------

    def dataset_of(self, query: str) -> str:
        text = self.control.state.queries[query]
        if text not in self._datasets:
            compiled = prepare(text, self.control.state.streams)
            self._datasets[text] = query if isinstance(compiled, QueryRejected) else compiled.dataset
        return self._datasets[text]

    def _published(self, _number: int) -> None:
        self.outbox_size -= 1

    async def outbox(self, after: int, limit: int) -> list[OutboxEntry]:
        return await asyncio.to_thread(self.store.outbox, after, limit)

    def described(self) -> dict[str, Any]:
        control, state = self.control, self.control.state
        generation = control.generation
        started_s = control.generation_started_s
        return {
            "generation": state.generation,
            "running": control.is_running,
            "generation_started_s": None if started_s is None else time.time() - time.monotonic() + started_s,
            "recoveries": control.recoveries,
            "nodes": [self._node(node, generation) for node in state.nodes],
            "queries": [
                {
                    "name": name,
                    "sql": text,
                    "dataset": self.dataset_of(name),
                    "floor": state.floors_us.get(name),
                    "rows": self.result_rows.get(name, 0),
                }
                for name, text in state.queries.items()
            ],
            "outbox": self.outbox_size,
        }

    def _node(self, name: EdgeNodeId, generation: Generation | None) -> dict[str, Any]:
        record, living = self.control.state.nodes[name], self.control.living.get(name)
        is_member = generation is not None and name in generation.tree.nodes
        described: dict[str, Any] = {
            "name": name,
            "parent": record.parent,
            "state": "dead" if living is None else "alive" if is_member and self.control.is_running else "joining",
            "address": record.address,
        }
        if living is not None:
            report = living.report
            described |= {
                "usage": {
                    "memory_pct": report.usage.memory_pct,
                    "cpu_pct": report.usage.cpu_pct,
                    "network_pct": report.usage.network_pct,
                },
                "inbox_bytes": report.inbox_bytes,
                "rows_per_s": report.rows_per_s,
                "late_rows": report.late_rows,
                "bytes_up": report.bytes_up,
                "raw_bytes": report.raw_bytes,
                "operators": list(report.operators),
            }
        return described


def _error(rejection: events.RejectRequest) -> TocsinError:
    code = _CODES.get(rejection.code, Code.BAD_SQL)
    return TocsinError(code, f"{rejection.code}: {rejection.reason}")


def _results(query: str, dataset: str, batches: Iterable[pa.RecordBatch], floor_us: int) -> Results:
    batching = Batching()
    lines = [msgspec.json.encode(row) for batch in batches for row in batch.to_pylist()]
    full = [batch for line in lines if (batch := batching.add(line)) is not None]
    bodies = [b"\n".join(batch) for batch in (*full, batching.rest()) if batch]
    return Results(query, dataset, bodies, len(lines), floor_us)
