"""A subscriber's results as server-sent events: for browsers and for whoever has only HTTP."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from tocsin.broker.result_batch import Batch
from tocsin.broker.message_encoding import Encoding, result_json
from tocsin.broker.hosted import Requester, SessionId
from tocsin.broker.events import LoginRequested, SessionBlocked, SessionDrained
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.runtime.broker.routes.api import BrokerApi, api_of, claims_of, subscriber_calling
from tocsin.runtime.broker.routes.positions import event_id, positions_of
from tocsin.wire import session as wire
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["results"])

RETRY_MS = 1_000
HEARTBEAT_S = 10.0
_encode = msgspec.json.Encoder().encode


class EventStream:
    """The session behind one stream. Events wait here until the connection takes them."""

    def __init__(self, api: BrokerApi) -> None:
        self._process = api.process
        self._limit_bytes = api.settings.queue_bytes
        self._waiting: deque[bytes] = deque()
        self._size_bytes = 0
        self._blocked = False
        self._woken = asyncio.Event()
        self._closed = False
        self._positions: dict[SubscriptionId, Cursor] = {}
        self._channels: dict[SubscriptionId, ChannelName] = {}
        self.answer: asyncio.Future[wire.ToSubscriber] = asyncio.get_running_loop().create_future()
        """To the login."""
        self.session: SessionId = self._process.new_session(self)

    # -- the process's side ----------------------------------------------------------------------------------------

    def deliver(self, batch: Batch, data: bytes) -> None:
        self._channels[batch.subscription] = batch.channel
        for cursor, row in zip(batch.cursors(), batch.rows, strict=True):
            self._positions[batch.subscription] = cursor
            self._add("result", result_json(batch.subscription, batch.channel, cursor, row))

    def message(self, message: wire.ToSubscriber, data: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result(message)
        match message:
            case wire.LoggedIn():
                for held in message.subscriptions:
                    self._channels[held.subscription] = held.channel
                    self._stands(held.subscription, held.cursor)
            case wire.Gap(identity, text) | wire.Recovered(identity, text):
                self._stands(identity, text)
            case wire.Progress(channels):
                for identity, channel in self._channels.items():
                    if channel in channels:
                        self._stands(identity, channels[channel])
        self._add(str(message.__struct_config__.tag), _encode(message))

    def _stands(self, identity: SubscriptionId, text: str) -> None:
        cursor = Cursor.parse(text)
        if cursor is not None:
            self._positions[identity] = cursor

    def ask_drained(self) -> None:
        asyncio.get_running_loop().call_soon(self._report_drained)

    def _report_drained(self) -> None:
        if not self._blocked:
            self._process.happened(SessionDrained(self.session))

    def close(self, reason: str) -> None:
        self._closed = True
        self._woken.set()

    # -- the connection's side -------------------------------------------------------------------------------------

    def _add(self, kind: str, data: bytes) -> None:
        event = b"id: %b\nevent: %b\ndata: %b\n\n" % (event_id(self._positions).encode(), kind.encode(), data)
        self._waiting.append(event)
        self._size_bytes += len(event)
        self._woken.set()
        if self._size_bytes > self._limit_bytes and not self._blocked:
            self._blocked = True
            self._process.happened(SessionBlocked(self.session))

    async def events(self) -> AsyncIterator[bytes]:
        yield b"retry: %d\n\n" % RETRY_MS
        try:
            while True:
                if self._waiting:
                    data = b"".join(self._waiting)
                    self._waiting.clear()
                    yield data
                    self._size_bytes = sum(map(len, self._waiting))
                    if self._blocked and self._size_bytes < self._limit_bytes // 4:
                        self._blocked = False
                        self._process.happened(SessionDrained(self.session))
                elif self._closed:
                    return
                else:
                    self._woken.clear()
                    try:
                        async with asyncio.timeout(HEARTBEAT_S):
                            await self._woken.wait()
                    except TimeoutError:
                        yield b": alive\n\n"
        finally:
            self._process.session_lost(self.session, "stream ended")


@router.get("/v1/stream", response_class=Response)
async def stream(request: Request) -> StreamingResponse:
    """All results of the subscriber, as server-sent events; a session like any other. `Last-Event-ID` resumes."""
    api = api_of(request)
    claims = claims_of(request)
    last = request.headers.get("last-event-id", "")
    resume = positions_of(last) if last else {}
    if resume is None:
        raise TocsinError(Code.BAD_CURSOR, "Last-Event-ID: expected the id of an event of such a stream")
    session = EventStream(api)
    expires_s = None if claims.migration is not None else claims.expires_s
    api.process.happened(
        LoginRequested(
            Requester(session=session.session), subscriber_calling(request), 0, resume, Encoding.PLAIN, expires_s,
            claims.migration,
        )
    )  # fmt: skip
    try:
        async with asyncio.timeout(15):
            answer = await session.answer
        if isinstance(answer, wire.Refused):
            raise TocsinError(Code(answer.code), answer.message, retry_after_s=answer.retry_after_s)
    except BaseException:
        api.process.session_lost(session.session, "not let in")
        raise
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(session.events(), headers=headers, media_type="text/event-stream")
