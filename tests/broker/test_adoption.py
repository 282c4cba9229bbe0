"""Adoption: subscribers that the coordinator assigns, and logins that wait for it."""

from __future__ import annotations

from tests.broker.simulated import FIRE, A, SimulatedNetwork, linked_network, state_of, subscribed
from tocsin.broker import events
from tocsin.model.ids import SubscriberId, SubscriptionId
from tocsin.wire import link
from tocsin.wire import session as wire
from tocsin.wire.errors import Code


def removals(network: SimulatedNetwork) -> list[list[SubscriptionId]]:
    return [change.removed for change in network.coordinator.of(link.Changed)]


def waiting_for_grant() -> SimulatedNetwork:
    """Broker A has adopted ann with "fire" and admitted her, but the data cluster has not answered."""
    network = linked_network()
    network.coordinator.send(A, link.Adopt([state_of("ann", "fire")]))
    network.login("ann", "a")
    network.tick(6.0)
    return network


def test_subscription_requested_here_survives_an_adopt_without_it() -> None:
    network = subscribed("ann")
    network.coordinator.send(A, link.Adopt([state_of("ann")]))
    network.cluster.execute({"fire": 1})
    network.settle()
    assert network.client("ann").numbers[FIRE] == [0]


def test_subscription_requested_here_is_reported_again_after_an_adopt_without_it() -> None:
    """The coordinator may have applied an older unsubscription, and would lose the subscription with this broker."""
    network = subscribed("ann")
    network.coordinator.link_up()
    network.settle()
    network.coordinator.send(A, link.Adopt([state_of("ann")]))
    [change] = network.coordinator.of(link.Changed)
    assert [frontend.subscription for frontend in change.added] == [FIRE]
    network.coordinator.inbox.clear()
    network.coordinator.send(A, link.Adopt([state_of("ann", "fire")]))
    assert not network.coordinator.inbox


def test_broker_asks_about_subscriber_admitted_without_link_after_each_registration() -> None:
    network = SimulatedNetwork()
    coordinator, question = network.coordinator, link.StateRequest(SubscriberId("ann"))
    network.login("ann", "a")
    coordinator.link_up(A)
    assert coordinator.of(link.StateRequest) == [question]
    coordinator.inbox.clear()
    coordinator.link_up()
    assert coordinator.of(link.StateRequest) == [question], "the first question may have been lost with the link"
    coordinator.send(A, link.Adopt([state_of("ann")]))
    coordinator.inbox.clear()
    coordinator.link_up()
    assert not coordinator.of(link.StateRequest), "the coordinator has answered"


def test_broker_asks_about_offline_subscriber_with_subscriptions_after_registration() -> None:
    """The coordinator assumes that this broker holds all subscriptions of a subscriber that it hosts."""
    network = subscribed("ann")
    network.login("bob", "a")
    for name in ("ann", "bob"):
        network.lose(name)
    network.coordinator.link_up()
    assert network.coordinator.of(link.StateRequest) == [link.StateRequest(SubscriberId("ann"))], (
        "bob left nothing here"
    )


def test_unsubscribe_during_a_pending_adoption_prevents_the_subscription() -> None:
    network = waiting_for_grant()
    refused = network.call("a", "ann", wire.Unsubscribe(7, FIRE))
    assert isinstance(refused, wire.Refused) and refused.code == Code.UNKNOWN_SUBSCRIPTION
    assert removals(network) == [[FIRE]], "the coordinator lists it"
    network.coordinator.send(A, link.Stored(1))
    network.settle()
    network.cluster.execute({"fire": 1})
    network.settle()
    assert not network.client("ann").seen and network.cluster.held[A] == set()
    network.lose("ann")
    assert network.brokers[A].idle


def test_unsubscribe_during_a_pending_adoption_leaves_other_subscribers_alone() -> None:
    network = linked_network()
    network.coordinator.send(A, link.Adopt([state_of("ann", "fire"), state_of("bob", "fire")]))
    network.call("a", "ann", wire.Unsubscribe(7, FIRE))
    network.settle()
    assert network.cluster.held[A] == {FIRE}
    assert [*network.brokers[A].state.subscribers] == ["bob"]
    network.login("bob", "a")
    network.cluster.execute({"fire": 1})
    network.settle()
    assert network.client("bob").numbers[FIRE] == [0]


def test_subscribe_after_unsubscribe_during_a_pending_adoption_is_granted() -> None:
    network = waiting_for_grant()
    network.call("a", "ann", wire.Unsubscribe(7, FIRE))
    network.subscribe("ann", "fire")
    network.settle()
    assert network.cluster.held[A] == {FIRE} and FIRE in network.client("ann").seen


def test_unsubscribe_of_an_unknown_subscription_is_reported_after_registration() -> None:
    network = SimulatedNetwork()
    network.login("ann", "a")
    network.unsubscribe("ann", "fire")
    network.call("a", "ann", wire.Unsubscribe(7, SubscriptionId("x" * 1_000)))
    network.coordinator.link_up()
    assert removals(network) == [[FIRE]], "without the id that is too long"
    network.coordinator.send(A, link.Adopt([state_of("ann", "fire")]))
    network.settle()
    assert not network.cluster.held.get(A)


def test_subscriber_that_leaves_during_its_adoption_is_still_registered() -> None:
    network = waiting_for_grant()
    network.lose("ann")
    network.handle(A, events.LinkLost())
    network.coordinator.inbox.clear()
    network.coordinator.link_up(A)
    hosting = [register.hosting for register in network.coordinator.of(link.Register)]
    assert hosting == [["ann"]], "so that the coordinator can release it"
    network.coordinator.send(A, link.Release(SubscriberId("ann")))
    network.settle()
    assert network.brokers[A].idle
