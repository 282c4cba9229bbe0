"""Places, the network between them, and movers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tocsin.sim.kernel import Kernel
from tocsin.sim.topics.network import Network
from tocsin.sim.topics.places import US_CITIES, edge_sites, read_places, settled_rtt_s, us_cities
from tocsin.sim.topics.uav import RandomWaypoint, city_of_zones


def test_formula_gives_published_pings() -> None:
    cities = us_cities()
    index = {city[0]: number for number, city in enumerate(US_CITIES)}
    for other, measured_ms in (("Los Angeles", 68), ("Chicago", 20), ("Miami", 31), ("Seattle", 67)):
        assert 1e3 * cities.delay_s[index["New York"], index[other]] == pytest.approx(measured_ms, abs=4)
    assert np.array_equal(cities.delay_s, cities.delay_s.T)
    assert us_cities(3, delay_per_ping=0.5).delay_s[0, 1] == pytest.approx(cities.delay_s[0, 1] / 2)


def test_places_are_read_from_a_file_and_bad_tables_are_refused(tmp_path: Path) -> None:
    good = tmp_path / "good.csv"
    good.write_text("A,B\n0,30\n34,0\n", encoding="utf-8")
    places = read_places(good)
    assert places.names == ("A", "B")
    assert places.delay_s[0, 1] == places.delay_s[1, 0] == pytest.approx(0.032)
    for text in ("A,B\n0,30\n", "A,B\n0,nan\n3,0\n", "A,B\n0,-1\n3,0\n"):
        bad = tmp_path / "bad.csv"
        bad.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match="not a square table"):
            read_places(bad)


def test_edge_sites_are_thirty_milliseconds_apart_plus_hops() -> None:
    rtt_s, (brokers, agents) = settled_rtt_s(edge_sites(3), [0.0, 0.0005])
    assert rtt_s[brokers[0], brokers[1]] == pytest.approx(0.030)
    assert rtt_s[brokers[1], agents[1]] == pytest.approx(0.001)
    assert rtt_s[agents[0], agents[2]] == pytest.approx(0.032)


def test_zones_are_in_the_city_and_positions_belong_to_the_nearest() -> None:
    city = city_of_zones(4, np.random.default_rng(1))
    assert city.sites_m.shape == (4, 2)
    assert ((city.sites_m >= 0) & (city.sites_m <= city.side_m)).all()
    for number, site in enumerate(city.sites_m):
        assert city.site_of(site) == number
    assert np.array_equal(city.sites_m, city_of_zones(4, np.random.default_rng(1)).sites_m)


def test_mover_keeps_its_speed_stays_inside_and_hovers_at_waypoints() -> None:
    mover = RandomWaypoint(np.random.default_rng(1), 1_000.0, 50.0, hover_s=3.0)
    track = np.array([mover.at(0.1 * step) for step in range(2_000)])
    steps = np.linalg.norm(np.diff(track, axis=0), axis=1)
    assert ((track >= 0.0) & (track <= 1_000.0)).all()
    assert steps.max() <= 50.0 * 0.1 + 1e-9
    assert np.isclose(steps, 5.0).mean() > 0.5
    assert (steps < 1e-9).mean() > 0.1
    with pytest.raises(ValueError, match="cannot fly"):
        RandomWaypoint(np.random.default_rng(1), 1_000.0, 0.0)


def test_delay_between_nodes_adds_hops_and_follows_a_move() -> None:
    kernel = Kernel(1)
    network = Network(kernel, edge_sites(2).delay_s)
    network.add("phone", 0, 0.010)
    network.add("broker", 1)
    assert network.delay_s("phone", "broker") == pytest.approx(0.025)
    arrivals: list[float] = []
    network.send("phone", "broker", lambda: arrivals.append(kernel.now_s))
    network.move("phone", 1)
    assert network.delay_s("phone", "broker") == pytest.approx(0.010)
    network.send("phone", "broker", lambda: arrivals.append(kernel.now_s))
    kernel.run()
    assert arrivals == pytest.approx([0.025, 0.025])  # the second does not overtake the first
    with pytest.raises(ValueError, match="already"):
        network.add("phone", 0)
