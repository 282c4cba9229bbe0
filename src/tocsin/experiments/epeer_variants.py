"""Shared by both ePEER experiments: variants of undisclosed choices, statistics over runs, the sensitivity table.

An experiment plays all its runs as stated and, where the thesis contradicts itself, as its other statement says. It
plays a tenth as many for each other choice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata, wilcoxon

from tocsin.experiments import figures
from tocsin.experiments.report import Claim, below, table, with_evidence
from tocsin.sim.kernel import seed_from

BASE = "base"
SIGNIFICANT = 2.2e-16
"""The thesis reports p < 2.2e-16, the smallest value that its program prints [ePEER §4.5.4, §5.3.4]."""
_RESAMPLES = 2_000
EDGE_COLOURS = (figures.BLUE, figures.ORANGE, figures.GREEN, figures.PURPLE)


def settings(
    name: str, variants: Mapping[str, str], runs: int, options: Mapping[str, str], full: Collection[str] = (BASE,)
) -> list[dict[str, Any]]:
    """Every run of every variant; `--set variants=base,…` chooses the variants. Those in `full` have all runs."""
    unknown = set(options) - {"variants"}
    chosen = options["variants"].split(",") if "variants" in options else list(variants)
    if unknown or set(chosen) - set(variants):
        raise ValueError(f"{name} has the option variants, a list of {', '.join(variants)}")
    few = max(1, runs // 10)
    return [
        {"variant": variant, "run": run, "seed": seed_from(name, run)}
        for variant in chosen
        for run in range(runs if variant in full else few)
    ]


def runs_of(rows: Any, variant: str) -> Any:
    return rows[(rows.kind == "run") & (rows.variant == variant)]


def p_value(smaller: Any, larger: Any) -> float:
    """The p value of Wilcoxon's signed-rank test that the first is smaller than the second; 1 if all are equal."""
    if not (np.asarray(smaller) != np.asarray(larger)).any():
        return 1.0
    return float(wilcoxon(smaller, larger, alternative="less").pvalue)


def rank_biserial(smaller: Any, larger: Any) -> float:
    """The effect size of the signed-rank test: the share of the ranks of pairs in which the first is smaller, less that
    of the other pairs. 1: it is smaller in every pair; 0: no difference."""
    difference = np.asarray(larger, dtype=float) - np.asarray(smaller, dtype=float)
    difference = difference[difference != 0.0]
    if not len(difference):
        return 0.0
    ranks = rankdata(np.abs(difference))
    return float((ranks * np.sign(difference)).sum() / ranks.sum())


def interval(of: Callable[..., Any], *columns: Any) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of a function of the columns' means, over runs; None for fewer than two runs."""
    runs = len(columns[0])
    if runs < 2:
        return None
    picked = np.random.default_rng(0).integers(0, runs, (_RESAMPLES, runs))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.asarray(of(*(np.asarray(column, dtype=float)[picked].mean(axis=1) for column in columns)))
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def significant(
    id: str,
    source: str,
    value: float | None,
    runs: int,
    unit: str = "",
    *,
    decided_by: str,
    effect: float | None = None,
) -> Claim:
    """The claim that a p value is as small as the thesis', with its effect size. Too few runs cannot reach it: then the
    claim is not judged."""
    least = p_value(np.zeros(runs), np.arange(1, runs + 1))
    missing = f"{runs} pairs of runs cannot reach a p below {least:.2g}"
    ours = value if least < SIGNIFICANT else None
    text = "Wilcoxon p < 2.2e-16"
    claim = below(id, source, text, ours, SIGNIFICANT, unit, decided_by=decided_by, missing=missing)
    return with_evidence(claim, effect_size=effect)


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
