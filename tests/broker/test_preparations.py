"""Preparations: the target of a migration before the subscriber arrives."""

from __future__ import annotations

from tests.broker.simulated import FIRE, FLOOD, A, linked_network, state_of, subscribed
from tocsin.broker import events
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriberId
from tocsin.wire import link


def test_preparation_is_undone_at_its_deadline() -> None:
    network = linked_network()
    network.coordinator.send(A, link.Prepare("m1", state_of("ann", "fire"), 30.0))
    network.settle()
    assert network.cluster.held[A] == {FIRE}
    network.tick(29.0)
    assert network.cluster.held[A] == {FIRE}
    network.tick(2.0)
    network.settle()
    assert network.cluster.held[A] == set() and network.brokers[A].idle


def test_subscription_removed_during_a_preparation_is_released() -> None:
    network = linked_network()
    network.coordinator.send(A, link.Prepare("m1", state_of("ann", "fire", "flood"), 30.0))
    network.settle()
    assert network.cluster.held[A] == {FIRE, FLOOD}
    network.coordinator.send(A, link.Prepare("m1", state_of("ann", "fire"), 30.0))
    network.settle()
    assert network.cluster.held[A] == {FIRE}
    network.coordinator.send(A, link.Adopt([state_of("ann")]))
    network.settle()
    assert network.cluster.held[A] == set() and network.brokers[A].idle


def test_repeated_preparation_is_reported_once_and_undone_completely() -> None:
    network = linked_network()
    coordinator = network.coordinator
    coordinator.send(A, link.Prepare("m1", state_of("ann", "fire"), 30.0))
    coordinator.send(A, link.Prepare("m1", state_of("ann", "fire", "flood"), 30.0))
    network.place_orders(A)
    while network.fetches:
        network.answer_fetch(next(iter(network.fetches)))
    assert coordinator.of(link.Prepared) == [link.Prepared("m1")]
    coordinator.send(A, link.Prepare("m1", state_of("ann", "fire", "flood"), 30.0))
    network.tick(31.0)
    network.settle()
    assert network.cluster.held[A] == set() and network.brokers[A].idle


def test_adoption_keeps_prepared_subscriptions_after_the_deadline() -> None:
    network = linked_network()
    network.coordinator.send(A, link.Prepare("m1", state_of("ann", "fire"), 30.0))
    network.settle()
    network.coordinator.send(A, link.Adopt([state_of("ann", "fire")]))  # she is offline: no session keeps it
    network.tick(31.0)
    network.settle()
    assert network.cluster.held[A] == {FIRE}


def test_login_during_a_preparation_gets_the_rest_when_granted() -> None:
    network = linked_network()
    network.coordinator.send(A, link.Prepare("m1", state_of("ann", "fire", "flood"), 30.0))
    network.place_order(A)
    network.place_order(A)
    network.login("ann", "a", migration="m1")
    ann = network.client("ann")
    assert [*ann.seen] == [FIRE]
    network.settle()
    ann.seen[FLOOD] = Cursor(1, 0)
    network.cluster.execute({"fire": 1, "flood": 1})
    network.settle()
    assert ann.numbers == {FIRE: [0], FLOOD: [0]}


def test_preparation_without_a_grant_ends_with_the_link() -> None:
    """The broker would not list the subscriber when it registers, so the coordinator would never release it."""
    network = linked_network()
    network.coordinator.send(A, link.Prepare("m1", state_of("ann", "fire"), 30.0))
    network.handle(A, events.LinkLost())
    network.settle()
    assert network.brokers[A].idle and network.cluster.held[A] == set()


def test_preparation_for_an_open_session_skips_what_it_has_unsubscribed() -> None:
    network = subscribed("ann")
    network.coordinator.link_up()
    network.unsubscribe("ann", "fire")
    network.coordinator.inbox.clear()  # the coordinator does not know of it when it sends:
    network.coordinator.send(A, link.Prepare("m1", state_of("ann", "fire", "flood"), 30.0))
    network.settle()
    assert network.cluster.held[A] == {FLOOD}
    ann = network.client("ann")
    ann.seen[FLOOD] = Cursor(1, 0)
    network.cluster.execute({"fire": 1, "flood": 1})
    network.settle()
    assert ann.numbers == {FLOOD: [0]}


def test_release_before_any_grant_ends_a_preparation() -> None:
    network = linked_network()
    network.coordinator.send(A, link.Prepare("m1", state_of("ann", "fire"), 30.0))
    network.coordinator.send(A, link.Release(SubscriberId("ann")))
    assert network.coordinator.of(link.Released) == [link.Released(SubscriberId("ann"))]
    network.settle()
    assert network.brokers[A].idle and network.cluster.held[A] == set()


def test_refused_preparation_is_reported_with_the_reason() -> None:
    network = linked_network()
    network.coordinator.send(A, link.Prepare("m1", state_of("ann", "fire"), 30.0))
    order = network.orders[A].popleft()
    network.handle(A, events.BackendRefused(order.key, "unknown_channel", "there is no channel Reports"))
    failed = link.PrepareFailed("m1", "unknown_channel", "there is no channel Reports")
    assert network.coordinator.of(link.PrepareFailed) == [failed]
    assert network.brokers[A].idle
