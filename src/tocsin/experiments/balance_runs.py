"""Shared by the balancing experiments: a simulated run as table rows, and figures like the paper's.

Rows are of three kinds: `run` (one per run), `sample` (the brokers' reports of one period) and `broker` (the load of
one broker; only for the first seeds, which the figures show). Not an experiment itself.
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
from tocsin.policies.balance.settings import BalanceSettings, PlacementPolicy
from tocsin.sim.balance import scenario as balance_scenario
from tocsin.sim.balance.coordinator_run import CoordinatorRun, rules_for
from tocsin.sim.balance.policy_coordinator import PolicyCoordinator
from tocsin.sim.balance.run import BalanceLog, BalanceRun
from tocsin.sim.balance.world import draw
from tocsin.sim.kernel import Kernel, seed_from

STEADY_S: Final = 600.0
"""All subscriptions are made by 480 s; two minutes later the moving averages have settled. Means start here."""
MB: Final = 1e6
KB: Final = 1e3


def paper_settings(**changes: Any) -> BalanceSettings:
    """Algorithm 1 as published: acts on the first hit, without a limit of moves and without rest periods."""
    plain: dict[str, Any] = {"hits": 1, "max_moves": 0, "rest_s": 0.0, "shuffle_rest_s": 0.0, "shuffle_gain": 0.0}
    plain |= {"surges": False}
    return BalanceSettings(**(plain | changes))


def simulate_world(
    scenario: str, seed: int, placement: str, settings: BalanceSettings, *, live_core: bool = False
) -> BalanceLog:
    """One run. The world depends on the scenario's name (not its path) and the seed, so schemes are compared on the
    same one.

    With `live_core` the live coordinator's core decides, message by message and with its limits on simultaneous
    migrations; some ten times slower.
    """
    kernel = Kernel(seed_from("balance", Path(scenario).stem, seed))
    world = draw(balance_scenario.load(scenario), kernel.stream)
    if live_core:
        return CoordinatorRun(kernel, world, rules_for(world.scenario, PlacementPolicy(placement), settings)).run()
    return BalanceRun(kernel, world, PolicyCoordinator(PlacementPolicy(placement), settings)).run()


def subscription_counts(scenario: str, seed: int) -> Row:
    """The number of FE and BE subscriptions in the world of this seed, as columns of a row."""
    world = draw(balance_scenario.load(scenario), Kernel(seed_from("balance", Path(scenario).stem, seed)).stream)
    return {"frontend": len(world.wants), "backend": len(np.unique(world.wants))}


def rows_of(
    log: BalanceLog, labels: Mapping[str, Any], *, brokers: bool = False, steady_s: float = STEADY_S
) -> list[Row]:
    """One `run` row, `sample` rows, and with `brokers` also `broker` rows. Means are over samples from `steady_s`
    on."""
    steady = [sample for sample in log.samples if sample.at_s >= steady_s]
    first = log.plans[0] if log.plans else None
    following = [sample for sample in log.samples if first is not None and sample.at_s > first.at_s]
    rows: list[Row] = [
        {
            **labels,
            "kind": "run",
            "cov": float(np.mean([sample.cov for sample in steady])),
            "maximum": float(np.mean([sample.maximum for sample in steady])),
            "mean": float(np.mean([sample.mean for sample in steady])),
            "over_bound": float(np.mean([sample.maximum / sample.lower_bound for sample in steady])),
            "migrations": log.migrations,
            "first_plan_s": None if first is None else first.at_s,
            "first_plan_moves": None if first is None else first.moves,
            "plans": len(log.plans),
            "cov_next": following[0].cov if following else None,
            "shuffles": sum(made.policy in ("gsh", "affinity-shuffle") for made in log.plans),
            "migrations_later": log.migrations - (0 if first is None else first.moves),
            "most_subscribers": int(log.samples[-1].subscribers.max()),
            "fewest_subscribers": int(log.samples[-1].subscribers.min()),
        }
    ]
    columns = ("at_s", "cov", "maximum", "mean", "migrations")
    rows += [
        {**labels, "kind": "sample", **{name: getattr(sample, name) for name in columns}} for sample in log.samples
    ]
    if brokers:
        rows += [
            {**labels, "kind": "broker", "at_s": sample.at_s, "broker": j, "load": float(load), "people": int(count)}
            for sample in log.samples
            for j, (load, count) in enumerate(zip(sample.loads, sample.subscribers, strict=True))
        ]
    return rows


def select(rows: Any, **labels: Any) -> Any:
    """The rows (a pandas frame) with these labels."""
    for key, value in labels.items():
        rows = rows[rows[key] == value]
    return rows


def draw_loads(axes: Axes, rows: Any, title: str, unit: float, unit_name: str) -> None:
    """Every broker's load over time, one unlabelled line each."""
    for _, loads in rows.groupby("broker"):
        axes.plot(loads.at_s / 60.0, loads.load / unit, linewidth=1.0, alpha=0.85)
    axes.set(title=title, xlabel="minutes", ylabel=f"load of each broker ({unit_name})")


def draw_over_time(
    axes: Axes, series: Sequence[tuple[str, Any]], column: str, title: str, ylabel: str, unit: float = 1.0
) -> None:
    """The mean over seeds of one column, a line per series."""
    for number, (label, rows) in enumerate(series):
        mean = rows.groupby("at_s")[column].mean() / unit
        colour = figures.COLOURS[number % len(figures.COLOURS)]
        marker = figures.MARKERS[number % len(figures.MARKERS)]
        every = (4 + 3 * number, 24)
        axes.plot(mean.index / 60.0, mean, label=label, color=colour, marker=marker, markevery=every)
    axes.set(title=title, xlabel="minutes", ylabel=ylabel)
    axes.set_ylim(bottom=0)


def share_y(panels: Sequence[Axes]) -> None:
    """Give all panels the same y axis, from 0."""
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(0, top)


def comparison(figure: Figure, series: Sequence[tuple[str, Any]], unit: float, unit_name: str) -> None:
    """Draw maximum load, cov and migrations of several schemes over time, as in figures 6, 10 and 11."""
    left, middle, right = figure.subplots(1, 3)
    draw_over_time(left, series, "maximum", "(1) maximum load", f"of the most loaded broker ({unit_name})", unit)
    draw_over_time(middle, series, "cov", "(2) cov", "standard deviation ÷ mean")
    draw_over_time(right, series, "migrations", "(3) migrations", "subscribers moved so far")
    figures.legend_below(figure, left)
