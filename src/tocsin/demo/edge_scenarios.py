"""`tocsin experiment ami-live`: a burst with and without the protocol, ordered transfers, and nodes that die [AMI].

Experiments may not start processes: this module runs them (`edge_world`) and hands the rows to `experiments.ami_live`.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

from tocsin.demo.edge_faults import compared, run_faults
from tocsin.demo.edge_meters import DECLARATION
from tocsin.demo.edge_options import EdgeOptions
from tocsin.demo.edge_queries import BULK, figure_3, users_above
from tocsin.demo.edge_tree import TreeSettings
from tocsin.demo.edge_world import EdgeWorld, Feeder, Look, edge_world
from tocsin.experiments import runner
from tocsin.experiments.ami_live import BURST, FAULTS, WITHOUT, LiveEdge
from tocsin.experiments.edge_rows import Reference, in_spark
from tocsin.experiments.runner import Row
from tocsin.runtime.http.listening import loop_factory


def run_live(
    options: Mapping[str, str],
    out: Path,
    report_progress: Callable[[str], None],
    reference: Reference = in_spark,
) -> dict[str, Any]:
    """Run the scenarios and return the report. `reference` computes the rows that the root should have published."""
    read = EdgeOptions.of(options)
    rows: list[Row] = []
    for scenario in read.chosen:
        report_progress(f"{scenario}: starting {read.nodes} edge nodes")
        logs = out / "logs" / scenario
        logs.mkdir(parents=True, exist_ok=True)
        for earlier in logs.glob("*.log"):
            earlier.unlink()
        with (
            tempfile.TemporaryDirectory(prefix="tocsin-edge-") as folder,
            asyncio.Runner(loop_factory=loop_factory()) as loop,
        ):
            rows += loop.run(_run(scenario, read, Path(folder), logs, report_progress, reference))
        facts = {key: value for key, value in rows[-1].items() if key not in ("kind", "scenario")}
        report_progress(f"{scenario}: " + ", ".join(f"{key} {value:.4g}" for key, value in facts.items()))
    command = "tocsin experiment ami-live" + "".join(f" --set {name}={value}" for name, value in options.items())
    return runner.finish(LiveEdge(), 1, runner.table_of(rows), out, command)


async def _run(
    scenario: str,
    options: EdgeOptions,
    folder: Path,
    logs: Path,
    report_progress: Callable[[str], None],
    reference: Reference,
) -> list[Row]:
    def settings(gateway: str) -> TreeSettings:
        node: dict[str, str | int | float | bool] = {"period_s": options.period_s}
        if scenario == FAULTS:
            streams = {"neighbourhood-1": ("Readings", BULK)}
            return TreeSettings(options.nodes, gateway, streams=streams, node=node)
        node |= {"cpu_share": options.cpu_share, "negotiates": scenario == BURST}
        return TreeSettings(options.nodes, gateway, node=node)

    async with edge_world(folder, logs, settings) as world, AsyncExitStack() as opened:
        began_s = time.time()
        await world.tree.apply(DECLARATION)
        await world.deploy(figure_3(options.user_s))
        if scenario != FAULTS:
            await world.deploy(users_above(options.peaks, options.user_s))
        await world.open_meters(opened, options.load if scenario == FAULTS else options.burst_load)
        tasks = [asyncio.create_task(work) for work in (world.watch(), *(feeder.run() for feeder in world.feeders))]
        try:
            own_s, nodes_s = time.process_time(), world.tree.cpu_s()
            if scenario == FAULTS:
                facts, more = await run_faults(world, options, opened, report_progress, reference)
            else:
                facts, more = await _burst(world, options, scenario, report_progress, reference), []
            took_s = time.time() - began_s
            facts["cores_nodes_at_end"] = (world.tree.cpu_s() - nodes_s) / took_s
            facts["cores_publishers"] = (time.process_time() - own_s) / took_s
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        label = {"scenario": scenario}
        looks = [label | {"kind": "look"} | asdict(look) | {"at_s": look.at_s - began_s} for look in world.looks]
        more = [label | row | {"at_s": row["at_s"] - began_s} for row in more]
    return [*looks, *more, {"kind": "run", "scenario": scenario, **facts}]


# -- a burst -----------------------------------------------------------------------------------------------------------


async def _burst(
    world: EdgeWorld,
    options: EdgeOptions,
    scenario: str,
    report_progress: Callable[[str], None],
    reference: Reference,
) -> dict[str, float]:
    """Multiply the rates of all meters at one leaf."""
    leaf = world.tree.leaves[0]
    feeders = [feeder for feeder in world.feeders if feeder.leaf == leaf]
    calibration = await _calibrate(world, options, leaf, feeders)
    factor = calibration.factor_for(options.burst_pct)
    report_progress(f"{scenario}: {calibration}; {factor:.1f} times the rate should need {options.burst_pct:g} %")
    for feeder in feeders:
        feeder.change_rate(factor / calibration.factor)
    before = await _overloads(world)
    at_s = time.time()
    backlogs_s: list[float] = []
    while time.time() < at_s + options.burst_s:
        await asyncio.sleep(_BACKLOG_S)
        backlogs_s.append(await world.backlog_s(leaf))
    until_s = time.time()
    after = await _overloads(world)
    for feeder in feeders:
        feeder.change_rate(1.0 / factor)
    third = len(backlogs_s) // 3
    looks = [look for look in world.looks if at_s <= look.at_s <= until_s]
    facts = {
        "period_s": options.period_s,
        "calm_load_pct": calibration.calm_pct,
        "calibration_factor": calibration.factor,
        "calibration_load_pct": calibration.higher_pct,
        "burst_factor": factor,
        "peak_load_pct": max((look.load_pct for look in looks), default=0.0),
        "overloads": sum(total for total, _ in after.values()) - sum(total for total, _ in before.values()),
        "overloaded_s": max(
            *(_longest_overload_s(own) for own in _by_node(looks)),
            *(longest_s for name, (_, longest_s) in after.items() if longest_s > before[name][1]),
            0.0,
        ),
        "overloaded_total_s": sum((_overload_s(own) for own in _by_node(looks)), 0.0),
        "backlog_middle_s": median(backlogs_s[third : 2 * third]),
        "backlog_end_s": median(backlogs_s[2 * third :]),
        "moved": float(sum(_moves(own) for own in _by_node(looks)) / 2.0),
        "generations": float(len({look.generation for look in looks})),
    }
    if scenario == WITHOUT:  # its backlog may take minutes to drain
        return facts
    return facts | await compared(world, reference, report_progress)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The load of a leaf at two rates. A part of it does not grow with the rate: beats, and results of windows."""

    calm_pct: float
    factor: float
    """The higher rate is so many times the calm one."""
    higher_pct: float

    def factor_for(self, load_pct: float) -> float:
        """How many times the calm rate needs this load."""
        growth_pct = (self.higher_pct - self.calm_pct) / (self.factor - 1.0)
        # A leaf that hardly noticed the higher rate was disturbed meanwhile: at least a quarter of its load grows.
        growth_pct = max(growth_pct, 0.25 * self.calm_pct, 1.0)
        return 1.0 + (load_pct - self.calm_pct) / growth_pct

    def __str__(self) -> str:
        return f"load {self.calm_pct:.0f} %, {self.higher_pct:.0f} % at {self.factor:.1f} times the rate"


