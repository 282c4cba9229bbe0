"""HTTP requests of the commands to a data cluster or a coordinator: address, token, readable errors.

The token comes from `--token`, from TOCSIN_TOKEN, or, if the address is on this machine, from the file that the server
keeps for its own user: `<state>/admin-token`. A token from that file is never sent to another machine.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tocsin.runtime.http.event_streams import read_events
from tocsin.runtime.http.settings import is_loopback
from tocsin.wire.errors import Code, TocsinError, error_from

TOKEN_FILE = "admin-token"
_SILENCE_S = 60.0
"""Longest silence of an event stream. Servers send heartbeats more often than this."""


class ErrorReply(TocsinError):
    """The server answered with an error; `body` is its decoded answer, None if that is not JSON."""

    def __init__(self, code: Code, message: str, body: Any) -> None:
        super().__init__(code, message)
        self.body = body


def connect(url: str, token: str | None) -> httpx.Client:
    """A client of the data cluster."""
    return _client(url, cluster_token(url, token))


def connect_coordinator(url: str, token: str | None) -> httpx.Client:
    return _client(url, coordinator_token(url, token))


def connect_broker(address: str, token: str) -> httpx.Client:
    """A client of the broker at this address. The coordinator names brokers by the address of their WebSocket."""
    return _client("http" + address.removeprefix("ws") if address.startswith("ws") else address, token)


def _client(url: str, token: str | None) -> httpx.Client:
    return httpx.Client(base_url=url, headers=_headers(token), timeout=httpx.Timeout(300, connect=10))


def _headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def cluster_token(url: str, token: str | None) -> str | None:
    """`token`, or the content of the data cluster's token file; None if there is neither."""
    state = os.environ.get("TOCSIN_STATE")
    return token or _local_token(url, Path(state) if state else _root() / "state")


def coordinator_token(url: str, token: str | None) -> str | None:
    """`token`, or the content of the coordinator's token file; None if there is neither."""
    state = os.environ.get("TOCSIN_COORDINATOR_STATE")
    return token or _local_token(url, Path(state) if state else _root() / "coordinator")


def _root() -> Path:
    return Path(os.environ.get("TOCSIN_ROOT", "tocsin-data"))


def _local_token(url: str, folder: Path) -> str | None:
    host = urlsplit(url).hostname
    if host is None or not is_loopback(host):
        return None
    try:
        return (folder / TOKEN_FILE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def ask(client: httpx.Client, method: str, path: str, **request: Any) -> Any:
    """The decoded answer. Raises `ErrorReply`, or `TocsinError` NOT_READY if no server answers."""
    try:
        response = client.request(method, path, **request)
    except httpx.TransportError as error:
        raise _no_answer(str(client.base_url).rstrip("/"), error) from error
    return _decoded(response)


async def follow_events(url: str, path: str, token: str | None) -> AsyncIterator[tuple[str, str]]:
    """(event, data) of a server's event stream until the server ends it. Raises like `ask`."""
    timeout = httpx.Timeout(10.0, read=_SILENCE_S)
    try:
        async with (
            httpx.AsyncClient(base_url=url, headers=_headers(token), timeout=timeout) as client,
            client.stream("GET", path) as response,
        ):
            if not response.is_success:
                await response.aread()
                _decoded(response)
            async for event in read_events(response.aiter_bytes()):
                yield event
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise _no_answer(url, error) from error


def _no_answer(url: str, error: Exception) -> TocsinError:
    return TocsinError(Code.NOT_READY, f"no answer from {url} ({error}); is `tocsin up` running, or is --url wrong?")


def _decoded(response: httpx.Response) -> Any:
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_success:
        return body
    foreign = f"{response.url} answered {response.status_code}"
    error = error_from(response.status_code, response.content, fallback=Code.INTERNAL, message=foreign)
    hint = " (give --token or set TOCSIN_TOKEN)" if error.code is Code.UNAUTHENTICATED else ""
    raise ErrorReply(error.code, error.message + hint, body)
