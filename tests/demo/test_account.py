"""The demo's account and its compressed application, on numbers that can be checked by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tocsin.demo.account import Audit, DemoAccount, PublishedReport
from tocsin.demo.settings import DemoSettings, compressed
from tocsin.model.cursor import Cursor
from tocsin.sim.city.subscriptions import CHANNELS, PAPER_CHANNELS


def account() -> DemoAccount:
    """Four reports, published at 10, 20, 30 and 40 s; ann has subscribed to fires since 15 s."""
    made = DemoAccount()
    for number, kind in enumerate(("fire", "fire", "flood", "fire")):
        made.publish(number, PublishedReport(kind, 3, 60.17, 24.94 + number / 1_000, 10.0 * (number + 1)))
    made.grant("ann", "s", "EmergenciesOfType", {"kind": "fire"}, "1-100", 15.0)
    return made


def take(into: DemoAccount, *results: tuple[int, int]) -> None:
    for offset, number in results:
        into.take(into.holding("ann", "s"), f"1-{offset}", number, 50.0)


def stored(*offsets: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(offsets, np.int64)


def test_account_of_complete_deliveries_has_no_errors() -> None:
    made = account()
    take(made, (102, 1), (205, 3))
    assert made.audited({"s": stored(50, 102, 205)}) == Audit(expected=2, received=2)
    assert [made.frontend(), made.backend(), made.delivered, made.granted] == [1, 1, 2, 1]
    assert list(made.holding("ann", "s").latencies_s) == [30.0, 10.0]


def test_stored_result_that_did_not_arrive_is_lost() -> None:
    made = account()
    take(made, (102, 1))
    assert made.audited({"s": stored(102, 205)}).lost == 1


def test_repeats_disorder_unknown_reports_and_gaps_are_counted() -> None:
    made = account()
    take(made, (205, 3), (102, 1), (102, 1), (300, 2))
    made.take(made.holding("ann", "s"), "1-301", None, 50.0)
    made.gaps = 1
    audit = made.audited({"s": stored(102, 205)})
    assert audit == Audit(expected=2, received=4, repeated=1, out_of_order=1, unexpected=2, gaps=1)


def test_results_of_another_epoch_are_unexpected() -> None:
    made = account()
    take(made, (102, 1))
    made.take(made.holding("ann", "s"), "2-205", 3, 50.0)
    assert made.audited({"s": stored(102, 205)}).unexpected == 1


def test_result_without_any_grant_is_unexpected_and_nothing_is_lost() -> None:
    made = account()
    made.take(made.holding("bob", "s"), "1-102", 1, 50.0)
    assert made.audited({"s": stored()}) == Audit(received=1, unexpected=1)


def test_result_that_overtakes_its_grant_belongs_to_the_subscription() -> None:
    made = account()
    made.take(made.holding("bob", "s"), "1-205", 3, 50.0)
    made.grant("bob", "s", "EmergenciesOfType", {"kind": "fire"}, "1-110", 35.0)
    assert made.audited({"s": stored(205)}).unexpected == 0
    assert len(made.by_channel()["EmergenciesOfType"]) == 2


def test_results_between_a_request_and_its_late_answer_are_expected() -> None:
    made = account()
    made.take(made.holding("bob", "s"), "1-102", 1, 32.0)
    made.grant("bob", "s", "EmergenciesOfType", {"kind": "fire"}, "1-150", 35.0, requested_s=30.0)
    audit = made.audited({"s": stored(50, 102, 205)})
    assert (audit.unexpected, audit.lost) == (0, 3), "two of ann, and the one at 205 of bob"
    assert made.holding("bob", "s").first == Cursor(1, 101)


def test_result_before_the_request_is_unexpected_in_spite_of_the_grant() -> None:
    made = account()
    made.take(made.holding("bob", "s"), "1-102", 1, 29.0)
    made.grant("bob", "s", "EmergenciesOfType", {"kind": "fire"}, "1-150", 35.0, requested_s=30.0)
    audit = made.audited({"s": stored(50, 102)})
    assert audit.unexpected == 1
    assert "bob, EmergenciesOfType, granted at 35.0 from 1-150" in audit.findings[1]


def unsubscribed() -> DemoAccount:
    """Ann received the results at 102 and 205, all that were stored when she decided to unsubscribe."""
    made = account()
    take(made, (102, 1), (205, 3))
    made.leave("ann", "s", stored(102, 205), 60.0)
    made.end("ann", "s", 61.0)
    return made


def test_results_of_an_unsubscribed_subscription_are_complete() -> None:
    made = unsubscribed()
    assert made.audited({}) == Audit(expected=2, received=2), "the data cluster has deleted the results"
    assert made.open_by_channel() == {}


def test_stored_result_missing_at_an_unsubscribe_is_lost() -> None:
    made = account()
    take(made, (102, 1))
    assert not made.has_received("ann", "s", stored(102, 205, 300))
    made.leave("ann", "s", stored(102, 205, 300), 60.0)
    made.end("ann", "s", 61.0)
    assert made.audited({}) == Audit(expected=3, received=1, lost=2)


def test_person_has_received_all_when_the_last_stored_result_is_there() -> None:
    made = account()
    assert made.has_received("ann", "s", stored()) and made.has_received("ann", "s", stored(50)), "before the grant"
    take(made, (102, 1), (205, 3))
    assert made.has_received("ann", "s", stored(102, 205))


def test_result_in_transit_may_arrive_before_the_answer() -> None:
    made = account()
    made.leave("ann", "s", stored(102), 60.0)
    take(made, (102, 1), (205, 3))
    made.end("ann", "s", 61.0)
    assert made.audited({}) == Audit(expected=2, received=2)


def test_hole_before_the_last_result_of_an_unsubscribed_subscription_is_lost() -> None:
    made = account()
    take(made, (205, 3))
    made.leave("ann", "s", stored(102, 205), 60.0)
    made.end("ann", "s", 61.0)
    assert made.audited({}) == Audit(expected=2, received=1, lost=1)


def test_result_after_the_answer_to_an_unsubscribe_is_unexpected() -> None:
    made = unsubscribed()
    take(made, (300, 3))
    assert made.audited({}) == Audit(expected=2, received=3, unexpected=1)


def test_returned_subscription_is_promised_results_from_its_new_cursor_on() -> None:
    made = unsubscribed()
    made.grant("ann", "s", "EmergenciesOfType", {"kind": "fire"}, "1-400", 90.0)
    take(made, (500, 3))
    assert made.audited({"s": stored(102, 205, 300, 500)}) == Audit(expected=3, received=3)
    assert made.audited({"s": stored(102, 205, 300, 500, 600)}).lost == 1
    assert [made.frontend(), made.granted] == [1, 2], "one frontend subscription, granted twice"
    assert made.open_by_channel() == {"EmergenciesOfType": {"s"}}


def test_straggler_of_the_old_subscription_is_unexpected_after_the_return() -> None:
    made = unsubscribed()
    take(made, (300, 3))
    made.grant("ann", "s", "EmergenciesOfType", {"kind": "fire"}, "1-400", 90.0)
    assert made.audited({"s": stored(102, 205, 300)}).unexpected == 1


def test_speed_divides_periods_and_keeps_comments_and_continuous_channels() -> None:
    text = "-- EVERY 60 SECONDS\nCREATE REPETITIVE CHANNEL A (x INT) EVERY 1 MINUTE AS\n… EVERY 10 SECONDS AS\n"
    shorter, became = compressed(text, 4.0)
    assert (
        shorter
        == "-- EVERY 60 SECONDS\nCREATE REPETITIVE CHANNEL A (x INT) EVERY 15 SECONDS AS\n… EVERY 3 SECONDS AS\n"
    )
    assert became == {60.0: 15.0, 10.0: 3.0}, "in whole seconds"
    assert compressed(text, 20.0)[1] == {60.0: 3.0, 10.0: 2.0}, "not shorter than two seconds"
    assert compressed("… EVERY 2 SECONDS AS\n", 4.0)[1] == {2.0: 2.0}, "never longer than before"
    assert compressed(text, 1.0)[1] == {60.0: 60.0, 10.0: 10.0}


EXAMPLE = Path(__file__).parents[2] / "examples" / "emergency" / "emergency.sql"


def test_periods_of_the_emergency_application_are_the_papers() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert compressed(text, 1.0)[1] == {10.0: 10.0, 20.0: 20.0, 30.0: 30.0}
    assert compressed(text, 10.0)[1] == {10.0: 2.0, 20.0: 2.0, 30.0: 3.0}


def test_application_has_only_the_channels_of_the_settings() -> None:
    def channels(**given: object) -> set[str]:
        text, _ = DemoSettings(EXAMPLE, Path("out"), **given).application_text()  # type: ignore[arg-type]
        return {name for name in CHANNELS if f"CHANNEL {name} " in text}

    assert channels() == set(CHANNELS)
    assert channels(channels=PAPER_CHANNELS) == set(PAPER_CHANNELS)
    assert channels(channels=("EmergenciesOfType",)) == {"EmergenciesOfType"}


def test_short_day_moves_phases_together_and_unknown_names_are_refused() -> None:
    def settings(**given: object) -> DemoSettings:
        return DemoSettings(Path("app.sql"), Path("out"), **given)  # type: ignore[arg-type]

    assert settings().day_s == 1_800 and settings().balancing_from_s == 540
    assert settings(minutes=0.5).balancing_from_s == 90
    assert settings(speed=1.0).balancing_from_s == 54 and settings(speed=1.0).rate_window_s == 60
    assert settings(balance="ldm+gsh").scheme() == {"scheme": "ldm", "shuffle": "gsh"}
    for wrong in ({"balance": "fair"}, {"balance": "ldm+fair"}, {"placement": "anywhere"}):
        with pytest.raises(ValueError, match="expected one of"):
            settings(**wrong).check()
