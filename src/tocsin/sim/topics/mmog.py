"""Players of an online game in groups that re-form: figure 9 of [ePulsar §5.8.2] as a simulation.

Each avatar has a topic: its game server publishes the avatar's actions, the game servers of its group subscribe. A
player stays in a group for 30–60 s and then joins another. Game servers are stationary; only the subscriptions change.
The only randomness of `run` is the seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.coords.coordinate import Coordinate
from tocsin.coords.distances import Vectors
from tocsin.model.ids import BrokerId
from tocsin.policies.topics.baselines import hashed_home
from tocsin.policies.topics.partition import plan
from tocsin.policies.topics.types import PartitionPolicy, TopicName
from tocsin.sim.kernel import Kernel
from tocsin.sim.topics.agents import CoordinateAgents
from tocsin.sim.topics.control import IN_TRANSIT_S, LOOPS, Episode, TopicControl
from tocsin.sim.topics.deliveries import SimulatedMessage
from tocsin.sim.topics.migration import Migrator
from tocsin.sim.topics.network import Network
from tocsin.sim.topics.places import CITY_HOP_S, US_CITIES, Places, us_cities
from tocsin.sim.topics.work import MeasuredWork
from tocsin.sim.topics.world import Mistake, TopicState, TopicWorld

MANAGER = "load-manager"
CITIES = ("New York", "Los Angeles", "Seattle", "Miami", "Chicago")
"""Five cities of the USA; New York hosts the load manager [ePulsar §5.1.2]. The paper does not name the others: these
are the corners of the country and its middle, the widest choice."""


@dataclass(frozen=True, slots=True)
class MmogSetting:
    seed: int
    players: int = 64
    groups: int = 16
    """Groups of about four players; the paper does not give the size. Small groups change most: with groups of eight
    nearly every city is in every group, and regrouping hardly changes a topic's latency."""
    stay_s: tuple[float, float] = (30.0, 60.0)
    duration_s: float = 600.0
    bound_s: float = 0.100
    rate_per_s: float = 300.0
    followed_per_s: float = 4.0
    executors: int = 16
    delay_per_ping: float = 1.0
    """The link delay per ping: see `places.us_cities`."""
    loop: str = "tocsin"
    """One of `control.LOOPS`."""
    mistake: Mistake | None = None


@dataclass(frozen=True, slots=True)
class MmogEpisode(Episode):
    received: dict[str, list[tuple[TopicName, float, float]]]
    """Per player, the messages received: (topic, published, latency)."""
    regroupings_s: list[float]
    """Times at which a player joined another group."""


def topic_of(player: str) -> TopicName:
    return TopicName(f"avatar/{player}")


def city_of(topic: str) -> str:
    """The city of a topic's avatar: players are spread over the cities in turn."""
    return CITIES[int(topic.rpartition("-")[2]) % len(CITIES)]


def places_of(setting: MmogSetting) -> Places:
    """The five cities and the delays between them."""
    everywhere = us_cities(delay_per_ping=setting.delay_per_ping)
    chosen = [[city[0] for city in US_CITIES].index(name) for name in CITIES]
    return Places(CITIES, everywhere.delay_s[np.ix_(chosen, chosen)])


def players_of(setting: MmogSetting) -> dict[str, int]:
    """Player → city, uniformly [ePulsar §5.8.2]."""
    players = [f"player-{number:02}" for number in range(setting.players)]
    return {player: CITIES.index(city_of(topic_of(player))) for player in players}


@dataclass(frozen=True, slots=True)
class Regrouping:
    """The groups of all players over time, whichever system carries their messages."""

    at_start: dict[str, int]
    """Player → group."""
    changes: list[tuple[float, str, int]]
    """(time, player, new group), in order."""


def regroup(setting: MmogSetting) -> Regrouping:
    """Let each player stay in a group for a while and join another. Its only randomness is the seed."""
    rng, players = Kernel(setting.seed).stream("groups"), list(players_of(setting))
    shuffled = [players[index] for index in rng.permutation(len(players))]
    groups = {player: number % setting.groups for number, player in enumerate(shuffled)}
    at_start = dict(groups)
    leaving = [(float(rng.uniform(*setting.stay_s)), number) for number in range(len(players))]
    heapq.heapify(leaving)
    changes: list[tuple[float, str, int]] = []
    while leaving:
        at_s, number = heapq.heappop(leaving)
        if at_s >= setting.duration_s:
            break
        player = players[number]
        groups[player] = (groups[player] + int(rng.integers(1, setting.groups))) % setting.groups
        changes.append((at_s, player, groups[player]))
        heapq.heappush(leaving, (at_s + float(rng.uniform(*setting.stay_s)), number))
    return Regrouping(at_start, changes)


