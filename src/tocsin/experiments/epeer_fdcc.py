"""`epeer-fdcc`: feedback driven congestion control when bandwidth breaks down [ePEER §5.3, figures 5-3–5-9].

One random site per run: at 301 s each broker is left with 0.1–0.4 of its bandwidth, at 900 s it has all of it again.
Loads are compared with the same site without congestion control, QoE with the time before the damage. Choices that the
thesis does not disclose are varied one at a time in a tenth as many runs.
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
from tocsin.experiments.report import Claim, ExperimentReport, at_most, equals, no_less_than_seed, reproduces
from tocsin.experiments.runner import Row
from tocsin.policies.sites.congestion import CongestionParams
from tocsin.sim.kernel import Kernel, seed_from
from tocsin.sim.sites.audience import AudienceSettings, draw_audience
from tocsin.sim.sites.congestion import DamagedSite, DamageLog, Second
from tocsin.sim.sites.workload import Quality, SiteSettings, SiteWorld, make_site

LOAD = 0.40
"""Undisclosed: output bandwidth in use before the damage. The lowest load at which every factor of 0.1–0.4 overloads a
broker; in the thesis' example all brokers are overloaded."""
SETTINGS = SiteSettings(load=LOAD, load_is_output=True, edge_mbps=(300.0, 500.0), size_bytes=(200.0, 2_000.0))
VARIANTS: Mapping[str, str] = {
    BASE: "as stated",
    "load-20": "20 % of the output bandwidth in use at rest",
    "load-60": "60 % in use at rest",
    "classes": "useless publishers get the lowest class, 10 messages/s",
    "one-budget": "topics selected under the sum of all edges' bandwidth",
    "overactive": "useless publishers publish twice as fast",
    "vocabulary-8": "8 keywords a topic: messages are worth more",
    "vocabulary-14": "14 keywords a topic: messages are worth less",
    "rates-up": "class limits twice as high",
}
METRICS = ("Ui", "Uo", "Um")
BEFORE, DURING = slice(200, 300), slice(310, 899)
"""Seconds 201–300, and 311–899: the first ten seconds after the damage are left out."""
BACK_BY_S = 910.0
"""Bandwidth is back at 900 s; limits are revised every 5 s, so two revisions later none may be left."""
READINGS = {
    "heard": "subscribers that receive any publisher",
    "everybody": "all; without a publisher counts as 0",
    "by_message": "per message instead of per publisher",
}
THESIS_LESS_PCT = {"Uo": 19.2, "Ui": 15.7, "Um": 16.1}


def play(variant: str, run: int) -> tuple[SiteWorld, DamageLog]:
    seed = seed_from("epeer-fdcc", run)
    rng = np.random.default_rng(seed)
    load = {"load-20": 0.20, "load-60": 0.60}.get(variant, LOAD)
    world = make_site(replace(SETTINGS, load=load), rng)
    vocabulary = {"vocabulary-8": 8, "vocabulary-14": 14}.get(variant, AudienceSettings().vocabulary)
    audience = draw_audience(world, AudienceSettings(vocabulary=vocabulary), rng)
    factors, head_factor = rng.uniform(0.1, 0.4, len(world.edges)), float(rng.uniform(0.1, 0.4))
    if variant == "overactive":
        world = _with_overactive(world, audience.quality)
    params = CongestionParams()
    if variant == "classes":
        params = replace(params, useless_below=0.0)
    if variant == "rates-up":
        params = replace(params, class_rates_per_s=tuple(2 * rate for rate in params.class_rates_per_s))
    one_budget = variant == "one-budget"
    return world, DamagedSite(Kernel(seed), world, audience, factors, head_factor, params, one_budget=one_budget).run()


def _with_overactive(world: SiteWorld, quality: Sequence[Quality]) -> SiteWorld:
    """Useless publishers at twice the rate; all rates are scaled back to the same output load."""
    factor = np.array([2.0 if publisher is Quality.BAD else 1.0 for publisher in quality])
    ends = np.cumsum([len(rates) for rates in world.rates_per_s])[:-1]
    changed = [rates * factors for rates, factors in zip(world.rates_per_s, np.split(factor, ends), strict=True)]
    weight = world.size_bytes * world.audience
    before = float((world.topic_rate_per_s * weight).sum())
    scale = before / float((np.array([rates.sum() for rates in changed]) * weight).sum())
    return replace(world, rates_per_s=tuple(rates * scale for rates in changed))


