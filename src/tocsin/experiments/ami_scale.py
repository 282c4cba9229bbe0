"""`ami-scale`: the protocol on trees of up to 1,023 nodes and 20,000 operators. The thesis stops at 15 and 360.

Nodes exchange messages with neighbours only, so neither the messages of a node nor the length of an overload should
depend on the size of the tree. The fluctuation grows with the tree: for every 15 nodes one operator changes at a time,
as in the thesis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from tocsin.experiments import figures
from tocsin.experiments.report import ExperimentReport, at_most, no_less_than_seed, table
from tocsin.sim.edge.tree import EdgeLog, EdgeRun, EdgeSimulation, Protocol
from tocsin.sim.edge.workload import Deployment, Fluctuation, deploy, fluctuate
from tocsin.sim.kernel import Kernel, seed_from

NODES = (15, 31, 63, 127, 255, 511, 1023)
OPERATORS_A_NODE = 20_000 / 1_023
NODES_AN_ALTERATION = 15
UPPER_PCT = 60.0


def measure(setting: Mapping[str, Any]) -> dict[str, Any]:
    nodes, seed = int(setting["nodes"]), int(setting["seed"])
    operators = round(nodes * OPERATORS_A_NODE)
    world = deploy(Deployment(nodes=nodes, operators=operators), np.random.default_rng(seed_from(seed, nodes, "world")))
    fluctuation = Fluctuation(at_once=max(1, round(nodes / NODES_AN_ALTERATION)))
    changes = fluctuate(fluctuation, list(world.placement), np.random.default_rng(seed_from(seed, nodes, "changes")))
    runs = [EdgeRun(protocol=protocol, loss=float(setting["loss"])) for protocol in (Protocol.NONE, Protocol.TOCSIN)]
    without, with_ = (EdgeSimulation(Kernel(seed), world, changes, run).run() for run in runs)
    minutes = runs[1].length_s / 60
    over = [float((log.samples > UPPER_PCT).sum()) for log in (without, with_)]
    messages = sum(with_.messages.values())
    return {
        **setting,
        "operators": operators,
        "messages_a_node_and_minute": messages / nodes / minutes,
        "operators_moved_a_node_and_hour": with_.operators_moved / nodes / minutes * 60,
        "messages_a_moved_operator": messages / with_.operators_moved if with_.operators_moved else None,
        "overload_reduction_pct": 100 * (1 - over[1] / over[0]) if over[0] else None,
        **_spells("without", without),
        **_spells("with", with_),
    }


def _spells(name: str, log: EdgeLog) -> dict[str, float | None]:
    spells_s = log.overload_spells_s
    median, ninth = np.quantile(spells_s, [0.5, 0.9]) if spells_s else (None, None)
    within = float(100 * np.mean(np.asarray(spells_s) <= 10.0)) if spells_s else None
    return {f"leave_p50_{name}_s": median, f"leave_p90_{name}_s": ninth, f"left_within_10_s_{name}_pct": within}


@dataclass(frozen=True)
class AmiScale:
    name: str = "ami-scale"
    title: str = "The edge protocol as the tree grows: up to 1,023 nodes and 20,000 operators"
    default_runs: int = 3

    def settings(self, runs: int, **options: str) -> Sequence[dict[str, Any]]:
        """`--set nodes=15,63` sets the sizes of the trees, `--set loss=0.1` the share of lost messages."""
        unknown = set(options) - {"nodes", "loss"}
        if unknown:
            raise ValueError(f"ami-scale has no option {sorted(unknown)}; it has nodes and loss")
        sizes = [int(size) for size in options["nodes"].split(",")] if "nodes" in options else NODES
        loss = float(options.get("loss", 0.0))
        # The largest first, so that the longest task does not start last.
        return [{"nodes": n, "seed": seed, "loss": loss} for n in sorted(sizes, reverse=True) for seed in range(runs)]

    def run(self, setting: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [measure(setting)]

    def report(self, table: pa.Table, out: Path) -> ExperimentReport:
        sizes = sorted(set(table["nodes"].to_pylist()))
        means = {size: _means(table.filter(pc.equal(table["nodes"], size))) for size in sizes}
        first, last = means[sizes[0]], means[sizes[-1]]
        growth, slower = (
            None if len(sizes) < 2 or not first[key] or last[key] is None else last[key] / first[key]
            for key in ("messages_a_node_and_minute", "leave_p50_with_s")
        )
        reductions = [row["overload_reduction_pct"] for row in means.values()]
        worst_pct = None if None in reductions else min(reductions)
        neighbours, less = "nodes exchange messages with direct neighbours only", "26.44 % less overloaded in total"
        alone = "each node decides by itself"
        range_ = f"at {sizes[-1]:,} nodes as at {sizes[0]}"
        messages, times = f"times the messages per node {range_}", f"times the median time {range_}"
        constant, one_size = "1.5 times counts as independent of the size", "there is only one size to compare"
        unit_and_start = "the unit of memory and the start, as in `ami`"
        claims = [
            at_most("messages-per-node", "[AMI §3.1]", neighbours, growth, 1.5, messages, decided_by=constant,
                    missing=one_size),
            at_most("time-to-leave-overload", "[AMI §3.1]", alone, slower, 1.5, times, decided_by=constant,
                    missing=one_size),
            no_less_than_seed("overload-in-total", "[AMI §4.2]", f"{less}, at 15 nodes", worst_pct, 26.44,
                              "% at the worst size", decided_by=unit_and_start, missing="no node was overloaded"),
        ]  # fmt: skip
        metrics = {f"{key}_{size}_nodes": row[key] for size, row in means.items() for key in _SHOWN}
        files = figures.draw(out, "ami-scale", lambda figure: _draw(figure, sizes, means))
        return ExperimentReport(metrics, claims, files, _body(means), _NOTES)


EXPERIMENT = AmiScale()

_SHOWN = {
    "messages_a_node_and_minute": "messages a node and minute",
    "messages_a_moved_operator": "messages a moved operator",
    "operators_moved_a_node_and_hour": "moved a node and hour",
    "leave_p50_with_s": "leave overload: median s",
    "leave_p90_with_s": "90 % s",
    "left_within_10_s_with_pct": "in 10 s %",
    "leave_p50_without_s": "without: median s",
    "overload_reduction_pct": "less overload %",
}
"""The metrics in the table of the report, with their headings."""
_NOTES = (
    "The thesis has no figures beyond 15 nodes; the bounds are ours. Start and unit of memory as in `ami`.",
    "The end of an overload is measured exactly, not by samples. Overloads still open at the end of a run count with "
    "their length so far, which favours the side without the protocol.",
)


def _means(rows: pa.Table) -> dict[str, Any]:
    """The means of the measured values; None where no run measured one."""
    return {key: pc.mean(rows[key]).as_py() for key in _SHOWN}


def _body(means: Mapping[int, Mapping[str, Any]]) -> str:
    rows = [(size, *row.values()) for size, row in means.items()]
    return "## As the tree grows\n\n" + table(("nodes", *_SHOWN.values()), rows)


def _draw(figure: Figure, sizes: list[int], means: Mapping[int, Mapping[str, Any]]) -> None:
    left, right = figure.subplots(1, 2)
    left.plot(sizes, [means[size]["messages_a_node_and_minute"] for size in sizes], marker="o", color=figures.BLUE)
    left.set(title="Messages a node and minute", xlabel="nodes in the tree", ylabel="messages")
    left.set_ylim(0, 1.25 * max(row["messages_a_node_and_minute"] for row in means.values()))
    for name, label, colour, marker in (
        ("leave_p50_without_s", "without protocol, median", figures.ORANGE, "s"),
        ("leave_p90_with_s", "with protocol, 90 % leave within", figures.SKY, "^"),
        ("leave_p50_with_s", "with protocol, median", figures.BLUE, "o"),
    ):
        measured = [np.nan if means[size][name] is None else means[size][name] for size in sizes]
        right.plot(sizes, measured, marker=marker, color=colour, label=label)
    right.set_yscale("log")
    right.set_ylim(1, 1_500)
    right.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    right.set(title="Time to leave overload", xlabel="nodes in the tree", ylabel="seconds")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(sizes))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([f"{size:,}" for size in sizes])
    figures.legend_below(figure, right)
