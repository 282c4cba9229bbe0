"""What every server process needs around uvicorn: a socket, signals, and secrets in files of one's own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

CLOSE_S = 5
"""How long connections get to finish once the process stops."""
_BACKLOG = 2_048
"""Connections that wait to be accepted; uvicorn's own number."""


class Server(uvicorn.Server):
    """Signals are ours: what the server serves is closed before the server."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    handled = (signal.SIGINT, signal.SIGTERM)

    def stop_once() -> None:
        stop.set()
        for number in handled:  # a second signal ends the process at once
            loop.remove_signal_handler(number)

    try:
        for number in handled:
            loop.add_signal_handler(number, stop_once)
    except (RuntimeError, ValueError):  # not the main thread: somebody else handles signals
        yield
        return
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        # From here on whoever connects waits a moment instead of being refused: a process says that it is up just
        # before its server takes the socket over.
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def write_secret(path: Path, secret: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
