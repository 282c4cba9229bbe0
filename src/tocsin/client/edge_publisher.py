"""The asyncio publisher of readings to the edge tier. It continues at another node when its node does not answer.

    nodes = ["http://leaf-3:8907", "http://district-1:8903"]     # the own node first, then its ancestors
    async with EdgePublisher(nodes, "Readings", "meters-17", token) as publisher:
        number = await publisher.send(batch)                   # returns when a node has the batch on disk

Batches are numbered from 1 and sent in order, one request at a time; batches that wait together share a request. The
publisher keeps each batch until no recovery of the tree needs it (`durable_through` of an answer). At another node it
sends all of them again, so that readings survive the loss of a node's disk. Nodes recognise repeats by the number. The
publisher keeps its batches in memory: a program that must survive its own restart stores them itself and passes
`first_number`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

import httpx
import msgspec

from tocsin.client.coordinator import response_error
from tocsin.client.errors import ClientError, SessionEnded, Unreachable
from tocsin.client.tls import Verify, context_for
from tocsin.wire.errors import Code

if TYPE_CHECKING:
    import pyarrow as pa

_ARROW: Final = "application/vnd.apache.arrow.stream"
_SHORTEST_S: Final = 0.1
_LONGEST_S: Final = 1.0
_REQUEST_BYTES: Final = 1 << 20
"""Batches share a request up to this size."""
_REQUEST_BATCHES: Final = 64
_PROBE_S: Final = 1.0
"""How long a node may take to answer a probe."""


class _Kept(msgspec.Struct):
    number: int
    body: bytes
    stored: asyncio.Future[int]


class _Health(msgspec.Struct):
    generation: int
    """The generation of the tree that the node runs; 0 if none."""


class _Stored(msgspec.Struct):
    """A node's answer."""

    stored_through: int
    durable_through: int = 0


