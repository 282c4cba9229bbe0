"""UAV swarms over a city: figure 8 of [ePulsar §5.8.1] as a simulation.

Swarms fly by random waypoint; all members of a swarm are in the same zone. The leader publishes movements on
`follow_leader`, the followers publish sensor data on `sensor_data`. The simulation follows a sample of the messages one
by one; the load model gets the full rate. The experiment and the tests call `run`; its only randomness is the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.coords.coordinate import Coordinate, behind_proxy
from tocsin.coords.distances import Vectors
from tocsin.model.ids import BrokerId
from tocsin.policies.topics.baselines import hashed_home
from tocsin.policies.topics.partition import plan
from tocsin.policies.topics.types import PartitionPolicy, TopicName
from tocsin.sim.kernel import Kernel
from tocsin.sim.topics.agents import CoordinateAgents
from tocsin.sim.topics.control import IN_TRANSIT_S, LOOPS, Episode, TopicControl
from tocsin.sim.topics.migration import Migrator
from tocsin.sim.topics.network import Network
from tocsin.sim.topics.places import CLOUD_DELAY_S, LTE_ACCESS_S, SITE_HOP_S, edge_sites
from tocsin.sim.topics.work import MeasuredWork
from tocsin.sim.topics.world import Mistake, TopicWorld

MANAGER = "load-manager"
POSITION_EVERY_S = 0.25
"""Period at which a swarm's zone is determined: 12 m of flight."""
CITY_SIDE_M = 18_000.0
"""About the area of the city of Atlanta [ePulsar §5.1.1 names it]: 350 km²."""


@dataclass(frozen=True, slots=True)
class City:
    """A square city with edge sites. A position belongs to the zone of the nearest site."""

    side_m: float
    sites_m: Vectors
    """x and y of each site."""

    def site_of(self, position_m: Vectors) -> int:
        return int(np.argmin(((self.sites_m - position_m) ** 2).sum(axis=1)))


