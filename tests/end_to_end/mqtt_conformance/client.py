"""A client of the conformance list: it sends what a case tells it, valid or not, and records what the server sends."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.broker.mqtt.server_packets import read_all
from tocsin.broker.mqtt import packets
from tocsin.broker.mqtt.packets import V5, Packet
from tocsin.broker.mqtt.writing import written

LIMIT_S = 8.0
"""How long a case waits for something that must happen."""
QUIET_S = 0.8
"""How long a case waits for something that must not happen."""


class Closed(Exception):
    """The server has closed the connection."""


class ConformanceClient:
    def __init__(self, version: int) -> None:
        self.version = version
        self.connack: packets.ConnAck | None = None
        self.acknowledges = True
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._inbox: asyncio.Queue[Packet | None] = asyncio.Queue()
        self._messages: list[packets.Publish] = []
        self._ids = count(1)
        self._reading: asyncio.Task[None] | None = None

    async def open(self, host: str, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection(host, port)
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        rest = b""
        try:
            while data := await self._reader.read(65_536):
                found, rest = read_all(rest + data, self.version)
                for packet in found:
                    self._answer(packet)
                    self._inbox.put_nowait(packet)
        except OSError:
            pass
        finally:
            self._inbox.put_nowait(None)

    def _answer(self, packet: Packet) -> None:
        if not self.acknowledges:
            return
        match packet:
            case packets.Publish(qos=1, packet_id=number):
                self.send(packets.PubAck(number))
            case packets.Publish(qos=2, packet_id=number):
                self.send(packets.PubRec(number))
            case packets.PubRel(number):
                self.send(packets.PubComp(number))
            case packets.PubRec(number, reason) if reason < 0x80:
                self.send(packets.PubRel(number))

    def send(self, packet: Packet) -> None:
        self.send_bytes(written(packet, self.version))

    def send_bytes(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    # -- what the server sends -----------------------------------------------------------------------------------------

    async def next_packet(self, limit_s: float = LIMIT_S) -> Packet:
        async with asyncio.timeout(limit_s):
            packet = await self._inbox.get()
        if packet is None:
            self._inbox.put_nowait(None)
            raise Closed
        return packet

    async def expect(self, kind: type[Packet], packet_id: int | None = None) -> Any:
        """The next packet of this kind; messages in between are kept."""
        while True:
            packet = await self.next_packet()
            if isinstance(packet, packets.Publish) and kind is not packets.Publish:
                self._messages.append(packet)
            elif isinstance(packet, kind) and packet_id in (None, getattr(packet, "packet_id", None)):
                return packet

    async def message(self) -> packets.Publish:
        if self._messages:
            return self._messages.pop(0)
        found: packets.Publish = await self.expect(packets.Publish)
        return found

    async def messages(self, number: int) -> list[packets.Publish]:
        return [await self.message() for _ in range(number)]

    async def expect_silence(self, seconds: float = QUIET_S) -> None:
        """No message arrives."""
        assert not self._messages, self._messages
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    packet = await self.next_packet(60)
                    assert not isinstance(packet, packets.Publish), packet

    async def expect_close(self, *reasons: int) -> None:
        """The server closes the connection; with reasons, after a DISCONNECT or CONNACK of one of them."""
        last: Packet | None = None
        with contextlib.suppress(Closed):
            while True:
                last = await self.next_packet()
        if reasons:
            assert isinstance(last, packets.Disconnect | packets.ConnAck), f"closed without a reason, after {last}"
            assert last.reason in reasons, last

    # -- what the client does ------------------------------------------------------------------------------------------

    async def subscribe(self, *filters: str | packets.Filter, qos: int = 2, **properties: Any) -> packets.SubAck:
        number = next(self._ids)
        wanted = [each if isinstance(each, packets.Filter) else packets.Filter(each, qos) for each in filters]
        self.send(packets.Subscribe(number, wanted, properties))
        answer: packets.SubAck = await self.expect(packets.SubAck, number)
        return answer

    async def unsubscribe(self, *patterns: str) -> packets.UnsubAck:
        number = next(self._ids)
        self.send(packets.Unsubscribe(number, list(patterns)))
        answer: packets.UnsubAck = await self.expect(packets.UnsubAck, number)
        return answer

    async def publish(
        self, topic: str, payload: bytes, qos: int = 1, retain: bool = False, **properties: Any
    ) -> packets.Acknowledgement | None:
        """Publish and wait for the last acknowledgement, or for a refusal."""
        number = next(self._ids) if qos else 0
        self.send(packets.Publish(topic, payload, qos, retain, number, False, properties))
        if qos == 0:
            return None
        if qos == 1:
            return await self._acknowledgement(packets.PubAck, number)
        received = await self._acknowledgement(packets.PubRec, number)
        return received if received.reason >= 0x80 else await self._acknowledgement(packets.PubComp, number)

    async def _acknowledgement(self, kind: type[Packet], number: int) -> packets.Acknowledgement:
        answer: packets.Acknowledgement = await self.expect(kind, number)
        return answer

    async def disconnect(self, reason: int = 0, **properties: Any) -> None:
        if self.version == V5:
            self.send(packets.Disconnect(reason, properties))  # type: ignore[arg-type]
        else:
            self.send_bytes(b"\xe0\x00")
        with contextlib.suppress(Closed, TimeoutError):
            while True:
                await self.next_packet(2.0)
        await self.close()

    async def close(self) -> None:
        """Break the connection without a DISCONNECT."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.transport.abort()


@dataclass
class ServerUnderTest:
    """The server under test, and the clients of one case."""

    host: str
    port: int
    username: str
    password: str
    name: str
    version: int
    clients: list[ConformanceClient] = field(default_factory=list)

    @property
    def topic(self) -> str:
        """A topic of this case alone."""
        return f"test/{self.name}-{self.version}"

    def identity(self, letter: str = "a") -> str:
        return f"{self.name}-{self.version}-{letter}"

    async def raw(self, version: int | None = None) -> ConformanceClient:
        client = ConformanceClient(version or self.version)
        await client.open(self.host, self.port)
        self.clients.append(client)
        return client

    def connect_packet(self, letter: str = "a", **fields: Any) -> packets.Connect:
        login: dict[str, Any] = {"username": self.username, "password": self.password.encode(), "properties": {}}
        return packets.Connect(self.identity(letter), self.version, **login | fields)

    async def connect(self, letter: str = "a", **fields: Any) -> ConformanceClient:
        """A client with an accepted CONNECT."""
        client = await self.raw()
        client.send(self.connect_packet(letter, **fields))
        client.connack = await client.expect(packets.ConnAck)
        assert client.connack.reason == 0, client.connack
        return client

    async def keeping(self, letter: str = "a", **fields: Any) -> ConformanceClient:
        """A client whose session outlives its connection."""
        if self.version == V5:
            fields["properties"] = {"session_expiry_s": 300} | fields.get("properties", {})
        return await self.connect(letter, clean_start=False, **fields)

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
