"""Emulated distance with real sockets: delays by pair of places, moves, cuts, and the relay's own error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from tocsin.runtime.stack.distance import MOST_ERROR_S, EmulatedDistance, RelayError

SLACK_S = 0.25
"""How late the fastest of some answers may be on a machine with other work. No answer is ever early."""


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def round_trip_s(self, text: bytes = b"ping") -> float:
        began_s = time.perf_counter()
        self.writer.write(text)
        answer = await self.reader.readexactly(len(text))
        assert answer == text
        return time.perf_counter() - began_s

    async def fastest_s(self) -> float:
        """The shortest of some round trips: other work on the machine delays single ones."""
        return min([await self.round_trip_s() for _ in range(8)])


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def network() -> AsyncIterator[tuple[EmulatedDistance, int]]:
    """Paris, Oslo (50 ms one way) and Rome (10 ms from Paris); an echo server in Oslo."""
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    async with server, EmulatedDistance() as distance:
        await distance.set_delay("paris", "oslo", 0.05)
        await distance.set_delay("paris", "rome", 0.01)
        await distance.place("echo", "oslo")
        await distance.place("ann", "paris")
        await distance.place("bob", "oslo")
        yield distance, server.sockets[0].getsockname()[1]


@asynccontextmanager
async def connected(distance: EmulatedDistance, node: str, route: tuple[str, int]) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(*route, local_addr=(await distance.address(node), 0))
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def run(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_round_trip_takes_the_delay_of_the_pair_of_places() -> None:
    async def scenario() -> None:
        async with network() as (distance, port):
            route = await distance.route("echo", port)
            began_s = time.perf_counter()
            async with connected(distance, "ann", route) as ann, connected(distance, "bob", route) as bob:
                await ann.round_trip_s()
                assert time.perf_counter() - began_s >= 0.2, "the handshake of TCP, then a round trip"
                assert 0.1 <= await ann.fastest_s() < 0.1 + SLACK_S
                assert await bob.fastest_s() < 0.1, "the same place"

    run(scenario)


def test_route_of_one_node_needs_no_address_of_its_own() -> None:
    async def scenario() -> None:
        async with network() as (distance, port):
            route = await distance.route("echo", port, source="ann")
            reader, writer = await asyncio.open_connection(*route)
            client = Client(reader, writer)
            await client.round_trip_s()
            assert 0.1 <= await client.fastest_s() < 0.1 + SLACK_S
            writer.close()
            await writer.wait_closed()

    run(scenario)


def test_move_changes_the_delay_of_open_connections() -> None:
    async def scenario() -> None:
        async with (
            network() as (distance, port),
            connected(distance, "ann", await distance.route("echo", port)) as ann,
        ):
            await ann.round_trip_s()
            assert await distance.place("ann", "oslo") == 0
            assert await ann.fastest_s() < 0.1, "shorter than the round trip from Paris"
            await distance.place("ann", "paris")
            assert 0.1 <= await ann.fastest_s() < 0.1 + SLACK_S

    run(scenario)


def test_move_with_a_cut_breaks_the_connections_of_that_node_alone() -> None:
    async def scenario() -> None:
        async with network() as (distance, port):
            route = await distance.route("echo", port)
            async with connected(distance, "ann", route) as ann, connected(distance, "bob", route) as bob:
                await ann.round_trip_s()
                await bob.round_trip_s()
                assert await distance.place("ann", "oslo", cut=True) == 1
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await ann.round_trip_s()
                assert await bob.fastest_s() < 0.1
            async with connected(distance, "ann", route) as ann:
                assert await ann.fastest_s() < 0.1

    run(scenario)


def test_large_streams_arrive_complete_and_in_order() -> None:
    async def scenario() -> None:
        async with (
            network() as (distance, port),
            connected(distance, "ann", await distance.route("echo", port)) as ann,
        ):
            sent = b"".join(number.to_bytes(4, "big") for number in range(1 << 20))
            writing = asyncio.create_task(_write(ann.writer, sent))
            assert await ann.reader.readexactly(len(sent)) == sent
            await writing
            ann.writer.write_eof()
            assert await ann.reader.read() == b"", "the end of the stream is forwarded too"

    run(scenario)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    for start in range(0, len(data), 1 << 16):
        writer.write(data[start : start + (1 << 16)])
        await writer.drain()


def test_relay_measures_its_own_error() -> None:
    async def scenario() -> None:
        async with network() as (distance, port):
            route = await distance.route("echo", port)
            async with connected(distance, "ann", route) as ann:
                for _ in range(20):
                    await ann.round_trip_s()
            report = await distance.report()
            assert report.chunks >= 40
            assert 0.0 <= report.p50_s <= report.p99_s <= report.max_s
            assert (await distance.report()).chunks <= 2, "a report begins anew; only the ends of streams remain"

    run(scenario)


def test_run_with_a_late_relay_is_invalid() -> None:
    assert RelayError(100, 0.0001, MOST_ERROR_S, 0.5).is_valid
    assert not RelayError(100, 0.0001, MOST_ERROR_S + 1e-6, 0.5).is_valid


def test_closed_target_closes_the_connection() -> None:
    async def scenario() -> None:
        async with EmulatedDistance() as distance:
            route = await distance.route("echo", 9)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                async with connected(distance, "ann", route) as ann:
                    await ann.round_trip_s()

    run(scenario)
