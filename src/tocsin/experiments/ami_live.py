"""The report of `ami-live`: the edge tier on real processes [AMI §1.1 figure 3, §2, §3].

An experiment may not start processes: `demo.edge_scenarios` does and passes the rows. `ami` and `ami-scale` simulate
the thesis' evaluation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from matplotlib.figure import Figure

from tocsin.experiments import figures
from tocsin.experiments.report import NO_CHOICE, Claim, ExperimentReport, at_least, at_most, equals, table

BURST: Final = "burst"
WITHOUT: Final = "burst-without"
FAULTS: Final = "faults"
SCENARIOS: Final = (BURST, WITHOUT, FAULTS)
_CHOSEN: Final = "the rates, budgets and times of the scenario"
_NEVER: Final = "it did not happen in the run"
WRONG: Final = ("lost", "repeated", "wrong", "late_rows")
_OURS: Final = "ours"


@dataclass(frozen=True)
class LiveEdge:
    name: str = "ami-live"
    title: str = "A live edge tier: a burst, transfers, and nodes that die (AMI, chapters 1 to 3)"

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        rows = table_.to_pandas()
        runs = {row.scenario: row.dropna().to_dict() for _, row in rows[rows.kind == "run"].iterrows()}
        faults = [row.dropna().to_dict() for _, row in rows[rows.kind == "fault"].iterrows()]
        transfers = [row.dropna().to_dict() for _, row in rows[rows.kind == "transfer"].iterrows()]
        metrics = {
            f"{scenario}.{key}": _plain(value)
            for scenario, run in runs.items()
            for key, value in run.items()
            if isinstance(value, float)
        }
        metrics |= {key: sum(int(run.get(key, 0)) for run in runs.values()) for key in WRONG}
        files = figures.draw(out, self.name, lambda figure: _draw(figure, rows), height_in=2.1 * len(runs) + 0.7)
        return ExperimentReport(metrics, _claims(runs, faults), files, _body(runs, faults, transfers), _NOTES)


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _claims(runs: dict[str, dict[str, Any]], faults: list[dict[str, Any]]) -> list[Claim]:
    """The claims about the scenarios that were run."""
    claims: list[Claim] = []
    if BURST in runs:
        claims += _burst(runs[BURST])
    if WITHOUT in runs:
        claims += _without(runs[WITHOUT])
    if FAULTS in runs:
        claims += _faults(runs[FAULTS], faults)
    return claims


def _burst(run: dict[str, Any]) -> list[Claim]:
    seed = "overloaded nodes give operators away"
    limit_s = 2.0 * run["period_s"]
    overloaded_s = run.get("overloaded_s") if run.get("overloads", 0.0) > 0.0 else None
    return [
        at_most(
            "overload-left", "[AMI §3.1]", seed, overloaded_s, limit_s, "s", decided_by=_CHOSEN,
            missing="no node measured a load above U_t, so there was no overload to leave: raise burst_pct",
        ),
        at_least("operators-moved", "[AMI §3.1]", seed, run.get("moved"), 1.0, decided_by=_CHOSEN, missing=_NEVER),
        at_most(
            "backlog-with", _OURS, "the backlog does not grow", run.get("backlog_end_s"), 2.0,
            "s of readings at the end", decided_by=_CHOSEN,
        ),
        _exact_rows("burst-rows-equal", run),
    ]  # fmt: skip


def _without(run: dict[str, Any]) -> list[Claim]:
    growth = run["backlog_end_s"] - run["backlog_middle_s"]
    return [
        at_least(
            "backlog-without", _OURS, "without the protocol the backlog grows", growth, 1.0,
            "s of readings, in the second half of the burst", decided_by=_CHOSEN,
        ),
        equals("none-moved-without", _OURS, "no operator moves", run.get("moved"), 0, decided_by=NO_CHOICE),
    ]  # fmt: skip


def _faults(run: dict[str, Any], faults: list[dict[str, Any]]) -> list[Claim]:
    deaths = [fault for fault in faults if fault["fault"] == "killed"]
    needed = "[AMI §2.2]"
    return [
        _exact_rows("rows-equal", run),
        equals("nothing-late", _OURS, "no reading is late", run.get("late_rows"), 0, decided_by=NO_CHOICE),
        at_most(
            "bytes-up", needed, "aggregates climb the tree, not readings", run.get("bytes_share"), 0.10,
            "of the raw readings' bytes, on all data connections", decided_by="windows of the queries, and rates",
        ),
        at_most(
            "bytes-up-encoded", _OURS, "also beside the readings in the encoding of the links",
            run.get("bytes_share_encoded"), 0.10, "of the bytes that one link would need for all readings",
            decided_by="windows of the queries, and rates",
        ),
        equals(
            "transfers-done", "[AMI §3.1]", "each ordered transfer completes", run.get("transfers_done"),
            run["transfers_ordered"], decided_by=NO_CHOICE,
        ),
        at_least(
            "state-of-a-transfer", _OURS, "10 MB", run.get("state_bytes"), 1e7, "bytes", decided_by=_CHOSEN,
        ),
        at_most(
            "pause-of-a-transfer", _OURS, "0.5 s", run.get("pause_p99_s"), 0.5, "s, 99th percentile",
            decided_by=_CHOSEN, missing=_NEVER,
        ),
        at_least("killed-nodes", _OURS, "5 nodes die", float(len(deaths)), 5.0, decided_by=_CHOSEN),
        at_most(
            "next-generation", _OURS, "10 s", _slowest(deaths, "generation_s"), 10.0, "s from a death, the slowest",
            decided_by=_CHOSEN, missing=_NEVER,
        ),
        at_most(
            "duty-taken-over", _OURS, "10 s", _slowest(deaths, "duty_s"), 10.0,
            "s from a death to the first result of its whole area, the slowest", decided_by=_CHOSEN, missing=_NEVER,
        ),
    ]  # fmt: skip


def _slowest(faults: list[dict[str, Any]], figure: str) -> float | None:
    """The largest value; None if there is no fault, or one without a value: an unfinished recovery is not judged."""
    values = [fault.get(figure) for fault in faults]
    known = [value for value in values if value is not None and math.isfinite(value)]
    return max(known) if known and len(known) == len(values) else None


def _exact_rows(id: str, run: dict[str, Any]) -> Claim:
    """A run without expected rows proves nothing, so its claim is not judged."""
    wrong = sum(int(run[key]) for key in ("lost", "repeated", "wrong")) if run.get("expected") else None
    return equals(
        id, _OURS, "lost, repeated, different from the same SELECT over the raw readings: 0", wrong, 0,
        decided_by=NO_CHOICE, missing="there was nothing to compare",
    )  # fmt: skip


def _body(runs: dict[str, dict[str, Any]], faults: list[dict[str, Any]], transfers: list[dict[str, Any]]) -> str:
    lines = [
        (scenario, key, value)
        for scenario, run in runs.items()
        for key, value in run.items()
        if key not in ("kind", "scenario")
    ]
    parts = ["## Measured", table(("scenario", "figure", "value"), lines)]
    faulty = ("node", "fault", "at_s", "down_s", "generation_s", "duty_s")
    ordered = ("at_s", "from", "to", "took_s")
    for title, columns, rows in (("Faults", faulty, faults), ("Ordered transfers", ordered, transfers)):
        if rows:
            parts += [f"## {title}", table(columns, [[row.get(name) for name in columns] for row in rows])]
    return "\n\n".join(parts)


def _draw(figure: Figure, rows: Any) -> None:
    scenarios = list(rows[rows.kind == "run"].scenario)
    panels = figure.subplots(len(scenarios), 1, squeeze=False)[:, 0]
    for axes, scenario in zip(panels, scenarios, strict=True):
        own = rows[rows.scenario == scenario]
        for node, looks in own[own.kind == "look"].groupby("node"):
            axes.plot(looks.at_s, looks.load_pct, linewidth=1.0, label=node)
        axes.axhline(60.0, color=figures.GREY, linewidth=0.8, linestyle="--")
        for _, fault in own[own.kind == "fault"].iterrows():
            axes.axvline(fault.at_s, color=figures.ORANGE, linewidth=0.8)
        axes.set_ylabel(f"{scenario}\nload (%)")
        axes.set_ylim(0, 130)
    panels[-1].set_xlabel("time (s)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)


_NOTES: Final = (
    "Seven processes in a perfect binary tree: a city, two districts, four neighbourhoods [AMI figure 3]. Publishers "
    "send the meters' readings over HTTP as Arrow streams, keep them until they are durable, and continue at the "
    "parent of a dead node. Event time is the wall clock. All consumptions are multiples of 1/1024 kWh.",
    "The queries are those of figure 3: the average per user, neighbourhood and district, and a filter for suspicious "
    "ones. The thesis states neither windows nor rates. The burst has further queries per user, so that a node "
    "has operators to give away.",
    "The factor of the burst follows from the load at two rates before it (`calm_load_pct`, `calibration_load_pct`): "
    "only a part of the load grows with the rate.",
    "The load of a node is the largest of memory, CPU and uplink, each in percent of its budget, as the node reports "
    "it every half second. `overloads` counts how often a node measured a load above U_t in the burst; `overloaded_s` "
    "is the longest time from such a measurement until the load was at or below U_t.",
    "The backlog of the burst's leaf is what waits in its log and inbox, and what its publishers hold and no node has "
    "stored, in seconds of the readings that its meters produce.",
    "The root publishes to a gateway that the experiment itself runs: it remembers Idempotency-Keys as the data "
    "cluster does, and keeps repeats of rows. `tocsin edge-demo` publishes to a data cluster.",
    "`generation_s` is the time from a death until the next generation runs; `duty_s` until the first result of every "
    "neighbourhood below the node that was not due before the death.",
)
