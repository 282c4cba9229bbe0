"""HTTP clients that send each request to the leader among several addresses.

A refused connection and an answer of a standby lead to the next address within the same request: nothing was done yet.
A leader that was stopped or cut off still accepts connections. So while an answer is missing, the client asks the other
addresses whether one of them leads by now. If so, and if the first address does not say that it is ready, it fails the
request with ReadTimeout, and the caller sends it again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import Any, TypeVar

import httpx

from tocsin.leaders.addresses import Leaders, leaders_of
from tocsin.wire.errors import STANDBY_HEADER

T = TypeVar("T")

PROBE_S = 1.0
"""How long an answer may be missing before the client looks for another leader, and the pause between two looks."""
PROBE_ANSWER_S = 1.0
CONNECT_S = 3.0
"""The longest wait for a connection to one of several addresses."""
_READY = "/readyz"


def leading_client(
    addresses: str,
    *,
    verify: ssl.SSLContext | bool = True,
    limits: httpx.Limits | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    base: bool = True,
    **options: Any,
) -> httpx.AsyncClient:
    """A client of the leader among `addresses`, which have commas between them. `base`: make it the base URL."""
    leaders = leaders_of(addresses)
    if base:
        options["base_url"] = leaders.addresses[0]
    if leaders.has_standbys:
        inner = transport or httpx.AsyncHTTPTransport(verify=verify, limits=limits or httpx.Limits())
        transport = LeaderTransport(leaders, inner)
    if limits is not None:
        options["limits"] = limits
    return httpx.AsyncClient(verify=verify, transport=transport, **options)


def leading_transport(addresses: str) -> httpx.BaseTransport | None:
    """For a blocking client; None if there is only one address."""
    leaders = leaders_of(addresses)
    return BlockingLeaderTransport(leaders, httpx.HTTPTransport()) if leaders.has_standbys else None


class LeaderTransport(httpx.AsyncBaseTransport):
    def __init__(self, leaders: Leaders, inner: httpx.AsyncBaseTransport) -> None:
        self._leaders = leaders
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        leaders = self._leaders
        if not leaders.belongs(str(request.url)):
            return await self._inner.handle_async_request(request)
        for attempt in range(1, len(leaders.addresses) + 1):
            address = leaders.current
            is_last = attempt == len(leaders.addresses) or not isinstance(request.stream, httpx.ByteStream)
            _send_to(request, address)
            try:
                response = await self._unless_led_elsewhere(address, self._inner.handle_async_request(request))
            except (httpx.ConnectError, httpx.ConnectTimeout):
                leaders.failed(address)
                if is_last:
                    raise
                continue
            except httpx.TransportError:
                leaders.failed(address)
                raise
            if (leader := response.headers.get(STANDBY_HEADER)) is not None:
                leaders.is_standby(address, leader)
                if not is_last:
                    await response.aclose()
                    continue
            assert isinstance(response.stream, httpx.AsyncByteStream)
            response.stream = _WatchedStream(self, address, response.stream)
            return response
        raise AssertionError("there is at least one address")

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _unless_led_elsewhere(self, address: str, answer: Awaitable[T]) -> T:
        """The answer. Raises ReadTimeout as soon as another address leads."""
        waiting = asyncio.ensure_future(answer)
        try:
            while True:
                done, _ = await asyncio.wait((waiting,), timeout=PROBE_S)
                if done:
                    return waiting.result()
                if self._leaders.current == address:
                    await self._look_elsewhere(address)
                if self._leaders.current != address and not waiting.done():
                    raise httpx.ReadTimeout(f"{address} does not answer, and {self._leaders.current} leads now")
        finally:
            waiting.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await waiting

    async def _look_elsewhere(self, silent: str) -> None:
        others = self._leaders.others
        ready = await asyncio.gather(*(self._is_ready(address) for address in others))
        for address, leads in zip(others, ready, strict=True):
            if leads:
                # Several servers of results are ready at the same time: one that answers this is only slow.
                if self._leaders.current == silent and not await self._is_ready(silent):
                    self._leaders.current = address
                return

    async def _is_ready(self, address: str) -> bool:
        timeout = httpx.Timeout(PROBE_ANSWER_S).as_dict()
        probe = httpx.Request("GET", address + _READY, extensions={"timeout": timeout})
        try:
            async with asyncio.timeout(PROBE_ANSWER_S):
                response = await self._inner.handle_async_request(probe)
                await response.aclose()
        except (httpx.TransportError, TimeoutError):
            return False
        return response.status_code == httpx.codes.OK


class _WatchedStream(httpx.AsyncByteStream):
    """The body of an answer. It fails if the leader changes while the body does not arrive."""

    def __init__(self, transport: LeaderTransport, address: str, stream: httpx.AsyncByteStream) -> None:
        self._transport = transport
        self._address = address
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._stream)
        while True:
            try:
                piece = await self._transport._unless_led_elsewhere(self._address, anext(pieces))
            except StopAsyncIteration:
                return
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class BlockingLeaderTransport(httpx.BaseTransport):
    """For commands: the next address follows a refused connection or a standby's answer."""

    def __init__(self, leaders: Leaders, inner: httpx.BaseTransport) -> None:
        self._leaders = leaders
        self._inner = inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        leaders = self._leaders
        for attempt in range(1, len(leaders.addresses) + 1):
            address = leaders.current
            is_last = attempt == len(leaders.addresses) or not isinstance(request.stream, httpx.ByteStream)
            _send_to(request, address)
            try:
                response = self._inner.handle_request(request)
            except httpx.TransportError as error:
                leaders.failed(address)
                if is_last or not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    raise
                continue
            if (leader := response.headers.get(STANDBY_HEADER)) is None or is_last:
                return response
            leaders.is_standby(address, leader)
            response.close()
        raise AssertionError("there is at least one address")

    def close(self) -> None:
        self._inner.close()


def _send_to(request: httpx.Request, address: str) -> None:
    origin = httpx.URL(address)
    request.url = request.url.copy_with(scheme=origin.scheme, host=origin.host, port=origin.port)
    request.headers["Host"] = origin.netloc.decode()
