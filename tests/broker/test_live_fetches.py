"""Live fetches: announcements, bursts, failures, lost holds and new epochs."""

from __future__ import annotations

from tests.broker.simulated import FIRE, FLOOD, A, SimulatedNetwork, subscribed
from tests.broker.simulated_ends import subscription
from tocsin.broker import effects, events
from tocsin.wire.errors import Code


def test_position_advances_with_the_channel_without_results() -> None:
    network = subscribed("ann")
    network.cluster.execute({"flood": 1})
    network.settle()
    assert network.brokers[A].state.backends[FIRE].position == network.cluster.head


def test_burst_of_executions_costs_one_more_fetch() -> None:
    network = subscribed("ann")
    network.cluster.execute({"fire": 1})
    network.announce(A)
    [running] = network.fetches
    for _ in range(20):
        network.cluster.execute({"fire": 1})
    network.announce_all(A)
    network.finish_fetch(running)
    assert len(network.fetches) == 1, "all twenty, though the first answer contained them already"
    network.settle()
    assert network.client("ann").numbers[FIRE] == list(range(21))


def test_fetch_that_failed_for_a_released_subscription_is_repeated_without_it() -> None:
    network = subscribed("ann")
    network.login("bob", "a")
    network.subscribe("bob", "flood")
    network.settle()
    network.cluster.execute({"fire": 1, "flood": 1})
    network.announce_all(A)
    [running] = network.fetches
    network.unsubscribe("bob", "flood")
    while network.orders[A]:
        network.place_order(A)
    network.fail_fetch(running, Code.UNKNOWN_SUBSCRIPTION)
    [repeated] = network.fetches.values()
    assert isinstance(repeated, effects.Fetch) and set(repeated.positions) == {FIRE}
    assert not network.orders[A], "the data cluster still knows the other subscription"
    network.settle()
    assert network.client("ann").numbers[FIRE] == [0]


def recreate_channel(network: SimulatedNetwork, *refused: str) -> None:
    """Drop the channel and create it again; it refuses the kinds in `refused`."""
    network.cluster.held[A].clear()
    network.cluster.refuses = set(refused)
    network.cluster.replace()
    network.settle()
    network.tick(30.0)
    network.settle()


def test_subscription_refused_in_a_new_epoch_does_not_block_others() -> None:
    network = subscribed("ann")
    recreate_channel(network, "fire")
    network.login("bob", "a")
    network.settle()
    network.subscribe("bob", "flood")
    network.settle()
    network.cluster.execute({"flood": 2})
    network.settle()
    assert network.client("bob").numbers[FLOOD] == [0, 1]
    network.login("eve", "a")
    network.settle()
    network.subscribe("eve", "fire")
    network.settle()
    assert FIRE not in network.client("eve").seen, "a new subscriber gets the refusal too"
    recreate_channel(network)
    network.cluster.execute({"fire": 1})
    network.settle()
    assert network.client("ann").numbers[FIRE] == [0], "a later epoch accepts the parameters"


def test_hold_lost_by_the_data_cluster_is_renewed_with_a_gap() -> None:
    network = subscribed("ann")
    network.cluster.held[A].clear()
    network.cluster.execute({"fire": 1})
    network.settle()
    ann = network.client("ann")
    assert FIRE not in ann.numbers
    network.handle(A, events.HoldsMissing([FIRE, subscription("unknown")]))
    network.settle()
    assert network.cluster.held[A] == {FIRE} and FIRE in ann.gaps
    network.cluster.execute({"fire": 1})
    network.settle()
    assert ann.numbers[FIRE] == [1]
