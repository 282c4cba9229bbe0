"""The report of `epeer-live`: offloading and congestion control of a site, on real processes [ePEER chapters 4 and 5].

An experiment may not start processes: `demo.site_scenarios` does and passes the rows. It has no simulated form of its
own; `epeer-drd` and `epeer-fdcc` simulate the thesis' experiments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from matplotlib.figure import Figure

from tocsin.experiments import figures
from tocsin.experiments.report import NO_CHOICE, Claim, ExperimentReport, above, at_least, at_most, equals, shows, table

TIGHT_S: Final = 1.0
"""The delay requirement of some topics."""
DAMAGES: Final = ("output", "matching")
DISOBEDIENT: Final = "disobedient"
"""The scenario with damaged output and a publisher that ignores its limits."""
RING: Final = "ring"
"""The scenario with three sites, in which a link fails, a head dies and brokers are saturated."""
VISITS: Final = "visits"
"""The scenario with two sites, of which one has more load than its edges can send."""
_CHOSEN: Final = "the loads, capacities and times of the scenario"
_NEVER: Final = "it did not happen in the run"


@dataclass(frozen=True)
class LiveSite:
    name: str = "epeer-live"
    title: str = "A live site in a burst, and with damaged edges (ePEER, chapters 4 and 5)"

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        rows = table_.to_pandas()
        runs = {row.scenario: row.dropna().to_dict() for _, row in rows[rows.kind == "run"].iterrows()}
        metrics: dict[str, Any] = {
            f"{scenario}.{key}": _plain(value)
            for scenario, run in runs.items()
            for key, value in run.items()
            if isinstance(value, float)
        }
        metrics |= {key: sum(int(run[key]) for run in _without_loss(runs)) for key in ("lost", "repeated")}
        files = figures.draw(out, self.name, lambda figure: _draw(figure, rows), height_in=1.9 * len(runs) + 0.7)
        lines = [
            (scenario, key, value)
            for scenario, run in runs.items()
            for key, value in run.items()
            if key not in ("kind", "scenario")
        ]
        body = "## Measured\n\n" + table(("scenario", "figure", "value"), lines)
        return ExperimentReport(metrics, _claims(runs), files, body, _NOTES)


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _without_loss(runs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs in which no message may be missing: without relief, or with damage, slow receivers get gaps."""
    return [run for scenario, run in runs.items() if scenario in ("burst", VISITS)]


def _claims(runs: dict[str, dict[str, Any]]) -> list[Claim]:
    """The claims about the scenarios that were run."""
    claims = _burst(runs["burst"]) if "burst" in runs else []
    if (without := runs.get("burst-without")) is not None:
        delay_s = without.get("tight_p99_s")
        seed, unit = "above the requirement", "s, 99th percentile"
        source, own = "[ePEER §4.5]", "the loads and capacities of the scenario"
        claims.append(above("delay-without", source, seed, delay_s, TIGHT_S, unit, decided_by=own, missing=_NEVER))
    claims += [claim for damage in DAMAGES if damage in runs for claim in _damage(damage, runs[damage])]
    claims += _disobedience(runs[DISOBEDIENT]) if DISOBEDIENT in runs else []
    claims += _ring(runs[RING]) if RING in runs else []
    return claims + (_visits(runs[VISITS]) if VISITS in runs else [])


