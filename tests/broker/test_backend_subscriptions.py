"""Backend subscriptions: requested once, held while a frontend exists, released with the last."""

from __future__ import annotations

from tests.broker.simulated import FIRE, A, SimulatedNetwork, subscribed
from tests.broker.simulated_ends import CHANNEL
from tocsin.broker import effects, events
from tocsin.broker.effects import SendToSessions
from tocsin.broker.hosted import Requester
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriberId
from tocsin.wire import session as wire
from tocsin.wire.errors import Code


def test_backend_subscription_is_held_until_the_last_frontend_leaves() -> None:
    network = subscribed("ann", "bob")
    assert network.cluster.held[A] == {FIRE}
    network.unsubscribe("ann", "fire")
    network.settle()
    assert network.cluster.held[A] == {FIRE}
    network.unsubscribe("bob", "fire")
    network.settle()
    assert network.cluster.held[A] == set()


def test_offline_subscriber_keeps_its_subscriptions_and_later_gets_results() -> None:
    network = subscribed("ann")
    network.lose("ann")
    network.cluster.execute({"fire": 3})
    network.settle()
    assert network.cluster.held[A] == {FIRE}
    network.login("ann", "a")
    network.settle()
    assert network.client("ann").numbers[FIRE] == [0, 1, 2]


def test_subscription_released_and_requested_again_is_held() -> None:
    network = subscribed("ann")
    network.unsubscribe("ann", "fire")
    network.subscribe("ann", "fire")
    network.settle()
    assert network.cluster.held[A] == {FIRE}
    network.cluster.execute({"fire": 1})
    network.settle()
    assert network.client("ann").numbers[FIRE] == [0]


def test_subscribe_is_refused_when_the_data_cluster_does_not_answer() -> None:
    network = SimulatedNetwork()
    network.login("ann", "a")
    [(_, session)] = network.owners
    request = wire.Subscribe(9, CHANNEL, {"kind": "fire"})
    core = network.brokers[A]
    received = events.RequestReceived(Requester(session=session), SubscriberId("ann"), request)
    [order] = core.handle(received, network.now_s)
    assert isinstance(order, effects.RequestBackend)
    late = core.handle(events.Ticked(), network.now_s + 11.0)
    messages = [effect.message for effect in late if isinstance(effect, effects.SendToSessions)]
    [refused] = [message for message in messages if isinstance(message, wire.Refused)]
    assert (refused.id, refused.code) == (9, "not_ready")
    granted = events.BackendGranted(order.key, CHANNEL, FIRE, Cursor(1, 0))
    released = core.handle(granted, network.now_s + 12.0)
    assert effects.ReleaseBackend(CHANNEL, FIRE) in released, "the grant came too late"


def test_session_is_notified_when_the_data_cluster_has_ended_its_subscription() -> None:
    network = subscribed("ann")
    core = network.brokers[A]
    lost = core.handle(events.HoldsMissing([FIRE]), network.now_s)
    [order] = [effect for effect in lost if isinstance(effect, effects.RequestBackend)]
    refused = events.BackendRefused(order.key, Code.BAD_PARAMETER, "Unclosed group near index 1")
    sent = [effect.message for effect in core.handle(refused, network.now_s) if isinstance(effect, SendToSessions)]
    assert [(message.subscription, message.ended) for message in sent if isinstance(message, wire.Gap)] == [
        (FIRE, "Unclosed group near index 1")
    ]


def test_results_announced_before_the_grant_arrives_are_delivered() -> None:
    """The data cluster grants, executes and announces; the announcement overtakes the grant."""
    network = SimulatedNetwork()
    network.login("ann", "a")
    network.subscribe("ann", "fire")
    network.place_order(A)
    network.cluster.execute({"fire": 2})
    network.announce_all(A)
    network.place_order(A)  # the broker learns the id now
    network.cluster.execute({"flood": 1})  # and the channel's position advances
    network.settle()
    assert network.client("ann").numbers[FIRE] == [0, 1]
