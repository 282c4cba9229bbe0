"""`epeer-fdcc`: feedback driven congestion control when bandwidth breaks down [ePEER §5.3, figures 5-3–5-9].

One random site per run: at 301 s each broker loses bandwidth, at 900 s it has all of it again. The thesis contradicts
itself on how much is left: half (§5.3.1.1) or 0.1–0.4 of it (§5.3.1.2). Both readings are played in full. Loads are
compared with the same site without congestion control, QoE with the time before the damage, and utility with the same
cut made blindly. Choices that the thesis does not disclose are varied one at a time in a tenth as many runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.experiments import epeer_fdcc_figures as drawings
from tocsin.experiments import epeer_variants, figures
from tocsin.experiments.epeer_fdcc_figures import HALF, THESIS_LESS_PCT
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
    at_least,
    at_most,
    equals,
    no_less_than_seed,
    reproduces,
    with_evidence,
)
from tocsin.experiments.runner import Row
from tocsin.policies.sites.congestion_types import CongestionParams
from tocsin.policies.sites.types import Metric
from tocsin.sim.kernel import Kernel, seed_from
from tocsin.sim.sites.audience import AudienceSettings, draw_audience
from tocsin.sim.sites.congestion import DamagedSite, DamageLog, Second
from tocsin.sim.sites.workload import Quality, SiteSettings, SiteWorld, make_site

LOADS = {BASE: 0.40, HALF: 0.50}
"""Undisclosed: output bandwidth in use before the damage. The lowest load, in tenths, at which every share of bandwidth
that a reading leaves overloads its broker; in the thesis' example all brokers are overloaded."""
SETTINGS = SiteSettings(load=LOADS[BASE], load_is_output=True, edge_mbps=(300.0, 500.0), size_bytes=(200.0, 2_000.0))
VARIANTS: Mapping[str, str] = {
    BASE: "as stated: 0.1–0.4 of the bandwidth is left (§5.3.1.2), 40 % in use at rest",
    HALF: "half of the bandwidth is left (§5.3.1.1), 50 % in use at rest",
    "half-70": "half of the bandwidth is left, 70 % in use at rest",
    "load-20": "20 % of the output bandwidth in use at rest",
    "load-60": "60 % in use at rest",
    "classes": "useless publishers get the lowest class, 10 messages/s",
    "ceilings": "the rate of a class is a ceiling, as in the thesis",
    "scaled-classes": "class rates scaled so that 500 messages/s is the mean rate of a publisher",
    "matching": "importance per matched message, the thesis' example, instead of per byte",
    "one-budget": "topics selected under the sum of all edges' bandwidth",
    "unheard": "0–8 subscribers a topic: some publishers have none",
    "overactive": "useless publishers publish twice as fast",
    "vocabulary-8": "8 keywords a topic: messages are worth more",
    "vocabulary-14": "14 keywords a topic: messages are worth less",
}
FULL = (BASE, HALF)
"""The two readings of the damage."""
SUFFIX = {BASE: "", HALF: "-half"}
METRICS = ("Ui", "Uo", "Um")
BEFORE, DURING = slice(200, 300), slice(310, 899)
"""Seconds 201–300, and 311–899: the first ten seconds after the damage are left out."""
BACK_BY_S = 910.0
"""Bandwidth is back at 900 s; limits are revised every 5 s, so two revisions later none may be left."""
READINGS = {
    "qoe_all": "all subscribers; without a publisher counts as 0",
    "qoe_heard": "subscribers that receive any publisher",
    "qoe_by_message": "all, per message instead of per publisher",
}


def play(variant: str, run: int) -> tuple[SiteWorld, DamageLog]:
    seed = seed_from("epeer-fdcc", run)
    rng = np.random.default_rng(seed)
    loads = LOADS | {"load-20": 0.20, "load-60": 0.60, "half-70": 0.70}
    fewest = 0 if variant == "unheard" else SETTINGS.subscribers[0]
    load, subscribers = loads.get(variant, LOADS[BASE]), (fewest, SETTINGS.subscribers[1])
    world = make_site(replace(SETTINGS, load=load, subscribers=subscribers), rng)
    vocabulary = {"vocabulary-8": 8, "vocabulary-14": 14}.get(variant, AudienceSettings().vocabulary)
    audience = draw_audience(world, AudienceSettings(vocabulary=vocabulary), rng)
    factors, head_factor = rng.uniform(0.1, 0.4, len(world.edges)), float(rng.uniform(0.1, 0.4))
    if variant in (HALF, "half-70"):
        factors, head_factor = np.full(len(world.edges), 0.5), 0.5
    if variant == "overactive":
        world = _with_overactive(world, audience.quality)
    params, one_budget = _params(variant, world), variant == "one-budget"
    return world, DamagedSite(Kernel(seed), world, audience, factors, head_factor, params, one_budget=one_budget).run()


