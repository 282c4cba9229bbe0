"""A subscriber's session without a network: it delivers each result once and in order, or reports a gap."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.broker_world import CHANNEL, NAMES, World, served_world, subscribe_requested
from tocsin.client import events
from tocsin.client.progress import SubscriptionProgress
from tocsin.client.session import SubscriberSession
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.wire import session as wire

STEPS: list[Callable[[World, int], None]] = [
    World.publish,
    World.publish,
    World.expire,
    World.coordinator_answers,
    World.coordinator_is_down,
    World.connection_opens,
    World.connection_opens,
    World.connection_fails,
    World.request_arrives,
    World.request_arrives,
    World.broker_sends,
    World.broker_sends,
    World.broker_repeats,
    World.broker_sends_progress,
    World.message_arrives,
    World.message_arrives,
    World.message_arrives,
    World.broker_requests_move,
    World.application_handles,
    World.time_passes,
    World.subscriber_reconnects,
    World.subscriber_moves,
    World.results_flow,
    World.results_flow,
    World.results_flow,
]


def exchange_all(world: World) -> None:
    for _ in range(50):
        world.request_arrives(1)
        world.broker_sends(0)
        world.broker_sends(1)
        world.message_arrives(0)
        world.message_arrives(1)


@settings(max_examples=120)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 59)), min_size=20, max_size=100))
def test_each_result_is_delivered_once_in_order_or_reported_as_gap(
    steps: list[tuple[Callable[[World, int], None], int]],
) -> None:
    world = served_world(0, 1, 2)
    began = {held.subscription: cursor for held in world.subscribed.values() if (cursor := Cursor.parse(held.cursor))}
    for step, choice in steps:
        step(world, choice)
    assert world.failure is None
    world.settle()
    world.check_once_and_in_order(began)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 59)), min_size=20, max_size=80))
def test_saved_cursor_is_never_ahead_of_the_application(
    steps: list[tuple[Callable[[World, int], None], int]],
) -> None:
    """A saved cursor ahead of the application would lose results between two runs of a program."""
    world = served_world(0, 1, 2)
    began = {held.subscription: cursor for held in world.subscribed.values() if (cursor := Cursor.parse(held.cursor))}
    for step, choice in steps:
        step(world, choice)
    waiting = {name: [m.cursor for m in world.unhandled if m.subscription == name] for name in NAMES}
    for name, progress in world.session.subscriptions.progress.items():
        if waiting[name]:
            first = Cursor.parse(waiting[name][0])
            assert first is not None and began[name] <= progress.handled < first
        if name in world.acked:
            assert world.acked[name] <= progress.handled


def test_move_opens_second_connection_before_closing_the_first() -> None:
    world = served_world(0)
    [first] = world.connections
    world.broker_requests_move(0)
    world.message_arrives(0)
    assert set(world.connections) == {first} and len(world.opening) == 1
    world.publish(0)
    exchange_all(world)
    assert [message.cursor for message in world.delivered] == [str(world.log[NAMES[0]][0])], "the first still delivers"
    world.connection_opens(0)
    assert len(world.connections) == 2
    world.request_arrives(1)
    second = max(world.connections)
    world.publish(0)
    world.broker_sends(0)
    world.message_arrives(0)
    assert first in world.connections, "the first stays open until the second is logged in"
    while second in world.connections and world.connections[second].outbox:
        world.message_arrives(1 if first in world.connections else 0)
    assert set(world.connections) == {second}
    exchange_all(world)
    assert [message.cursor for message in world.delivered] == [str(cursor) for cursor in world.log[NAMES[0]]]


def test_move_to_unresponsive_broker_keeps_the_old_session() -> None:
    world = served_world(0)
    [first] = world.connections
    world.broker_requests_move(0)
    world.message_arrives(0)
    world.now_s += 6.0
    world.handle(events.TimePassed())
    assert set(world.connections) == {first} and not world.opening and not world.locating
    world.publish(0)
    exchange_all(world)
    assert len(world.delivered) == 1


def test_silent_broker_is_left_and_avoided() -> None:
    world = served_world(0)
    [first] = world.connections
    world.now_s += 20.9
    world.handle(events.TimePassed())
    assert first in world.connections, "silence of up to twice the promised period plus one second is accepted"
    world.now_s += 0.2
    world.handle(events.TimePassed())
    assert not world.connections
    world.now_s = world.session.due_s()
    world.handle(events.TimePassed())
    assert world.locating and world.session._search.avoid == "b0"


def test_broker_is_not_stalled_while_the_application_reads_nothing() -> None:
    world = served_world(0)
    world.session.paused = True
    world.now_s += 3_600.0
    world.handle(events.TimePassed())
    assert world.connections
    world.session.resumed_reading(world.now_s)
    world.now_s += 20.0
    world.handle(events.TimePassed())
    assert world.connections


def test_last_known_broker_is_tried_when_coordinator_is_down() -> None:
    world = served_world(0)
    [first] = world.connections
    del world.connections[first]
    world.handle(events.ConnectionLost(first, "reset"))
    world.now_s = world.session.due_s()
    world.handle(events.TimePassed())
    world.coordinator_is_down(0)
    assert [place.broker for place in world.opening.values()] == ["b0"]
    world.connection_fails(0)
    world.now_s = world.session.due_s()
    world.handle(events.TimePassed())
    assert world.locating, "the broker is down too, so the coordinator gets another request"


def test_back_off_grows_with_failures() -> None:
    world = World(SubscriberSession(lambda: 0.999))
    world.handle(events.Started())
    waits = []
    for _ in range(10):
        world.coordinator_is_down(0)
        waits.append(round(world.session.due_s() - world.now_s, 6))
        world.now_s = world.session.due_s()
        world.handle(events.TimePassed())
    assert waits == sorted(waits) and 0.4 < waits[0] < 0.5 and 29 < waits[-1] < 30


def test_token_refused_by_coordinator_fails_the_session() -> None:
    world = World(SubscriberSession(lambda: 0.5))
    world.handle(events.Started())
    world.handle(events.LocateFailed("unauthenticated", "no", retry=False))
    assert world.failure is not None and world.failure.code == "unauthenticated"


def test_replaced_session_does_not_reconnect() -> None:
    world = served_world(0)
    [first] = world.connections
    world.handle(events.MessageReceived(first, wire.Closing("replaced", "another session began", False)))
    world.handle(events.ConnectionLost(first, "closed"))
    assert world.failure is not None and world.failure.code == "replaced"


def test_session_replaced_by_its_own_late_login_reconnects() -> None:
    """The session abandons its first login, but the broker may still receive it after the second one."""
    world = World(SubscriberSession(lambda: 0.5))
    world.handle(events.Started())
    world.coordinator_answers(0)
    world.connection_opens(0)
    world.sent.clear()  # the login is in flight and slow
    for passed_s in (10.0, 1.0):
        world.now_s += passed_s
        world.handle(events.TimePassed())
    world.coordinator_answers(0)
    world.connection_opens(0)
    world.request_arrives(1)
    world.message_arrives(0)
    [number] = world.connections
    world.handle(
        events.MessageReceived(number, wire.Closing("replaced", "another session of this subscriber has begun", False))
    )
    world.handle(events.ConnectionLost(number, "replaced"))
    assert world.failure is None
    world.settle()
    number = max(world.connections)
    world.now_s += 60.0
    world.handle(
        events.MessageReceived(number, wire.Closing("replaced", "another session of this subscriber has begun", False))
    )
    world.handle(events.ConnectionLost(number, "replaced"))
    assert world.failure is not None, "this time another client replaced it"


def test_token_refused_by_brokers_is_renewed_before_the_session_fails() -> None:
    world = World(SubscriberSession(lambda: 0.5))
    world.handle(events.Started())
    for attempt in range(3):
        assert world.failure is None, attempt
        world.coordinator_answers(attempt)
        world.connection_opens(0)
        [number] = world.connections
        world.handle(events.MessageReceived(number, wire.Refused(1, "unauthenticated", "not a token of ours")))
        world.now_s = min(world.session.due_s(), 1e9)
        world.handle(events.TimePassed())
    assert world.failure is not None and world.failure.code == "unauthenticated"


def test_acknowledgements_are_sent_in_batches() -> None:
    world = served_world(0)
    for _ in range(6):
        world.publish(0)
    world.now_s += 10.0
    exchange_all(world)
    assert len(world.unhandled) == 6
    for _ in range(6):
        world.application_handles(0)
    acks = [message for _, message in world.sent if isinstance(message, wire.Ack)]
    assert len(acks) == 1, "the first acknowledgement is sent at once"
    world.now_s = world.session.due_s()
    world.handle(events.TimePassed())
    acks = [message for _, message in world.sent if isinstance(message, wire.Ack)]
    assert len(acks) == 2, "the others are sent together"
    exchange_all(world)
    assert world.acked[NAMES[0]] == world.log[NAMES[0]][-1]


def test_saved_subscription_is_resumed_from_its_cursor() -> None:
    remembered = SubscriptionProgress.at(NAMES[0], CHANNEL, {"name": NAMES[0]}, Cursor(1, 1))
    world = World(SubscriberSession(lambda: 0.5, [remembered]))
    world.publish(0)
    world.publish(0)
    world.handle(events.Started())
    world.settle()
    world.check_once_and_in_order({NAMES[0]: Cursor(1, 1)})
    assert len(world.delivered) == 2


def test_broker_that_starts_after_the_cursor_leaves_a_gap() -> None:
    world = served_world(0)
    progress = world.session.subscriptions.progress[NAMES[0]]
    held = wire.Held(NAMES[0], CHANNEL, {"name": NAMES[0]}, str(Cursor(1, progress.received.offset + 7)))
    _, effects = world.session.subscriptions.reconcile([held], 1.0)
    assert [effect.message for effect in effects if hasattr(effect, "message")] == [wire.Gap(NAMES[0], held.cursor)]


def test_cursor_beyond_existing_data_is_reported_as_gap() -> None:
    remembered = SubscriptionProgress.at(NAMES[0], CHANNEL, {"name": NAMES[0]}, Cursor(1, 1_000))
    world = World(SubscriberSession(lambda: 0.5, [remembered]))
    world.handle(events.Started())
    world.coordinator_answers(0)
    world.connection_opens(0)
    world.request_arrives(1)
    world.message_arrives(0)
    [number] = world.connections
    world.handle(events.MessageReceived(number, wire.Gap(NAMES[0], "1-5")))
    world.handle(events.MessageReceived(number, wire.Result(NAMES[0], CHANNEL, "1-6", msgspec.Raw(b"{}"))))
    assert [message.cursor for message in world.delivered] == ["1-5", "1-6"]


@pytest.mark.parametrize("gap", ["1-0", "1-50"], ids=["before the start", "after the start"])
def test_restored_data_cluster_leaves_a_gap_and_delivery_continues(gap: str) -> None:
    """The data cluster was restored from a copy or emptied: new results have cursors that were received before."""
    world = served_world(0)
    [number] = world.connections

    def receive(*cursors: str) -> None:
        for cursor in cursors:
            world.handle(events.MessageReceived(number, wire.Result(NAMES[0], CHANNEL, cursor, msgspec.Raw(b"{}"))))

    receive("1-20", "1-900")
    world.handle(events.MessageReceived(number, wire.Gap(NAMES[0], gap)))
    receive("1-60", "1-70")
    assert [message.cursor for message in world.delivered] == ["1-20", "1-900", gap, "1-60", "1-70"]


def test_gap_covered_by_another_connection_is_not_reported() -> None:
    """The new broker resumes from the handled cursor; the old broker has delivered the missing results."""
    world = served_world(0)
    [first] = world.connections
    world.publish(0)
    world.publish(0)
    exchange_all(world)
    cursors = [message.cursor for message in world.delivered]
    world.broker_requests_move(0)
    world.message_arrives(0)
    world.connection_opens(0)
    world.request_arrives(1)
    second = max(world.connections)
    world.message_arrives(1 if len(world.connections) > 1 else 0)
    world.handle(events.MessageReceived(second, wire.Gap(NAMES[0], cursors[0])))
    world.handle(events.MessageReceived(second, wire.Result(NAMES[0], CHANNEL, cursors[1], msgspec.Raw(b"{}"))))
    assert first != second and [message.cursor for message in world.delivered] == cursors


def test_cursor_of_another_epoch_is_not_progress() -> None:
    progress = SubscriptionProgress.at(NAMES[0], CHANNEL, {}, Cursor(1, 10))
    progress.advance_to(Cursor(2, 50))
    assert progress.received == Cursor(1, 10)


def test_progress_does_not_mark_unhandled_results_as_handled() -> None:
    progress = SubscriptionProgress.at(NAMES[0], CHANNEL, {}, Cursor(1, 10))
    progress.receive(Cursor(1, 12))
    progress.advance_to(Cursor(1, 20))
    assert (progress.received, progress.handled) == (Cursor(1, 20), Cursor(1, 10))
    progress.mark_handled(Cursor(1, 12))
    assert progress.handled == Cursor(1, 20)


def test_result_of_unknown_subscription_is_delivered_and_listed() -> None:
    world = served_world(0)
    [number] = world.connections
    world.handle(events.MessageReceived(number, wire.Result(NAMES[1], CHANNEL, "1-9", msgspec.Raw(b"{}"))))
    assert len(world.delivered) == 1
    assert isinstance(world.sent[-1][1], wire.List)


def test_results_in_flight_are_ignored_after_unsubscribing() -> None:
    world = served_world(0)
    [number] = world.connections
    world.handle(events.UnsubscribeRequested(7, NAMES[0]))
    request = world.sent.popleft()[1]
    assert isinstance(request, wire.Unsubscribe)
    world.handle(events.MessageReceived(number, wire.Unsubscribed(request.id, NAMES[0])))
    world.handle(events.MessageReceived(number, wire.Result(NAMES[0], CHANNEL, "1-99", msgspec.Raw(b"{}"))))
    assert not world.delivered and NAMES[0] not in world.session.subscriptions.resume_cursors()


def reconnect(world: World, *listed: wire.Held) -> int:
    """Lose the connection and log in over a new one, whose broker lists these subscriptions. Returns its number."""
    world.handle(events.ConnectionLost(max(world.connections), "reset"))
    world.time_passes(2)
    world.coordinator_answers(0)
    world.connection_opens(0)
    world.sent.clear()
    number = max(world.connections)
    logged_in = wire.LoggedIn(1, SubscriberId("u"), BrokerId("b"), "x", list(listed), 10.0)
    world.handle(events.MessageReceived(number, logged_in))
    return number


def held(cursor: str, number: int = 0) -> wire.Held:
    return wire.Held(NAMES[number], CHANNEL, {"name": NAMES[number]}, cursor)


def unsubscribed_world() -> World:
    """A subscriber whose subscription was unsubscribed at cursor 1-20."""
    world = served_world(0)
    [number] = world.connections
    world.handle(events.MessageReceived(number, wire.Result(NAMES[0], CHANNEL, "1-20", msgspec.Raw(b"{}"))))
    world.handle(events.UnsubscribeRequested(7, NAMES[0]))
    world.handle(events.MessageReceived(number, wire.Unsubscribed(world.sent.popleft()[1].id, NAMES[0])))
    assert world.unsubscribed == [7]
    world.delivered.clear()
    return world


def unsubscribe_requests(world: World) -> list[wire.FromSubscriber]:
    return [message for _, message in world.sent if isinstance(message, wire.Unsubscribe)]


def test_pending_unsubscription_is_sent_to_broker_that_does_not_list_it() -> None:
    """An adoption of the subscription may be pending at the broker."""
    world = served_world(0)
    world.handle(events.UnsubscribeRequested(7, NAMES[0]))
    number = reconnect(world)
    assert not world.unsubscribed
    [unsubscribe] = unsubscribe_requests(world)
    world.handle(
        events.MessageReceived(
            number, wire.Refused(unsubscribe.id, "unknown_subscription", "you hold no such subscription")
        )
    )
    assert world.unsubscribed == [7] and not world.session.subscriptions.progress


def test_unsubscription_is_repeated_at_broker_that_still_lists_it() -> None:
    world = unsubscribed_world()
    number = reconnect(world, held("1-20"))
    assert len(unsubscribe_requests(world)) == 1
    world.handle(events.MessageReceived(number, wire.Result(NAMES[0], CHANNEL, "1-30", msgspec.Raw(b"{}"))))
    world.handle(events.MessageReceived(number, wire.Unsubscribed(unsubscribe_requests(world)[0].id, NAMES[0])))
    assert not world.delivered and not world.session.subscriptions.progress and world.unsubscribed == [7]


def test_unsubscription_is_repeated_at_broker_that_adopts_it_later() -> None:
    """The coordinator did not get the unsubscription; the broker's catch-up ends with `recovered`."""
    world = unsubscribed_world()
    [number] = world.connections
    world.handle(events.MessageReceived(number, wire.Recovered(NAMES[0], "1-30", True)))
    assert len(unsubscribe_requests(world)) == 1 and not world.delivered


