"""Parses server-sent events, as far as Tocsin's servers use the format."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

MOST_BYTES = 256 << 20
"""Largest event: a picture of a large network."""


async def read_events(chunks: AsyncIterable[bytes]) -> AsyncIterator[tuple[str, str]]:
    """(event, data) of each event. Skips comments and other fields; raises ValueError if an event is too large."""
    buffer = bytearray()
    async for chunk in chunks:
        searched = max(0, len(buffer) - 1)
        buffer += chunk
        while (end := buffer.find(b"\n\n", searched)) >= 0:
            block = buffer[:end].decode("utf-8")
            del buffer[: end + 2]
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
        if len(buffer) > MOST_BYTES:
            raise ValueError(f"an event of more than {MOST_BYTES:,} bytes")
