"""The broker's logic by hand: exact events, exact effects."""

from __future__ import annotations

import math

import pytest

from tests.broker.simulated import CHANNEL, SimulatedNetwork, subscription
from tocsin.broker import effects, events
from tocsin.broker.hosted import BackendSubscription, Requester
from tocsin.broker.load import WINDOW_S, Rate
from tocsin.broker.message_encoding import Encoding, frame
from tocsin.broker.result_batch import Batch
from tocsin.broker.result_cache import ResultCache
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, SubscriberId, SubscriptionId
from tocsin.wire import link
from tocsin.wire import session as wire
from tocsin.wire.errors import Code

A, B = BrokerId("a"), BrokerId("b")
FIRE = subscription("fire")


def network(**more: int) -> SimulatedNetwork:
    given = {"cache_bytes": 1_000_000, "queue_bytes": 100_000} | more
    return SimulatedNetwork(cache_bytes=given["cache_bytes"], queue_bytes=given["queue_bytes"], chunk=100)


def subscribed(*names: str, **more: int) -> SimulatedNetwork:
    made = network(**more)
    for name in names:
        made.login(name, "a")
        made.subscribe(name, "fire")
    made.settle()
    return made


def batch(first: int, count: int, size_bytes: int = 10) -> Batch:
    offsets = list(range(first, first + count))
    return Batch(FIRE, CHANNEL, Cursor(1, first - 1), 1, offsets, [b"x" * size_bytes] * count)


def test_a_batch_gives_what_lies_between_two_cursors() -> None:
    whole = batch(10, 5)
    assert whole.between(Cursor(1, 0), Cursor(1, 99)) is whole
    part = whole.between(Cursor(1, 11), Cursor(1, 13))
    assert part is not None and part.offsets == [12, 13] and part.start == Cursor(1, 11) and part.end == Cursor(1, 13)
    assert whole.between(Cursor(1, 14), Cursor(1, 99)) is None
    assert whole.between(Cursor(2, 0), Cursor(2, 99)) is None
    assert whole.between(Cursor(0, 7), Cursor(2, 0)) is whole


def test_a_batch_is_encoded_once_and_everybody_gets_the_same_bytes() -> None:
    one = batch(1, 2)
    assert one.encoded(Encoding.JSON) is one.encoded(Encoding.JSON)


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_frames_say_their_length_as_the_rfc_wants(size: int) -> None:
    made = frame(b"x" * size)
    head = 2 if size < 126 else 4 if size < 65_536 else 10
    assert len(made) == head + size
    if head > 2:
        assert int.from_bytes(made[2:head], "big") == size


def test_the_cache_drops_the_oldest_first_and_stays_one_interval() -> None:
    cache = ResultCache(3_000)
    old, new = (
        BackendSubscription(SubscriptionId(name), CHANNEL, Cursor(1, 0), Cursor(1, 0)) for name in ("old", "new")
    )
    for number in range(10):
        cache.append(old if number < 4 else new, batch(number * 10 + 1, 5))
        assert cache.used_bytes <= 3_000
    assert not old.batches and old.kept_from == old.position
    assert new.batches and new.kept_from == new.batches[0].start.__class__(1, new.batches[0].start.offset - 5)
    cache.forget(new)
    assert cache.used_bytes == 0


def test_a_rate_is_a_moving_average_of_bytes_per_second() -> None:
    rate = Rate()
    for second in range(600):
        rate.add(1_000.0, float(second))
    assert rate.now(600.0) == pytest.approx(1_000.0, rel=0.02)
    assert rate.now(599.0 + WINDOW_S) == pytest.approx(rate.value_per_s / math.e, rel=1e-6)
    assert rate.take_changed(600.0) is not None and rate.take_changed(600.5) is None
    assert rate.take_changed(10_000.0) == 0.0 and rate.take_changed(10_001.0) is None


