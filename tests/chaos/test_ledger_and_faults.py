"""The ledger of a chaos run finds lost, repeated, out-of-order and unexpected deliveries."""

from __future__ import annotations

from tocsin.chaos.faults import FaultKind, schedule
from tocsin.chaos.ledger import Delivery, DeliveryLedger, PingRecord
from tocsin.model.cursor import offset_of

ACCOUNT = ("ann", "kind")


def ledger(*deliveries: tuple[str, int, int]) -> DeliveryLedger:
    """Records p0…p5, two per batch; the subscription matches even ones. Deliveries are (id, execution, row)."""
    made = DeliveryLedger({ACCOUNT: lambda ping: ping.n % 2 == 0})
    made.publish([PingRecord(f"p{n}", "fire", n, n // 2) for n in range(6)])
    for name, execution, row in deliveries:
        made.deliver(ACCOUNT, Delivery(name, f"1-{offset_of(execution, row) + 1}"))
    return made


def test_ledger_with_each_delivery_once_and_in_order_reports_no_error() -> None:
    report = ledger(("p0", 1, 0), ("p4", 2, 0), ("p2", 2, 1)).report()
    assert (report["expected"], report["delivered"]) == (3, 3)
    assert not any(report[name] for name in ("lost", "duplicated", "out_of_order", "unexpected", "gaps"))


def test_missing_delivery_is_lost() -> None:
    assert ledger(("p0", 1, 0), ("p4", 2, 0)).report()["lost"] == 1
    assert ledger(("p0", 1, 0)).missing() == 2


def test_repeated_delivery_is_duplicated() -> None:
    assert ledger(("p0", 1, 0), ("p2", 2, 0), ("p2", 3, 0), ("p4", 4, 0)).report()["duplicated"] == 1


def test_falling_cursor_is_out_of_order() -> None:
    assert ledger(("p2", 2, 0), ("p0", 1, 0), ("p4", 3, 0)).report()["out_of_order"] == 1


def test_execution_with_older_records_than_an_earlier_one_is_out_of_order() -> None:
    assert ledger(("p2", 1, 0), ("p0", 2, 0), ("p4", 3, 0)).report()["out_of_order"] == 1


def test_delivery_that_does_not_match_is_unexpected() -> None:
    assert ledger(("p0", 1, 0), ("p1", 1, 1), ("p2", 2, 0), ("p4", 3, 0)).report()["unexpected"] == 1


def test_schedule_repeats_for_a_seed_and_ten_rounds_cover_every_target() -> None:
    brokers = ["broker-1", "broker-2", "broker-3"]
    rounds = list(schedule(7, 10, 10.0, brokers, cluster=True))
    assert (
        rounds
        == list(schedule(7, 10, 10.0, brokers, cluster=True))
        != list(schedule(8, 10, 10.0, brokers, cluster=True))
    )
    hit = {(fault.kind, fault.target.split("-")[0]) for faults in rounds for fault in faults}
    processes = {(kind, target) for kind, target in hit if kind in (FaultKind.KILL, FaultKind.PAUSE, FaultKind.RESTART)}
    assert {(kind, "broker") for kind in (FaultKind.KILL, FaultKind.PAUSE, FaultKind.RESTART)} <= processes
    assert {target for _, target in processes} == {"broker", "coordinator", "cluster"}
    assert {FaultKind.MIGRATE, FaultKind.DRAIN, FaultKind.DROP, FaultKind.RETURN} <= {kind for kind, _ in hit}
    assert all(0 <= fault.at_s < 10 for faults in rounds for fault in faults)
