"""`epulsar-migration --live`: claims are computed from the rows and can fail, and a few topics move for real."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tocsin.demo.topic_moves import last_attempt, measure, run_live
from tocsin.experiments import runner
from tocsin.experiments.epulsar_migration_live import LiveMigration
from tocsin.experiments.runner import Row

GOOD = {"pulsar": 300.0, "epulsar": 120.0, "tocsin": 14.0}


def rows_with(changes: dict[str, dict[str, Any]] | None = None) -> list[Row]:
    fixed = {"executors": 4, "wan_ms": 40.0, "topics": 2, "client_rtt_ms": 10.0, "emulator_p99_ms": 0.4, "valid": True}
    fixed |= {"lag_p99_ms": 1.5, "attempts": 1}
    measured = {"per_topic_ms": 100.0, "all_ms": 150.0, "lost": 0, "reordered": 0}
    return [
        {**fixed, **measured, "workflow": workflow, "downtime_ms": downtime_ms, **(changes or {}).get(workflow, {})}
        for workflow, downtime_ms in GOOD.items()
        for _ in range(2)
    ]


def verdicts(rows: list[Row], out: Path) -> dict[str, bool | None]:
    report = LiveMigration().report(runner.table_of(rows), out)
    return {claim.id: claim.holds for claim in report.claims}


def test_claims_hold_on_the_expected_shape(tmp_path: Path) -> None:
    assert set(verdicts(rows_with(), tmp_path).values()) == {True}


@pytest.mark.parametrize(
    ("claim", "workflow", "change"),
    [
        ("downtime-at-most-half", "epulsar", {"downtime_ms": 160.0}),
        ("pause-one-round-trip", "tocsin", {"downtime_ms": 21.0}),
        ("nothing-lost", "tocsin", {"lost": 1}),
        ("nothing-reordered", "pulsar", {"reordered": 1}),
    ],
)
def test_claim_fails_on_other_rows(claim: str, workflow: str, change: dict[str, Any], tmp_path: Path) -> None:
    found = verdicts(rows_with({workflow: change}), tmp_path)
    assert [name for name, holds in found.items() if not holds] == [claim]


def test_missing_workflow_leaves_only_its_claim_unjudged(tmp_path: Path) -> None:
    found = verdicts([row for row in rows_with() if row["workflow"] != "pulsar"], tmp_path)
    assert [name for name, holds in found.items() if holds is None] == ["downtime-at-most-half"]


@pytest.mark.parametrize(
    ("workflow", "claim"),
    [("tocsin", "pause-one-round-trip"), ("pulsar", "downtime-at-most-half"), ("epulsar", "downtime-at-most-half")],
)
def test_times_of_an_invalid_run_are_not_judged(workflow: str, claim: str, tmp_path: Path) -> None:
    found = verdicts(rows_with({workflow: {"valid": False}}), tmp_path)
    assert [name for name, holds in found.items() if holds is None] == [claim]
    assert set(found.values()) == {True, None}


def test_last_attempt_counts_lost_and_reordered_messages_of_all_attempts() -> None:
    first = [{"lost": 1, "reordered": 0, "downtime_ms": 90.0}, {"lost": 0, "reordered": 0, "downtime_ms": 80.0}]
    second = [{"lost": 0, "reordered": 2, "downtime_ms": 9.0}, {"lost": 0, "reordered": 0, "downtime_ms": 8.0}]
    assert last_attempt([first, second]) == [
        {"lost": 1, "reordered": 2, "downtime_ms": 9.0, "attempts": 2},
        {"lost": 0, "reordered": 0, "downtime_ms": 8.0, "attempts": 2},
    ]


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="workflows"):
        run_live({"workflow": "tocsin"}, 1, tmp_path, lambda text: None)


@pytest.mark.parametrize("workflow", ["pulsar", "epulsar", "tocsin"])
def test_few_topics_move_between_real_brokers_without_loss(workflow: str) -> None:
    runs = asyncio.run(asyncio.wait_for(measure(workflow, 2, [10.0, 20.0], 3), 240.0))
    assert [len(rows) for rows in runs] == [3, 3]
    for rows, wan_ms in zip(runs, (10.0, 20.0), strict=True):
        assert [(row["lost"], row["reordered"]) for row in rows] == [(0, 0)] * 3
        assert all(row["wan_ms"] == wan_ms and row["per_topic_ms"] > 2 * wan_ms for row in rows)