def test_load_is_reported_as_the_paper_defines_it() -> None:
    """Two subscribers share one backend subscription: what comes in once goes out twice [BAD §4, eq. 1, 4]."""
    made = subscribed("ann", "bob")
    core = made.brokers[A]
    made.cluster.execute({"fire": 4})
    made.settle()
    report = core._reports.load_report()
    assert report.rates[FIRE] == pytest.approx(report.in_bytes_per_s)
    assert core.state.load.notifications == 8
    assert core.state.load.out_bytes == 2 * len(core.state.backends[FIRE].batches[0].encoded(Encoding.JSON))


def test_a_backend_subscription_stays_until_the_last_frontend_leaves() -> None:
    made = subscribed("ann", "bob")
    assert made.cluster.held[A] == {FIRE}
    made.unsubscribe("ann", "fire")
    made.settle()
    assert made.cluster.held[A] == {FIRE}
    made.unsubscribe("bob", "fire")
    made.settle()
    assert made.cluster.held[A] == set()


def test_an_offline_subscriber_keeps_its_subscriptions_and_results_wait() -> None:
    made = subscribed("ann")
    made.lose("ann")
    made.cluster.execute({"fire": 3})
    made.settle()
    assert made.cluster.held[A] == {FIRE}
    made.login("ann", "a")
    made.settle()
    assert made.clients[SubscriberId("ann")].numbers[FIRE] == [0, 1, 2]


def test_a_quiet_subscription_moves_on_with_its_channel() -> None:
    made = subscribed("ann")
    made.cluster.execute({"flood": 1})
    made.settle()
    assert made.brokers[A].state.backends[FIRE].position == made.cluster.head


def test_a_burst_of_executions_costs_one_more_fetch() -> None:
    made = subscribed("ann")
    made.cluster.execute({"fire": 1})
    made.announce(A)
    [running] = made.fetches
    for _ in range(20):
        made.cluster.execute({"fire": 1})
    while made.cluster.streams[A]:
        made.announce(A)
    while running in made.fetches:
        made.answer_fetch(running)
    assert len(made.fetches) == 1  # all twenty, though the first answer had them already
    made.settle()
    assert made.clients[SubscriberId("ann")].numbers[FIRE] == list(range(21))


def test_a_fetch_refused_for_what_was_given_back_meanwhile_is_made_again_without_it() -> None:
    made = subscribed("ann")
    made.login("bob", "a")
    made.subscribe("bob", "flood")
    made.settle()
    made.cluster.execute({"fire": 1, "flood": 1})
    while made.cluster.streams[A]:
        made.announce(A)
    [running] = made.fetches
    made.unsubscribe("bob", "flood")
    while made.orders[A]:
        made.place_order(A)
    made.fail_fetch(running, Code.UNKNOWN_SUBSCRIPTION)
    [(_, again)] = made.fetches.items()
    assert isinstance(again, effects.Fetch) and set(again.positions) == {FIRE}, "at once, and only for what is held"
    assert not made.orders[A], "what the data cluster still knows is not asked for anew"
    made.settle()
    assert made.clients[SubscriberId("ann")].numbers[FIRE] == [0]


def test_a_backfill_refused_for_what_the_data_cluster_does_not_see_us_hold_is_asked_for_anew() -> None:
    made = subscribed("ann", cache_bytes=1)
    made.lose("ann")
    made.cluster.execute({"fire": 3})
    made.settle()
    made.cluster.held[A].discard(FIRE)  # no fault of ours
    made.login("ann", "a")
    made.settle()
    assert made.cluster.held[A] == {FIRE}
    made.cluster.execute({"fire": 1})
    made.tick(5.0)
    made.settle()
    assert made.clients[SubscriberId("ann")].numbers[FIRE] == [0, 1, 2, 3]


