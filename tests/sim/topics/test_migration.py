"""The two migration workflows, step by step, and their effect on messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.model.ids import BrokerId
from tocsin.policies.topics.types import TopicName
from tocsin.sim.kernel import Kernel
from tocsin.sim.topics.control import transients
from tocsin.sim.topics.migration import ACQUIRE_S, REGISTER_S, RELEASE_S, STORE_WRITE_S, Migrator, TopicMigration
from tocsin.sim.topics.network import Network
from tocsin.sim.topics.world import HandOver, Mistake, TopicWorld

OLD, NEW, T = BrokerId("old"), BrokerId("new"), TopicName("t")
WAN_S, SITE_S, HOP_S = 0.040, 0.015, 0.001


def deployment(
    clients: int = 1, topics: int = 1, seed: int = 1, mistake: Mistake | None = None
) -> tuple[Kernel, TopicWorld]:
    """Two edge sites and a cloud; every client at the old broker's site. The first client of a topic produces."""
    kernel = Kernel(seed)
    network = Network(kernel, np.array([[0.0, SITE_S, WAN_S], [SITE_S, 0.0, WAN_S], [WAN_S, WAN_S, 0.0]]))
    for name, place in ((OLD, 0), (NEW, 1), ("manager", 2)):
        network.add(name, place)
    world = TopicWorld(kernel, network, mistake)
    for number in range(topics):
        names = [f"client-{number}-{n}" for n in range(clients)]
        for name in names:
            network.add(name, 0, HOP_S)
        topic = TopicName(f"t{number}") if topics > 1 else T
        world.create(topic, OLD)
        world.join(topic, names[:1], names[1:])
    return kernel, world


def migrated(coordinated: bool) -> TopicMigration:
    kernel, world = deployment()
    done: list[TopicMigration] = []
    Migrator(world, "manager", coordinated=coordinated).migrate(T, NEW).then(done.append)
    kernel.run()
    assert world.topics[T].home == NEW
    return done[0]


def test_load_manager_waits_for_release_write_and_reply() -> None:
    """(1) 40 ms, (2) 40 + 2 + 40 ms, (5) 40 ms [ePulsar §3.6, figure 2]; the same without coordination."""
    for coordinated in (True, False):
        assert migrated(coordinated).released_s == pytest.approx(4 * WAN_S + RELEASE_S + STORE_WRITE_S)


def test_coordinated_downtime_ends_when_the_new_broker_has_the_topic() -> None:
    """(4) 15 ms and (6) 82 ms run while the client connects; the reply takes 16 ms. (3) took 1 ms of it."""
    ready_s = SITE_S + 2 * WAN_S + STORE_WRITE_S + ACQUIRE_S
    assert migrated(coordinated=True).downtimes_s == pytest.approx([ready_s + REGISTER_S + (SITE_S + HOP_S) - HOP_S])


def test_pulsars_downtime_is_look_up_acquisition_and_connection() -> None:
    look_up_s = 2 * (WAN_S + HOP_S)
    to_broker_s = SITE_S + HOP_S
    acquire_s = to_broker_s + 2 * WAN_S + STORE_WRITE_S + ACQUIRE_S + to_broker_s
    connect_s = 4 * to_broker_s + REGISTER_S
    assert migrated(coordinated=False).downtimes_s == pytest.approx([look_up_s + acquire_s + connect_s])


@pytest.mark.parametrize(("executors", "waves"), [(1, 8), (2, 4), (8, 1)])
def test_executors_run_migrations_concurrently(executors: int, waves: int) -> None:
    kernel, world = deployment(topics=8)
    migrator = Migrator(world, "manager", executors=executors)
    for topic in list(world.topics):
        migrator.migrate(topic, NEW)
    kernel.run()
    last_s = max(migration.released_s for migration in migrator.migrations)
    alone_s = 4 * WAN_S + RELEASE_S + STORE_WRITE_S
    contention_s = 8 * (RELEASE_S + ACQUIRE_S + REGISTER_S + 2 * STORE_WRITE_S)
    assert waves * alone_s - 1e-9 <= last_s <= waves * alone_s + contention_s


def test_migrations_at_the_same_broker_slow_each_other_down() -> None:
    """Eight releases arrive together: the broker does one after another, and so does the store."""
    kernel, world = deployment(topics=8)
    migrator = Migrator(world, "manager", executors=8)
    for topic in list(world.topics):
        migrator.migrate(topic, NEW)
    kernel.run()
    released_s = sorted(migration.released_s for migration in migrator.migrations)
    alone_s = 4 * WAN_S + RELEASE_S + STORE_WRITE_S
    assert released_s[0] == pytest.approx(alone_s)
    assert released_s[-1] >= alone_s + 7 * RELEASE_S - 1e-9


