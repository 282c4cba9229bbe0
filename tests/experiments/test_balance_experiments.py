"""`bad-simulation`, `bad-testbed` and `affinity` on a small world: claims are computed from the runs and can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from tocsin.experiments import affinity, bad_simulation, bad_testbed, runner
from tocsin.experiments.report import Claim
from tocsin.experiments.runner import Experiment, Reporting
from tocsin.sim.balance import scenario as balance_scenario

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


def answer_and_files(experiment: Reporting, table: pa.Table, out: Path) -> tuple[dict[str, bool | None], set[str]]:
    answer = runner.finish(experiment, 1, table, out)
    verdicts = {claim["id"]: claim["holds"] for claim in answer["claims"]}
    return verdicts, {Path(path).name for path in answer["files"]}


def by_id(claims: list[Claim]) -> dict[str, Claim]:
    assert len({claim.id for claim in claims}) == len(claims)
    return {claim.id: claim for claim in claims}


# bad-simulation


def test_bad_simulation_writes_claims_inputs_and_figures(town: str, tmp_path: Path) -> None:
    experiment = bad_simulation.EXPERIMENT
    table = runner.run_here(experiment, experiment.settings(1))
    answer = runner.finish(experiment, 1, table, tmp_path)
    assert all(claim["holds"] is not None for claim in answer["claims"]), answer["claims"]
    inputs = {entry["id"]: entry for entry in answer["inputs"]}
    assert 300 * 4 < inputs["frontend-subscriptions"]["ours"] < 300 * 12
    assert inputs["backend-subscriptions"]["ours"] <= 240
    assert inputs["skew-most"]["decided_by"]
    files = {Path(path).name for path in answer["files"]}
    assert {"bad-figure-13.png", "bad-figure-14.svg", "bad-simulation.parquet", "bad-simulation.md"} <= files


RUNS: dict[str, dict[str, float]] = {
    "none": {"maximum": 1000, "cov": 0.6, "migrations": 0, "plans": 0},
    "GSH": {"maximum": 450, "cov": 0.04, "migrations": 900, "plans": 1, "cov_next": 0.01},
    "LDM α=0.05": {"maximum": 455, "cov": 0.05, "migrations": 500, "plans": 9},
    "LDM α=0.10": {"maximum": 465, "cov": 0.10, "migrations": 400, "plans": 7},
    "LDM α=0.15": {"maximum": 480, "cov": 0.15, "migrations": 300, "plans": 5},
    "LDM α=0.20": {"maximum": 600, "cov": 0.20, "migrations": 200, "plans": 3},
    "LDM α=0.30": {"maximum": 800, "cov": 0.30, "migrations": 100, "plans": 1},
    "LDM β=450 MB/s": {"maximum": 490, "cov": 0.15, "migrations": 280, "plans": 4},
    "LDM β=600 MB/s": {"maximum": 500, "cov": 0.15, "migrations": 260, "plans": 3},
}
"""One run of each scheme in which every claim of the paper holds."""
AFTER: dict[str, list[float]] = {"GSH": [0.01, 0.01], "LDM α=0.15": [0.3, 0.1], "LDM α=0.05": [0.2, 0.04]}
"""The cov at the two reports after the first plan."""


def simulated(scheme: str = "", **changes: Any) -> Any:
    """The rows of `RUNS`, with changed columns of one scheme; `after` changes its reports."""
    after = AFTER | ({scheme: changes.pop("after")} if "after" in changes else {})
    rows: list[dict[str, Any]] = []
    for core in (False, True):
        for label, run in RUNS.items():
            if core and label not in ("GSH", "LDM α=0.15"):
                continue
            changed = changes if label == scheme and not core else {}
            planned = {"first_plan_s": None if label == "none" else 100.0, "migrations_later": 0}
            key = {"core": core, "seed": 0, "scheme": label}
            rows.append({**key, "kind": "run", "cov_next": None, **planned, **run, **changed})
            covs = after.get(label, [])
            rows += [{**key, "kind": "sample", "at_s": 110.0 + 10 * n, "cov": cov} for n, cov in enumerate(covs)]
    return pd.DataFrame(rows)


def test_bad_simulation_claims_hold_on_the_papers_shapes() -> None:
    claims = by_id(bad_simulation.claims(simulated()))
    assert [claim.id for claim in claims.values() if claim.holds is not True] == []
    assert claims["ldm-takes-longer"].ours == 10.0


@pytest.mark.parametrize(
    ("claim", "scheme", "changes"),
    [
        ("ldm-halves-maximum", "LDM α=0.15", {"maximum": 520}),
        ("gsh-halves-maximum", "GSH", {"maximum": 501}),
        ("gsh-better-balanced", "GSH", {"maximum": 481}),
        ("gsh-at-once", "GSH", {"cov_next": 0.06}),
        ("gsh-no-further-migration", "GSH", {"migrations_later": 1}),
        ("ldm-takes-longer", "LDM α=0.15", {"after": [0.16, 0.16]}),
        ("ldm-small-alpha-takes-longer", "LDM α=0.05", {"after": [0.05, 0.05]}),
        ("ldm-as-good-as-gsh-cov", "LDM α=0.05", {"cov": 0.061}),
        ("ldm-as-good-as-gsh-maximum", "GSH", {"maximum": 430}),
        ("smaller-alpha-lower-maximum", "LDM α=0.10", {"maximum": 481}),
        ("smaller-alpha-more-migrations", "LDM α=0.10", {"migrations": 299}),
        ("smaller-alpha-more-plans", "LDM α=0.10", {"plans": 5}),
        ("smaller-beta-lower-maximum", "LDM β=450 MB/s", {"maximum": 479}),
        ("smaller-beta-more-migrations", "LDM β=600 MB/s", {"migrations": 290}),
        ("smaller-beta-more-plans", "LDM β=600 MB/s", {"plans": 6}),
        ("live-core-same-migrations", "GSH", {"migrations": 800}),
        ("live-core-same-cov", "LDM α=0.15", {"cov": 0.17}),
    ],
)
def test_bad_simulation_claim_fails_on_doctored_rows(claim: str, scheme: str, changes: dict[str, Any]) -> None:
    found = by_id(bad_simulation.claims(simulated(scheme, **changes)))[claim]
    assert found.holds is False
    assert found.differs


def test_time_to_balance_is_not_judged_if_never_reached() -> None:
    claim = by_id(bad_simulation.claims(simulated("LDM α=0.15", after=[0.3, 0.3])))["ldm-takes-longer"]
    assert claim.holds is None
    assert "never reached" in claim.differs


@pytest.mark.parametrize("claim", ["gsh-no-further-migration", "gsh-at-once"])
def test_claim_about_the_time_after_a_shuffle_needs_a_plan(claim: str) -> None:
    found = by_id(bad_simulation.claims(simulated("GSH", first_plan_s=None)))[claim]
    assert found.holds is None
    assert "made no plan" in found.differs


# bad-testbed

MEANS: dict[tuple[str, str], tuple[float, float, float, float, float]] = {
    ("RND", "none"): (0.12, 120, 0, 0, 0),
    ("RND", "LDM"): (0.10, 115, 2, 0, 0),
    ("RND", "SDM"): (0.10, 115, 2, 0, 0),
    ("RND", "LDM + GSH"): (0.10, 115, 2, 0, 0),
    ("RR", "none"): (0.12, 120, 0, 0, 0),
    ("RR", "LDM"): (0.10, 115, 4, 0, 0),
    ("RR", "SDM"): (0.10, 115, 3, 0, 0),
    ("NR", "none"): (0.60, 200, 0, 0, 0),
    ("NR", "LDM"): (0.12, 120, 40, 14, 0),
    ("NR", "SDM"): (0.12, 118, 42, 20, 0),
    ("NR", "LDM + GSH"): (0.11, 115, 300, 0, 1),
    ("NR", "SDM + GSH"): (0.11, 115, 300, 0, 1),
    ("NR", "affinity"): (0.10, 110, 60, 2, 1),
}
"""cov, maximum, migrations, later migrations and shuffles, where every claim holds."""
COLUMNS = ["cov", "maximum", "migrations", "migrations_later", "shuffles"]


def means_of_testbed(changes: dict[tuple[str, str], dict[str, float]] | None = None) -> Any:
    means = pd.DataFrame.from_dict(MEANS, orient="index", columns=COLUMNS).astype(float)
    means.index = pd.MultiIndex.from_tuples(list(MEANS), names=["placement", "scheme"])
    for label, columns in (changes or {}).items():
        for column, value in columns.items():
            means.loc[label, column] = value
    return means


def test_bad_testbed_claims_hold_on_the_papers_shapes() -> None:
    claims = by_id(bad_testbed.claims(means_of_testbed()))
    assert [claim.id for claim in claims.values() if claim.holds is not True] == []


@pytest.mark.parametrize(
    ("claim", "label", "changes"),
    [
        ("rnd-ldm-cov", ("RND", "LDM"), {"cov": 0.12}),
        ("rr-sdm-maximum", ("RR", "SDM"), {"maximum": 121}),
        ("nr-sdm-close-to-ldm-maximum", ("NR", "SDM"), {"maximum": 140}),
        ("rr-sdm-close-to-ldm-cov", ("RR", "SDM"), {"cov": 0.08}),
        ("rr-similar-migrations", ("RR", "SDM"), {"migrations": 1}),
        ("nr-similar-migrations", ("NR", "SDM"), {"migrations": 70}),
        ("nr-needs-more-ldm-than-rr", ("RR", "LDM"), {"migrations": 9}),
        ("nr-needs-more-sdm-than-rnd", ("RND", "SDM"), {"migrations": 9}),
        ("early-shuffle-ldm", ("NR", "LDM + GSH"), {"migrations_later": 14}),
        ("gsh-little-over-ldm-cov", ("NR", "LDM + GSH"), {"cov": 0.06}),
        ("gsh-little-over-sdm-maximum", ("NR", "SDM + GSH"), {"maximum": 100}),
        ("shuffle-under-nr", ("NR", "LDM + GSH"), {"shuffles": 0}),
        ("shuffle-under-rnd", ("RND", "LDM + GSH"), {"shuffles": 0.5}),
        ("nr-affinity-maximum", ("NR", "affinity"), {"maximum": 116}),
        ("nr-affinity-migrations", ("NR", "affinity"), {"migrations": 300}),
    ],
)
def test_bad_testbed_claim_fails_on_doctored_means(
    claim: str, label: tuple[str, str], changes: dict[str, float]
) -> None:
    found = by_id(bad_testbed.claims(means_of_testbed({label: changes})))[claim]
    assert found.holds is False
    assert found.differs


def test_claims_about_schemes_that_were_not_run_are_not_judged() -> None:
    everything = by_id(bad_testbed.claims(means_of_testbed()))
    some = means_of_testbed()
    some = some[[placement != "RND" and scheme in ("none", "LDM") for placement, scheme in some.index]]
    claims = by_id(bad_testbed.claims(some))
    assert list(claims) == list(everything)
    judged = {id for id, claim in claims.items() if claim.holds is not None}
    assert judged == {"rr-ldm-cov", "rr-ldm-maximum", "nr-ldm-cov", "nr-ldm-maximum", "nr-needs-more-ldm-than-rr"}
    assert claims["rr-sdm-cov"].differs == "not run: SDM under RR"


def test_claims_about_scheme_without_migrations_are_not_judged() -> None:
    unmoved = means_of_testbed({("RR", "LDM"): {"migrations": 0}, ("RR", "SDM"): {"migrations": 0}})
    claims = by_id(bad_testbed.claims(unmoved))
    for id in ("rr-ldm-cov", "rr-ldm-maximum", "rr-sdm-cov", "rr-similar-migrations", "rr-sdm-close-to-ldm-cov"):
        assert claims[id].holds is None
        assert "no subscriber moved under RR" in claims[id].differs
    assert claims["nr-needs-more-ldm-than-rr"].holds is True


def test_testbed_of_some_schemes_reports_every_claim(town: str, tmp_path: Path) -> None:
    experiment = bad_testbed.EXPERIMENT
    some = [
        setting
        for setting in experiment.settings(1)
        if setting["placement"] != "RND" and setting["scheme"] in ("none", "LDM")
    ]
    verdicts, files = answer_and_files(experiment, runner.run_here(experiment, some), tmp_path)
    assert verdicts["nr-ldm-cov"] and verdicts["nr-ldm-maximum"]
    assert verdicts["rnd-ldm-cov"] is None and verdicts["shuffle-under-nr"] is None
    figures = {f"bad-figure-{number:02}.png" for number in (7, 8, 10, 11, 12)}
    assert figures <= files and "bad-figure-05.png" not in files


def test_figures_of_a_single_scheme_can_be_drawn(town: str, tmp_path: Path) -> None:
    experiment = bad_testbed.EXPERIMENT
    table = runner.run_here(experiment, [{"seed": 0, "placement": "NR", "scheme": "affinity"}])
    files = bad_testbed.draw_figures(tmp_path, table.to_pandas())
    assert {path.name for path in files} == {"bad-figure-09.png", "bad-figure-09.svg"}


def test_bad_testbed_compares_placements_and_schemes(town: str, tmp_path: Path) -> None:
    experiment = bad_testbed.EXPERIMENT
    table = runner.run_here(experiment, experiment.settings(1))
    verdicts, files = answer_and_files(experiment, table, tmp_path / "out")
    assert verdicts["nr-ldm-cov"] and verdicts["nr-sdm-maximum"] and verdicts["nr-affinity-migrations"] is not None
    assert {f"bad-figure-{number:02}.png" for number in range(5, 13)} <= files


def test_testbed_has_the_periods_of_the_seven_channels() -> None:
    scenario = balance_scenario.load("paper-testbed")
    assert scenario.channels.periods_s == (10, 20, 10, 10, 30, 10, 30)


# affinity


def test_affinity_is_compared_at_the_same_alpha(town: str, tmp_path: Path) -> None:
    compared = [affinity.SCHEMES[scheme] for scheme in (*affinity.OTHERS, "affinity")]
    assert {(scheme["alpha"], scheme["settle"]) for scheme in compared} == {(affinity.ALPHA, affinity.SETTLE)}
    experiment = affinity.EXPERIMENT
    table = runner.run_here(experiment, experiment.settings(1))
    answer = runner.finish(experiment, 1, table, tmp_path)
    metrics = answer["metrics"]
    assert all(metrics[f"paper.{scheme}.max_load_over_lower_bound"] >= 1.0 for scheme in affinity.SCHEMES)
    ratio = metrics["communities.affinity.max_load"] / metrics["communities.sdm.max_load"]
    assert metrics["communities.max_load_ratio_to_sdm"] == pytest.approx(ratio)
    assert all(claim["holds"] is not None for claim in answer["claims"])


GOALS = {
    "communities.max_load_ratio_to_sdm": ("communities-maximum-beats-sdm", 0.95),
    "communities.migrations_ratio_to_sdm": ("communities-no-more-moves-than-sdm", 1.0),
    "communities.max_load_ratio_to_ldm": ("communities-maximum-beats-ldm", 0.95),
    "communities.migrations_ratio_to_ldm": ("communities-no-more-moves-than-ldm", 1.0),
    "communities.max_load_ratio_to_gsh": ("communities-maximum-beats-gsh", 0.9),
    "paper.max_load_ratio_to_sdm": ("paper-maximum-as-low-as-sdm", 1.01),
    "paper.migrations_ratio_to_sdm": ("paper-as-few-moves-as-sdm", 1.01),
    "paper.max_load_ratio_to_ldm": ("paper-maximum-as-low-as-ldm", 1.01),
    "paper.migrations_ratio_to_ldm": ("paper-as-few-moves-as-ldm", 1.01),
    "paper.max_load_ratio_to_gsh": ("paper-maximum-as-low-as-gsh", 1.01),
    "paper.migrations_ratio_to_gsh": ("paper-fewer-moves-than-gsh", 0.35),
}


def test_every_goal_of_affinity_can_be_met_and_missed() -> None:
    met = by_id(affinity.claims({metric: goal for metric, (_, goal) in GOALS.items()}))
    missed = by_id(affinity.claims({metric: goal + 0.001 for metric, (_, goal) in GOALS.items()}))
    assert set(met) == {claim for claim, _ in GOALS.values()}
    assert all(claim.holds is True for claim in met.values())
    assert all(claim.holds is False for claim in missed.values())


def test_affinity_in_one_world_leaves_the_other_unjudged() -> None:
    claims = by_id(affinity.claims({"paper.max_load_ratio_to_sdm": 1.0}))
    assert claims["paper-maximum-as-low-as-sdm"].holds is True
    assert claims["communities-maximum-beats-sdm"].holds is None
    assert "communities was not run" in claims["communities-maximum-beats-sdm"].differs


@pytest.mark.parametrize("experiment", [bad_simulation.EXPERIMENT, bad_testbed.EXPERIMENT, affinity.EXPERIMENT])
def test_unknown_option_is_refused(experiment: Experiment) -> None:
    with pytest.raises(ValueError, match="option"):
        experiment.settings(1, colour="red")
    assert experiment.default_runs >= 20
