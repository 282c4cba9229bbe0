"""The simulated network: no result is lost when processes crash and pause, or when subscribers move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tocsin.coordinator import events
from tocsin.coordinator.arbiter import Decision
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import BrokerId, ChannelName, DatasetName, SubscriberId, SubscriptionId
from tocsin.model.subscription import subscription_id
from tocsin.policies.balance.settings import BalanceSettings, PlacementPolicy
from tocsin.sim.balance.brokers import AggregatedBrokers
from tocsin.sim.balance.scenario import Scenario, load
from tocsin.sim.balance.world import draw
from tocsin.sim.kernel import Kernel
from tocsin.sim.network.network import DeliveryReport, SimulatedNetwork

FAST, SLOW = ChannelName("Fast"), ChannelName("Slow")
PERIODS_S = {FAST: 2.0, SLOW: 7.0}
OFF = CoordinatorRules(balancing=False, placement=PlacementPolicy.ROUND_ROBIN)


def draw_sizes(_identity: SubscriptionId, rng: np.random.Generator) -> list[int]:
    return [int(size) for size in rng.integers(100, 400, rng.poisson(1.5))]


def build_city(seed: int, rules: CoordinatorRules, brokers: list[str], subscribers: int = 24) -> SimulatedNetwork:
    network = SimulatedNetwork(Kernel(seed), PERIODS_S, draw_sizes, brokers, rules)
    rng = network.kernel.stream("subscriptions")
    for number in range(subscribers):
        chosen = {(FAST if rng.random() < 0.7 else SLOW, int(rng.integers(0, 12))) for _ in range(4)}
        subscriptions = [(channel, {"k": value}) for channel, value in sorted(chosen)]
        network.add_subscriber(f"p{number}", subscriptions, at_s=float(rng.uniform(1, 5)))
    return network


def assert_perfect(report: DeliveryReport) -> None:
    assert (report.lost, report.out_of_order, report.unexpected, report.unheld, report.gaps) == (0, 0, 0, 0, 0), report
    assert report.delivered == report.expected > 0


def test_every_subscriber_gets_each_result_once_in_order() -> None:
    network = build_city(1, OFF, ["a", "b", "c"])
    network.kernel.run(60)
    settle(network)
    report = network.report()
    assert_perfect(report)
    assert (report.repeats, report.moves, report.reconnects) == (0, 0, 0)


def test_latest_update_of_every_subscriber_is_stored_through_crash_and_moves() -> None:
    network = build_city(3, OFF, ["a", "b", "c"])
    places = DatasetName("Places")
    for second in range(20, 60):
        for subscriber in network.subscribers.values():
            network.kernel.call_at(float(second), subscriber.update, places, {"n": second})
    network.kernel.call_at(30.0, network.kill_broker, BrokerId("b"))
    network.kernel.call_at(40.0, network.start_broker, BrokerId("b"))
    network.kernel.call_at(50.0, network.pause_broker, BrokerId("c"), 12.0)
    network.kernel.run(60)
    settle(network)
    assert all(subscriber.unstored == 0 for subscriber in network.subscribers.values()), "every update was answered"
    assert network.cluster.own_records == {(places, name): b'{"n":59}' for name in network.subscribers}
    assert_perfect(network.report())


def settle(network: SimulatedNetwork) -> None:
    """Produce no more results and let subscribers reconnect and catch up."""
    network.cluster.silent = True
    network.kernel.run(network.kernel.now_s + 90)


def test_balancing_evens_out_three_brokers_while_results_flow() -> None:
    rules = replace(OFF, balancing=True, balance=BalanceSettings(shuffle="none"))
    network = build_city(2, rules, ["a"], subscribers=40)
    network.kernel.run(60)
    network.start_broker(BrokerId("b"))
    network.start_broker(BrokerId("c"))
    network.kernel.run(70)
    assert cov(network) > 1.3
    network.kernel.run(240)
    assert cov(network) < rules.balance.alpha + 0.1, "rates are moving averages, so the cov drifts around the goal"
    settle(network)
    report = network.report()
    assert_perfect(report)
    assert report.moves >= 20 and report.reconnects == 0, "every subscriber was handed over"


def cov(network: SimulatedNetwork) -> float:
    decision = network.coordinator.handle(events.PlanProposed(0, "drain"))
    assert isinstance(decision, Decision)
    return decision.before.cov


def test_drained_broker_becomes_idle() -> None:
    network = build_city(3, OFF, ["a", "b", "c"])
    network.kernel.run(30)
    network.coordinator.handle(events.DrainOrdered(0, BrokerId("b"), on=True))
    network.kernel.run(60)
    assert network.brokers[BrokerId("b")].core.idle
    settle(network)
    assert_perfect(network.report())


Fault = Callable[[SimulatedNetwork, np.random.Generator, BrokerId], None]


def crash(network: SimulatedNetwork, rng: np.random.Generator, broker: BrokerId) -> None:
    if network.brokers[broker].running:
        network.kill_broker(broker)
        network.kernel.call_after(float(rng.uniform(0.5, 25)), network.start_broker, broker)


def pause(network: SimulatedNetwork, rng: np.random.Generator, broker: BrokerId) -> None:
    if not network.brokers[broker].process.paused:
        network.pause_broker(broker, float(rng.uniform(1, 40)))


def restart_coordinator(network: SimulatedNetwork, rng: np.random.Generator, _broker: BrokerId) -> None:
    if network.coordinator.core is not None:
        network.coordinator.kill()
        network.kernel.call_after(float(rng.uniform(0.2, 15)), network.coordinator.start)


def move_subscribers(network: SimulatedNetwork, rng: np.random.Generator, broker: BrokerId) -> None:
    if network.coordinator.core is not None:
        chosen = rng.choice(sorted(network.subscribers), 6, replace=False)
        moves = tuple(events.RequestedMove(SubscriberId(str(name)), broker) for name in chosen)
        network.coordinator.handle(events.PlanProposed(0, moves=moves, dry_run=False))


def drain_temporarily(network: SimulatedNetwork, rng: np.random.Generator, broker: BrokerId) -> None:
    if network.coordinator.core is not None:
        network.coordinator.handle(events.DrainOrdered(0, broker, on=True))
        network.kernel.call_after(float(rng.uniform(1, 20)), end_drain, network, broker)


def end_drain(network: SimulatedNetwork, broker: BrokerId) -> None:
    if network.coordinator.core is None:
        network.kernel.call_after(1.0, end_drain, network, broker)
    else:
        network.coordinator.handle(events.DrainOrdered(0, broker, on=False))


FAULTS: list[Fault] = [crash, pause, restart_coordinator, move_subscribers, drain_temporarily, move_subscribers]


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_when_processes_crash_pause_and_restart(seed: int) -> None:
    """Faults happen at random times, often several at once, while the balancer runs."""
    rules = replace(OFF, balancing=True, grace_s=8.0, balance=BalanceSettings(hits=1, rest_s=5.0, shuffle_rest_s=30.0))
    network = build_city(100 + seed, rules, ["a", "b", "c", "d"])
    rng = network.kernel.stream("faults")
    names = sorted(network.brokers)
    for at_s in np.sort(rng.uniform(8, 160, 16)):
        fault = FAULTS[int(rng.integers(len(FAULTS)))]
        broker = names[int(rng.integers(len(names)))]
        network.kernel.call_at(float(at_s), fault, network, rng, broker)
    network.kernel.run(200)
    settle(network)
    report = network.report()
    assert_perfect(report)
    assert all(subscriber.is_settled for subscriber in network.subscribers.values())


def test_aggregated_model_carries_the_same_bytes_as_real_brokers() -> None:
    scenario = shrink(load("paper-testbed"))
    world = draw(scenario, Kernel(5).stream)
    channels = [ChannelName(f"C{number}") for number in range(len(scenario.channels.periods_s))]
    periods_s = dict(zip(channels, scenario.channels.periods_s, strict=True))
    rules = replace(OFF, placement=PlacementPolicy.ROUND_ROBIN)
    network = SimulatedNetwork(Kernel(5), periods_s, draw_sizes, [str(name) for name in world.brokers], rules)
    per_channel = scenario.channels.subscriptions
    for number, name in enumerate(world.subscribers):
        numbers = world.wants[world.start[number] : world.start[number + 1]]
        subscriptions = [(channels[int(k) // per_channel], {"k": int(k) % per_channel}) for k in numbers]
        network.add_subscriber(str(name), subscriptions, at_s=0.5 + 0.01 * number)
    network.kernel.run(3.0)
    assert all(subscriber.is_settled for subscriber in network.subscribers.values()), "before the first execution"
    model = AggregatedBrokers(world)
    broker_index = {broker: index for index, broker in enumerate(world.brokers)}
    homes = [network.coordinator.core.registry.subscribers[name].home for name in world.subscribers]  # type: ignore[union-attr]
    model.connect(np.arange(len(homes)), np.array([broker_index[home] for home in homes if home is not None], np.int32))
    model.subscribe(np.arange(len(world.wants)))
    index_of = {identity: index for index, identity in enumerate(identities(channels, per_channel))}

    def deliver(sizes: dict[SubscriptionId, int]) -> None:
        model.deliver(np.array([index_of[identity] for identity in sizes]), np.array(list(sizes.values()), float))

    network.cluster.on_execution = deliver
    network.kernel.run(120.0)
    settle(network)
    loads = [network.brokers[broker].core.state.load for broker in world.brokers]
    assert [load.in_bytes for load in loads] == model.bytes_in.tolist()
    assert [load.out_bytes for load in loads] == model.bytes_out.tolist()


def identities(channels: list[ChannelName], per_channel: int) -> list[SubscriptionId]:
    return [subscription_id(channel, (value,)) for channel in channels for value in range(per_channel)]


def shrink(scenario: Scenario) -> Scenario:
    return replace(
        scenario,
        subscribers=replace(scenario.subscribers, count=60),
        channels=replace(scenario.channels, subscriptions=20),
    )
