"""The UAV and MMOG scenarios as plain facts: places, delays, topics, clients, and what changes when.

`uav.run` and `mmog.run` simulate the same facts: zones and groups come from `uav.fly` and `mmog.regroup`. A driver of
real processes reads a `Scenario` (`demo.topic_scenarios`). Brokers have the names of a `Stack`: broker-1, broker-2, …
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import combinations_with_replacement

from tocsin.model.ids import BrokerId, TopicName
from tocsin.policies.topics.baselines import hashed_home
from tocsin.sim.topics import mmog, uav
from tocsin.sim.topics.places import CITY_HOP_S, CLOUD_DELAY_S, LTE_ACCESS_S, SITE_HOP_S, Places, edge_sites

COORDINATOR = "coordinator"
CLOUD = "cloud"


@dataclass(frozen=True, slots=True)
class ScenarioTopic:
    home: str
    """The broker that hashing chooses, as Pulsar does."""
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    """At the start."""


@dataclass(frozen=True, slots=True)
class ClientsMoved:
    """All clients at a node enter another place, where another broker is near."""

    at_s: float
    node: str
    place: str
    gateway: str


@dataclass(frozen=True, slots=True)
class ConsumersChanged:
    """A player has joined another group."""

    at_s: float
    left: tuple[tuple[TopicName, str], ...]
    joined: tuple[tuple[TopicName, str], ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    brokers: int
    delays_s: dict[tuple[str, str], float]
    """One-way delays between places."""
    places: dict[str, str]
    """Node → place at the start. Nodes are the coordinator, the brokers, the probes and the nodes of clients."""
    clients: dict[str, str]
    """Client → its node."""
    gateways: dict[str, str]
    """Node of clients → the broker near it at the start."""
    probes: dict[str, str]
    """Node near a broker that stays there → that broker: a driver may measure the work of its processes from there."""
    topics: dict[TopicName, ScenarioTopic]
    changes: list[ClientsMoved | ConsumersChanged]
    bound_s: float
    rate_per_s: float
    """Messages per second of each producer, for each topic that it produces for."""
    duration_s: float
    is_reachable: Callable[[str, Collection[str]], bool]
    """Whether any broker can meet the bound for this producer and these consumers."""

    @property
    def occasions_s(self) -> list[float]:
        """The times at which something changed that may ask for a move."""
        return [change.at_s for change in self.changes]


def uav_scenario(setting: uav.UavSetting) -> Scenario:
    flight, members = uav.fly(setting), uav.members_of(setting)
    delays_s = _delays_s(edge_sites(setting.zones), SITE_HOP_S + LTE_ACCESS_S)
    for zone in range(setting.zones):
        delays_s[CLOUD, _site(zone)] = CLOUD_DELAY_S
        delays_s[CLOUD, _street(zone)] = CLOUD_DELAY_S + SITE_HOP_S + LTE_ACCESS_S
    nodes = [f"swarm-{swarm}" for swarm in range(setting.swarms)]
    places = {COORDINATOR: CLOUD, **_broker_places(setting.zones)}
    places |= {node: _street(zone) for node, zone in zip(nodes, flight.at_start, strict=True)}
    edges = [BrokerId(f"edge-{zone}") for zone in range(setting.zones)]
    topics = {
        name: ScenarioTopic(_broker(edges.index(hashed_home(name, edges))), tuple(producers), tuple(consumers))
        for swarm, uavs in enumerate(members)
        for name, producers, consumers in uav.topics_of(swarm, uavs)
    }
    moved = [ClientsMoved(at_s, nodes[swarm], _street(zone), _broker(zone)) for at_s, swarm, zone in flight.changes]
    return Scenario(
        setting.zones,
        delays_s,
        places,
        {client: nodes[swarm] for swarm, uavs in enumerate(members) for client in uavs},
        {node: _broker(zone) for node, zone in zip(nodes, flight.at_start, strict=True)},
        _probes(setting.zones),
        topics,
        [change for change in moved if change.at_s < setting.duration_s],
        setting.bound_s,
        setting.rate_per_s,
        setting.duration_s,
        lambda producer, consumers: True,
    )


def mmog_scenario(setting: mmog.MmogSetting) -> Scenario:
    regrouping, cities, city_of = mmog.regroup(setting), mmog.places_of(setting), mmog.players_of(setting)
    brokers = [BrokerId(f"broker-{number}") for number in range(len(cities.names))]
    groups = dict(regrouping.at_start)

    def mates(player: str) -> list[str]:
        return [other for other in groups if other != player and groups[other] == groups[player]]

    topics = {
        mmog.topic_of(player): ScenarioTopic(
            _broker(brokers.index(hashed_home(mmog.topic_of(player), brokers))), (player,), tuple(mates(player))
        )
        for player in city_of
    }
    changes: list[ClientsMoved | ConsumersChanged] = []
    for at_s, player, group in regrouping.changes:
        left = _both_ways(player, mates(player))
        groups[player] = group
        changes.append(ConsumersChanged(at_s, left, _both_ways(player, mates(player))))
    reach = mmog.Reach(cities.delay_s + CITY_HOP_S, city_of)
    return Scenario(
        len(cities.names),
        _delays_s(cities, CITY_HOP_S),
        {COORDINATOR: _site(cities.names.index("New York")), **_broker_places(len(cities.names))}
        | {f"servers-{number}": _street(number) for number in range(len(cities.names))},
        {player: f"servers-{number}" for player, number in city_of.items()},
        {f"servers-{number}": _broker(number) for number in range(len(cities.names))},
        _probes(len(cities.names)),
        topics,
        changes,
        setting.bound_s,
        setting.rate_per_s,
        setting.duration_s,
        lambda producer, consumers: reach.within(setting.bound_s, producer, consumers),
    )


def _both_ways(player: str, others: list[str]) -> tuple[tuple[TopicName, str], ...]:
    """(topic, consumer) of a player and each of the others."""
    topics = [(mmog.topic_of(player), other) for other in others]
    return (*topics, *((mmog.topic_of(other), player) for other in others))


def _delays_s(sites: Places, access_s: float) -> dict[tuple[str, str], float]:
    """Delays between the sites of brokers and the streets of clients, which are `access_s` from their site."""
    delays_s: dict[tuple[str, str], float] = {}
    for one, other in combinations_with_replacement(range(len(sites.names)), 2):
        between_s = float(sites.delay_s[one, other])
        delays_s[_site(one), _site(other)] = between_s
        delays_s[_street(one), _site(other)] = delays_s[_street(other), _site(one)] = between_s + access_s
    return delays_s


def _broker_places(count: int) -> dict[str, str]:
    places = {_broker(number): _site(number) for number in range(count)}
    return places | {_probe(number): _street(number) for number in range(count)}


def _probes(count: int) -> dict[str, str]:
    return {_probe(number): _broker(number) for number in range(count)}


def _probe(number: int) -> str:
    return f"probe-{number + 1}"


def _broker(number: int) -> str:
    return f"broker-{number + 1}"


def _site(number: int) -> str:
    return f"site-{number}"


def _street(number: int) -> str:
    return f"street-{number}"
