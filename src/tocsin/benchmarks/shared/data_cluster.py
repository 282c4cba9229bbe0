"""The part of the data cluster's API that a broker uses, answered from memory: for benchmarks and tests without Spark.

Subscriptions, announcements and results as docs/api.md describes them, gaps included. What it does not do is compute:
whoever drives it says which results an execution had.
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
from tocsin.runtime.http.listening import Server, listen

_encode = msgspec.json.Encoder().encode


@dataclass
class EmulatedChannel:
    name: ChannelName
    epoch: int = 1
    execution: int = 0
    """The last one."""
    kept_from: int = 1
    """The first execution whose results are still there."""
    offsets: dict[SubscriptionId, list[int]] = field(default_factory=dict)
    rows: dict[SubscriptionId, list[bytes]] = field(default_factory=dict)

    @property
    def head(self) -> Cursor:
        return Cursor(self.epoch, offset_of(self.execution + 1))


class EmulatedCluster:
    """`async with` it. Everything is public: tests look inside."""

    def __init__(self, *channels: str, port: int = 0, tls: tuple[str, str] | None = None) -> None:
        """`tls` is a certificate and its key, as PEM files."""
        self._tls = tls
        self.channels = {name.lower(): EmulatedChannel(ChannelName(name)) for name in channels}
        self.held: dict[str, set[SubscriptionId]] = {}
        """By broker."""
        self.sequence = 0
        self.announced: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.fetches = 0
        self.away = False
        """Answer 503 to everything."""
        self._woken: set[asyncio.Event] = set()
        self._sockets: set[WebSocket] = set()
        self._listening = listen("127.0.0.1", port)
        self.port = self._listening.getsockname()[1]
        self.url = f"http{'' if tls is None else 's'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> EmulatedCluster:
        app = Starlette(
            routes=[
                Route("/v1/subscriptions", self._subscribe, methods=["POST"]),
                Route("/v1/subscriptions", self._list, methods=["GET"]),
                Route("/v1/subscriptions/delete", self._unsubscribe, methods=["POST"]),
                Route("/v1/results", self._results, methods=["POST"]),
                Route("/v1/brokers/{broker}/holds", self._holds),
                WebSocketRoute("/v1/brokers/{broker}/announcements", self._announcements),
            ]
        )
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="websockets-sansio",
            ws_per_message_deflate=False, timeout_graceful_shutdown=1,
            ssl_certfile=None if self._tls is None else self._tls[0],
            ssl_keyfile=None if self._tls is None else self._tls[1],
        )  # fmt: skip
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

    # -- what a driver does ----------------------------------------------------------------------------------------

    def execute(self, channel: str, results: Mapping[SubscriptionId, Sequence[bytes]]) -> None:
        """One execution with these rows (JSON objects), announced to whoever holds the subscriptions."""
        own = self.channels[channel.lower()]
        own.execution += 1
        for identity, rows in results.items():
            start = offset_of(own.execution)
            own.offsets.setdefault(identity, []).extend(start + row + 1 for row in range(len(rows)))
            own.rows.setdefault(identity, []).extend(rows)
        self.sequence += 1
        self.announced.append(
            {"sequence": self.sequence, "channel": own.name, "epoch": own.epoch, "execution": own.execution,
             "finished_s": time.time(), "subscriptions": {key: len(rows) for key, rows in results.items()}}
        )  # fmt: skip
        self._wake()

    def expire(self, channel: str) -> None:
        """Everything so far passes its retention."""
        own = self.channels[channel.lower()]
        own.kept_from = own.execution + 1
        own.offsets.clear()
        own.rows.clear()

    def replace(self, channel: str) -> None:
        """Another life of the channel."""
        self.expire(channel)
        own = self.channels[channel.lower()]
        own.epoch, own.execution, own.kept_from = own.epoch + 1, 0, 1
        self.sequence += 1
        self._wake()

    async def hang_up(self) -> None:
        """Break the announcement streams."""
        for socket in list(self._sockets):
            with suppress(RuntimeError, WebSocketDisconnect):
                await socket.close(1012)

    def _wake(self) -> None:
        for woken in self._woken:
            woken.set()

    # -- what brokers ask ------------------------------------------------------------------------------------------

    def _error(self, status: int, code: str, message: str) -> Response:
        return Response(_encode({"error": {"code": code, "message": message}}), status)

    async def _subscribe(self, request: Request) -> Response:
        wanted = msgspec.json.decode(await request.body())
        self.requests.append("subscribe")
        if self.away:
            return self._error(503, "not_ready", "away")
        channel = self.channels.get(wanted["channel"].lower())
        if channel is None:
            return self._error(404, "unknown_channel", f"there is no channel {wanted['channel']}")
        sets = wanted["parameters"] if isinstance(wanted["parameters"], list) else [wanted["parameters"]]
        if any("bad" in one for one in sets):
            return self._error(400, "bad_parameter", "the channel has no such parameter")
        ids = [subscription_id(channel.name, _canonical(one)) for one in sets]
        held = self.held.setdefault(wanted["broker"], set())
        answer = [{"id": one, "cursor": str(channel.head), "created": one not in held} for one in ids]
        held.update(ids)
        return Response(_encode(answer))

    async def _list(self, request: Request) -> Response:
        channel = next(iter(self.channels.values())).name
        held = [{"id": one, "channel": channel} for one in self.held.get(request.query_params["broker"], ())]
        return Response(_encode({"subscriptions": held, "next": None}))

    async def _holds(self, request: Request) -> Response:
        held = self.held.get(request.path_params["broker"], set())
        return Response(_encode({"subscriptions": len(held), "fingerprint": fingerprint(held)}))

    async def _unsubscribe(self, request: Request) -> Response:
        unwanted = msgspec.json.decode(await request.body())
        self.requests.append("release")
        if self.away:
            return self._error(503, "not_ready", "away")
        self.held.setdefault(unwanted["broker"], set()).difference_update(unwanted["subscriptions"])
        return Response(b'{"released":1}')

    async def _results(self, request: Request) -> Response:
        wanted = msgspec.json.decode(await request.body())
        self.fetches += 1
        if self.away:
            return self._error(503, "not_ready", "away")
        channel = self.channels[wanted["channel"].lower()]
        known = set().union(*self.held.values()) if self.held else set()
        lines: list[bytes] = []
        results: list[bytes] = []
        for identity, text in wanted["subscriptions"].items():
            if identity not in known:
                return self._error(404, "unknown_subscription", f"there is no subscription {identity}")
            cursor = Cursor.parse(text)
            assert cursor is not None
            first = cursor.offset
            if cursor.epoch != channel.epoch or first < offset_of(channel.kept_from) or cursor > channel.head:
                gap = Cursor(channel.epoch, offset_of(channel.kept_from))
                lines.append(_encode({"subscription": identity, "cursor": str(gap), "gap": True}))
                first = 0
            offsets = channel.offsets.get(identity, [])
            rows = channel.rows.get(identity, [])
            head = f'{{"subscription":"{identity}","cursor":"{channel.epoch}-%d","bytes":%d,"result":'.encode()
            results += [
                head % (offsets[place], len(rows[place])) + rows[place] + b"}"
                for place in range(bisect_right(offsets, first), len(offsets))
            ]
        body = b"".join(line + b"\n" for line in (*lines, *results))
        return Response(body, 200, {"Tocsin-Cursor": str(channel.head)}, "application/x-ndjson")

    async def _announcements(self, socket: WebSocket) -> None:
        if self.away:
            await socket.close(1013)
            return
        await socket.accept()
        woken = asyncio.Event()
        self._woken.add(woken)
        self._sockets.add(socket)
        telling = asyncio.create_task(self._tell(socket, woken))
        try:
            with suppress(WebSocketDisconnect, RuntimeError):
                while (await socket.receive())["type"] != "websocket.disconnect":
                    pass
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            self._woken.discard(woken)
            self._sockets.discard(socket)

    async def _tell(self, socket: WebSocket, woken: asyncio.Event) -> None:
        broker = socket.path_params["broker"]
        given = socket.query_params.get("after")
        at = self.sequence if given is None else int(given)
        heads: dict[ChannelName, Cursor] = {}
        await self._say(socket, {"type": "ready", "sequence": at})
        while True:
            woken.clear()
            upto = self.sequence
            for news in [one for one in self.announced if one["sequence"] > at]:
                held = self.held.get(broker, set())
                mine = [{"id": key, "results": count} for key, count in news["subscriptions"].items() if key in held]
                if mine:
                    told = news | {"type": "execution", "part": 1, "parts": 1, "subscriptions": mine}
                    await self._say(socket, told)
            at = upto
            if self.sequence != upto:
                continue
            moved = {one.name: one.head for one in self.channels.values() if heads.get(one.name) != one.head}
            heads |= moved
            positions = {name: str(head) for name, head in moved.items()}
            await self._say(socket, {"type": "progress", "sequence": at, "channels": positions})
            await woken.wait()

    async def _say(self, socket: WebSocket, content: object) -> None:
        await socket.send_text(_encode(content).decode())


def _canonical(parameters: Mapping[str, Value]) -> tuple[Value, ...]:
    return tuple(parameters[name] for name in sorted(parameters))
