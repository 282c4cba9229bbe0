"""The ePEER experiments on a few runs: claims follow from the data and can fail; settings are plain values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
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
        chosen = ",".join(["base", *(["half"] if name == "epeer-fdcc" else []), VARIANT[name][0]])
        tables[name] = runner.run_here(experiment, experiment.settings(runs, variants=chosen))
    return tables


def by_id(claims: list[Claim]) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims}


def drd(rows: Any) -> dict[str, Claim]:
    runs = rows[(rows.kind == "run") & (rows.variant == "base")]
    compared = epeer_drd._compared(epeer_drd.surplus(runs))
    return by_id(epeer_drd._claims(epeer_drd._metrics(runs), compared, "base"))


def fdcc(rows: Any, variant: str = "base") -> dict[str, Claim]:
    runs = rows[(rows.kind == "run") & (rows.variant == variant)]
    return by_id(epeer_fdcc._claims(epeer_fdcc._metrics(runs), runs, variant))


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
    for claim in ("peer-drd-between-with-distribution", "less-control", "more-offloads"):
        assert claims[claim].holds, claims[claim]
    assert claims["delay-ratio"].seed_value == pytest.approx(55.0, rel=0.01)
    assert claims["peer-lb-delay"].interval_95 is not None
    assert claims["fewer-offloads"].decided_by


def test_runs_without_surplus_resources_are_left_out(tables: dict[str, pa.Table]) -> None:
    rows = tables["epeer-drd"].to_pandas()
    runs = rows[(rows.kind == "run") & (rows.variant == "base")].copy()
    runs["limited_s"] = 0
    assert len(epeer_drd.surplus(runs)) == len(runs)
    runs.loc[(runs.run == 2) & (runs.policy == "drd-lb"), "limited_s"] = 7
    runs.loc[(runs.run == 3) & (runs.policy == "peer-lb"), "limited_s"] = 7
    assert set(epeer_drd.surplus(runs).run) == {0, 1, 3, 4, 5}
    assert epeer_drd._metrics(runs)["limited_runs"] == 1
    runs["limited_s"] = 7
    assert len(epeer_drd.surplus(runs)) == len(runs), "no run is left: the table shows all"


@pytest.mark.parametrize(
    ("claim", "policy", "changes"),
    [
        ("fewer-offloads", "drd-lb", {"offloads": 99}),
        ("more-offloads", "drd-lb", {"offloads": 99}),
        ("more-delay", "drd-lb", {"delay_pct": 5_000.0}),
        ("drd-lb-delay", "drd-lb", {"delay_pct": 5.0}),
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


@pytest.mark.parametrize("variant", ["base", "half"])
def test_fdcc_claims_are_computed_from_the_table(variant: str, tables: dict[str, pa.Table]) -> None:
    rows = tables["epeer-fdcc"].to_pandas()
    claims = fdcc(rows, variant)
    for claim in ("recovers", "nothing-left-limited", "overload-ends"):
        assert claims[claim].holds, claims[claim]
    rows["Uo_with"] = rows["Uo_carried"]
    rows["qoe_all_after"] = rows["qoe_all_before"]
    rows["utility_per_kb"] = rows["blind_per_kb"]
    rows["recovered_s"] = None
    rows["highest_used"] = 1.01
    rows["difference_at_end"] = 0.1
    broken = fdcc(rows, variant)
    names = ("uo-reduced", "qoe-raised", "qoe-after", "useful-bytes", "recovers", "nothing-left-limited")
    for claim in (*names, "overload-ends"):
        assert broken[claim].holds is False, claim


def test_fdcc_claims_have_intervals_around_their_values(tables: dict[str, pa.Table]) -> None:
    claims = fdcc(tables["epeer-fdcc"].to_pandas())
    for name in ("uo-reduced", "qoe-raised", "qoe-after", "useful-bytes"):
        interval, ours = claims[name].interval_95, claims[name].ours
        assert interval is not None
        assert isinstance(ours, float)
        assert interval[0] - 1e-9 <= ours <= interval[1] + 1e-9
    assert claims["useful-bytes"].effect_size == 1.0, "more useful than a blind cut in every run"


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


def test_effect_size_is_one_if_all_pairs_differ_as_stated() -> None:
    assert epeer_variants.rank_biserial([1, 2, 3], [2, 3, 4]) == 1.0
    assert epeer_variants.rank_biserial([2, 3, 4], [1, 2, 3]) == -1.0
    assert epeer_variants.rank_biserial([1, 1], [1, 1]) == 0.0
    assert epeer_variants.rank_biserial([0, 0, 9], [1, 2, 0]) == 0.0, "ranks 1 and 2 against rank 3"


def test_interval_covers_the_mean_of_its_population() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(100):
        low, high = epeer_variants.interval(lambda mean: mean, rng.exponential(3.0, 80)) or (0.0, 0.0)
        covered += low <= 3.0 <= high
    assert 88 <= covered <= 99
    assert epeer_variants.interval(lambda mean: mean, [1.0]) is None
    assert epeer_variants.interval(lambda a, b: a / b, [1.0, 1.0], [0.0, 0.0]) is None