def test_pulsar_migrates_one_topic_at_a_time() -> None:
    kernel, world = deployment(topics=3)
    migrator = Migrator(world, "manager", executors=16, coordinated=False)
    for topic in list(world.topics):
        migrator.migrate(topic, NEW)
    kernel.run()
    last_s = max(migration.released_s for migration in migrator.migrations)
    alone_s = 4 * WAN_S + RELEASE_S + STORE_WRITE_S
    assert 3 * alone_s - 1e-9 <= last_s <= 3 * alone_s + 3 * (ACQUIRE_S + REGISTER_S + STORE_WRITE_S)


@pytest.mark.parametrize("coordinated", [True, False])
def test_topic_without_clients_moves_and_moves_back(coordinated: bool) -> None:
    kernel, world = deployment(clients=0)
    migrator = Migrator(world, "manager", coordinated=coordinated)
    migrator.migrate(T, NEW)
    with pytest.raises(RuntimeError, match="already migrating"):
        migrator.migrate(T, NEW)
    kernel.run()
    migrator.migrate(T, OLD)
    kernel.run()
    assert world.topics[T].home == OLD
    assert not migrator.busy


def moved(seed: int, coordinated: bool, moves_s: list[float], mistake: Mistake | None = None) -> TopicWorld:
    """A producer, a near and two far consumers; the topic moves at these times while messages are published."""
    kernel, world = deployment(clients=2, seed=seed, mistake=mistake)
    for name in ("far-1", "far-2"):
        world.network.add(name, 1, 0.030)
    world.join(T, [], ["far-1", "far-2"])
    migrator = Migrator(world, "manager", coordinated=coordinated)

    def move() -> None:
        if T not in migrator.busy:
            migrator.migrate(T, OLD if world.topics[T].home == NEW else NEW)

    for at_s in moves_s:
        kernel.call_at(at_s, move)
    beat = kernel.every(0.013, world.publish, T, "client-0-0")
    kernel.call_at(3.5, beat.cancel)
    kernel.run()
    return world


@given(st.integers(0, 10_000), st.booleans(), st.lists(st.floats(0.0, 3.0), min_size=1, max_size=4))
@settings(max_examples=25)
def test_moving_topic_delivers_every_message_once_and_in_order(
    seed: int, coordinated: bool, moves_s: list[float]
) -> None:
    seen = moved(seed, coordinated, moves_s).deliveries
    assert (seen.outstanding, seen.repeated, seen.out_of_order) == (0, 0, 0)
    assert seen.delivered == seen.owed == 3 * len(seen.latencies[T])


@pytest.mark.parametrize("coordinated", [True, False])
@pytest.mark.parametrize("mistake", list(Mistake))
def test_wrong_workflow_loses_or_reorders_messages(mistake: Mistake, coordinated: bool) -> None:
    seen = moved(1, coordinated, [1.0], mistake).deliveries
    if mistake is Mistake.RESEND_LATE:
        assert seen.out_of_order > 0
    else:
        assert seen.outstanding > 0


def test_message_in_transit_to_a_released_home_is_sent_again() -> None:
    """Published 0.5 ms before the release: it reaches the old broker too late and takes the time of the move."""
    kernel, world = deployment(clients=2)
    Migrator(world, "manager").migrate(T, NEW)
    release_s = 3 * WAN_S + RELEASE_S + STORE_WRITE_S
    kernel.call_at(release_s - HOP_S / 2, world.publish, T, "client-0-0")
    kernel.run()
    ((_, latency_s),) = world.deliveries.latencies[T]
    assert latency_s > 2 * WAN_S


def test_consumer_that_joins_during_a_migration_connects_to_the_new_home() -> None:
    kernel, world = deployment(clients=1)
    world.network.add("late", 0, HOP_S)
    migrator = Migrator(world, "manager")
    migrator.migrate(T, NEW)
    for at_s in (0.02, 0.13, 0.2):  # before the release, between release and acquisition, after
        kernel.call_at(at_s, lambda: kernel.spawn(migrator.subscribe(T, "late", lambda: True)))
    kernel.run()
    assert world.topics[T].consumers == {"late"}
    assert world.sessions["late", T].connected == NEW


def test_consumer_that_leaves_is_owed_no_delivery() -> None:
    kernel, world = deployment(clients=2)
    world.publish(T, "client-0-0")
    world.leave(T, "client-0-1")
    kernel.run()
    seen = world.deliveries
    assert (seen.delivered, seen.abandoned, seen.outstanding) == (0, 1, 0)


def test_acquiring_a_topic_that_was_not_released_raises() -> None:
    _, world = deployment()
    with pytest.raises(RuntimeError, match="has not released"):
        world.acquire(T, NEW, HandOver())


def test_close_late_messages_are_one_transient() -> None:
    late: list[tuple[float, Any]] = [(at_s, 0.2) for at_s in (1.0, 1.5, 2.0, 9.0)]
    spans = transients([*late, (1.2, 0.01), (5.0, 0.05), (9.1, 0.3)], 0.05)
    assert [(span.began_s, span.ended_s, span.peak_s) for span in spans] == [(1.0, 2.0, 0.2), (9.0, 9.1, 0.3)]
    assert spans[0].duration_s == 1.0
