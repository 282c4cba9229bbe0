"""UAV swarms over a city: figure 8 of [ePulsar §5.8.1] as a simulation.

Swarms fly by random waypoint; all members of a swarm are in the same zone. The leader publishes movements on
`follow_leader`, the followers what they see on `sensor_data`. Messages of a sample are followed one by one; the load
model sees the full rate. `run` is pure but for its seed: the experiment and the tests drive it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.coords.coordinate import behind_proxy
from tocsin.model.ids import BrokerId
from tocsin.policies.topics.baselines import hashed_home
from tocsin.policies.topics.partition import plan
from tocsin.policies.topics.types import Broker, PartitionPolicy, TopicName
from tocsin.sim.kernel import Kernel
from tocsin.sim.topics.agents import settled_sites
from tocsin.sim.topics.control import MoveMade, TopicControl
from tocsin.sim.topics.migration import Migration, Migrator
from tocsin.sim.topics.mobility import RandomWaypoint
from tocsin.sim.topics.network import Network
from tocsin.sim.topics.places import (
    CLOUD_DELAY_S,
    LTE_ACCESS_S,
    SITE_HOP_S,
    city_of_zones,
    edge_sites,
)
from tocsin.sim.topics.world import Message, TopicWorld

MANAGER = "load-manager"
POSITION_EVERY_S = 0.25
"""How often a swarm's zone is looked at: 12 m of flight."""


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
    """Messages per second of each UAV; seen by the load model."""
    followed_per_s: float = 10.0
    """Messages per second of each UAV that the simulation follows."""
    executors: int = 16


@dataclass(frozen=True, slots=True)
class UavOutcome:
    latencies: dict[TopicName, list[tuple[float, float]]]
    """Per topic: (published, latency until the last consumer had it), seconds."""
    moves: list[MoveMade]
    migrations: list[Migration]
    zone_changes: list[tuple[float, int, int]]
    """(time, swarm, new zone)."""
    lost: int
    """Deliveries that were owed and never made."""


def topic_names(swarm: int) -> tuple[TopicName, TopicName]:
    return TopicName(f"swarm-{swarm}/follow_leader"), TopicName(f"swarm-{swarm}/sensor_data")


def run(setting: UavSetting, policy: PartitionPolicy = plan) -> UavOutcome:
    kernel = Kernel(setting.seed)
    places = edge_sites(setting.zones)
    with_cloud = np.full((setting.zones + 1, setting.zones + 1), CLOUD_DELAY_S)
    with_cloud[:-1, :-1] = places.delay_s
    with_cloud[-1, -1] = 0.0
    network = Network(kernel, with_cloud)
    network.add(MANAGER, setting.zones)
    at_broker, at_proxy = settled_sites(places, SITE_HOP_S, setting.seed)
    brokers = [Broker(BrokerId(f"edge-{zone}"), at_broker[zone]) for zone in range(setting.zones)]
    for zone, broker in enumerate(brokers):
        network.add(broker.broker, zone)

    city = city_of_zones(setting.zones, kernel.stream("towers"))
    flights = [
        RandomWaypoint(kernel.stream(f"swarm-{n}"), city.side_m, setting.speed_m_per_s, setting.hover_s)
        for n in range(setting.swarms)
    ]
    zone_of = [city.site_of(flight.at(0.0)) for flight in flights]
    members = [[f"uav-{swarm}-{n}" for n in range(setting.members)] for swarm in range(setting.swarms)]
    swarm_of = {uav: swarm for swarm, uavs in enumerate(members) for uav in uavs}
    world = TopicWorld(kernel, network)
    for swarm, uavs in enumerate(members):
        for uav in uavs:
            network.add(uav, zone_of[swarm], SITE_HOP_S + LTE_ACCESS_S)
        follow, sense = topic_names(swarm)
        for name, producers, consumers in ((follow, uavs[:1], uavs[1:]), (sense, uavs[1:], uavs[:1])):
            home = hashed_home(name, brokers).broker  # where Pulsar puts a new topic; the first plan finds it there
            world.create(name, home, bound_s=setting.bound_s, rate_per_producer=setting.rate_per_s)
            world.join(name, producers, consumers)

    latencies: dict[TopicName, list[tuple[float, float]]] = {name: [] for name in world.topics}

    def delivered(message: Message, consumer: str) -> None:
        if not message.waiting:
            latencies[message.topic].append((message.published_s, kernel.now_s - message.published_s))

    world.on_delivery.append(delivered)
    migrator = Migrator(world, MANAGER, executors=setting.executors)
    control = TopicControl(
        world,
        migrator,
        MANAGER,
        brokers,
        lambda uav: behind_proxy(at_proxy[zone_of[swarm_of[uav]]], 2.0 * LTE_ACCESS_S),  # [ePulsar §4]
        policy,
    )
    control.start(sorted(swarm_of))
    zone_changes: list[tuple[float, int, int]] = []

    def look(swarm: int) -> None:
        zone = city.site_of(flights[swarm].at(kernel.now_s))
        if zone != zone_of[swarm]:
            zone_of[swarm] = zone
            zone_changes.append((kernel.now_s, swarm, zone))
            for uav in members[swarm]:
                network.move(uav, zone)
                control.tell_all(uav)

    phases = kernel.stream("publish")
    for swarm, uavs in enumerate(members):
        kernel.every(POSITION_EVERY_S, look, swarm)
        for number, uav in enumerate(uavs):
            name = topic_names(swarm)[0 if number == 0 else 1]
            first_s = float(phases.uniform(0.0, 1.0 / setting.followed_per_s))
            beat = kernel.every(1.0 / setting.followed_per_s, world.publish, name, uav, first_s=first_s)
            kernel.call_at(setting.duration_s, beat.cancel)
    kernel.run(until_s=setting.duration_s + 2.0)  # what is on its way arrives
    return UavOutcome(latencies, control.moves, migrator.migrations, zone_changes, world.outstanding)
