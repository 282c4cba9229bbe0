"""The report of `bad-testbed --live`: figures 5–12 of [BAD §6.1] with loads measured on real processes.

The claims and figures are those of `bad_testbed`, for the placements and schemes that were run. In addition this report
compares the load model with the measured load of every broker. An experiment may not start processes:
`demo.testbed` does and passes the rows. Not an experiment itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from matplotlib.figure import Figure

from tocsin.experiments import bad_testbed, figures
from tocsin.experiments.balance_runs import KB, select, share_y
from tocsin.experiments.report import NO_CHOICE, Claim, ExperimentReport, at_most, equals, table

WRONG: Final = ("lost", "repeated", "out_of_order", "unexpected", "gaps", "not_granted", "errors")
"""Counts of a run that must be 0: the audit's, subscriptions that were not granted, and errors of people."""
_COLUMNS: Final = ("cov", "maximum", "migrations", "migrations_later", "shuffles", "promised_cov", "promised_maximum")
OFFERED: Final = ("none", "LDM", "SDM", "LDM + GSH", "affinity")
"""The schemes that can be run live. Without SDM + GSH all of them take about an hour."""
_MODEL: Final = (
    "10 % counts as true; the model's mean over the window itself is compared (a prediction proper is "
    "`forecast_error_median`); bytes that bring sessions up to date are left out; the level of traffic is fitted to "
    "the same counters (docs/decisions/0008)"
)
_SHOWN: Final = ("NR", "LDM")
"""The run whose modelled and measured loads are drawn, if it was made."""


@dataclass(frozen=True)
class LiveTestbed:
    how: tuple[str, ...]
    """Notes on how the runs were made, for the reader."""
    name: str = "bad-testbed"
    title: str = "Placements and migration on the live system, 5 brokers and 400 subscribers [BAD figures 5–12]"

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        rows = table_.to_pandas()
        means, windows = _means(rows), _windows(rows)
        files = bad_testbed.draw_figures(out, rows)
        if len(windows):
            build = _Predictions(windows)
            files += figures.draw(out, "bad-live-loads", build, width_in=2.2 * build.brokers, height_in=2.8)
        metrics = _load_errors(windows) | wrong_counts(rows) | _run_metrics(means, windows)
        notes = (*self.how, left_out(rows), *_NOTES)
        return ExperimentReport(metrics, claims(rows), files, _body(means, windows), notes, bad_testbed.inputs(rows))


def _means(rows: Any) -> Any:
    return select(rows, kind="run").groupby(["placement", "scheme"])[[*_COLUMNS, *WRONG]].mean()


def wrong_counts(rows: Any) -> dict[str, int]:
    runs = select(rows, kind="run")
    return {name: int(runs[name].sum()) for name in WRONG}


def claims(rows: Any) -> list[Claim]:
    """The claims of `bad_testbed` on measured loads, and our own."""
    means, errors = _means(rows), _load_errors(_windows(rows))
    promise, truth = "no notification is lost, repeated or wrong", "plans are made on the loads that brokers carry"
    return [
        *bad_testbed.claims(means, OFFERED),
        *_affinity(means),
        *(
            at_most(id, "ours", truth, errors[metric], 0.1, unit, decided_by=_MODEL, missing=missing)
            for id, metric, unit, missing in (
                ("model-error", "load_error_median", "median error of the model", "no window was measured"),
                ("model-error-after-migrations", "load_error_median_after_migrations",
                 "median error, in windows after a migration", "no window followed a migration"),
                ("model-error-under-churn", "load_error_median_under_churn",
                 "median error, in windows with a login or logout", "no window had a login or logout"),
            )
        ),
        equals("nothing-wrong", "ours", promise, sum(wrong_counts(rows).values()), 0, decided_by=NO_CHOICE),
    ]  # fmt: skip


def left_out(rows: Any) -> str:
    """A note that names the comparisons of `bad_testbed` that this experiment does not make."""
    means = _means(rows)
    made = {claim.id for claim in bad_testbed.claims(means, OFFERED)}
    absent = ", ".join(scheme for scheme in bad_testbed.SCHEMES if scheme not in OFFERED)
    others = ", ".join(f"`{claim.id}`" for claim in bad_testbed.claims(means) if claim.id not in made)
    return (
        f"{absent} is not offered on the live system. These comparisons of the simulated experiment are not made: "
        f"{others}. `nr-affinity-measured-*` compare affinity with the best scheme of the paper that was run."
    )


def _affinity(means: Any) -> list[Claim]:
    """Affinity beside the best of the paper's schemes that were run."""
    others = [scheme for scheme in bad_testbed.PAPER_SCHEMES if ("NR", scheme) in means.index]
    return bad_testbed.affinity_claims(means, others, "nr-affinity-measured")


