"""`tocsin bench check` fails below a bar, and has a short form of every benchmark."""

from __future__ import annotations

import pkgutil
from typing import Any

import pytest
from typer.main import get_group

from tocsin import benchmarks
from tocsin.benchmarks import check
from tocsin.benchmarks.check import Bar, ShortForm
from tocsin.cli.main import make_app


def measured(figures: dict[str, Any] | None, *bars: Bar) -> dict[str, Any]:
    return check.run([ShortForm("example", (), bars)], lambda form: figures)


@pytest.mark.parametrize(
    ("figures", "bar", "holds"),
    [
        ({"ratio": 1.0}, Bar("ratio", at_least=1.0), True),
        ({"ratio": 0.9}, Bar("ratio", at_least=1.0), False),
        ({"ratio": 2.5}, Bar("ratio", at_most=2.5), True),
        ({"ratio": 2.6}, Bar("ratio", at_most=2.5), False),
        ({"ratio": None}, Bar("ratio", at_most=2.5), False),
        ({"ratio": 1.0, "correct": False}, Bar("ratio", at_least=1.0), False),
    ],
)
def test_check_fails_below_the_bar_or_with_wrong_results(figures: dict[str, Any], bar: Bar, holds: bool) -> None:
    assert measured(figures, bar)["correct"] is holds


def test_seconds_are_compared_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_reference_s", lambda: 0.5)
    bar = Bar("plan_s", at_most=4.0, per_reference=True)
    assert measured({"plan_s": 2.0}, bar)["figures"] == {"example.plan_s": 4.0}
    assert measured({"plan_s": 2.1}, bar)["failed"] == ["example: plan_s 4.2 is not ≤ 4 × reference"]
    rate = Bar("runs_per_s", at_least=4.0, per_reference=True)
    assert measured({"runs_per_s": 8.0}, rate)["correct"] and not measured({"runs_per_s": 7.0}, rate)["correct"]


def test_benchmark_without_its_peer_is_skipped() -> None:
    outcome = measured(None, Bar("ratio", at_least=1.0))
    assert outcome["skipped"] == ["example"] and outcome["correct"]


@pytest.mark.parametrize("form", check.SHORT_FORMS, ids=lambda form: form.benchmark)
def test_options_of_a_short_form_are_those_of_its_benchmark(form: ShortForm) -> None:
    bench: Any = get_group(make_app()).commands["bench"]
    command = bench.commands[form.benchmark]
    with command.make_context(form.benchmark, list(form.options)) as context:
        assert context.params


def test_every_benchmark_with_a_bar_has_a_short_form() -> None:
    """`profile` and `matching` measure a machine for its operator and have no bar."""
    names = {module.name.replace("_", "-") for module in pkgutil.iter_modules(benchmarks.__path__) if not module.ispkg}
    assert {form.benchmark for form in check.SHORT_FORMS} == names - {"check", "profile", "matching"}
    assert all(form.bars for form in check.SHORT_FORMS)