def test_a_backfill_that_the_live_flow_overtakes_leaves_nothing_out() -> None:
    made = subscribed("ann", "bob", cache_bytes=1)
    made.lose("ann")
    made.cluster.execute({"fire": 3})
    made.settle()
    made.cluster.execute({"fire": 2})
    made.login("ann", "a")
    made.announce(A)
    [live] = [place for place in made.fetches if place[1] > 0]
    [backfill] = [place for place in made.fetches if place[1] < 0]
    made.answer_fetch(backfill)  # all five, of which three are older than what bob has seen
    while live in made.fetches:
        made.answer_fetch(live)
    made.settle()
    made.tick(5.0)
    made.settle()
    assert made.clients[SubscriberId("ann")].numbers[FIRE] == [0, 1, 2, 3, 4]


def recreate(made: SimulatedNetwork, *refused: str) -> None:
    """The channel is dropped and created again, perhaps with other parameters."""
    made.cluster.held[A].clear()
    made.cluster.refuses = set(refused)
    made.cluster.replace()
    made.settle()
    made.tick(30.0)
    made.settle()


def test_a_subscription_that_its_channel_no_longer_takes_is_in_nobodys_way() -> None:
    made = subscribed("ann")
    recreate(made, "fire")
    made.login("bob", "a")
    made.settle()
    made.subscribe("bob", "flood")
    made.settle()
    made.cluster.execute({"flood": 2})
    made.settle()
    assert made.clients[SubscriberId("bob")].numbers[subscription("flood")] == [0, 1]
    made.login("eve", "a")
    made.settle()
    made.subscribe("eve", "fire")
    made.settle()
    assert FIRE not in made.clients[SubscriberId("eve")].seen, "nor promised to anybody"
    recreate(made)
    made.cluster.execute({"fire": 1})
    made.settle()
    assert made.clients[SubscriberId("ann")].numbers[FIRE] == [0], "in another life it takes part again"


def test_a_hold_that_the_data_cluster_lost_is_asked_for_anew_and_told_as_a_gap() -> None:
    made = subscribed("ann")
    made.cluster.held[A].clear()
    made.cluster.execute({"fire": 1})
    made.settle()
    ann = made.clients[SubscriberId("ann")]
    assert FIRE not in ann.numbers
    made.handle(A, events.HoldsMissing([FIRE, subscription("unheard of")]))
    made.settle()
    assert made.cluster.held[A] == {FIRE} and FIRE in ann.excused
    made.cluster.execute({"fire": 1})
    made.settle()
    assert ann.numbers[FIRE] == [1]


def test_a_session_that_has_seen_more_than_this_broker_gets_nothing_twice() -> None:
    made = subscribed("ann")
    ann = made.clients[SubscriberId("ann")]
    made.lose("ann")
    made.cluster.execute({"fire": 2})  # another broker was faster and has delivered these
    ann.seen[FIRE] = made.cluster.results[FIRE][-1][0]
    ann.numbers[FIRE] = [0, 1]
    made.login("ann", "a")
    made.cluster.execute({"fire": 1})
    made.settle()
    assert ann.numbers[FIRE] == [0, 1, 2] and not ann.excused


def test_a_cursor_into_a_future_that_never_was_is_a_gap() -> None:
    made = subscribed("ann")
    ann = made.clients[SubscriberId("ann")]
    made.lose("ann")
    ann.seen[FIRE] = Cursor(made.cluster.epoch + 7, 5)
    made.login("ann", "a")
    made.settle()
    assert FIRE in ann.excused
    made.cluster.execute({"fire": 1})
    made.settle()
    assert ann.numbers[FIRE] == [0]


def test_a_slow_session_catches_up_in_turns_and_others_do_not_wait() -> None:
    made = subscribed("slow", "quick", queue_bytes=200)
    made.block("slow")
    made.cluster.execute({"fire": 10})
    for _ in range(3):
        made.cluster.execute({"fire": 10})
        while made.cluster.streams[A]:
            made.announce(A)
        for fetch in list(made.fetches):
            while fetch in made.fetches:
                made.answer_fetch(fetch)
    slow, quick = (made.clients[SubscriberId(name)] for name in ("slow", "quick"))
    assert len(quick.numbers[FIRE]) == 40 and FIRE not in slow.numbers
    made.settle()
    assert slow.numbers[FIRE] == quick.numbers[FIRE] == list(range(40))


