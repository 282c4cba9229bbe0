"""`bad-testbed`: figures 5–12 of [BAD §6.1]: three placements × no balancing, LDM, SDM, and the last two with GSH.

Simulated: the paper's prototype had 5 brokers and 400 subscribers on real machines. `LiveTestbed` reports on rows of
the same form that were measured on the live system; it compares the placements and schemes that were run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from matplotlib.figure import Figure

from tocsin.experiments import figures
from tocsin.experiments.balance_runs import (
    KB,
    comparison,
    draw_loads,
    paper_settings,
    rows_of,
    select,
    share_y,
    simulate_world,
)
from tocsin.experiments.report import Claim, ExperimentReport, at_least, at_most, below, shows, table
from tocsin.experiments.runner import Row

SCENARIO: Final = "paper-testbed"
PLACEMENTS: Final = {"RND": "random", "RR": "round-robin", "NR": "nearest"}
SCHEMES: Final[dict[str, dict[str, Any]]] = {
    "none": {"scheme": "none", "shuffle": "none"},
    "LDM": {"scheme": "ldm", "shuffle": "none"},
    "SDM": {"scheme": "sdm", "shuffle": "none"},
    "LDM + GSH": {"scheme": "ldm", "shuffle": "gsh"},
    "SDM + GSH": {"scheme": "sdm", "shuffle": "gsh"},
}
MIGRATIONS: Final = ("LDM", "SDM")
BUSY_BYTES_PER_S: Final = 60 * KB
"""β and θ: a little over half of the final mean load, so that nothing moves before most subscriptions are made. The
paper gives no value for the testbed."""
CLOSE: Final = 0.15
"""Ours: SDM is "similar" to LDM if cov and maximum differ by at most 15 %."""


SHOWN_SEEDS: Final = 5
"""Number of seeds whose loads per broker are kept; figures show the one of them with most LDM migrations."""


@dataclass(frozen=True)
class BadTestbed:
    name: str = "bad-testbed"
    title: str = "Placements and migration on 5 brokers and 400 subscribers [BAD figures 5–12]"
    default_runs: int = 20

    def settings(self, runs: int, **options: str) -> Sequence[Mapping[str, Any]]:
        if options:
            raise ValueError(f"{self.name} has no options; got {sorted(options)}")
        return [
            {"seed": seed, "placement": placement, "scheme": scheme}
            for placement in PLACEMENTS
            for scheme in SCHEMES
            for seed in range(runs)
        ]

    def run(self, setting: Mapping[str, Any]) -> list[Row]:
        busy = {"beta_bytes_per_s": BUSY_BYTES_PER_S, "theta_bytes_per_s": BUSY_BYTES_PER_S}
        settings = paper_settings(**busy, **SCHEMES[setting["scheme"]])
        log = simulate_world(SCENARIO, setting["seed"], PLACEMENTS[setting["placement"]], settings)
        return rows_of(log, setting, brokers=setting["seed"] < SHOWN_SEEDS)

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        return _report(table_, out, _NOTES)


@dataclass(frozen=True)
class LiveTestbed:
    """The same table, claims and figures for runs on real processes. An experiment may not start processes: the caller
    does and passes the rows.
    """

    how: str
    """A note on how the runs were made, for the reader."""
    name: str = "bad-testbed"
    title: str = "Placements and migration on the live system, 5 brokers and 400 subscribers [BAD figures 5–12]"

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        return _report(table_, out, (self.how, *_LIVE_NOTES))


def _report(table_: pa.Table, out: Path, notes: tuple[str, ...]) -> ExperimentReport:
    rows = table_.to_pandas()
    columns = ["cov", "maximum", "migrations", "migrations_later", "shuffles"]
    means = select(rows, kind="run").groupby(["placement", "scheme"])[columns].mean()
    metrics = {
        f"{placement}.{scheme}.{column}": float(means.loc[(placement, scheme), column])
        for placement, scheme in means.index
        for column in ("cov", "maximum", "migrations", "migrations_later")
    }
    return ExperimentReport(metrics, _claims(means), _figures(out, rows), _body(means), notes)


def _claims(means: Any) -> list[Claim]:
    """Claims about the placements and schemes that were run; comparisons with others are omitted."""
    claims = [claim for placement in PLACEMENTS for scheme in MIGRATIONS for claim in _gains(means, placement, scheme)]
    claims += _similar(means)
    for scheme in MIGRATIONS:
        claims += _nearest_needs_more(means, scheme) + _early_shuffle(means, scheme)
    return claims + _shuffles(means)


def _gains(means: Any, placement: str, scheme: str) -> list[Claim]:
    if not _were_run(means, (placement, "none"), (placement, scheme)):
        return []
    none, balanced = means.loc[(placement, "none")], means.loc[(placement, scheme)]
    if not balanced.migrations and not none.migrations:
        return []  # placement alone stayed below α: the two are the same but for chance
    figure = {"RND": "figure 6", "RR": "figure 7", "NR": "figure 10"}[placement]
    source, unit = f"[BAD §6.1.3, {figure}]", f"times that of {placement} alone"
    prefix = f"{placement}-{scheme}".lower()
    cov, maximum = (float(balanced[column] / none[column]) for column in ("cov", "maximum"))
    return [
        below(f"{prefix}-cov", source, f"{scheme} reduces cov", cov, 1.0, unit),
        below(f"{prefix}-maximum", source, f"{scheme} reduces the maximum load", maximum, 1.0, unit),
    ]


def _similar(means: Any) -> list[Claim]:
    both = [p for p in PLACEMENTS if _were_run(means, (p, "LDM"), (p, "SDM"))]
    pairs = [(means.loc[(p, "LDM")], means.loc[(p, "SDM")]) for p in both]
    source, statement = "[BAD §6.1.3, figures 6, 10]", "LDM and SDM perform alike"
    unit = "apart, under the placement where they differ most"
    claims = []
    for column in ("cov", "maximum") if pairs else ():
        apart = max(abs(float(sdm[column] / ldm[column]) - 1.0) for ldm, sdm in pairs)
        claims.append(at_most(f"sdm-close-to-ldm-{column}", source, statement, apart, CLOSE, unit))
    return claims


def _nearest_needs_more(means: Any, scheme: str) -> list[Claim]:
    others = [p for p in ("RR", "RND") if _were_run(means, (p, scheme))]
    if not others or not _were_run(means, ("NR", scheme)):
        return []
    moves = means.xs(scheme, level="scheme").migrations
    ratio = float(moves["NR"] / max(1.0, *(moves[p] for p in others)))
    source, statement = "[BAD §6.1.3, figure 12]", "NR: far more than RR and RND"
    return [
        at_least(f"nr-needs-more-{scheme.lower()}", source, statement, ratio, 5.0, "times the migrations of the next")
    ]


def _early_shuffle(means: Any, scheme: str) -> list[Claim]:
    if not _were_run(means, ("NR", scheme), ("NR", f"{scheme} + GSH")):
        return []
    alone, shuffled = means.loc[("NR", scheme)], means.loc[("NR", f"{scheme} + GSH")]
    difference = float(shuffled.migrations_later - alone.migrations_later)
    source, statement = "[BAD §6.1.3, figures 8, 9, 11]", "an early GSH lowers later migrations"
    unit = f"more than after {scheme}'s first plan"
    return [below(f"early-shuffle-{scheme.lower()}", source, statement, difference, 0.0, unit)]


def _shuffles(means: Any) -> list[Claim]:
    if not _were_run(means, *((placement, "LDM + GSH") for placement in PLACEMENTS)):
        return []
    shuffles = means.xs("LDM + GSH", level="scheme").shuffles
    measured = f"RND {shuffles['RND']:.2f}, RR {shuffles['RR']:.2f}, NR {shuffles['NR']:.2f} shuffles a run"
    holds = bool(shuffles["NR"] >= 1.0 and shuffles["RND"] == 0.0)
    statement = "NR calls out the shuffle, RND does not"
    return [shows("shuffle-under-nr-not-rnd", "[BAD §6.1.3]", statement, measured, holds)]


def _were_run(means: Any, *labels: tuple[str, str]) -> bool:
    return set(labels) <= set(means.index)


def _figures(out: Path, rows: Any) -> list[Path]:
    kept, samples = select(rows, kind="broker"), select(rows, kind="sample")
    runs = select(rows, kind="run")
    files: list[Path] = []

    def present(placement: str, schemes: Sequence[str]) -> list[str]:
        return [scheme for scheme in schemes if len(select(runs, placement=placement, scheme=scheme))]

    def loads(number: int, placement: str, candidates: Sequence[str]) -> None:
        schemes = present(placement, candidates)
        ldm = select(runs, placement=placement, scheme="LDM")
        ldm = ldm[ldm.seed < SHOWN_SEEDS]
        if not schemes or not len(ldm):
            return
        first = select(kept, seed=ldm.seed[ldm.migrations.idxmax()])

        def build(figure: Figure) -> None:
            panels = figure.subplots(1, len(schemes), squeeze=False)[0]
            for count, (axes, scheme) in enumerate(zip(panels, schemes, strict=True), start=1):
                rows = select(first, placement=placement, scheme=scheme)
                draw_loads(axes, rows, f"({count}) {placement} + {_shown(scheme)}", KB, "kB/s")
            share_y(panels)

        files.extend(figures.draw(out, f"bad-figure-{number:02}", build, width_in=2.7 * len(schemes), height_in=2.6))

    def compared(number: int, placement: str, candidates: Sequence[str]) -> None:
        schemes = present(placement, candidates)
        if len(schemes) < 2:
            return
        series = [(_shown(scheme), select(samples, placement=placement, scheme=scheme)) for scheme in schemes]
        name = f"bad-figure-{number:02}"
        build = partial(comparison, series=series, unit=KB, unit_name="kB/s")
        files.extend(figures.draw(out, name, build, width_in=8.0, height_in=3.0))

    alone, shuffled = ("none", "LDM", "SDM"), ("LDM + GSH", "SDM + GSH")
    loads(5, "RND", alone)
    compared(6, "RND", alone)
    loads(7, "RR", alone)
    loads(8, "NR", alone)
    loads(9, "NR", shuffled)
    compared(10, "NR", alone)
    compared(11, "NR", (*alone, *shuffled))
    return files + figures.draw(
        out, "bad-figure-12", lambda figure: _draw_12(figure, runs), width_in=5.4, height_in=2.8
    )


def _shown(scheme: str) -> str:
    return "no balancing" if scheme == "none" else scheme


def _draw_12(figure: Figure, runs: Any) -> None:
    schemes = [scheme for scheme in ("LDM", "SDM") if len(select(runs, scheme=scheme))]
    panels = figure.subplots(1, len(schemes), sharey=True, squeeze=False)[0] if schemes else []
    for number, (axes, scheme) in enumerate(zip(panels, schemes, strict=True), start=1):
        grouped = select(runs, scheme=scheme).groupby("placement").migrations
        placements = [placement for placement in PLACEMENTS if placement in grouped.groups]
        low, mean, high = (getattr(grouped, name)().loc[placements] for name in ("min", "mean", "max"))
        axes.bar(placements, mean, yerr=[mean - low, high - mean], color=figures.SKY, ecolor="#444444", width=0.6)
        for place, key in enumerate(placements):
            style: dict[str, Any] = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "fontsize": 7.5}
            axes.annotate(f"{mean[key]:.1f}", (place, high[key]), **style)
        axes.set(title=f"({number}) {scheme}", xlabel="placement", ylabel="migrations" if number == 1 else "")
    if schemes:
        panels[0].set_ylim(0, 1.15 * max(1.0, float(runs[runs.scheme.isin(schemes)].migrations.max())))


def _body(means: Any) -> str:
    columns = ("placement", "scheme", "cov", "maximum load (kB/s)", "migrations", "after the first plan")
    rows = [
        (
            *label,
            float(mean["cov"]),
            float(mean["maximum"]) / KB,
            float(mean["migrations"]),
            float(mean.migrations_later),
        )
        for label, mean in means.iterrows()
    ]
    return "## Means over seeds, from minute 10 on\n\n" + table(columns, rows)


_LIVE_NOTES = (
    "Times are virtual times of the city. Loads and cov come from the brokers' reports; migrations are the clients' "
    "changes of broker. One run of each: differences of a few percent are chance.",
    "Claims about placements and schemes that were not run are omitted, and those about a scheme without "
    "migrations: it equals the placement alone.",
)
_NOTES = (
    f"Simulated. Loads per broker are of one seed: of the first {SHOWN_SEEDS}, the one with most LDM migrations. "
    "Everything else is the mean over all seeds.",
    "Rates are ours: the paper gives reports per run, not results per subscription. Their spread is chosen so that "
    "RND and RR are uneven at times, as in the paper's figures 5 and 7.",
    "Where placement alone stays below α = 0.15, migration does nothing and the scheme equals no balancing.",
)

EXPERIMENT = BadTestbed()
