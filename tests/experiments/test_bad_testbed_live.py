"""The report of the live testbed, from rows made by hand: load errors, promises, claims, figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tocsin.experiments import runner
from tocsin.experiments.bad_testbed_live import WRONG, LiveTestbed
from tocsin.experiments.runner import Row

RUNS = {
    ("NR", "none"): (1.0, 200e3, 0),
    ("NR", "LDM"): (0.1, 120e3, 40),
    ("NR", "LDM + GSH"): (0.2, 110e3, 30),
    ("NR", "affinity"): (0.1, 100e3, 20),
    ("RR", "LDM"): (0.1, 110e3, 0),
}
"""Measured cov, measured maximum and migrations."""


def rows(**changes: Any) -> list[Row]:
    made: list[Row] = []
    for (placement, scheme), (cov, maximum, migrations) in RUNS.items():
        labels = {"seed": 0, "placement": placement, "scheme": scheme}
        made.append(_run(labels, cov, maximum, migrations) | changes)
        for at in range(6):
            curve = {"at_s": 10.0 * at, "cov": cov, "maximum": maximum, "mean": 1e5, "migrations": migrations}
            made.append({**labels, "kind": "sample", **curve})
            for broker in range(2):
                load = {"at_s": 10.0 * at, "broker": broker, "load": 1e5, "people": 3}
                made += [{**labels, "kind": "broker", **load}, _window(labels, at, broker, migrations > 0)]
    return made


def _run(labels: Mapping[str, Any], cov: float, maximum: float, migrations: int) -> Row:
    measured = {"cov": cov, "maximum": maximum, "migrations": migrations, "migrations_later": 0, "shuffles": 0}
    promised = {"promised_cov": 0.05, "promised_maximum": 100e3} if migrations else {}
    return {**labels, "kind": "run", **measured, **promised, **dict.fromkeys(WRONG, 0)}


def _window(labels: Mapping[str, Any], at: int, broker: int, moved: bool) -> Row:
    """Errors are 10 % without migration, 50 % with one inside and 20 % after it; the last two have a login."""
    inside, after = moved and at < 2, moved and at in (2, 3)
    error = 0.5 if inside else 0.2 if after else 0.1
    window = {"migrations": int(inside), "follows_migration": after, "session_changes": int(at >= 4)}
    loads = {"modelled": 100e3 * (1 + error), "forecast": 130e3, "measured": 125e3, "live": 100e3}
    return {**labels, "kind": "window", "at_s": 10.0 * at, "broker": broker, **loads, **window}


def finished(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return runner.finish(LiveTestbed(how=("made up",)), 1, runner.table_of(rows(**changes)), tmp_path)


def test_load_errors_are_medians_over_windows_of_each_sort(tmp_path: Path) -> None:
    metrics = finished(tmp_path)["metrics"]
    assert metrics["load_error_median"] == pytest.approx(0.1)
    assert metrics["load_error_median_without_migrations"] == pytest.approx(0.1)
    assert metrics["load_error_median_after_migrations"] == pytest.approx(0.2)
    assert metrics["load_error_median_under_churn"] == pytest.approx(0.1)
    assert metrics["NR.LDM.load_error_median"] == pytest.approx(0.2)
    assert metrics["NR.none.load_error_median"] == pytest.approx(0.1)
    assert metrics["load_windows"] == 60
    assert metrics["load_error_median_with_catch_up"] == pytest.approx(1 - 110 / 125)
    assert metrics["forecast_error_median"] == pytest.approx(0.3)
    assert metrics["catch_up_share"] == pytest.approx(0.2)


def test_runs_show_measured_values_beside_the_promise(tmp_path: Path) -> None:
    answer = finished(tmp_path)
    metrics = answer["metrics"]
    assert (metrics["NR.LDM.cov"], metrics["NR.LDM.promised_cov"]) == (0.1, 0.05)
    assert (metrics["NR.LDM.maximum"], metrics["NR.LDM.promised_maximum"]) == (120e3, 100e3)
    assert metrics["NR.none.promised_cov"] is None, "no plan, no promise"
    held = {claim["id"]: claim["holds"] for claim in answer["claims"]}
    assert held["nr-ldm-cov"] and held["nr-ldm-maximum"] and held["nothing-wrong"]
    assert held["rnd-ldm-cov"] is None, "RND was not run"
    page = (tmp_path / "bad-testbed.md").read_text(encoding="utf-8")
    assert "made up" in page and "| NR | LDM | 0.1 | 0.05 | 120 | 100 | 40 | 0.2 |" in page


def test_lost_notification_fails_the_report(tmp_path: Path) -> None:
    answer = finished(tmp_path, lost=2)
    assert answer["metrics"]["lost"] == 10
    assert not next(claim for claim in answer["claims"] if claim["id"] == "nothing-wrong")["holds"]


def test_figures_show_the_loads_of_the_runs_that_were_made(tmp_path: Path) -> None:
    files = {Path(path).name for path in finished(tmp_path)["files"]}
    assert {"bad-live-loads.png", "bad-figure-08.png", "bad-figure-10.png"} <= files
    assert "bad-figure-05.png" not in files


def test_affinity_is_compared_with_the_best_scheme_that_was_run(tmp_path: Path) -> None:
    claims = {claim["id"]: claim for claim in finished(tmp_path)["claims"]}
    maximum, migrations = claims["nr-affinity-measured-maximum"], claims["nr-affinity-measured-migrations"]
    assert maximum["holds"] and maximum["ours"] == pytest.approx(100 / 110), "LDM + GSH has the lowest maximum"
    assert migrations["holds"] and migrations["ours"] == pytest.approx(20 / 30)