def _row(variant: str, run: int, world: SiteWorld, log: DamageLog) -> Row:
    during = log.seconds[DURING]
    used = np.array([second.used for second in during])
    offered = np.array([second.offered for second in during])
    end = log.seconds[-1]
    row: Row = {"kind": "run", "variant": variant, "run": run, "limited_from_s": log.limited_from_s}
    row |= {"recovered_s": log.recovered_s, "offloads": log.offloads}
    row["stopped_topics"] = log.stopped_topics / max(log.revisions, 1)
    row["notifications_per_s"] = log.changes / 600
    row["feedback_overhead"] = float(world.audience.sum()) / float(world.matching_per_s.sum())
    row["served"] = float(np.mean([second.served for second in during]))
    row["highest_uo"] = float(used[:, :, 1].max())
    row["difference_at_end"] = float(np.abs(end.used - end.offered).max())
    for at, metric in enumerate(METRICS):
        row[f"{metric}_without"] = float(offered.mean(axis=(0, 1))[at])
        row[f"{metric}_carried"] = float(np.minimum(offered, 1.0).mean(axis=(0, 1))[at])
        row[f"{metric}_with"] = float(used.mean(axis=(0, 1))[at])
    for reading in READINGS:
        row[f"{reading}_before"] = _mean(log.seconds[BEFORE], reading)
        row[f"{reading}_after"] = _mean(during, reading)
    return row


def _mean(seconds: Sequence[Second], reading: str) -> float | None:
    values = [value for second in seconds if (value := getattr(second, reading)) is not None]
    return float(np.mean(values)) if values else None


@dataclass(frozen=True)
class Fdcc:
    name: str = "epeer-fdcc"
    title: str = "Feedback driven congestion control when bandwidth breaks down (ePEER, figures 5-3 to 5-9)"
    default_runs: int = 100

    def settings(self, runs: int, **options: str) -> Sequence[dict[str, Any]]:
        return epeer_variants.settings(self.name, VARIANTS, runs, options)

    def run(self, setting: Mapping[str, Any]) -> list[Row]:
        variant, run = str(setting["variant"]), int(setting["run"])
        world, log = play(variant, run)
        rows = [_row(variant, run, world, log)]
        if variant == BASE and run == 0:
            rows += [
                {"kind": "sample", "at_s": at + 1, "qoe": second.heard}
                | {
                    f"{metric}_{edge}": float(second.used[number, place])
                    for number, edge in enumerate(world.edges)
                    for place, metric in enumerate(METRICS)
                }
                for at, second in enumerate(log.seconds)
            ]
        return rows

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        rows = table_.to_pandas()
        runs = runs_of(rows, BASE)
        metrics = _metrics(runs)
        files = [
            *figures.draw(out, "epeer-fdcc-run", lambda figure: _draw_run(figure, rows), height_in=7.6),
            *figures.draw(out, "epeer-fdcc-qoe", lambda figure: _draw_qoe(figure, runs, metrics)),
        ]
        return ExperimentReport(metrics, _claims(metrics), files, _sensitivity(rows), _NOTES, _inputs(metrics))


EXPERIMENT = Fdcc()

_NOTES = (
    "Undisclosed and therefore chosen: 40 % of the output bandwidth in use at rest; 1–5 publishers and 1–8 subscribers "
    "a topic; 10 keywords a topic, of which a subscriber is interested in 4–8 and a message has 4–8, half of them off "
    "the topic for medium publishers and all for useless ones.",
    "Load reduction compares the same seconds with and without congestion control. `without` is the offered load, "
    "above 100 % where brokers are overloaded; `carried` is cut at 100 %. The claims use `carried`, the stricter one.",
    "QoE (equations 5–7) has no value for a subscriber that receives no publisher. The claim leaves those out; the "
    "table below also counts them as 0, and averages over messages instead of publishers.",
    "Equation 6 weighs a publisher that sends ten messages a second like one that sends a thousand, so limiting a "
    "useless publisher to 10/s as in §5.2.1 hardly raises QoE; stopping it does. Ours may send one message in ten "
    "seconds. The table shows both.",
    "Feedback arrives each second; limits are set as soon as no broker can help an overloaded one, and are revised "
    "every 5 s.",
)


