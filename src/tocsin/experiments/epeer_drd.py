"""`epeer-drd`: delay-driven offloading beside its two baselines on one site with four edges [ePEER §4.5, figures
4-17–4-23].

Every run is one random site, played three times with the same clients and the same bursts. What the thesis does not
disclose is varied one at a time in a tenth as many runs, and shown in the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure
from scipy.stats import wilcoxon

from tocsin.experiments import figures, variants
from tocsin.experiments.report import Claim, ExperimentReport, at_least, at_most, below, shows, table
from tocsin.experiments.runner import Row
from tocsin.experiments.variants import BASE
from tocsin.policies.sites.offload import DRD_LB, Balancer
from tocsin.policies.sites.offload_baselines import PEER_DRD, PEER_LB
from tocsin.policies.sites.offload_migration import TIMEOUT_S
from tocsin.policies.sites.offload_types import OffloadParams
from tocsin.sim.kernel import Kernel, seed_from
from tocsin.sim.sites.site import DISTRIBUTED_S, SiteLog, SiteSimulation, SiteTiming
from tocsin.sim.sites.workload import SiteSettings, SiteWorld, draw_bursts, make_site

LOAD = 0.80
"""Undisclosed. The heaviest at which the mean broker is still not above TH_low after both bursts of 12.5 topics on
average (0.80 · 1.125 = 0.90): there is surplus, and bursts can overload someone."""
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
EDGE_COLOURS = (figures.BLUE, figures.ORANGE, figures.GREEN, figures.PURPLE)
SAMPLE_S = 2
SAMPLED_RUNS = 8
"""Runs whose utilisation is kept; the figure shows the first in which DRD-LB had to offload."""


def play(variant: str, run: int) -> tuple[SiteWorld, dict[str, SiteLog]]:
    """One site under each policy."""
    seed = seed_from("epeer-drd", run)
    load = {"load-70": 0.70, "load-75": 0.75, "load-85": 0.85}.get(variant, LOAD)
    rng = np.random.default_rng(seed)
    world = make_site(SiteSettings(load=load), rng)
    bursts = draw_bursts(len(world.topics), rng)
    params = OffloadParams(imbalance_is_relative=variant != "points")
    timing = SiteTiming(connect_s=0.5) if variant == "slow" else SiteTiming()
    logs = {}
    for policy in _policies(variant):
        simulation = SiteSimulation(
            Kernel(seed), world, bursts, policy, params, timing,
            assign_each=variant == "each" and policy.name != "drd-lb", poisson=variant == "poisson",
        )  # fmt: skip
        logs[policy.name] = simulation.run()
    return world, logs


def _policies(variant: str) -> list[Balancer]:
    settles, largest = variant != "unsettled", variant == "largest"
    return [
        DRD_LB,
        replace(PEER_DRD, settles=settles),
        replace(PEER_LB, settles=settles, largest_first=largest),
    ]


def _row(variant: str, run: int, policy: str, world: SiteWorld, log: SiteLog) -> Row:
    later = [one for one in log.offloads if one.at_s > DISTRIBUTED_S]
    capacity = float(world.matching_per_s.sum())
    seconds = len(log.used)
    return {
        "kind": "run", "variant": variant, "run": run, "policy": policy,
        "offloads": len(log.offloads), "offloads_later": len(later),
        "clients_later": sum(one.clients for one in later),
        "delay_pct": 100 * sum(one.delay_ratio for one in log.offloads),
        "delay_later_pct": 100 * sum(one.delay_ratio for one in later),
        # One detection message a second and edge, plus what moving clients takes, over what all edges could match.
        "detection_overhead": len(world.edges) / capacity,
        "control_overhead": log.control_messages / seconds / capacity,
        "overloaded_s": log.overloaded_s, "limited_s": log.limited_s, "longest_busy_s": log.longest_busy_s,
    }  # fmt: skip


@dataclass(frozen=True)
class Drd:
    name: str = "epeer-drd"
    title: str = "Delay-driven offloading: DRD-LB beside PEER-LB and PEER-DRD (ePEER, figures 4-17 to 4-23)"
    default_runs: int = 100

    def settings(self, runs: int, **options: str) -> Sequence[dict[str, Any]]:
        return variants.settings(self.name, VARIANTS, runs, options)

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
        runs = rows[(rows.kind == "run") & (rows.variant == BASE)]
        compared = _compared(runs)
        metrics = _metrics(runs, compared)
        files = [
            *figures.draw(out, "epeer-drd-utilisation", lambda figure: _draw_used(figure, rows), height_in=6.4),
            *figures.draw(out, "epeer-drd-runs", lambda figure: _draw_runs(figure, compared)),
            *figures.draw(out, "epeer-drd-means", lambda figure: _draw_means(figure, metrics)),
        ]
        return ExperimentReport(metrics, _claims(metrics), files, _sensitivity(rows), _NOTES)


EXPERIMENT = Drd()

_NOTES = (
    "Undisclosed and therefore chosen: edges at 80 % at rest (rates are drawn, then scaled to it); 1–5 publishers and "
    "1–8 subscribers a topic; a publisher's rate 0.2–1.8 times the mean; all messages 200–1,000 bytes; a hop of 10 ms "
    "and 0.15 s to connect, so moving takes 0.17 s, and more where a queue has to be drained.",
    "Unexpected delay is the time from the notification to the confirmation. It scales all three policies alike.",
    "Matching is counted once per message, topic and edge, as table 4-3 implies. Therefore an edge drawn for every "
    "single subscriber (`each`) has PEER match most messages at two or three edges: no edge is LOW at a load that "
    "DRD-LB carries with a fifth to spare, so nobody can accept anything. In the base all clients of a topic, which "
    "register in the same second, draw together.",
    "PEER's 10 % is read as a share of the larger load, in any of the three metrics.",
    "As in the thesis, PEER's offloads while clients register are left out unless said otherwise; DRD-LB's are not.",
    "The thesis counts 18 offloads of PEER-LB after the distribution phase and 202 during it. PEER as chapter 3 words "
    "it (`unsettled`) goes back and forth without end; with moves that must make the pair more even it has fewer.",
)


def _compared(runs: Any) -> Any:
    """One row per run, a column per measure and policy."""
    wide = runs.pivot(
        index="run", columns="policy", values=["offloads", "offloads_later", "delay_pct", "delay_later_pct"]
    )
    wide.columns = [f"{measure}:{policy}" for measure, policy in wide.columns]
    return wide.astype(float)


def _p_value(smaller: Any, larger: Any) -> float | None:
    """That the first is not smaller than the second, by Wilcoxon's signed-rank test; None if all pairs are equal."""
    if not (np.asarray(smaller) != np.asarray(larger)).any():
        return None
    return float(wilcoxon(smaller, larger, alternative="less").pvalue)


