"""The figures of `epeer-drd`: one run, the differences of all runs, the means [ePEER figures 4-17–4-23].

Drawings only. The experiment passes its rows and metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tocsin.experiments import figures
from tocsin.experiments.epeer_variants import BASE, EDGE_COLOURS

POLICIES = ("drd-lb", "peer-drd", "peer-lb")
LABELS = {"drd-lb": "DRD-LB", "peer-drd": "PEER-DRD", "peer-lb": "PEER-LB"}
COLOURS = {"drd-lb": figures.BLUE, "peer-drd": figures.GREEN, "peer-lb": figures.ORANGE}
SAMPLED_RUNS = 8
"""Runs whose utilisation is kept; the figure shows the first in which DRD-LB offloaded and no edge was limited."""


def draw_used(figure: Figure, rows: Any) -> None:
    """Figures 4-17 and 4-18: one run."""
    samples = rows[rows.kind == "sample"]
    drd = rows[(rows.kind == "run") & (rows.variant == BASE) & (rows.policy == "drd-lb")]
    busy = drd[(drd.offloads > 0) & (drd.limited_s == 0)]
    shown = [run for run in busy.run if run < SAMPLED_RUNS] or [0]
    samples = samples[samples.run == shown[0]]
    grid = figure.subplots(3, 1, sharex=True, sharey=True)
    for axes, policy in zip(grid, POLICIES, strict=True):
        mine = samples[samples.policy == policy]
        edges = [name for name in samples.columns if name.startswith("used_")]
        for edge, colour in zip(edges, EDGE_COLOURS, strict=True):
            axes.plot(mine.at_s, 100 * mine[edge], color=colour, linewidth=1.1, label=edge.removeprefix("used_"))
        axes.set(title=LABELS[policy], ylabel="matching (%)", ylim=(0, 110))
        figures.seed_line(axes, 95.0, "TH_high", at=0.01)
    grid[-1].set(xlabel="second of the run", xlim=(0, 1_000))
    figures.legend_below(figure, grid[0])


def draw_runs(figure: Figure, compared: Any) -> None:
    """Figures 4-19 and 4-20: PEER-LB less DRD-LB, run by run, sorted."""
    left, right = figure.subplots(1, 2)
    offloads = np.sort(compared["offloads_later:peer-lb"] - compared["offloads:drd-lb"])
    delays = np.sort(compared["delay_later_pct:peer-lb"] - compared["delay_pct:drd-lb"])
    for axes, values, title, label in (
        (left, offloads, "Offloads, PEER-LB less DRD-LB", "offloads"),
        (right, delays, "Delay, PEER-LB less DRD-LB", "points of %"),
    ):
        axes.plot(np.arange(1, len(values) + 1), values, color=figures.BLUE)
        axes.axhline(0.0, color="#222222", linewidth=0.8)
        axes.set(title=title, xlabel="runs, sorted", ylabel=label)
        axes.set_yscale("symlog", linthresh=1.0)


def draw_means(figure: Figure, metrics: Mapping[str, Any]) -> None:
    """Figures 4-21, 4-22 and 4-23, with the thesis' numbers."""
    seeds = {"offloads": {"peer-lb": 18.0}, "delay": {"drd-lb": 4.98, "peer-drd": 137.0, "peer-lb": 274.0}}
    left, right = figure.subplots(1, 2)
    for axes, measure, name, title, label in (
        (left, "offloads_later", "offloads", "Mean number of offloads", "offloads a run"),
        (right, "delay_later_pct", "delay", "Mean offloading delay", "% of the requirement, summed"),
    ):
        for place, policy in enumerate(POLICIES):
            value, thesis = metrics[f"{measure}_{policy}"], seeds[name].get(policy)
            axes.bar(place, value, width=0.6, color=COLOURS[policy])
            own: Any = {"xycoords": ("data", "axes fraction"), "ha": "center", "fontsize": 8}
            axes.annotate(f"{value:,.3g}", (place, 0.03), color="white", fontweight="bold", **own)
            if thesis is not None:
                axes.plot([place - 0.38, place + 0.38], 2 * [thesis], color="#222222", linestyle="--")
                style: Any = {"ha": "center", "va": "bottom", "fontsize": 7.5, "color": "#222222"}
                label_at, text = (place, max(value, thesis)), f"ePEER {thesis:g}"
                axes.annotate(text, label_at, xytext=(0, 3), textcoords="offset points", **style)
        axes.set(title=title, ylabel=label, xticks=range(3), xticklabels=[LABELS[policy] for policy in POLICIES])
        axes.set_yscale("log")
        axes.margins(y=0.2)
