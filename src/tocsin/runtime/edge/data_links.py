"""The data connections of one generation: one to the parent, and one from each child.

The core decides what is sent and when (`edge.uplink`): this module encodes pieces, sends them at the pace of
`uplink_bytes_per_s`, and passes credits on. With such a pace the core gets the parent's credit in small portions, so
that pieces wait in the core, where they count as load and can still be withdrawn, and not in a socket's queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tocsin.edge.inbox import cost_bytes
from tocsin.edge.messages import Piece
from tocsin.model.edge import EdgeNodeId, OperatorId
from tocsin.runtime.edge.links import LOST, Channel, Pace, opened
from tocsin.runtime.http.logs import logger
from tocsin.wire import edge_data as wire

_ATTEMPTS = 5
_RETRY_S = 0.2
_PORTION_S = 0.25
"""With a pace: how much may wait in the socket's queue."""
_LEAST_PORTION_BYTES = 16 << 10


class DataUplink:
    """The connection to the parent."""

    def __init__(
        self,
        node: EdgeNodeId,
        parent: EdgeNodeId,
        address: str,
        token: str | None,
        generation: int,
        bytes_per_s: float | None,
        on_credit: Callable[[int], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """`on_credit` gets the bytes that may be sent in all; `on_lost` the reason why the connection is no more."""
        self._node = node
        self._parent = parent
        self._address = address
        self._token = token
        self._generation = generation
        self._bytes_per_s = bytes_per_s
        self._on_credit = on_credit
        self._on_lost = on_lost
        self._encoder = wire.PieceEncoder()
        self._pieces: list[Piece] = []
        self._more = asyncio.Event()
        self._granted = 0
        self._sent_cost = 0
        """The cost of the pieces that have left this process."""
        self.bytes_up = 0
        self._task = asyncio.create_task(self._run())

    def send(self, piece: Piece) -> None:
        """The core sends only within its credit, so the queue is bounded."""
        self._pieces.append(piece)
        self._more.set()

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        reason = "the connection broke"
        for attempt in range(1, _ATTEMPTS + 1):
            is_open = False
            try:
                async with opened(self._address, wire.PATH, self._token, self._parent) as channel:
                    is_open = True
                    await self._serve(channel)
                    reason = channel.refusal or reason
            except LOST as error:
                reason = str(error) or type(error).__name__
            except Exception as error:
                reason = f"this node failed: {type(error).__name__}"
                logger().error("a data connection failed", parent=self._parent, exc_info=error)
            if is_open or attempt == _ATTEMPTS:
                break
            await asyncio.sleep(_RETRY_S)
        self._on_lost(reason)

    async def _serve(self, channel: Channel) -> None:
        if self._bytes_per_s is not None:
            channel.pace = Pace(self._bytes_per_s, time.monotonic).wait
        channel.on_sent = self._sent
        channel.send(wire.encode(wire.OpenData(self._node, self._generation)))
        sending = asyncio.create_task(self._send(channel))
        serving = asyncio.create_task(channel.run(lambda message: self._receive(channel, message)))
        try:
            done, _ = await asyncio.wait((sending, serving), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (sending, serving):
                task.cancel()
            await asyncio.gather(sending, serving, return_exceptions=True)

    async def _send(self, channel: Channel) -> None:
        """Pieces that one turn of the event loop produced travel in one message."""
        while True:
            await self._more.wait()
            self._more.clear()
            pieces, self._pieces = self._pieces, []
            items: list[wire.Item] = [(str(p.operator), p.port, p.batch, p.watermark_us) for p in pieces]
            *declarations, last = self._encoder.encode(items)
            for message in declarations:
                channel.send(message)
            channel.send(last, sum(map(cost_bytes, pieces)))

    def _sent(self, size_bytes: int, cost: int) -> None:
        self.bytes_up += size_bytes
        self._sent_cost += cost
        if self._bytes_per_s is not None and cost:
            self._grant()

    def _receive(self, channel: Channel, message: bytes) -> None:
        try:
            self._granted = wire.decode_credit(message).total_bytes
        except wire.MalformedData as error:
            channel.end(f"not understood: {error}")
            return
        self._grant()

    def _grant(self) -> None:
        if self._bytes_per_s is None:
            self._on_credit(self._granted)
        else:
            portion = max(_LEAST_PORTION_BYTES, int(self._bytes_per_s * _PORTION_S))
            self._on_credit(min(self._granted, self._sent_cost + portion))


class DataDownlink:
    """The connection from one child, which has sent its first message."""

    def __init__(
        self,
        child: EdgeNodeId,
        channel: Channel,
        on_piece: Callable[[EdgeNodeId, Piece], None],
    ) -> None:
        self.child = child
        self._channel = channel
        self._on_piece = on_piece
        self._decoder = wire.PieceDecoder()
        self._granted = -1

    def grant(self, total_bytes: int) -> None:
        """Small changes wait, so that credits cost less than the pieces."""
        if total_bytes > self._granted:
            self._granted = total_bytes
            self._channel.send(wire.encode(wire.Credit(total_bytes)))

    def close(self, reason: str = "") -> None:
        self._channel.end(reason or "the generation is over")

    async def run(self) -> str:
        """Serve the connection until it ends, and return why."""
        await self._channel.run(self._receive)
        return self._channel.refusal or "the connection broke"

    def _receive(self, message: bytes) -> None:
        try:
            items = self._decoder.decode(message)
        except wire.MalformedData as error:
            logger().warning("a child's data cannot be read", child=self.child, reason=str(error)[:200])
            self._channel.end("not understood")
            return
        for operator, port, batch, watermark_us in items:
            self._on_piece(self.child, Piece(OperatorId(operator), port, batch, watermark_us))