def _metrics(runs: Any, compared: Any) -> dict[str, Any]:
    means = runs.groupby("policy").mean(numeric_only=True)
    medians = runs.groupby("policy").median(numeric_only=True)
    drd, peer = compared["offloads:drd-lb"], compared["offloads_later:peer-lb"]
    delay = {policy: float(means.loc[policy, "delay_later_pct"]) for policy in POLICIES}
    own = float(means.loc["drd-lb", "delay_pct"])
    metrics: dict[str, Any] = {
        "runs": len(compared),
        "fewer_offloads_pct": 100 * float((drd < peer).mean()),
        "equal_offloads_pct": 100 * float((drd == peer).mean()),
        "more_offloads_pct": 100 * float((drd > peer).mean()),
        "more_delay_pct_of_runs": 100
        * float((compared["delay_pct:drd-lb"] > compared["delay_later_pct:peer-lb"]).mean()),
        "delay_ratio_peer_lb_to_drd_lb": delay["peer-lb"] / own if own else None,
        "p_offloads": _p_value(drd, peer),
        "p_delay": _p_value(compared["delay_pct:drd-lb"], compared["delay_later_pct:peer-lb"]),
        "p_delay_peer_drd": _p_value(compared["delay_later_pct:peer-drd"], compared["delay_later_pct:peer-lb"]),
        "longest_busy_s": float(runs.longest_busy_s.max()),
    }
    for policy in POLICIES:
        for measure in ("offloads", "offloads_later", "delay_pct", "delay_later_pct", "detection_overhead",
                        "control_overhead", "overloaded_s", "limited_s", "clients_later"):  # fmt: skip
            metrics[f"{measure}_{policy}"] = float(means.loc[policy, measure])
        metrics[f"delay_later_pct_median_{policy}"] = float(medians.loc[policy, "delay_later_pct"])
    return metrics


