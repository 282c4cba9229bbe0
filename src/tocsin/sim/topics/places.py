"""Places, the delays between them, and the network coordinates of the nodes there: cities of the USA and edge sites.

Facts and formulas, no events. A simulation puts brokers, gateways and servers at places. Delays are one-way, in
seconds.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tocsin.coords.coordinate import Coordinate
from tocsin.coords.distances import Vectors
from tocsin.coords.gossip import settle
from tocsin.coords.worlds import great_circle_km

US_CITIES: tuple[tuple[str, float, float], ...] = (
    ("New York", 40.71, -74.01), ("Los Angeles", 34.05, -118.24), ("Chicago", 41.88, -87.63), ("Dallas", 32.78, -96.80),
    ("Seattle", 47.61, -122.33), ("Miami", 25.76, -80.19), ("Denver", 39.74, -104.99), ("Atlanta", 33.75, -84.39),
    ("San Francisco", 37.77, -122.42), ("Boston", 42.36, -71.06), ("Phoenix", 33.45, -112.07),
    ("Minneapolis", 44.98, -93.27), ("Houston", 29.76, -95.37), ("Washington", 38.91, -77.04),
    ("Salt Lake City", 40.76, -111.89), ("Kansas City", 39.10, -94.58), ("Portland", 45.52, -122.68),
    ("Charlotte", 35.23, -80.84), ("San Diego", 32.72, -117.16), ("Detroit", 42.33, -83.05),
)  # fmt: skip
"""Name, latitude and longitude in degrees. New York is first: it hosts the coordinator [ePulsar §5.1.2]."""

FIBRE_MS_PER_KM = 0.005
"""Light in glass travels 200 km per millisecond."""
ROUTE_FACTOR = 1.75
"""Fibre follows roads and exchanges: measured pings between these cities exceed the great circle by this factor."""
EQUIPMENT_MS = 1.0


@dataclass(frozen=True, slots=True)
class Places:
    names: tuple[str, ...]
    delay_s: Vectors
    """One-way delays from place to place; zero on the diagonal."""

    def first(self, count: int) -> Places:
        return Places(self.names[:count], self.delay_s[:count, :count])


def ping_ms(distance_km: Vectors) -> Vectors:
    """The city-to-city ping time by great circle: 1 ms + 1.75 · 2 · distance · 0.005 ms/km.

    New York to Los Angeles gives 70 ms, to Chicago 21 ms, to Miami 32 ms; published pings are 65–70, 20 and 30 ms.
    """
    ping = EQUIPMENT_MS + ROUTE_FACTOR * 2.0 * FIBRE_MS_PER_KM * distance_km
    np.fill_diagonal(ping, 0.0)
    return ping


def us_cities(count: int = len(US_CITIES), *, delay_per_ping: float = 1.0) -> Places:
    """The first `count` cities.

    [ePulsar §5.1.2] takes inter-city latencies from a table of pings and uses them as link delays (§5.2), so each
    message is delayed by a whole ping, as with `delay_per_ping` = 1. This pessimistic reading fits figure 4. With half
    a ping per direction (0.5), no pair of these cities exceeds 100 ms through any broker.
    """
    chosen = US_CITIES[:count]
    distance_km = great_circle_km([city[1] for city in chosen], [city[2] for city in chosen])
    return Places(tuple(city[0] for city in chosen), ping_ms(distance_km) * 1e-3 * delay_per_ping)


def read_places(path: Path, *, delay_per_ping: float = 1.0) -> Places:
    """Measured latencies from a square CSV of pings in milliseconds, with names in the first row."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if row]
    names, table = tuple(name.strip() for name in rows[0]), np.array(rows[1:], dtype=np.float64)
    if table.shape != (len(names), len(names)) or not (np.isfinite(table) & (table >= 0.0)).all():
        raise ValueError(f"{path}: not a square table of {len(names)} × {len(names)} latencies")
    ping = (table + table.T) / 2.0
    np.fill_diagonal(ping, 0.0)
    return Places(names, ping * 1e-3 * delay_per_ping)


INTER_SITE_RTT_S = 0.030
"""Round-trip time between edge sites of a city, through its switch [ePulsar §5.1.1]."""
SITE_HOP_S = 0.0005
"""Ours: one-way delay between two machines of one edge site."""
LTE_ACCESS_S = 0.010
"""Ours: one-way delay from a UAV to its edge site. The paper does not give it; LTE takes about 10 ms."""
CLOUD_DELAY_S = 0.040
"""One-way delay from any edge site to the coordinator in the cloud [ePulsar §5.1.1]."""
CITY_HOP_S = 0.005
"""One-way delay between broker and game server of one city [ePulsar §5.1.2]."""
SETTLE_ROUNDS = 600
"""Agents settle for ten minutes of one probe a second before a simulation uses their coordinates [ePulsar §5.5.1]."""
NEAR = 2
"""Every second probe goes to one of the two fastest peers: an agent must recognise a broker next to it."""
JITTER = 0.02
DELAYED_SHARE = 0.01


def edge_sites(zones: int) -> Places:
    delay_s = np.full((zones, zones), INTER_SITE_RTT_S / 2.0)
    np.fill_diagonal(delay_s, 0.0)
    return Places(tuple(f"zone {n}" for n in range(zones)), delay_s)


def settled_rtt_s(places: Places, hop_s: Sequence[float]) -> tuple[Vectors, list[list[int]]]:
    """RTTs among all nodes if each place has one node per entry of `hop_s`, which is `hop_s` (one way) away from it.

    Returns the matrix and, per entry, the node numbers by place.
    """
    count = len(places.names)
    gateways = [place for _ in hop_s for place in range(count)]
    access_s = np.repeat(np.asarray(hop_s), count)
    rtt_s = 2.0 * (places.delay_s[np.ix_(gateways, gateways)] + access_s[:, None] + access_s[None, :])
    np.fill_diagonal(rtt_s, 0.0)
    return rtt_s, [list(range(kind * count, (kind + 1) * count)) for kind in range(len(hop_s))]


def jitter(rtt_s: Vectors, rng: np.random.Generator) -> Vectors:
    """The RTT that a probe measures: 2 % of spread around the truth, and one packet in a hundred takes twice as long.

    Ours: the paper's emulated links have the noise of its machine, which it does not state.
    """
    measured_s = rtt_s * np.exp(rng.normal(0.0, JITTER, len(rtt_s)))
    return np.where(rng.random(len(rtt_s)) < DELAYED_SHARE, measured_s * 2.0, measured_s)


def settled_sites(places: Places, hop_s: float, seed: int) -> tuple[list[Coordinate], list[Coordinate]]:
    """Settled coordinates of the brokers and of the agents `hop_s` (one way) next to them, one of each per place."""
    rtt_s, (brokers, agents) = settled_rtt_s(places, [0.0, hop_s])
    settled = settle(rtt_s, SETTLE_ROUNDS, np.random.default_rng(seed), near=NEAR, noise=jitter).coordinates()
    return [settled[node] for node in brokers], [settled[node] for node in agents]
