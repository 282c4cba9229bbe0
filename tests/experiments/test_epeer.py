"""The ePEER experiments on a few runs: claims follow from the data and can fail; settings are plain values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tocsin.experiments import epeer_drd, epeer_fdcc, runner
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
    rows = tables["epeer-drd"].to_pandas()
    claims = drd(rows)
    for claim in ("delay-ratio", "peer-drd-between-with-distribution", "overhead", "busy-is-left"):
        assert claims[claim].holds, claims[claim]
    assert not claims["delay-significant"].holds, "the p value of six pairs cannot fall below 2^-6"
    ours = rows.policy == "drd-lb"
    rows.loc[ours, "offloads"] = 99
    rows.loc[ours, ["delay_pct", "delay_later_pct"]] = 5_000.0
    broken = drd(rows)
    for claim in ("fewer-offloads", "delay-ratio", "peer-drd-between", "delay-significant"):
        assert not broken[claim].holds
        assert broken[claim].differs


def test_fdcc_claims_are_computed_from_the_table(tables: dict[str, pa.Table]) -> None:
    rows = tables["epeer-fdcc"].to_pandas()
    claims = fdcc(rows)
    for claim in ("uo-reduced", "ui-reduced", "um-reduced", "qoe-raised", "recovers", "nothing-left-limited"):
        assert claims[claim].holds, claims[claim]
    rows["Uo_with"] = rows["Uo_carried"]
    rows["heard_after"] = rows["heard_before"]
    broken = fdcc(rows)
    assert not broken["uo-reduced"].holds
    assert not broken["qoe-raised"].holds
    assert not broken["qoe-significant"].holds
