"""Random histories of clients that come, go and lose packets: what every session has received in the end."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.broker.mqtt.bench import Client, MqttBench, Network
from tocsin.broker.mqtt import packets

PROPERTIES = {"session_expiry_s": 100_000, "receive_maximum": 3}
RECEIVERS = ["r0", "r1", "r2"]
QOS = {"r0": 1, "r1": 2, "r2": 2}


class MqttHistories(RuleBasedStateMachine):
    """Two brokers and one network. Senders repeat what was not acknowledged, as the specification requires."""

    @initialize()
    def start(self) -> None:
        self.network = Network()
        self.benches = [MqttBench(self.network, name) for name in ("b1", "b2")]
        self.open: dict[str, Client] = {}
        self.received: dict[str, list[bytes]] = defaultdict(list)
        self.complete: dict[str, set[int]] = defaultdict(set)
        """Receiver → packet identifiers of QoS 2 that it has and that are not released."""
        self.sent = 0
        self.unacknowledged: list[tuple[int, bytes, int, bool]] = []
        self.sender: Client | None = None
        self.packet_id = 0
        for name in RECEIVERS:
            self._connect(name)
            self.open[name].subscribe("t", qos=QOS[name])

    def _bench(self, name: str) -> MqttBench:
        return self.benches[RECEIVERS.index(name) % 2]

    def _connect(self, name: str) -> None:
        client = self._bench(name).client()
        client.acknowledges = False
        client.connect(name, clean_start=False, properties=dict(PROPERTIES))
        self.open[name] = client

    # -- receivers -----------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(RECEIVERS))
    def lose_receiver(self, name: str) -> None:
        if name in self.open:
            self.open.pop(name).lose()

    @rule(name=st.sampled_from(RECEIVERS))
    def return_receiver(self, name: str) -> None:
        if name not in self.open:
            self._connect(name)
            self._check_repeats(name)

    def _check_repeats(self, name: str) -> None:
        got = self.open[name].messages
        assert len(got) <= 3, "the receive maximum is exceeded"

    @rule(name=st.sampled_from(RECEIVERS), count=st.integers(1, 5))
    def read(self, name: str, count: int) -> None:
        """The receiver handles some of the packets that have arrived."""
        client = self.open.get(name)
        if client is None:
            return
        for _ in range(min(count, len(client.got))):
            self._handle(name, client, client.got.pop(0))

    def _handle(self, name: str, client: Client, packet: object) -> None:
        match packet:
            case packets.Publish(qos=1, packet_id=number, payload=payload, duplicate=duplicate):
                if not (duplicate and payload in self.received[name]):
                    self.received[name].append(payload)
                client.send(packets.PubAck(number))
            case packets.Publish(qos=2, packet_id=number, payload=payload):
                if number not in self.complete[name]:
                    self.complete[name].add(number)
                    self.received[name].append(payload)
                client.send(packets.PubRec(number))
            case packets.PubRel(number):
                self.complete[name].discard(number)
                client.send(packets.PubComp(number))

    # -- the sender ----------------------------------------------------------------------------------------------------

    @rule(qos=st.integers(1, 2))
    def publish(self, qos: int) -> None:
        if self.sender is not None:
            self.sent += 1
            self.packet_id = self.packet_id % 60_000 + 1
            payload = b"%d" % self.sent
            self.unacknowledged.append((self.packet_id, payload, qos, False))
            self.sender.send(packets.Publish("t", payload, qos, False, self.packet_id))

    @rule()
    def lose_sender(self) -> None:
        if self.sender is not None:
            self.sender.lose()
            self.sender = None

    @rule()
    def return_sender(self) -> None:
        if self.sender is None:
            self.sender = self.benches[0].client()
            self.sender.acknowledges = False
            self.sender.connect("s", clean_start=False, properties=dict(PROPERTIES))
            for number, payload, qos, released in self.unacknowledged:
                if released:
                    self.sender.send(packets.PubRel(number))
                else:
                    self.sender.send(packets.Publish("t", payload, qos, False, number, True))

    @rule()
    def read_acknowledgements(self) -> None:
        if self.sender is None:
            return
        got, self.sender.got = self.sender.got, []
        for packet in got:
            match packet:
                case packets.PubAck(number) | packets.PubComp(number):
                    self.unacknowledged = [each for each in self.unacknowledged if each[0] != number]
                case packets.PubRec(number):
                    self.unacknowledged = [
                        (each[0], each[1], each[2], each[3] or each[0] == number) for each in self.unacknowledged
                    ]
                    self.sender.send(packets.PubRel(number))

    @rule()
    def hold_homes_back(self) -> None:
        self.network.holds_back = True

    @rule()
    def answer_homes(self) -> None:
        self.network.answer_all()

    @rule(seconds=st.floats(0.1, 30.0))
    def pass_time(self, seconds: float) -> None:
        for bench in self.benches:
            bench.pass_time(seconds)

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def receivers_get_messages_in_order(self) -> None:
        for name, payloads in getattr(self, "received", {}).items():
            numbers = [int(payload) for payload in payloads]
            if QOS[name] == 2:
                assert len(set(numbers)) == len(numbers), (name, numbers)

    def teardown(self) -> None:
        """Every connection works from now on: every message must arrive."""
        if not hasattr(self, "network"):
            return
        self.network.answer_all()
        for _ in range(6 + self.sent):
            self.return_sender()
            self.read_acknowledgements()
            for name in RECEIVERS:
                if name not in self.open:
                    self._connect(name)
                self.read(name, 1_000)
        assert self.unacknowledged == []
        expected = {b"%d" % number for number in range(1, self.sent + 1)}
        for name in RECEIVERS:
            assert set(self.received[name]) == expected, name
        for bench in self.benches:
            for session in bench.core.state.sessions.values():
                assert not session.inflight
                assert not session.queue
                assert session.queue_bytes == 0


MqttHistories.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestMqttHistories = MqttHistories.TestCase
