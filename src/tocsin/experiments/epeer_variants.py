"""Shared by both ePEER experiments: variants of undisclosed choices, the signed-rank test, the sensitivity table.

An experiment plays all its runs as stated, and a tenth as many for each other reading of the thesis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from tocsin.experiments import figures
from tocsin.experiments.report import table
from tocsin.sim.kernel import seed_from

BASE = "base"
EDGE_COLOURS = (figures.BLUE, figures.ORANGE, figures.GREEN, figures.PURPLE)


def settings(name: str, variants: Mapping[str, str], runs: int, options: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every run of every variant; `--set variants=base,…` chooses the variants."""
    unknown = set(options) - {"variants"}
    chosen = options["variants"].split(",") if "variants" in options else list(variants)
    if unknown or set(chosen) - set(variants):
        raise ValueError(f"{name} has the option variants, a list of {', '.join(variants)}")
    few = max(1, runs // 10)
    return [
        {"variant": variant, "run": run, "seed": seed_from(name, run)}
        for variant in chosen
        for run in range(runs if variant == BASE else few)
    ]


def runs_of(rows: Any, variant: str) -> Any:
    return rows[(rows.kind == "run") & (rows.variant == variant)]


def p_value(smaller: Any, larger: Any) -> float | None:
    """The p value of Wilcoxon's signed-rank test that the first is smaller than the second; None if all are equal."""
    if not (np.asarray(smaller) != np.asarray(larger)).any():
        return None
    return float(wilcoxon(smaller, larger, alternative="less").pvalue)


def sensitivity(
    rows: Any, variants: Mapping[str, str], note: str, columns: Mapping[str, str], metrics: Callable[[Any], Any]
) -> str:
    """A table of the given metrics (title to metric name) with one line per variant that was run."""
    lines: list[Sequence[Any]] = []
    for variant, text in variants.items():
        runs = runs_of(rows, variant)
        if len(runs):
            values = metrics(runs)
            lines.append((text, *(values[name] for name in columns.values())))
    return f"## Effect of the undisclosed choices\n\n{note}\n\n" + table(("choice", *columns), lines)
