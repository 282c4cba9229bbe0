"""The report of the live site: claims about the scenarios that were run, and a figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.demo.site_scenarios import run_live
from tocsin.demo.site_world import DisobedientTopics, Publisher
from tocsin.experiments.epeer_live import LiveSite
from tocsin.experiments.runner import Row, table_of

BURST: Row = {"lost": 0.0, "repeated": 0.0, "gaps": 0.0, "overload_seen_s": 1.8, "relieved_s": 6.0, "tight_p99_s": 0.4}
BURST |= {"highest_used_at_end": 0.9, "moved": 16.0, "moved_late": 0.0, "longest_pause_ms": 90.0, "cores": 0.6}
DAMAGE: Row = {"lost": 3.0, "repeated": 0.0, "gaps": 1.0, "grew_until_s": 2.0, "used_p05": 0.82, "used_p95": 0.94}
DAMAGE |= {"utility_per_byte_ratio": 1.7, "limits_lifted_s": float("nan"), "protected_per_s": 5.0, "cores": 0.5}
LOOK: Row = {
    "kind": "look",
    "at_s": 1.0,
    "edge": "broker-2",
    "used": 0.6,
    "sent": 0.5,
    "waiting_s": 0.0,
    "state": "LOW",
}


def report(tmp_path: Path, runs: dict[str, Row]) -> dict[str, bool | None]:
    rows: list[Row] = [LOOK | {"scenario": scenario} for scenario in runs]
    rows += [{"kind": "run", "scenario": scenario, **facts} for scenario, facts in runs.items()]
    made = LiveSite().report(table_of(rows), tmp_path)
    assert all(Path(path).stat().st_size for path in made.files)
    return {claim.id: claim.holds for claim in made.claims}


def test_late_relief_fails_its_claim_alone(tmp_path: Path) -> None:
    held = report(tmp_path, {"burst": BURST})
    assert held.pop("relieved") is False
    assert set(held.values()) == {True} and "delay-without" not in held


def test_lost_message_of_a_burst_fails_its_claim(tmp_path: Path) -> None:
    assert report(tmp_path, {"burst": BURST | {"lost": 1.0}})["nothing-lost"] is False


def test_limits_that_stay_after_the_repair_are_not_judged(tmp_path: Path) -> None:
    held = report(tmp_path, {"matching": DAMAGE, "burst-without": BURST | {"tight_p99_s": 7.0}})
    assert held["limits-lifted-matching"] is None and held["delay-without"] is True
    assert held["utility-per-byte-matching"] is True and "overload-seen" not in held


def test_admitted_excess_fails_its_claim_alone(tmp_path: Path) -> None:
    held = report(tmp_path, {"disobedient": DAMAGE | {"excess": 4_000.0, "excess_dropped": 0.98}})
    assert held == {"excess-dropped": False, "protected-disobedient": True}


def test_excess_of_a_publisher_counts_beyond_its_changing_limit() -> None:
    publisher = Publisher("t", 0, 10.0, 0.5, DisobedientTopics("http://nowhere"))
    publisher.attempts = [(float(second), None if second < 2 else 0.5) for second in range(10)]
    publisher.drops = [1.0, 5.0, 6.0, 9.0]
    assert publisher.is_disobedient
    assert publisher.excess(2.0, 9.0) == (7 - 3.0, 2)


@pytest.mark.parametrize("options", [{"scenarios": "flood"}, {"speed": "2"}])
def test_unknown_scenario_or_option_is_refused(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"epeer-live|scenarios"):
        run_live(options, tmp_path, print)
