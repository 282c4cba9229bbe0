"""The checks of `tocsin chaos --topics`: they find losses, repeats, conflicts and two homes."""

from __future__ import annotations

from tocsin.chaos.topic_ledger import Homes, Received, TopicLedger, untold


def ledger(persistent: bool, acknowledged: int, *items: int | None) -> TopicLedger:
    return TopicLedger("a", persistent, set(range(acknowledged)), [Received(list(items))])


def test_complete_ordered_delivery_is_correct() -> None:
    assert ledger(True, 3, 0, 1, 2).correct


def test_loss_with_a_gap_is_correct_for_volatile_topics_only() -> None:
    assert ledger(False, 4, 0, None, 3).correct
    assert not ledger(True, 4, 0, None, 3).correct


def test_loss_without_a_gap_repeats_and_wrong_order_are_found() -> None:
    assert ledger(False, 4, 0, 3, None).report()["lost_untold"] == 2
    assert ledger(False, 2, 0, 0, 1).report()["duplicated"] == 1
    assert ledger(False, 3, 0, 2, 1).report()["out_of_order"] == 1


def test_gap_explains_only_what_lies_between_its_neighbours() -> None:
    assert untold([0, None, 3, 6], {1, 2, 4, 5}) == {4, 5}
    assert untold([None, 2], {0, 1, 3}) == {3}
    assert untold([0, None], {1}) == set()


def test_two_messages_at_one_place_are_a_conflict() -> None:
    one = ledger(True, 0)
    one.place(1, 1, b"x")
    one.place(1, 1, b"x")
    assert one.correct
    one.place(1, 1, b"y")
    assert not one.correct


def test_two_brokers_in_one_epoch_are_two_homes() -> None:
    homes = Homes()
    homes.observe("a", 1, b"probe a 1.0", 1.1)
    assert homes.two_homes() == 0
    homes.observe("b", 1, b"probe b 1.2", 1.3)
    assert homes.two_homes() == 1


def test_earlier_epoch_that_accepts_during_a_later_one_is_a_second_home() -> None:
    homes = Homes()
    homes.observe("a", 1, b"probe a 1.0", 1.1)
    homes.observe("b", 2, b"7", 5.0)
    homes.observe("a", 1, b"probe a 4.9", 6.0)  # it was under way before the later epoch began
    assert homes.two_homes() == 0
    homes.observe("a", 1, b"probe a 5.5", 6.0)
    assert homes.two_homes() == 1
