"""`surge`: a disaster multiplies one channel's data. Plans on announced surges against plans on averages alone.

Beyond the paper, whose moving averages "avoid instant peaks" [BAD §6.1.2]. Both planners run the same policy with the
product's defaults (rounds of 10 s, `hits` 2) on the same worlds; only `surges` differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from matplotlib.figure import Figure

from tocsin.experiments import figures
from tocsin.experiments.balance_runs import MB, draw_over_time, rows_of, select, simulate_world
from tocsin.experiments.report import Claim, ExperimentReport, at_most, table
from tocsin.experiments.runner import Row
from tocsin.model.plan import Urgency
from tocsin.policies.balance.settings import BalanceSettings

SCENARIO: Final = "surge"
SURGE_S: Final = 601.0
"""The beginning of the disaster in the scenario."""
ANSWER_S: Final = 15.0
"""The answer has to be there by then."""
COMPARED_S: Final = 60.0
"""Maxima are compared from `ANSWER_S` on for this long."""
SCHEMES: Final = ("ldm", "sdm", "affinity")
PLANNERS: Final = {"averages": False, "surges": True}


@dataclass(frozen=True)
class Surge:
    name: str = "surge"
    title: str = "A disaster: plans on announced surges against plans on averages"
    default_runs: int = 10

    def settings(self, runs: int, **options: str) -> Sequence[Mapping[str, Any]]:
        if options:
            raise ValueError(f"{self.name} has no options; got {sorted(options)}")
        return [
            {"seed": seed, "scheme": scheme, "planner": planner}
            for scheme in SCHEMES
            for planner in PLANNERS
            for seed in range(runs)
        ]

    def run(self, setting: Mapping[str, Any]) -> list[Row]:
        settings = BalanceSettings(scheme=setting["scheme"], shuffle="none", surges=PLANNERS[setting["planner"]])
        log = simulate_world(SCENARIO, setting["seed"], "nearest", settings)
        rows = rows_of(log, setting, steady_s=SURGE_S + ANSWER_S)
        urgent = PLANNERS[setting["planner"]]
        answers = [
            plan.at_s - SURGE_S
            for plan in log.plans
            if plan.at_s > SURGE_S and (plan.urgency is Urgency.OVERLOAD or not urgent)
        ]
        unanswered_s = log.samples[-1].at_s - SURGE_S  # not answered until the end of the run
        compared = [
            sample.maximum
            for sample in log.samples
            if SURGE_S + ANSWER_S <= sample.at_s <= SURGE_S + ANSWER_S + COMPARED_S
        ]
        rows[0] |= {"answer_s": answers[0] if answers else unanswered_s, "maximum": sum(compared) / len(compared)}
        return rows

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        rows = table_.to_pandas()
        runs = select(rows, kind="run")
        means = runs.groupby(["scheme", "planner"])[["maximum", "answer_s", "migrations"]].mean()
        metrics: dict[str, Any] = {}
        for scheme in SCHEMES:
            pairs = runs[runs.scheme == scheme].pivot(index="seed", columns="planner", values="maximum")
            ratio = pairs["surges"] / pairs["averages"]
            metrics |= {f"{scheme}.maximum_ratio": float(ratio.mean()), f"{scheme}.worst_ratio": float(ratio.max())}
            metrics |= {
                f"{scheme}.{planner}.answer_s": float(means.loc[(scheme, planner), "answer_s"]) for planner in PLANNERS
            }
        files = figures.draw(out, "surge", lambda figure: _draw(figure, rows), width_in=8.0, height_in=3.0)
        return ExperimentReport(metrics, _claims(runs, metrics), files, _body(means), _NOTES)


def _claims(runs: Any, metrics: Mapping[str, Any]) -> list[Claim]:
    source, world = "beyond the paper", "the world `surge`: which neighbourhoods surge, and the factor"
    slowest = float(select(runs, planner="surges").answer_s.max())
    maxima = [
        at_most(
            f"{scheme}-lower-maximum",
            source,
            "not measured there",
            metrics[f"{scheme}.maximum_ratio"],
            0.8,
            "times the maximum under averages alone, from 15 s to 75 s after the surge",
            decided_by=world,
        )
        for scheme in SCHEMES
    ]
    return [
        at_most(
            "answered-in-time",
            source,
            "not measured there",
            slowest,
            ANSWER_S,
            "s to the first plan, in the slowest run",
            decided_by="the struck channel's period of 10 s",
        ),
        *maxima,
    ]


def _body(means: Any) -> str:
    columns = ("scheme", "planner", "maximum load (MB/s)", "first plan after (s)", "migrations")
    rows = [
        (*label, float(mean.maximum) / MB, float(mean.answer_s), float(mean.migrations))
        for label, mean in means.iterrows()
    ]
    return "## Means over seeds\n\n" + table(columns, rows)


_NOTES = (
    "The maximum is the true load of the most loaded broker. Until the struck channel executes for the first time, no "
    "planner can know of the disaster, so the first 15 s are not compared.",
    "Both planners use the product's defaults. The averages have a time constant of 60 s, an imbalance must be seen in "
    "two rounds of 10 s.",
)


def _draw(figure: Figure, rows: Any) -> None:
    panels = figure.subplots(1, len(SCHEMES), sharey=True)
    samples = select(rows, kind="sample")
    shown = samples[(samples.at_s >= SURGE_S - 60.0) & (samples.at_s <= SURGE_S + 150.0)]
    for axes, scheme in zip(panels, SCHEMES, strict=True):
        series = [(planner, select(shown, scheme=scheme, planner=planner)) for planner in PLANNERS]
        draw_over_time(axes, series, "maximum", scheme, "maximum load (MB/s)" if scheme == SCHEMES[0] else "", MB)
    figures.legend_below(figure, panels[0])


EXPERIMENT = Surge()