def test_newer_subscription_of_another_session_is_kept() -> None:
    world = unsubscribed_world()
    number = reconnect(world, held("1-25"))
    world.handle(events.MessageReceived(number, wire.Result(NAMES[0], CHANNEL, "1-30", msgspec.Raw(b"{}"))))
    assert not unsubscribe_requests(world) and [message.cursor for message in world.delivered] == ["1-30"]
    world = unsubscribed_world()
    world.now_s += 700.0
    reconnect(world, held("1-20"))
    assert not unsubscribe_requests(world), "long after the unsubscription, it is a new subscription"


def test_unsubscription_is_not_repeated_after_a_new_subscribe_request() -> None:
    world = unsubscribed_world()
    world.handle(subscribe_requested(0))
    number = reconnect(world, held("1-20"), held("1-20", 1))
    assert not unsubscribe_requests(world)
    [subscribe] = [message for _, message in world.sent if isinstance(message, wire.Subscribe)]
    world.handle(events.MessageReceived(number, wire.Subscribed(subscribe.id, held("1-20"), True)))
    world.now_s += 5.0
    world.handle(events.TimePassed())
    assert not unsubscribe_requests(world)
    world.handle(events.MessageReceived(number, wire.Result(NAMES[0], CHANNEL, "1-30", msgspec.Raw(b"{}"))))
    assert [message.cursor for message in world.delivered] == ["1-30"]


