"""`epeer-drd`: delay-driven offloading beside its two baselines on one site with four edges [ePEER §4.5, figures
4-17–4-23].

Every run is one random site, played three times with the same clients and the same bursts. Choices that the thesis does
not disclose are varied one at a time in a tenth as many runs, and shown in the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from tocsin.experiments import epeer_variants, figures
from tocsin.experiments.epeer_variants import BASE, EDGE_COLOURS, p_value, runs_of, significant
from tocsin.experiments.report import (
    Claim,
    ExperimentReport,
    below,
    no_less_than_seed,
    no_more_than_seed,
    reproduces,
    shows,
)
from tocsin.experiments.runner import Row
from tocsin.policies.sites.baselines import PEER_DRD, PEER_LB
from tocsin.policies.sites.migration import TIMEOUT_S
from tocsin.policies.sites.offload import DRD_LB, Balancer
from tocsin.policies.sites.types import OffloadParams
from tocsin.sim.kernel import Kernel, seed_from
from tocsin.sim.sites.site import DISTRIBUTED_S, SiteLog, SiteSimulation, SiteTiming
from tocsin.sim.sites.workload import SiteSettings, SiteWorld, draw_bursts, make_site

LOAD = 0.80
"""Undisclosed. The highest load at which the mean broker is not above TH_low after both bursts, 12.5 topics each on
average (0.80 · 1.125 = 0.90): there is surplus capacity, and bursts can overload a broker."""
VARIANTS: Mapping[str, str] = {
    BASE: "as stated",
    "load-70": "edges at 70 % at rest",
    "load-75": "edges at 75 % at rest",
    "load-85": "edges at 85 % at rest",
    "points": "PEER: 10 points of utilisation instead of 10 %",
    "unsettled": "PEER: moves need not make the pair more even",
    "largest": "PEER-LB: largest subscriptions first instead of at random",
    "each": "PEER: an edge drawn for each subscriber, not for each topic",
    "poisson": "rates of a second drawn around their means",
    "slow": "connecting takes 0.5 s instead of 0.15 s",
}
POLICIES = ("drd-lb", "peer-drd", "peer-lb")
LABELS = {"drd-lb": "DRD-LB", "peer-drd": "PEER-DRD", "peer-lb": "PEER-LB"}
COLOURS = {"drd-lb": figures.BLUE, "peer-drd": figures.GREEN, "peer-lb": figures.ORANGE}
SAMPLE_S = 2
SAMPLED_RUNS = 8
"""Runs whose utilisation is kept; the figure shows the first in which DRD-LB offloaded."""
MEASURES = ["offloads", "offloads_later", "delay_pct", "delay_later_pct", "detection_overhead", "control_overhead"]
MEASURES += ["overloaded_s", "limited_s", "clients_later"]


def play(variant: str, run: int) -> tuple[SiteWorld, dict[str, SiteLog]]:
    """Simulate one site under each policy."""
    seed = seed_from("epeer-drd", run)
    load = {"load-70": 0.70, "load-75": 0.75, "load-85": 0.85}.get(variant, LOAD)
    rng = np.random.default_rng(seed)
    world = make_site(SiteSettings(load=load), rng)
    bursts = draw_bursts(len(world.topics), rng)
    params = OffloadParams(imbalance_is_relative=variant != "points")
    timing = SiteTiming(connect_s=0.5) if variant == "slow" else SiteTiming()
    logs = {}
    for policy in _policies(variant):
        assign_each, poisson = variant == "each" and policy.name != "drd-lb", variant == "poisson"
        simulation = SiteSimulation(
            Kernel(seed), world, bursts, policy, params, timing, assign_each=assign_each, poisson=poisson
        )
        logs[policy.name] = simulation.run()
    return world, logs


def _policies(variant: str) -> list[Balancer]:
    settles, largest = variant != "unsettled", variant == "largest"
    return [DRD_LB, replace(PEER_DRD, settles=settles), replace(PEER_LB, settles=settles, largest_first=largest)]


def _row(variant: str, run: int, policy: str, world: SiteWorld, log: SiteLog) -> Row:
    later = [offload for offload in log.offloads if offload.at_s > DISTRIBUTED_S]
    capacity = float(world.matching_per_s.sum())
    row: Row = {"kind": "run", "variant": variant, "run": run, "policy": policy}
    row |= {"offloads": len(log.offloads), "offloads_later": len(later)}
    row["clients_later"] = sum(offload.clients for offload in later)
    row["delay_pct"] = 100 * sum(offload.delay_ratio for offload in log.offloads)
    row["delay_later_pct"] = 100 * sum(offload.delay_ratio for offload in later)
    # One detection message a second and edge, plus the messages of migrations, over the matching capacity of all edges.
    row["detection_overhead"] = len(world.edges) / capacity
    row["control_overhead"] = log.control_messages / len(log.used) / capacity
    return row | {"overloaded_s": log.overloaded_s, "limited_s": log.limited_s, "longest_busy_s": log.longest_busy_s}


@dataclass(frozen=True)
class Drd:
    name: str = "epeer-drd"
    title: str = "Delay-driven offloading: DRD-LB beside PEER-LB and PEER-DRD (ePEER, figures 4-17 to 4-23)"
    default_runs: int = 100

    def settings(self, runs: int, **options: str) -> Sequence[dict[str, Any]]:
        return epeer_variants.settings(self.name, VARIANTS, runs, options)

    def run(self, setting: Mapping[str, Any]) -> list[Row]:
        variant, run = str(setting["variant"]), int(setting["run"])
        world, logs = play(variant, run)
        rows = [_row(variant, run, policy, world, logs[policy]) for policy in POLICIES]
        if variant == BASE and run < SAMPLED_RUNS:
            rows += [
                {"kind": "sample", "run": run, "policy": policy, "at_s": second + 1}
                | {f"used_{edge}": used for edge, used in zip(world.edges, log.used[second], strict=True)}
                for policy, log in logs.items()
                for second in range(0, len(log.used), SAMPLE_S)
            ]
        return rows

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        rows = table_.to_pandas()
        runs = runs_of(rows, BASE)
        compared = _compared(runs)
        metrics = _metrics(runs)
        files = [
            *figures.draw(out, "epeer-drd-utilisation", lambda figure: _draw_used(figure, rows), height_in=6.4),
            *figures.draw(out, "epeer-drd-runs", lambda figure: _draw_runs(figure, compared)),
            *figures.draw(out, "epeer-drd-means", lambda figure: _draw_means(figure, metrics)),
        ]
        return ExperimentReport(metrics, _claims(metrics), files, _sensitivity(rows), _NOTES, _inputs(metrics))


EXPERIMENT = Drd()

_NOTES = (
    "Undisclosed and therefore chosen: edges at 80 % at rest (rates are drawn, then scaled to it); 1–5 publishers and "
    "1–8 subscribers a topic; a publisher's rate 0.2–1.8 times the mean; all messages 200–1,000 bytes; a hop of 10 ms "
    "and 0.15 s to connect, so moving takes 0.17 s, and more where a queue has to be drained.",
    "Unexpected delay is the time from the notification to the confirmation. It scales all three policies alike.",
    "Matching is counted once per message, topic and edge, as table 4-3 implies. Therefore, if PEER draws an edge for "
    "each subscriber (`each`), most messages are matched at two or three edges: no edge is LOW at a load that DRD-LB "
    "carries with a fifth to spare, and no broker can accept a bundle. In the base, all clients of a topic, which "
    "register in the same second, share one draw.",
    "PEER's 10 % is read as a share of the larger load, in any of the three metrics.",
    "As in the thesis, PEER's offloads while clients register are left out unless stated otherwise; DRD-LB's are not.",
    "The thesis counts 18 offloads of PEER-LB after the distribution phase and 202 during it. PEER as chapter 3 words "
    "it (`unsettled`) moves bundles back and forth without end; if a move must make the pair more even, it has fewer.",
)


def _compared(runs: Any) -> Any:
    """One row per run, a column per measure and policy."""
    wide = runs.pivot(index="run", columns="policy", values=list(MEASURES[:4]))
    wide.columns = [f"{measure}:{policy}" for measure, policy in wide.columns]
    return wide.astype(float)


def _metrics(runs: Any) -> dict[str, Any]:
    compared = _compared(runs)
    means = runs.groupby("policy").mean(numeric_only=True)
    medians = runs.groupby("policy").median(numeric_only=True)
    drd, peer = compared["offloads:drd-lb"], compared["offloads_later:peer-lb"]
    drd_delay, peer_delay = compared["delay_pct:drd-lb"], compared["delay_later_pct:peer-lb"]
    own = float(means.loc["drd-lb", "delay_pct"])
    metrics: dict[str, Any] = {
        "runs": len(compared),
        "fewer_offloads_pct": 100 * float((drd < peer).mean()),
        "equal_offloads_pct": 100 * float((drd == peer).mean()),
        "more_offloads_pct": 100 * float((drd > peer).mean()),
        "more_delay_pct_of_runs": 100 * float((drd_delay > peer_delay).mean()),
        "delay_ratio_peer_lb_to_drd_lb": float(means.loc["peer-lb", "delay_later_pct"]) / own if own else None,
        "p_offloads": p_value(drd, peer),
        "p_delay": p_value(drd_delay, peer_delay),
        "p_delay_peer_drd": p_value(compared["delay_later_pct:peer-drd"], peer_delay),
        "longest_busy_s": float(runs.longest_busy_s.max()),
    }
    for policy in POLICIES:
        for measure in MEASURES:
            metrics[f"{measure}_{policy}"] = float(means.loc[policy, measure])
        metrics[f"delay_later_pct_median_{policy}"] = float(medians.loc[policy, "delay_later_pct"])
    return metrics


def _claims(metrics: Mapping[str, Any]) -> list[Claim]:
    where, between = "[ePEER §4.5.4]", "4.98 % < 137 % < 274 %"
    later = [metrics[f"delay_later_pct_{policy}"] for policy in POLICIES]
    whole = [metrics[f"delay_pct_{policy}"] for policy in POLICIES]
    drd, peer_drd, peer_lb = later
    reading, scale = "PEER moves only what makes a pair more even; edges at 80 %", "moving takes 0.17 s; edges at 80 %"
    idle, still = "DRD-LB never offloaded", "PEER-LB never offloaded after the distribution"
    control = [metrics[f"control_overhead_{policy}"] for policy in ("drd-lb", "peer-lb")]
    offloads = [metrics[f"offloads_later_{policy}"] for policy in ("peer-drd", "peer-lb")]
    # A run without an offload cannot show that an offload ends in time.
    busy_s = metrics["longest_busy_s"] or None
    return [
        no_less_than_seed("fewer-offloads", f"{where}, figure 4-19", "DRD-LB: fewer offloads in 97.6 % of runs",
                          metrics["fewer_offloads_pct"], 97.6, "% of runs", decided_by=reading),
        no_more_than_seed("more-offloads", f"{where}, figure 4-19", "DRD-LB: more offloads in 1.4 % of runs",
                          metrics["more_offloads_pct"], 1.4, "% of runs", decided_by=reading),
        no_more_than_seed("more-delay", f"{where}, figure 4-20", "DRD-LB: more delay in 3 of 500 runs",
                          metrics["more_delay_pct_of_runs"], 0.6, "% of runs", decided_by=reading),
        no_more_than_seed("drd-lb-delay", f"{where}, figure 4-22", "DRD-LB: 4.98 %",
                          drd if metrics["offloads_drd-lb"] else None, 4.98, "%", decided_by=scale, missing=idle),
        no_less_than_seed("delay-ratio", f"{where}, figure 4-22", "4.98 % against 274 %: 55 times lower",
                          metrics["delay_ratio_peer_lb_to_drd_lb"], 274 / 4.98, "times", decided_by=reading,
                          missing=idle),
        no_more_than_seed("peer-drd-lowers-delay", f"{where}, figure 4-23", "137 % against 274 %",
                          peer_drd / peer_lb if peer_lb else None, 137 / 274, "times PEER-LB's delay",
                          decided_by=reading, missing=still),
        _rising("peer-drd-between", between, later, reading),
        _rising("peer-drd-between-with-distribution", "4.98 % < 1022 % < 1894 %", whole, reading),
        reproduces("peer-drd-as-many-offloads", where, "PEER-DRD: the number of offloads is not improved",
                   offloads[0] / offloads[1] if offloads[1] else None, 1.0, "times PEER-LB's offloads",
                   decided_by=reading, missing=still),
        reproduces("peer-lb-offloads", f"{where}, figure 4-18", "PEER-LB: 18 after the distribution, in its example",
                   offloads[1], 18.0, "offloads a run", decided_by=reading),
        significant("delay-significant", where, metrics["p_delay"], metrics["runs"], decided_by=reading),
        below("less-control", where, "less offloading: fewer control messages than PEER-LB",
              control[0] / control[1] if control[1] else None, 1.0, "times PEER-LB's messages of migrations",
              decided_by=reading, missing="PEER-LB never offloaded"),
        below("busy-ends-by-confirmation", "[ePEER §4.4.4.1]", "all clients migrate before the time-out", busy_s,
              TIMEOUT_S, "s, the longest; the time-out is 30 s", decided_by=scale, missing="no policy offloaded"),
    ]  # fmt: skip


def _inputs(metrics: Mapping[str, Any]) -> list[Claim]:
    overhead, text = metrics["detection_overhead_drd-lb"], "one detection message a second: 1/25887 in its example"
    drawn = "capacities drawn from 20,000–30,000 messages/s, as in the thesis"
    return [
        reproduces("detection-overhead", "[ePEER §4.5.4], table 4-9", text, overhead, 1 / 25_887,
                   "of the matching capacity", decided_by=drawn)
    ]  # fmt: skip


def _rising(claim: str, thesis: str, delays: Sequence[float], decided_by: str) -> Claim:
    text = ", ".join(f"{delay:.3g} %" for delay in delays)
    holds = delays[0] < delays[1] < delays[2]
    return shows(claim, "[ePEER §4.5.4], figure 4-23", thesis, text, holds, decided_by=decided_by)


def _sensitivity(rows: Any) -> str:
    columns = {"runs": "runs", "DRD-LB fewer offloads, % of runs": "fewer_offloads_pct"}
    columns |= {f"offloads {label}": f"offloads_later_{policy}" for policy, label in LABELS.items()}
    columns |= {f"delay % {label}": f"delay_later_pct_{policy}" for policy, label in LABELS.items()}
    columns["PEER-LB ÷ DRD-LB"] = "delay_ratio_peer_lb_to_drd_lb"
    columns |= {"DRD-LB without help, s": "limited_s_drd-lb", "PEER-LB without help, s": "limited_s_peer-lb"}
    note = "Offloads and delays after the distribution phase, means over runs."
    return epeer_variants.sensitivity(rows, VARIANTS, note, columns, _metrics)


def _draw_used(figure: Figure, rows: Any) -> None:
    """Figures 4-17 and 4-18: one run."""
    samples = rows[rows.kind == "sample"]
    busy = rows[(rows.kind == "run") & (rows.variant == BASE) & (rows.policy == "drd-lb") & (rows.offloads > 0)]
    shown = [run for run in busy.run if run < SAMPLED_RUNS] or [0]
    samples = samples[samples.run == shown[0]]
    grid = figure.subplots(3, 1, sharex=True, sharey=True)
    for axes, policy in zip(grid, POLICIES, strict=True):
        mine = samples[samples.policy == policy]
        edges = [name for name in samples.columns if name.startswith("used_")]
        for edge, colour in zip(edges, EDGE_COLOURS, strict=True):
            axes.plot(mine.at_s, 100 * mine[edge], color=colour, linewidth=1.1, label=edge.removeprefix("used_"))
        axes.set(title=LABELS[policy], ylabel="matching (%)", ylim=(0, 110))
        figures.seed_line(axes, 95.0, "TH_high", at=0.01)
    grid[-1].set(xlabel="second of the run", xlim=(0, 1_000))
    figures.legend_below(figure, grid[0])


def _draw_runs(figure: Figure, compared: Any) -> None:
    """Figures 4-19 and 4-20: PEER-LB less DRD-LB, run by run, sorted."""
    left, right = figure.subplots(1, 2)
    offloads = np.sort(compared["offloads_later:peer-lb"] - compared["offloads:drd-lb"])
    delays = np.sort(compared["delay_later_pct:peer-lb"] - compared["delay_pct:drd-lb"])
    for axes, values, title, label in (
        (left, offloads, "Offloads, PEER-LB less DRD-LB", "offloads"),
        (right, delays, "Delay, PEER-LB less DRD-LB", "points of %"),
    ):
        axes.plot(np.arange(1, len(values) + 1), values, color=figures.BLUE)
        axes.axhline(0.0, color="#222222", linewidth=0.8)
        axes.set(title=title, xlabel="runs, sorted", ylabel=label)
        axes.set_yscale("symlog", linthresh=1.0)


def _draw_means(figure: Figure, metrics: Mapping[str, Any]) -> None:
    """Figures 4-21, 4-22 and 4-23, with the thesis' numbers."""
    seeds = {"offloads": {"peer-lb": 18.0}, "delay": {"drd-lb": 4.98, "peer-drd": 137.0, "peer-lb": 274.0}}
    left, right = figure.subplots(1, 2)
    for axes, measure, name, title, label in (
        (left, "offloads_later", "offloads", "Mean number of offloads", "offloads a run"),
        (right, "delay_later_pct", "delay", "Mean offloading delay", "% of the requirement, summed"),
    ):
        for place, policy in enumerate(POLICIES):
            value = metrics[f"{measure}_{policy}"]
            axes.bar(place, value, width=0.6, color=COLOURS[policy])
            axes.annotate(f"{value:,.3g}", (place, value), ha="center", va="bottom", fontsize=8)
            if policy in seeds[name]:
                axes.plot([place - 0.38, place + 0.38], 2 * [seeds[name][policy]], color="#222222", linestyle="--")
                style: Any = {"ha": "center", "va": "bottom", "fontsize": 7.5, "color": "#222222"}
                label_at, text = (place, seeds[name][policy]), f"ePEER {seeds[name][policy]:g}"
                axes.annotate(text, label_at, xytext=(0, 2), textcoords="offset points", **style)
        axes.set(title=title, ylabel=label, xticks=range(3), xticklabels=[LABELS[policy] for policy in POLICIES])
        axes.set_yscale("log")
        axes.margins(y=0.2)
