"""A subscriber's WebSocket: the requests of `wire.session`, and results that all receivers share.

`client_socket` has the connection itself: handshake, login, frames, close.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from tocsin.broker.events import RequestReceived, SessionBlocked, SessionDrained
from tocsin.broker.hosted import Requester, SessionId
from tocsin.broker.message_encoding import Encoding, MessageEncoder
from tocsin.broker.result_batch import Batch
from tocsin.model.ids import SubscriberId
from tocsin.model.permission import ALL_RIGHTS
from tocsin.runtime.broker.client_socket import MALFORMED, ClientSocket, SocketState
from tocsin.runtime.broker.connection_guard import ConnectionGuard, login_event, subscriber_of
from tocsin.runtime.http.credentials import Claims
from tocsin.wire import session as wire
from tocsin.wire.errors import Code

_REQUESTS: dict[Encoding, Any] = {
    Encoding.JSON: msgspec.json.Decoder(wire.FromSubscriber),
    Encoding.MSGPACK: msgspec.msgpack.Decoder(wire.FromSubscriber),
}


class _RequestId(msgspec.Struct):
    """The part of a malformed request that is needed to refuse it."""

    id: int


class _CloudEvent(msgspec.Struct):
    """A request inside a CloudEvent."""

    specversion: str
    data: msgspec.Raw


class SubscriberSocket(ClientSocket):
    __slots__ = ("_subscriber",)
    encode: ClassVar[MessageEncoder]
    missing_token = "send a token with the scope subscribe"

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state)
        self._subscriber = SubscriberId("")

    @property
    def queue_bytes(self) -> int:
        return self.guard.process.settings.limits.queue_bytes

    @property
    def frame_bytes(self) -> int:
        return self.guard.process.settings.frame_bytes

    @property
    def _session(self) -> SessionId:
        return SessionId(self._identity)

    # -- login -----------------------------------------------------------------------------------------------------

    def check(self, claims: Claims | None, token: str) -> Claims:
        return self.guard.checked(claims, token)

    def open(self, request: wire.Login, claims: Claims) -> None:
        self._state = SocketState.LOGGING_IN
        self._subscriber = subscriber_of(claims)
        self._identity = self.guard.process.new_session(self)
        self.guard.process.happened(login_event(self._session, claims, request.id, request.resume, self._encoding))

    # -- requests --------------------------------------------------------------------------------------------------

    def on_request(self, payload: bytes) -> None:
        try:
            request = _decode(payload, self._encoding)
        except MALFORMED as error:
            self._refuse_malformed(payload, str(error))
            return
        if self._state is SocketState.LOGGED_IN:
            if isinstance(request, wire.Login):
                self.refuse(request.id, Code.BAD_REQUEST, "this session has begun already")
            else:
                requester = Requester(session=self._session)
                rights = ALL_RIGHTS if self.claims is None else self.claims.rights
                self.guard.process.happened(RequestReceived(requester, self._subscriber, request, rights))
        elif self._state is SocketState.LOGGING_IN:
            self.refuse(request.id, Code.NOT_READY, "wait for the answer to login", 1.0)
        elif isinstance(request, wire.Login):
            self._login(request)
        else:
            self.refuse(request.id, Code.UNAUTHENTICATED, "login comes first")

    def _refuse_malformed(self, payload: bytes, reason: str) -> None:
        """Refuse the request if it has a readable id; otherwise close the connection."""
        codec = msgspec.msgpack if self._encoding is Encoding.MSGPACK else msgspec.json
        try:
            number = codec.decode(payload, type=_RequestId).id
        except MALFORMED:
            self._close_with("bad_request", f"not a message of this protocol: {reason}")
        else:
            self.refuse(number, Code.BAD_REQUEST, f"the request does not fit: {reason}")

    def refuse(self, request: int, code: Code, message: str, retry_after_s: float | None = None) -> None:
        refused = wire.Refused(request, str(code), message, retry_after_s)
        self._transport.write(self.encode(refused, self._encoding))

    def send_closing(self, reason: str, message: str, reconnect: bool) -> None:
        self._transport.write(self.encode(wire.Closing(reason, message, reconnect), self._encoding))

    # -- reports to the core ---------------------------------------------------------------------------------------

    def report_blocked(self) -> None:
        self.guard.process.happened(SessionBlocked(self._session))

    def report_drained(self) -> None:
        self.guard.process.happened(SessionDrained(self._session))

    def report_lost(self, reason: str) -> None:
        self.guard.process.session_lost(self._session, reason)

    # -- called by the process -------------------------------------------------------------------------------------

    def send_results(self, batch: Batch, data: bytes) -> None:
        self._transport.write(data)

    def send_message(self, message: wire.ToSubscriber, data: bytes) -> None:
        if self._state is SocketState.LOGGING_IN:
            if isinstance(message, wire.LoggedIn):
                self._state = SocketState.LOGGED_IN
                self.guard.half_open.remove(self)
            elif isinstance(message, wire.Refused):
                self._state = SocketState.OPEN
                self.guard.process.connections.pop(self._session, None)
                self._identity = 0
        self._transport.write(data)


def _decode(payload: bytes, encoding: Encoding) -> wire.FromSubscriber:
    if encoding is Encoding.CLOUDEVENTS:
        encoding = Encoding.JSON
        if b'"specversion"' in payload:
            payload = bytes(msgspec.json.decode(payload, type=_CloudEvent).data)
    request: wire.FromSubscriber = _REQUESTS[encoding].decode(payload)
    return request


def socket_class(guard: ConnectionGuard) -> type[SubscriberSocket]:
    """The protocol class for uvicorn, which creates the instances itself."""
    process = guard.process

    class BoundSocket(SubscriberSocket):
        __slots__ = ()

    BoundSocket.guard = guard
    BoundSocket.encode = MessageEncoder(process.id, f"{process.incarnation}-s")
    return BoundSocket
