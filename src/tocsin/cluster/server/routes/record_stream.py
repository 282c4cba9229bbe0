"""Publishing over a WebSocket: one message is one body of records, one answer comes back for each, in order.

A message is a JSON array, one object or JSON lines; or `{"id": …, "idempotency_key": …, "records": […]}`, whose id
comes back with the answer. No more than a few messages are under way at a time: then reading stops, and the publisher
feels it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from tocsin.cluster.feed.gateway import RecordForm
from tocsin.cluster.server.routes.api import Api, require_publish
from tocsin.cluster.server.routes.records import store
from tocsin.runtime.http.answers import encode, error_body
from tocsin.wire.errors import TocsinError

router = APIRouter()

IN_FLIGHT = 16
"""Messages accepted and not yet answered, per connection."""


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    records: msgspec.Raw
    id: str | int | None = None
    idempotency_key: str | None = None


_envelope = msgspec.json.Decoder(_Envelope)
_Answer = tuple[int, dict[str, Any]]
_Waiting = tuple[str | int | None, asyncio.Task[_Answer]]
"""(id of the message, what becomes of it)."""


@router.websocket("/v1/datasets/{name}/stream")
async def publish_stream(socket: WebSocket, name: str) -> None:
    api = require_publish(socket, name)
    api.commit_of(name)  # refuses unknown and STATIC datasets before the handshake
    await socket.accept()
    answers: asyncio.Queue[_Waiting | None] = asyncio.Queue()
    room = asyncio.Semaphore(IN_FLIGHT)
    reading = asyncio.create_task(_read(socket, api, name, answers, room))
    answering = asyncio.create_task(_answer_in_order(socket, answers, room))
    answering.add_done_callback(lambda _: reading.cancel())
    try:
        with api.process.calling_on_stop(reading.cancel):
            await asyncio.wait((reading,))
        answers.put_nowait(None)
        await answering  # what was accepted is answered, also when this process stops
        if api.process.stopping.is_set():
            await socket.close(1012, "the data cluster is stopping; connect again")
    except (WebSocketDisconnect, RuntimeError):
        return  # the publisher is gone: what was accepted is stored, its answers find nobody
    finally:
        reading.cancel()
        answering.cancel()


async def _read(
    socket: WebSocket, api: Api, name: str, answers: asyncio.Queue[_Waiting | None], room: asyncio.Semaphore
) -> None:
    while (message := await socket.receive())["type"] != "websocket.disconnect":
        await room.acquire()
        text = message.get("text")
        body = bytes(message.get("bytes") or b"") if text is None else text.encode("utf-8", "surrogatepass")
        identity, records, key = _opened(body)
        answers.put_nowait((identity, asyncio.create_task(_stored(api, name, records, key))))


def _opened(body: bytes) -> tuple[str | int | None, bytes, str | None]:
    """(id, records, Idempotency-Key). A record never has a list of objects in a column called `records`."""
    if body[:1] == b"{" and b'"records"' in body:
        try:
            envelope = _envelope.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None, body, None
        return envelope.id, bytes(envelope.records), envelope.idempotency_key
    return None, body, None


async def _stored(api: Api, name: str, body: bytes, key: str | None) -> _Answer:
    try:
        with api.room_for_records() as take_room:
            take_room(len(body))
            return await store(api, name, body, RecordForm.JSON, key)
    except TocsinError as error:
        return error.code.status, error_body(error.code, error.message)


async def _answer_in_order(socket: WebSocket, answers: asyncio.Queue[_Waiting | None], room: asyncio.Semaphore) -> None:
    while (waiting := await answers.get()) is not None:
        identity, task = waiting
        status, said = await task
        room.release()
        await socket.send_text(encode({"id": identity, "status": status} | said).decode())
