"""What each person of the emergency city does with the system: login, subscribe, unsubscribe, logout [BAD §6.1.2].

The paper drives its testbed with a scenario file of these four interactions. It gives the times of the first logins and
of the subscriptions. It does not say how many subscribers log out or unsubscribe, nor when: those numbers are ours. All
people are logged in again at the end, so that an audit can expect every notification. Pure: every part has a random
stream of its own, so that a change in one does not change the others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tocsin.sim.city.subscriptions import CHANNELS, CitySubscription, NamedPlace, subscriptions_of

LOGINS_S: Final = (0.0, 240.0)
"""People log in during the first four minutes."""
SUBSCRIPTIONS_S: Final = (240.0, 480.0)
"""People subscribe during the next four minutes."""
AWAY_SHARE: Final = 0.25
"""The share of people that log out and in again. Ours."""
AWAY_TWICE_SHARE: Final = 1 / 3
"""The share of those people that do it twice. Ours."""
AWAY_S: Final = (120.0, 300.0)
"""Time between a logout and the next login. Ours."""
UNSUBSCRIBE_SHARE: Final = 0.2
"""The share of people that unsubscribe one subscription. Ours."""
RETURN_SHARE: Final = 0.5
"""The share of those people that subscribe to it again. Ours."""
LAST_S: Final = 1_620.0
"""All interactions are over by now: the last tenth of half an hour has none."""
_LOGOUTS_S: Final = (500.0, 1_300.0)
_FIRST_OF_TWO_S: Final = (500.0, 800.0)
_SECOND_OF_TWO_S: Final = (1_120.0, 1_300.0)
_UNSUBSCRIBES_S: Final = (540.0, 1_000.0)
_UNSUBSCRIBED_S: Final = (120.0, 300.0)
_AFTER_LOGIN_S: Final = 10.0
"""An interaction that falls into an absence happens this long after the next login."""


@dataclass(frozen=True, slots=True)
class Login:
    at_s: float


@dataclass(frozen=True, slots=True)
class Subscribe:
    at_s: float
    subscription: CitySubscription


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    at_s: float
    subscription: CitySubscription


@dataclass(frozen=True, slots=True)
class Logout:
    at_s: float


Interaction = Login | Subscribe | Unsubscribe | Logout


@dataclass(frozen=True, slots=True)
class CityPerson:
    name: str
    timeline: tuple[Interaction, ...]
    """In order. The first is a login, and every other interaction happens while the person is logged in."""

    @property
    def login_s(self) -> float:
        return self.timeline[0].at_s

    @property
    def subscribes(self) -> list[Subscribe]:
        return [interaction for interaction in self.timeline if isinstance(interaction, Subscribe)]

    @property
    def subscriptions(self) -> list[CitySubscription]:
        """The different subscriptions of this person: a subscription that the person made twice counts once."""
        return list(dict.fromkeys(subscribe.subscription for subscribe in self.subscribes))

    @property
    def logs_out(self) -> bool:
        return any(isinstance(interaction, Logout) for interaction in self.timeline)


def people_of(
    count: int, seed: int, places: Sequence[NamedPlace], pace: float = 1.0, channels: Collection[str] = CHANNELS
) -> list[CityPerson]:
    """The people of a city. With a `pace` of 1 all times are as in the paper, with 0.5 half as long."""
    first = np.random.SeedSequence([seed, 5]).spawn(count)
    away = _absences(count, np.random.default_rng([seed, 7]))
    changes = np.random.SeedSequence([seed, 8]).spawn(count)
    people = []
    for number in range(count):
        name, rng = f"person-{number}", np.random.default_rng(first[number])
        login_s = float(rng.uniform(*LOGINS_S))
        subscribes = [
            Subscribe(float(rng.uniform(*SUBSCRIPTIONS_S)), made)
            for made in subscriptions_of(name, rng, places, channels)
        ]
        timeline: list[Interaction] = [Login(login_s), *subscribes]
        for leaves_s, returns_s in away[number]:
            timeline += [Logout(leaves_s), Login(returns_s)]
        timeline += _changes(subscribes, away[number], np.random.default_rng(changes[number]))
        timeline.sort(key=lambda interaction: interaction.at_s)
        people.append(CityPerson(name, tuple(_at_pace(interaction, pace) for interaction in timeline)))
    return people


def _absences(count: int, rng: np.random.Generator) -> list[list[tuple[float, float]]]:
    """(logout, next login) of each person; most people have none."""
    absences: list[list[tuple[float, float]]] = [[] for _ in range(count)]
    leaving = rng.choice(count, round(count * AWAY_SHARE), replace=False).tolist()
    twice = round(len(leaving) * AWAY_TWICE_SHARE)
    for place, number in enumerate(leaving):
        for window in (_FIRST_OF_TWO_S, _SECOND_OF_TWO_S) if place < twice else (_LOGOUTS_S,):
            leaves_s = float(rng.uniform(*window))
            absences[number].append((leaves_s, leaves_s + float(rng.uniform(*AWAY_S))))
    return absences


def _changes(
    subscribes: Sequence[Subscribe], away: Sequence[tuple[float, float]], rng: np.random.Generator
) -> list[Interaction]:
    """The unsubscribe of this person, and the subscribe after it; most people have none."""
    unsubscribes, returns = rng.random() < UNSUBSCRIBE_SHARE, rng.random() < RETURN_SHARE
    chosen = subscribes[int(rng.integers(len(subscribes)))].subscription
    at_s, later_s = float(rng.uniform(*_UNSUBSCRIBES_S)), float(rng.uniform(*_UNSUBSCRIBED_S))
    if not unsubscribes:
        return []
    at_s = _while_logged_in(at_s, away)
    changes: list[Interaction] = [Unsubscribe(at_s, chosen)]
    if returns:
        changes.append(Subscribe(_while_logged_in(at_s + later_s, away), chosen))
    return changes


def _while_logged_in(at_s: float, away: Sequence[tuple[float, float]]) -> float:
    inside = (returns_s for leaves_s, returns_s in away if leaves_s <= at_s < returns_s + _AFTER_LOGIN_S)
    return next((returns_s + _AFTER_LOGIN_S for returns_s in inside), at_s)


def _at_pace(interaction: Interaction, pace: float) -> Interaction:
    match interaction:
        case Login(at_s):
            return Login(pace * at_s)
        case Logout(at_s):
            return Logout(pace * at_s)
        case Subscribe(at_s, subscription):
            return Subscribe(pace * at_s, subscription)
        case Unsubscribe(at_s, subscription):
            return Unsubscribe(pace * at_s, subscription)