def _metrics(runs: Any) -> dict[str, Any]:
    metrics: dict[str, Any] = {"runs": len(runs)}
    for metric in METRICS:
        for against in ("carried", "without"):
            less = 1.0 - runs[f"{metric}_with"] / runs[f"{metric}_{against}"]
            metrics[f"{metric}_reduction_pct_of_{against}"] = 100 * float(less.mean())
        for which in ("without", "carried", "with"):
            metrics[f"{metric}_{which}"] = float(runs[f"{metric}_{which}"].mean())
        metrics[f"p_{metric}"] = p_value(runs[f"{metric}_with"], runs[f"{metric}_carried"])
    for reading in READINGS:
        before, after = runs[f"{reading}_before"].astype(float), runs[f"{reading}_after"].astype(float)
        metrics[f"qoe_before_{reading}"], metrics[f"qoe_after_{reading}"] = float(before.mean()), float(after.mean())
        metrics[f"qoe_gain_pct_{reading}"] = 100 * float(after.mean() / before.mean() - 1.0)
        metrics[f"p_qoe_{reading}"] = p_value(before, after)
    recovered, limited = runs.recovered_s.dropna(), runs[runs.limited_from_s.notna()]
    metrics |= {
        "qoe_gained_pct_of_runs": 100 * float((runs.heard_after > runs.heard_before).mean()),
        "limited_pct_of_runs": 100 * float(runs.limited_from_s.notna().mean()),
        "limited_runs": len(limited),
        "limited_runs_not_back_in_time": int((~(limited.recovered_s <= BACK_BY_S)).sum()),
        "recovered_at_s_latest": float(recovered.max()) if len(recovered) else None,
        "difference_at_end": float(runs.difference_at_end.max()),
        "highest_uo_with_mean": float(runs.highest_uo.mean()),
        "highest_uo_with_worst": float(runs.highest_uo.max()),
        "served_pct_of_subscribers": 100 * float(runs.served.mean()),
        "stopped_topics": float(runs.stopped_topics.mean()),
        "notifications_per_s": float(runs.notifications_per_s.mean()),
        "feedback_overhead": float(runs.feedback_overhead.mean()),
    }
    return metrics


def _claims(metrics: Mapping[str, Any]) -> list[Claim]:
    where, beyond, unknown = "[ePEER §5.3.4]", "beyond the thesis", "not measured there"
    back, load = "back to its original state after 900 s", "40 % of the output bandwidth in use at rest"
    less = {metric: metrics[f"{metric}_reduction_pct_of_carried"] for metric in METRICS}
    reductions = [
        no_less_than_seed(f"{metric.lower()}-reduced", f"{where}, figure {figure}", f"{thesis} % less", less[metric],
                          thesis, "% less than was carried", decided_by=load)
        for (metric, thesis), figure in zip(THESIS_LESS_PCT.items(), ("5-3", "5-5", "5-4"), strict=True)
    ]  # fmt: skip
    worst_p = max(metrics[f"p_{metric}"] for metric in METRICS)
    limited, runs = metrics["limited_runs"], metrics["runs"]
    unlimited = "no run had to limit a publisher"
    late = metrics["limited_runs_not_back_in_time"] if limited else None
    in_time = f"in time means until {BACK_BY_S:g} s: two revisions of the limits after the bandwidth is back"
    stopped, words = "a useless publisher is stopped but for a probe", "10 keywords a topic"
    return [
        *reductions,
        significant("load-significant", where, worst_p, runs, "in the least clear metric", decided_by=load),
        no_less_than_seed("qoe-raised", f"{where}, figure 5-9", "0.2671 to 0.3348: 25.4 % more",
                          metrics["qoe_gain_pct_heard"], 25.4, "% more", decided_by=stopped),
        no_less_than_seed("qoe-after", f"{where}, figure 5-9", "0.3348", metrics["qoe_after_heard"], 0.3348,
                          decided_by=f"{stopped}; {words}"),
        significant("qoe-significant", where, metrics["p_qoe_heard"], runs, decided_by=stopped),
        equals("recovers", "[ePEER §5.3.1.2]", back, late, 0, decided_by=in_time, missing=unlimited),
        at_most("nothing-left-limited", beyond, unknown, metrics["difference_at_end"] if limited else None, 1e-9,
                "utilisation missing at the end", decided_by="1e-9 counts as rounding", missing=unlimited),
        at_most("overload-ends", beyond, unknown, metrics["highest_uo_with_worst"] if limited else None, 1.0,
                "Uo at the worst edge, run and second", decided_by=load, missing=unlimited),
    ]  # fmt: skip


def _inputs(metrics: Mapping[str, Any]) -> list[Claim]:
    where, words = "[ePEER §5.3.4]", "10 keywords a topic, of which a message has 4–8"
    people = "1–8 subscribers a topic; the capacity of all edges, where the thesis divides by one broker's"
    feedback = "one message a second and subscriber: 435/26015 in its example"
    return [
        reproduces("qoe-before", f"{where}, figure 5-9", "0.2671", metrics["qoe_before_heard"], 0.2671,
                   decided_by=words),
        reproduces("feedback-overhead", where, feedback, metrics["feedback_overhead"], 435 / 26_015,
                   "of the matching capacity", decided_by=people),
    ]  # fmt: skip