async def _calibrate(world: EdgeWorld, options: EdgeOptions, leaf: str, feeders: list[Feeder]) -> Calibration:
    """Measure the leaf at the calm rate and at a higher one, which must not overload it: no operator may move yet."""

    async def mean_load_pct(seconds: float) -> float:
        await asyncio.sleep(seconds)
        since_s = time.time() - max(options.period_s, min(float(options.user_s), seconds - options.period_s))
        return mean([look.load_pct for look in world.looks if look.node == leaf and look.at_s >= since_s] or [1.0])

    calm_pct = await mean_load_pct(options.before_s)
    factor = min(_HIGHER_FACTOR, max(_LEAST_FACTOR, _HIGHER_PCT / max(1.0, calm_pct)))
    for feeder in feeders:
        feeder.change_rate(factor)
    return Calibration(calm_pct, factor, await mean_load_pct(options.calibrate_s))


async def _overloads(world: EdgeWorld) -> dict[str, tuple[float, float]]:
    """How often each node measured that it was overloaded, and its longest overload until now in seconds.

    A node may leave an overload between two looks.
    """
    figures = {name: await world.tree.metrics(name) for name in world.tree.names}
    return {
        name: (own["tocsin_edge_overloads_total"], own["tocsin_edge_longest_overload_seconds"])
        for name, own in figures.items()
    }


def _by_node(looks: list[Look]) -> list[list[Look]]:
    ordered = sorted(looks, key=lambda look: look.node)
    return [list(own) for _, own in groupby(ordered, key=lambda look: look.node)]


_BACKLOG_S: Final = 0.5
_HIGHER_FACTOR: Final = 3.0
_LEAST_FACTOR: Final = 1.2
_HIGHER_PCT: Final = 45.0
"""The higher rate of the calibration would need this load if all work grew with the rate."""
_UPPER_PCT: Final = 60.0


def _longest_overload_s(looks: list[Look]) -> float:
    """The longest time in which every report of a node was above U_t."""
    longest_s, since_s = 0.0, None
    for look in looks:
        if look.load_pct <= _UPPER_PCT:
            since_s = None
            continue
        since_s = look.at_s if since_s is None else since_s
        longest_s = max(longest_s, look.at_s - since_s)
    return longest_s


def _overload_s(looks: list[Look]) -> float:
    pairs = pairwise(looks)
    return sum(after.at_s - look.at_s for look, after in pairs if look.load_pct > _UPPER_PCT)


def _moves(looks: list[Look]) -> int:
    """How many operators a node gained or lost between looks of one generation."""
    pairs = pairwise(looks)
    return sum(abs(after.operators - look.operators) for look, after in pairs if look.generation == after.generation)