def _windows(rows: Any) -> Any:
    """The windows with the relative errors of the model, against live and all traffic, and of the forecast."""
    windows = select(rows, kind="window")
    windows = windows[(windows.measured > 0.0) & (windows.live > 0.0)].copy()
    windows["error"] = (windows.modelled / windows.live - 1.0).abs()
    windows["error_with_catch_up"] = (windows.modelled / windows.measured - 1.0).abs()
    windows["forecast_error"] = (windows.forecast / windows.live - 1.0).abs()
    return windows


def _load_errors(windows: Any) -> dict[str, Any]:
    chosen = {
        "load_error_median": windows,
        "load_error_median_without_migrations": _where(windows, "migrations", at_most=0),
        "load_error_median_after_migrations": _where(windows, "follows_migration", at_least=1),
        "load_error_median_under_churn": _where(windows, "session_changes", at_least=1),
    }
    return {name: _median(part) for name, part in chosen.items()} | {
        "load_error_median_with_catch_up": _median(windows, "error_with_catch_up"),
        "forecast_error_median": _median(windows, "forecast_error"),
        "load_windows": len(windows),
        "catch_up_share": 1.0 - float(windows.live.sum() / windows.measured.sum()) if len(windows) else None,
    }


def _where(windows: Any, column: str, *, at_least: float = float("-inf"), at_most: float = float("inf")) -> Any:
    values = windows[column].astype(float)
    return windows[(values >= at_least) & (values <= at_most)]


def _median(windows: Any, column: str = "error") -> float | None:
    return float(windows[column].median()) if len(windows) else None


def _run_metrics(means: Any, windows: Any) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for placement, scheme in means.index:
        name, mean = f"{placement}.{scheme}", means.loc[(placement, scheme)]
        metrics |= {f"{name}.{column}": float(mean[column]) for column in (*_COLUMNS, "lost")}
        metrics[f"{name}.load_error_median"] = _median(select(windows, placement=placement, scheme=scheme))
    return metrics


def _body(means: Any, windows: Any) -> str:
    loads = ("cov", "promised", "maximum (kB/s)", "promised", "migrations", "error of the model")
    columns = ("placement", "scheme", *loads)
    rows = [
        (
            *label,
            float(mean["cov"]),
            float(mean.promised_cov),
            float(mean.maximum) / KB,
            float(mean.promised_maximum) / KB,
            float(mean.migrations),
            _median(select(windows, placement=label[0], scheme=label[1])),
        )
        for label, mean in means.iterrows()
    ]
    return (
        "## Measured loads of each run, beside the promise of its last plan\n\n"
        + table(columns, rows)
        + "\n\nLoads are measured over the second half of the time with balancing. The promise is what the last plan "
        "with moves expects of the load model. The error of the model is the median over windows and brokers."
    )


class _Predictions:
    """Draws modelled and measured load of each broker over time, one panel per broker, for one run."""

    def __init__(self, windows: Any) -> None:
        labels = list(dict.fromkeys(zip(windows.placement, windows.scheme, strict=True)))
        self._label = _SHOWN if _SHOWN in labels else labels[0]
        placement, scheme = self._label
        self._windows = select(windows, placement=placement, scheme=scheme)
        self.brokers = int(self._windows.broker.nunique())

    def __call__(self, figure: Figure) -> None:
        panels: Sequence[Any] = figure.subplots(1, self.brokers, squeeze=False)[0]
        for axes, (broker, rows) in zip(panels, self._windows.groupby("broker"), strict=True):
            minutes = rows.at_s / 60.0
            modelled, measured = "the model's mean over a window", "measured over the same window"
            axes.plot(minutes, rows.modelled / KB, color=figures.ORANGE, linestyle="--", label=modelled)
            axes.plot(minutes, rows.live / KB, color=figures.BLUE, label=measured)
            axes.set(title=f"broker {int(broker) + 1}", xlabel="minutes")
        panels[0].set_ylabel("load (kB/s)")
        share_y(panels)
        figure.suptitle(f"{self._label[0]} + {self._label[1]}", fontsize=9)
        figures.legend_below(figure, panels[0])


_NOTES = (
    "Loads are measured: bytes that a broker fetched and delivered, from its load reports, divided by the time between "
    "the reports. Migrations are the clients' changes of broker. One run of each: differences of a few percent are "
    "chance.",
    "A window begins every second after balancing has begun. The model's load is the mean of its values in the window, "
    "on which plans were made then; the measured load leaves out the bytes that bring sessions up to date. The "
    "forecast is the model's value at the start of the window. A quarter of the people log out and in during a run.",
    "A claim about a scheme without migrations is not judged: the scheme equals the placement alone. Nor is one about "
    "a scheme that is offered and was not run.",
)
