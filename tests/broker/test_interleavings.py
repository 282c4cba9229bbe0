"""Any interleaving of messages: each holder gets each result once and in order, and no state is left at the end."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.broker.simulated import SimulatedNetwork
from tests.broker.simulated_ends import subscription
from tocsin.model.ids import BrokerId
from tocsin.wire.session import Unsubscribe

NAMES = ("ann", "bob", "eve")
KINDS = ("fire", "flood")
names, kinds, brokers = st.sampled_from(NAMES), st.sampled_from(KINDS), st.sampled_from(("a", "b"))


class Interleavings(RuleBasedStateMachine):
    """Each rule is an event that may happen next; the simulated clients check the results that they receive."""

    @initialize(
        cache_bytes=st.sampled_from((1, 400, 1_000_000)),
        queue_bytes=st.sampled_from((1, 300, 100_000)),
        chunk=st.integers(1, 3),
        linked=st.booleans(),
    )
    def start(self, cache_bytes: int, queue_bytes: int, chunk: int, linked: bool) -> None:
        self.network = SimulatedNetwork(cache_bytes=cache_bytes, queue_bytes=queue_bytes, chunk=chunk)
        self.linked = linked
        if linked:
            self.network.coordinator.link_up()
        for name, broker in zip(NAMES, ("a", "a", "b"), strict=True):
            self.network.login(name, broker)
            self.network.settle()
            for kind in KINDS:
                self.network.subscribe(name, kind)
        self.network.settle()

    def _online(self, name: str) -> bool:
        return self.network.client(name).broker is not None

    @rule(name=names, broker=brokers)
    def log_in(self, name: str, broker: str) -> None:
        client = self.network.client(name)
        if client.seen or client.opening or client.broker:
            # The coordinator assigns subscribers to brokers, so this one logs in at its only host.
            hosts = [host for host, core in self.network.brokers.items() if client.name in core.state.subscribers]
            if client.opening or client.broker or len(hosts) != 1:
                return
            broker = hosts[0]
        self.network.login(name, broker)

    @rule(name=names)
    def lose(self, name: str) -> None:
        self.network.lose(name)

    @rule(name=names, kind=kinds)
    def subscribe(self, name: str, kind: str) -> None:
        if self._online(name):
            self.network.subscribe(name, kind)

    @rule(name=names, kind=kinds)
    def unsubscribe(self, name: str, kind: str) -> None:
        if self._online(name):
            self.network.unsubscribe(name, kind)

    @rule(counts=st.dictionaries(kinds, st.integers(1, 4)))
    def execute(self, counts: dict[str, int]) -> None:
        self.network.cluster.execute(counts)

    @rule(name=names)
    def block(self, name: str) -> None:
        if self._online(name):
            self.network.block(name)

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        if self.network.full_queues:
            self.network.drain(data.draw(st.sampled_from(sorted(self.network.full_queues))))

    @rule(broker=brokers)
    def announce(self, broker: str) -> None:
        self.network.announce(BrokerId(broker))

    @rule(broker=brokers)
    def place_order(self, broker: str) -> None:
        self.network.place_order(BrokerId(broker))

    @rule(data=st.data(), fails=st.integers(0, 5))
    def fetch(self, data: st.DataObject, fails: int) -> None:
        if self.network.fetches:
            place = data.draw(st.sampled_from(sorted(self.network.fetches)))
            if fails:
                self.network.answer_fetch(place)
            else:
                self.network.fail_fetch(place)

    @rule()
    def expire(self) -> None:
        self.network.cluster.expire()

    @rule()
    def replace(self) -> None:
        self.network.cluster.replace()

    @rule()
    def tick(self) -> None:
        self.network.tick()

    @rule()
    def receive(self) -> None:
        self.network.coordinator.receive()

    @precondition(lambda self: self.linked)
    @rule(name=names)
    def migrate(self, name: str) -> None:
        if self._online(name):
            self.network.coordinator.migrate(name)

    @invariant()
    def the_cache_is_bounded(self) -> None:
        for core in self.network.brokers.values() if hasattr(self, "network") else ():
            assert 0 <= core.state.cache.used_bytes <= core.state.cache.limit_bytes

    def teardown(self) -> None:
        if not hasattr(self, "network"):
            return
        network = self.network
        network.settle()
        for _ in range(4):
            network.tick(30.0)
            network.settle()
        for client in network.clients.values():
            if client.broker is None:
                continue
            for identity, cursor in client.seen.items():
                missed = network.cluster.kept(identity, cursor)
                assert not missed, f"{client.name} waits for {missed} of {identity}"
        self._leave()

    def _leave(self) -> None:
        """End all subscriptions and sessions; no broker may keep any state."""
        network = self.network
        for name in list(network.clients):
            for broker in network.brokers:
                for kind in KINDS:
                    network.call(broker, name, Unsubscribe(1, subscription(kind)))
            network.lose(name)
        network.settle()
        network.tick(120.0)
        network.settle()
        for broker, core in network.brokers.items():
            assert core.idle, core.state
            assert not network.cluster.held.get(broker)


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=120, stateful_step_count=60, suppress_health_check=list(HealthCheck))
