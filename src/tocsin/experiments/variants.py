"""Experiments that also ask what if: all runs as stated, a tenth of them for each other reading of the source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tocsin.sim.kernel import seed_from

BASE = "base"


def settings(name: str, variants: Mapping[str, str], runs: int, options: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every run of every variant; `--set variants=base,…` leaves the others out."""
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
