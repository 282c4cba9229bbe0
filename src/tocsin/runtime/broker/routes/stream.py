"""A subscriber's results as server-sent events, for browsers and for clients that have only HTTP.

A stream carries many subscriptions, and an event has one id. The id therefore holds the cursors of all subscriptions:
after any event, the stream resumes at any broker without loss. An id has 16 bytes of digest per
subscription and the cursor as two variable-length numbers, all in URL-safe base64. A client sends the id back in a
header, and headers are bounded: a subscriber with more than `MOST_SUBSCRIPTIONS` uses a WebSocket instead. A long id
comes only with the last of several results that the broker sends at once.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from tocsin.broker.events import SessionBlocked, SessionDrained
from tocsin.broker.hosted import SessionId
from tocsin.broker.message_encoding import Encoding, result_json
from tocsin.broker.result_batch import Batch
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.runtime.broker.connection_guard import login_event
from tocsin.runtime.broker.routes.context import BrokerContext, claims_of, context_of, raise_if_refused
from tocsin.runtime.http.credentials import Claims
from tocsin.wire import session as wire
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["results"])

RETRY_MS = 1_000
HEARTBEAT_S = 10.0
_LOGIN_S = 15.0
_ID_VERSION = "1."
_LONGEST_ID = 60 << 10
MOST_SUBSCRIPTIONS = 1_000
"""The most subscriptions of a stream: their cursors take up to 46 KiB in an id."""
SHORT_ID = 32
"""The most subscriptions whose id comes with every result."""
_encode = msgspec.json.Encoder().encode


class EventStream:
    """The session of one stream. It queues events until the connection takes them."""

    def __init__(self, context: BrokerContext, claims: Claims) -> None:
        self.claims = claims
        self._process = context.process
        self._limit_bytes = context.settings.limits.queue_bytes
        self._queue: deque[bytes] = deque()
        self._size_bytes = 0
        self._blocked = False
        self._changed = asyncio.Event()
        self._closed = False
        self._positions: dict[SubscriptionId, bytes] = {}
        """Subscription → its part of an event's id."""
        self._channels: dict[SubscriptionId, ChannelName] = {}
        self.login_answer: asyncio.Future[wire.ToSubscriber] = asyncio.get_running_loop().create_future()
        self.session: SessionId = self._process.new_session(self)

    # -- called by the process -------------------------------------------------------------------------------------

    def send_results(self, batch: Batch, data: bytes) -> None:
        self._channels[batch.subscription] = batch.channel
        last = len(batch.rows) - 1
        for index, (cursor, row) in enumerate(zip(batch.cursors(), batch.rows, strict=True)):
            self._positions[batch.subscription] = _id_part(batch.subscription, cursor)
            needs_id = index == last or len(self._positions) <= SHORT_ID
            self._add("result", result_json(batch.subscription, batch.channel, cursor, row), needs_id=needs_id)

    def send_message(self, message: wire.ToSubscriber, data: bytes) -> None:
        if not self.login_answer.done():
            self.login_answer.set_result(message)
        match message:
            case wire.LoggedIn():
                for held in message.subscriptions:
                    self._channels[held.subscription] = held.channel
                    self._set_position(held.subscription, held.cursor)
            case wire.Gap(identity, text) | wire.Recovered(identity, text):
                self._set_position(identity, text)
            case wire.Progress(channels):
                for identity, channel in self._channels.items():
                    if channel in channels:
                        self._set_position(identity, channels[channel])
        self._add(str(message.__struct_config__.tag), _encode(message))

    def _set_position(self, identity: SubscriptionId, text: str) -> None:
        cursor = Cursor.parse(text)
        if cursor is not None:
            self._positions[identity] = _id_part(identity, cursor)

    def await_drain(self) -> None:
        asyncio.get_running_loop().call_soon(self._report_drained)

    def _report_drained(self) -> None:
        if not self._blocked:
            self._process.happened(SessionDrained(self.session))

    def close(self, reason: str) -> None:
        self._closed = True
        self._changed.set()

    # -- the connection --------------------------------------------------------------------------------------------

    def _add(self, kind: str, data: bytes, *, needs_id: bool = True) -> None:
        event = b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
        if needs_id and len(self._positions) <= MOST_SUBSCRIPTIONS:
            event = b"id: %b\n" % _id_of(self._positions.values()).encode() + event
        self._queue.append(event)
        self._size_bytes += len(event)
        self._changed.set()
        if self._size_bytes > self._limit_bytes and not self._blocked:
            self._blocked = True
            self._process.happened(SessionBlocked(self.session))

    async def events(self) -> AsyncIterator[bytes]:
        yield b"retry: %d\n\n" % RETRY_MS
        try:
            while True:
                if self._queue:
                    data = b"".join(self._queue)
                    self._queue.clear()
                    yield data
                    self._size_bytes = sum(map(len, self._queue))
                    if self._blocked and self._size_bytes < self._limit_bytes // 4:
                        self._blocked = False
                        self._process.happened(SessionDrained(self.session))
                elif self._closed:
                    return
                else:
                    self._changed.clear()
                    try:
                        async with asyncio.timeout(HEARTBEAT_S):
                            await self._changed.wait()
                    except TimeoutError:
                        yield b": alive\n\n"
        finally:
            self._process.session_lost(self.session, "stream ended")


