"""The report of the live testbed, from rows made by hand: load errors, promises, claims, figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tocsin.demo import testbed
from tocsin.experiments import bad_testbed, bad_testbed_live, runner
from tocsin.experiments.bad_testbed_live import OFFERED, WRONG, LiveTestbed
from tocsin.experiments.report import Claim
from tocsin.experiments.runner import Row

RUNS = {
    ("NR", "none"): (1.0, 200e3, 0),
    ("NR", "LDM"): (0.1, 120e3, 40),
    ("NR", "LDM + GSH"): (0.2, 110e3, 30),
    ("NR", "affinity"): (0.1, 100e3, 20),
    ("RR", "LDM"): (0.1, 110e3, 0),
}
"""Measured cov, measured maximum and migrations."""


def rows(runs: Mapping[tuple[str, str], tuple[float, float, int]] = RUNS, **changes: Any) -> list[Row]:
    made: list[Row] = []
    for (placement, scheme), (cov, maximum, migrations) in runs.items():
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


def claims_of(made: list[Row]) -> dict[str, Claim]:
    return {claim.id: claim for claim in bad_testbed_live.claims(pd.DataFrame(made))}


EVERYTHING: dict[tuple[str, str], tuple[float, float, int]] = {
    (placement, scheme): (0.1 if scheme != "none" else 0.6, 120e3 if scheme != "none" else 200e3, moves)
    for placement, few in (("RND", 2), ("RR", 2), ("NR", 40))
    for scheme, moves in (("none", 0), ("LDM", few), ("SDM", few), ("LDM + GSH", few), ("affinity", few))
}


def test_live_run_of_every_offered_scheme_leaves_no_claim_open() -> None:
    """The default command can end with exit code 0: it judges every comparison that it makes."""
    claims = claims_of(rows(EVERYTHING))
    assert [id for id, claim in claims.items() if claim.holds is None] == []
    assert claims["gsh-little-over-ldm-cov"].holds is not None


def test_report_names_the_comparisons_that_it_does_not_make() -> None:
    claims = claims_of(rows(EVERYTHING))
    note = bad_testbed_live.left_out(pd.DataFrame(rows(EVERYTHING)))
    for id in ("early-shuffle-sdm", "gsh-little-over-sdm-cov", "gsh-little-over-sdm-maximum", "nr-affinity-maximum"):
        assert id not in claims
        assert f"`{id}`" in note
    assert "SDM + GSH is not offered" in note


def test_offered_schemes_are_those_of_the_command() -> None:
    assert tuple(name for name, _ in testbed.SCHEMES.values()) == OFFERED
    assert set(OFFERED) < set(bad_testbed.SCHEMES)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({("NR", "affinity"): None}, "not run: affinity under NR"),
        ({("NR", "LDM"): None, ("NR", "LDM + GSH"): None}, "not run: a scheme of the paper under NR"),
        ({("NR", "affinity"): (1.0, 200e3, 0)}, "no subscriber moved with affinity under NR"),
        ({("NR", "LDM + GSH"): (1.0, 90e3, 0)}, "no subscriber moved with LDM + GSH under NR"),
    ],
    ids=["affinity not run", "nothing to compare with", "affinity did not move", "the best did not move"],
)
def test_affinity_without_runs_or_moves_is_not_judged(
    changes: Mapping[tuple[str, str], tuple[float, float, int] | None], reason: str
) -> None:
    runs = {label: run for label, run in {**RUNS, **changes}.items() if run is not None}
    claims = claims_of(rows(runs))
    for id in ("nr-affinity-measured-maximum", "nr-affinity-measured-migrations"):
        assert claims[id].holds is None
        assert claims[id].differs == reason


def test_model_error_is_judged_after_migrations_and_under_churn() -> None:
    claims = claims_of(rows())
    held = {id: claim.holds for id, claim in claims.items() if id.startswith("model-error")}
    assert held == {
        "model-error": False,
        "model-error-after-migrations": False,
        "model-error-under-churn": False,
    }, "the errors are 0.1 and a rounding error, 0.2, 0.1 and a rounding error"
    assert all("forecast_error_median" in claims[id].decided_by for id in held)


def test_model_error_without_such_windows_is_not_judged() -> None:
    still = [row for row in rows() if not (row.get("follows_migration") or row.get("session_changes"))]
    claims = claims_of(still)
    assert claims["model-error"].holds is not None
    assert claims["model-error-after-migrations"].differs == "no window followed a migration"
    assert claims["model-error-under-churn"].differs == "no window had a login or logout"
