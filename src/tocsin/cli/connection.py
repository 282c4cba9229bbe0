"""How commands reach a data cluster or a coordinator: its address, a token, and errors as a person can use them.

The token is looked for in `--token`, in TOCSIN_TOKEN, and, only when the address is this machine, in the file that the
server keeps for its own user: `<state>/admin-token`. A local secret is never sent to another machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tocsin.runtime.http.settings import is_loopback
from tocsin.wire.errors import Code, TocsinError, error_from

TOKEN_FILE = "admin-token"


class Answered(TocsinError):
    """The data cluster refused; `said` is all it said."""

    def __init__(self, code: Code, message: str, status: int, said: Any, retry_after_s: float | None) -> None:
        super().__init__(code, message, retry_after_s=retry_after_s)
        self.status = status
        self.said = said


def connect(url: str, token: str | None) -> httpx.Client:
    """To the data cluster."""
    return _client(url, cluster_token(url, token))


def connect_coordinator(url: str, token: str | None) -> httpx.Client:
    return _client(url, coordinator_token(url, token))


def _client(url: str, token: str | None) -> httpx.Client:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(300, connect=10))


def cluster_token(url: str, token: str | None) -> str | None:
    """The token given, or the one the data cluster keeps for its own user if it is on this machine."""
    return token or _local_token(url, _cluster_state())


def coordinator_token(url: str, token: str | None) -> str | None:
    """The same of the coordinator: where `tocsin up` puts it, or `tocsin coordinator` was told to."""
    state = os.environ.get("TOCSIN_COORDINATOR_STATE")
    folder = state or Path(os.environ.get("TOCSIN_ROOT", "tocsin-data"), "coordinator")
    return token or _local_token(url, Path(folder))


def ask(client: httpx.Client, method: str, path: str, **request: Any) -> Any:
    """The decoded answer; raises `Answered` or, when nobody is there, NOT_READY."""
    try:
        response = client.request(method, path, **request)
    except httpx.TransportError as error:
        address = str(client.base_url).rstrip("/")
        raise TocsinError(
            Code.NOT_READY, f"no answer from {address} ({error}); is `tocsin up` running, or is --url right?"
        ) from error
    return checked(response)


def checked(response: httpx.Response) -> Any:
    try:
        said = response.json()
    except ValueError:
        said = None
    if response.is_success:
        return said
    error = error_from(
        response.status_code,
        response.content,
        retry_after=response.headers.get("retry-after", ""),
        fallback=Code.INTERNAL,
        message=f"{response.url} answered {response.status_code}",
    )
    hint = " (give --token or set TOCSIN_TOKEN)" if error.code is Code.UNAUTHENTICATED else ""
    raise Answered(error.code, error.message + hint, response.status_code, said, error.retry_after_s)


def _cluster_state() -> Path:
    state = os.environ.get("TOCSIN_STATE")
    return Path(state) if state else Path(os.environ.get("TOCSIN_ROOT", "tocsin-data")) / "state"


def _local_token(url: str, folder: Path) -> str | None:
    host = urlsplit(url).hostname
    if host is None or not is_loopback(host):
        return None
    try:
        return (folder / TOKEN_FILE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
