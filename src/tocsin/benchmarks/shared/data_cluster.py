"""A data cluster in memory that answers brokers like the real one: for benchmarks and tests without Spark.

It speaks `wire.cluster`: subscriptions, announcements, results with gaps, and records of subscribers. It computes
nothing: the benchmark or test passes the results of each execution.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tocsin.model.cursor import Cursor, offset_of
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.model.subscription import Value, fingerprint, subscription_id
from tocsin.runtime.http.answers import NDJSON, answer, error_answer
from tocsin.runtime.http.listening import Server, listen
from tocsin.wire import cluster as wire
from tocsin.wire.errors import Code, TocsinError


@dataclass
class EmulatedChannel:
    name: ChannelName
    epoch: int = 1
    execution: int = 0
    """The number of the last execution."""
    kept_from: int = 1
    """The first execution whose results are still stored."""
    offsets: dict[SubscriptionId, list[int]] = field(default_factory=dict)
    rows: dict[SubscriptionId, list[bytes]] = field(default_factory=dict)

    @property
    def head(self) -> Cursor:
        return Cursor(self.epoch, offset_of(self.execution + 1))

    def lines(self, identity: SubscriptionId, after: Cursor) -> tuple[list[bytes], list[bytes]]:
        """Return the gap lines and the result lines of a pull from this cursor on."""
        gaps: list[bytes] = []
        first = after.offset
        if after.epoch != self.epoch or first < offset_of(self.kept_from) or after > self.head:
            kept = Cursor(self.epoch, offset_of(self.kept_from))
            gaps.append(wire.encode(wire.ResultLine(identity, str(kept), gap=True)))
            first = 0
        offsets, rows = self.offsets.get(identity, []), self.rows.get(identity, [])
        # `wire.ResultLine` by hand: a benchmark's driver must be cheaper than the broker it measures.
        head = f'{{"subscription":"{identity}","cursor":"{self.epoch}-%d","bytes":%d,"result":'.encode()
        return gaps, [
            head % (offsets[place], len(rows[place])) + rows[place] + b"}"
            for place in range(bisect_right(offsets, first), len(offsets))
        ]


class EmulatedCluster:
    """`async with` it. Everything is public: tests look inside."""

    def __init__(self, *channels: str, tls: tuple[str, str] | None = None) -> None:
        """`tls` is a certificate and its key, as PEM files."""
        self._tls = tls
        self.channels = {name.lower(): EmulatedChannel(ChannelName(name)) for name in channels}
        self.held: dict[str, set[SubscriptionId]] = {}
        """The subscriptions that each broker holds."""
        self.sequence = 0
        self.announced: list[wire.Execution] = []
        """All executions, with the news for every broker."""
        self.requests: list[str] = []
        self.fetches = 0
        self.answers_joint_requests = True
        """False for a data cluster of an earlier release."""
        self.own_records: dict[str, dict[str, dict[str, Any]]] = {}
        """Dataset → user → the columns of its record. A dataset that is not listed here is unknown."""
        self.away = False
        """While true, refuse requests with 503 and close new streams."""
        self._streams: dict[WebSocket, asyncio.Event] = {}
        """Open streams of announcements, with the events that wake them."""
        self._listening = listen("127.0.0.1", 0)
        self.url = f"http{'' if tls is None else 's'}://127.0.0.1:{self._listening.getsockname()[1]}"

    async def __aenter__(self) -> EmulatedCluster:
        app = Starlette(
            routes=[
                Route(wire.SUBSCRIPTIONS, self._subscribe, methods=["POST"]),
                Route(wire.SUBSCRIPTIONS, self._list, methods=["GET"]),
                Route(wire.RELEASES, self._release, methods=["POST"]),
                Route(wire.RESULTS, self._results, methods=["POST"]),
                Route(wire.JOINT_RESULTS, self._joint_results, methods=["POST"]),
                Route(wire.HOLDS, self._holds),
                Route(wire.OWN_RECORDS, self._store, methods=["POST"]),
                WebSocketRoute(wire.ANNOUNCEMENTS, self._announcements),
            ],
            exception_handlers={TocsinError: _refuse},
        )
        certificate, key = (None, None) if self._tls is None else self._tls
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=1,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        self._server = Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        while not self._server.started:
            await asyncio.sleep(0.005)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.hang_up()
        self._server.should_exit = True
        await asyncio.gather(self._serving, return_exceptions=True)
        self._listening.close()

    # -- what a benchmark or test does -----------------------------------------------------------------------------

    def execute(self, channel: str, results: Mapping[SubscriptionId, Sequence[bytes]]) -> None:
        """Run one execution with these rows (JSON objects) and announce it to the brokers that hold them."""
        own = self.channels[channel.lower()]
        own.execution += 1
        news: list[wire.SubscriptionNews] = []
        for identity, rows in results.items():
            start = offset_of(own.execution)
            own.offsets.setdefault(identity, []).extend(start + row + 1 for row in range(len(rows)))
            own.rows.setdefault(identity, []).extend(rows)
            news.append(wire.SubscriptionNews(identity, len(rows), sum(map(len, rows))))
        self.sequence += 1
        self.announced.append(
            wire.Execution(self.sequence, own.name, own.epoch, own.execution, time.time(), 1, 1, news)
        )
        for woken in self._streams.values():
            woken.set()

    def expire(self, channel: str) -> None:
        """Let all results so far pass their retention."""
        own = self.channels[channel.lower()]
        own.kept_from = own.execution + 1
        own.offsets.clear()
        own.rows.clear()

    async def hang_up(self) -> None:
        """Close the announcement streams."""
        for socket in list(self._streams):
            with suppress(RuntimeError, WebSocketDisconnect):
                await socket.close(1012)

    # -- requests of brokers ---------------------------------------------------------------------------------------

    def _check_present(self) -> None:
        if self.away:
            raise TocsinError(Code.NOT_READY, "away")

    async def _subscribe(self, request: Request) -> Response:
        body = msgspec.json.decode(await request.body(), type=wire.SubscribeRequest)
        self.requests.append("subscribe")
        self._check_present()
        channel = self.channels.get(body.channel.lower())
        if channel is None:
            raise TocsinError(Code.UNKNOWN_CHANNEL, f"there is no channel {body.channel}")
        sets = body.parameters if isinstance(body.parameters, list) else [body.parameters]
        if any("bad" in values for values in sets):
            raise TocsinError(Code.BAD_PARAMETER, "the channel has no such parameter")
        ids = [subscription_id(channel.name, _canonical(values)) for values in sets]
        held = self.held.setdefault(body.broker or "", set())
        granted = [wire.Granted(identity, str(channel.head), identity not in held) for identity in ids]
        held.update(ids)
        return answer(granted)

    async def _list(self, request: Request) -> Response:
        channel = next(iter(self.channels.values())).name
        held = self.held.get(request.query_params["broker"], ())
        return answer(wire.SubscriptionPage([wire.ListedSubscription(identity, channel) for identity in held]))

    async def _holds(self, request: Request) -> Response:
        held = self.held.get(request.path_params["broker"], set())
        return answer(wire.Holds(len(held), fingerprint(held)))

    async def _release(self, request: Request) -> Response:
        body = msgspec.json.decode(await request.body(), type=wire.ReleaseRequest)
        self.requests.append("release")
        self._check_present()
        self.held.setdefault(body.broker or "", set()).difference_update(map(SubscriptionId, body.subscriptions))
        return answer(wire.ReleaseAnswer(1))

    async def _results(self, request: Request) -> Response:
        body = msgspec.json.decode(await request.body(), type=wire.ResultsRequest)
        self.fetches += 1
        self._check_present()
        channel, gaps, results = self._pulled(body)
        content = b"".join(line + b"\n" for line in (*gaps, *results))
        return Response(content, 200, {wire.CURSOR_HEADER: str(channel.head)}, NDJSON)

    async def _joint_results(self, request: Request) -> Response:
        if not self.answers_joint_requests:
            return Response(status_code=404)
        body = msgspec.json.decode(await request.body(), type=wire.JointResultsRequest)
        self.fetches += 1
        self._check_present()
        lines: list[bytes] = []
        for one in body.requests:
            part, results = wire.ChannelLine(one.channel), list[bytes]()
            with suppress(TocsinError):
                channel, gaps, found = self._pulled(one)
                if not gaps:
                    part, results = wire.ChannelLine(one.channel, str(channel.head), len(found)), found
            lines += [wire.encode(part), *results]
        return Response(b"".join(line + b"\n" for line in lines), 200, media_type=NDJSON)

    def _pulled(self, body: wire.ResultsRequest) -> tuple[EmulatedChannel, list[bytes], list[bytes]]:
        """(the channel, the lines of gaps, those of results) of a request."""
        channel = self.channels[body.channel.lower()]
        held_ids = set().union(*self.held.values()) if self.held else set()
        gaps: list[bytes] = []
        results: list[bytes] = []
        for identity, text in body.subscriptions.items():
            if identity not in held_ids:
                raise TocsinError(Code.UNKNOWN_SUBSCRIPTION, f"there is no subscription {identity}")
            assert text is not None  # brokers always send a cursor
            own_gaps, own_results = channel.lines(SubscriptionId(identity), wire.decode_cursor(text))
            gaps += own_gaps
            results += own_results
        return channel, gaps, results

    async def _store(self, request: Request) -> Response:
        records = msgspec.json.decode(await request.body(), type=list[wire.OwnRecord])
        self.requests.append("store")
        self._check_present()
        stored = self.own_records.get(request.path_params["name"])
        if stored is None:
            raise TocsinError(Code.UNKNOWN_DATASET, f"there is no dataset {request.path_params['name']}")
        refused = [
            wire.RefusedRecord(index, Code.BAD_RECORDS, "bad: unknown field")
            for index, record in enumerate(records)
            if "bad" in record.record
        ]
        for record in records:
            if "bad" not in record.record:
                stored[record.user] = {name: msgspec.json.decode(value) for name, value in record.record.items()}
        return answer(wire.OwnRecordsAnswer(len(records) - len(refused), refused))

    async def _announcements(self, socket: WebSocket) -> None:
        if self.away:
            await socket.close(1013)
            return
        await socket.accept()
        woken = self._streams[socket] = asyncio.Event()
        announcing = asyncio.create_task(self._announce(socket, woken))
        try:
            with suppress(WebSocketDisconnect, RuntimeError):
                while (await socket.receive())["type"] != "websocket.disconnect":
                    pass
        finally:
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)
            del self._streams[socket]

    async def _announce(self, socket: WebSocket, woken: asyncio.Event) -> None:
        broker = socket.path_params["broker"]
        after = socket.query_params.get("after")
        at = self.sequence if after is None else int(after)
        heads: dict[ChannelName, Cursor] = {}
        await _send(socket, wire.Ready(at))
        while True:
            woken.clear()
            upto = self.sequence
            for execution in [execution for execution in self.announced if execution.sequence > at]:
                held = self.held.get(broker, set())
                news = [news for news in execution.subscriptions if news.id in held]
                if news:
                    await _send(socket, msgspec.structs.replace(execution, subscriptions=news))
            at = upto
            if self.sequence != upto:
                continue
            moved = {
                channel.name: channel.head
                for channel in self.channels.values()
                if heads.get(channel.name) != channel.head
            }
            heads |= moved
            await _send(socket, wire.ChannelProgress(at, {name: str(head) for name, head in moved.items()}))
            await woken.wait()


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, TocsinError)
    return error_answer(error)


async def _send(socket: WebSocket, message: wire.Announced) -> None:
    await socket.send_text(wire.encode(message).decode())


def _canonical(parameters: Mapping[str, Value]) -> tuple[Value, ...]:
    return tuple(parameters[name] for name in sorted(parameters))
