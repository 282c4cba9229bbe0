"""What the balancing experiments have in common: one run as rows, and the figures of the paper's kind.

Rows are of three kinds: `run` (one each), `sample` (what brokers reported, each period) and `broker` (each broker's
load, of the first seeds only: that is what the figures show). Not an experiment itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tocsin.experiments import figures
from tocsin.experiments.runner import Row
from tocsin.policies.balance.multistage import BalanceSettings
from tocsin.policies.balance.placement import PlacementPolicy
from tocsin.sim.balance import scenario as balance_scenario
from tocsin.sim.balance.coordinator_run import CoordinatorRun, rules_for
from tocsin.sim.balance.policy_coordinator import PolicyCoordinator
from tocsin.sim.balance.run import BalanceLog, BalanceRun
from tocsin.sim.balance.world import draw
from tocsin.sim.kernel import Kernel, seed_from

STEADY_S: Final = 600.0
"""Everybody has subscribed by 480 s; two minutes later the moving averages have settled. Averages are from here on."""
MB: Final = 1e6
KB: Final = 1e3


def paper_settings(**changes: Any) -> BalanceSettings:
    """Algorithm 1 as it stands: acts at the first sight, moves as many as it takes, nobody rests."""
    plain: dict[str, Any] = {"hits": 1, "max_moves": 0, "rest_s": 0.0, "shuffle_rest_s": 0.0, "shuffle_gain": 0.0}
    return BalanceSettings(**(plain | changes))


def simulate(
    scenario: str, seed: int, placement: str, settings: BalanceSettings, *, live_core: bool = False
) -> BalanceLog:
    """The world depends on scenario and seed alone, so schemes are compared on the same one.

    The scenario's name, not its path: where a file lies changes nothing. `live_core`: decided by the live coordinator's
    logic, message by message, with its limits on migrations at a time; some ten times slower.
    """
    kernel = Kernel(seed_from("balance", Path(scenario).stem, seed))
    world = draw(balance_scenario.load(scenario), kernel.stream)
    if live_core:
        return CoordinatorRun(kernel, world, rules_for(world.scenario, PlacementPolicy(placement), settings)).run()
    return BalanceRun(kernel, world, PolicyCoordinator(PlacementPolicy(placement), settings)).run()


def rows_of(
    log: BalanceLog, labels: Mapping[str, Any], *, brokers: bool = False, steady_s: float = STEADY_S
) -> list[Row]:
    steady = [one for one in log.samples if one.at_s >= steady_s]
    first = log.plans[0] if log.plans else None
    next_ = [one for one in log.samples if first is not None and one.at_s > first.at_s]
    rows: list[Row] = [
        {
            **labels, "kind": "run", "cov": float(np.mean([one.cov for one in steady])),
            "maximum": float(np.mean([one.maximum for one in steady])),
            "mean": float(np.mean([one.mean for one in steady])),
            "over_bound": float(np.mean([one.maximum / one.lower_bound for one in steady])),
            "migrations": log.migrations,
            "first_plan_s": None if first is None else first.at_s,
            "first_plan_moves": None if first is None else first.moves,
            "cov_next": next_[0].cov if next_ else None,
            "shuffles": sum(one.policy in ("gsh", "affinity-shuffle") for one in log.plans),
            "migrations_later": log.migrations - (0 if first is None else first.moves),
            "most_subscribers": int(log.samples[-1].subscribers.max()),
            "fewest_subscribers": int(log.samples[-1].subscribers.min()),
        }
    ]  # fmt: skip
    rows += [
        {**labels, "kind": "sample", "at_s": one.at_s, "cov": one.cov, "maximum": one.maximum, "mean": one.mean,
         "migrations": one.migrations}
        for one in log.samples
    ]  # fmt: skip
    if brokers:
        rows += [
            {**labels, "kind": "broker", "at_s": one.at_s, "broker": j, "load": float(load), "people": int(people)}
            for one in log.samples
            for j, (load, people) in enumerate(zip(one.loads, one.subscribers, strict=True))
        ]
    return rows


def choice(rows: Any, **labels: Any) -> Any:
    """The rows (a pandas frame) with these labels."""
    for key, value in labels.items():
        rows = rows[rows[key] == value]
    return rows


def draw_loads(axes: Axes, rows: Any, title: str, unit: float, unit_name: str) -> None:
    """Every broker's load over time, one line each: which broker is which does not matter here."""
    for _, mine in rows.groupby("broker"):
        axes.plot(mine.at_s / 60.0, mine.load / unit, linewidth=1.0, alpha=0.85)
    axes.set(title=title, xlabel="minutes", ylabel=f"load of each broker ({unit_name})")


def draw_over_time(
    axes: Axes, series: Sequence[tuple[str, Any]], column: str, title: str, ylabel: str, unit: float = 1.0
) -> None:
    """The mean over seeds of one column, a line per series."""
    for number, (label, rows) in enumerate(series):
        mean = rows.groupby("at_s")[column].mean() / unit
        axes.plot(
            mean.index / 60.0, mean, label=label, color=figures.COLOURS[number % len(figures.COLOURS)],
            marker=figures.MARKERS[number % len(figures.MARKERS)], markevery=(4 + 3 * number, 24),
        )  # fmt: skip
    axes.set(title=title, xlabel="minutes", ylabel=ylabel)
    axes.set_ylim(bottom=0)


def share_y(axes: Sequence[Axes]) -> None:
    top = max(one.get_ylim()[1] for one in axes)
    for one in axes:
        one.set_ylim(0, top)


def comparison(figure: Figure, series: Sequence[tuple[str, Any]], unit: float, unit_name: str) -> None:
    """Figures 6, 10 and 11: maximum load, cov and migrations so far, of several schemes."""
    left, middle, right = figure.subplots(1, 3)
    draw_over_time(left, series, "maximum", "(1) maximum load", f"of the most loaded broker ({unit_name})", unit)
    draw_over_time(middle, series, "cov", "(2) cov", "standard deviation ÷ mean")
    draw_over_time(right, series, "migrations", "(3) migrations", "subscribers moved so far")
    figures.legend_below(figure, left)
