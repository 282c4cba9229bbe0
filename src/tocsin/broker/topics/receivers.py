"""The live receivers of a topic, grouped by encoding for the fan-out.

A flush sends one frame to each group. The groups are made again only after a receiver was added or removed, so that a
flush does no work per receiver here.
"""

from __future__ import annotations

from typing import Any

from tocsin.broker.message_encoding import Encoding
from tocsin.broker.topics.events import ConnectionId


class Receivers(dict[ConnectionId, Encoding]):
    """Connection → its encoding."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[Encoding, tuple[ConnectionId, ...]] | None = None

    def __setitem__(self, connection: ConnectionId, encoding: Encoding) -> None:
        self._groups = None
        super().__setitem__(connection, encoding)

    def __delitem__(self, connection: ConnectionId) -> None:
        self._groups = None
        super().__delitem__(connection)

    def pop(self, connection: ConnectionId, *default: Any) -> Any:
        self._groups = None
        return super().pop(connection, *default)

    def clear(self) -> None:
        self._groups = None
        super().clear()

    def groups(self) -> dict[Encoding, tuple[ConnectionId, ...]]:
        if self._groups is None:
            groups: dict[Encoding, list[ConnectionId]] = {}
            for connection, encoding in self.items():
                groups.setdefault(encoding, []).append(connection)
            self._groups = {encoding: tuple(group) for encoding, group in groups.items()}
        return self._groups