@router.get("/v1/stream", response_class=Response)
async def stream(request: Request) -> StreamingResponse:
    """All results of the subscriber, as server-sent events; a session like any other. `Last-Event-ID` resumes."""
    context = context_of(request)
    last = request.headers.get("last-event-id", "")
    resume = positions_of(last) if last else {}
    if resume is None:
        raise TocsinError(Code.BAD_CURSOR, "Last-Event-ID: expected the id of an event of such a stream")
    session = EventStream(context, claims_of(request))
    context.process.happened(login_event(session.session, claims_of(request), 0, resume, Encoding.PLAIN))
    try:
        async with asyncio.timeout(_LOGIN_S):
            _check_login(await session.login_answer)
    except BaseException:
        context.process.session_lost(session.session, "login refused")
        raise
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(session.events(), headers=headers, media_type="text/event-stream")


def _check_login(answer: wire.ToSubscriber) -> None:
    raise_if_refused(answer)
    if isinstance(answer, wire.LoggedIn) and len(answer.subscriptions) > MOST_SUBSCRIPTIONS:
        message = f"a stream has at most {MOST_SUBSCRIPTIONS:,} subscriptions; connect to /v1/session for more"
        raise TocsinError(Code.TOO_LARGE, message)


# -- event ids ---------------------------------------------------------------------------------------------------------


def event_id(positions: Mapping[SubscriptionId, Cursor]) -> str:
    return _id_of(_id_part(identity, cursor) for identity, cursor in positions.items())


def _id_of(parts: Iterable[bytes]) -> str:
    return _ID_VERSION + urlsafe_b64encode(b"".join(parts)).decode().rstrip("=")


def _id_part(identity: SubscriptionId, cursor: Cursor) -> bytes:
    return bytes.fromhex(identity) + _encode_number(cursor.epoch) + _encode_number(cursor.offset)


def positions_of(text: str) -> dict[SubscriptionId, str] | None:
    """Cursors by subscription; None for an id that no stream of a broker has sent."""
    if not text.startswith(_ID_VERSION) or len(text) > _LONGEST_ID:
        return None
    body = text[len(_ID_VERSION) :]
    try:
        data = urlsafe_b64decode(body + "=" * (-len(body) % 4))
        positions: dict[SubscriptionId, str] = {}
        index = 0
        while index < len(data):
            identity = SubscriptionId(data[index : index + 16].hex())
            if len(identity) != 32:
                return None
            epoch, index = _decode_number(data, index + 16)
            offset, index = _decode_number(data, index)
            positions[identity] = str(Cursor(epoch, offset))
    except (NotBase64, ValueError, IndexError):
        return None
    return positions


def _encode_number(value: int) -> bytes:
    """Encode a number with seven bits per byte, the lowest first. A set high bit means that more bytes follow."""
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def _decode_number(data: bytes, index: int) -> tuple[int, int]:
    """(number, index after it); raises `ValueError` or `IndexError` on damaged data."""
    value = shift = 0
    while True:
        digit = data[index]
        value |= (digit & 0x7F) << shift
        index, shift = index + 1, shift + 7
        if not digit & 0x80:
            return value, index
        if shift > 63:
            raise ValueError("the number is too long")
