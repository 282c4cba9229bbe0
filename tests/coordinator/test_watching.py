"""Trace rows of the coordinator. `World.check` compares the homes in the rows with the registry after every step."""

from __future__ import annotations

import pytest

from tests.coordinator.bench import B1, B2, B3, Bench
from tests.coordinator.coordinator_world import RULES, World
from tocsin.coordinator.effects import RecordTrace
from tocsin.coordinator.events import Ticked, UserRegistered
from tocsin.coordinator.views import status_view
from tocsin.coordinator.watching import balance_row, measured, picture, registered_places
from tocsin.model.ids import BrokerId, SubscriberId, TopicName
from tocsin.model.snapshot import Place
from tocsin.model.trace import Kind, TraceRow
from tocsin.wire.link import LoadReport
from tocsin.wire.site_link import Capacity, Role, SiteLoad, TopicLoad

B0 = BrokerId("b0")


def rows_of_tick(world: World, seconds: float) -> list[TraceRow]:
    world.now_s += seconds
    return [effect.row for effect in world.handle(Ticked()) if isinstance(effect, RecordTrace)]


def test_rows_of_a_death_precede_rows_of_its_failover() -> None:
    world = World(brokers=2, subscribers=4)
    registry = world.core.registry
    orphans = set(registry.hosted(B0))
    world.cut(B0)
    rows: list[TraceRow] = []
    for _ in range(int(RULES.dead_s) + 2):
        world.beat()
        world.deliver_all()
        rows += rows_of_tick(world, 1.0)
    assert rows[0] == TraceRow(rows[0].time_s, Kind.BROKER_FAILED, broker=B0)
    moved = {(row.kind, row.subscriber, row.target) for row in rows[1:]}
    assert moved == {(Kind.FAILOVER, name, "b1") for name in orphans} and orphans
    shown = {row.broker: (row.detail or {})["state"] for row in world.watched.picture(0.0) if row.kind == Kind.BROKER}
    assert shown == {"b0": "dead", "b1": "alive"}
    world.connect(B0)
    healths = []
    while world.brokers[B0].outgoing:
        before = registry.brokers[B0].health
        world.send_next(B0)
        healths.append((before, registry.brokers[B0].health))
    assert ("dead", "probation") in healths
    [row] = [row for row in world.watched.picture(0.0) if row.kind == Kind.BROKER and row.broker == "b0"]
    assert row.detail is not None and row.detail["state"] == "suspect" and row.detail["on_probation"] is True


def test_picture_lists_some_subscribers_and_counts_all() -> None:
    world = World(brokers=2, subscribers=5)
    rows = picture(world.core, 7.0, people=3)
    assert len([row for row in rows if row.kind == Kind.JOIN]) == 3
    assert balance_row(world.core, 7.0).subscribers == 5
    samples = [row for row in measured(world.core, 7.0) if row.kind == Kind.SAMPLE]
    assert sum(row.subscribers or 0 for row in samples) == 5


def test_reported_cov_counts_only_brokers_that_accept() -> None:
    bench = Bench()
    bench.register(B1, B2, B3)
    for broker, load in ((B1, 30.0), (B2, 10.0), (B3, 500.0)):
        bench.send(broker, LoadReport(0.0, load, {}))
    bench.drain(B3)
    row = balance_row(bench.core, 7.0)
    assert row.cov == status_view(bench.core, 7.0)["cov"] == 0.5
    assert row.load_bytes_per_s == 180.0 and row.detail is not None and row.detail["max_bytes_per_s"] == 500.0


def test_place_of_a_registered_user_is_part_of_the_picture() -> None:
    world, ann = World(brokers=1, subscribers=0), SubscriberId("ann")
    effects = world.handle(UserRegistered(1, ann, Place(60.2, 24.9)))
    rows = [effect.row for effect in effects if isinstance(effect, RecordTrace)]
    assert [(row.kind, row.subscriber, row.lat, row.lon) for row in rows] == [(Kind.POSITION, ann, 60.2, 24.9)]
    assert registered_places(world.core, 5.0) == [TraceRow(5.0, Kind.POSITION, subscriber=ann, lat=60.2, lon=24.9)]


def test_sample_of_an_edge_has_its_role_utilisation_and_capacity() -> None:
    bench = Bench()
    capacity = Capacity(out_bytes_per_s=1000.0)
    bench.register(B1, topics=True, role=Role.EDGE, standby=True, limits=capacity)
    bench.register(B2, topics=True)
    for broker in (B1, B2):
        bench.send(broker, SiteLoad([TopicLoad(TopicName("t"), 100.0, 980.0, 5.0, 2, 0)], waiting_bytes=30))
    rows = picture(bench.core, 5.0)
    first, other = (row.detail or {} for row in rows if row.kind == Kind.BROKER)
    assert (first["role"], first["standby"], "role" in other) == ("edge", True, False)
    edge, plain = (row.detail or {} for row in rows if row.kind == Kind.SAMPLE)
    assert edge["site"] == {
        "state": "OVERLOAD",
        "Ui": 0.0,
        "Uo": pytest.approx(0.98),
        "Um": 0.0,
        "offered": {"in_bytes_per_s": 100.0, "out_bytes_per_s": pytest.approx(980.0), "matched_per_s": 5.0},
        "capacity": {"in_bytes_per_s": None, "out_bytes_per_s": 1000.0, "matched_per_s": None},
        "waiting_bytes": 30,
        "waiting_messages": 0,
        "limited_publishers": 0,
    }
    assert "site" not in plain
