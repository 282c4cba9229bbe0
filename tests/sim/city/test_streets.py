"""Streets and the movers on them: maps are read correctly, and no mover leaves the streets."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.sim.city.street_movers import CAR, PEDESTRIAN, Gait, StreetMovers, gathering
from tocsin.sim.city.streets import BadMap, Points, Streets, built_in, read_wkt

HELSINKI = Path(__file__).parents[4] / "shared" / "data" / "helsinki_roads.wkt"
TOWN = """
LINESTRING (0 0, 100 0, 200 0)
MULTILINESTRING ((200 0, 200 100), (200.1 100.2, 100 100, 0 100))
POINT (5 5)
LINESTRING (0 0, 0 100)
LINESTRING (5000 5000, 5100 5000)
"""


def test_connected_lines_become_one_network_and_islands_are_dropped() -> None:
    town = read_wkt(TOWN)
    assert len(town.nodes_m) == 6, "the island and the point are dropped, and two almost equal ends are one crossing"
    assert town.length_m == pytest.approx(600.0, abs=0.5)
    assert len(town.lines) == 4


def test_shortest_path_follows_streets() -> None:
    city = built_in()
    neighbours = {frozenset(pair) for pair in zip(*(ends.tolist() for ends in city.edges), strict=True)}
    rng = np.random.default_rng(3)
    from scipy.sparse.csgraph import shortest_path

    lengths_m = shortest_path(city.graph, directed=False, method="FW")
    for source, destination in rng.integers(len(city.nodes_m), size=(50, 2)).tolist():
        path = [source, *city.path(source, destination)]
        assert all(frozenset(pair) in neighbours for pair in pairwise(path))
        walked_m = np.hypot(*np.diff(city.nodes_m[path], axis=0).T).sum()
        assert walked_m == pytest.approx(lengths_m[source, destination])


def test_degrees_and_geojson_keep_north_and_east() -> None:
    town = read_wkt("LINESTRING (0 0, 1000 0, 1000 2000)")
    south_west, _, north_east = town.degrees(town.nodes_m[np.argsort(town.nodes_m.sum(axis=1))])
    assert north_east[0] > south_west[0] and north_east[1] > south_west[1]
    assert (north_east[0] - south_west[0]) * 111_195 == pytest.approx(2_000)
    [line] = town.geojson()["geometry"]["coordinates"]
    assert line[0] == pytest.approx([24.931, 60.161], abs=1e-3), "longitude first"


def test_map_in_degrees_keeps_its_position() -> None:
    town = read_wkt("LINESTRING (13.40 52.51, 13.41 52.51, 13.41 52.52)")
    assert town.degrees(town.nodes_m).mean(axis=0) == pytest.approx([52.513, 13.407], abs=2e-3)
    assert town.length_m == pytest.approx(1_789, rel=0.01)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no LINESTRING"),
        ("LINESTRING (a b, 1 2)", "no LINESTRING"),
        ("LINESTRING (1, 2)", "not a list of points"),
        ("LINESTRING (1 1, 1.1 1.1)\nLINESTRING (900 900, 900.1 900)", "shorter than a metre"),
    ],
)
def test_invalid_map_is_refused_with_reason(text: str, reason: str) -> None:
    with pytest.raises(BadMap, match=reason):
        read_wkt(text)


@pytest.mark.skipif(not HELSINKI.is_file(), reason="the ONE simulator's map is not part of this project")
def test_map_of_the_paper_is_in_helsinki() -> None:
    city = read_wkt(HELSINKI.read_text(encoding="utf-8"))
    assert len(city.nodes_m) > 1_400 and city.length_m > 100_000
    low, high = city.degrees(city.nodes_m).min(axis=0), city.degrees(city.nodes_m).max(axis=0)
    assert (low > [60.14, 24.88]).all() and (high < [60.20, 25.00]).all()


def away_from_streets_m(city: Streets, places_m: Points) -> float:
    """The largest distance of any of these places from its nearest street segment."""
    starts, ends = (city.nodes_m[nodes] for nodes in city.edges)
    along = ends - starts
    share = ((places_m[:, None] - starts) * along).sum(axis=2) / (along**2).sum(axis=1)
    nearest = starts + np.clip(share, 0.0, 1.0)[..., None] * along
    return float(np.linalg.norm(places_m[:, None] - nearest, axis=2).min(axis=1).max())


@settings(max_examples=10)
@given(seed=st.integers(0, 2**31), step_s=st.floats(0.2, 30.0))
def test_movers_stay_on_streets_and_below_their_maximum_speed(seed: int, step_s: float) -> None:
    city = built_in()
    gaits = [CAR, PEDESTRIAN] * 10
    movers = StreetMovers(city, gaits, [seed])
    fastest = np.array([gait.speed_m_per_s[1] for gait in gaits])
    before = movers.at(0.0)
    for turn in range(1, 41):
        now = movers.at(turn * step_s)
        assert away_from_streets_m(city, now) < 1e-6
        assert (np.linalg.norm(now - before, axis=1) <= fastest * step_s + 1e-6).all()
        before = now


def test_positions_depend_on_seed_and_time_alone() -> None:
    city, gaits = built_in(), [CAR] * 20
    often, once, other = (StreetMovers(city, gaits, [seed]) for seed in (7, 7, 8))
    for second in range(900):
        often.at(float(second))
    assert (often.at(900.0) == once.at(900.0)).all()
    assert not (once.at(900.0) == other.at(900.0)).all()


def test_movers_keep_their_speed_and_pause_between_trips() -> None:
    movers = StreetMovers(built_in(), [Gait((10.0, 10.0), (60.0, 60.0))] * 50, [1])
    places = np.array([movers.at(float(second)) for second in range(1_200)])
    steps_m = np.linalg.norm(np.diff(places, axis=0), axis=2)
    assert steps_m.max() == pytest.approx(10.0)
    assert 0.1 < (steps_m < 1e-9).mean() < 0.6, "about a minute of pause for two to four minutes of driving"


def test_weighted_movers_gather_and_time_cannot_go_back() -> None:
    city = built_in()
    centre = [800.0, 600.0]
    weights = gathering(city, centre, 300.0, 0.0)
    movers = StreetMovers(city, [CAR] * 200, [5], starts=weights, destinations=weights)
    away_m = np.linalg.norm(movers.at(600.0) - centre, axis=1)
    assert np.median(away_m) < 600.0
    with pytest.raises(ValueError, match="do not go back"):
        movers.at(599.0)


def test_ten_thousand_movers_take_under_half_a_second_per_step() -> None:
    import time

    movers = StreetMovers(built_in(), [CAR, PEDESTRIAN, PEDESTRIAN, PEDESTRIAN] * 2_500, [2])
    movers.at(120.0)
    began_s = time.process_time()
    for second in range(121, 131):
        movers.at(float(second))
    assert (time.process_time() - began_s) / 10 < 0.5
