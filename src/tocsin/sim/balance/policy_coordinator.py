"""The coordinator's role in the simulation: where newcomers go, and a plan for what brokers reported.

`PolicyCoordinator` is the least that can play it: the same placement and the same `multistage.plan` as live, and the
plan's memory carried to the next snapshot. No arbiter, no failure detection, no migration state machine: `balance_run`
stands in for those, and `balance_core` has the real ones.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np

from tocsin.model.plan import Plan
from tocsin.model.snapshot import Flags, Floats, Ints, Place, Snapshot
from tocsin.policies.balance.multistage import BalanceSettings, plan
from tocsin.policies.balance.placement import BrokerChoice, Newcomer, PlacementPolicy, place


@dataclass(frozen=True, slots=True)
class ArrivingSubscribers:
    """Subscribers that ask for a broker in one instant, in this order."""

    places_deg: Floats
    """Latitude and longitude each."""
    draws: Floats
    """Uniform in [0, 1) each, for random placement."""


@dataclass(frozen=True, slots=True)
class BrokersSeen:
    """What the coordinator knows of the brokers when somebody arrives."""

    choices: tuple[BrokerChoice, ...]
    expected_bytes_per_s: float
    """What a newcomer will probably add: load that is assigned and not yet reported."""


class Coordinator(Protocol):
    def place(self, arrivals: ArrivingSubscribers, brokers: BrokersSeen) -> Ints:
        """A broker's index for each; UNPLACED if none accepts."""

    def plan(self, snapshot: Snapshot) -> Plan: ...

    def described(self) -> dict[str, Any]:
        """How it is set, for whoever looks at a trace."""


class PolicyCoordinator:
    def __init__(self, placement: PlacementPolicy, settings: BalanceSettings) -> None:
        self._placement, self._settings = placement, settings
        self._turn = 0
        self._memory: dict[str, float] = {}

    def described(self) -> dict[str, Any]:
        return {"placement": str(self._placement), **asdict(self._settings)}

    def plan(self, snapshot: Snapshot) -> Plan:
        found = plan(replace(snapshot, memory=self._memory), self._settings)
        self._memory = dict(found.memory)
        return found

    def place(self, arrivals: ArrivingSubscribers, brokers: BrokersSeen) -> Ints:
        turn, count = self._turn, len(arrivals.draws)
        self._turn += count
        if self._placement is PlacementPolicy.LEAST_LOADED:
            return self._one_by_one(arrivals, brokers, turn)
        return place_together(self._placement, arrivals, brokers.choices, turn)

    def _one_by_one(self, arrivals: ArrivingSubscribers, brokers: BrokersSeen, turn: int) -> Ints:
        """Each arrival changes what the next one sees."""
        choices = list(brokers.choices)
        index = {choice.broker: j for j, choice in enumerate(choices)}
        chosen = np.full(len(arrivals.draws), -1, dtype=np.int32)
        for number in range(len(chosen)):
            found = place(self._placement, Newcomer(turn=turn + number), choices)
            if found is not None:
                j = chosen[number] = index[found]
                load = choices[j].load_bytes_per_s + brokers.expected_bytes_per_s
                choices[j] = replace(choices[j], load_bytes_per_s=load)
        return chosen


def place_together(
    policy: PlacementPolicy, arrivals: ArrivingSubscribers, brokers: tuple[BrokerChoice, ...], turn: int
) -> Ints:
    """`placement.place` for many at once (a test holds the two together); not for LEAST_LOADED."""
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
        # The nearest on a sphere is the one whose direction from its middle is most alike.
        nearest = np.argmax(_directions(arrivals.places_deg) @ _directions(at_deg).T, axis=1)
        chosen: Ints = open_to[np.array(located)[nearest]]
        return chosen
    return open_to[(turn + np.arange(count)) % len(open_to)]


def _directions(places_deg: Floats) -> Floats:
    lat, lon = np.radians(places_deg).T
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=1)
