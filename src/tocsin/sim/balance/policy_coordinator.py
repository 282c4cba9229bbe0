"""A coordinator of policies alone: places new subscribers and plans on reported loads.

It uses the same placement and the same `multistage.plan` as the live coordinator and carries the plan's memory to the
next snapshot. It has no arbiter, failure detection or migration state machine: `run` substitutes for those, and
`coordinator_run` has the real ones.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tocsin.model.plan import Plan
from tocsin.model.snapshot import Flags, Floats, Ints, Place, Snapshot
from tocsin.policies.balance.multistage import plan
from tocsin.policies.balance.placement import BrokerChoice, Newcomer, place
from tocsin.policies.balance.settings import BalanceSettings, PlacementPolicy


@dataclass(frozen=True, slots=True)
class ArrivingSubscribers:
    """Subscribers that request a broker at the same instant, in this order."""

    places_deg: Floats
    """Latitude and longitude of each subscriber."""
    draws: Floats
    """A random number in [0, 1) for each subscriber; for random placement."""


class PolicyCoordinator:
    def __init__(self, placement: PlacementPolicy, settings: BalanceSettings) -> None:
        self._placement, self._settings = placement, settings
        self._turn = 0
        self._memory: dict[str, float] = {}

    def described(self) -> dict[str, Any]:
        """The settings, for the trace."""
        return {"placement": str(self._placement), **asdict(self._settings)}

    @property
    def answers_surges(self) -> bool:
        return self._settings.surges

    def plan(self, snapshot: Snapshot) -> Plan:
        made = plan(replace(snapshot, memory=self._memory), self._settings)
        self._memory = dict(made.memory)
        return made

    def place(
        self, arrivals: ArrivingSubscribers, brokers: tuple[BrokerChoice, ...], expected_bytes_per_s: float
    ) -> Ints:
        """The broker index of each subscriber; UNPLACED if none accepts.

        `expected_bytes_per_s` is the load that a new subscriber will probably add: it is assigned and not yet reported.
        """
        turn = self._turn
        self._turn += len(arrivals.draws)
        if self._placement is PlacementPolicy.LEAST_LOADED:
            return _place_on_least_loaded(arrivals, brokers, expected_bytes_per_s)
        return place_together(self._placement, arrivals, brokers, turn)


def _place_on_least_loaded(
    arrivals: ArrivingSubscribers, brokers: tuple[BrokerChoice, ...], expected_bytes_per_s: float
) -> Ints:
    """Place the subscribers one by one, because each adds to the load that the next one sees."""
    choices = list(brokers)
    index = {choice.broker: j for j, choice in enumerate(choices)}
    chosen = np.full(len(arrivals.draws), -1, dtype=np.int32)
    for number in range(len(chosen)):
        broker = place(PlacementPolicy.LEAST_LOADED, Newcomer(), choices)
        if broker is not None:
            j = chosen[number] = index[broker]
            load = choices[j].load_bytes_per_s + expected_bytes_per_s
            choices[j] = replace(choices[j], load_bytes_per_s=load)
    return chosen


def place_together(
    policy: PlacementPolicy, arrivals: ArrivingSubscribers, brokers: tuple[BrokerChoice, ...], turn: int
) -> Ints:
    """`placement.place` for many subscribers at once (a test compares the two); not for LEAST_LOADED."""
    count = len(arrivals.draws)
    accepting: Flags = np.array([choice.accepting for choice in brokers], dtype=np.bool_)
    open_to = np.flatnonzero(accepting).astype(np.int32)
    if not open_to.size:
        return np.full(count, -1, dtype=np.int32)
    if policy is PlacementPolicy.RANDOM:
        return open_to[(arrivals.draws * len(open_to)).astype(np.int64)]
    where = [brokers[j].place for j in open_to]
    located = [j for j, at in enumerate(where) if at is not None]
    if policy is PlacementPolicy.NEAREST and located:
        at_deg = np.array([(at.lat, at.lon) for at in where if isinstance(at, Place)])
        # The nearest point on a sphere has the most similar direction, seen from the centre.
        nearest = np.argmax(_directions(arrivals.places_deg) @ _directions(at_deg).T, axis=1)
        chosen: Ints = open_to[np.array(located)[nearest]]
        return chosen
    return open_to[(turn + np.arange(count)) % len(open_to)]


def _directions(places_deg: Floats) -> Floats:
    """Unit vectors from the centre of the Earth."""
    lat, lon = np.radians(places_deg).T
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=1)
