"""TCP keepalive of a broker's listeners: the kernel ends connections whose peers have vanished."""

from __future__ import annotations

import socket

_DEAD_MS = 60_000
"""TCP drops a peer that acknowledges nothing for this long."""


def enable_keepalive(listening: socket.socket) -> None:
    """Detect vanished peers. Every accepted connection inherits these options."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": _DEAD_MS}
    for name, value in options.items():
        if hasattr(socket, name):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