def _params(variant: str, world: SiteWorld) -> CongestionParams:
    params = CongestionParams()
    match variant:
        case "classes":
            return replace(params, useless_below=0.0)
        case "ceilings":
            return replace(params, shares_the_rest=False)
        case "matching":
            return replace(params, resource=Metric.MATCHING)
        case "scaled-classes":
            scale = float(np.concatenate(world.rates_per_s).mean()) / params.class_rates_per_s[2]
            return replace(params, class_rates_per_s=tuple(scale * rate for rate in params.class_rates_per_s))
    return params


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
    row["above_class_2"] = float((np.concatenate(world.rates_per_s) > CongestionParams().class_rates_per_s[1]).mean())
    row["served"] = float(np.mean([second.served for second in during]))
    row["highest_used"] = float(used.max())
    row["difference_at_end"] = float(np.abs(end.used - end.offered).max())
    for at, metric in enumerate(METRICS):
        row[f"{metric}_without"] = float(offered.mean(axis=(0, 1))[at])
        row[f"{metric}_carried"] = float(np.minimum(offered, 1.0).mean(axis=(0, 1))[at])
        row[f"{metric}_with"] = float(used.mean(axis=(0, 1))[at])
    for reading in READINGS:
        row[f"{reading}_before"] = _mean(log.seconds[BEFORE], reading)
        row[f"{reading}_after"] = _mean(during, reading)
    sent_kb = sum(second.sent_bytes for second in during) / 1_000
    row["utility_per_kb"] = sum(second.utility for second in during) / sent_kb
    row["blind_per_kb"] = sum(second.blind_utility for second in during) / sent_kb
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
        return epeer_variants.settings(self.name, VARIANTS, runs, options, FULL)

    def run(self, setting: Mapping[str, Any]) -> list[Row]:
        variant, run = str(setting["variant"]), int(setting["run"])
        world, log = play(variant, run)
        rows = [_row(variant, run, world, log)]
        if variant in FULL and run == 0:
            rows += [
                {"kind": "sample", "variant": variant, "at_s": at + 1, "qoe": second.qoe_all}
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
        played = {variant: runs for variant in FULL if len(runs := runs_of(rows, variant))}
        metrics: dict[str, Any] = {}
        claims: list[Claim] = []
        inputs: list[Claim] = []
        files: list[Path] = []
        for variant, runs in played.items():
            own, suffix = _metrics(runs), SUFFIX[variant]
            metrics |= {f"{name}{suffix}": value for name, value in own.items()}
            claims += [replace(claim, id=claim.id + suffix) for claim in _claims(own, runs, variant)]
            inputs += [replace(claim, id=claim.id + suffix) for claim in _inputs(own)]
            samples = rows[(rows.kind == "sample") & (rows.variant == variant)]
            draw_run = partial(drawings.draw_run, samples=samples)
            files += figures.draw(out, f"epeer-fdcc-run{suffix}", draw_run, height_in=7.6)
            files += figures.draw(out, f"epeer-fdcc-qoe{suffix}", partial(drawings.draw_qoe, runs=runs, metrics=own))
        files += figures.draw(out, "epeer-fdcc-utility", lambda figure: drawings.draw_utility(figure, played))
        return ExperimentReport(metrics, claims, files, _sensitivity(rows), _NOTES, inputs)


EXPERIMENT = Fdcc()

_NOTES = (
    "The thesis contradicts itself on the damage: all brokers lose half of their bandwidth (§5.3.1.1), or keep 0.1–0.4 "
    "of it (§5.3.1.2). Both were played; the claims of the first end in `-half`.",
    "Undisclosed and therefore chosen: 40 % (0.1–0.4) and 50 % (half) of the output bandwidth in use at rest; 1–5 "
    "publishers and 1–8 subscribers a topic; 10 keywords a topic, of which a subscriber is interested in 4–8 and a "
    "message has 4–8, half of them off the topic for medium publishers and all for useless ones.",
    "At these rates a publisher sends some 50 messages a second, so the classes of 200–2,000 messages/s never bind: "
    "only the lowest class and the selection of topics do. `scaled-classes` shows classes that bind.",
    "Load reduction compares the same seconds with and without congestion control. `without` is the offered load, "
    "above 100 % where brokers are overloaded; `carried` is cut at 100 %. The claims use `carried`, the stricter one.",
    "QoE (equations 5–7) divides by the number of all subscribers, so a subscriber that receives no publisher counts "
    "as 0. The table below also leaves those out, and averages over messages instead of publishers.",
    "Equation 6 weighs a publisher that sends ten messages a second like one that sends a thousand. So QoE rises if "
    "useless publishers are stopped, and not if they are limited to 10/s as in §5.2.1 (`classes`); and a blind cut, "
    "which leaves each publisher a share of its rate, leaves QoE as it was before the damage.",
    "Utility per byte does not have that weakness. The blind cut sends the same bytes from each edge, and cuts all "
    "publishers of the edge by the same share.",
    "Feedback arrives each second; limits are set as soon as no broker can help an overloaded one, and are revised "
    "every 5 s.",
)


def _metrics(runs: Any) -> dict[str, Any]:
    metrics: dict[str, Any] = {"runs": len(runs)}
    for metric in METRICS:
        for against in ("carried", "without"):
            metrics[f"{metric}_reduction_pct_of_{against}"] = float(_less_pct(runs, metric, against).mean())
        for which in ("without", "carried", "with"):
            metrics[f"{metric}_{which}"] = float(runs[f"{metric}_{which}"].mean())
        metrics[f"p_{metric}"] = p_value(runs[f"{metric}_with"], runs[f"{metric}_carried"])
        metrics[f"effect_{metric}"] = rank_biserial(runs[f"{metric}_with"], runs[f"{metric}_carried"])
    for reading in READINGS:
        before, after = runs[f"{reading}_before"].astype(float), runs[f"{reading}_after"].astype(float)
        metrics[f"{reading}_before"], metrics[f"{reading}_after"] = float(before.mean()), float(after.mean())
        metrics[f"{reading}_gain_pct"] = 100 * float(after.mean() / before.mean() - 1.0)
        metrics[f"p_{reading}"] = p_value(before, after)
        metrics[f"effect_{reading}"] = rank_biserial(before, after)
    recovered, limited = runs.recovered_s.dropna(), runs[runs.limited_from_s.notna()]
    metrics |= {
        "utility_per_kb": float(runs.utility_per_kb.mean()),
        "blind_utility_per_kb": float(runs.blind_per_kb.mean()),
        "utility_per_byte_times_blind": float(runs.utility_per_kb.mean() / runs.blind_per_kb.mean()),
        "effect_utility": rank_biserial(runs.blind_per_kb, runs.utility_per_kb),
        "qoe_gained_pct_of_runs": 100 * float((runs.qoe_all_after > runs.qoe_all_before).mean()),
        "limited_pct_of_runs": 100 * float(runs.limited_from_s.notna().mean()),
        "limited_runs": len(limited),
        "limited_runs_not_back_in_time": int((~(limited.recovered_s <= BACK_BY_S)).sum()),
        "recovered_at_s_latest": float(recovered.max()) if len(recovered) else None,
        "difference_at_end": float(runs.difference_at_end.max()),
        "highest_used_with_mean": float(runs.highest_used.mean()),
        "highest_used_with_worst": float(runs.highest_used.max()),
        "served_pct_of_subscribers": 100 * float(runs.served.mean()),
        "stopped_topics": float(runs.stopped_topics.mean()),
        "notifications_per_s": float(runs.notifications_per_s.mean()),
        "feedback_overhead": float(runs.feedback_overhead.mean()),
        "publishers_above_200_per_s_pct": 100 * float(runs.above_class_2.mean()),
    }
    return metrics


def _less_pct(runs: Any, metric: str, against: str) -> Any:
    return 100 * (1.0 - runs[f"{metric}_with"] / runs[f"{metric}_{against}"])


def _claims(metrics: Mapping[str, Any], runs: Any, variant: str) -> list[Claim]:
    where, beyond, unknown = "[ePEER §5.3.4]", "beyond the thesis", "not measured there"
    back = "back to its original state after 900 s"
    load = f"{100 * LOADS[variant]:.0f} % of the output bandwidth in use at rest"
    limited, unlimited = metrics["limited_runs"], "no run had to limit a publisher"
    late = metrics["limited_runs_not_back_in_time"] if limited else None
    in_time = f"in time means by {BACK_BY_S:.0f} s: two revisions after the repair"
    stopped, words = "a useless publisher is stopped but for a probe", "10 keywords a topic"
    before, after = runs.qoe_all_before.astype(float), runs.qoe_all_after.astype(float)
    useful = metrics["utility_per_byte_times_blind"] if limited else None
    worst_p, worst = max((metrics[f"p_{metric}"], metrics[f"effect_{metric}"]) for metric in METRICS)
    reductions = [
        with_evidence(
            no_less_than_seed(f"{metric.lower()}-reduced", f"{where}, figure {figure}", f"{thesis} % less",
                              metrics[f"{metric}_reduction_pct_of_carried"], thesis, "% less than was carried",
                              decided_by=load),
            interval(lambda less: less, _less_pct(runs, metric, "carried")), metrics[f"effect_{metric}"])
        for (metric, thesis), figure in zip(THESIS_LESS_PCT.items(), ("5-3", "5-5", "5-4"), strict=True)
    ]  # fmt: skip
    return [
        *reductions,
        significant("load-significant", where, worst_p, metrics["runs"], "in the least clear metric",
                    decided_by=load, effect=worst),
        with_evidence(
            no_less_than_seed("qoe-raised", f"{where}, figure 5-9", "0.2671 to 0.3348: 25.4 % more",
                              metrics["qoe_all_gain_pct"], 25.4, "% more", decided_by=stopped),
            interval(lambda b, a: 100 * (a / b - 1.0), before, after), metrics["effect_qoe_all"]),
        with_evidence(
            no_less_than_seed("qoe-after", f"{where}, figure 5-9", "0.3348", metrics["qoe_all_after"], 0.3348,
                              decided_by=f"{stopped}; {words}"),
            interval(lambda a: a, after)),
        significant("qoe-significant", where, metrics["p_qoe_all"], metrics["runs"], decided_by=stopped,
                    effect=metrics["effect_qoe_all"]),
        with_evidence(
            at_least("useful-bytes", beyond, unknown, useful, 1.5,
                     "times the utility per byte of the same cut made blindly", decided_by=load, missing=unlimited),
            interval(lambda u, b: u / b, runs.utility_per_kb, runs.blind_per_kb), metrics["effect_utility"]),
        equals("recovers", "[ePEER §5.3.1.2]", back, late, 0, decided_by=in_time, missing=unlimited),
        at_most("nothing-left-limited", beyond, unknown, metrics["difference_at_end"] if limited else None,
                1e-9, "utilisation missing at the end", decided_by="1e-9 counts as rounding", missing=unlimited),
        at_most("overload-ends", beyond, unknown, metrics["highest_used_with_worst"] if limited else None,
                0.95 + 1e-6, "of the capacity at the worst edge, metric, run and second", decided_by=load,
                missing=unlimited),
    ]  # fmt: skip


def _inputs(metrics: Mapping[str, Any]) -> list[Claim]:
    where, words = "[ePEER §5.3.4]", "10 keywords a topic, of which a message has 4–8"
    people = "1–8 subscribers a topic; the capacity of all edges, where the thesis divides by one broker's"
    feedback = "one message a second and subscriber: 435/26015 in its example"
    return [
        reproduces("qoe-before", f"{where}, figure 5-9", "0.2671", metrics["qoe_all_before"], 0.2671,
                   decided_by=words),
        reproduces("feedback-overhead", where, feedback, metrics["feedback_overhead"], 435 / 26_015,
                   "of the matching capacity", decided_by=people),
    ]  # fmt: skip


def _sensitivity(rows: Any) -> str:
    columns = {"runs": "runs", "limited, % of runs": "limited_pct_of_runs"}
    columns |= {f"{metric} less, % of carried": f"{metric}_reduction_pct_of_carried" for metric in METRICS}
    columns |= {f"{metric} less, % of offered": f"{metric}_reduction_pct_of_without" for metric in METRICS}
    columns["QoE before"] = "qoe_all_before"
    columns |= {f"QoE gain %, {text}": f"{reading}_gain_pct" for reading, text in READINGS.items()}
    columns["utility per byte ÷ blind cut"] = "utility_per_byte_times_blind"
    columns |= {"subscribers served %": "served_pct_of_subscribers", "highest use": "highest_used_with_mean"}
    columns["limits changed per s"] = "notifications_per_s"
    return epeer_variants.sensitivity(rows, VARIANTS, "Means over runs.", columns, _metrics)
