"""Shared by both ePEER experiments: variants of undisclosed choices, the signed-rank test, the sensitivity table.

An experiment plays all its runs as stated, and a tenth as many for each other reading of the thesis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from tocsin.experiments import figures
from tocsin.experiments.report import Claim, below, table
from tocsin.sim.kernel import seed_from

BASE = "base"
SIGNIFICANT = 2.2e-16
"""The thesis reports p < 2.2e-16, the smallest value that its program prints [ePEER §4.5.4, §5.3.4]."""
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


def p_value(smaller: Any, larger: Any) -> float:
    """The p value of Wilcoxon's signed-rank test that the first is smaller than the second; 1 if all are equal."""
    if not (np.asarray(smaller) != np.asarray(larger)).any():
        return 1.0
    return float(wilcoxon(smaller, larger, alternative="less").pvalue)


def significant(id: str, source: str, value: float | None, runs: int, unit: str = "", *, decided_by: str) -> Claim:
    """The claim that a p value is as small as the thesis'. Too few runs cannot reach it: then it is not judged."""
    least = p_value(np.zeros(runs), np.arange(1, runs + 1))
    missing = f"{runs} pairs of runs cannot reach a p below {least:.2g}"
    ours = value if least < SIGNIFICANT else None
    return below(id, source, "Wilcoxon p < 2.2e-16", ours, SIGNIFICANT, unit, decided_by=decided_by, missing=missing)


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
