"""The people of the emergency city: subscriptions and reports as in the paper, the same for the same seed."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from tocsin.sim.city.crowd import CityCrowd, broker_places
from tocsin.sim.city.streets import built_in
from tocsin.sim.city.subscriptions import CHANNELS, KINDS, CitySubscription, named_places

CITY = built_in()
NOW = "2026-01-01T00:00:00.000000+00:00"


def crowd(people: int = 400, seed: int = 7, pace: float = 1.0) -> CityCrowd:
    return CityCrowd(CITY, people, seed, places=named_places(CITY, seed), pace=pace)


def subscriptions(city: CityCrowd) -> list[CitySubscription]:
    return [subscription for person in city.people for _, subscription in person.subscriptions]


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
        of_channel = Counter(subscription.channel for _, subscription in person.subscriptions)
        assert 1 <= len(of_channel) <= 5 and set(of_channel.values()) <= {1, 2, 3}
        assert of_channel.keys() <= CHANNELS.keys()


def test_people_log_in_for_four_minutes_then_subscribe_for_four() -> None:
    people = crowd().people
    assert all(0 <= person.login_s <= 240 for person in people)
    moments = [moment for person in people for moment, _ in person.subscriptions]
    assert min(moments) >= 240 and max(moments) <= 480 and np.mean(moments) == pytest.approx(360, abs=10)
    assert max(moment for person in crowd(pace=0.1).people for moment, _ in person.subscriptions) <= 48


def test_half_an_hour_has_ten_thousand_reports_as_in_the_paper() -> None:
    city = crowd(people=1)
    reports = [*city.reports(900.0), *city.reports(1_800.0)]
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
    reports = [report for second in range(0, 300, 3) for report in often.reports(float(second))]
    assert reports == once.reports(297.0)
    assert (often.positions(300.0) == once.positions(300.0)).all()
    assert crowd(people=20, seed=8).reports(60.0) != crowd(people=20).reports(60.0)


def test_people_gather_so_that_nearest_placement_is_uneven() -> None:
    brokers = np.array(broker_places(CITY, 5))
    assert len({tuple(place) for place in brokers.tolist()}) == 5
    away = np.linalg.norm((crowd().positions(0.0)[:, None] - brokers) * [1.0, 0.5], axis=2)
    hosted = np.bincount(away.argmin(axis=1), minlength=5)
    assert hosted.std() / hosted.mean() > 0.5, hosted
