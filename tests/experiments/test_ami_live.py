"""The report of the live edge tier, and the comparison of rows bit for bit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tocsin.experiments.ami_live import LiveEdge
from tocsin.experiments.edge_rows import EdgeSelect, compare, time_us
from tocsin.experiments.runner import Row, table_of

BURST: Row = {
    "period_s": 5.0,
    "peak_load_pct": 90.0,
    "overloads": 2.0,
    "overloaded_s": 6.0,
    "moved": 4.0,
    "backlog_end_s": 0.5,
}
BURST |= {"expected": 100.0, "lost": 0.0, "repeated": 0.0, "wrong": 0.0}
WITHOUT: Row = {"period_s": 5.0, "backlog_middle_s": 3.0, "backlog_end_s": 9.0, "moved": 0.0}
FAULTS: Row = {"expected": 900.0, "lost": 0.0, "repeated": 0.0, "wrong": 0.0, "late_rows": 0.0, "bytes_share": 0.08}
FAULTS |= {"bytes_share_encoded": 0.09}
FAULTS |= {"transfers_ordered": 20.0, "transfers_done": 20.0, "pause_p99_s": 0.2, "state_bytes": 1.1e7}
DEATH: Row = {"kind": "fault", "fault": "killed", "node": "city", "at_s": 9.0, "generation_s": 6.0, "duty_s": 8.0}
LOOK: Row = {"kind": "look", "at_s": 1.0, "node": "city", "load_pct": 20.0}


def judged(tmp_path: Path, runs: dict[str, Row], deaths: list[Row]) -> dict[str, bool | None]:
    rows: list[Row] = [LOOK | {"scenario": scenario} for scenario in runs]
    rows += [death | {"scenario": "faults"} for death in deaths]
    rows += [{"kind": "run", "scenario": scenario, **facts} for scenario, facts in runs.items()]
    made = LiveEdge().report(table_of(rows), tmp_path)
    assert all(Path(path).stat().st_size for path in made.files)
    return {claim.id: claim.holds for claim in made.claims}


def test_good_run_holds_every_claim(tmp_path: Path) -> None:
    held = judged(tmp_path, {"burst": BURST, "burst-without": WITHOUT, "faults": FAULTS}, [DEATH] * 5)
    assert len(held) == 16 and set(held.values()) == {True}, held


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"overloaded_s": 10.5}, "overload-left"),
        ({"backlog_end_s": 2.5}, "backlog-with"),
        ({"moved": 0.0}, "operators-moved"),
        ({"lost": 1.0}, "burst-rows-equal"),
    ],
)
def test_each_fault_of_a_burst_fails_its_own_claim(tmp_path: Path, change: Row, broken: str) -> None:
    held = judged(tmp_path, {"burst": BURST | change}, [])
    assert {name for name, holds in held.items() if not holds} == {broken}


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"repeated": 1.0}, "rows-equal"),
        ({"wrong": 1.0}, "rows-equal"),
        ({"late_rows": 1.0}, "nothing-late"),
        ({"bytes_share": 0.11}, "bytes-up"),
        ({"bytes_share_encoded": 0.11}, "bytes-up-encoded"),
        ({"transfers_done": 19.0}, "transfers-done"),
        ({"state_bytes": 9e6}, "state-of-a-transfer"),
        ({"pause_p99_s": 0.51}, "pause-of-a-transfer"),
    ],
)
def test_each_failure_among_faults_fails_its_own_claim(tmp_path: Path, change: Row, broken: str) -> None:
    held = judged(tmp_path, {"faults": FAULTS | change}, [DEATH] * 5)
    assert {name for name, holds in held.items() if not holds} == {broken}


def test_slow_recovery_fails_and_unfinished_one_is_not_judged(tmp_path: Path) -> None:
    held = judged(tmp_path, {"faults": FAULTS}, [DEATH] * 4 + [DEATH | {"duty_s": 10.1}])
    assert held["duty-taken-over"] is False and held["next-generation"] is True
    held = judged(tmp_path, {"faults": FAULTS}, [DEATH] * 5 + [DEATH | {"generation_s": float("nan")}])
    assert held["next-generation"] is None and held["killed-nodes"] is True


def test_run_without_expected_rows_or_overload_is_not_judged(tmp_path: Path) -> None:
    held = judged(tmp_path, {"burst": BURST | {"expected": 0.0, "overloads": 0.0, "overloaded_s": 0.0}}, [])
    assert held["burst-rows-equal"] is None and held["overload-left"] is None


def test_backlog_that_shrinks_without_protocol_fails_its_claim(tmp_path: Path) -> None:
    assert judged(tmp_path, {"burst-without": WITHOUT | {"backlog_end_s": 2.0}}, [])["backlog-without"] is False


# -- rows --------------------------------------------------------------------------------------------------------------

QUERY = EdgeSelect("Use", "SELECT …", ("meter", "since"), 10_000_000)
TIMES = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:10Z", "2026-01-01T00:00:20Z")
START_US = time_us(TIMES[0])
REFERENCE = pa.table(
    {
        "meter": ["m1", "m1", "m1"],
        "since": pa.array([START_US + 10_000_000 * window for window in range(3)]).cast(pa.timestamp("us", "UTC")),
        "mean": [0.1, 0.5, 0.25],
    }
)


def published(*means: tuple[int, float]) -> list[Row]:
    """(window, mean) as the JSON that the root publishes, with columns in another order."""
    return [{"mean": mean, "meter": "m1", "since": TIMES[window]} for window, mean in means]


def counts(rows: list[Row], windows: int = 2) -> tuple[int, ...]:
    found = compare(QUERY, rows, REFERENCE, START_US + 10_000_000 * windows)
    return found.expected, found.published, found.lost, found.repeated, found.wrong


def test_same_rows_are_equal_and_later_windows_do_not_count() -> None:
    assert counts(published((0, 0.1), (1, 0.5))) == (2, 2, 0, 0, 0)
    assert counts(published((1, 0.5), (0, 0.1), (2, 9.0))) == (2, 2, 0, 0, 0)


def test_last_bit_of_a_number_counts() -> None:
    assert counts(published((0, 0.1 + 2**-56), (1, 0.5))) == (2, 2, 0, 0, 1)


def test_lost_repeated_and_unexpected_rows_are_counted() -> None:
    assert counts(published((1, 0.5), (1, 0.5))) == (2, 2, 1, 1, 0)
    unknown = {"mean": 0.5, "meter": "m2", "since": TIMES[0]}
    assert counts([*published((0, 0.1), (1, 0.5)), unknown]) == (2, 3, 0, 0, 1)
