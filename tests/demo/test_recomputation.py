"""Expected notifications computed from reports, positions and shelters, on places that can be checked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tocsin.cluster.sql.geo import distance_m
from tocsin.demo.account import DemoAccount, PublishedReport
from tocsin.demo.recomputation import RULES, Recomputed, Shelters, great_circle_m, recomputed_batch, recomputed_day
from tocsin.sim.city.subscriptions import CHANNELS

LAT, LON = 60.17, 24.94
EAST_100_M = 0.0018084
"""100 m to the east at this latitude, in degrees."""
SHELTERS = Shelters.read(
    [
        "shelter_id,name,capacity,lat,lon",
        *(f"S{n},{name},9,{LAT},{LON + east * EAST_100_M}" for n, (name, east) in enumerate(
            (("Mill", 19.0), ("School", 2.0), ("Hall", -3.0), ("Church", 8.0), ("Far", 30.0))
        )),
    ]
)  # fmt: skip


def account(*reports: tuple[str, int, float], batch_from: int | None = 0) -> DemoAccount:
    """Reports (kind, severity, hundreds of metres to the east of the centre), published at 10, 20, … s."""
    made = DemoAccount(batch_from=batch_from)
    for number, (kind, severity, east) in enumerate(reports):
        made.publish(number, PublishedReport(kind, severity, LAT, LON + east * EAST_100_M, 10.0 * (number + 1)))
    return made


def hold(made: DemoAccount, channel: str, parameters: dict[str, Any], *numbers: int, since_s: float = 0.0) -> None:
    made.grant("ann", "s", channel, parameters, "1-0", since_s)
    receive(made, *numbers)


def receive(made: DemoAccount, *numbers: int, shelters: tuple[str, ...] = ()) -> None:
    holding = made.holding("ann", "s")
    for number in numbers:
        made.take(holding, f"1-{len(holding.offsets) + 1}", number, 100.0, shelters)


def test_distances_agree_with_the_data_cluster() -> None:
    places = np.array([(60.17, 24.94), (60.18, 24.99), (60.15, 24.90)])
    ours = great_circle_m(places, 60.165, 24.95)
    assert ours == pytest.approx([distance_m(lat, lon, 60.165, 24.95) for lat, lon in places.tolist()], abs=0.01)
    assert great_circle_m(np.array([(LAT, LON + EAST_100_M)]), LAT, LON) == pytest.approx([100.0], abs=0.1)


def test_day_expects_matching_reports_published_after_the_grant() -> None:
    made = account(("fire", 1, 0), ("fire", 1, 0), ("flood", 1, 0), ("fire", 1, 0))
    hold(made, "EmergenciesOfType", {"kind": "fire"}, 1, since_s=15.0)
    assert recomputed_day(made) == Recomputed(subscriptions=1, expected=2, lost=1)
    receive(made, 3, 0)
    assert recomputed_day(made) == Recomputed(subscriptions=1, expected=2), "the first report may arrive or not"
    receive(made, 2)
    assert recomputed_day(made).unexpected == 1, "a flood is not a fire"


def test_day_leaves_the_edge_of_a_place_open() -> None:
    made = account(("fire", 1, 0), ("fire", 1, 5), ("fire", 1, 5.1), ("fire", 1, 11))
    radius_m = float(great_circle_m(np.array([(LAT, LON + 5 * EAST_100_M)]), LAT, LON)[0])
    hold(made, "EmergenciesAtLocation", {"lat": LAT, "lon": LON, "radius_m": radius_m}, 0)
    assert recomputed_day(made) == Recomputed(subscriptions=1, expected=1), "the report on the edge is not expected"
    receive(made, 3)
    assert recomputed_day(made).unexpected == 1


def test_day_expects_reports_until_a_minute_before_the_unsubscribe() -> None:
    made = account(*[("fire", 1, 0)] * 10)  # published at 10 to 100 s
    hold(made, "EmergenciesOfType", {"kind": "fire"}, 0, 1)
    made.leave("ann", "s", np.array([1, 2], np.int64), 95.0)
    made.end("ann", "s", 96.0)
    assert recomputed_day(made) == Recomputed(subscriptions=1, expected=3, lost=1), "10, 20 and 30 s were due at 95 s"
    receive(made, 2)
    assert recomputed_day(made).lost == 1, "a result after the answer does not count for the ended subscription"


PERSON = {"ann": (LAT, LON)}


@pytest.mark.parametrize(
    ("channel", "parameters", "expected"),
    [
        ("EmergenciesOfType", {"kind": "fire"}, {0, 2, 3, 5}),
        ("EmergenciesAtLocation", {"lat": LAT, "lon": LON, "radius_m": 250.0}, {0, 1}),
        ("EmergenciesOfTypeAtLocation", {"kind": "fire", "lat": LAT, "lon": LON, "radius_m": 250.0}, {0}),
        ("EmergenciesNearMe", {"user": "ann"}, {0, 1, 2, 4}),
        ("EmergenciesOfTypeNearMe", {"kind": "fire", "user": "ann"}, {0, 2}),
        ("SevereNearMe", {"user": "ann", "radius_m": 1_500.0}, {2, 3, 4}),
    ],
)
def test_batch_expects_these_reports(channel: str, parameters: dict[str, Any], expected: set[int]) -> None:
    made = account(
        ("fire", 1, 0), ("flood", 3, 2), ("fire", 4, -9), ("fire", 5, 12), ("flood", 5, 4), ("fire", 5, 20)
    )  # fmt: skip
    hold(made, channel, parameters, *sorted(expected))
    right = Recomputed(subscriptions=1, expected=len(expected))
    assert recomputed_batch(made, PERSON, SHELTERS) == {channel: right}
    receive(made, *(set(range(6)) - expected))
    assert recomputed_batch(made, PERSON, SHELTERS)[channel].unexpected == 6 - len(expected)


def test_batch_knows_every_channel_of_the_city() -> None:
    assert RULES.keys() == CHANNELS.keys()


def test_batch_ranks_shelters_from_the_user_or_from_the_emergency() -> None:
    place = {"kind": "fire", "lat": LAT, "lon": LON, "radius_m": 1_000.0}
    for channel, parameters, names in (
        ("EmergenciesOfTypeWithShelterNearMe", {"kind": "fire", "user": "ann"}, ("School", "Hall", "Church")),
        ("EmergenciesOfTypeAtLocationWithShelter", place, ("Church", "School", "Hall")),
    ):
        made = account(("fire", 1, 7))
        hold(made, channel, parameters)
        receive(made, 0, shelters=names)
        assert recomputed_batch(made, PERSON, SHELTERS)[channel] == Recomputed(subscriptions=1, expected=1)
        other = account(("fire", 1, 7))
        hold(other, channel, parameters)
        receive(other, 0, shelters=(names[1], names[0], names[2]))
        assert recomputed_batch(other, PERSON, SHELTERS)[channel].wrong_shelters == 1, "the order counts"


def test_shelters_within_two_kilometres_are_listed_and_ties_are_left_open() -> None:
    assert SHELTERS.nearest(LAT, LON + 27 * EAST_100_M) == ("Far", "Mill", "Church")
    assert SHELTERS.nearest(LAT, LON + 45 * EAST_100_M) == ("Far",)
    assert SHELTERS.nearest(61.0, LON) == ()
    assert SHELTERS.nearest(LAT, LON - 0.5 * EAST_100_M) is None, "School and Hall are equally far"


def test_batch_leaves_out_unsubscribed_subscriptions_and_earlier_reports() -> None:
    made = account(("fire", 1, 0), ("fire", 1, 0), batch_from=1)
    hold(made, "EmergenciesOfType", {"kind": "fire"}, 0, 1)
    assert recomputed_batch(made, PERSON, SHELTERS)["EmergenciesOfType"] == Recomputed(1, 1)
    made.leave("ann", "s", np.array([1], np.int64), 50.0)
    made.end("ann", "s", 51.0)
    assert recomputed_batch(made, PERSON, SHELTERS) == {}