def test_a_preparation_is_undone_at_its_deadline() -> None:
    made = network()
    made.link_up()
    state = link.SubscriberState(SubscriberId("ann"), [link.Frontend(FIRE, CHANNEL, {"kind": "fire"}, "1-0")])
    made.say(A, link.Prepare("m1", state, 30.0))
    made.settle()
    assert made.cluster.held[A] == {FIRE}
    made.tick(29.0)
    assert made.cluster.held[A] == {FIRE}
    made.tick(2.0)
    made.settle()
    assert made.cluster.held[A] == set() and made.brokers[A].idle


def prepared_state(*kinds: str) -> link.SubscriberState:
    held = [link.Frontend(subscription(kind), CHANNEL, {"kind": kind}, "1-0") for kind in kinds]
    return link.SubscriberState(SubscriberId("ann"), held)


def test_what_is_given_up_while_a_move_is_prepared_is_not_held_by_the_target() -> None:
    made = network()
    made.link_up()
    made.say(A, link.Prepare("m1", prepared_state("fire", "flood"), 30.0))
    made.settle()
    assert made.cluster.held[A] == {FIRE, subscription("flood")}
    made.say(A, link.Prepare("m1", prepared_state("fire"), 30.0))
    made.settle()
    assert made.cluster.held[A] == {FIRE}
    made.say(A, link.Adopt([prepared_state()]))
    made.settle()
    assert made.cluster.held[A] == set() and made.brokers[A].idle


def test_a_preparation_told_again_before_it_was_ready_is_reported_once_and_undone_whole() -> None:
    made = network()
    made.link_up()
    made.say(A, link.Prepare("m1", prepared_state("fire"), 30.0))
    made.say(A, link.Prepare("m1", prepared_state("fire", "flood"), 30.0))
    while made.orders[A] or made.granted[A] is not None:
        made.place_order(A)
    while made.fetches:
        made.answer_fetch(next(iter(made.fetches)))
    assert [message for _, message in made.told if isinstance(message, link.Prepared)] == [link.Prepared("m1")]
    made.say(A, link.Prepare("m1", prepared_state("fire", "flood"), 30.0))
    made.tick(31.0)
    made.settle()
    assert made.cluster.held[A] == set() and made.brokers[A].idle


def test_what_was_asked_for_here_is_not_dropped_by_a_coordinator_that_has_not_heard_of_it() -> None:
    made = subscribed("ann")
    made.say(A, link.Adopt([prepared_state()]))
    made.cluster.execute({"fire": 1})
    made.settle()
    assert made.clients[SubscriberId("ann")].numbers[FIRE] == [0]


def test_what_was_asked_for_here_and_is_not_named_by_the_coordinator_is_handed_in_again() -> None:
    """It may have heard from elsewhere of an unsubscription that was before, and would forget it with this broker."""
    made = subscribed("ann")
    made.link_up()
    made.settle()
    made.told.clear()
    made.say(A, link.Adopt([prepared_state()]))
    handed_in = [message.added for _, message in made.told if isinstance(message, link.Changed)]
    assert [[one.subscription for one in added] for added in handed_in] == [[FIRE]]
    made.told.clear()
    made.say(A, link.Adopt([prepared_state("fire")]))
    assert not made.told


def test_what_was_prepared_stays_once_its_subscriber_is_ours_to_serve() -> None:
    made = network()
    made.link_up()
    state = link.SubscriberState(SubscriberId("ann"), [link.Frontend(FIRE, CHANNEL, {"kind": "fire"}, "1-0")])
    made.say(A, link.Prepare("m1", state, 30.0))
    made.settle()
    made.say(A, link.Adopt([state]))  # she is offline: there will be no session to keep it for
    made.tick(31.0)
    made.settle()
    assert made.cluster.held[A] == {FIRE}


