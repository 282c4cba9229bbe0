"""The demo's account and its compressed application, on numbers that can be checked by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tocsin.cluster.sql.geo import distance_m
from tocsin.demo.account import Audit, DemoAccount, Recomputed, great_circle_m
from tocsin.demo.settings import DemoSettings, compressed


def account() -> DemoAccount:
    """Four reports, published at 10, 20, 30 and 40 s; ann has subscribed to fires since 15 s."""
    made = DemoAccount()
    for number, kind in enumerate(("fire", "fire", "flood", "fire")):
        made.publish(number, kind, 60.17, 24.94 + number / 1_000, 10.0 * (number + 1))
    made.grant("ann", "s", "EmergenciesOfType", {"kind": "fire"}, "1-100", 15.0)
    return made


def take(into: DemoAccount, *results: tuple[int, int]) -> None:
    for offset, number in results:
        into.take(into.holding("ann", "s"), f"1-{offset}", number, 50.0)


def test_account_of_complete_deliveries_has_no_errors() -> None:
    made = account()
    take(made, (102, 1), (205, 3))
    assert made.audited({"s": np.array([50, 102, 205])}) == Audit(expected=2, received=2)
    assert made.recomputed() == Recomputed(subscriptions=1, expected=2)
    assert [made.frontend(), made.backend(), made.delivered] == [1, 1, 2]
    assert list(made.holding("ann", "s").latencies_s) == [30.0, 10.0]


def test_stored_result_that_did_not_arrive_is_lost_in_both_comparisons() -> None:
    made = account()
    take(made, (102, 1))
    assert made.audited({"s": np.array([102, 205])}).lost == 1
    assert made.recomputed().lost == 1


def test_repeats_disorder_unknown_reports_and_gaps_are_counted() -> None:
    made = account()
    take(made, (205, 3), (102, 1), (102, 1), (300, 2))
    made.take(made.holding("ann", "s"), "1-301", None, 50.0)
    made.gaps = 1
    audit = made.audited({"s": np.array([102, 205])})
    assert audit == Audit(expected=2, received=4, repeated=1, out_of_order=1, unexpected=2, gaps=1)
    assert made.recomputed().unexpected == 1, "a flood is not a fire"


def test_report_published_before_the_grant_may_arrive_or_not() -> None:
    made = account()
    take(made, (101, 0), (102, 1), (205, 3))
    assert made.recomputed() == Recomputed(subscriptions=1, expected=2)


def test_results_of_another_epoch_are_unexpected() -> None:
    made = account()
    take(made, (102, 1))
    made.take(made.holding("ann", "s"), "2-205", 3, 50.0)
    assert made.audited({"s": np.array([102, 205])}).unexpected == 1


def test_places_match_by_distance_and_their_edge_is_left_open() -> None:
    made = DemoAccount()
    for number, lon in enumerate((24.940, 24.9489, 24.9491, 24.960)):  # 0, 492, 503 and 1,106 m away
        made.publish(number, "fire", 60.17, lon, 1.0)
    radius_m = distance_m(60.17, 24.9489, 60.17, 24.94)
    made.grant("ann", "s", "EmergenciesAtLocation", {"lat": 60.17, "lon": 24.94, "radius_m": radius_m}, "1-0", 0.0)
    take(made, (1, 0))
    assert made.recomputed() == Recomputed(subscriptions=1, expected=1), "the report on the edge is not expected"


def test_distances_agree_with_the_data_cluster() -> None:
    places = np.array([(60.17, 24.94), (60.18, 24.99), (60.15, 24.90)])
    ours = great_circle_m(places, 60.165, 24.95)
    assert ours == pytest.approx([distance_m(lat, lon, 60.165, 24.95) for lat, lon in places.tolist()], abs=0.01)


def test_speed_divides_periods_and_keeps_comments_and_continuous_channels() -> None:
    text = "-- EVERY 60 SECONDS\nCREATE REPETITIVE CHANNEL A (x INT) EVERY 1 MINUTE AS\n… EVERY 10 SECONDS AS\n"
    shorter, became = compressed(text, 4.0)
    assert (
        shorter
        == "-- EVERY 60 SECONDS\nCREATE REPETITIVE CHANNEL A (x INT) EVERY 15 SECONDS AS\n… EVERY 5 SECONDS AS\n"
    )
    assert became == {60.0: 15.0, 10.0: 5.0}, "not shorter than five seconds"
    assert compressed("… EVERY 2 SECONDS AS\n", 4.0)[1] == {2.0: 2.0}, "never longer than before"
    assert compressed(text, 1.0)[1] == {60.0: 60.0, 10.0: 10.0}


def test_periods_of_the_emergency_application_are_the_papers() -> None:
    path = Path(__file__).parents[2] / "examples" / "emergency" / "emergency.sql"
    text = path.read_text(encoding="utf-8")
    assert compressed(text, 1.0)[1] == {10.0: 10.0, 20.0: 20.0, 30.0: 30.0}
    assert compressed(text, 10.0)[1] == {10.0: 5.0, 20.0: 5.0, 30.0: 5.0}


def test_short_day_moves_phases_together_and_unknown_names_are_refused() -> None:
    def settings(**given: object) -> DemoSettings:
        return DemoSettings(Path("app.sql"), Path("out"), **given)  # type: ignore[arg-type]

    assert settings().day_s == 1_800 and settings().balancing_from_s == 540
    assert settings(minutes=0.5).balancing_from_s == 90
    assert settings(balance="ldm+gsh").scheme() == {"scheme": "ldm", "shuffle": "gsh"}
    for wrong in ({"balance": "fair"}, {"balance": "ldm+fair"}, {"placement": "anywhere"}):
        with pytest.raises(ValueError, match="expected one of"):
            settings(**wrong).check()
