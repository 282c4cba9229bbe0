"""HTTP requests of the commands to a data cluster or a coordinator: address, token, readable errors.

The token comes from `--token`, from TOCSIN_TOKEN, or, if the address is on this machine, from the file that the server
keeps for its own user: `<state>/admin-token`. A token from that file is never sent to another machine.

A command may be typed right after `tocsin up &`. So a request to this machine waits while no server listens yet, and
any request waits while the server answers that it is still starting: up to `TOCSIN_WAIT_S` seconds, with a message.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tocsin.cli.console import note
from tocsin.leaders.addresses import first_address, split_addresses
from tocsin.leaders.clients import leading_client, leading_transport
from tocsin.runtime.http.event_streams import read_events
from tocsin.runtime.http.settings import is_loopback
from tocsin.wire.errors import Code, TocsinError, error_from

TOKEN_FILE = "admin-token"
_SILENCE_S = 60.0
"""Longest silence of an event stream. Servers send heartbeats more often than this."""


WAIT_S = 90.0
"""Longest wait for a network that is starting. TOCSIN_WAIT_S replaces it; 0 fails at once."""
_RETRY_S = 0.3


class ErrorReply(TocsinError):
    """The server answered with an error; `body` is its decoded answer, None if that is not JSON."""

    def __init__(self, code: Code, message: str, body: Any) -> None:
        super().__init__(code, message)
        self.body = body


class Client(httpx.Client):
    """A client that looks for its token again while it waits: the first start of a server creates the token file."""

    def __init__(self, url: str, find_token: Callable[[], str | None]) -> None:
        super().__init__(
            base_url=first_address(url),
            headers=_headers(find_token()),
            timeout=httpx.Timeout(300, connect=10),
            transport=leading_transport(url),
        )
        self._find_token = find_token

    def refresh_token(self) -> None:
        self.headers.update(_headers(self._find_token()))


def connect(url: str, token: str | None) -> Client:
    """A client of the data cluster."""
    return Client(url, lambda: cluster_token(url, token))


def connect_coordinator(url: str, token: str | None) -> Client:
    return Client(url, lambda: coordinator_token(url, token))


def connect_broker(address: str, token: str) -> Client:
    """A client of the broker at this address. The coordinator names brokers by the address of their WebSocket."""
    return Client("http" + address.removeprefix("ws") if address.startswith("ws") else address, lambda: token)


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
    if not all(is_loopback(urlsplit(address).hostname or "") for address in split_addresses(url)):
        return None
    try:
        return (folder / TOKEN_FILE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def ask(client: Client, method: str, path: str, **request: Any) -> Any:
    """The decoded answer. Waits for a server that is starting; raises `ErrorReply`, or NOT_READY if none answers."""
    waiting = _Waiting(str(client.base_url).rstrip("/"))
    while True:
        try:
            return _decoded(client.request(method, path, **request))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:  # nothing was sent
            if not (waiting.is_local and waiting.goes_on("no server listens there yet")):
                raise _no_answer(waiting.url, error) from error
        except httpx.TransportError as error:
            raise _no_answer(waiting.url, error) from error
        except ErrorReply as error:
            if error.code is not Code.NOT_READY or not waiting.goes_on(error.message):
                raise
        client.refresh_token()


def wait_for_server(client: Client) -> None:
    """Return when the server answers anything but that it is starting, or when the wait is over."""
    with contextlib.suppress(TocsinError):  # an error is the server's answer too: the command's own request follows
        ask(client, "GET", "/v1/status")


class _Waiting:
    """The wait of one request for a server that is starting."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_local = is_loopback(urlsplit(url).hostname or "")
        self._limit_s = float(os.environ.get("TOCSIN_WAIT_S") or WAIT_S)
        self._began_s = time.monotonic()
        self._told = False

    def goes_on(self, reason: str) -> bool:
        """Pause and return True, or return False if the wait is over. The first call prints the reason."""
        if time.monotonic() - self._began_s >= self._limit_s:
            return False
        if not self._told:
            note(f"waiting up to {self._limit_s:g} s for {self.url}: {reason} (is `tocsin up` running?)")
            self._told = True
        time.sleep(_RETRY_S)
        return True


async def follow_events(url: str, path: str, token: str | None) -> AsyncIterator[tuple[str, str]]:
    """(event, data) of a server's event stream until the server ends it. Raises like `ask`."""
    timeout = httpx.Timeout(10.0, read=_SILENCE_S)
    try:
        async with (
            leading_client(url, headers=_headers(token), timeout=timeout) as client,
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
