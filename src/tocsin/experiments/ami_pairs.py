"""One pair of runs of `ami`, without and with the protocol on the same world, and the thesis' measures of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tocsin.experiments.ami_figures import UPPER_PCT
from tocsin.sim.edge.tree import EdgeLog, EdgeRun, EdgeSimulation, Protocol
from tocsin.sim.edge.workload import Deployment, Fluctuation, deploy, fluctuate
from tocsin.sim.kernel import Kernel, seed_from


def pair_of_runs(setting: Mapping[str, Any]) -> tuple[EdgeLog, EdgeLog]:
    """One run without and one with the protocol, on the same operators, nodes and changes."""
    seed = int(setting["seed"])
    deployment = Deployment(
        mean_load_pct=setting["mean_load_pct"], linked=setting["linked"], size_spread=setting["size_spread"]
    )
    world = deploy(deployment, np.random.default_rng(seed_from(seed, "world")))
    fluctuation = Fluctuation(unit_pct=setting["unit_pct"])
    changes = fluctuate(fluctuation, list(world.placement), np.random.default_rng(seed_from(seed, "changes")))

    def run(protocol: Protocol) -> EdgeLog:
        settings = EdgeRun(protocol=protocol, delay_s=setting["delay_s"], loss=setting["loss"])
        return EdgeSimulation(Kernel(seed), world, changes, settings).run()

    return run(Protocol.NONE), run(Protocol(setting.get("protocol", Protocol.TOCSIN)))


def compare(without: EdgeLog, with_: EdgeLog, log_s: float = 2.0) -> dict[str, Any]:
    """The thesis' measures of one pair of runs.

    The thesis has fewer overloaded nodes "in 80,83 % of the time" [AMI §4.2]. Read as it is written, this is a share of
    the whole run (`fewer_pct`); the time in which no node is overloaded, with or without the protocol, counts against
    it. The other reading counts only the time in which a node is overloaded in either run (`fewer_while_any_pct`).
    """
    before, after = without.samples, with_.samples
    count_before, count_after = (before > UPPER_PCT).sum(axis=1), (after > UPPER_PCT).sum(axis=1)
    either = (count_before > 0) | (count_after > 0)
    share = (lambda hits: float(100 * hits[either].mean())) if either.any() else (lambda hits: None)
    return {
        "overloaded_node_s_without": float(count_before.sum() * log_s),
        "overloaded_node_s_with": float(count_after.sum() * log_s),
        "excess_without": float(np.maximum(before - UPPER_PCT, 0).sum() * log_s),
        "excess_with": float(np.maximum(after - UPPER_PCT, 0).sum() * log_s),
        "either_s": float(either.sum() * log_s),
        "fewer_pct": float(100 * (count_after < count_before).mean()),
        "fewer_while_any_pct": share(count_after < count_before),
        "more_while_any_pct": share(count_after > count_before),
        "steadier_pct": float(100 * (after.std(axis=1) < before.std(axis=1)).mean()),
        "peak_mean_pct": float(before.mean(axis=1).max()),
        "longest_without_s": max(without.overload_spells_s, default=0.0),
        "longest_with_s": max(with_.overload_spells_s, default=0.0),
        "mean_spell_without_s": float(np.mean(without.overload_spells_s)) if without.overload_spells_s else None,
        "mean_spell_with_s": float(np.mean(with_.overload_spells_s)) if with_.overload_spells_s else None,
        "operators_moved": with_.operators_moved,
        "operators_twice": with_.operators_twice,
        "streams_downwards": with_.streams_downwards,
        "messages": sum(with_.messages.values()),
    }


def samples_of(without: EdgeLog, with_: EdgeLog) -> list[dict[str, Any]]:
    sides = {"without": without.samples, "with": with_.samples}
    return [
        {"time_s": time_s}
        | {f"mean_{side}": float(samples[row].mean()) for side, samples in sides.items()}
        | {f"std_{side}": float(samples[row].std()) for side, samples in sides.items()}
        | {f"overloaded_{side}": int((samples[row] > UPPER_PCT).sum()) for side, samples in sides.items()}
        for row, time_s in enumerate(with_.times_s)
    ]
