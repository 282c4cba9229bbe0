"""Random delays and faults: each result arrives once and in order; no subscription is lost or restored."""

from __future__ import annotations

import pytest

from tests.coordinator.invariants import broken_invariants
from tests.sim.network.interleaving import Action, RandomSteps
from tocsin.broker.state import Limits
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.events import PlanProposed, RequestedMove
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.model.subscription import subscription_id
from tocsin.sim.kernel import Kernel
from tocsin.sim.network.network import SimulatedNetwork
from tocsin.sim.network.subscriber import ReceivedResults

CHANNEL = ChannelName("Reports")
KINDS = ("fire", "flood", "quake")
RULES = CoordinatorRules(grace_s=10.0, probation_s=5.0, failover_per_s=1000, drain_per_s=100)
ROW_BYTES = 20


def identity(kind: str) -> SubscriptionId:
    return subscription_id(CHANNEL, (kind,))


def assert_invariants(core: Coordinator) -> None:
    assert not broken_invariants(core.registry)


class Interleaving:
    """Three brokers and three subscribers; every message takes a random time, and `step` does something at random."""

    def __init__(self, seed: int) -> None:
        kernel = Kernel(seed)
        self.rng = kernel.stream("faults")
        limits = Limits(cache_bytes=1_000_000, queue_bytes=int(self.rng.choice((300, 100_000))))
        brokers = ["b0", "b1", "b2"]
        self.network = SimulatedNetwork(kernel, {CHANNEL: None}, lambda _name, _rng: [], brokers, RULES, limits)
        self.steps = RandomSteps(kernel, self.network, 3.0, (0.1, 0.6))
        self.network.cluster.piece = 2
        self.network.coordinator.after_event = assert_invariants
        self._histories: dict[int, tuple[SubscriptionId, ReceivedResults]] = {}
        """Received results, also of ended subscriptions; the report counts only subscriptions that are held."""
        for number in range(3):
            self.network.add_subscriber(f"s{number}", [(CHANNEL, {"kind": kind}) for kind in KINDS[:2]])
        self.run(15.0)
        assert all(subscriber.is_settled for subscriber in self.network.subscribers.values())
        self.network.transport.delay_s = self.steps.draw_delay_s
        self.network.cluster.fail_pull = lambda: bool(self.rng.random() < 0.1)

    def run(self, seconds: float) -> None:
        self.steps.run(seconds)
        for subscriber in self.network.subscribers.values():
            for subscription, received in subscriber.received.items():
                self._histories[id(received)] = (subscription, received)

    def step(self) -> None:
        rng, network = self.rng, self.network
        broker = list(network.brokers.values())[int(rng.integers(3))]
        subscriber = list(network.subscribers.values())[int(rng.integers(3))]
        kind = KINDS[int(rng.integers(3))]
        connections = [
            connection for subscriber in network.subscribers.values() for connection in subscriber.connections.values()
        ]
        connection = connections[int(rng.integers(len(connections)))] if connections else None

        def execute() -> None:
            sizes = {identity(kind): [ROW_BYTES] * int(rng.integers(1, 4)) for kind in KINDS if rng.random() < 0.5}
            self.assert_that_no_held_subscription_has_ended()
            network.cluster.execute(CHANNEL, sizes)

        def crash_broker() -> None:
            network.kill_broker(broker.id)
            network.start_broker(broker.id)

        def move() -> None:
            moves = (RequestedMove(subscriber.id, broker.id),)
            network.coordinator.handle(PlanProposed(0, None, moves, dry_run=False))

        def block() -> None:
            if connection is not None and connection.broker is not None:
                connection.broker.block(connection.session)

        def break_connection() -> None:
            if connection is not None:
                connection.break_off()

        actions: list[Action] = [
            (5, "execute", execute),
            (2, "subscribe", lambda: subscriber.subscribe(CHANNEL, {"kind": kind})),
            (2, "unsubscribe", lambda: subscriber.unsubscribe(identity(kind))),
            (3, "move", move),
            (2, "block session", block),
            (1, "break connection", break_connection),
            (1, "cut link", lambda: network.coordinator.cut_link(broker)),
            (1, "crash broker", crash_broker),
            *self.steps.coordinator_faults(),
            (1, "freeze", lambda: network.transport.freeze(float(rng.choice((6.0, 11.0))))),
            (2, "let everything arrive", lambda: self.run(3.0)),
        ]
        self.steps.take(actions, f"{broker.id} {subscriber.id} {kind}")
        self.run(float(rng.exponential(0.1)))

    def assert_that_no_held_subscription_has_ended(self) -> None:
        """Results for such a subscription would be lost, and nothing else would show it."""
        for name, subscriber in self.network.subscribers.items():
            ended = [key for key in subscriber.received if self.network.cluster.has_ended(key)]
            assert not ended, f"{name} holds {ended}, which the data cluster has ended"

    def settle(self, seconds: float) -> None:
        """No more faults: every message arrives after its usual delay."""
        self.steps.settle()
        self.network.cluster.fail_pull = lambda: False
        self.run(seconds)

    def check(self) -> None:
        """Every result arrived.

        Coordinator and home broker hold exactly the subscriptions of the subscriber, and other brokers none.
        """
        network = self.network
        report = network.report()
        assert (report.lost, report.out_of_order, report.unexpected, report.gaps) == (0, 0, 0, 0), report
        assert report.delivered == report.expected
        for subscription, received in self._histories.values():
            due = network.cluster.subscriptions[subscription].after(received.start.offset)
            assert received.results == due[: len(received.results)], f"{subscription}: results missing or out of order"
            assert (received.gaps, received.out_of_order) == (0, 0), subscription
        assert network.coordinator.core is not None
        registry = network.coordinator.core.registry
        assert not registry.migrations
        for name, subscriber in network.subscribers.items():
            held = subscriber.received.keys()
            assert not subscriber.pending, f"{name} still waits for {subscriber.pending}"
            known = registry.subscribers[name]
            assert known.subscriptions.keys() == held, f"the coordinator's subscriptions of {name}"
            for broker in network.brokers.values():
                hosted = broker.core.state.subscribers.get(name)
                expected = held if broker.id == known.home else set()
                assert (set() if hosted is None else hosted.frontends.keys()) == expected, f"{broker.id} of {name}"
        for broker in network.brokers.values():
            for backend in broker.core.state.backends:
                assert broker.id in network.cluster.subscriptions[backend].brokers, f"{broker.id} at the data cluster"


@pytest.mark.parametrize("seed", range(120))
def test_each_result_arrives_once_and_subscriptions_agree_despite_faults(seed: int) -> None:
    interleaving = Interleaving(seed)
    try:
        for _ in range(120):
            interleaving.step()
        interleaving.settle(60)
        interleaving.network.cluster.execute(CHANNEL, {identity(kind): [ROW_BYTES] for kind in KINDS})
        interleaving.settle(30)
        interleaving.check()
    except AssertionError as error:
        error.add_note("\n".join(interleaving.steps.log[-40:]))
        raise