def _claims(metrics: Mapping[str, Any]) -> list[Claim]:
    where = "[ePEER §4.5.4]"
    drd, peer_drd, peer_lb = (metrics[f"delay_later_pct_{policy}"] for policy in POLICIES)
    whole = [metrics[f"delay_pct_{policy}"] for policy in POLICIES]
    return [
        shows("fewer-offloads", f"{where}, figure 4-19", "in 97.6 % of runs; more than 90 % wanted",
              metrics["fewer_offloads_pct"], metrics["fewer_offloads_pct"] > 90.0),
        at_least("delay-ratio", f"{where}, figure 4-22", "4.98 % against 274 %: 55 times lower",
                 metrics["delay_ratio_peer_lb_to_drd_lb"], 10.0, "times"),
        shows("peer-drd-between", f"{where}, figure 4-23", "4.98 % < 137 % < 274 %",
              f"{drd:.3g} %, {peer_drd:.3g} %, {peer_lb:.3g} %", drd < peer_drd < peer_lb),
        shows("peer-drd-between-with-distribution", f"{where}, figure 4-23", "4.98 % < 1022 % < 1894 %",
              f"{whole[0]:.3g} %, {whole[1]:.3g} %, {whole[2]:.3g} %", whole[0] < whole[1] < whole[2]),
        below("delay-significant", where, "Wilcoxon p < 2.2e-16", metrics["p_delay"], 1e-10),
        at_most("overhead", f"{where}, table 4-9", "one message a second and broker: 1/25887",
                metrics["detection_overhead_drd-lb"], 1 / 20_000, "of the matching capacity"),
        at_most("busy-is-left", "[ePEER §4.4.4.1]", "at the time-out at the latest", metrics["longest_busy_s"],
                TIMEOUT_S, "s"),
    ]  # fmt: skip


def _sensitivity(rows: Any) -> str:
    lines = []
    for variant, text in VARIANTS.items():
        mine = rows[(rows.kind == "run") & (rows.variant == variant)]
        if not len(mine):
            continue
        found = _metrics(mine, _compared(mine))
        lines.append(
            (text, found["runs"], found["fewer_offloads_pct"],
             *(found[f"offloads_later_{policy}"] for policy in POLICIES),
             *(found[f"delay_later_pct_{policy}"] for policy in POLICIES),
             found["delay_ratio_peer_lb_to_drd_lb"], found["limited_s_drd-lb"], found["limited_s_peer-lb"])
        )  # fmt: skip
    columns = ("choice", "runs", "DRD-LB fewer offloads, % of runs", *(f"offloads {LABELS[one]}" for one in POLICIES),
               *(f"delay % {LABELS[one]}" for one in POLICIES), "PEER-LB ÷ DRD-LB", "nobody could help DRD-LB, s",
               "nobody could help PEER-LB, s")  # fmt: skip
    head = "## What the undisclosed decides\n\nOffloads and delays after the distribution phase, means over runs.\n\n"
    return head + table(columns, lines)


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
    """Figures 4-21, 4-22 and 4-23; the thesis' numbers beside ours."""
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
                axes.annotate(
                    f"ePEER {seeds[name][policy]:g}", (place, seeds[name][policy]), ha="center", va="bottom",
                    fontsize=7.5, color="#222222", xytext=(0, 2), textcoords="offset points",
                )  # fmt: skip
        axes.set(title=title, ylabel=label, xticks=range(3), xticklabels=[LABELS[one] for one in POLICIES])
        axes.set_yscale("log")
        axes.margins(y=0.2)
