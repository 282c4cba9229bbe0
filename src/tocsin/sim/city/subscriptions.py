"""The channels that people of the emergency city subscribe to [BAD §6.1.2]: one to five, one to three times each.

The paper gives those two ranges and the totals: about 2,200 frontend and 600 backend subscriptions for 400 people. It
does not say how channels and values are chosen. If all channels were equally popular, the "near me" channels alone
would make some 800 backend subscriptions, because each belongs to one person. Our choice meets both totals: channels
have a popularity, places come from a short list and are drawn by Zipf's law, and kinds are drawn evenly. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tocsin.sim.city.streets import Streets

KINDS: Final = ("fire", "flood", "storm", "crash", "outage", "explosion", "spill", "riot")
"""Eight kinds of emergency, as in the paper."""
PLACES: Final = 14
_ZIPF: Final = 1.0
RADII_M: Final = (250.0, 400.0, 550.0)
"""Radii of named places. A place has one radius, so that two people with the same place share a subscription."""
NEAR_M: Final = (500.0, 1_000.0, 1_500.0)
"""Radii to choose from in `SevereNearMe`."""
CHANNELS: Final[dict[str, tuple[tuple[str, ...], float]]] = {
    "EmergenciesOfType": (("kind",), 0.5),
    "EmergenciesAtLocation": (("place",), 1.0),
    "EmergenciesNearMe": (("user",), 0.22),
    "EmergenciesOfTypeNearMe": (("kind", "user"), 0.15),
    "EmergenciesOfTypeAtLocation": (("kind", "place"), 1.0),
    "EmergenciesOfTypeWithShelterNearMe": (("kind", "user"), 0.15),
    "EmergenciesOfTypeAtLocationWithShelter": (("kind", "place"), 1.0),
    "SevereNearMe": (("user", "near"), 0.08),
}
"""Parameters and popularity of each channel. The last one is beyond the paper."""
BEYOND_THE_PAPER: Final = "SevereNearMe"
PAPER_CHANNELS: Final = tuple(name for name in CHANNELS if name != BEYOND_THE_PAPER)
"""The seven channels of the paper's testbed."""


@dataclass(frozen=True, slots=True)
class NamedPlace:
    """A part of the city that people subscribe to."""

    name: str
    lat: float
    lon: float
    radius_m: float


@dataclass(frozen=True, slots=True)
class CitySubscription:
    """A frontend subscription of one person."""

    person: str
    channel: str
    parameters: tuple[tuple[str, Any], ...]


def named_places(streets: Streets, seed: int, count: int = PLACES) -> list[NamedPlace]:
    """Random crossings of the city, the most popular first."""
    rng = np.random.default_rng([seed, 6])
    chosen = rng.choice(len(streets.nodes_m), min(count, len(streets.nodes_m)), replace=False)
    where = streets.degrees(streets.nodes_m[chosen]).round(4).tolist()
    return [
        NamedPlace(f"place-{number}", lat, lon, RADII_M[number % len(RADII_M)])
        for number, (lat, lon) in enumerate(where)
    ]


def subscriptions_of(
    person: str, rng: np.random.Generator, places: Sequence[NamedPlace], channels: Collection[str] = CHANNELS
) -> list[CitySubscription]:
    """Distinct channels by popularity, each with distinct parameter values as far as there are enough."""
    names = [name for name in CHANNELS if name in channels]
    popularity = np.array([CHANNELS[name][1] for name in names])
    count = min(len(names), int(rng.integers(1, 6)))
    chosen = rng.choice(len(names), count, replace=False, p=popularity / popularity.sum())
    return [made for index in chosen.tolist() for made in _of_channel(person, names[index], rng, places)]


def _of_channel(
    person: str, channel: str, rng: np.random.Generator, places: Sequence[NamedPlace]
) -> list[CitySubscription]:
    names, _ = CHANNELS[channel]
    count = min(int(rng.integers(1, 4)), _combinations(names, len(places)))
    made: list[CitySubscription] = []
    while len(made) < count:
        subscription = CitySubscription(person, channel, _values(names, person, rng, places))
        if subscription not in made:
            made.append(subscription)
    return made


def _combinations(names: Sequence[str], places: int) -> int:
    """The number of different values that these parameters can have for one person."""
    values = {"kind": len(KINDS), "place": places, "near": len(NEAR_M), "user": 1}
    return int(np.prod([values[name] for name in names]))


def _values(
    names: Sequence[str], person: str, rng: np.random.Generator, places: Sequence[NamedPlace]
) -> tuple[tuple[str, Any], ...]:
    values: dict[str, Any] = {}
    for name in names:
        match name:
            case "kind":
                values["kind"] = KINDS[int(rng.integers(len(KINDS)))]
            case "user":
                values["user"] = person
            case "near":
                values["radius_m"] = NEAR_M[int(rng.integers(len(NEAR_M)))]
            case _:
                place = places[_zipf(rng, len(places))]
                values |= {"lat": place.lat, "lon": place.lon, "radius_m": place.radius_m}
    return tuple(values.items())


def _zipf(rng: np.random.Generator, count: int) -> int:
    weights = 1.0 / np.arange(1, count + 1) ** _ZIPF
    return int(rng.choice(count, p=weights / weights.sum()))