def run(
    setting: MmogSetting,
    policy: PartitionPolicy = plan,
    measured_work: Sequence[tuple[float, float]] = (),
    moves_start_s: float | None = None,
) -> MmogEpisode:
    """`measured_work`: (time, seconds of work on a message) of a live run that this one predicts; see `work`.
    `moves_start_s`: a time at which its moves started; see `control`."""
    kernel = Kernel(setting.seed)
    places = places_of(setting)
    network = Network(kernel, places.delay_s)
    network.add(MANAGER, CITIES.index("New York"))
    brokers = [BrokerId(f"broker-{number}") for number in range(len(CITIES))]
    servers = [f"server-{number}" for number in range(len(CITIES))]
    for number in range(len(CITIES)):
        network.add(brokers[number], number)
        network.add(servers[number], number, CITY_HOP_S)
    agents = CoordinateAgents(kernel, network, [*brokers, *servers])

    place_of = players_of(setting)
    players = list(place_of)
    world = TopicWorld(kernel, network, setting.mistake)
    world.is_reachable = Reach(places.delay_s + CITY_HOP_S, place_of)
    if measured_work:
        world.work = MeasuredWork(measured_work, kernel.stream("work"))
    for player in players:
        network.add(player, place_of[player], CITY_HOP_S)
        home = hashed_home(topic_of(player), brokers)  # Pulsar's place for a new topic
        world.create(topic_of(player), home, bound_s=setting.bound_s, rate_per_producer=setting.rate_per_s)
    migrator = Migrator(world, MANAGER, executors=setting.executors)
    regrouping = regroup(setting)
    _Game(kernel, world, migrator, regrouping)

    def coordinate_of(node: str) -> Coordinate:
        return agents.coordinate(servers[place_of[node]] if node in place_of else node)

    control = TopicControl(world, migrator, MANAGER, brokers, coordinate_of, policy=policy, loop=LOOPS[setting.loop])

    received: dict[str, list[tuple[TopicName, float, float]]] = {player: [] for player in players}

    def on_delivery(message: SimulatedMessage, consumer: str, now_s: float) -> None:
        received[consumer].append((message.topic, message.published_s, now_s - message.published_s))

    world.deliveries.on_delivery.append(on_delivery)
    agents.start()
    control.start(players, moves_start_s)
    phases, period_s = kernel.stream("publish"), 1.0 / setting.followed_per_s
    for player in players:
        first_s = float(phases.uniform(0.0, period_s))
        world.publish_every(topic_of(player), player, period_s, first_s, setting.duration_s)
    kernel.run(until_s=setting.duration_s + IN_TRANSIT_S)
    regroupings_s = [at_s for at_s, _, _ in regrouping.changes]
    return MmogEpisode(control.moves, migrator.migrations, world.deliveries, received, regroupings_s)


class Reach:
    """Whether any broker can meet the bound of a topic for its present clients, by true delays."""

    def __init__(self, leg_s: Vectors, place_of: dict[str, int]) -> None:
        self._leg_s, self._place_of = leg_s, place_of
        self._best_s: dict[tuple[int, frozenset[int]], float] = {}

    def __call__(self, state: TopicState, producer: str) -> bool:
        return state.bound_s is None or self.within(state.bound_s, producer, state.consumers)

    def within(self, bound_s: float, producer: str, consumers: Collection[str]) -> bool:
        if not consumers:
            return True
        place = self._place_of[producer]
        places = frozenset(self._place_of[consumer] for consumer in consumers)
        if (place, places) not in self._best_s:
            through_s = self._leg_s[place] + self._leg_s[sorted(places)].max(axis=0)
            self._best_s[place, places] = float(through_s.min())
        return self._best_s[place, places] <= bound_s


class _Game:
    """The groups of players. A new member subscribes to the others' topics, and they to the new member's."""

    def __init__(self, kernel: Kernel, world: TopicWorld, migrator: Migrator, regrouping: Regrouping) -> None:
        self._kernel, self._world, self._migrator = kernel, world, migrator
        self.group_of = dict(regrouping.at_start)
        for player in sorted(self.group_of):
            world.join(topic_of(player), [player], self._mates(player))
        for at_s, player, group in regrouping.changes:
            kernel.call_at(at_s, self._join_another, player, group)

    def together(self, player: str, other: str) -> bool:
        return self.group_of[player] == self.group_of[other]

    def _join_another(self, player: str, group: int) -> None:
        for other in self._mates(player):
            self._world.leave(topic_of(player), other)
            self._world.leave(topic_of(other), player)
        self.group_of[player] = group
        for other in self._mates(player):
            self._subscribe(topic_of(player), other, player)
            self._subscribe(topic_of(other), player, other)

    def _mates(self, player: str) -> list[str]:
        return [other for other in self.group_of if other != player and self.together(player, other)]

    def _subscribe(self, topic: TopicName, consumer: str, producer: str) -> None:
        process = self._migrator.subscribe(topic, consumer, lambda: self.together(consumer, producer))
        self._kernel.spawn(process)
