"""The outbox: changes are repeated until the coordinator has stored them."""

from __future__ import annotations

from tests.broker.simulated import FIRE, A, SimulatedNetwork, linked_network
from tocsin.broker import events
from tocsin.wire import link


def subscribing() -> SimulatedNetwork:
    """The data cluster has granted "fire" to ann, and the coordinator has not read the change."""
    network = linked_network()
    network.login("ann", "a")
    network.settle()
    network.subscribe("ann", "fire")
    network.place_orders(A)
    return network


def test_unconfirmed_change_is_sent_again_with_the_same_number() -> None:
    network = subscribing()
    coordinator = network.coordinator
    [first] = coordinator.of(link.Changed)
    coordinator.inbox.clear()  # the coordinator died before it stored the change
    network.handle(A, events.LinkLost())
    coordinator.link_up(A)
    [repeated] = coordinator.of(link.Changed)
    assert repeated == first and repeated.added[0].subscription == FIRE
    coordinator.send(A, link.Stored(repeated.number))
    coordinator.inbox.clear()
    coordinator.link_up(A)
    assert not coordinator.of(link.Changed)


def test_subscribe_is_answered_late_when_the_coordinator_does_not_store_it() -> None:
    network = subscribing()
    ann = network.client("ann")
    assert FIRE not in ann.seen
    network.tick(3.0)
    assert FIRE in ann.seen
