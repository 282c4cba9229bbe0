"""One style for every figure: sizes, colours, markers, lines for the seed document's numbers; as PNG and SVG.

An experiment passes a function that draws on a figure; `draw` applies the style and writes both files. No pyplot:
figures are plain objects, so that experiments can run in parallel and no figure stays open.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

# The palette of Okabe and Ito: distinct with any of the common colour-vision deficiencies. Black is for text.
BLUE: Final = "#0072B2"
ORANGE: Final = "#D55E00"
GREEN: Final = "#009E73"
PURPLE: Final = "#CC79A7"
SKY: Final = "#56B4E9"
YELLOW: Final = "#E69F00"
GREY: Final = "#767676"
COLOURS: Final = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
MARKERS: Final = ("o", "s", "^", "D", "v", "P")
"""Series differ in marker as well as in colour, so that a figure is readable in black and white."""

_STYLE: Final[Any] = {
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=list(COLOURS)),
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "tocsin",  # the same run writes the same bytes
    "svg.fonttype": "none",
}


def draw(
    out: Path, stem: str, build: Callable[[Figure], None], *, width_in: float = 7.0, height_in: float = 3.2
) -> list[Path]:
    """Call `build` on an empty figure in the common style; write `stem.png` and `stem.svg` into `out`, return both
    paths."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        FigureCanvasAgg(figure)
        build(figure)
        paths = [out / f"{stem}.png", out / f"{stem}.svg"]
        figure.savefig(paths[0])
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def seed_line(axes: Axes, value: float, text: str, *, at: float = 0.99, gap_points: float = 2.0) -> None:
    """A dashed line at a number of the seed document, labelled on the line itself.

    `at` is the position of the label along the x axis, from 0 to 1; above 0.5 it is right-aligned. A larger gap lifts
    the label over data near the line; a negative gap puts it below.
    """
    axes.axhline(value, color="#222222", linestyle=(0, (4, 3)), linewidth=1.0, zorder=1.5)
    axes.annotate(
        text,
        xy=(at, value),
        xycoords=("axes fraction", "data"),
        xytext=(0, gap_points),
        textcoords="offset points",
        ha="right" if at > 0.5 else "left",
        va="bottom" if gap_points >= 0 else "top",
        fontsize=7.5,
        color="#222222",
    )


def legend_below(figure: Figure, axes: Axes, *, columns: int | None = None) -> None:
    """One legend for the whole figure, below it, where it covers no data."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns or max(1, len(labels)))
