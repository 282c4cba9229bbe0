"""Where a stream of events stands, in one short text: the `id:` of each event, and what `Last-Event-ID` brings back.

A stream carries many subscriptions and an event has one id, so the id holds the cursors of all of them: whichever event
was the last to arrive, nothing after it is lost and nothing is skipped, at any broker. Per subscription 16 bytes of
digest and the cursor as two variable-length numbers, all of it in URL-safe base64.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping

from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriptionId

_VERSION = "1."
_LONGEST = 512 << 10


def event_id(positions: Mapping[SubscriptionId, Cursor]) -> str:
    found = bytearray()
    for identity, cursor in positions.items():
        found += bytes.fromhex(identity) + _number(cursor.epoch) + _number(cursor.offset)
    return _VERSION + urlsafe_b64encode(found).decode().rstrip("=")


def positions_of(text: str) -> dict[SubscriptionId, str] | None:
    """Cursors by subscription; None for what no stream of ours has sent."""
    if not text.startswith(_VERSION) or len(text) > _LONGEST:
        return None
    body = text[len(_VERSION) :]
    try:
        data = urlsafe_b64decode(body + "=" * (-len(body) % 4))
        found: dict[SubscriptionId, str] = {}
        place = 0
        while place < len(data):
            identity = SubscriptionId(data[place : place + 16].hex())
            if len(identity) != 32:
                return None
            epoch, place = _read(data, place + 16)
            offset, place = _read(data, place)
            found[identity] = str(Cursor(epoch, offset))
    except (NotBase64, ValueError, IndexError):
        return None
    return found


def _number(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the high bit says that more follow."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        digit = data[place]
        value |= (digit & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not digit & 0x80:
            return value, place
        if shift > 63:
            raise ValueError("a number that is too long")
