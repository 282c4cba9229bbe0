"""The ePEER experiments on a few runs: claims follow from the data and can fail; settings are plain values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tocsin.experiments import epeer_drd, epeer_fdcc, epeer_variants, runner
from tocsin.experiments.report import Claim

NAMES = ("epeer-drd", "epeer-fdcc")
VARIANT = {"epeer-drd": ("points", "10 points"), "epeer-fdcc": ("classes", "lowest class")}


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    tables = {}
    for name, runs in zip(NAMES, (6, 2), strict=True):
        experiment = runner.find(name)
        tables[name] = runner.run_here(experiment, experiment.settings(runs, variants=f"base,{VARIANT[name][0]}"))
    return tables


def by_id(claims: list[Claim]) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims}


def drd(rows: Any) -> dict[str, Claim]:
    runs = rows[(rows.kind == "run") & (rows.variant == "base")]
    return by_id(epeer_drd._claims(epeer_drd._metrics(runs)))


def fdcc(rows: Any) -> dict[str, Claim]:
    return by_id(epeer_fdcc._claims(epeer_fdcc._metrics(rows[(rows.kind == "run") & (rows.variant == "base")])))


def test_both_experiments_exist_and_their_settings_are_plain() -> None:
    assert set(NAMES) <= set(runner.names())
    for name in NAMES:
        settings = runner.find(name).settings(20)
        assert json.loads(json.dumps(settings)) == settings
        assert len({(setting["variant"], setting["run"]) for setting in settings}) == len(settings)
        assert sum(setting["variant"] == "base" for setting in settings) == 20
        with pytest.raises(ValueError, match="variants"):
            runner.find(name).settings(1, variants="nonsense")


@pytest.mark.parametrize("name", NAMES)
def test_report_has_figures_claims_and_effect_of_undisclosed_choices(
    name: str, tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    answer = runner.finish(runner.find(name), 6, tables[name], tmp_path)
    assert {Path(path).suffix for path in answer["files"]} == {".parquet", ".png", ".svg", ".md"}
    page = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
    assert "Effect of the undisclosed choices" in page
    assert VARIANT[name][1] in page


def test_drd_claims_are_computed_from_the_table(tables: dict[str, pa.Table]) -> None:
    claims = drd(tables["epeer-drd"].to_pandas())
    for claim in ("drd-lb-delay", "peer-drd-between-with-distribution", "less-control", "busy-ends-by-confirmation"):
        assert claims[claim].holds, claims[claim]
    assert claims["delay-ratio"].seed_value == pytest.approx(55.0, rel=0.01)
    assert claims["fewer-offloads"].decided_by


@pytest.mark.parametrize(
    ("claim", "policy", "changes"),
    [
        ("fewer-offloads", "drd-lb", {"offloads": 99}),
        ("more-offloads", "drd-lb", {"offloads": 99}),
        ("more-delay", "drd-lb", {"delay_pct": 5_000.0}),
        ("drd-lb-delay", "drd-lb", {"delay_later_pct": 5.0}),
        ("delay-ratio", "drd-lb", {"delay_pct": 5_000.0}),
        ("peer-drd-lowers-delay", "peer-drd", {"delay_later_pct": 5_000.0}),
        ("peer-drd-between", "drd-lb", {"delay_later_pct": 5_000.0}),
        ("peer-drd-as-many-offloads", "peer-drd", {"offloads_later": 0}),
        ("peer-lb-offloads", "peer-lb", {"offloads_later": 3}),
        ("less-control", "drd-lb", {"control_overhead": 1.0}),
        ("busy-ends-by-confirmation", "peer-lb", {"longest_busy_s": 30.0}),
    ],
)
def test_drd_claim_fails_on_doctored_rows(
    claim: str, policy: str, changes: dict[str, float], tables: dict[str, pa.Table]
) -> None:
    rows = tables["epeer-drd"].to_pandas()
    rows[list(changes)] = rows[list(changes)].astype(float)
    rows.loc[rows.policy == policy, list(changes)] = list(changes.values())
    assert drd(rows)[claim].holds is False
    assert drd(rows)[claim].differs


def test_fdcc_claims_are_computed_from_the_table(tables: dict[str, pa.Table]) -> None:
    rows = tables["epeer-fdcc"].to_pandas()
    claims = fdcc(rows)
    for claim in ("ui-reduced", "um-reduced", "qoe-raised", "recovers", "nothing-left-limited", "overload-ends"):
        assert claims[claim].holds, claims[claim]
    assert claims["ui-reduced"].within_factor is False, "ours falls by far more"
    rows["Uo_with"] = rows["Uo_carried"]
    rows["heard_after"] = rows["heard_before"]
    rows["recovered_s"] = [None, *rows["recovered_s"][1:]]
    rows["highest_uo"] = 1.01
    rows["difference_at_end"] = 0.1
    broken = fdcc(rows)
    for claim in ("uo-reduced", "qoe-raised", "qoe-after", "recovers", "nothing-left-limited", "overload-ends"):
        assert broken[claim].holds is False, claim


def test_run_that_never_recovers_is_counted(tables: dict[str, pa.Table]) -> None:
    rows = tables["epeer-fdcc"].to_pandas()
    rows["recovered_s"] = None
    assert fdcc(rows)["recovers"].holds is False
    rows["limited_from_s"] = None
    assert fdcc(rows)["recovers"].holds is None


def test_p_value_of_few_runs_is_not_judged() -> None:
    few, many = (epeer_variants.significant("p", "[here]", 1e-20, runs, decided_by="x") for runs in (6, 100))
    assert few.holds is None
    assert "6 pairs of runs cannot reach" in few.differs
    assert many.holds is True
    assert epeer_variants.significant("p", "[here]", 1e-12, 100, decided_by="x").holds is False
    assert epeer_variants.p_value([1.0, 2.0], [1.0, 2.0]) == 1.0