class EdgePublisher:
    """Sends batches of one stream under one publisher id.

    A node counts as dead after `patience_s` without a connection, or without an answer to a request and to a probe.
    The publisher then takes the next address, and after the last one the first. It returns to its own node, the first
    address, when that runs in the tree again; it probes every `return_s`. A publisher that has sent everything repeats
    its last batch every `repeat_s` until all are durable: so it learns that, and notices the death of its node.
    `send` waits while `kept_bytes` are kept.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        stream: str,
        publisher: str,
        token: str | None = None,
        *,
        first_number: int = 1,
        patience_s: float = 2.0,
        return_s: float = 5.0,
        repeat_s: float = 5.0,
        kept_bytes: int = 256 << 20,
        verify: Verify = True,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if not addresses:
            raise ValueError("a publisher needs the address of at least one node")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx.AsyncClient(
            headers=headers | {"Content-Type": _ARROW, "Tocsin-Publisher": publisher},
            verify=context_for(verify),
            transport=transport,
            timeout=httpx.Timeout(None, connect=_PROBE_S),
        )
        self.publisher = publisher
        self._addresses = [address.rstrip("/") for address in addresses]
        self._path = f"/v1/streams/{quote(stream, safe='')}/readings"
        self._patience_s, self._return_s, self._repeat_s = patience_s, return_s, repeat_s
        self._kept_bytes = kept_bytes
        self._sleep, self._clock_s = sleep, clock_s
        self._kept: deque[_Kept] = deque()
        self._bytes = 0
        self._numbers = itertools.count(first_number)
        self._place = 0
        self._next = first_number
        """The number of the next batch for the present node."""
        self._silent_since_s: float | None = None
        self._probed_s = 0.0
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._failed: ClientError | None = None
        self.stored_through = first_number - 1
        self.durable_through = first_number - 1
        self.changes = 0
        """How often the publisher has continued at another node."""
        self.retries = 0
        self.waiting_bytes = 0
        """Bytes that no node has stored yet."""

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=f"edge publisher {self.publisher}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """The node to which the publisher sends now."""
        return self._addresses[self._place]

    @property
    def kept(self) -> int:
        """The number of batches that are not durable yet."""
        return len(self._kept)

    async def send(self, readings: pa.RecordBatch | pa.Table) -> int:
        """Return the batch's number when a node has it on disk. Raises if a node refuses the batch for good."""
        return await (await self.enqueue(readings))

    async def enqueue(self, readings: pa.RecordBatch | pa.Table) -> asyncio.Future[int]:
        """Number the batch and return a future, which is done when a node has the batch on disk."""
        if self._task is None:
            raise RuntimeError("use `async with EdgePublisher(…)`")
        body = _arrow_stream(readings)
        async with self._changed:
            await self._changed.wait_for(lambda: self._failed is not None or self._bytes < self._kept_bytes)
            if self._failed is not None:
                raise self._failed
            kept = _Kept(next(self._numbers), body, asyncio.get_running_loop().create_future())
            self._kept.append(kept)
            self._bytes += len(body)
            self.waiting_bytes += len(body)
            self._changed.notify_all()
        return kept.stored

    async def close(self) -> None:
        """Stop sending. Batches that no node has stored fail with `SessionEnded`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._fail(SessionEnded(Code.NOT_READY, f"the publisher {self.publisher} was closed"))
        await self._http.aclose()

    # -- sending -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                await self._send_next(await self._wait_for_next())
        except ClientError as error:
            await self._fail(error)

    async def _wait_for_next(self) -> list[_Kept]:
        """The next batches, as many as a request takes, or the last one again if nothing was published for a while."""
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._repeat_s if self._kept else None):
                    await self._changed.wait_for(lambda: bool(self._kept) and self._kept[-1].number >= self._next)
            self._next = min(self._next, self._kept[-1].number)
        # Numbers have no gap, so the position follows from the number of the oldest kept batch.
        first = max(0, self._next - self._kept[0].number)
        batches = [self._kept[first]]
        size_bytes = len(batches[0].body)
        for batch in itertools.islice(self._kept, first + 1, first + _REQUEST_BATCHES):
            size_bytes += len(batch.body)
            if size_bytes > _REQUEST_BYTES:
                break
            batches.append(batch)
        return batches

    async def _send_next(self, batches: list[_Kept]) -> None:
        await self._return_if_possible()
        if self._next != batches[0].number:  # the publisher has just changed the node
            return
        pause_s = _SHORTEST_S
        while True:
            try:
                answer = await self._post(batches)
            except Unreachable as error:
                if self._is_silent_too_long():
                    self._continue_at((self._place + 1) % len(self._addresses))
                    return
                self.retries += 1
                await self._sleep(max(pause_s, error.retry_after_s or 0.0) * random.uniform(1.0, 1.25))
                pause_s = min(_LONGEST_S, 2 * pause_s)
                continue
            except ClientError:
                if len(batches) == 1:
                    raise
                batches = batches[:1]  # only the batch that the node refuses must fail, not those in front of it
                continue
            await self._acknowledge(answer)
            return

    def _is_silent_too_long(self) -> bool:
        return self._silent_since_s is not None and self._clock_s() - self._silent_since_s >= self._patience_s

    def _continue_at(self, place: int) -> None:
        """Send all batches that are not durable to this node."""
        if place != self._place:
            self._place = place
            self.changes += 1
        self._silent_since_s = None
        self._next = self.durable_through + 1

    async def _return_if_possible(self) -> None:
        if self._place == 0 or self._clock_s() - self._probed_s < self._return_s:
            return
        self._probed_s = self._clock_s()
        if await self._answers_probe(self._addresses[0], in_tree=True):
            self._continue_at(0)

    async def _post(self, batches: list[_Kept]) -> _Stored:
        """Send batches and wait for the answer, as long as the node answers probes."""
        headers = {"Tocsin-Number": str(batches[0].number), "Tocsin-Durable": str(self.durable_through)}
        if len(batches) > 1:
            headers["Tocsin-Batches"] = str(len(batches))
        body = b"".join(batch.body for batch in batches)
        request = asyncio.ensure_future(self._http.post(self.address + self._path, content=body, headers=headers))
        try:
            while not request.done():
                done, _ = await asyncio.wait((request,), timeout=self._patience_s)
                if not done and not await self._answers_probe(self.address):
                    self._silent_since_s = self._clock_s() - self._patience_s
                    raise Unreachable(Code.NOT_READY, f"{self.address} does not answer")
            response = request.result()
        except httpx.TransportError as error:
            if self._silent_since_s is None:
                self._silent_since_s = self._clock_s()
            reason = str(error) or type(error).__name__
            raise Unreachable(Code.NOT_READY, f"no answer from {self.address} ({reason})") from error
        finally:
            request.cancel()
        self._silent_since_s = None
        return self._answer(response)

    def _answer(self, response: httpx.Response) -> _Stored:
        with contextlib.suppress(msgspec.MsgspecError):
            # A node that misses earlier batches answers 409 and says where the publisher has to continue.
            if response.status_code in (200, 202, 409):
                return msgspec.json.decode(response.content, type=_Stored)
        error = response_error(response)
        if response.status_code in (409, 421, 429) or response.status_code >= 500:
            raise Unreachable(error.code, error.message, retry_after_s=error.retry_after_s)
        raise error

    async def _answers_probe(self, address: str, *, in_tree: bool = False) -> bool:
        """`in_tree`: the node must also run a generation: one that has just started cannot take the publisher."""
        try:
            answer = await self._http.get(f"{address}/healthz", timeout=_PROBE_S)
        except httpx.TransportError:
            return False
        if not answer.is_success or not in_tree:
            return answer.is_success
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(answer.content, type=_Health).generation > 0
        return False

    async def _acknowledge(self, answer: _Stored) -> None:
        async with self._changed:
            for batch in self._kept:
                if batch.number <= answer.stored_through and not batch.stored.done():
                    batch.stored.set_result(batch.number)
                    self.waiting_bytes -= len(batch.body)
            self.stored_through = max(self.stored_through, answer.stored_through)
            self.durable_through = max(self.durable_through, min(answer.durable_through, self.stored_through))
            while self._kept and self._kept[0].number <= self.durable_through:
                self._bytes -= len(self._kept.popleft().body)
            self._next = max(answer.stored_through, self.durable_through) + 1
            self._changed.notify_all()

    async def _fail(self, error: ClientError) -> None:
        async with self._changed:
            self._failed = self._failed or error
            for batch in self._kept:
                if not batch.stored.done():
                    batch.stored.set_exception(self._failed)
                    batch.stored.exception()  # a caller that awaits no future must not see a warning
            self._changed.notify_all()


def _arrow_stream(readings: Any) -> bytes:
    import pyarrow as pa  # not at the start: most clients publish no readings, and brokers load this package too

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, readings.schema) as writer:
        writer.write(readings)
    return bytes(sink.getvalue().to_pybytes())
