"""`bad-simulation`: figures 13 and 14 of [BAD §6.2]: no balancing, LDM and GSH under nearest placement; sweeps of α and
β."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from tocsin.experiments import figures
from tocsin.experiments.balance_runs import (
    MB,
    draw_loads,
    draw_over_time,
    paper_settings,
    rows_of,
    select,
    share_y,
    simulate_world,
)
from tocsin.experiments.report import Claim, ExperimentReport, at_least, at_most, below, equals, shows, table
from tocsin.experiments.runner import Row

SCENARIO: Final = "paper-simulation"
BETA_MB: Final = 300.0
"""β of the simulation in MB/s [BAD §6.2.2]."""
ALPHAS: Final = (0.05, 0.10, 0.15, 0.20, 0.30)
BETAS_MB: Final = (300.0, 450.0, 600.0)
ROUGHLY_HALF: Final = (0.38, 0.62)
"""Ours: the range that counts as "roughly half"."""
CLOSE: Final = 0.05
"""Ours: the difference in cov that counts as "as good as"; the paper shows curves without numbers."""

LIVE: Final = 2
"""Number of seeds that are also run under the live coordinator's core."""

NONE, GSH = "none", "GSH"
LDM = "LDM α=0.15"


def schemes() -> dict[str, dict[str, Any]]:
    """Settings by label. θ equals β: the paper gives no θ, and an idle system needs no shuffle."""
    base = {"beta_bytes_per_s": BETA_MB * MB, "theta_bytes_per_s": BETA_MB * MB}
    settings: dict[str, dict[str, Any]] = {
        NONE: {"scheme": "none", "shuffle": "none"},
        GSH: {"scheme": "ldm", "shuffle": "gsh"},
    }
    settings |= {f"LDM α={alpha:.2f}": {"scheme": "ldm", "shuffle": "none", "alpha": alpha} for alpha in ALPHAS}
    settings |= {
        f"LDM β={beta:.0f} MB/s": {"scheme": "ldm", "shuffle": "none", "beta_bytes_per_s": beta * MB}
        for beta in BETAS_MB[1:]
    }
    return {label: base | own for label, own in settings.items()}


@dataclass(frozen=True)
class BadSimulation:
    name: str = "bad-simulation"
    title: str = "LDM and GSH on 10 brokers and 10,000 subscribers, and the effect of α and β [BAD figures 13, 14]"
    default_runs: int = 20

    def settings(self, runs: int, **options: str) -> Sequence[Mapping[str, Any]]:
        if options:
            raise ValueError(f"{self.name} has no options; got {sorted(options)}")
        by_policy = [{"seed": seed, "scheme": scheme, "core": False} for scheme in schemes() for seed in range(runs)]
        seeds = range(min(runs, LIVE))
        live = [{"seed": seed, "scheme": scheme, "core": True} for scheme in (LDM, GSH) for seed in seeds]
        return live + by_policy  # the longest runs first

    def run(self, setting: Mapping[str, Any]) -> list[Row]:
        settings = paper_settings(**schemes()[setting["scheme"]])
        log = simulate_world(SCENARIO, setting["seed"], "nearest", settings, live_core=setting["core"])
        return rows_of(log, setting, brokers=setting["seed"] == 0 and not setting["core"])

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        frame = table_.to_pandas()
        rows, live = select(frame, core=False), select(frame, kind="run", core=True)
        runs = select(rows, kind="run")
        means = runs.groupby("scheme")[["cov", "maximum", "migrations", "migrations_later", "first_plan_s"]].mean()
        metrics = {
            f"{key}.{column}": float(means.loc[key, column])
            for key in means.index
            for column in ("cov", "maximum", "migrations")
        }
        files = figures.draw(out, "bad-figure-13", lambda figure: _draw_13(figure, rows), width_in=7.6, height_in=5.6)
        files += figures.draw(out, "bad-figure-14", lambda figure: _draw_14(figure, rows), width_in=7.6, height_in=3.4)
        return ExperimentReport(
            metrics, [*_claims(runs, means), *_live_claims(runs, live)], files, _body(means), _NOTES
        )


def _claims(runs: Any, means: Any) -> list[Claim]:
    thirteen, fourteen, slides = "[BAD §6.2.2, figure 13]", "[BAD §6.2.2, figure 14]", "[BAD slides]"
    ratio = {key: float(means.loc[key, "maximum"] / means.loc[NONE, "maximum"]) for key in (LDM, GSH)}
    none, gsh = select(runs, scheme=NONE), select(runs, scheme=GSH)
    by_alpha = means.loc[[f"LDM α={alpha:.2f}" for alpha in ALPHAS]]
    by_beta = means.loc[[LDM, *(f"LDM β={beta:.0f} MB/s" for beta in BETAS_MB[1:])]]
    smallest = by_alpha.iloc[0]
    ranges = f"{ROUGHLY_HALF[0]}–{ROUGHLY_HALF[1]} counts as roughly half"
    return [
        at_least("skew-most", thirteen, "one broker with more than 2,000", float(none.most_subscribers.min()), 2_000,
                 "subscribers, in the seed with fewest"),
        below("skew-fewest", thirteen, "others with less than 500", float(none.fewest_subscribers.max()), 500,
              "subscribers, in the seed with most"),
        *(shows(f"{key.split()[0].lower()}-halves-maximum", slides, f"maximum load reduced by roughly half; {ranges}",
                value, ROUGHLY_HALF[0] <= value <= ROUGHLY_HALF[1]) for key, value in ratio.items()),
        at_most("gsh-at-once", thirteen, "fixes the imbalance as soon as it ends", float(gsh.cov_next.max()), 0.05,
                "cov at the next report, in the worst seed"),
        equals("gsh-no-further-migration", thirteen, "no further migration afterward",
               int(gsh.migrations_later.sum()), 0),
        shows("smaller-alpha-lower-cov", fourteen, "the smaller α, the better balanced",
              ", ".join(f"{cov:.3f}" for cov in by_alpha["cov"]), bool(np.all(np.diff(by_alpha["cov"]) > 0))),
        shows("smaller-alpha-more-migrations", fourteen, "with the cost of more migrations",
              ", ".join(f"{moves:,.0f}" for moves in by_alpha["migrations"]),
              bool(np.all(np.diff(by_alpha["migrations"]) < 0))),
        shows("smaller-beta-sooner", fourteen, "the smaller β, the more sensitive",
              ", ".join(f"{at_s:.0f} s" for at_s in by_beta["first_plan_s"]),
              bool(np.all(np.diff(by_beta["first_plan_s"]) > 0))),
        at_most("ldm-close-to-gsh-cov", fourteen, "α = 0.05 gets as good as the shuffle after a while",
                float(smallest["cov"] - means.loc[GSH, "cov"]), CLOSE, "above GSH's cov"),
        at_most("ldm-close-to-gsh-maximum", fourteen, "α = 0.05 gets as good as the shuffle after a while",
                float(smallest["maximum"] / means.loc[GSH, "maximum"]), 1.1, "times GSH's maximum load"),
    ]  # fmt: skip


