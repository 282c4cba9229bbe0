"""The figures of `epeer-fdcc`: one run, QoE and load over all runs, utility per byte [ePEER figures 5-3–5-9].

Drawings only. The experiment passes its rows and metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tocsin.experiments import figures
from tocsin.experiments.epeer_variants import BASE, EDGE_COLOURS, interval

HALF = "half"
"""The reading in which half of the bandwidth is left."""
THESIS_LESS_PCT = {"Uo": 19.2, "Ui": 15.7, "Um": 16.1}


def draw_run(figure: Figure, samples: Any) -> None:
    """Figures 5-3 to 5-6: one run."""
    grid = figure.subplots(4, 1, sharex=True)
    titles = {"Uo": "Output bandwidth", "Um": "Matching", "Ui": "Input bandwidth"}
    for axes, (metric, title) in zip(grid, titles.items(), strict=False):
        for number, colour in enumerate(EDGE_COLOURS):
            used = 100 * samples[f"{metric}_B{number}"]
            axes.plot(samples.at_s, used, color=colour, linewidth=1.0, label=f"B{number}")
        axes.set(title=f"{title} in use", ylabel="%")
        # The second between the damage and the first limits is off the scale: it would dwarf all others.
        steady = samples[(samples.at_s < 300) | (samples.at_s > 310)][[f"{metric}_B{n}" for n in range(4)]]
        axes.set_ylim(0, 115 * float(steady.max().max()))
    grid[3].plot(samples.at_s, samples.qoe, color="#222222", linewidth=1.0)
    grid[3].set(title="Mean QoE of all subscribers", ylabel="QoE")
    grid[3].set(xlabel="second of the run", xlim=(0, 1_000))
    for axes in grid:
        for at_s in (301, 900):
            axes.axvline(at_s, color=figures.GREY, linestyle=":", linewidth=1.0)
    figures.legend_below(figure, grid[0])


def draw_qoe(figure: Figure, runs: Any, metrics: Mapping[str, Any]) -> None:
    """Figures 5-7 to 5-9, and the load reductions."""
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.2, 1, 1))
    ordered = runs.sort_values("qoe_all_before")
    place = np.arange(1, len(ordered) + 1)
    left.plot(place, ordered.qoe_all_before, color=figures.ORANGE, label="before the damage")
    left.plot(place, ordered.qoe_all_after, color=figures.BLUE, linewidth=0.9, label="under FDCC")
    left.set(title="QoE, run by run", xlabel="runs, sorted", ylabel="QoE")
    left.set_ylim(0, None)
    left.legend(loc="lower right")
    middle.hist(100 * (runs.qoe_all_after / runs.qoe_all_before - 1.0), bins=20, color=figures.BLUE)
    middle.axvline(25.4, color="#222222", linestyle="--", linewidth=1.0)
    style: Any = {"fontsize": 7.5, "ha": "right", "va": "top"}
    style |= {"xycoords": ("data", "axes fraction"), "xytext": (-3, 0), "textcoords": "offset points"}
    middle.margins(y=0.15)  # room for the label above the bars
    middle.annotate("ePEER mean 25.4 %", (25.4, 0.98), **style)
    middle.set(title="QoE gained", xlabel="%", ylabel="runs")
    for at, (metric, thesis) in enumerate(THESIS_LESS_PCT.items()):
        for shift, against, colour in ((-0.18, "carried", figures.BLUE), (0.18, "without", figures.SKY)):
            value = metrics[f"{metric}_reduction_pct_of_{against}"]
            label = {"carried": "of the carried load", "without": "of the offered load"}[against] if at == 0 else None
            right.bar(at + shift, value, width=0.34, color=colour, label=label)
        label = "ePEER" if at == 0 else None
        right.plot([at - 0.4, at + 0.4], 2 * [thesis], color="#222222", linestyle="--", linewidth=1.2, label=label)
    right.set(title="Load less by", ylabel="%", xticks=range(3), xticklabels=list(THESIS_LESS_PCT))
    right.margins(y=0.35)
    right.legend(loc="upper right", fontsize=7)


def draw_utility(figure: Figure, played: Mapping[str, Any]) -> None:
    """Utility per byte beside the same cut made blindly, for each reading of the damage, with 95 % intervals."""
    axes = figure.subplots()
    labels = {BASE: "0.1–0.4 of the bandwidth left (§5.3.1.2)", HALF: "half left (§5.3.1.1)"}
    for at, runs in enumerate(played.values()):
        for shift, column, colour, label in (
            (-0.18, "blind_per_kb", figures.ORANGE, "the same cut made blindly"),
            (0.18, "utility_per_kb", figures.BLUE, "FDCC"),
        ):
            value = float(runs[column].mean())
            low, high = interval(lambda mean: mean, runs[column]) or (value, value)
            errors = [[max(value - low, 0.0)], [max(high - value, 0.0)]]
            axes.bar(at + shift, value, width=0.34, color=colour, label=label if at == 0 else None)
            axes.errorbar(at + shift, value, yerr=errors, color="#222222", linewidth=1.0, capsize=3)
        ratio = float(runs.utility_per_kb.mean() / runs.blind_per_kb.mean())
        style: Any = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center", "fontsize": 8}
        axes.annotate(f"× {ratio:.2f}", (at + 0.18, float(runs.utility_per_kb.mean())), **style)
    axes.set(title="Utility that subscribers receive per byte that the edges send", ylabel="utility per 1,000 bytes")
    axes.set(xticks=range(len(played)), xticklabels=[labels[variant] for variant in played])
    axes.margins(y=0.2)
    figures.legend_below(figure, axes)
