"""What a death looks like to those who watch; that homes are always told is checked in every step of `World.check`."""

from __future__ import annotations

from tests.coordinator.coordinator_world import RULES, World
from tocsin.coordinator.effects import RecordTrace
from tocsin.coordinator.events import Ticked
from tocsin.coordinator.watching import balance_row, measured, picture
from tocsin.model.ids import BrokerId
from tocsin.model.trace import Kind, TraceRow


def told_by_time(world: World, seconds: float) -> list[TraceRow]:
    world.now_s += seconds
    return [effect.row for effect in world.happen(Ticked()) if isinstance(effect, RecordTrace)]


def test_a_death_is_told_first_and_then_who_went_where() -> None:
    world = World(brokers=2, subscribers=4)
    [home] = {one.home for one in world.core.registry.subscribers.values() if one.home == BrokerId("b0")}
    orphans = set(world.core.registry.hosted(BrokerId("b0")))
    world.cut(BrokerId("b0"))
    rows: list[TraceRow] = []
    for _ in range(int(RULES.dead_s) + 2):
        world.beat()
        world.deliver_all()
        rows += told_by_time(world, 1.0)
    assert rows[0] == TraceRow(rows[0].time_s, Kind.BROKER_FAILED, broker=home)
    moved = {(row.kind, row.subscriber, row.target) for row in rows[1:]}
    assert moved == {(Kind.FAILOVER, one, "b1") for one in orphans} and orphans
    shown = {row.broker: (row.detail or {})["state"] for row in world.seen.picture(0.0) if row.kind == Kind.BROKER}
    assert shown == {"b0": "dead", "b1": "alive"}
    world.connect(BrokerId("b0"))
    found = world.brokers[BrokerId("b0")]
    back = []
    while found.out:
        before = world.core.registry.brokers[BrokerId("b0")].health
        world.send_next(BrokerId("b0"))
        back.append((before, world.core.registry.brokers[BrokerId("b0")].health))
    assert ("dead", "probation") in back
    [row] = [row for row in world.seen.picture(0.0) if row.kind == Kind.BROKER and row.broker == "b0"]
    assert row.detail is not None and row.detail["state"] == "suspect" and row.detail["on_probation"] is True


def test_a_picture_names_only_so_many_people_and_still_counts_them_all() -> None:
    world = World(brokers=2, subscribers=5)
    rows = picture(world.core, 7.0, people=3)
    assert len([row for row in rows if row.kind == Kind.JOIN]) == 3
    assert balance_row(world.core, 7.0).subscribers == 5
    samples = [row for row in measured(world.core, 7.0) if row.kind == Kind.SAMPLE]
    assert sum(row.subscribers or 0 for row in samples) == 5
