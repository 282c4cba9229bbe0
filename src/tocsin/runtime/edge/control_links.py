"""Both ends of the control connection: the node's client, the root's links, and the short cut of the root's node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec
from starlette.websockets import WebSocket

from tocsin.runtime.edge.links import LOST, Accepted, Channel, opened
from tocsin.runtime.http.logs import is_worth_logging, logger
from tocsin.wire import edge_link as wire

_RETRY_S = 0.3
_encode = msgspec.json.Encoder().encode
_from_node = msgspec.json.Decoder(wire.NodeMessage)
_from_root = msgspec.json.Decoder(wire.RootMessage)


class Control(Protocol):
    """A node's connection to the tree control."""

    def send(self, message: wire.NodeMessage) -> None:
        """Send a message; drop it if the connection is not open."""

    def start(self, register: Callable[[], wire.Register], receive: Callable[[wire.RootMessage], None]) -> None:
        """`register` makes the first message of each connection; `receive` gets each message of the root."""

    async def stop(self) -> None: ...


class ControlClient:
    """The connection of a node to the root's process, opened again whenever it breaks."""

    def __init__(self, root: str, token: str | None) -> None:
        self._root = root
        self._token = token
        self._channel: Channel | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, register: Callable[[], wire.Register], receive: Callable[[wire.RootMessage], None]) -> None:
        self._task = asyncio.create_task(self._keep(register, receive))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def send(self, message: wire.NodeMessage) -> None:
        if self._channel is not None:
            self._channel.send(_encode(message))

    async def _keep(self, register: Callable[[], wire.Register], receive: Callable[[wire.RootMessage], None]) -> None:
        failures = 0
        while True:
            try:
                async with opened(self._root, wire.PATH, self._token, "root") as channel:
                    failures = 0
                    channel.send(_encode(register()))
                    self._channel = channel
                    await channel.run(lambda message: receive(_from_root.decode(message)))
            except (*LOST, msgspec.DecodeError) as error:
                failures += 1
                if is_worth_logging(failures):
                    logger().warning("no connection to the root", root=self._root, reason=str(error))
            except Exception as error:  # a message of the root cannot be handled: the next one perhaps can
                logger().error("a message of the root failed", root=self._root, exc_info=error)
            finally:
                self._channel = None
            await asyncio.sleep(_RETRY_S)


class LocalControl:
    """The connection of the root's own node, without a socket. Messages are passed on in the next turn of the loop."""

    def __init__(self, receive_at_root: Callable[[str, wire.NodeMessage], None]) -> None:
        self._receive_at_root = receive_at_root
        self._node = ""
        self._receive: Callable[[wire.RootMessage], None] = lambda message: None

    def start(self, register: Callable[[], wire.Register], receive: Callable[[wire.RootMessage], None]) -> None:
        self._receive = receive
        first = register()
        self._node = first.node
        self.send(first)

    async def stop(self) -> None:
        self._receive = lambda message: None

    def send(self, message: wire.NodeMessage) -> None:
        asyncio.get_running_loop().call_soon(self._receive_at_root, self._node, message)

    def receive(self, message: wire.RootMessage) -> None:
        """A message of the root."""
        asyncio.get_running_loop().call_soon(self._receive, message)


class ControlLinks:
    """The root's connections to the nodes. The latest registration of a node counts."""

    def __init__(self, receive: Callable[[str, wire.NodeMessage], None], lost: Callable[[str, int], None]) -> None:
        """`receive` gets each message with its node; `lost` the node and the run whose connection closed."""
        self._receive = receive
        self._lost = lost
        self._channels: dict[str, Channel] = {}
        self.local: LocalControl | None = None
        self.local_node = ""

    def send(self, node: str, message: wire.RootMessage) -> None:
        if node == self.local_node and self.local is not None:
            self.local.receive(message)
        elif (channel := self._channels.get(node)) is not None:
            channel.send(_encode(message))

    def close_all(self) -> None:
        for channel in list(self._channels.values()):
            channel.end("the root is stopping")

    async def accept(self, socket: WebSocket) -> None:
        accepted = Accepted(socket)
        try:
            first = _from_node.decode(await accepted.first())
        except (*LOST, msgspec.DecodeError):
            await accepted.close("expected a registration")
            return
        if not isinstance(first, wire.Register) or first.node == self.local_node:
            await accepted.close("expected the registration of another node")
            return
        node, run = first.node, first.run
        channel = accepted.channel(node)
        former = self._channels.get(node)
        self._channels[node] = channel
        if former is not None:
            former.end("another connection of this node was opened")
        self._receive(node, first)

        def receive(data: bytes) -> None:
            nonlocal run
            message = _from_node.decode(data)
            if isinstance(message, wire.Register):
                run = message.run
            if self._channels.get(node) is channel:
                self._receive(node, message)

        try:
            await channel.run(receive)
        except msgspec.DecodeError as error:
            logger().warning("a node's message cannot be read", node=node, reason=str(error)[:200])
            channel.end("not understood")
        finally:
            if self._channels.get(node) is channel:
                del self._channels[node]
                self._lost(node, run)
        await accepted.close(channel.refusal)
