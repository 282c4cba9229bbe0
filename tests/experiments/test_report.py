"""Claims: what holds, what fails, what cannot be judged, and the two bounds beside a seed document's number."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tocsin.experiments import report
from tocsin.experiments.report import NO_CHOICE, Claim

COMPARISONS: list[Callable[..., Claim]] = [
    report.at_most,
    report.at_least,
    report.below,
    report.above,
    report.equals,
    report.no_more_than_seed,
    report.no_less_than_seed,
    report.reproduces,
]


@pytest.mark.parametrize("compare", COMPARISONS)
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_claim_without_finite_value_is_not_judged(compare: Callable[..., Claim], value: float | None) -> None:
    claim = compare("id", "source", "says", value, 1.0, missing="LDM was not run", decided_by="the rates")
    assert claim.holds is None
    assert claim.ours is None
    assert claim.differs == "LDM was not run"
    assert claim.decided_by == "the rates"
    assert claim.at_least_as_good is None and claim.within_factor is None


def test_claim_without_value_has_default_reason() -> None:
    about = ("id", "source", "says")
    assert report.at_most(*about, None, 1.0, decided_by=NO_CHOICE).differs == "nothing was measured"
    assert report.shows(*about, "up", None, decided_by=NO_CHOICE).differs == "nothing was measured"


def test_comparisons_at_the_bound() -> None:
    about = ("id", "source", "says")
    assert report.at_most(*about, 1.0, 1.0, decided_by=NO_CHOICE).holds is True
    assert report.at_least(*about, 1.0, 1.0, decided_by=NO_CHOICE).holds is True
    assert report.below(*about, 1.0, 1.0, decided_by=NO_CHOICE).holds is False
    assert report.above(*about, 1.0, 1.0, decided_by=NO_CHOICE).holds is False
    assert report.equals(*about, 0, 0, decided_by=NO_CHOICE).holds is True
    assert report.shows(*about, "up", False, decided_by=NO_CHOICE).differs == "measured up"


@pytest.mark.parametrize(
    ("ours", "good", "within"), [(0.5, True, True), (0.74, False, True), (0.76, False, False), (0.3, True, False)]
)
def test_number_of_seed_document_has_two_bounds(ours: float, good: bool, within: bool) -> None:
    claim = report.no_more_than_seed("id", "source", "roughly half", ours, 0.5, decided_by=NO_CHOICE)
    assert (claim.at_least_as_good, claim.within_factor) == (good, within)
    assert claim.holds is good
    assert claim.seed_value == 0.5


def test_larger_number_may_be_the_better_one() -> None:
    better = report.no_less_than_seed("id", "source", "26 % less", 80.0, 26.0, "%", decided_by=NO_CHOICE)
    assert (better.holds, better.at_least_as_good, better.within_factor) == (True, True, False)
    worse = report.no_less_than_seed("id", "source", "26 % less", 20.0, 26.0, "%", decided_by=NO_CHOICE)
    assert (worse.holds, worse.within_factor) == (False, True)
    assert worse.differs == "measured 20 %, expected at least 26 %"


def test_number_without_better_side_is_judged_by_the_factor() -> None:
    near, far = (
        report.reproduces("id", "source", "18", ours, 18.0, "offloads", decided_by=NO_CHOICE) for ours in (13.0, 4.7)
    )
    assert (near.holds, near.within_factor, near.at_least_as_good) == (True, True, None)
    assert (far.holds, far.within_factor) == (False, False)
    assert far.differs == "measured 4.7 offloads, expected 12–27 offloads"


def test_json_of_claim_has_every_field() -> None:
    claim = report.no_more_than_seed("id", "source", "half", 0.4, 0.5, decided_by="the skew")
    fields = report.as_json(claim)
    assert json.loads(json.dumps(fields)) == fields
    expected: dict[str, Any] = {"id": "id", "source": "source", "seed_document": "half", "ours": 0.4, "holds": True}
    expected |= {"differs": "", "seed_value": 0.5, "at_least_as_good": True, "within_factor": True}
    assert fields == expected | {"decided_by": "the skew", "interval_95": None, "effect_size": None}
    with_interval = report.as_json(report.with_evidence(claim, (0.3, 0.5), 0.9))
    assert with_interval == fields | {"interval_95": [0.3, 0.5], "effect_size": 0.9}


def test_page_shows_bounds_choices_and_unjudged_claims() -> None:
    claims = [
        report.no_more_than_seed("halves", "[p]", "half", 0.6, 0.5, decided_by="the skew"),
        report.at_most("missing", "[p]", "low", None, 1.0, missing="SDM was not run", decided_by=NO_CHOICE),
    ]
    inputs = [report.reproduces("people", "[p]", "400", 390.0, 400.0, decided_by="the scenario")]
    page = report.render("Title", "command", report.ExperimentReport({}, claims, inputs=inputs), [])
    assert (
        "| halves | [p] | half | 0.5 | 0.6 | no | yes | **no**: measured 0.6, expected at most 0.5 | the skew |" in page
    )
    assert "| missing | [p] | low | – | – | – | – | *not judged*: SDM was not run | none |" in page
    before, after = page.split("## Our inputs, which the runs cannot change")
    assert "| people |" in after and "| people |" not in before


def test_page_shows_intervals_and_effect_sizes_if_a_claim_has_them() -> None:
    claim = report.no_more_than_seed("halves", "[p]", "half", 0.4, 0.5, decided_by="the skew")
    missing = report.at_most("missing", "[p]", "low", None, 1.0, decided_by=NO_CHOICE)
    claims = [report.with_evidence(claim, (0.3, 0.5), 0.9), report.with_evidence(missing, (0.0, 1.0))]
    page = report.claim_table(claims)
    assert "| halves | [p] | half | 0.5 | 0.4 | 0.3 to 0.5 | 0.9 | yes | yes | yes | the skew |" in page
    assert "| missing | [p] | low | – | – | – | – |" in page, "a claim without a value has no interval"
    assert "95 % interval" not in report.claim_table([claim])


def test_claim_without_a_word_on_our_choices_is_refused() -> None:
    with pytest.raises(ValueError, match="must name the choices"):
        Claim("id", "source", "says", 1.0, True)


def test_every_claim_of_an_experiment_names_our_choices() -> None:
    """A claim whose bound or reading is ours says so in its own row, or says that no choice of ours decides it."""
    makers = {compare.__name__ for compare in COMPARISONS} | {"shows", "significant"}
    calls, silent = 0, []
    for path in sorted(Path(report.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in makers:
                calls += 1
                if "decided_by" not in {keyword.arg for keyword in node.keywords}:
                    silent.append(f"{path.name}:{node.lineno}")
    assert not silent
    assert calls > 60, "the test reads the experiments"