def _burst(run: dict[str, Any]) -> list[Claim]:
    wrong = sum(int(run[key]) for key in ("lost", "repeated", "gaps"))
    return [
        _in_time("overload-seen", "[ePEER §4.4.1]", "two measurements", run.get("overload_seen_s"), 2.0),
        _in_time("relieved", "ours", "all edges at most at 0.95, none BUSY", run.get("relieved_s"), 5.0),
        equals(
            "stays-relieved",
            "ours",
            "no edge above 0.95 or BUSY after 10 s",
            run.get("unrelieved_looks"),
            0,
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        equals(
            "nothing-lost",
            "ours",
            "lost, repeated, reordered, gaps: 0",
            wrong,
            0,
            decided_by=NO_CHOICE,
        ),
        at_most(
            "delay-with",
            "[ePEER §4.5]",
            "below the requirement",
            run.get("tight_p99_s"),
            TIGHT_S,
            "s, 99th percentile",
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        at_most(
            "pause-of-a-move",
            "ours",
            "0.25 s",
            run.get("longest_pause_ms"),
            250.0,
            "ms",
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        at_least(
            "receivers-moved",
            "ours",
            "the burst moves receivers",
            run.get("moved"),
            1.0,
            "",
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        equals(
            "no-further-offload",
            "ours",
            "none after 10 s",
            run.get("moved_late"),
            0,
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        at_most(
            "cores",
            "ours",
            "below one core",
            run.get("cores"),
            1.0,
            "cores, clients included",
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
    ]


def _visits(run: dict[str, Any]) -> list[Claim]:
    """No edge of the site can help another one: receivers move to the neighbouring site."""
    wrong = sum(int(run[key]) for key in ("lost", "repeated", "gaps"))
    site = "all edges of the site at most at 0.95, none BUSY"
    return [
        _in_time("overload-seen-visits", "[ePEER §4.4.1]", "two measurements", run.get("overload_seen_s"), 2.0),
        _in_time("relieved-visits", "[ePEER §4.4.4]", site, run.get("relieved_s"), 5.0),
        at_least(
            "visitors",
            "[ePEER §4.4.4]",
            "receivers move to the other site",
            run.get("visitors"),
            1.0,
            "",
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        equals(
            "nothing-lost-visits",
            "ours",
            "lost, repeated, reordered, gaps: 0",
            wrong,
            0,
            decided_by=NO_CHOICE,
        ),
        at_most(
            "delay-visits",
            "[ePEER §4.5]",
            "below the requirement",
            run.get("tight_p99_s"),
            TIGHT_S,
            "s, 99th percentile",
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        at_most(
            "pause-of-a-visit",
            "ours",
            "0.25 s",
            run.get("longest_pause_ms"),
            250.0,
            "ms",
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        at_most(
            "host-not-overloaded",
            "ours",
            "0.95",
            run.get("host_highest_used"),
            0.95,
            "load ÷ capacity",
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        equals(
            "no-further-visit", "ours", "none after 10 s", run.get("moved_late"), 0, decided_by=_CHOSEN, missing=_NEVER
        ),
    ]


def _damage(damage: str, run: dict[str, Any]) -> list[Claim]:
    return [
        at_most(
            f"queues-stop-growing-{damage}",
            "ours",
            "within 3 s",
            run.get("grew_until_s"),
            3.0,
            "s",
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        at_least(
            f"used-low-{damage}",
            "ours",
            "0.80 to 0.95",
            run.get("used_p05"),
            0.80,
            "5th percentile",
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        at_most(
            f"used-high-{damage}",
            "ours",
            "0.80 to 0.95",
            run.get("used_p95"),
            0.95,
            "95th percentile",
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        at_least(
            f"utility-per-byte-{damage}",
            "[ePEER §5.3]",
            "more than a blind cut",
            run.get("utility_per_byte_ratio"),
            1.5,
            "of what was offered",
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        _in_time(f"limits-lifted-{damage}", "ours", "within 2 s after the repair", run.get("limits_lifted_s"), 2.0),
        _protected(damage, run),
    ]


def _disobedience(run: dict[str, Any]) -> list[Claim]:
    return [
        at_least(
            "excess-dropped",
            "[ePEER §5.2.1]",
            "99 % at the head",
            run.get("excess_dropped"),
            0.99,
            "of the messages beyond the limit",
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        _protected(DISOBEDIENT, run),
    ]


def _ring(run: dict[str, Any]) -> list[Claim]:
    """Each fault has a pause of at most 2 s. Control is judged only if brokers had more to send than they could."""
    wrong = sum(int(run[key]) for key in ("lost", "repeated", "missed_untold"))
    saturated = run.get("saturated_waiting_s", 0.0) >= 1.0
    return [
        at_most(
            "once-per-link",
            "[ePEER §4.3.2]",
            "each message at most once",
            run["crossed_most"] if not run["crossed_repeated"] else 2.0,
            1.0,
            "crossings of a link and direction, per message",
            decided_by=NO_CHOICE,
        ),
        at_most(
            "pause-of-a-link",
            "ours",
            "2 s",
            run.get("link_pause_s"),
            2.0,
            "s, longest of a flow",
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        at_most(
            "pause-of-a-head",
            "ours",
            "2 s",
            run.get("head_pause_s"),
            2.0,
            "s, longest of a flow",
            decided_by=_CHOSEN,
            missing=_NEVER,
        ),
        equals(
            "ring-nothing-lost",
            "ours",
            "lost (persistent), repeated, unreported (volatile): 0",
            wrong,
            0,
            decided_by=NO_CHOICE,
        ),
        at_most(
            "control-in-saturation",
            "ours",
            "50 ms",
            run.get("control_p99_s") if saturated else None,
            0.05,
            "s, 99th percentile of round trips between coordinators",
            decided_by=_CHOSEN,
            missing="no broker had more to send than it could",
        ),
    ]


def _in_time(id: str, source: str, seed: str, took_s: float | None, most_s: float) -> Claim:
    """The claim that something happened in time. If it never happened, the claim fails."""
    if took_s is None or not math.isfinite(took_s):
        return shows(id, source, seed, "never", False, decided_by=_CHOSEN)
    return at_most(id, source, seed, took_s, most_s, "s", decided_by=_CHOSEN)


def _protected(scenario: str, run: dict[str, Any]) -> Claim:
    rate, unit = run.get("protected_per_s"), "messages/s"
    ours = f"protected-{scenario}", "ours", "5 messages/s"
    return at_least(*ours, rate, 4.75, unit, decided_by=_CHOSEN, missing=_NEVER)


def _draw(figure: Figure, rows: Any) -> None:
    scenarios = list(rows[rows.kind == "run"].scenario)
    panels = figure.subplots(len(scenarios), 1, squeeze=False)[:, 0]
    for axes, scenario in zip(panels, scenarios, strict=True):
        own = rows[rows.scenario == scenario]
        if scenario == RING:
            _draw_ring(axes, own[own.kind == "flow"])
        else:
            for edge, looks in own[own.kind == "look"].groupby("edge"):
                axes.plot(looks.at_s, looks.used, linewidth=1.2, label=edge)
            axes.axhline(0.95, color=figures.GREY, linewidth=0.8, linestyle="--")
            axes.set_ylabel(f"{scenario}\nload ÷ capacity")
        axes.set_ylim(0, None)
    panels[-1].set_xlabel("time (s)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)


def _draw_ring(axes: Any, flows: Any) -> None:
    """The slowest message of any flow, within a site and between sites."""
    sources = flows.edge.str.partition(" → ")
    within = sources[0] == sources[2]
    for name, some in (("within a site", flows[within]), ("between sites", flows[~within])):
        slowest = some.groupby("at_s").latency_s.max()
        axes.plot(slowest.index, slowest.to_numpy(), linewidth=1.2, label=name)
    axes.set_ylabel("ring\nslowest message (s)")
    axes.legend(loc="upper left", fontsize="small")


_NOTES: Final = (
    "One head and four edges, 20 topics with 8 receivers each, 1 kB messages: about 1,000 messages and 1 MB leave each "
    "edge per second. 8 topics require a delay of 1 s, the others 10 s. In the burst, the topics of the "
    "edge with most receivers send twice as much.",
    "With damage, each topic has two publishers. The utilities of all 40 are spread evenly over 0 to 1, with similar "
    "ones on the same topic. The same cut made blindly would deliver the utility per byte that was offered before, so "
    "the ratio compares with that: no blind cut is run. The protected topic is rated 0 by all, and the ratio leaves it "
    "out.",
    "The disobedient publisher offers 250 messages/s to an edge that can send about 31. Its excess is what it sends "
    "beyond the limit that the head has announced to it, from 5 s after the damage on.",
    "In the ring, three sites of a head and two edges publish 600 messages/s to a persistent and to a volatile topic. "
    "After 5 s one link forwards nothing for 8 s; later one head is killed; then each broker may send half of what it "
    "sends. A head counts as dead after 0.8 s; leases last 0.6 s. Pauses are those of single publishers at single "
    "readers.",
    "With visits, two sites of a head and two edges are neighbours. The first one has 10 topics with 8 receivers each, "
    "and the second one receives each topic once. All topics of the first site send twice as much: 2 MB/s to each "
    "edge, which may send 1.6 MB/s.",
    "At the end of a burst the publishers stop, and a message counts as lost if a receiver has not got it 10 s later. "
    "A receiver that gets nothing more after its move pauses until then.",
    "The load of an edge is what is offered to it, so it exceeds 1 in an overload.",
)
