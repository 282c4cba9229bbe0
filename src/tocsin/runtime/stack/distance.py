"""Emulated distance between processes of one machine: a relay in user space, where the kernel has no netem.

    async with EmulatedDistance() as distance:
        await distance.set_delay("paris", "oslo", one_way_s=0.012)
        await distance.place("ann", "paris")
        await distance.place("broker-1", "oslo")
        host, port = await distance.route("broker-1", port)
        ...  # connect there from `await distance.address("ann")`: the relay knows nodes by their addresses
        await distance.place("ann", "oslo")               # ann moves: her open connections get the new delay
        print(await distance.report())

The relay is a process of its own (`distance_relay`). It measures how late it sends. A run whose 99th percentile exceeds
2 ms is invalid: its delays are not the ones that were set.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from tocsin.runtime.stack.distance_relay import OTHERS
from tocsin.runtime.stack.stack import SUBSCRIBERS

MOST_ERROR_S = 0.002
"""A run whose 99th percentile of the relay's own error exceeds this is invalid."""


@dataclass(frozen=True, slots=True)
class RelayError:
    """How late the relay sent the chunks since the last report."""

    chunks: int
    p50_s: float
    p99_s: float
    max_s: float

    @property
    def is_valid(self) -> bool:
        return self.p99_s <= MOST_ERROR_S


class EmulatedDistance:
    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process
        self._asking = asyncio.Lock()
        self._addresses: dict[str, str] = {}
        self._planned: dict[tuple[str, str, int], str] = {}
        """(source, target, port) → host of the routes that are not open yet."""
        self._numbers = count(1)

    async def __aenter__(self) -> Self:
        command = (sys.executable, "-m", "tocsin.runtime.stack.distance_relay")
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        await self._answer()
        await self._ask(op="node", address=OTHERS, node=SUBSCRIBERS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    @property
    def pid(self) -> int:
        """The process of the relay."""
        return self._process.pid

    async def set_delay(self, one: str, other: str, one_way_s: float) -> None:
        """Set the delay between two places, in both directions."""
        await self._ask(op="delay", one=one, other=other, one_way_s=one_way_s)

    async def place(self, node: str, place: str, *, cut: bool = False) -> int:
        """Put a node at a place, or move it there; with `cut` the connections that it opened break. Returns how many.

        Bytes that are on their way keep their delay.
        """
        return int((await self._ask(op="place", node=node, place=place, cut=cut))["cut"])

    async def address(self, node: str) -> str:
        """The address from which the node must connect, so that the relay recognises it."""
        if node not in self._addresses:
            self._addresses[node] = self._new_address()
            await self._ask(op="node", address=self._addresses[node], node=node)
        return self._addresses[node]

    async def route(self, target: str, port: int, source: str | None = None) -> tuple[str, int]:
        """Open a route to the port of a node and return its address. With `source` it is for that node alone."""
        host = self._new_address()
        answer = await self._ask(op="listen", host=host, port=0, target_port=port, target=target, source=source)
        return host, int(answer["port"])

    def via(self, source: str, target: str, url: str) -> str:
        """The `via` of a `Stack`: the address that `source` uses for `target`; `open_routes` opens it.

        All clients use one address for a broker, and the relay recognises them by the addresses they connect from.
        A client with another address counts as the node `subscribers`.
        """
        parts = urlsplit(url)
        assert parts.port is not None
        host = self._planned.setdefault((source, target, parts.port), self._new_address())
        return parts._replace(netloc=f"{host}:{parts.port}").geturl()

    async def open_routes(self) -> None:
        """Open the routes that `via` has named, before the processes start."""
        planned, self._planned = self._planned, {}
        for (source, target, port), host in planned.items():
            node = None if source == SUBSCRIBERS else source
            await self._ask(op="listen", host=host, port=port, target_port=port, target=target, source=node)

    async def report(self) -> RelayError:
        """The relay's own error since the last report."""
        return RelayError(**await self._ask(op="report"))

    def _new_address(self) -> str:
        number = next(self._numbers)
        return f"127.77.{number >> 8}.{number & 255}"

    async def _ask(self, **request: Any) -> dict[str, Any]:
        async with self._asking:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            await self._process.stdin.drain()
            return await self._answer()

    async def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the relay of emulated distances has ended; its errors are above")
        answer: dict[str, Any] = json.loads(line)
        return answer