def _sensitivity(rows: Any) -> str:
    columns = {"runs": "runs"}
    columns |= {f"{metric} less, % of carried": f"{metric}_reduction_pct_of_carried" for metric in METRICS}
    columns |= {f"{metric} less, % of offered": f"{metric}_reduction_pct_of_without" for metric in METRICS}
    columns["QoE before"] = "qoe_before_heard"
    columns |= {f"QoE gain %, {text}": f"qoe_gain_pct_{reading}" for reading, text in READINGS.items()}
    columns |= {"subscribers served %": "served_pct_of_subscribers", "highest Uo": "highest_uo_with_mean"}
    return epeer_variants.sensitivity(rows, VARIANTS, "Means over runs.", columns, _metrics)


def _draw_run(figure: Figure, rows: Any) -> None:
    """Figures 5-3 to 5-6: one run."""
    samples = rows[rows.kind == "sample"]
    grid = figure.subplots(4, 1, sharex=True)
    titles = {"Uo": "Output bandwidth", "Um": "Matching", "Ui": "Input bandwidth"}
    for axes, (metric, title) in zip(grid, titles.items(), strict=False):
        for number, colour in enumerate(EDGE_COLOURS):
            used = 100 * samples[f"{metric}_B{number}"]
            axes.plot(samples.at_s, used, color=colour, linewidth=1.0, label=f"B{number}")
        axes.set(title=f"{title} in use", ylabel="%")
        # The second between the damage and the first limits is off the scale: it would dwarf all others.
        steady = samples[(samples.at_s < 300) | (samples.at_s > 310)][[f"{metric}_B{n}" for n in range(4)]]
        axes.set_ylim(0, 115 * float(steady.max().max()))
    grid[3].plot(samples.at_s, samples.qoe, color="#222222", linewidth=1.0)
    grid[3].set(title="Mean QoE of subscribers that receive any publisher", ylabel="QoE")
    grid[3].set(xlabel="second of the run", xlim=(0, 1_000))
    for axes in grid:
        for at_s in (301, 900):
            axes.axvline(at_s, color=figures.GREY, linestyle=":", linewidth=1.0)
    figures.legend_below(figure, grid[0])


def _draw_qoe(figure: Figure, runs: Any, metrics: Mapping[str, Any]) -> None:
    """Figures 5-7 to 5-9, and the load reductions."""
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.2, 1, 1))
    ordered = runs.sort_values("heard_before")
    place = np.arange(1, len(ordered) + 1)
    left.plot(place, ordered.heard_before, color=figures.ORANGE, label="before the damage")
    left.plot(place, ordered.heard_after, color=figures.BLUE, linewidth=0.9, label="under FDCC")
    left.set(title="QoE, run by run", xlabel="runs, sorted", ylabel="QoE")
    left.set_ylim(0, None)
    left.legend(loc="lower right")
    middle.hist(100 * (runs.heard_after / runs.heard_before - 1.0), bins=20, color=figures.BLUE)
    middle.axvline(25.4, color="#222222", linestyle="--", linewidth=1.0)
    style: Any = {"fontsize": 7.5, "ha": "right", "va": "top", "rotation": 90}
    style |= {"xycoords": ("data", "axes fraction"), "xytext": (-2, 0), "textcoords": "offset points"}
    middle.annotate("ePEER mean 25.4 %", (25.4, 0.97), **style)
    middle.set(title="QoE gained", xlabel="%", ylabel="runs")
    middle.set_xlim(0, None)
    for at, (metric, thesis) in enumerate(THESIS_LESS_PCT.items()):
        for shift, against, colour in ((-0.18, "carried", figures.BLUE), (0.18, "without", figures.SKY)):
            value = metrics[f"{metric}_reduction_pct_of_{against}"]
            label = {"carried": "of the carried load", "without": "of the offered load"}[against] if at == 0 else None
            right.bar(at + shift, value, width=0.34, color=colour, label=label)
        label = "ePEER" if at == 0 else None
        right.plot([at - 0.4, at + 0.4], 2 * [thesis], color="#222222", linestyle="--", linewidth=1.2, label=label)
    right.set(title="Load less by", ylabel="%", xticks=range(3), xticklabels=list(THESIS_LESS_PCT))
    right.margins(y=0.35)
    right.legend(loc="upper right", fontsize=7)
