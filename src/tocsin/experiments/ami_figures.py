"""The figures of `ami`: the thesis' figures 15 and 16, and a map of what the undisclosed details decide."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tocsin.experiments import figures

UPPER_PCT = 60.0
THESIS_PCT = (26.44, 80.83)
"""The reduction of the total overload, and the share of time with fewer overloaded nodes [AMI §4.2]."""
_SERIES = (("without", figures.ORANGE, "without protocol"), ("with", figures.BLUE, "with protocol"))


class Cell(NamedTuple):
    """Means of several pairs of runs with the same setting; None where nothing was measured."""

    reduction_pct: float | None
    fewer_pct: float | None
    fewer_while_any_pct: float | None
    steadier_pct: float | None
    peak_mean_pct: float | None


def draw(table_: pa.Table, grid: Mapping[tuple[float, float], Cell], out: Path) -> list[Path]:
    samples = table_.filter(pc.equal(table_["kind"], "sample"))
    seeds = sorted(set(samples["seed"].to_pylist()))
    runs = [samples.filter(pc.equal(samples["seed"], seed)) for seed in seeds]
    minutes = runs[0]["time_s"].to_numpy() / 60

    def mark_time(axes: Axes) -> None:
        axes.set_xlim(0, minutes[-1])
        axes.set_xticks(range(0, 17, 2))
        axes.axvline(8, color=figures.GREY, linewidth=0.8, linestyle=":")

    def plot_means(axes: Axes, quantity: str) -> None:
        for suffix, colour, label in _SERIES:
            values = np.stack([run[f"{quantity}_{suffix}"].to_numpy() for run in runs])
            low, high = np.quantile(values, [0.1, 0.9], axis=0)
            axes.fill_between(minutes, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(minutes, values.mean(axis=0), color=colour, label=label)
        mark_time(axes)

    def figure_15(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        plot_means(left, "mean")
        left.set(title="Mean memory of the nodes", xlabel="time (min)", ylabel="memory (%)")
        figures.seed_line(left, UPPER_PCT, "$U_t$ = 60 %", at=0.02)
        left.set_ylim(top=UPPER_PCT * 1.06)
        note = {"xycoords": "axes fraction", "ha": "left", "fontsize": 7.5, "color": "#222222"}
        left.annotate("both curves coincide", (0.53, 0.1), **note)
        plot_means(right, "std")
        title = f"Standard deviation, {len(seeds)} runs"
        right.set(title=title, xlabel="time (min)", ylabel="standard deviation (points)")
        right.set_ylim(bottom=0)
        figures.legend_below(figure, right)

    def figure_16(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for suffix, colour, label in _SERIES:
            left.step(minutes, runs[0][f"overloaded_{suffix}"].to_numpy(), color=colour, where="post", label=label)
        left.set(title="Nodes above $U_t$, first run", xlabel="time (min)", ylabel="nodes of 15")
        mark_time(left)
        plot_means(right, "overloaded")
        right.set(title=f"Mean of {len(seeds)} runs, 10th–90th percentile", xlabel="time (min)")
        left.set_ylim(bottom=0)
        figures.legend_below(figure, left)

    files = figures.draw(out, "ami-figure-15", figure_15)
    files += figures.draw(out, "ami-figure-16", figure_16)
    if grid:
        files += figures.draw(out, "ami-sensitivity", lambda figure: _heatmaps(figure, grid), height_in=3.4)
    return files


def _heatmaps(figure: Figure, grid: Mapping[tuple[float, float], Cell]) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    units, starts = (sorted({key[part] for key in grid}) for part in (0, 1))
    cells = [[grid[unit, start] for start in starts] for unit in units]
    centred = {"ha": "center", "va": "center"}
    for index, title in enumerate(("Less overload in total", "Fewer overloaded, of the run")):
        axes = panels[index]
        values = np.array([[np.nan if cell[index] is None else cell[index] for cell in row] for row in cells], float)
        axes.imshow(values, cmap="Blues", vmin=0, vmax=150, aspect="auto", origin="lower")
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                text = "–" if cell[index] is None else f"{cell[index]:.0f}"
                weight = "bold" if cell.peak_mean_pct is not None and cell.peak_mean_pct <= UPPER_PCT else "normal"
                axes.text(x, y + 0.12, text, fontsize=10, weight=weight, **centred)
                axes.text(x, y - 0.25, f"peak {cell.peak_mean_pct:.0f}", fontsize=7, color="#222222", **centred)
        axes.set_xticks(range(len(starts)), [f"{start:g}" for start in starts])
        axes.set_yticks(range(len(units)), [f"{unit:g}" for unit in units])
        axes.set_xticks(np.arange(len(starts) + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(len(units) + 1) - 0.5, minor=True)
        axes.grid(visible=False)
        axes.grid(which="minor", color="white", linewidth=1.5)
        axes.tick_params(which="both", length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(f"{title}, %\n(the thesis: {THESIS_PCT[index]:g})")
    panels[0].set_ylabel("one unit of memory (% of a node)")
    figure.supxlabel(
        "mean memory at the start (%)   ·   peak: its largest value (%)   ·   bold: stays manageable, under $U_t$",
        fontsize=8.5,
    )
