"""Announcements of executions to brokers: one stream per broker, as server-sent events or over a WebSocket.

The state of a stream is one sequence number: all executions up to it have been announced. Nothing is queued for a
broker that is slow or away; its stream resumes after its number. `progress` names the channels whose position moved, so
that a broker's cursors also advance on channels without results for it. A stream without `after` begins at the last
execution: its first message carries the sequence number of that execution, and a broker that subscribed earlier pulls
from its cursors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec
from fastapi import APIRouter, Query, Request, Response, WebSocket
from fastapi.responses import StreamingResponse
from starlette.websockets import WebSocketDisconnect

from tocsin.cluster.announcements import Announcement
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.server.routes.authentication import require_broker
from tocsin.cluster.server.routes.context import ClusterContext
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, ChannelName
from tocsin.runtime.http.answers import EVENT_STREAM, STREAM_HEADERS
from tocsin.wire import cluster as wire
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["announcements"])

SUBSCRIPTIONS_AT_ONCE = 5_000
"""The most subscriptions in one message. An execution with results for more is announced in several parts."""
RETRY_MS = 1_000
STREAMS_EACH = 8
"""The most streams of one broker. It needs one, and a second for a moment when it reconnects."""


class _Outgoing(NamedTuple):
    message: wire.Announced
    resume_after: int | None
    """The sequence number a broker resumes after, once it has this message; None between parts and at gaps."""
    heartbeat: bool = False


@router.get(wire.ANNOUNCEMENTS, response_class=Response)
async def announcements(
    request: Request, broker: str, after: int | None = Query(None, ge=0, le=2**62)
) -> StreamingResponse:
    """Server-sent events `ready`, `execution`, `progress` and `gap`; `Last-Event-ID` or `after` resumes."""
    context, name = require_broker(request, broker)
    _check_room(context, name)
    last = request.headers.get("last-event-id")
    if last is not None and after is None:
        after = _sequence(last)
    return StreamingResponse(_events(context, name, after), headers=STREAM_HEADERS, media_type=EVENT_STREAM)


def _check_room(context: ClusterContext, broker: BrokerId) -> None:
    _ = context.cluster  # raises while the data cluster is not ready
    if context.listening[broker] >= STREAMS_EACH:
        raise TocsinError(Code.BACKLOGGED, f"{broker} has {STREAMS_EACH} streams already", retry_after_s=10)


async def _events(context: ClusterContext, broker: BrokerId, after: int | None) -> AsyncIterator[bytes]:
    yield b"retry: %d\n\n" % RETRY_MS
    async for message, resume_after, heartbeat in _stream(context, broker, after):
        if heartbeat:
            yield b": alive\n\n"
        identity = b"" if resume_after is None else b"id: %d\n" % resume_after
        # The event's name takes the place of the tag.
        name = str(message.__struct_config__.tag).encode()
        data = wire.encode(msgspec.structs.asdict(message))
        yield identity + b"event: " + name + b"\ndata: " + data + b"\n\n"


@router.websocket(wire.ANNOUNCEMENTS)
async def announcements_socket(socket: WebSocket, broker: str, after: str | None = None) -> None:
    context, name = require_broker(socket, broker)
    _check_room(context, name)
    start = None if after is None else _sequence(after)
    await socket.accept()
    disconnected = asyncio.create_task(_until_disconnected(socket))
    sending = asyncio.create_task(_send(socket, context, name, start))
    await asyncio.wait((disconnected, sending), return_when=asyncio.FIRST_COMPLETED)
    for task in (disconnected, sending):
        task.cancel()
    await asyncio.gather(disconnected, sending, return_exceptions=True)


async def _send(socket: WebSocket, context: ClusterContext, broker: BrokerId, after: int | None) -> None:
    with suppress(WebSocketDisconnect, RuntimeError):
        async for outgoing in _stream(context, broker, after):
            await socket.send_text(wire.encode(outgoing.message).decode())
        await socket.close(1012, "the data cluster is stopping; connect again")


async def _until_disconnected(socket: WebSocket) -> None:
    """A broker sends nothing on this stream; reading notices when it disconnects."""
    with suppress(WebSocketDisconnect, RuntimeError):
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass


async def _stream(context: ClusterContext, broker: BrokerId, after: int | None) -> AsyncIterator[_Outgoing]:
    """The messages for a broker, after a sequence number or from the present on, until the process stops."""
    cluster = context.cluster
    executions = cluster.announcements
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()

    def listener() -> None:
        with suppress(RuntimeError):  # the loop is closed, and the connection with it
            loop.call_soon_threadsafe(woken.set)

    stop_listening = executions.listen(listener)
    context.listening[broker] += 1
    try:
        with context.process.calling_on_stop(woken.set):
            at = executions.sequence if after is None else after
            resume_after = at
            heads: dict[ChannelName, Cursor] = {}
            """Positions that this stream has announced."""
            yield _Outgoing(wire.Ready(at), at)
            while not context.process.stopping.is_set():
                woken.clear()
                news = await asyncio.to_thread(executions.since, broker, at)
                if news.gap or news.sequence < at:
                    yield _Outgoing(wire.AnnouncementGap(at, news.sequence), None)
                for announcement in news.announcements:
                    for outgoing in _parts(announcement):
                        resume_after = outgoing.resume_after or resume_after
                        yield outgoing
                before, at = at, news.sequence
                if at > before:
                    continue  # there may be another page
                moved = await asyncio.to_thread(_moved, cluster, at, heads)  # the engine may be busy for a while
                if resume_after != at or moved:
                    resume_after = at
                    yield _Outgoing(wire.ChannelProgress(at, moved), at)
                try:
                    async with asyncio.timeout(context.settings.heartbeat_s):
                        await woken.wait()
                except TimeoutError:
                    yield _Outgoing(wire.ChannelProgress(at), at, heartbeat=True)
    finally:
        stop_listening()
        context.listening[broker] -= 1


def _moved(cluster: DataCluster, after_sequence: int, announced: dict[ChannelName, Cursor]) -> dict[ChannelName, str]:
    """Positions of the channels that moved since `announced`. Updates `announced`.

    The mapping is empty if an execution after `after_sequence` was committed meanwhile. That execution is announced
    first.
    """
    sequence, heads = cluster.channels.heads()
    if sequence != after_sequence:
        return {}
    moved = {channel: str(head) for channel, head in heads.items() if announced.get(channel) != head}
    announced.update(heads)
    return moved


def _parts(announcement: Announcement) -> Iterator[_Outgoing]:
    subscriptions = announcement.subscriptions
    starts = range(0, len(subscriptions), SUBSCRIPTIONS_AT_ONCE)
    for part, start in enumerate(starts, 1):
        message = wire.Execution(
            announcement.sequence,
            announcement.channel,
            announcement.epoch,
            announcement.execution,
            announcement.finished_s,
            part,
            len(starts),
            subscriptions[start : start + SUBSCRIPTIONS_AT_ONCE],
        )
        yield _Outgoing(message, announcement.sequence if part == len(starts) else None)


def _sequence(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise TocsinError(Code.BAD_REQUEST, f"{text[:40]!r}: expected the sequence number of an announcement")
    return int(text)
