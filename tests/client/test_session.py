"""A subscriber's session, without a network: whatever happens, each result is seen once and in order, or a gap is."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.broker_world import CHANNEL, NAMES, World, wanted
from tocsin.client.events import (
    ConnectionLost,
    LocateFailed,
    MessageReceived,
    Started,
    Stopped,
    Ticked,
    UnsubscribeRequested,
)
from tocsin.client.progress import SubscriptionProgress
from tocsin.client.session import SubscriberSession
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.wire import session as wire

HAPPENINGS: list[Callable[[World, int], None]] = [
    World.publish, World.publish, World.expire, World.coordinator_answers, World.coordinator_is_away,
    World.connection_opens, World.connection_opens, World.connection_fails, World.request_arrives,
    World.request_arrives, World.broker_sends, World.broker_sends, World.broker_repeats, World.broker_tells_progress,
    World.message_arrives, World.message_arrives, World.message_arrives, World.broker_invites_elsewhere,
    World.application_takes, World.time_passes, World.subscriber_comes_back, World.subscriber_moves,
    World.results_flow, World.results_flow, World.results_flow,
]  # fmt: skip


def served_world(*tickets: int) -> World:
    """A subscriber that is logged in and holds a subscription per ticket."""
    world = World(SubscriberSession(lambda: 0.5))
    world.happen(Started())
    for ticket in tickets:
        world.happen(wanted(ticket))
    world.coordinator_answers(0)
    world.connection_opens(0)
    for _ in range(3 + len(tickets)):
        world.request_arrives(1)
        world.message_arrives(0)
    assert sorted(world.granted) == sorted(tickets)
    return world


def drain(world: World) -> None:
    for _ in range(50):
        world.request_arrives(1)
        world.broker_sends(0)
        world.broker_sends(1)
        world.message_arrives(0)
        world.message_arrives(1)


@settings(max_examples=120)
@given(st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 59)), min_size=20, max_size=100))
def test_each_result_is_seen_once_and_in_order_or_a_gap_is(
    story: list[tuple[Callable[[World, int], None], int]],
) -> None:
    world = served_world(0, 1, 2)
    began = {held.subscription: cursor for held in world.granted.values() if (cursor := Cursor.parse(held.cursor))}
    for happening, choice in story:
        happening(world, choice)
    assert world.gave_up is None
    world.calm_down()
    world.check_once_and_in_order(began)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 59)), min_size=20, max_size=80))
def test_the_next_run_of_a_program_begins_where_the_application_was(
    story: list[tuple[Callable[[World, int], None], int]],
) -> None:
    """What is remembered is never ahead of what the application took: nothing is lost between two runs."""
    world = served_world(0, 1, 2)
    began = {held.subscription: cursor for held in world.granted.values() if (cursor := Cursor.parse(held.cursor))}
    for happening, choice in story:
        happening(world, choice)
    waiting = {name: [m.cursor for m in world.untaken if m.subscription == name] for name in NAMES}
    for name, standing in world.session.subscriptions.progress.items():
        if waiting[name]:
            first = Cursor.parse(waiting[name][0])
            assert first is not None and began[name] <= standing.handled < first
        if name in world.acked:
            assert world.acked[name] <= standing.handled


def test_a_move_opens_the_second_connection_before_the_first_is_closed() -> None:
    world = served_world(0)
    [first] = world.connections
    world.broker_invites_elsewhere(0)
    world.message_arrives(0)
    assert set(world.connections) == {first} and len(world.opening) == 1
    world.publish(0)
    drain(world)
    assert [message.cursor for message in world.delivered] == [str(world.log[NAMES[0]][0])], "the first delivers on"
    world.connection_opens(0)
    assert len(world.connections) == 2
    world.request_arrives(1)
    second = max(world.connections)
    world.publish(0)
    world.broker_sends(0)
    world.message_arrives(0)
    assert first in world.connections, "the first goes on until the second has let the subscriber in"
    while second in world.connections and world.connections[second].outbox:
        world.message_arrives(1 if first in world.connections else 0)
    assert set(world.connections) == {second}
    drain(world)
    assert [message.cursor for message in world.delivered] == [str(cursor) for cursor in world.log[NAMES[0]]]


def test_a_move_to_a_broker_that_does_not_answer_disturbs_nothing() -> None:
    world = served_world(0)
    [first] = world.connections
    world.broker_invites_elsewhere(0)
    world.message_arrives(0)
    world.now_s += 6.0
    world.happen(Ticked())
    assert set(world.connections) == {first} and not world.opening and not world.locating
    world.publish(0)
    drain(world)
    assert len(world.delivered) == 1


def test_a_broker_that_falls_silent_is_left_and_not_asked_for_again_at_once() -> None:
    world = served_world(0)
    [first] = world.connections
    world.now_s += 20.9
    world.happen(Ticked())
    assert first in world.connections, "within twice what was promised, and a second"
    world.now_s += 0.2
    world.happen(Ticked())
    assert not world.connections
    world.now_s = world.session.due_s()
    world.happen(Ticked())
    assert world.locating and world.session._search.avoid == "b0"


def test_nothing_is_called_silent_while_the_application_reads_nothing() -> None:
    world = served_world(0)
    world.session.paused = True
    world.now_s += 3_600.0
    world.happen(Ticked())
    assert world.connections
    world.session.resumed_reading(world.now_s)
    world.now_s += 20.0
    world.happen(Ticked())
    assert world.connections


def test_the_last_known_broker_is_tried_when_the_coordinator_is_away() -> None:
    world = served_world(0)
    [first] = world.connections
    del world.connections[first]
    world.happen(ConnectionLost(first, "reset"))
    world.now_s = world.session.due_s()
    world.happen(Ticked())
    world.coordinator_is_away(0)
    assert [place.broker for place in world.opening.values()] == ["b0"]
    world.connection_fails(0)
    world.now_s = world.session.due_s()
    world.happen(Ticked())
    assert world.locating, "if it is not there either, the coordinator is asked again"


def test_waits_grow_with_failures_and_are_spread() -> None:
    world = World(SubscriberSession(lambda: 0.999))
    world.happen(Started())
    waits = []
    for _ in range(10):
        world.coordinator_is_away(0)
        waits.append(round(world.session.due_s() - world.now_s, 6))
        world.now_s = world.session.due_s()
        world.happen(Ticked())
    assert waits == sorted(waits) and 0.4 < waits[0] < 0.5 and 29 < waits[-1] < 30


def test_a_token_the_coordinator_does_not_take_ends_it() -> None:
    world = World(SubscriberSession(lambda: 0.5))
    world.happen(Started())
    world.happen(LocateFailed("unauthenticated", "no", retry=False))
    assert world.gave_up is not None and world.gave_up.code == "unauthenticated"


def test_a_session_that_was_replaced_does_not_fight_the_other() -> None:
    world = served_world(0)
    [first] = world.connections
    world.happen(MessageReceived(first, wire.Closing("replaced", "another session began", False)))
    world.happen(ConnectionLost(first, "closed"))
    assert world.gave_up is not None and world.gave_up.code == "replaced"


def test_a_session_that_our_own_late_login_has_replaced_is_begun_again() -> None:
    """The first attempt was given up, not taken back: what was sent may arrive after the second."""
    world = World(SubscriberSession(lambda: 0.5))
    world.happen(Started())
    world.coordinator_answers(0)
    world.connection_opens(0)
    world.sent.clear()  # the login is on its way, and slow
    for passed_s in (10.0, 1.0):
        world.now_s += passed_s
        world.happen(Ticked())
    world.coordinator_answers(0)
    world.connection_opens(0)
    world.request_arrives(1)
    world.message_arrives(0)
    [number] = world.connections
    world.happen(
        MessageReceived(number, wire.Closing("replaced", "another session of this subscriber has begun", False))
    )
    world.happen(ConnectionLost(number, "replaced"))
    assert world.gave_up is None
    world.calm_down()
    number = max(world.connections)
    world.now_s += 60.0
    world.happen(
        MessageReceived(number, wire.Closing("replaced", "another session of this subscriber has begun", False))
    )
    world.happen(ConnectionLost(number, "replaced"))
    assert world.gave_up is not None, "this was somebody else"


def test_a_token_brokers_refuse_is_renewed_before_giving_up() -> None:
    world = World(SubscriberSession(lambda: 0.5))
    world.happen(Started())
    for attempt in range(3):
        assert world.gave_up is None, attempt
        world.coordinator_answers(attempt)
        world.connection_opens(0)
        [number] = world.connections
        world.happen(MessageReceived(number, wire.Refused(1, "unauthenticated", "not a token of ours")))
        world.now_s = min(world.session.due_s(), 1e9)
        world.happen(Ticked())
    assert world.gave_up is not None and world.gave_up.code == "unauthenticated"


def test_acknowledgements_are_collected() -> None:
    world = served_world(0)
    for _ in range(6):
        world.publish(0)
    world.now_s += 10.0
    drain(world)
    assert len(world.untaken) == 6
    for _ in range(6):
        world.application_takes(0)
    acks = [message for _, message in world.sent if isinstance(message, wire.Ack)]
    assert len(acks) == 1, "the first at once"
    world.now_s = world.session.due_s()
    world.happen(Ticked())
    acks = [message for _, message in world.sent if isinstance(message, wire.Ack)]
    assert len(acks) == 2, "the others together"
    drain(world)
    assert world.acked[NAMES[0]] == world.log[NAMES[0]][-1]


def test_a_remembered_subscription_is_resumed_from_the_file() -> None:
    remembered = SubscriptionProgress.at(NAMES[0], CHANNEL, {"name": NAMES[0]}, Cursor(1, 1))
    world = World(SubscriberSession(lambda: 0.5, [remembered]))
    world.publish(0)
    world.publish(0)
    world.happen(Started())
    world.calm_down()
    world.check_once_and_in_order({NAMES[0]: Cursor(1, 1)})
    assert len(world.delivered) == 2


def test_a_broker_that_begins_later_than_asked_leaves_a_gap() -> None:
    world = served_world(0)
    standing = world.session.subscriptions.progress[NAMES[0]]
    held = wire.Held(NAMES[0], CHANNEL, {"name": NAMES[0]}, str(Cursor(1, standing.received.offset + 7)))
    _, effects = world.session.subscriptions.reconcile([held], 1.0)
    assert [effect.message for effect in effects if hasattr(effect, "message")] == [wire.Gap(NAMES[0], held.cursor)]


def test_a_cursor_into_data_that_is_no_more_is_a_gap_and_not_an_endless_silence() -> None:
    remembered = SubscriptionProgress.at(NAMES[0], CHANNEL, {"name": NAMES[0]}, Cursor(1, 1_000))
    world = World(SubscriberSession(lambda: 0.5, [remembered]))
    world.happen(Started())
    world.coordinator_answers(0)
    world.connection_opens(0)
    world.request_arrives(1)
    world.message_arrives(0)
    [number] = world.connections
    world.happen(MessageReceived(number, wire.Gap(NAMES[0], "1-5")))
    world.happen(MessageReceived(number, wire.Result(NAMES[0], CHANNEL, "1-6", msgspec.Raw(b"{}"))))
    assert [message.cursor for message in world.delivered] == ["1-5", "1-6"]


@pytest.mark.parametrize("gap", ["1-0", "1-50"], ids=["before it began", "after it began"])
def test_a_data_cluster_that_goes_back_while_a_session_is_open_leaves_a_gap_and_goes_on(gap: str) -> None:
    """Restored from a copy, or emptied: its epochs repeat, and what is new has cursors that were seen before."""
    world = served_world(0)
    [number] = world.connections

    def comes(*cursors: str) -> None:
        for cursor in cursors:
            world.happen(MessageReceived(number, wire.Result(NAMES[0], CHANNEL, cursor, msgspec.Raw(b"{}"))))

    comes("1-20", "1-900")
    world.happen(MessageReceived(number, wire.Gap(NAMES[0], gap)))
    comes("1-60", "1-70")
    assert [message.cursor for message in world.delivered] == ["1-20", "1-900", gap, "1-60", "1-70"]


def test_a_gap_in_what_another_connection_has_brought_is_no_news() -> None:
    """The broker one moves to resumes from what was handled; what it cannot give was received before."""
    world = served_world(0)
    [first] = world.connections
    world.publish(0)
    world.publish(0)
    drain(world)
    seen = [message.cursor for message in world.delivered]
    world.broker_invites_elsewhere(0)
    world.message_arrives(0)
    world.connection_opens(0)
    world.request_arrives(1)
    second = max(world.connections)
    world.message_arrives(1 if len(world.connections) > 1 else 0)
    world.happen(MessageReceived(second, wire.Gap(NAMES[0], seen[0])))
    world.happen(MessageReceived(second, wire.Result(NAMES[0], CHANNEL, seen[1], msgspec.Raw(b"{}"))))
    assert first != second and [message.cursor for message in world.delivered] == seen


def test_another_life_of_the_channel_is_never_taken_for_progress() -> None:
    standing = SubscriptionProgress.at(NAMES[0], CHANNEL, {}, Cursor(1, 10))
    standing.advance_to(Cursor(2, 50))
    assert standing.received == Cursor(1, 10)


def test_progress_past_results_that_wait_does_not_count_them_as_handled() -> None:
    standing = SubscriptionProgress.at(NAMES[0], CHANNEL, {}, Cursor(1, 10))
    standing.receive(Cursor(1, 12))
    standing.advance_to(Cursor(1, 20))
    assert (standing.received, standing.handled) == (Cursor(1, 20), Cursor(1, 10))
    standing.mark_handled(Cursor(1, 12))
    assert standing.handled == Cursor(1, 20)


def test_results_of_a_subscription_made_elsewhere_are_delivered_and_asked_about() -> None:
    world = served_world(0)
    [number] = world.connections
    world.happen(MessageReceived(number, wire.Result(NAMES[1], CHANNEL, "1-9", msgspec.Raw(b"{}"))))
    assert len(world.delivered) == 1
    assert isinstance(world.sent[-1][1], wire.List)


def test_unsubscribing_is_confirmed_and_what_was_in_flight_is_not_delivered() -> None:
    world = served_world(0)
    [number] = world.connections
    world.happen(UnsubscribeRequested(7, NAMES[0]))
    request = world.sent.popleft()[1]
    assert isinstance(request, wire.Unsubscribe)
    world.happen(MessageReceived(number, wire.Unsubscribed(request.id, NAMES[0])))
    world.happen(MessageReceived(number, wire.Result(NAMES[0], CHANNEL, "1-99", msgspec.Raw(b"{}"))))
    assert not world.delivered and NAMES[0] not in world.session.subscriptions.resume_cursors()


def comes_back(world: World, *listed: wire.Held) -> int:
    """The connection is lost, and the next one begins with this list. Its number."""
    world.happen(ConnectionLost(max(world.connections), "reset"))
    world.time_passes(2)
    world.coordinator_answers(0)
    world.connection_opens(0)
    world.sent.clear()
    number = max(world.connections)
    world.happen(MessageReceived(number, wire.LoggedIn(1, SubscriberId("u"), BrokerId("b"), "x", list(listed), 10.0)))
    return number


def held(cursor: str, number: int = 0) -> wire.Held:
    return wire.Held(NAMES[number], CHANNEL, {"name": NAMES[number]}, cursor)


def left_world() -> World:
    """A subscriber that stood at 1-20 when it gave its subscription up, which was confirmed."""
    world = served_world(0)
    [number] = world.connections
    world.happen(MessageReceived(number, wire.Result(NAMES[0], CHANNEL, "1-20", msgspec.Raw(b"{}"))))
    world.happen(UnsubscribeRequested(7, NAMES[0]))
    world.happen(MessageReceived(number, wire.Unsubscribed(world.sent.popleft()[1].id, NAMES[0])))
    assert world.confirmed == [7]
    world.delivered.clear()
    return world


def leaves(world: World) -> list[wire.FromSubscriber]:
    return [message for _, message in world.sent if isinstance(message, wire.Unsubscribe)]


def test_a_broker_that_does_not_list_what_is_being_given_up_is_told_all_the_same() -> None:
    """It may be on its way there: that it is not there yet says nothing."""
    world = served_world(0)
    world.happen(UnsubscribeRequested(7, NAMES[0]))
    number = comes_back(world)
    assert not world.confirmed
    [leave] = leaves(world)
    world.happen(
        MessageReceived(number, wire.Refused(leave.id, "unknown_subscription", "you hold no such subscription"))
    )
    assert world.confirmed == [7] and not world.session.subscriptions.progress


def test_a_broker_that_has_not_heard_of_an_unsubscription_is_told_again() -> None:
    world = left_world()
    number = comes_back(world, held("1-20"))
    assert len(leaves(world)) == 1
    world.happen(MessageReceived(number, wire.Result(NAMES[0], CHANNEL, "1-30", msgspec.Raw(b"{}"))))
    world.happen(MessageReceived(number, wire.Unsubscribed(leaves(world)[0].id, NAMES[0])))
    assert not world.delivered and not world.session.subscriptions.progress and world.confirmed == [7]


def test_a_broker_that_is_given_what_was_unsubscribed_during_the_session_is_told_again() -> None:
    """The coordinator had it adopted before it knew; catching up ends with `recovered`."""
    world = left_world()
    [number] = world.connections
    world.happen(MessageReceived(number, wire.Recovered(NAMES[0], "1-30", True)))
    assert len(leaves(world)) == 1 and not world.delivered


def test_what_somebody_else_has_subscribed_to_since_is_kept() -> None:
    world = left_world()
    number = comes_back(world, held("1-25"))
    world.happen(MessageReceived(number, wire.Result(NAMES[0], CHANNEL, "1-30", msgspec.Raw(b"{}"))))
    assert not leaves(world) and [message.cursor for message in world.delivered] == ["1-30"]
    world = left_world()
    world.now_s += 700.0
    comes_back(world, held("1-20"))
    assert not leaves(world), "long after, it is not what was given up"


def test_what_is_wanted_again_is_not_given_up_again() -> None:
    world = left_world()
    world.happen(wanted(0))
    number = comes_back(world, held("1-20"), held("1-20", 1))
    assert not leaves(world)
    [subscribe] = [message for _, message in world.sent if isinstance(message, wire.Subscribe)]
    world.happen(MessageReceived(number, wire.Subscribed(subscribe.id, held("1-20"), True)))
    world.now_s += 5.0
    world.happen(Ticked())
    assert not leaves(world)
    world.happen(MessageReceived(number, wire.Result(NAMES[0], CHANNEL, "1-30", msgspec.Raw(b"{}"))))
    assert [message.cursor for message in world.delivered] == ["1-30"]


def test_what_was_left_is_given_up_again_once_it_is_clear_that_something_else_was_wanted() -> None:
    world = left_world()
    world.happen(wanted(1))
    number = comes_back(world, held("1-20"))
    [subscribe] = [message for _, message in world.sent if isinstance(message, wire.Subscribe)]
    world.happen(MessageReceived(number, wire.Subscribed(subscribe.id, held("1-20", 1), True)))
    assert not leaves(world)
    world.now_s += 5.0
    world.happen(Ticked())
    assert len(leaves(world)) == 1


def test_what_is_given_up_while_it_is_being_subscribed_again_is_given_up_when_that_is_answered() -> None:
    world = served_world(0)
    number = comes_back(world)
    [subscribe] = [message for _, message in world.sent if isinstance(message, wire.Subscribe)]
    world.happen(UnsubscribeRequested(7, NAMES[0]))
    [leave] = leaves(world)
    world.happen(
        MessageReceived(number, wire.Refused(leave.id, "unknown_subscription", "you hold no such subscription"))
    )
    assert world.confirmed == [7]
    world.happen(MessageReceived(number, wire.Subscribed(subscribe.id, held("1-1"), True)))
    assert len(leaves(world)) == 2 and not world.session.subscriptions.progress


def test_stopping_acknowledges_logs_out_and_ends() -> None:
    world = served_world(0)
    world.publish(0)
    drain(world)
    world.application_takes(0)
    world.happen(Stopped())
    assert [type(message) for _, message in world.sent][-1] is wire.Logout
    drain(world)
    assert world.finished and not world.connections
    assert world.acked[NAMES[0]] == world.log[NAMES[0]][-1]


def test_stopping_does_not_wait_for_a_broker_that_is_away() -> None:
    world = served_world(0)
    world.happen(Stopped())
    world.now_s = world.session.due_s()
    world.happen(Ticked())
    assert world.finished
