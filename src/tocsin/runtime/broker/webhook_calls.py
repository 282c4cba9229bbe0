"""HTTP calls to the endpoints of webhooks, which are not trusted.

A call has one deadline for everything: look-up, connection, TLS, request and answer. Of an answer only the status and
`Retry-After` matter; the body is neither kept nor decompressed, and a long one ends the connection. Connections are
kept by host name, never by address: TLS checks the certificate for the name that the subscriber gave.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpcore
import httpx

from tocsin.runtime.broker.webhook_addresses import Lookup, checked_addresses, endpoint_of, look_up
from tocsin.runtime.broker.webhook_bulkheads import QUICK_CALLS, SLOW_CALLS, Bulkheads, TooManySlowCalls
from tocsin.wire.errors import TocsinError

DEADLINE_S = 20.0
"""Standard Webhooks recommends 15 to 30 s."""
LONGEST_WAIT_S = 86_400.0
_ANSWER_BYTES = 16 << 10
"""Most bytes of an answer's body that are read, and thrown away, to keep the connection for the next call."""
_KEPT_CONNECTIONS = 128
_KEPT_S = 30.0
_THREADS = 16
"""Threads that resolve names, for quick and for slow endpoints each."""


class CallFailed(Exception):
    """The endpoint gave no answer; the text is the reason."""


@dataclass(frozen=True, slots=True)
class CallAnswer:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""

    @property
    def is_success(self) -> bool:
        return self.status // 100 == 2

    @property
    def retry_after_s(self) -> float | None:
        text = self.headers.get("retry-after", "")
        return min(LONGEST_WAIT_S, float(text)) if text.isascii() and text.isdigit() and len(text) < 10 else None


class WebhookCaller:
    """Belongs to one event loop; `stop` it there."""

    def __init__(
        self,
        *,
        private: bool,
        deadline_s: float = DEADLINE_S,
        tls: ssl.SSLContext | None = None,
        lookup: Lookup | None = None,
    ) -> None:
        """`private` allows private addresses. `tls` and `lookup` replace the system's authorities and name servers."""
        self._private = private
        self._deadline_s = deadline_s
        self._bulkheads = Bulkheads()
        self._threads = ThreadPoolExecutor(_THREADS, "webhook-names")
        self._slow_threads = ThreadPoolExecutor(_THREADS, "slow-webhook-names")
        self._lookup = lookup or self._look_up
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls or httpx.create_ssl_context(trust_env=False),
            max_connections=QUICK_CALLS + SLOW_CALLS + _KEPT_CONNECTIONS,
            max_keepalive_connections=_KEPT_CONNECTIONS,
            keepalive_expiry=_KEPT_S,
            network_backend=_CheckedNetwork(self.addresses),
        )

    async def call(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> CallAnswer:
        """Make one call within the deadline. Raises `CallFailed` if there is no complete answer."""
        host, port = endpoint_of(url)
        try:
            return await self._bulkheads.run(f"{host}:{port}", lambda: self._call(method, url, headers, body))
        except TooManySlowCalls:
            raise CallFailed("this webhook is slow, and so are too many others") from None

    async def addresses(self, host: str, port: int) -> list[str]:
        """The checked addresses of a host; raises `TocsinError` if the broker must not call it."""
        return await checked_addresses(host, port, private=self._private, lookup=self._lookup)

    async def _look_up(self, host: str, port: int) -> list[str]:
        slow = self._bulkheads.is_slow(f"{host}:{port}")
        return await look_up(host, port, self._slow_threads if slow else self._threads)

    async def _call(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> CallAnswer:
        sent = [(b"host", urlsplit(url).netloc.encode()), (b"user-agent", b"tocsin"), (b"accept-encoding", b"identity")]
        sent += [(name.encode(), value.encode()) for name, value in headers.items()]
        try:
            async with (
                asyncio.timeout(self._deadline_s),
                self._pool.stream(method, url, headers=sent, content=body) as answer,
            ):
                await _discard_body(answer)
                return CallAnswer(answer.status, _decoded(answer.headers))
        except TimeoutError:
            raise CallFailed(f"no complete answer within {self._deadline_s:g} s") from None
        except TocsinError as error:
            raise CallFailed(error.message) from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError, ValueError) as error:
            raise CallFailed(type(error).__name__) from error

    async def stop(self) -> None:
        await self._pool.aclose()
        for threads in (self._threads, self._slow_threads):
            threads.shutdown(wait=False, cancel_futures=True)


async def _discard_body(answer: httpcore.Response) -> None:
    """Read a short body; leave a long one, so that its connection is closed."""
    size_bytes = 0
    async for piece in answer.aiter_stream():
        size_bytes += len(piece)
        if size_bytes > _ANSWER_BYTES:
            return


def _decoded(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


class _CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to the addresses that a look-up returned and checked. TLS and the pool use the host name."""

    def __init__(self, addresses: Lookup) -> None:
        self._addresses = addresses
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        address, *others = await self._addresses(host, port)
        try:
            return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
        except httpcore.ConnectError:
            if not others:
                raise
        return await self._network.connect_tcp(others[0], port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
