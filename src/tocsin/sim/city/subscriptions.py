"""What people of the emergency city subscribe to [BAD §6.1.2]: one to five channels, one to three times each.

The paper gives those two ranges and the totals, about 2,200 frontend and 600 backend subscriptions for 400 people; how
channels and values are chosen it does not say. Evenly chosen "near me" channels alone would make some 800 backend
subscriptions, since nobody shares them. Ours, chosen so that both totals come out: channels have a popularity, places
come from a short list of named ones that are picked by Zipf's law, and kinds are picked evenly. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tocsin.sim.city.streets import Streets

KINDS: Final = ("fire", "flood", "storm", "crash", "outage", "explosion", "spill", "riot")
"""Eight kinds of emergency, as in the paper."""
PLACES: Final = 14
_ZIPF: Final = 1.0
RADII_M: Final = (250.0, 400.0, 550.0)
"""Of named places; every place has one, so that two people who name it share a subscription."""
NEAR_M: Final = (500.0, 1_000.0, 1_500.0)
"""How far is near, for the channel that lets people choose."""
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
"""Parameters and popularity. The last channel is beyond the paper."""


@dataclass(frozen=True, slots=True)
class NamedPlace:
    """A named part of the city that people subscribe to."""

    name: str
    lat: float
    lon: float
    radius_m: float


@dataclass(frozen=True, slots=True)
class CitySubscription:
    """A frontend subscription: who wants which channel with which values."""

    person: str
    channel: str
    parameters: tuple[tuple[str, Any], ...]


def named_places(streets: Streets, seed: int, count: int = PLACES) -> list[NamedPlace]:
    """Crossings all over the city, the most popular first."""
    dice = np.random.default_rng([seed, 6])
    chosen = dice.choice(len(streets.nodes_m), min(count, len(streets.nodes_m)), replace=False)
    where = streets.degrees(streets.nodes_m[chosen]).round(4).tolist()
    return [
        NamedPlace(f"place-{number}", lat, lon, RADII_M[number % len(RADII_M)])
        for number, (lat, lon) in enumerate(where)
    ]


def wishes_of(person: str, dice: np.random.Generator, places: Sequence[NamedPlace]) -> list[CitySubscription]:
    """Channels without repetition by their popularity, then values without repetition as far as there are any."""
    names = list(CHANNELS)
    popularity = np.array([weight for _, weight in CHANNELS.values()])
    count = min(len(names), int(dice.integers(1, 6)))
    chosen = dice.choice(len(names), count, replace=False, p=popularity / popularity.sum())
    return [wish for index in chosen.tolist() for wish in _of_channel(person, names[index], dice, places)]


def _of_channel(
    person: str, channel: str, dice: np.random.Generator, places: Sequence[NamedPlace]
) -> list[CitySubscription]:
    wanted = int(dice.integers(1, 4))
    names, _ = CHANNELS[channel]
    if names == ("user",):
        wanted = 1  # there is only one "me"
    found: list[CitySubscription] = []
    while len(found) < min(wanted, _choices(names, len(places))):
        wish = CitySubscription(person, channel, _values(names, person, dice, places))
        if wish not in found:
            found.append(wish)
    return found


def _choices(names: Sequence[str], places: int) -> int:
    each = {"kind": len(KINDS), "place": places, "near": len(NEAR_M), "user": 1}
    return int(np.prod([each[name] for name in names]))


def _values(
    names: Sequence[str], person: str, dice: np.random.Generator, places: Sequence[NamedPlace]
) -> tuple[tuple[str, Any], ...]:
    values: dict[str, Any] = {}
    for name in names:
        match name:
            case "kind":
                values["kind"] = KINDS[int(dice.integers(len(KINDS)))]
            case "user":
                values["user"] = person
            case "near":
                values["radius_m"] = NEAR_M[int(dice.integers(len(NEAR_M)))]
            case _:
                place = places[_zipf(dice, len(places))]
                values |= {"lat": place.lat, "lon": place.lon, "radius_m": place.radius_m}
    return tuple(values.items())


def _zipf(dice: np.random.Generator, count: int) -> int:
    weights = 1.0 / np.arange(1, count + 1) ** _ZIPF
    return int(dice.choice(count, p=weights / weights.sum()))