def test_unsubscription_is_repeated_after_request_for_other_subscription() -> None:
    world = unsubscribed_world()
    world.handle(subscribe_requested(1))
    number = reconnect(world, held("1-20"))
    [subscribe] = [message for _, message in world.sent if isinstance(message, wire.Subscribe)]
    world.handle(events.MessageReceived(number, wire.Subscribed(subscribe.id, held("1-20", 1), True)))
    assert not unsubscribe_requests(world)
    world.now_s += 5.0
    world.handle(events.TimePassed())
    assert len(unsubscribe_requests(world)) == 1


def test_unsubscription_during_resumption_is_repeated_after_its_answer() -> None:
    world = served_world(0)
    number = reconnect(world)
    [subscribe] = [message for _, message in world.sent if isinstance(message, wire.Subscribe)]
    world.handle(events.UnsubscribeRequested(7, NAMES[0]))
    [unsubscribe] = unsubscribe_requests(world)
    world.handle(
        events.MessageReceived(
            number, wire.Refused(unsubscribe.id, "unknown_subscription", "you hold no such subscription")
        )
    )
    assert world.unsubscribed == [7]
    world.handle(events.MessageReceived(number, wire.Subscribed(subscribe.id, held("1-1"), True)))
    assert len(unsubscribe_requests(world)) == 2 and not world.session.subscriptions.progress


def test_stopped_session_acknowledges_and_logs_out() -> None:
    world = served_world(0)
    world.publish(0)
    exchange_all(world)
    world.application_handles(0)
    world.handle(events.Stopped())
    assert [type(message) for _, message in world.sent][-1] is wire.Logout
    exchange_all(world)
    assert world.finished and not world.connections
    assert world.acked[NAMES[0]] == world.log[NAMES[0]][-1]


def test_stopped_session_does_not_wait_for_unresponsive_broker() -> None:
    world = served_world(0)
    world.handle(events.Stopped())
    world.now_s = world.session.due_s()
    world.handle(events.TimePassed())
    assert world.finished
