"""The ledger of a chaos run finds lost, repeated, out-of-order and unexpected deliveries."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tocsin.chaos.faults import PROCESS_FAULTS, Fault, FaultKind, schedule
from tocsin.chaos.ledger import Delivery, DeliveryLedger, PingRecord
from tocsin.chaos.run import failed
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


def test_late_subscription_expects_only_later_batches() -> None:
    made = ledger(("p4", 2, 0))
    made.open(ACCOUNT, lambda ping: ping.n % 2 == 0, 2)
    report = made.report()
    assert (report["expected"], report["lost"], report["unexpected"]) == (1, 0, 0)
    made.deliver(ACCOUNT, Delivery("p2", f"1-{offset_of(1, 0) + 1}"))
    assert made.report()["unexpected"] == 0, "a record from before the subscription may arrive"


BROKERS = ["broker-1", "broker-2", "broker-3"]
LINKS = ["publisher>cluster", "broker-1>cluster", "broker-2>coordinator"]


def rounds(seed: int, count: int) -> list[list[Fault]]:
    return list(schedule(seed, count, 10.0, BROKERS, LINKS, cluster=True))


def test_schedule_repeats_for_a_seed() -> None:
    assert rounds(7, 10) == rounds(7, 10) != rounds(8, 10)
    assert all(0 <= fault.at_s < 10 for faults in rounds(7, 10) for fault in faults)


def test_thirty_rounds_have_every_kind_of_fault_at_least_twice() -> None:
    for seed in range(20):
        counts = Counter(fault.name for faults in rounds(seed, 30) for fault in faults)
        processes = {f"{kind} {target}" for kind in PROCESS_FAULTS for target in ("broker", "coordinator", "cluster")}
        others = {str(kind) for kind in FaultKind} - {str(kind) for kind in PROCESS_FAULTS}
        assert counts.keys() == processes | others
        assert min(counts.values()) >= 2, counts


def report(**changes: object) -> dict[str, Any]:
    sound = {"lost": 0, "duplicated": 0, "out_of_order": 0, "unexpected": 0, "gaps": 0, "broken_cursor_rules": 0}
    return sound | {"delivered": 9, "errors": [], "faults": {"kill broker": 1}} | changes


def test_run_without_faults_or_with_a_broken_cursor_rule_fails() -> None:
    assert not failed(report())
    assert failed(report(faults={})), "a run that injected nothing shows nothing"
    assert failed(report(stopped=True)), "a run that was stopped shows nothing"
    assert failed(report(broken_cursor_rules=1))
    assert failed(report(lost=1)) and failed(report(gaps=1)) and failed(report(delivered=0))
