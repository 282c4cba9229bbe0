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
from tocsin.experiments.report import NO_CHOICE, ExperimentReport, at_most, equals, table

_COLORS = {"pulsar": figures.ORANGE, "epulsar": figures.GREY, "tocsin": figures.BLUE}
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
        down = down.join(runs[["per_topic_ms", "all_ms", "emulator_p99_ms", "valid"]].mean())
        valid = bool(rows.valid.all())
        metrics: dict[str, Any] = {"lost": int(rows.lost.sum()), "reordered": int(rows.reordered.sum())}
        metrics["emulator_p99_ms"] = float(rows.emulator_p99_ms.max())
        for (wan_ms, workflow, executors), run in down.iterrows():
            name = f"{workflow}.{executors}.{wan_ms:g}_ms"
            metrics |= {f"{name}.downtime_{part}_ms": float(run[part]) for part in ("p50", "p99", "max")}
            metrics |= {f"{name}.{part}": float(run[part]) for part in ("per_topic_ms", "all_ms")}
        best = down.p50.groupby(["wan_ms", "workflow"]).max().unstack()
        ratio = float((best.epulsar / best.pulsar).max()) if {"epulsar", "pulsar"} <= set(best) else None
        ours = rows[rows.workflow == "tocsin"]
        pause = float(down.p99.xs("tocsin", level="workflow").max()) if len(ours) else None
        missing = "the emulator was more than 2 ms late, or the workflow was not run"
        seven_a, promise = "[ePulsar §5.7, figure 7a]", "no message is lost or reordered"
        bound = float(rows.client_rtt_ms.max()) + _SLACK_MS
        claims = [
            at_most("downtime-at-most-half", seven_a, "significantly lower", ratio if valid else None, 0.5,
                    "of Pulsar's median, worst WAN", missing=missing, decided_by="a half counts as significant"),
            at_most("pause-one-round-trip", "ours", "one round trip of a client and 10 ms", pause if valid else None,
                    bound, "ms, 99th percentile", missing=missing,
                    decided_by=f"{_SLACK_MS:g} ms beyond the round trip are allowed; the emulated distances"),
            equals("nothing-lost", "ours", promise, metrics["lost"], 0, decided_by=NO_CHOICE),
            equals("nothing-reordered", "ours", promise, metrics["reordered"], 0, decided_by=NO_CHOICE),
        ]  # fmt: skip
        files = figures.draw(out, "epulsar-migration-live", lambda figure: _draw(figure, down), height_in=3.2)
        columns = ("WAN (ms)", "workflow", "executors", "p50", "p99", "max", "per topic", "all topics", "emulator p99")
        shown = ["p50", "p99", "max", "per_topic_ms", "all_ms", "emulator_p99_ms"]
        body = "## Downtime and time of moves, ms\n\n" + table(
            columns, [(*label, *(float(run[part]) for part in shown)) for label, run in down.iterrows()]
        )
        return ExperimentReport(metrics, claims, files, body, _NOTES)


def _draw(figure: Figure, down: Any) -> None:
    axes = figure.subplots(1, 1)
    for workflow, part in down.p99.groupby(level="workflow"):
        worst = part.groupby(level="wan_ms").max()
        axes.plot(worst.index, worst, color=_COLORS[workflow], marker="o", label=workflow)
    axes.set(xlabel="one-way latency to the coordinator (ms)", ylabel="downtime, 99th percentile (ms)")
    axes.set_ylim(0, None)
    axes.legend()


_NOTES = (
    "Downtime is the longest time between two deliveries at a topic's subscriber, less the spacing of messages. Each "
    "topic has one publisher and one subscriber with connections of their own, 5 ms one way from both brokers, which "
    "are as far from each other. Time per topic runs from the request, for all topics at once, to the end of the move.",
    "Pulsar's clients get the new home by a pending request to the coordinator, not by a look-up of their own: that "
    "favours Pulsar by a round trip.",
    "Runs in which the 99th percentile of the emulator's own error exceeds 2 ms are invalid: claims about times are "
    "not judged.",
)