def _live_claims(runs: Any, live: Any) -> list[Claim]:
    """Claims of our own, not of the paper: the policies alone decide as the live coordinator does."""
    pairs = live.merge(runs, on=["scheme", "seed"], suffixes=("_live", ""))
    source, statement = "ours", "the live coordinator decides the same on the same world"
    moves = float((pairs.migrations_live / pairs.migrations - 1.0).abs().max())
    apart = float((pairs.cov_live - pairs["cov"]).abs().max())
    return [
        at_most("live-core-same-migrations", source, statement, moves, 0.05, f"share, at most, over {len(pairs)} runs"),
        at_most("live-core-same-cov", source, statement, apart, 0.01, f"of cov, at most, over {len(pairs)} runs"),
    ]


def _body(means: Any) -> str:
    rows = [
        (key, float(mean["cov"]), float(mean["maximum"]) / MB, float(mean["migrations"]), float(mean["first_plan_s"]))
        for key, mean in means.iterrows()
    ]
    columns = ("scheme", "cov", "maximum load (MB/s)", "migrations", "first plan at (s)")
    return "## Means over seeds, from minute 10 on\n\n" + table(columns, rows)


_NOTES = (
    "The paper does not state rates. Ours have a mean of 20 kB/s, so that the mean load exceeds the paper's "
    "β = 300 MB/s.",
    "The paper does not state θ; it is set to β. The GSH runs are multistage: LDM with α = 0.15 may follow, and is "
    "never needed after the shuffle.",
    "The policies alone decide, except in the runs under the live coordinator. It starts at most 50 migrations per "
    "broker at a time, so a shuffle of 9,000 subscribers takes about a minute there.",
    "Our LDM carries out a whole plan at once, so it reaches α in one round; in the paper's figure it takes several.",
)


def _draw_13(figure: Figure, rows: Any) -> None:
    first = select(rows, kind="broker", seed=0)
    grid = figure.subplots(2, 2)
    last = select(first, scheme=NONE)
    last = last[last.at_s == last.at_s.max()].sort_values("broker")
    grid[0][0].bar(last.broker + 1, last.people, color=figures.SKY)
    grid[0][0].set(
        title="Nearest placement: subscribers", xlabel="broker", ylabel="subscribers", xticks=last.broker + 1
    )
    panels = [
        (grid[0][1], NONE, "(1) no balancing"),
        (grid[1][0], LDM, "(2) LDM, α = 0.15, β = 300 MB/s"),
        (grid[1][1], GSH, "(3) GSH"),
    ]
    for axes, scheme, title in panels:
        draw_loads(axes, select(first, scheme=scheme), title, MB, "MB/s")
    share_y([axes for axes, _, _ in panels])


def _draw_14(figure: Figure, rows: Any) -> None:
    samples, runs = select(rows, kind="sample"), select(rows, kind="run")
    left, right = figure.subplots(1, 2)
    shown = [f"LDM α={alpha:.2f}" for alpha in (0.05, 0.15, 0.30)] + ["LDM β=600 MB/s", GSH, NONE]
    draw_over_time(
        left, [(key, select(samples, scheme=key)) for key in shown], "cov", "(1) cov, mean over seeds", "cov"
    )
    bars = [f"LDM α={alpha:.2f}" for alpha in ALPHAS] + [f"LDM β={beta:.0f} MB/s" for beta in BETAS_MB[1:]] + [GSH]
    grouped = runs.groupby("scheme").migrations
    low, mean, high = (getattr(grouped, name)().loc[bars] for name in ("min", "mean", "max"))
    right.barh(range(len(bars)), mean, color=figures.SKY, xerr=[mean - low, high - mean], ecolor="#444444")
    right.set_yticks(range(len(bars)), bars)
    right.invert_yaxis()
    right.set(title="(2) migrations, mean and range", xlabel="subscribers moved in 30 minutes")
    for number, key in enumerate(bars):
        style: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 7.5}
        right.annotate(f"{mean[key]:,.0f}", (high[key], number), **style)
    right.set_xlim(0, 1.2 * float(high.max()))
    figures.legend_below(figure, left, columns=6)


EXPERIMENT = BadSimulation()
