"""Parts of every server process around uvicorn: event loop, socket, signals, files with secrets."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

CLOSE_S = 5
"""Seconds that connections get to finish once the process stops."""
_COLLECT_AFTER = 7_000
"""New objects that trigger a garbage collection; Python's default is 700."""
_BACKLOG = 2_048
"""Connections that may wait to be accepted; uvicorn's default."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop for `asyncio.Runner`: uvloop, or None for asyncio's own where there is no uvloop."""
    try:
        import uvloop
    except ImportError:  # not on Windows
        return None
    return uvloop.new_event_loop


def collect_garbage_rarely() -> None:
    """Exempt everything that the process has loaded from garbage collections, and collect a tenth as often.

    Call it once, when the process is ready. A broker's own objects are freed by their reference counts; a collection
    only delays the messages behind it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    gc.enable()


class Server(uvicorn.Server):
    """Leaves signals to the process, which closes its own parts before the server."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` on SIGINT and SIGTERM while the block runs. A second signal ends the process at once."""
    loop = asyncio.get_running_loop()
    handled = (signal.SIGINT, signal.SIGTERM)

    def stop_once() -> None:
        stop.set()
        for number in handled:
            loop.remove_signal_handler(number)

    try:
        for number in handled:
            loop.add_signal_handler(number, stop_once)
    except (RuntimeError, ValueError):  # not the main thread, which alone can handle signals
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
        # A process announces its address just before its server takes over the socket. A client that connects in
        # between waits a moment and is not refused.
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def url_host(host: str) -> str:
    """The host in the form that a URL needs: an IPv6 address gets brackets."""
    return f"[{host}]" if ":" in host else host


def restrict_new_files() -> None:
    """Keep what this process and its children write from other users. An umask that does so already is left alone."""
    inherited = os.umask(0o077)
    if inherited & 0o007 == 0o007:
        os.umask(inherited)


def write_secret(path: Path, secret: str) -> None:
    """Write the secret to a new file that only this user can read (mode 0600)."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
