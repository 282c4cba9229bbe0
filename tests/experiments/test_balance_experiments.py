"""`bad-simulation`, `bad-testbed` and `affinity` on a small world: claims are computed from the runs and can fail."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tocsin.experiments import affinity, bad_simulation, bad_testbed, runner
from tocsin.experiments.runner import Experiment, Reporting

TOWN = """
name = "town"
length_s = 700
[brokers]
count = 6
crowd = [23, 15, 9, 5, 3, 2]
[subscribers]
count = 300
subscriptions = [4, 12]
join_within_s = 10
subscribe_from_s = 10
subscribe_until_s = 480
neighbourhoods = 30
[channels]
periods_s = [5, 10, 20]
subscriptions = 80
mean_bytes_per_s = 1_400_000
sd_bytes_per_s = 300_000
[bursts]
share = 0.25
"""


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "town.toml"
    path.write_text(TOWN, encoding="utf-8")
    monkeypatch.setattr(bad_simulation, "SCENARIO", str(path))
    monkeypatch.setattr(bad_simulation, "BETAS_MB", (300.0, 500.0, 650.0))
    monkeypatch.setattr(bad_testbed, "SCENARIO", str(path))
    world = affinity.ComparisonWorld(str(path), 300e6, 600.0)
    monkeypatch.setattr(affinity, "WORLDS", {"paper": world, "communities": world})
    return str(path)


def claims_and_files(experiment: Reporting, table: pa.Table, out: Path) -> tuple[dict[str, bool], set[str]]:
    answer = runner.finish(experiment, 1, table, out)
    claims = {claim["id"]: claim["holds"] for claim in answer["claims"]}
    return claims, {Path(path).name for path in answer["files"]}


def swapped(table: pa.Table, column: str, label: str, other: str) -> pa.Table:
    """The same rows with two labels exchanged: claims that compare them must fail."""
    exchange = {label: other, other: label}
    labels = [exchange.get(value, value) for value in table[column].to_pylist()]
    return table.set_column(table.schema.get_field_index(column), column, pa.array(labels))


def test_bad_simulation_computes_claims_from_runs(town: str, tmp_path: Path) -> None:
    experiment = bad_simulation.EXPERIMENT
    table = runner.run_here(experiment, experiment.settings(1))
    claims, files = claims_and_files(experiment, table, tmp_path / "out")
    failed = {claim for claim, holds in claims.items() if not holds}
    need_a_larger_world = {"skew-most", "skew-fewest", "ldm-halves-maximum", "gsh-halves-maximum"}
    assert failed <= need_a_larger_world | {"live-core-same-migrations", "live-core-same-cov"}
    assert {"bad-figure-13.png", "bad-figure-14.svg", "bad-simulation.parquet", "bad-simulation.md"} <= files
    turned, _ = claims_and_files(experiment, swapped(table, "scheme", "LDM α=0.05", "LDM α=0.30"), tmp_path / "turned")
    assert not turned["smaller-alpha-lower-cov"] and not turned["smaller-alpha-more-migrations"]
    assert not turned["ldm-close-to-gsh-cov"]


def test_live_testbed_reports_only_schemes_that_were_run(town: str, tmp_path: Path) -> None:
    experiment = bad_testbed.EXPERIMENT
    some = [
        setting
        for setting in experiment.settings(1)
        if setting["placement"] != "RND" and setting["scheme"] in ("none", "LDM")
    ]
    claims, files = claims_and_files(
        bad_testbed.LiveTestbed(how="made up"), runner.run_here(experiment, some), tmp_path
    )
    assert set(claims) == {"rr-ldm-cov", "rr-ldm-maximum", "nr-ldm-cov", "nr-ldm-maximum", "nr-needs-more-ldm"}
    assert claims["nr-ldm-cov"] and claims["nr-ldm-maximum"]
    figures = {f"bad-figure-{number:02}.png" for number in (7, 8, 10, 11, 12)}
    assert figures <= files and "bad-figure-05.png" not in files
    assert "made up" in (tmp_path / "bad-testbed.md").read_text(encoding="utf-8")


def test_bad_testbed_compares_placements_and_schemes(town: str, tmp_path: Path) -> None:
    experiment = bad_testbed.EXPERIMENT
    table = runner.run_here(experiment, experiment.settings(1))
    claims, files = claims_and_files(experiment, table, tmp_path / "out")
    assert claims["nr-ldm-cov"] and claims["nr-sdm-maximum"] and claims["nr-needs-more-ldm"]
    assert {f"bad-figure-{number:02}.png" for number in range(5, 13)} <= files
    turned, _ = claims_and_files(experiment, swapped(table, "scheme", "none", "LDM"), tmp_path / "turned")
    assert not turned["nr-ldm-cov"] and not turned["nr-ldm-maximum"]


def test_affinity_is_compared_with_gsh(town: str, tmp_path: Path) -> None:
    experiment = affinity.EXPERIMENT
    table = runner.run_here(experiment, experiment.settings(1))
    answer = runner.finish(experiment, 1, table, tmp_path / "out")
    metrics = answer["metrics"]
    assert metrics["communities.max_load_ratio_to_gsh"] < 0.95
    assert all(metrics[f"paper.{scheme}.max_load_over_lower_bound"] >= 1.0 for scheme in affinity.SCHEMES)
    turned = experiment.report(swapped(table, "scheme", "gsh", "affinity"), tmp_path / "out")
    assert not any(claim.holds for claim in turned.claims if claim.id.endswith("maximum"))
    # So small a town is too coarse for fewer migrations; the ratio is still that of the two schemes.
    ratio = "paper.migrations_ratio_to_gsh"
    assert turned.metrics[ratio] == pytest.approx(1 / metrics[ratio])


@pytest.mark.parametrize("experiment", [bad_simulation.EXPERIMENT, bad_testbed.EXPERIMENT, affinity.EXPERIMENT])
def test_unknown_option_is_refused(experiment: Experiment) -> None:
    with pytest.raises(ValueError, match="option"):
        experiment.settings(1, colour="red")
    assert experiment.default_runs >= 20
