"""An MQTT core with a hand-turned clock, a network of topics that accepts everything, and clients that record."""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from typing import Any

from tests.broker.mqtt.server_packets import read_all
from tocsin.broker.mqtt import effects, events, packets
from tocsin.broker.mqtt.core import MqttBroker
from tocsin.broker.mqtt.events import ConnectionId
from tocsin.broker.mqtt.limits import MqttLimits
from tocsin.broker.mqtt.packets import V5, V311, Packet
from tocsin.broker.mqtt.reading import PacketReader
from tocsin.broker.mqtt.reasons import Reason, Violation
from tocsin.broker.mqtt.writing import written
from tocsin.model.topic import Position, matches

ALL = frozenset({"send:#", "receive:#", "subscribe"})


class Network:
    """The homes of all topics: they order messages and send them to the brokers that watch."""

    def __init__(self) -> None:
        self.sequences: dict[str, int] = defaultdict(int)
        self.benches: list[MqttBench] = []
        self.holds_back = False
        """True: homes do not answer, and messages wait."""
        self.waiting: list[tuple[MqttBench, effects.PublishToTopic]] = []
        self.refusals: dict[str, tuple[str, str]] = {}

    def publish(self, bench: MqttBench, effect: effects.PublishToTopic) -> None:
        if self.holds_back:
            self.waiting.append((bench, effect))
            return
        refusal = self.refusals.get(effect.topic)
        if refusal is not None:
            bench.do(events.PublishSettled(effect.ticket, *refusal))
            return
        if effect.ticket:
            bench.do(events.PublishSettled(effect.ticket))
        self.send(effect.topic, effect.data)

    def send(self, topic: str, data: bytes) -> None:
        """A message of any client of topics."""
        self.sequences[topic] += 1
        for receiver in self.benches:
            if any(matches(pattern, topic) for pattern in receiver.watched):
                receiver.do(events.MessageArrived(topic, data, Position(1, self.sequences[topic])))

    def answer_all(self) -> None:
        self.holds_back = False
        waiting, self.waiting = self.waiting, []
        for bench, effect in waiting:
            self.publish(bench, effect)


class MqttBench:
    def __init__(self, network: Network | None = None, name: str = "b1", **limits: Any) -> None:
        self.network = network or Network()
        self.network.benches.append(self)
        self.core = MqttBroker(name, MqttLimits(**limits), f"{name}:1883")
        self.now_s = 1_000.0
        self.watched: list[str] = []
        self.unready: set[str] = set()
        """Patterns whose homes do not answer."""
        self.users: dict[str, tuple[str, frozenset[str], float | None]] = {"secret": ("ann", ALL, None)}
        self.clients: dict[ConnectionId, Client] = {}
        self.effects: list[effects.Effect] = []
        self._numbers = count(1)
        self._events: list[events.Event] = []
        self._busy = False
        self._carry_out(self.core.start())
        self.pass_time(1.5)

    def do(self, event: events.Event) -> None:
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        while self._events:
            self._carry_out(self.core.handle(self._events.pop(0), self.now_s))
        self._busy = False

    def _carry_out(self, handled: list[effects.Effect]) -> None:
        for effect in handled:
            self.effects.append(effect)
            match effect:
                case effects.Send(connections, data):
                    for connection in connections:
                        self.clients[connection].receive(data)
                case effects.Close(connection):
                    self.clients[connection].closed = True
                    self.do(events.ConnectionLost(connection))
                case effects.CheckToken(connection, token):
                    self._check(connection, token)
                case effects.PublishToTopic():
                    self.network.publish(self, effect)
                case effects.WatchPattern(pattern):
                    self.watched.append(pattern)
                    if pattern not in self.unready:
                        self.do(events.PatternReady(pattern))
                case effects.UnwatchPattern(pattern):
                    self.watched.remove(pattern)

    def _check(self, connection: ConnectionId, token: str | None) -> None:
        known = self.users.get(token or "")
        if known is None:
            self.do(events.TokenRefused(connection, Reason.BAD_USER_NAME_OR_PASSWORD, "no such token"))
        else:
            self.do(events.TokenAccepted(connection, *known))

    def pass_time(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + 0.25)
            self.do(events.Ticked())

    def client(self, version: int = V5) -> Client:
        identity = ConnectionId(next(self._numbers))
        client = self.clients[identity] = Client(self, identity, version)
        self.do(events.ConnectionOpened(identity))
        return client

    def connected(self, client_id: str = "c1", version: int = V5, **connect: Any) -> Client:
        """A client with an open session; `properties` and other fields of CONNECT."""
        client = self.client(version)
        client.connect(client_id, **connect)
        return client


class Client:
    def __init__(self, bench: MqttBench, identity: ConnectionId, version: int) -> None:
        self.bench = bench
        self.id = identity
        self.version = version
        self.got: list[Packet] = []
        self.closed = False
        self.acknowledges = True
        self._reader = PacketReader(bench.core.state.limits.mqtt_packet_bytes)
        self._rest = b""
        self._ids = count(1)

    def send_bytes(self, data: bytes) -> None:
        for item in self._reader.feed(data):
            if isinstance(item, Violation):
                self.bench.do(events.PacketViolated(self.id, item))
            else:
                self.bench.do(events.PacketReceived(self.id, item))

    def send(self, packet: Packet) -> None:
        self.send_bytes(written(packet, self.version))

    def receive(self, data: bytes) -> None:
        found, self._rest = read_all(self._rest + data, self.version)
        for packet in found:
            self.got.append(packet)
            if not self.acknowledges:
                continue
            match packet:
                case packets.Publish(qos=1, packet_id=number):
                    self.send(packets.PubAck(number))
                case packets.Publish(qos=2, packet_id=number):
                    self.send(packets.PubRec(number))
                case packets.PubRel(number):
                    self.send(packets.PubComp(number))
                case packets.PubRec(number, reason) if reason < 0x80:
                    self.send(packets.PubRel(number))

    def connect(self, client_id: str = "c1", **fields: Any) -> packets.ConnAck:
        fields.setdefault("username", "ann")
        fields.setdefault("password", b"secret")
        fields.setdefault("properties", {})
        self.send(packets.Connect(client_id, self.version, **fields))
        answer = self.got[-1] if not self.got or isinstance(self.got[-1], packets.ConnAck) else self.got[0]
        assert isinstance(answer, packets.ConnAck), self.got
        return answer

    def subscribe(self, *filters: packets.Filter | str, qos: int = 2, **properties: Any) -> packets.SubAck | None:
        number = next(self._ids) + 30_000
        wanted = [each if isinstance(each, packets.Filter) else packets.Filter(each, qos) for each in filters]
        self.send(packets.Subscribe(number, wanted, properties))
        answers = [packet for packet in self.got if isinstance(packet, packets.SubAck) and packet.packet_id == number]
        return answers[0] if answers else None

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, **properties: Any) -> int:
        number = next(self._ids) if qos else 0
        self.send(packets.Publish(topic, payload, qos, retain, number, False, properties))
        return number

    def lose(self) -> None:
        """The network connection breaks."""
        self.closed = True
        self.bench.do(events.ConnectionLost(self.id))

    @property
    def messages(self) -> list[packets.Publish]:
        return [packet for packet in self.got if isinstance(packet, packets.Publish)]

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]

    def only(self, kind: type[Packet]) -> Any:
        found = [packet for packet in self.got if type(packet) is kind]
        assert len(found) == 1, self.got
        return found[0]


__all__ = ["ALL", "V5", "V311", "Client", "MqttBench", "Network"]
