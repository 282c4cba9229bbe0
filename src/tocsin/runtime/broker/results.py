"""Results as the data cluster sends them, JSON lines, on their way into the broker's logic.

Rows stay the bytes they are: nothing of a result is parsed but its subscription and cursor.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tocsin.broker import events as seen
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriptionId

CHUNK_BYTES = 128 << 10
"""Results are handed on in pieces of about this size, so that one large fetch does not fill a session's queue."""


class _Line(msgspec.Struct):
    """A result, or a gap before the first one."""

    subscription: SubscriptionId
    cursor: str
    result: msgspec.Raw = msgspec.Raw(b"")
    gap: bool = False


_line = msgspec.json.Decoder(_Line)


def cursor_of(text: str) -> Cursor:
    found = Cursor.parse(text)
    if found is None:
        raise ValueError(f"the data cluster sent {text[:40]!r} as a cursor")
    return found


class Pieces:
    """Lines of an answer, put together by subscription and handed on in pieces."""

    def __init__(self, happened: Callable[[seen.Event], None], fetch: int) -> None:
        self._happened = happened
        self._fetch = fetch
        self._rest = b""
        self._found: dict[tuple[SubscriptionId, int], tuple[list[int], list[bytes]]] = {}
        self._size_bytes = 0

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._add(line)

    def end(self) -> None:
        """The answer is complete; raises if it is not."""
        if self._rest:
            raise ValueError("the answer ends in the middle of a line")
        self._hand_on()

    def _add(self, text: bytes) -> None:
        line = _line.decode(text)
        cursor = cursor_of(line.cursor)
        if line.gap:
            self._happened(seen.GapFound(self._fetch, line.subscription, cursor))
            return
        found = self._found.get((line.subscription, cursor.epoch))
        if found is None:
            found = self._found[line.subscription, cursor.epoch] = ([], [])
        row = bytes(line.result)
        found[0].append(cursor.offset)
        found[1].append(row)
        self._size_bytes += len(row)
        if self._size_bytes >= CHUNK_BYTES:
            self._hand_on()

    def _hand_on(self) -> None:
        found, self._found, self._size_bytes = self._found, {}, 0
        for (subscription, epoch), (offsets, rows) in found.items():
            self._happened(seen.ResultsFetched(self._fetch, subscription, epoch, offsets, rows))
