"""Catch-up and backfills: late, slow and returning sessions."""

from __future__ import annotations

from tests.broker.simulated import FIRE, A, subscribed
from tocsin.model.cursor import Cursor


def test_subscription_unknown_to_a_backfill_is_requested_again() -> None:
    network = subscribed("ann", cache_bytes=1)
    network.lose("ann")
    network.cluster.execute({"fire": 3})
    network.settle()
    network.cluster.held[A].discard(FIRE)  # not by this broker
    network.login("ann", "a")
    network.settle()
    assert network.cluster.held[A] == {FIRE}
    network.cluster.execute({"fire": 1})
    network.tick(5.0)
    network.settle()
    assert network.client("ann").numbers[FIRE] == [0, 1, 2, 3]


def test_backfill_overtaken_by_the_live_fetch_loses_no_result() -> None:
    network = subscribed("ann", "bob", cache_bytes=1)
    network.lose("ann")
    network.cluster.execute({"fire": 3})
    network.settle()
    network.cluster.execute({"fire": 2})
    network.login("ann", "a")
    network.announce(A)
    [live] = [place for place in network.fetches if place[1] > 0]
    [backfill] = [place for place in network.fetches if place[1] < 0]
    network.answer_fetch(backfill)  # five results, of which bob has received three
    network.finish_fetch(live)
    network.settle()
    network.tick(5.0)
    network.settle()
    assert network.client("ann").numbers[FIRE] == [0, 1, 2, 3, 4]


def test_backfill_is_cancelled_when_no_session_waits_for_it() -> None:
    network = subscribed("ann", cache_bytes=1)
    network.lose("ann")
    network.cluster.execute({"fire": 250})
    network.settle()
    network.login("ann", "a")
    [backfill] = network.fetches
    network.answer_fetch(backfill)
    network.block("ann")
    network.answer_fetch(backfill)
    assert backfill not in network.fetches
    network.settle()
    assert network.client("ann").numbers[FIRE] == list(range(250))


def test_session_ahead_of_the_broker_gets_no_result_twice() -> None:
    network = subscribed("ann")
    ann = network.client("ann")
    network.lose("ann")
    network.cluster.execute({"fire": 2})  # another broker was faster and has delivered these
    ann.seen[FIRE] = network.cluster.results[FIRE][-1][0]
    ann.numbers[FIRE] = [0, 1]
    network.login("ann", "a")
    network.cluster.execute({"fire": 1})
    network.settle()
    assert ann.numbers[FIRE] == [0, 1, 2] and not ann.gaps


def test_cursor_of_an_epoch_that_never_existed_gets_a_gap() -> None:
    network = subscribed("ann")
    ann = network.client("ann")
    network.lose("ann")
    ann.seen[FIRE] = Cursor(network.cluster.epoch + 7, 5)
    network.login("ann", "a")
    network.settle()
    assert FIRE in ann.gaps
    network.cluster.execute({"fire": 1})
    network.settle()
    assert ann.numbers[FIRE] == [0]


def test_slow_session_catches_up_in_steps_without_delaying_others() -> None:
    network = subscribed("slow", "quick", queue_bytes=200)
    network.block("slow")
    network.cluster.execute({"fire": 10})
    for _ in range(3):
        network.cluster.execute({"fire": 10})
        network.announce_all(A)
        for fetch in list(network.fetches):
            network.finish_fetch(fetch)
    slow, quick = network.client("slow"), network.client("quick")
    assert len(quick.numbers[FIRE]) == 40 and FIRE not in slow.numbers
    network.settle()
    assert slow.numbers[FIRE] == quick.numbers[FIRE] == list(range(40))
