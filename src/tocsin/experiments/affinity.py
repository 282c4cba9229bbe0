"""`affinity`: our own scheme against LDM, SDM and GSH, on the paper's world and on *communities*.

Closed loop: each scheme runs the whole scenario on the same worlds, and the brokers' loads are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from matplotlib.figure import Figure

from tocsin.experiments import figures
from tocsin.experiments.balance_runs import MB, draw_over_time, paper_settings, rows_of, select, simulate_world
from tocsin.experiments.report import Claim, ExperimentReport, at_most, table
from tocsin.experiments.runner import Row


@dataclass(frozen=True)
class ComparisonWorld:
    """A world on which the schemes are compared."""

    scenario: str
    busy_bytes_per_s: float
    """β and θ."""
    steady_s: float
    """Means are over samples from this time on."""


WORLDS: Final = {
    "paper": ComparisonWorld("paper-simulation", 300 * MB, 600.0),
    "communities": ComparisonWorld("communities", 10 * MB, 300.0),
}
AFFINITY_ALPHA: Final = 0.004
"""Affinity needs few moves at a time, so it can start early. The paper's schemes keep its α = 0.15."""
SCHEMES: Final[dict[str, dict[str, Any]]] = {
    "none": {"scheme": "none", "shuffle": "none"},
    "ldm": {"scheme": "ldm", "shuffle": "none"},
    "sdm": {"scheme": "sdm", "shuffle": "none"},
    "gsh": {"scheme": "ldm", "shuffle": "gsh"},
    "affinity": {"scheme": "affinity", "shuffle": "affinity", "alpha": AFFINITY_ALPHA, "settle": 0.5},
}


@dataclass(frozen=True)
class Affinity:
    name: str = "affinity"
    title: str = "Keeping shared interests together: affinity against LDM, SDM and GSH"
    default_runs: int = 20

    def settings(self, runs: int, **options: str) -> Sequence[Mapping[str, Any]]:
        """`--set world=paper` or `--set world=communities` runs only that world."""
        if set(options) - {"world"} or options.get("world", "paper") not in WORLDS:
            raise ValueError(f"{self.name} has one option, world, which is one of {', '.join(WORLDS)}; not {options}")
        worlds = [options["world"]] if "world" in options else sorted(WORLDS)
        return [
            {"world": world, "seed": seed, "scheme": scheme}
            for world in worlds
            for scheme in SCHEMES
            for seed in range(runs)
        ]

    def run(self, setting: Mapping[str, Any]) -> list[Row]:
        world = WORLDS[setting["world"]]
        busy = {"beta_bytes_per_s": world.busy_bytes_per_s, "theta_bytes_per_s": world.busy_bytes_per_s}
        settings = paper_settings(**busy, **SCHEMES[setting["scheme"]])
        log = simulate_world(world.scenario, setting["seed"], "nearest", settings)
        return rows_of(log, setting, steady_s=world.steady_s)

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        rows = table_.to_pandas()
        means = (
            select(rows, kind="run").groupby(["world", "scheme"])[["cov", "maximum", "over_bound", "migrations"]].mean()
        )
        metrics: dict[str, Any] = {}
        for world, scheme in means.index:
            mean = means.loc[(world, scheme)]
            metrics |= {
                f"{world}.{scheme}.max_load_over_lower_bound": float(mean.over_bound),
                f"{world}.{scheme}.cov": float(mean["cov"]),
                f"{world}.{scheme}.max_load": float(mean.maximum),
                f"{world}.{scheme}.migrations": float(mean.migrations),
            }
        for world in sorted(set(rows.world)):
            ours, gsh = means.loc[(world, "affinity")], means.loc[(world, "gsh")]
            metrics |= {
                f"{world}.migrations_ratio_to_gsh": float(ours.migrations / gsh.migrations),
                f"{world}.cov_minus_gsh": float(ours["cov"] - gsh["cov"]),
                f"{world}.max_load_ratio_to_gsh": float(ours.maximum / gsh.maximum),
            }
        files = figures.draw(out, "affinity", lambda figure: _draw(figure, rows), width_in=8.0, height_in=5.4)
        return ExperimentReport(metrics, _claims(metrics), files, _body(means), _NOTES)


def _claims(metrics: Mapping[str, Any]) -> list[Claim]:
    bars = (
        ("paper-few-migrations", "paper.migrations_ratio_to_gsh", 0.35, "times GSH's migrations"),
        ("paper-as-even", "paper.cov_minus_gsh", 0.01, "above GSH's cov"),
        ("paper-maximum", "paper.max_load_ratio_to_gsh", 1.0, "times GSH's maximum load"),
        ("communities-maximum", "communities.max_load_ratio_to_gsh", 0.9, "times GSH's maximum load"),
    )
    return [
        at_most(id, "beyond the paper, its future work [BAD §7]", "not measured there", metrics[metric], bar, unit)
        for id, metric, bar, unit in bars
        if metric in metrics
    ]


def _body(means: Any) -> str:
    columns = ("world", "scheme", "cov", "maximum load (MB/s)", "÷ lower bound", "migrations")
    rows = [
        (world, scheme, float(mean["cov"]), float(mean.maximum) / MB, float(mean.over_bound), float(mean.migrations))
        for (world, scheme), mean in means.iterrows()
    ]
    return "## Means over seeds and time\n\n" + table(columns, rows)


_NOTES = (
    "The lower bound of the maximum load is the load of all deliveries plus one fetch of each BE subscription, spread "
    "evenly. No assignment reaches it if two brokers must fetch the same BE subscription.",
    f"LDM, SDM and GSH use the paper's α = 0.15 and γ = 0.5. Affinity shuffles at the same γ and migrates from a "
    f"cov of {AFFINITY_ALPHA} down to half of it; all its moves are counted.",
)


def _draw(figure: Figure, rows: Any) -> None:
    worlds = [world for world in WORLDS if world in set(rows.world)]
    grid = figure.subplots(len(worlds), 3, squeeze=False)
    for row, world in zip(grid, worlds, strict=True):
        samples = select(rows, kind="sample", world=world)
        series = [(scheme, select(samples, scheme=scheme)) for scheme in SCHEMES]
        draw_over_time(row[0], series, "maximum", f"{world}: maximum load", "MB/s", MB)
        draw_over_time(row[1], series, "cov", f"{world}: cov", "standard deviation ÷ mean")
        draw_over_time(row[2], series, "migrations", f"{world}: migrations", "subscribers moved so far")
    figures.legend_below(figure, grid[0][0])


EXPERIMENT = Affinity()