def test_who_came_while_the_coordinator_was_away_is_asked_about_when_it_is_back() -> None:
    made = network()
    made.login("ann", "a")
    made.handle(A, events.LinkOpened())
    made.say(A, link.Registered(5.0, 5.0, True))
    assert (A, link.Wanted(SubscriberId("ann"))) in made.told
    made.told.clear()
    made.link_up()
    assert (A, link.Wanted(SubscriberId("ann"))) in made.told, "the question may have been lost with the link"
    made.say(A, link.Adopt([prepared_state()]))
    made.told.clear()
    made.link_up()
    assert link.Wanted(SubscriberId("ann")) not in [message for _, message in made.told], "it was answered"


def test_who_came_and_went_while_the_coordinator_was_away_is_asked_about_if_something_is_left_of_it() -> None:
    """The coordinator takes us to hold all of it, since we say that we host it."""
    made = subscribed("ann")
    made.login("bob", "a")
    for name in ("ann", "bob"):
        made.lose(name)
    made.link_up()
    wanted_of = [message.subscriber for broker, message in made.told if isinstance(message, link.Wanted)]
    assert wanted_of == ["ann"], "bob holds nothing here and will ask himself"


def test_what_is_unsubscribed_while_its_adoption_waits_for_the_data_cluster_is_not_held_after_all() -> None:
    made = network()
    made.link_up()
    made.say(A, link.Adopt([prepared_state("fire")]))
    made.login("ann", "a")
    made.tick(6.0)  # the data cluster does not answer: she is let in with what there is, which is nothing
    refused = made.call("a", "ann", wire.Unsubscribe(7, FIRE))
    assert isinstance(refused, wire.Refused) and refused.code == Code.UNKNOWN_SUBSCRIPTION
    assert [change.removed for change in changes(made)] == [[FIRE]], "the coordinator believes in it"
    made.say(A, link.Stored(1))
    made.settle()
    made.cluster.execute({"fire": 1})
    made.settle()
    assert not made.clients[SubscriberId("ann")].seen and made.cluster.held[A] == set()
    made.lose("ann")
    assert made.brokers[A].idle


def test_who_unsubscribes_while_its_adoption_waits_takes_nothing_from_the_others() -> None:
    made = network()
    made.link_up()
    states = [link.SubscriberState(SubscriberId(name), prepared_state("fire").subscriptions) for name in ("ann", "bob")]
    made.say(A, link.Adopt(states))
    made.call("a", "ann", wire.Unsubscribe(7, FIRE))
    made.settle()
    assert made.cluster.held[A] == {FIRE}
    assert [*made.brokers[A].state.subscribers] == ["bob"]
    made.login("bob", "a")
    made.cluster.execute({"fire": 1})
    made.settle()
    assert made.clients[SubscriberId("bob")].numbers[FIRE] == [0]


def test_who_subscribes_again_while_its_adoption_waits_holds_it() -> None:
    made = network()
    made.link_up()
    made.say(A, link.Adopt([prepared_state("fire")]))
    made.login("ann", "a")
    made.tick(6.0)
    made.call("a", "ann", wire.Unsubscribe(7, FIRE))
    made.subscribe("ann", "fire")
    made.settle()
    assert made.cluster.held[A] == {FIRE} and FIRE in made.clients[SubscriberId("ann")].seen


def test_what_is_unsubscribed_where_nobody_knows_of_it_is_handed_in_when_the_coordinator_is_back() -> None:
    made = network()
    made.login("ann", "a")
    made.unsubscribe("ann", "fire")
    made.call("a", "ann", wire.Unsubscribe(7, SubscriptionId("x" * 1_000)))
    made.link_up()
    assert [change.removed for change in changes(made)] == [[FIRE]], "and not what can be no subscription"
    made.say(A, link.Adopt([prepared_state("fire")]))
    made.settle()
    assert not made.cluster.held.get(A)


