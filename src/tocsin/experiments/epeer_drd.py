"""`epeer-drd`: delay-driven offloading beside its two baselines on one site with four edges [ePEER §4.5, figures
4-17–4-23].

Every run is one random site, played three times with the same clients and the same bursts. Choices that the thesis does
not disclose are varied one at a time in a tenth as many runs, and shown in the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.experiments import epeer_drd_figures as drawings
from tocsin.experiments import epeer_variants, figures
from tocsin.experiments.epeer_drd_figures import LABELS, POLICIES, SAMPLED_RUNS
from tocsin.experiments.epeer_variants import (
    BASE,
    interval,
    p_value,
    rank_biserial,
    runs_of,
    significant,
)
from tocsin.experiments.report import (
    Claim,
    ExperimentReport,
    below,
    no_less_than_seed,
    no_more_than_seed,
    reproduces,
    shows,
    with_evidence,
)
from tocsin.experiments.runner import Row
from tocsin.policies.sites.baselines import PEER_DRD, PEER_LB
from tocsin.policies.sites.migration import TIMEOUT_S
from tocsin.policies.sites.offload import DRD_LB, Balancer
from tocsin.policies.sites.types import OffloadParams
from tocsin.sim.kernel import Kernel, seed_from
from tocsin.sim.sites.site import DISTRIBUTED_S, SiteLog, SiteSimulation, SiteTiming
from tocsin.sim.sites.workload import SiteSettings, SiteWorld, draw_bursts, make_site

SETTINGS = SiteSettings(load=0.80, topic_rate_sigma=1.2)
"""Undisclosed: the load and the skew of the topics' rates; see `_NOTES`. 80 % is the highest load at which the mean
broker is not above TH_low after both bursts, 12.5 topics each on average (0.80 · 1.125 = 0.90): there is surplus
capacity, and bursts can overload a broker."""
EACH = "each"
VARIANTS: Mapping[str, str] = {
    BASE: "as stated: a message is matched once per topic and edge (table 4-3)",
    EACH: "matched once per subscription; PEER: an edge for each subscriber, single subscriptions move",
    "load-70": "edges at 70 % at rest",
    "load-75": "edges at 75 % at rest",
    "load-85": "edges at 85 % at rest",
    "uniform": "all topics have the same mean rate (σ = 0)",
    "skew-08": "less skewed topics (σ = 0.8)",
    "single": "PEER moves single subscriptions if they relieve an edge of output",
    "random": "the same, and PEER draws an edge for each subscriber",
    "points": "PEER: 10 points of utilisation instead of 10 %",
    "unsettled": "PEER: moves need not make the pair more even",
    "largest": "PEER-LB: largest subscriptions first instead of at random",
    "poisson": "rates of a second drawn around their means",
    "slow": "connecting takes 0.5 s instead of 0.15 s",
}
FULL = (BASE, EACH)
"""The two readings of matching."""
SUFFIX = {BASE: "", EACH: "-each"}
MATCHING = {BASE: "once per topic and edge", EACH: "once per subscription"}
SAMPLE_S = 2
MEASURES = ["offloads", "offloads_later", "delay_pct", "delay_later_pct", "detection_overhead", "control_overhead"]
MEASURES += ["overloaded_s", "waiting_s", "limited_s", "clients_later"]


def play(variant: str, run: int) -> tuple[SiteWorld, dict[str, SiteLog]]:
    """Simulate one site under each policy."""
    seed = seed_from("epeer-drd", run)
    rng = np.random.default_rng(seed)
    world = make_site(_site(variant), rng)
    bursts = draw_bursts(len(world.topics), rng)
    params = OffloadParams(imbalance_is_relative=variant != "points")
    timing = SiteTiming(connect_s=0.5) if variant == "slow" else SiteTiming()
    logs = {}
    for policy in _policies(variant):
        assign_each = policy.name != "drd-lb" and variant in (EACH, "random")
        simulation = SiteSimulation(
            Kernel(seed), world, bursts, policy, params, timing, assign_each=assign_each, poisson=variant == "poisson"
        )
        logs[policy.name] = simulation.run()
    return world, logs


def _site(variant: str) -> SiteSettings:
    load = {"load-70": 0.70, "load-75": 0.75, "load-85": 0.85}.get(variant, SETTINGS.load)
    sigma = {"uniform": 0.0, "skew-08": 0.8}.get(variant, SETTINGS.topic_rate_sigma)
    return replace(SETTINGS, load=load, topic_rate_sigma=sigma, matched_each=variant == EACH)


def _policies(variant: str) -> list[Balancer]:
    settles, largest, topics = variant != "unsettled", variant == "largest", variant not in (EACH, "single", "random")
    peer_drd = replace(PEER_DRD, settles=settles, whole_topics=topics)
    return [DRD_LB, peer_drd, replace(PEER_LB, settles=settles, whole_topics=topics, largest_first=largest)]


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
    row |= {"overloaded_s": log.overloaded_s, "waiting_s": log.waiting_s, "limited_s": log.limited_s}
    return row | {"longest_busy_s": log.longest_busy_s}


@dataclass(frozen=True)
class Drd:
    name: str = "epeer-drd"
    title: str = "Delay-driven offloading: DRD-LB beside PEER-LB and PEER-DRD (ePEER, figures 4-17 to 4-23)"
    default_runs: int = 120

    def settings(self, runs: int, **options: str) -> Sequence[dict[str, Any]]:
        return epeer_variants.settings(self.name, VARIANTS, runs, options, FULL)

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
        metrics: dict[str, Any] = {}
        claims: list[Claim] = []
        inputs: list[Claim] = []
        files = figures.draw(
            out, "epeer-drd-utilisation", lambda figure: drawings.draw_used(figure, rows), height_in=6.4
        )
        for variant in FULL:
            runs, suffix = runs_of(rows, variant), SUFFIX[variant]
            if not len(runs):
                continue
            compared, own = _compared(surplus(runs)), _metrics(runs)
            metrics |= {f"{name}{suffix}": value for name, value in own.items()}
            claims += [replace(claim, id=claim.id + suffix) for claim in _claims(own, compared, variant)]
            inputs += [replace(claim, id=claim.id + suffix) for claim in _inputs(own)]
            files += figures.draw(out, f"epeer-drd-runs{suffix}", partial(drawings.draw_runs, compared=compared))
            files += figures.draw(out, f"epeer-drd-means{suffix}", partial(drawings.draw_means, metrics=own))
        return ExperimentReport(metrics, claims, files, _sensitivity(rows), _NOTES, inputs)


EXPERIMENT = Drd()

_NOTES = (
    "Undisclosed and therefore chosen: edges at 80 % at rest (rates are drawn, then scaled to it); 1–5 publishers and "
    "1–8 subscribers a topic; a publisher's rate 0.2–1.8 times its topic's mean; all messages 200–1,000 bytes; a hop "
    "of 10 ms and 0.15 s to connect, so moving takes 0.17 s, and more where a queue has to be drained.",
    "The mean rates of topics are log-normal with σ = 1.2, because topics of a warning system are as different as "
    "sensor readings and warnings. With equal means (`uniform`) a burst of 10–15 topics hardly ever overloads an edge, "
    "and no policy has much to do.",
    "PEER moves the subscriptions that can reduce the load of the offloading broker (§3.4). By table 4-3 a "
    "subscription that leaves others of its topic behind reduces neither input nor matching, so all subscriptions of a "
    "topic at an edge move together, and all subscribers of a topic share one random edge. With a random edge for each "
    "subscriber, as §4.5.4 words it, most messages would be matched at two or three edges (`random`).",
    "The other reading: σ_t of table 4-2 is the number of messages exchanged, so a message is matched once per "
    "subscription. Then single subscriptions reduce the load, and random edges cost nothing. It is played in full too; "
    "its claims end in `-each`. The first reading is the base because it reproduces the thesis' delays.",
    "Chapter 4 is about the surplus resource case. A run in which no broker could help an overloaded edge under DRD-LB "
    "belongs to chapter 5: congestion control would act. Claims leave these runs out; there a queue grows for minutes, "
    "and a client that must drain it decides every mean (`…_with_limited_runs`).",
    "Unexpected delay is the time from the notification to the confirmation. It scales all three policies alike. A "
    "queue that a client must drain makes it long, so means are far above medians.",
    "PEER's 10 % is read as a share of the larger load, in any of the three metrics.",
    "As in the thesis, PEER's offloads while clients register are left out unless stated otherwise; DRD-LB's are not.",
    "PEER as chapter 3 words it (`unsettled`) moves subscriptions back and forth without end; ours moves one only if "
    "it makes the pair more even or ends an overload.",
    "Intervals are bootstrap intervals over runs.",
)


def _compared(runs: Any) -> Any:
    """One row per run, a column per measure and policy."""
    wide = runs.pivot(index="run", columns="policy", values=list(MEASURES[:4]))
    wide.columns = [f"{measure}:{policy}" for measure, policy in wide.columns]
    return wide.astype(float)


def surplus(runs: Any) -> Any:
    """The runs of the surplus resource case: under DRD-LB, no edge was without help. All runs if there is none."""
    limited = runs[(runs.policy == "drd-lb") & (runs.limited_s > 0)].run
    kept = runs[~runs.run.isin(limited)]
    return kept if len(kept) else runs


def _metrics(all_runs: Any) -> dict[str, Any]:
    runs = surplus(all_runs)
    compared = _compared(runs)
    means = runs.groupby("policy").mean(numeric_only=True)
    medians = runs.groupby("policy").median(numeric_only=True)
    drd, peer = compared["offloads:drd-lb"], compared["offloads_later:peer-lb"]
    drd_delay, peer_delay = compared["delay_pct:drd-lb"], compared["delay_later_pct:peer-lb"]
    own = float(means.loc["drd-lb", "delay_pct"])
    metrics: dict[str, Any] = {
        "runs": len(compared),
        "limited_runs": len(_compared(all_runs)) - len(compared),
        "fewer_offloads_pct": 100 * float((drd < peer).mean()),
        "equal_offloads_pct": 100 * float((drd == peer).mean()),
        "more_offloads_pct": 100 * float((drd > peer).mean()),
        "more_delay_pct_of_runs": 100 * float((drd_delay > peer_delay).mean()),
        "delay_ratio_peer_lb_to_drd_lb": float(means.loc["peer-lb", "delay_later_pct"]) / own if own else None,
        "p_offloads": p_value(drd, peer),
        "p_delay": p_value(drd_delay, peer_delay),
        "p_delay_peer_drd": p_value(compared["delay_later_pct:peer-drd"], peer_delay),
        "effect_offloads": rank_biserial(drd, peer),
        "effect_delay": rank_biserial(drd_delay, peer_delay),
        "effect_delay_peer_drd": rank_biserial(compared["delay_later_pct:peer-drd"], peer_delay),
        "idle_pct_of_runs_drd-lb": 100 * float((drd == 0).mean()),
        "longest_busy_s": float(runs.longest_busy_s.max()),
    }
    for policy in POLICIES:
        for measure in MEASURES:
            metrics[f"{measure}_{policy}"] = float(means.loc[policy, measure])
        metrics[f"delay_later_pct_median_{policy}"] = float(medians.loc[policy, "delay_later_pct"])
        of_all = all_runs[all_runs.policy == policy].delay_later_pct
        metrics[f"delay_later_pct_with_limited_runs_{policy}"] = float(of_all.mean())
    return metrics


def _claims(metrics: Mapping[str, Any], compared: Any, variant: str) -> list[Claim]:
    where, between = "[ePEER §4.5.4]", "4.98 % < 137 % < 274 %"
    later = [metrics[f"delay_later_pct_{policy}"] for policy in POLICIES]
    whole = [metrics[f"delay_pct_{policy}"] for policy in POLICIES]
    world = f"edges at 80 %; log-normal rates of topics; matching {MATCHING[variant]}"
    reading, scale = f"PEER moves only what makes a pair more even; {world}", f"moving takes 0.17 s; {world}"
    idle, still = "DRD-LB never offloaded", "PEER-LB never offloaded after the distribution"
    control = [metrics[f"control_overhead_{policy}"] for policy in ("drd-lb", "peer-lb")]
    offloads = [metrics[f"offloads_later_{policy}"] for policy in ("peer-drd", "peer-lb")]
    drd, peer = compared["offloads:drd-lb"], compared["offloads_later:peer-lb"]
    delay = {policy: compared[f"delay_later_pct:{policy}"] for policy in POLICIES}
    own, ours = compared["delay_pct:drd-lb"], delay["peer-lb"]
    # A run without an offload cannot show that an offload ends in time.
    busy_s = metrics["longest_busy_s"] or None

    def share(of_runs: Any) -> tuple[float, float] | None:
        return interval(lambda mean: 100 * mean, of_runs)

    def ratio(above: Any, below_: Any) -> tuple[float, float] | None:
        return interval(lambda a, b: a / b, above, below_)

    def mean(column: str) -> tuple[float, float] | None:
        return interval(lambda value: value, compared[column])

    return [
        with_evidence(
            no_less_than_seed("fewer-offloads", f"{where}, figure 4-19", "DRD-LB: fewer offloads in 97.6 % of runs",
                              metrics["fewer_offloads_pct"], 97.6, "% of runs", decided_by=reading),
            share(drd < peer), metrics["effect_offloads"]),
        with_evidence(
            no_more_than_seed("more-offloads", f"{where}, figure 4-19", "DRD-LB: more offloads in 1.4 % of runs",
                              metrics["more_offloads_pct"], 1.4, "% of runs", decided_by=reading), share(drd > peer)),
        with_evidence(
            no_more_than_seed("more-delay", f"{where}, figure 4-20", "DRD-LB: more delay in 3 of 500 runs",
                              metrics["more_delay_pct_of_runs"], 0.6, "% of runs", decided_by=reading),
            share(own > ours)),
        with_evidence(
            no_more_than_seed("drd-lb-delay", f"{where}, figure 4-22", "DRD-LB: 4.98 %",
                              whole[0] if metrics["offloads_drd-lb"] else None, 4.98, "%", decided_by=scale,
                              missing=idle), mean("delay_pct:drd-lb")),
        *(
            with_evidence(
                reproduces(f"{policy}-delay{kind}", f"{where}, figure 4-23", f"{LABELS[policy]}: {thesis:g} %", value,
                           thesis, "%", decided_by=scale), mean(f"{column}:{policy}"))
            for policy, kind, thesis, value, column in (
                ("peer-drd", "", 137.0, later[1], "delay_later_pct"),
                ("peer-lb", "", 274.0, later[2], "delay_later_pct"),
                ("peer-drd", "-with-distribution", 1_022.0, whole[1], "delay_pct"),
                ("peer-lb", "-with-distribution", 1_894.0, whole[2], "delay_pct"),
            )
        ),
        with_evidence(
            no_less_than_seed("delay-ratio", f"{where}, figure 4-22", "4.98 % against 274 %: 55 times lower",
                              metrics["delay_ratio_peer_lb_to_drd_lb"], 274 / 4.98, "times", decided_by=reading,
                              missing=idle), ratio(ours, own), metrics["effect_delay"]),
        with_evidence(
            no_more_than_seed("peer-drd-lowers-delay", f"{where}, figure 4-23", "137 % against 274 %",
                              later[1] / later[2] if later[2] else None, 137 / 274, "times PEER-LB's delay",
                              decided_by=reading, missing=still),
            ratio(delay["peer-drd"], delay["peer-lb"]), metrics["effect_delay_peer_drd"]),
        _rising("peer-drd-between", between, later, reading),
        _rising("peer-drd-between-with-distribution", "4.98 % < 1022 % < 1894 %", whole, reading),
        with_evidence(
            reproduces("peer-drd-as-many-offloads", where, "PEER-DRD: the number of offloads is not improved",
                       offloads[0] / offloads[1] if offloads[1] else None, 1.0, "times PEER-LB's offloads",
                       decided_by=reading, missing=still), ratio(compared["offloads_later:peer-drd"], peer)),
        with_evidence(
            reproduces("peer-lb-offloads", f"{where}, figure 4-18", "PEER-LB: 18 after distribution, in its example",
                       offloads[1], 18.0, "offloads a run", decided_by=reading), mean("offloads_later:peer-lb")),
        with_evidence(
            reproduces("peer-lb-offloads-with-distribution", f"{where}, figure 4-18", "PEER-LB: 220, in its example",
                       metrics["offloads_peer-lb"], 220.0, "offloads a run", decided_by=reading),
            mean("offloads:peer-lb")),
        significant("delay-significant", where, metrics["p_delay"], metrics["runs"], decided_by=reading,
                    effect=metrics["effect_delay"]),
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
    columns = {
        "runs": "runs",
        "limited runs, left out": "limited_runs",
        "DRD-LB fewer offloads, % of runs": "fewer_offloads_pct",
    }
    columns |= {f"offloads {label}": f"offloads_later_{policy}" for policy, label in LABELS.items()}
    columns |= {f"delay % {label}": f"delay_later_pct_{policy}" for policy, label in LABELS.items()}
    columns["PEER-LB ÷ DRD-LB"] = "delay_ratio_peer_lb_to_drd_lb"
    columns |= {f"median delay % {label}": f"delay_later_pct_median_{policy}" for policy, label in LABELS.items()}
    columns["PEER-LB without help, s"] = "limited_s_peer-lb"
    columns["DRD-LB idle, % of runs"] = "idle_pct_of_runs_drd-lb"
    note = "Offloads and delays after the distribution phase, means over runs unless stated otherwise."
    return epeer_variants.sensitivity(rows, VARIANTS, note, columns, _metrics)