def city_of_zones(zones: int, rng: np.random.Generator, *, side_m: float = CITY_SIDE_M, towers: int = 600) -> City:
    """Edge sites at the k-means centres of cell towers [ePulsar §5.1.1].

    The paper takes the towers of Atlanta from a survey. Ours are drawn, two thirds around the centre and the rest
    anywhere, so that no data file is needed.
    """
    inner = rng.normal(side_m / 2.0, side_m / 5.0, (towers * 2 // 3, 2))
    outer = rng.uniform(0.0, side_m, (towers - len(inner), 2))
    at_m = np.clip(np.vstack([inner, outer]), 0.0, side_m)
    return City(side_m, _k_means(at_m, zones, rng))


def _k_means(at_m: Vectors, count: int, rng: np.random.Generator, rounds: int = 50) -> Vectors:
    """Lloyd's iterations, starting at random towers. A centre that loses all its towers does not move."""
    centres = at_m[rng.choice(len(at_m), count, replace=False)]
    for _ in range(rounds):
        nearest = ((at_m[:, None, :] - centres[None, :, :]) ** 2).sum(axis=-1).argmin(axis=1)
        towers = [at_m[nearest == n] for n in range(count)]
        moved = np.array([towers[n].mean(axis=0) if len(towers[n]) else centres[n] for n in range(count)])
        if np.allclose(moved, centres):
            break
        centres = moved
    return centres


class RandomWaypoint:
    """A mover in a square of `side_m` [ePulsar §5.1.1]: it flies to a random point at constant speed, hovers, and flies
    to the next. Call `at` with times that do not decrease."""

    def __init__(self, rng: np.random.Generator, side_m: float, speed_m_per_s: float, hover_s: float = 0.0) -> None:
        if speed_m_per_s <= 0.0 or hover_s < 0.0:
            raise ValueError(f"a mover cannot fly at {speed_m_per_s} m/s and hover for {hover_s} s")
        self._rng, self._side_m, self._speed, self._hover_s = rng, side_m, speed_m_per_s, hover_s
        self._from: Vectors = rng.uniform(0.0, side_m, 2)
        self._to, self._leaves_s, self._arrives_s = self._from, 0.0, 0.0
        self._next_leg(0.0)

    def at(self, time_s: float) -> Vectors:
        while time_s >= self._arrives_s + self._hover_s:
            self._from = self._to
            self._next_leg(self._arrives_s + self._hover_s)
        share = min(1.0, (time_s - self._leaves_s) / (self._arrives_s - self._leaves_s))
        return self._from + share * (self._to - self._from)

    def _next_leg(self, leaves_s: float) -> None:
        self._to = self._rng.uniform(0.0, self._side_m, 2)
        length_m = max(float(np.linalg.norm(self._to - self._from)), 1e-3)
        self._leaves_s, self._arrives_s = leaves_s, leaves_s + length_m / self._speed


@dataclass(frozen=True, slots=True)
class UavSetting:
    seed: int
    swarms: int = 8
    members: int = 8
    zones: int = 4
    speed_m_per_s: float = 50.0
    hover_s: float = 0.0
    """The paper mentions no pause at waypoints."""
    duration_s: float = 600.0
    bound_s: float = 0.040
    rate_per_s: float = 200.0
    """Messages per second of each UAV in the load model."""
    followed_per_s: float = 10.0
    """Messages per second of each UAV that the simulation follows."""
    executors: int = 16
    loop: str = "tocsin"
    """One of `control.LOOPS`."""
    mistake: Mistake | None = None


@dataclass(frozen=True, slots=True)
class UavEpisode(Episode):
    zone_changes: list[tuple[float, int, int]]
    """(time, swarm, new zone)."""


def topic_names(swarm: int) -> tuple[TopicName, TopicName]:
    return TopicName(f"swarm-{swarm}/follow_leader"), TopicName(f"swarm-{swarm}/sensor_data")


@dataclass(frozen=True, slots=True)
class Flight:
    """The zones of all swarms over time: what happens to them, whichever system carries their messages."""

    at_start: list[int]
    changes: list[tuple[float, int, int]]
    """(time, swarm, new zone), in order."""


def fly(setting: UavSetting) -> Flight:
    """Fly the swarms by random waypoint over the city. Its only randomness is the seed."""
    streams = Kernel(setting.seed)
    city = city_of_zones(setting.zones, streams.stream("towers"))
    paths = [
        RandomWaypoint(streams.stream(f"swarm-{n}"), city.side_m, setting.speed_m_per_s, setting.hover_s)
        for n in range(setting.swarms)
    ]
    at_start = zones = [city.site_of(path.at(0.0)) for path in paths]
    changes: list[tuple[float, int, int]] = []
    for step in range(1, int((setting.duration_s + IN_TRANSIT_S) / POSITION_EVERY_S) + 1):
        at_s = step * POSITION_EVERY_S
        now = [city.site_of(path.at(at_s)) for path in paths]
        changes += [(at_s, swarm, zone) for swarm, zone in enumerate(now) if zone != zones[swarm]]
        zones = now
    return Flight(at_start, changes)


def members_of(setting: UavSetting) -> list[list[str]]:
    """The names of the UAVs of each swarm, the leader first."""
    return [[f"uav-{swarm}-{n}" for n in range(setting.members)] for swarm in range(setting.swarms)]


def topics_of(swarm: int, uavs: list[str]) -> list[tuple[TopicName, list[str], list[str]]]:
    """(name, producers, consumers) of a swarm's two topics."""
    follow, sense = topic_names(swarm)
    return [(follow, uavs[:1], uavs[1:]), (sense, uavs[1:], uavs[:1])]


def run(
    setting: UavSetting,
    policy: PartitionPolicy = plan,
    measured_work: Sequence[tuple[float, float]] = (),
    moves_start_s: float | None = None,
) -> UavEpisode:
    """`measured_work`: (time, seconds of work on a message) of a live run that this one predicts; see `work`.
    `moves_start_s`: a time at which its moves started; see `control`."""
    kernel = Kernel(setting.seed)
    places = edge_sites(setting.zones)
    with_cloud = np.full((setting.zones + 1, setting.zones + 1), CLOUD_DELAY_S)
    with_cloud[:-1, :-1] = places.delay_s
    with_cloud[-1, -1] = 0.0
    network = Network(kernel, with_cloud)
    network.add(MANAGER, setting.zones)
    brokers = [BrokerId(f"edge-{zone}") for zone in range(setting.zones)]
    proxies = [f"proxy-{zone}" for zone in range(setting.zones)]
    for zone in range(setting.zones):
        network.add(brokers[zone], zone)
        network.add(proxies[zone], zone, SITE_HOP_S)
    agents = CoordinateAgents(kernel, network, [*brokers, *proxies])

    flight = fly(setting)
    zone_of, members = list(flight.at_start), members_of(setting)
    swarm_of = {uav: swarm for swarm, uavs in enumerate(members) for uav in uavs}
    world = TopicWorld(kernel, network, setting.mistake)
    if measured_work:
        world.work = MeasuredWork(measured_work, kernel.stream("work"))
    for swarm, uavs in enumerate(members):
        for uav in uavs:
            network.add(uav, zone_of[swarm], SITE_HOP_S + LTE_ACCESS_S)
        for name, producers, consumers in topics_of(swarm, uavs):
            home = hashed_home(name, brokers)  # Pulsar's place for a new topic; the first plan may move it
            world.create(name, home, bound_s=setting.bound_s, rate_per_producer=setting.rate_per_s)
            world.join(name, producers, consumers)

    migrator = Migrator(world, MANAGER, executors=setting.executors)

    def coordinate_of(node: str) -> Coordinate:
        if node not in swarm_of:
            return agents.coordinate(node)
        return behind_proxy(agents.coordinate(proxies[zone_of[swarm_of[node]]]), 2.0 * LTE_ACCESS_S)  # [ePulsar §4]

    control = TopicControl(world, migrator, MANAGER, brokers, coordinate_of, policy=policy, loop=LOOPS[setting.loop])
    agents.start()
    control.start(sorted(swarm_of), moves_start_s)

    def change_zone(swarm: int, zone: int) -> None:
        zone_of[swarm] = zone
        for uav in members[swarm]:
            network.move(uav, zone)
            control.gateway_changed(uav)

    for at_s, swarm, zone in flight.changes:
        kernel.call_at(at_s, change_zone, swarm, zone)
    phases, period_s = kernel.stream("publish"), 1.0 / setting.followed_per_s
    for swarm, uavs in enumerate(members):
        for number, uav in enumerate(uavs):
            name = topic_names(swarm)[0 if number == 0 else 1]
            world.publish_every(name, uav, period_s, float(phases.uniform(0.0, period_s)), setting.duration_s)
    kernel.run(until_s=setting.duration_s + IN_TRANSIT_S)
    return UavEpisode(control.moves, migrator.migrations, world.deliveries, flight.changes)