def test_who_comes_before_all_is_prepared_gets_the_rest_when_the_data_cluster_has_answered() -> None:
    made = network()
    made.link_up()
    made.say(A, link.Prepare("m1", prepared_state("fire", "flood"), 30.0))
    made.place_order(A)
    made.place_order(A)
    made.login("ann", "a", migration="m1")
    ann = made.clients[SubscriberId("ann")]
    assert [*ann.seen] == [FIRE]
    made.settle()
    ann.seen[subscription("flood")] = Cursor(1, 0)
    made.cluster.execute({"fire": 1, "flood": 1})
    made.settle()
    assert ann.numbers == {FIRE: [0], subscription("flood"): [0]}


def test_who_goes_while_its_adoption_waits_for_the_data_cluster_is_still_said_to_be_here() -> None:
    made = network()
    made.link_up()
    made.say(A, link.Adopt([prepared_state("fire")]))
    made.login("ann", "a")
    made.tick(6.0)
    made.lose("ann")
    made.handle(A, events.LinkLost())
    made.told.clear()
    made.link_up()
    assert [message.hosting for broker, message in made.told if isinstance(message, link.Register) and broker == A] == [
        ["ann"]
    ], "so that the coordinator can tell this broker to let go"
    made.say(A, link.Release(SubscriberId("ann")))
    made.settle()
    assert made.brokers[A].idle


def test_a_preparation_of_which_nothing_is_held_yet_ends_with_the_link() -> None:
    """When it registers, the broker does not say that it hosts that subscriber: nobody would tell it to let go."""
    made = network()
    made.link_up()
    made.say(A, link.Prepare("m1", prepared_state("fire"), 30.0))
    made.handle(A, events.LinkLost())
    made.settle()
    assert made.brokers[A].idle and made.cluster.held[A] == set()


def test_who_has_come_when_it_is_to_be_prepared_gets_what_it_has_not_given_up_meanwhile() -> None:
    made = subscribed("ann")
    made.link_up()
    made.unsubscribe("ann", "fire")
    made.told.clear()  # the coordinator has not heard of it when it says
    made.say(A, link.Prepare("m1", prepared_state("fire", "flood"), 30.0))
    made.settle()
    assert made.cluster.held[A] == {subscription("flood")}
    ann = made.clients[SubscriberId("ann")]
    ann.seen[subscription("flood")] = Cursor(1, 0)
    made.cluster.execute({"fire": 1, "flood": 1})
    made.settle()
    assert ann.numbers == {subscription("flood"): [0]}


def test_who_is_released_before_anything_of_it_is_here_is_not_held_afterwards() -> None:
    made = network()
    made.link_up()
    made.say(A, link.Prepare("m1", prepared_state("fire"), 30.0))
    made.say(A, link.Release(SubscriberId("ann")))
    assert (A, link.Released(SubscriberId("ann"))) in made.told
    made.settle()
    assert made.brokers[A].idle and made.cluster.held[A] == set()


def test_a_preparation_that_cannot_be_is_reported() -> None:
    made = network()
    made.link_up()
    state = link.SubscriberState(SubscriberId("ann"), [link.Frontend(FIRE, CHANNEL, {"kind": "fire"}, "1-0")])
    made.say(A, link.Prepare("m1", state, 30.0))
    order = made.orders[A].popleft()
    made.handle(A, events.BackendRefused(order.key, "unknown_channel", "there is no channel Reports"))
    failed = [message for broker, message in made.told if isinstance(message, link.PrepareFailed)]
    assert failed == [link.PrepareFailed("m1", "unknown_channel", "there is no channel Reports")]
    assert made.brokers[A].idle


def changes(made: SimulatedNetwork) -> list[link.Changed]:
    return [message for _, message in made.told if isinstance(message, link.Changed)]


