"""The real brokers and the real coordinator under virtual time: nothing is lost, whatever happens to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tocsin.coordinator import events
from tocsin.coordinator.arbiter import Decision
from tocsin.coordinator.rules import Rules
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.policies.balance.multistage import BalanceSettings
from tocsin.policies.balance.placement import Placement
from tocsin.sim.balance.brokers import AggregatedBrokers
from tocsin.sim.balance.scenario import Scenario, load
from tocsin.sim.balance.world import draw
from tocsin.sim.kernel import Kernel
from tocsin.sim.network.network import LiveNetwork, Report

FAST, SLOW = ChannelName("Fast"), ChannelName("Slow")
PERIODS_S = {FAST: 2.0, SLOW: 7.0}
OFF = Rules(balancing=False, placement=Placement.ROUND_ROBIN)


def some(_identity: SubscriptionId, rng: np.random.Generator) -> list[int]:
    return [int(size) for size in rng.integers(100, 400, rng.poisson(1.5))]


def city(seed: int, rules: Rules, brokers: list[str], people: int = 24) -> LiveNetwork:
    network = LiveNetwork(Kernel(seed), PERIODS_S, some, brokers, rules)
    rng = network.kernel.stream("wants")
    for number in range(people):
        wants = {(FAST if rng.random() < 0.7 else SLOW, int(rng.integers(0, 12))) for _ in range(4)}
        listed = [(channel, {"k": value}) for channel, value in sorted(wants)]
        network.add(f"p{number}", listed, at_s=float(rng.uniform(1, 5)))
    return network


def perfect(report: Report) -> None:
    assert (report.lost, report.out_of_order, report.unheld, report.gaps) == (0, 0, 0, 0), report
    assert report.delivered == report.expected > 0


def test_everybody_gets_everything_once_and_in_order() -> None:
    network = city(1, OFF, ["a", "b", "c"])
    network.kernel.run(60)
    quiet(network)
    report = network.report()
    perfect(report)
    assert (report.repeats, report.moves, report.reconnects) == (0, 0, 0)


def quiet(network: LiveNetwork) -> None:
    """No more results; what is on its way arrives, who is cut off comes back, stalls are noticed."""
    network.cluster.silent = True
    network.kernel.run(network.kernel.now_s + 90)


def test_balancing_evens_out_three_brokers_while_results_flow() -> None:
    rules = replace(OFF, balancing=True, balance=BalanceSettings(shuffle="none"))
    network = city(2, rules, ["a"], people=40)
    network.kernel.run(60)
    network.start_broker(BrokerId("b"))
    network.start_broker(BrokerId("c"))
    network.kernel.run(70)
    assert cov(network) > 1.3
    network.kernel.run(240)
    assert cov(network) < rules.balance.alpha + 0.1, "rates are moving averages: they drift around the goal"
    quiet(network)
    report = network.report()
    perfect(report)
    assert report.moves >= 20 and report.reconnects == 0, "all of them were handed over"


def cov(network: LiveNetwork) -> float:
    decision = network.ask(events.PlanProposed(0, "drain"))
    assert isinstance(decision, Decision)
    return decision.before.cov


def test_a_drained_broker_ends_up_empty_and_holds_nothing() -> None:
    network = city(3, OFF, ["a", "b", "c"])
    network.kernel.run(30)
    network.ask(events.DrainOrdered(0, BrokerId("b"), on=True))
    network.kernel.run(60)
    assert network.brokers[BrokerId("b")].core.idle
    quiet(network)
    perfect(network.report())


Fault = Callable[[LiveNetwork, np.random.Generator, BrokerId], None]


def crash(network: LiveNetwork, rng: np.random.Generator, broker: BrokerId) -> None:
    if broker in network.cluster.listeners:
        network.kill_broker(broker)
        network.kernel.call_after(float(rng.uniform(0.5, 25)), network.start_broker, broker)


def pause(network: LiveNetwork, rng: np.random.Generator, broker: BrokerId) -> None:
    if not network.brokers[broker].paused:
        network.pause_broker(broker, float(rng.uniform(1, 40)))


def restart_coordinator(network: LiveNetwork, rng: np.random.Generator, _broker: BrokerId) -> None:
    if network.coordinator is not None:
        network.kill_coordinator()
        network.kernel.call_after(float(rng.uniform(0.2, 15)), network.start_coordinator)


def move_some(network: LiveNetwork, rng: np.random.Generator, broker: BrokerId) -> None:
    if network.coordinator is not None:
        chosen = rng.choice(sorted(network.people), 6, replace=False)
        moves = tuple(events.MoveWanted(SubscriberId(str(one)), broker) for one in chosen)
        network.ask(events.PlanProposed(0, moves=moves, dry_run=False))


def drain_a_while(network: LiveNetwork, rng: np.random.Generator, broker: BrokerId) -> None:
    if network.coordinator is not None:
        network.ask(events.DrainOrdered(0, broker, on=True))
        network.kernel.call_after(float(rng.uniform(1, 20)), undrain, network, broker)


def undrain(network: LiveNetwork, broker: BrokerId) -> None:
    if network.coordinator is None:
        network.kernel.call_after(1.0, undrain, network, broker)
    else:
        network.ask(events.DrainOrdered(0, broker, on=False))


FAULTS: list[Fault] = [crash, pause, restart_coordinator, move_some, drain_a_while, move_some]


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_when_processes_die_pause_and_come_back(seed: int) -> None:
    """Faults at random moments, often several at once, with the balancer running: then count."""
    rules = replace(OFF, balancing=True, grace_s=8.0, balance=BalanceSettings(hits=1, rest_s=5.0, shuffle_rest_s=30.0))
    network = city(100 + seed, rules, ["a", "b", "c", "d"])
    rng = network.kernel.stream("faults")
    names = sorted(network.brokers)
    for at_s in np.sort(rng.uniform(8, 160, 16)):
        fault = FAULTS[int(rng.integers(len(FAULTS)))]
        broker = names[int(rng.integers(len(names)))]
        network.kernel.call_at(float(at_s), fault, network, rng, broker)
    network.kernel.run(200)
    quiet(network)
    report = network.report()
    perfect(report)
    assert all(person.is_settled for person in network.people.values())


def test_the_aggregated_model_carries_the_same_bytes_as_the_real_brokers() -> None:
    scenario = small(load("paper-testbed"))
    world = draw(scenario, Kernel(5).stream)
    channels = [ChannelName(f"C{number}") for number in range(len(scenario.channels.periods_s))]
    periods_s = dict(zip(channels, scenario.channels.periods_s, strict=True))
    rules = replace(OFF, placement=Placement.ROUND_ROBIN)
    network = LiveNetwork(Kernel(5), periods_s, some, [str(name) for name in world.brokers], rules)
    per_channel = scenario.channels.subscriptions
    for number, name in enumerate(world.subscribers):
        wants = world.wants[world.start[number] : world.start[number + 1]]
        listed = [(channels[int(k) // per_channel], {"k": int(k) % per_channel}) for k in wants]
        network.add(str(name), listed, at_s=0.5 + 0.01 * number)
    network.kernel.run(3.0)
    assert all(person.is_settled for person in network.people.values()), "before the first execution"
    model = AggregatedBrokers(world)
    at = {broker: number for number, broker in enumerate(world.brokers)}
    homes = [network.coordinator.registry.subscribers[name].home for name in world.subscribers]  # type: ignore[union-attr]
    model.connect(np.arange(len(homes)), np.array([at[home] for home in homes if home is not None], np.int32))
    model.subscribe(np.arange(len(world.wants)))
    numbers = {identity: number for number, identity in enumerate(identities(channels, per_channel))}

    def executed(sizes: dict[SubscriptionId, int]) -> None:
        model.deliver(np.array([numbers[one] for one in sizes]), np.array(list(sizes.values()), float))

    network.cluster.executed.append(executed)
    network.kernel.run(120.0)
    quiet(network)
    loads = [network.brokers[broker].core.state.load for broker in world.brokers]
    assert [load.in_bytes for load in loads] == model.bytes_in.tolist()
    assert [load.out_bytes for load in loads] == model.bytes_out.tolist()


def identities(channels: list[ChannelName], per_channel: int) -> list[SubscriptionId]:
    from tocsin.model.subscription import subscription_id

    return [subscription_id(channel, (value,)) for channel in channels for value in range(per_channel)]


def small(scenario: Scenario) -> Scenario:
    return replace(
        scenario,
        subscribers=replace(scenario.subscribers, count=60),
        channels=replace(scenario.channels, subscriptions=20),
    )
