"""A relay forwards bytes, holds them during a partition, and loses an answer together with its connection."""

from __future__ import annotations

import asyncio

import pytest

from tocsin.chaos.relay import Relays


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1024):
        writer.write(b"answer to " + data)
        await writer.drain()
    writer.close()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes) -> bytes:
    writer.write(text)
    await writer.drain()
    return await reader.read(1024)


def test_relay_forwards_partitions_and_loses_answers() -> None:
    async def scenario() -> None:
        server = await asyncio.start_server(_echo, "127.0.0.1", 0)
        relays = Relays()
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        relayed = relays.address("broker-1", "cluster", url)
        assert relayed != url and relays.address("broker-1", "cluster", url) == relayed
        await relays.start()
        relay = relays.by_link["broker-1", "cluster"]
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        async with asyncio.timeout(30):
            assert await _ask(reader, writer, b"one") == b"answer to one"
            partition = asyncio.create_task(relay.partition(0.5))
            await asyncio.sleep(0)
            asking = asyncio.create_task(_ask(reader, writer, b"two"))
            await asyncio.wait((asking, partition), return_when=asyncio.FIRST_COMPLETED)
            assert not asking.done(), "nothing passes during the partition"
            assert await partition and await asking == b"answer to two", "held, not lost"
            losing = asyncio.create_task(relay.lose_answers(1, 20))
            await asyncio.sleep(0)
            with pytest.raises((ConnectionError, AssertionError)):
                assert await _ask(reader, writer, b"three")
            assert await losing
        writer.close()
        await relays.stop()
        server.close()

    asyncio.run(scenario())