def test_what_was_not_confirmed_is_said_again_with_the_same_number() -> None:
    made = network()
    made.link_up()
    made.login("ann", "a")
    while made.told:
        made.hear()
    made.subscribe("ann", "fire")
    made.place_order(A)
    made.place_order(A)
    [first] = changes(made)
    made.told.clear()  # the coordinator died before it stored it
    made.handle(A, events.LinkLost())
    made.handle(A, events.LinkOpened())
    made.say(A, link.Registered(5.0, 5.0, True))
    [again] = changes(made)
    assert again == first and again.added[0].subscription == FIRE
    made.say(A, link.Stored(again.number))
    made.told.clear()
    made.handle(A, events.LinkOpened())
    made.say(A, link.Registered(5.0, 5.0, True))
    assert not changes(made)


def test_a_subscriber_hears_of_its_subscription_when_it_is_stored_or_late() -> None:
    made = network()
    made.link_up()
    made.login("ann", "a")
    made.settle()
    made.subscribe("ann", "fire")
    made.place_order(A)
    made.place_order(A)
    ann = made.clients[SubscriberId("ann")]
    assert FIRE not in ann.seen
    made.tick(3.0)  # the coordinator does not answer in time
    assert FIRE in ann.seen


def test_subscribers_do_not_wait_for_a_data_cluster_that_is_away() -> None:
    made = network()
    made.login("ann", "a")
    [(_, session)] = made.owner
    request = wire.Subscribe(9, CHANNEL, {"kind": "fire"})
    core = made.brokers[A]
    [ask] = core.handle(events.RequestReceived(Requester(session=session), SubscriberId("ann"), request), made.now_s)
    assert isinstance(ask, effects.RequestBackend)
    late = core.handle(events.Ticked(), made.now_s + 11.0)
    said = [one.message for one in late if isinstance(one, effects.SendToSessions)]
    [refused] = [message for message in said if isinstance(message, wire.Refused)]
    assert (refused.id, refused.code) == (9, "not_ready")
    released = core.handle(events.BackendGranted(ask.key, CHANNEL, FIRE, Cursor(1, 0)), made.now_s + 12.0)
    assert effects.ReleaseBackend(CHANNEL, FIRE) in released  # it came, too late for anybody


def test_results_announced_before_a_subscription_had_its_name_are_not_lost() -> None:
    """The data cluster holds it, executes and announces; its answer to the broker is slower than all that."""
    made = network()
    made.login("ann", "a")
    made.subscribe("ann", "fire")
    made.place_order(A)
    made.cluster.execute({"fire": 2})
    while made.cluster.streams[A]:
        made.announce(A)
    made.place_order(A)  # only now does the broker learn the name
    made.cluster.execute({"flood": 1})  # and the channel moves on
    made.settle()
    assert made.clients[SubscriberId("ann")].numbers[FIRE] == [0, 1]


def test_a_subscription_released_and_wanted_again_is_held_in_the_end() -> None:
    made = subscribed("ann")
    made.unsubscribe("ann", "fire")
    made.subscribe("ann", "fire")
    made.settle()
    assert made.cluster.held[A] == {FIRE}
    made.cluster.execute({"fire": 1})
    made.settle()
    assert made.clients[SubscriberId("ann")].numbers[FIRE] == [0]


def test_a_backfill_ends_when_nobody_waits_for_it_any_more() -> None:
    made = subscribed("ann", cache_bytes=1)
    made.lose("ann")
    made.cluster.execute({"fire": 250})
    made.settle()
    made.login("ann", "a")
    [backfill] = made.fetches
    made.answer_fetch(backfill)
    made.block("ann")
    made.answer_fetch(backfill)
    assert backfill not in made.fetches  # cancelled: the data cluster reads for nobody
    made.settle()
    assert made.clients[SubscriberId("ann")].numbers[FIRE] == list(range(250))
