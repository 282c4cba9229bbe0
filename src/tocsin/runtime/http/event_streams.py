"""Reading server-sent events: bytes as they come, (event, data) out. As much of the format as our servers write."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

MOST_BYTES = 256 << 20
"""Of one event: a picture of a large network."""


async def read_events(pieces: AsyncIterable[bytes]) -> AsyncIterator[tuple[str, str]]:
    """Comments and fields other than `event` and `data` are skipped; raises ValueError on an event without end."""
    rest = bytearray()
    async for piece in pieces:
        searched = max(0, len(rest) - 1)
        rest += piece
        while (end := rest.find(b"\n\n", searched)) >= 0:
            block = rest[:end].decode("utf-8")
            del rest[: end + 2]
            searched = 0
            event, data = "message", []
            for line in block.split("\n"):
                name, _, value = line.partition(":")
                if name == "event":
                    event = value.strip()
                elif name == "data":
                    data.append(value.removeprefix(" "))
            if data:
                yield event, "\n".join(data)
        if len(rest) > MOST_BYTES:
            raise ValueError("an event without end")
