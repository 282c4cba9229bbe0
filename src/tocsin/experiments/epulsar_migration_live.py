"""The report of `epulsar-migration --live`: figure 7 of [ePulsar §5.7] measured on real processes.

An experiment may not start processes: `demo.topic_moves` does and passes the rows. Not an experiment itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from matplotlib.figure import Figure

from tocsin.experiments import figures
from tocsin.experiments.report import NO_CHOICE, Claim, ExperimentReport, at_most, equals, table

_COLORS = {"pulsar": figures.ORANGE, "epulsar": figures.GREY, "tocsin": figures.BLUE}
_MARKERS = {"pulsar": "s", "epulsar": "^", "tocsin": "o"}
_SLACK_MS = 10.0


@dataclass(frozen=True)
class LiveMigration:
    name: str = "epulsar-migration"
    title: str = "Overhead of topic migration on the live system (ePulsar, figure 7)"

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        rows = table_.to_pandas()
        runs = rows.groupby(["wan_ms", "workflow", "executors"])
        down = runs.downtime_ms.quantile([0.5, 0.99, 1.0]).unstack()
        down.columns = ["p50", "p99", "max"]
        down["per_topic_ms"] = runs.per_topic_ms.median()
        down = down.join(runs[["all_ms", "emulator_p99_ms", "lag_p99_ms", "attempts", "valid"]].first())
        promise = "no message is lost or reordered"
        metrics = _metrics(rows, down)
        claims = [
            *_claims_about_times(rows, down),
            equals("nothing-lost", "ours", promise, metrics["lost"], 0, decided_by=NO_CHOICE),
            equals("nothing-reordered", "ours", promise, metrics["reordered"], 0, decided_by=NO_CHOICE),
        ]
        files = figures.draw(out, "epulsar-migration-live", lambda figure: _draw(figure, down), height_in=3.2)
        columns = ("WAN (ms)", "workflow", "executors", "p50", "p99", "max", "per topic", "all topics",
                   "emulator p99", "clients p99", "attempts", "valid")  # fmt: skip
        shown = ["p50", "p99", "max", "per_topic_ms", "all_ms", "emulator_p99_ms", "lag_p99_ms", "attempts"]
        lines = [
            (*label, *(float(run[part]) for part in shown), "yes" if run.valid else "no")
            for label, run in down.iterrows()
        ]
        body = "## Downtime and time of moves, ms\n\n" + table(columns, lines)
        return ExperimentReport(metrics, claims, files, body, _NOTES)


def _metrics(rows: Any, down: Any) -> dict[str, Any]:
    metrics: dict[str, Any] = {"lost": int(rows.lost.sum()), "reordered": int(rows.reordered.sum())}
    metrics |= {"valid": bool(rows.valid.all()), "invalid_runs": int((~down.valid.astype(bool)).sum())}
    metrics["repeated_runs"] = int((down.attempts - 1).sum())
    metrics |= {name: float(rows[name].max()) for name in ("emulator_p99_ms", "lag_p99_ms")}
    for (wan_ms, workflow, executors), run in down.iterrows():
        name = f"{workflow}.{executors}.{wan_ms:g}_ms"
        metrics |= {f"{name}.downtime_{part}_ms": float(run[part]) for part in ("p50", "p99", "max")}
        metrics |= {f"{name}.{part}": float(run[part]) for part in ("per_topic_ms", "all_ms")}
        metrics[f"{name}.valid"] = bool(run.valid)
    return metrics


def _claims_about_times(rows: Any, down: Any) -> list[Claim]:
    """Only if all runs of their workflows are valid: an emulator or a client that is late adds to every pause."""
    valid = {str(workflow) for workflow, runs in rows.groupby("workflow") if runs.valid.all()}
    medians = down.p50.groupby(["wan_ms", "workflow"]).max().unstack()
    compared = {"epulsar", "pulsar"} <= valid
    ratio = float((medians.epulsar / medians.pulsar).max()) if compared else None
    ours = down.p99[down.index.get_level_values("workflow") == "tocsin"]
    pause_ms = float(ours.max()) if "tocsin" in valid else None
    missing = "the emulator or the clients were late, or the workflow was not run"
    bound_ms = float(rows.client_rtt_ms.max()) + _SLACK_MS
    return [
        at_most("downtime-at-most-half", "[ePulsar §5.7, figure 7a]", "significantly lower", ratio, 0.5,
                "of Pulsar's median, worst WAN", missing=missing, decided_by="a half counts as significant"),
        at_most("pause-one-round-trip", "ours", "one round trip of a client and 10 ms", pause_ms, bound_ms,
                "ms, 99th percentile", missing=missing,
                decided_by=f"{_SLACK_MS:g} ms beyond the round trip are allowed; the emulated distances"),
    ]  # fmt: skip


def _draw(figure: Figure, down: Any) -> None:
    pauses, times = figure.subplots(1, 2)
    middle_ms = sorted(down.index.unique("wan_ms"))[len(down.index.unique("wan_ms")) // 2]
    for workflow in (name for name in _COLORS if name in down.index.unique("workflow")):
        style = {"color": _COLORS[workflow], "marker": _MARKERS[workflow], "label": workflow}
        runs = down.xs(workflow, level="workflow")
        worst = runs.p99.groupby(level="wan_ms").max()
        pauses.plot(worst.index, worst, **style)
        by_executors = runs.xs(middle_ms, level="wan_ms").all_ms / 1e3
        times.plot(by_executors.index, by_executors, **style)
    pauses.set(xlabel="one way to the coordinator (ms)", ylabel="downtime, 99th percentile (ms)", title="Downtime")
    pauses.set_ylim(0, None)
    pauses.legend()
    times.set(xlabel="executors", ylabel="all topics (s)", title=f"Time of all moves, {middle_ms:g} ms", xscale="log")
    executors = sorted(down.index.unique("executors"))
    times.set_xticks(executors, [str(number) for number in executors])
    times.minorticks_off()
    times.set_ylim(0, None)


_NOTES = (
    "Downtime is the longest time between two deliveries of a topic around its move, less the spacing of its messages "
    "(10 ms). A pause begins anywhere between two messages, so the median is up to 10 ms too low; the 99th percentile "
    "is not. Each topic has one client, as in the paper, which publishes and receives, 5 ms one way from both brokers, "
    "which are as far from each other.",
    "Time per topic (median) runs from the start of a move to the target's confirmation, at the coordinator; the time "
    "of all topics from the first order to the first message from the last new home. Orders are at least 25 ms apart, "
    "because two cores cannot carry out many more moves with their clients: 128 topics take at least 3.2 s, and 16 "
    "executors are all busy only far from the coordinator.",
    "Pulsar's client waits 100 to 200 ms before it looks a home up again, as Pulsar's does. The coordinator holds its "
    "request and answers when the target owns the topic; Pulsar's client would have to ask again.",
    "A run is invalid if the emulator was more than 2 ms late, or the clients' own event loop more than 5 ms, in one "
    "of a hundred cases, or if a topic moved before its client had begun to observe it. An invalid run is repeated, at "
    "most twice. If the last attempt is invalid too, no claim about times of its workflow is judged. Messages lost or "
    "reordered in any attempt count.",
)
