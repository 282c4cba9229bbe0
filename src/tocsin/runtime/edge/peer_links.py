"""The peer connections of one generation: the negotiation about operators, with the parent and with each child.

A message that refers to pieces which have not arrived yet waits here, so that it need not be sent again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

import msgspec
import pyarrow as pa

from tocsin.edge.messages import PeerMessage
from tocsin.model.edge import EdgeNodeId
from tocsin.runtime.edge.codecs import decode_peer_message, encode_peer_message
from tocsin.runtime.edge.links import LOST, Channel, opened
from tocsin.runtime.http.logs import logger
from tocsin.wire import edge_peer as wire

_ATTEMPTS = 5
_RETRY_S = 0.2
_MALFORMED = (msgspec.DecodeError, ValueError, KeyError, pa.ArrowException, OSError, EOFError)


class PeerLinks:
    def __init__(
        self,
        node: EdgeNodeId,
        generation: int,
        on_message: Callable[[PeerMessage], None],
        received_from: Callable[[EdgeNodeId], int],
        on_lost: Callable[[EdgeNodeId, str], None],
    ) -> None:
        """`received_from`: how many pieces of a neighbour have arrived."""
        self._node = node
        self._generation = generation
        self._on_message = on_message
        self._received_from = received_from
        self._on_lost = on_lost
        self._channels: dict[EdgeNodeId, Channel] = {}
        self._unsent: defaultdict[EdgeNodeId, list[bytes]] = defaultdict(list)
        """Messages to neighbours whose connection is not open yet."""
        self._early: list[PeerMessage] = []
        """Messages that have outrun pieces."""
        self._task: asyncio.Task[None] | None = None

    def open(self, parent: EdgeNodeId, address: str, token: str | None) -> None:
        self._task = asyncio.create_task(self._keep(parent, address, token))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        for channel in list(self._channels.values()):
            channel.end("the generation is over")

    def send(self, message: PeerMessage) -> None:
        encoded = encode_peer_message(message)
        channel = self._channels.get(message.receiver)
        if channel is None:
            self._unsent[message.receiver].append(encoded)
        else:
            channel.send(encoded)

    def pieces_arrived(self) -> None:
        """Handle the messages that waited for pieces which have arrived now."""
        if self._early:
            early, self._early = self._early, []
            for message in early:
                self._pass_on(message)

    async def serve(self, channel: Channel) -> str:
        """Serve a connection with a neighbour until it ends, and return why."""
        peer = EdgeNodeId(channel.peer)
        self._channels[peer] = channel
        for message in self._unsent.pop(peer, ()):
            channel.send(message)
        try:
            await channel.run(lambda message: self._receive(channel, message))
        finally:
            if self._channels.get(peer) is channel:
                del self._channels[peer]
        return channel.refusal or "the connection broke"

    def _receive(self, channel: Channel, data: bytes) -> None:
        try:
            row = wire.decode(data)
            if not isinstance(row, wire.PeerRow):
                raise ValueError("the connection is open already")
            message = decode_peer_message(row)
        except _MALFORMED as error:
            logger().warning("a neighbour's message cannot be read", peer=channel.peer, reason=str(error)[:200])
            channel.end("not understood")
            return
        if message.sender == channel.peer:
            self._pass_on(message)

    def _pass_on(self, message: PeerMessage) -> None:
        if message.barrier > self._received_from(message.sender):
            self._early.append(message)
        else:
            self._on_message(message)

    async def _keep(self, parent: EdgeNodeId, address: str, token: str | None) -> None:
        reason = "the connection broke"
        for attempt in range(1, _ATTEMPTS + 1):
            is_open = False
            try:
                async with opened(address, wire.PATH, token, parent) as channel:
                    is_open = True
                    channel.send(wire.encode(wire.OpenPeer(self._node, self._generation)))
                    reason = await self.serve(channel)
            except LOST as error:
                reason = str(error) or type(error).__name__
            except Exception as error:
                reason = f"this node failed: {type(error).__name__}"
                logger().error("a peer connection failed", parent=parent, exc_info=error)
            if is_open or attempt == _ATTEMPTS:
                break
            await asyncio.sleep(_RETRY_S)
        self._on_lost(parent, reason)
