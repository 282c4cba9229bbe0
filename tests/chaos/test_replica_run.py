"""The plan and the measure of a chaos run with replicas."""

from __future__ import annotations

import time

import pytest

from tocsin.chaos.ledger import Delivery
from tocsin.chaos.replica_run import FAULTS, SILENCE_S, TimedLedger, replicas_failed

ACCOUNT = ("ann", "kind")
GOOD = {
    "lost": 0, "duplicated": 0, "out_of_order": 0, "unexpected": 0, "gaps": 0, "delivered": 9,
    "longest_silence_s": 3.0, "errors": [],
}  # fmt: skip


def test_every_leader_is_killed_stopped_and_cut_off() -> None:
    done = {str(fault) for fault in FAULTS}
    for kind in ("kill", "stop", "cut off"):
        assert {f"{kind} leader cluster", f"{kind} leader coordinator"} <= done
    assert {"restart postgresql", "kill broker", "stop results", "kill results", "stop standby cluster"} <= done


def test_silence_counts_from_the_begin_and_from_the_last_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    ledger = TimedLedger()
    ledger.deliver(ACCOUNT, Delivery("a", "1-1"))
    now_s = 500.0
    ledger.began_s = 498.0
    ledger.deliver(ACCOUNT, Delivery("b", "1-2"))
    assert ledger.longest_s == 2.0, "what happened before the faults does not count"
    now_s = 507.5
    ledger.deliver(ACCOUNT, Delivery("c", "1-3"))
    assert ledger.longest_s == ledger.round_s == 7.5


def test_report_fails_for_a_broken_promise_and_for_a_long_silence() -> None:
    assert not replicas_failed(GOOD)
    assert replicas_failed(GOOD | {"lost": 1})
    assert replicas_failed(GOOD | {"longest_silence_s": SILENCE_S + 0.1})
    assert replicas_failed(GOOD | {"delivered": 0})
