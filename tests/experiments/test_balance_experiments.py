"""`bad-simulation`, `bad-testbed` and `affinity` on a small world: claims are computed and can fail."""

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
    tried = affinity.ComparisonWorld(str(path), 300e6, 600.0)
    monkeypatch.setattr(affinity, "WORLDS", {"paper": tried, "communities": tried})
    return str(path)


def held(experiment: Reporting, table: pa.Table, out: Path) -> tuple[dict[str, bool], set[str]]:
    answer = runner.finish(experiment, 1, table, out)
    return {claim["id"]: claim["holds"] for claim in answer["claims"]}, {Path(one).name for one in answer["files"]}


def swapped(table: pa.Table, column: str, one: str, other: str) -> pa.Table:
    """The same rows with two labels exchanged: claims that compare them must now fail."""
    exchange = {one: other, other: one}
    labels = [exchange.get(label, label) for label in table[column].to_pylist()]
    return table.set_column(table.schema.get_field_index(column), column, pa.array(labels))


def test_bad_simulation_computes_its_claims_from_the_runs(town: str, tmp_path: Path) -> None:
    experiment = bad_simulation.EXPERIMENT
    table = runner.run_here(experiment, experiment.settings(1))
    claims, files = held(experiment, table, tmp_path / "out")
    failed = {claim for claim, holds in claims.items() if not holds}
    of_a_larger_world = {"skew-most", "skew-fewest", "ldm-halves-maximum", "gsh-halves-maximum"}
    assert failed <= of_a_larger_world | {"live-core-same-migrations", "live-core-same-cov"}
    assert {"bad-figure-13.png", "bad-figure-14.svg", "bad-simulation.parquet", "bad-simulation.md"} <= files
    turned, _ = held(experiment, swapped(table, "scheme", "LDM α=0.05", "LDM α=0.30"), tmp_path / "turned")
    assert not turned["smaller-alpha-lower-cov"] and not turned["smaller-alpha-more-migrations"]
    assert not turned["ldm-close-to-gsh-cov"]


def test_what_was_run_live_is_reported_and_what_was_not_is_left_out(town: str, tmp_path: Path) -> None:
    experiment = bad_testbed.EXPERIMENT
    some = [one for one in experiment.settings(1) if one["placement"] != "RND" and one["scheme"] in ("none", "LDM")]
    claims, files = held(bad_testbed.LiveTestbed(how="made up"), runner.run_here(experiment, some), tmp_path)
    assert set(claims) == {"rr-ldm-cov", "rr-ldm-maximum", "nr-ldm-cov", "nr-ldm-maximum", "nr-needs-more-ldm"}
    assert claims["nr-ldm-cov"] and claims["nr-ldm-maximum"]
    figures = {f"bad-figure-{number:02}.png" for number in (7, 8, 10, 11, 12)}
    assert figures <= files and "bad-figure-05.png" not in files
    assert "made up" in (tmp_path / "bad-testbed.md").read_text(encoding="utf-8")


def test_bad_testbed_compares_placements_and_schemes(town: str, tmp_path: Path) -> None:
    experiment = bad_testbed.EXPERIMENT
    table = runner.run_here(experiment, experiment.settings(1))
    claims, files = held(experiment, table, tmp_path / "out")
    assert claims["nr-ldm-cov"] and claims["nr-sdm-maximum"] and claims["nr-needs-more-ldm"]
    assert {f"bad-figure-{number:02}.png" for number in range(5, 13)} <= files
    turned, _ = held(experiment, swapped(table, "scheme", "none", "LDM"), tmp_path / "turned")
    assert not turned["nr-ldm-cov"] and not turned["nr-ldm-maximum"]


def test_affinity_is_measured_against_gsh(town: str, tmp_path: Path) -> None:
    experiment = affinity.EXPERIMENT
    table = runner.run_here(experiment, experiment.settings(1))
    answer = runner.finish(experiment, 1, table, tmp_path / "out")
    metrics = answer["metrics"]
    assert metrics["communities.max_load_ratio_to_gsh"] < 0.95
    assert all(metrics[f"paper.{scheme}.max_load_over_lower_bound"] >= 1.0 for scheme in affinity.SCHEMES)
    turned = experiment.report(swapped(table, "scheme", "gsh", "affinity"), tmp_path / "out")
    assert not any(claim.holds for claim in turned.claims if claim.id.endswith("maximum"))
    # So small a town is too coarse to promise fewer migrations; the ratio is still that of the two schemes' own.
    ratio = "paper.migrations_ratio_to_gsh"
    assert turned.metrics[ratio] == pytest.approx(1 / metrics[ratio])


@pytest.mark.parametrize("experiment", [bad_simulation.EXPERIMENT, bad_testbed.EXPERIMENT, affinity.EXPERIMENT])
def test_an_option_that_does_not_exist_is_refused(experiment: Experiment) -> None:
    with pytest.raises(ValueError, match="option"):
        experiment.settings(1, colour="red")
    assert experiment.default_runs >= 20
