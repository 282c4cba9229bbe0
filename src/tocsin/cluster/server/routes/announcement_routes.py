"""Brokers hear of executions: one connection each, as server-sent events or over a WebSocket, both resumable.

A connection is one number: the sequence up to which its broker has been told. Nothing is queued for a broker that is
slow or away; it is read again from where it stood. Silence carries news too: `progress` names the channels whose
position moved, so that a broker's cursors keep up with channels that had nothing for it. A stream without `after`
begins at the present: its first message says where that is, and whoever subscribed before pulls its results from its
cursors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Query, Request, Response, WebSocket
from fastapi.responses import StreamingResponse
from starlette.websockets import WebSocketDisconnect

from tocsin.cluster.announcements import Announcement, News
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.server.routes.api import Api, require_broker
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, ChannelName
from tocsin.runtime.http.answers import encode
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["announcements"])

SUBSCRIPTIONS_AT_ONCE = 5_000
"""In one message; an execution with news for more comes in several parts, and counts as told with the last."""
RETRY_MS = 1_000

Told = tuple[str, dict[str, Any], int | None]
"""(kind of message, its content, the sequence a broker resumes from once it has it)."""


@router.get("/v1/brokers/{broker}/announcements", response_class=Response)
async def announcements(
    request: Request, broker: str, after: int | None = Query(None, ge=0, le=2**62)
) -> StreamingResponse:
    """Server-sent events `ready`, `execution`, `progress` and `gap`; `Last-Event-ID` or `after` resumes."""
    api, name = require_broker(request, broker)
    _ = api.cluster
    last = request.headers.get("last-event-id")
    if last is not None and after is None:
        after = _sequence(last)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(api, name, after), headers=headers, media_type="text/event-stream")


async def _events(api: Api, broker: BrokerId, after: int | None) -> AsyncIterator[bytes]:
    yield b"retry: %d\n\n" % RETRY_MS
    async for kind, content, sequence in tell(api, broker, after):
        if kind == "heartbeat":
            yield b": alive\n\n"
        identity = b"" if sequence is None else b"id: %d\n" % sequence
        name = "progress" if kind == "heartbeat" else kind
        yield identity + f"event: {name}\n".encode() + b"data: " + encode(content) + b"\n\n"


@router.websocket("/v1/brokers/{broker}/announcements")
async def announcements_socket(socket: WebSocket, broker: str, after: str | None = None) -> None:
    api, name = require_broker(socket, broker)
    _ = api.cluster
    start = None if after is None else _sequence(after)
    await socket.accept()
    gone = asyncio.create_task(_until_gone(socket))
    telling = asyncio.create_task(_tell_socket(socket, api, name, start))
    await asyncio.wait((gone, telling), return_when=asyncio.FIRST_COMPLETED)
    for task in (gone, telling):
        task.cancel()
    await asyncio.gather(gone, telling, return_exceptions=True)


async def _tell_socket(socket: WebSocket, api: Api, broker: BrokerId, after: int | None) -> None:
    with suppress(WebSocketDisconnect, RuntimeError):
        async for kind, content, _ in tell(api, broker, after):
            name = "progress" if kind == "heartbeat" else kind
            await socket.send_text(encode({"type": name} | content).decode())
        await socket.close(1012, "the data cluster is stopping; connect again")


async def _until_gone(socket: WebSocket) -> None:
    """A broker says nothing here; reading notices when it leaves."""
    with suppress(WebSocketDisconnect, RuntimeError):
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass


async def tell(api: Api, broker: BrokerId, after: int | None) -> AsyncIterator[Told]:
    """What a broker is to be told, from `after` on, until the process stops."""
    cluster = api.cluster
    heard = cluster.announcements
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()

    def listener() -> None:
        with suppress(RuntimeError):  # the loop is closed, and with it the connection
            loop.call_soon_threadsafe(woken.set)

    stop_listening = heard.listen(listener)
    api.listening[broker] += 1
    try:
        with api.process.calling_on_stop(woken.set):
            told = at = heard.sequence if after is None else after
            heads: dict[ChannelName, Cursor] = {}
            """Positions this connection has been told."""
            yield "ready", {"sequence": at}, at
            while not api.process.stopping.is_set():
                woken.clear()
                news = await asyncio.to_thread(heard.since, broker, at)
                if news.gap or news.sequence < at:
                    yield "gap", {"after": at, "sequence": news.sequence}, None
                for message in _messages(news):
                    told = message[2] or told
                    yield message
                before, at = at, news.sequence
                if at > before:
                    continue  # there may be another page
                moved = await asyncio.to_thread(_moved, cluster, at, heads)  # the engine may be busy for a while
                if told != at or moved:
                    told = at
                    yield "progress", {"sequence": at, "channels": moved}, at
                try:
                    async with asyncio.timeout(api.settings.heartbeat_s):
                        await woken.wait()
                except TimeoutError:
                    yield "heartbeat", {"sequence": at, "channels": {}}, at
    finally:
        stop_listening()
        api.listening[broker] -= 1


def _moved(cluster: DataCluster, at: int, known: dict[ChannelName, Cursor]) -> dict[ChannelName, str]:
    """Channels that stand elsewhere than `known` says, with all executions up to `at` told; `known` is updated."""
    sequence, heads = cluster.channels.heads()
    if sequence != at:
        return {}  # something was committed in between: it is told first
    moved = {channel: str(head) for channel, head in heads.items() if known.get(channel) != head}
    known.update(heads)
    return moved


def _messages(news: News) -> Iterator[Told]:
    for announcement in news.announcements:
        yield from _parts(announcement)


def _parts(announcement: Announcement) -> Iterator[Told]:
    subscriptions = announcement.subscriptions
    starts = range(0, len(subscriptions), SUBSCRIPTIONS_AT_ONCE)
    for part, start in enumerate(starts, 1):
        content = {
            "sequence": announcement.sequence,
            "channel": announcement.channel,
            "epoch": announcement.epoch,
            "execution": announcement.execution,
            "finished_s": announcement.finished_s,
            "part": part,
            "parts": len(starts),
            "subscriptions": subscriptions[start : start + SUBSCRIPTIONS_AT_ONCE],
        }
        yield "execution", content, announcement.sequence if part == len(starts) else None


def _sequence(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise TocsinError(Code.BAD_REQUEST, f"{text[:40]!r}: expected the sequence number of an announcement")
    return int(text)
