"""The account of a chaos run finds what is lost, repeated, out of order or not asked for: it must be able to fail."""

from __future__ import annotations

from tocsin.chaos.faults import Kind, schedule
from tocsin.chaos.ledger import Delivery, Ledger, Ping
from tocsin.model.cursor import offset_of

ACCOUNT = ("ann", "kind")


def ledger(*deliveries: tuple[str, int, int]) -> Ledger:
    """Records p0…p5, two a batch, even ones wanted; deliveries as (id, execution, row)."""
    made = Ledger({ACCOUNT: lambda ping: ping.n % 2 == 0})
    made.publish([Ping(f"p{n}", "fire", n, n // 2) for n in range(6)])
    for name, execution, row in deliveries:
        made.deliver(ACCOUNT, Delivery(name, f"1-{offset_of(execution, row) + 1}"))
    return made


def test_everything_once_and_in_order_is_a_clean_account() -> None:
    report = ledger(("p0", 1, 0), ("p4", 2, 0), ("p2", 2, 1)).report()
    assert (report["expected"], report["delivered"]) == (3, 3)
    assert not any(report[name] for name in ("lost", "duplicated", "out_of_order", "unexpected", "gaps"))


def test_what_never_came_is_lost() -> None:
    assert ledger(("p0", 1, 0), ("p4", 2, 0)).report()["lost"] == 1
    assert ledger(("p0", 1, 0)).missing() == 2


def test_what_came_twice_is_duplicated() -> None:
    assert ledger(("p0", 1, 0), ("p2", 2, 0), ("p2", 3, 0), ("p4", 4, 0)).report()["duplicated"] == 1


def test_cursors_that_fall_are_out_of_order() -> None:
    assert ledger(("p2", 2, 0), ("p0", 1, 0), ("p4", 3, 0)).report()["out_of_order"] == 1


def test_an_execution_that_brings_older_records_than_one_before_it_is_out_of_order() -> None:
    assert ledger(("p2", 1, 0), ("p0", 2, 0), ("p4", 3, 0)).report()["out_of_order"] == 1


def test_what_was_not_asked_for_is_unexpected() -> None:
    assert ledger(("p0", 1, 0), ("p1", 1, 1), ("p2", 2, 0), ("p4", 3, 0)).report()["unexpected"] == 1


def test_the_same_seed_is_the_same_schedule_and_ten_rounds_hit_everybody() -> None:
    brokers = ["broker-1", "broker-2", "broker-3"]
    rounds = list(schedule(7, 10, 10.0, brokers, cluster=True))
    assert (
        rounds
        == list(schedule(7, 10, 10.0, brokers, cluster=True))
        != list(schedule(8, 10, 10.0, brokers, cluster=True))
    )
    hit = {(fault.kind, fault.target.split("-")[0]) for faults in rounds for fault in faults}
    processes = {(kind, target) for kind, target in hit if kind in (Kind.KILL, Kind.PAUSE, Kind.RESTART)}
    assert {(kind, "broker") for kind in (Kind.KILL, Kind.PAUSE, Kind.RESTART)} <= processes
    assert {target for _, target in processes} == {"broker", "coordinator", "cluster"}
    assert {Kind.MIGRATE, Kind.DRAIN, Kind.DROP, Kind.RETURN} <= {kind for kind, _ in hit}
    assert all(0 <= fault.at_s < 10 for faults in rounds for fault in faults)
