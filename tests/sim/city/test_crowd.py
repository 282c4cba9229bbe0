"""The people of the emergency city: subscriptions and reports as in the paper, the same for the same seed."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from tocsin.sim.city.crowd import CityCrowd, broker_places
from tocsin.sim.city.emergency_reports import EmergencyReport
from tocsin.sim.city.streets import built_in
from tocsin.sim.city.subscriptions import CHANNELS, KINDS, PAPER_CHANNELS, CitySubscription, named_places

CITY = built_in()
NOW = "2026-01-01T00:00:00.000000+00:00"


def crowd(people: int = 400, seed: int = 7, pace: float = 1.0) -> CityCrowd:
    return CityCrowd(CITY, people, seed, places=named_places(CITY, seed), pace=pace)


def subscriptions(city: CityCrowd) -> list[CitySubscription]:
    return [subscription for person in city.people for subscription in person.subscriptions]


@pytest.mark.parametrize("seed", range(4))
def test_400_people_make_as_many_subscriptions_as_the_paper(seed: int) -> None:
    made = subscriptions(crowd(seed=seed))
    assert len(set(made)) == len(made), "a person has the same subscription twice"
    assert len(made) == pytest.approx(2_200, rel=0.15)
    assert len({(subscription.channel, subscription.parameters) for subscription in made}) == pytest.approx(
        600, rel=0.2
    )


def test_person_has_one_to_five_channels_with_one_to_three_subscriptions() -> None:
    for person in crowd().people:
        of_channel = Counter(subscription.channel for subscription in person.subscriptions)
        assert 1 <= len(of_channel) <= 5 and set(of_channel.values()) <= {1, 2, 3}
        assert of_channel.keys() <= CHANNELS.keys()


def test_people_of_the_papers_seven_channels_never_choose_the_eighth() -> None:
    city = CityCrowd(CITY, 400, 7, places=named_places(CITY, 7), channels=PAPER_CHANNELS)
    assert {subscription.channel for subscription in subscriptions(city)} == set(PAPER_CHANNELS)
    assert len(PAPER_CHANNELS) == 7


def test_half_an_hour_has_ten_thousand_reports_as_in_the_paper() -> None:
    city = crowd(people=1)
    reports = [*city.reports.until(900.0), *city.reports.until(1_800.0)]
    assert len(reports) == pytest.approx(10_000, rel=0.05)
    assert [report.number for report in reports] == list(range(len(reports)))
    sizes = [len(json.dumps(report.record(NOW), separators=(",", ":"))) for report in reports]
    assert min(sizes) >= 200 and max(sizes) <= 700 and np.mean(sizes) == pytest.approx(450, abs=10)
    assert {report.kind for report in reports} == set(KINDS) and {report.publisher for report in reports} == set(
        range(8)
    )
    times = [report.time_s for report in reports]
    assert times == sorted(times)


def test_reports_and_positions_depend_on_seed_and_time_alone() -> None:
    often, once = crowd(people=20), crowd(people=20)
    reports = [report for second in range(0, 300, 3) for report in often.reports.until(float(second))]
    assert reports == once.reports.until(297.0)
    assert (often.positions(300.0) == once.positions(300.0)).all()
    assert crowd(people=20, seed=8).reports.until(60.0) != crowd(people=20).reports.until(60.0)


def test_people_gather_so_that_nearest_placement_is_uneven() -> None:
    brokers = np.array(broker_places(CITY, 5))
    assert len({tuple(place) for place in brokers.tolist()}) == 5
    away = np.linalg.norm((crowd().positions(0.0)[:, None] - brokers) * [1.0, 0.5], axis=2)
    hosted = np.bincount(away.argmin(axis=1), minlength=5)
    assert hosted.std() / hosted.mean() > 0.5, hosted


def test_last_batch_continues_the_numbers_and_surrounds_people_and_places() -> None:
    city, places = crowd(people=5), named_places(CITY, 7)
    earlier = city.reports.until(60.0)
    positions = city.positions(60.0)
    batch = city.reports.last_batch(300, 60.0, positions, places)
    assert [report.number for report in batch] == list(range(len(earlier), len(earlier) + 300))
    assert {report.kind for report in batch} == set(KINDS) and {report.severity for report in batch} == {1, 2, 3, 4, 5}

    def near(report: EmergencyReport, lat: float, lon: float) -> float:
        return float(np.hypot((report.lat - lat) * 111_195, (report.lon - lon) * 111_195 * np.cos(np.radians(lat))))

    to_people = [min(near(report, lat, lon) for lat, lon in positions.tolist()) for report in batch[0::3]]
    assert max(to_people) < 1_605 and sum(away < 1_000 for away in to_people) > 50
    to_places = [min(near(report, place.lat, place.lon) / place.radius_m for place in places) for report in batch[1::3]]
    assert max(to_places) < 1.61 and 30 < sum(away < 1 for away in to_places) < 100
    assert batch == crowd_batch(city_seed=7), "the same seed gives the same batch"


def crowd_batch(city_seed: int) -> list[EmergencyReport]:
    city = crowd(people=5, seed=city_seed)
    city.reports.until(60.0)
    return city.reports.last_batch(300, 60.0, city.positions(60.0), named_places(CITY, city_seed))
