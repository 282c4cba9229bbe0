"""The report of `epulsar-uav --live` and `epulsar-mmog --live`: real processes beside the simulator's prediction.

An experiment may not start processes: `demo.topic_scenarios` does, and `demo.topic_loops` passes the rows. Not an
experiment itself. Rows of both have the same form (`epulsar_episodes`), with `where` live or simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from tocsin.experiments import figures
from tocsin.experiments.epulsar_episodes import MESSAGES_AT_LEAST, episode_metrics, episode_rows
from tocsin.experiments.report import NO_CHOICE, Claim, ExperimentReport, equals, reproduces, table
from tocsin.experiments.runner import Row
from tocsin.sim.topics.control import Episode
from tocsin.sim.topics.deliveries import Deliveries

LIVE, SIMULATED = "live", "simulated"
START_S: Final = 20.0
"""Messages before this time do not count, in both: topics begin at the homes that hashing chooses, and the simulator's
clients are known to their homes from the first moment."""
WINDOW_S: Final = 5.0
MOST_ERROR_MS: Final = 2.0
"""A run whose 99th percentile of the relay's own error exceeds this is invalid."""
MOST_LATE_MS: Final = 5.0
"""Ours: so is a run in which messages left the measuring process later than this, 99th percentile."""
_SHOWN: Final = ("share_late", "longest_transient_s", "share_late_worst_topic", "moves", "median_latency_ms")


def rows_of(where: str, loop: str, episode: Episode, bound_ms: float, occasions_s: Sequence[float]) -> list[Row]:
    """The rows of one run, without its start."""
    key: Row = {"run": 0, "loop": loop, "where": where}
    seen = episode.deliveries
    kept = Deliveries()
    kept.latencies = {
        name: [pair for pair in latencies if pair[0] >= START_S] for name, latencies in seen.latencies.items()
    }
    kept.out_of_reach, kept.owed, kept.delivered = seen.out_of_reach, seen.owed, seen.delivered
    kept.abandoned, kept.repeated, kept.out_of_order = seen.abandoned, seen.repeated, seen.out_of_order
    moves = [move for move in episode.moves if move.at_s >= START_S]
    rows = episode_rows(
        key, Episode(moves, episode.migrations, kept), bound_ms, [s for s in occasions_s if s > START_S]
    )
    pairs = np.array([pair for latencies in kept.latencies.values() for pair in latencies]).reshape(-1, 2)
    windows = (pairs[:, 0] // WINDOW_S).astype(np.int64)
    for window in np.unique(windows):
        late = 1e3 * pairs[windows == window, 1] > bound_ms
        rows.append({"kind": "window", **key, "at_s": float(window * WINDOW_S), "share_above": float(late.mean())})
    return rows


@dataclass(frozen=True)
class LiveLoops:
    name: str
    title: str
    bound_ms: float
    scaled: str
    """What is smaller than in the paper, in words."""

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        rows = table_.to_pandas()
        for column in _OF_SOME:
            if column not in rows:
                rows[column] = None
        runs = rows[rows.kind == "live"]
        metrics: dict[str, Any] = {"bound_ms": self.bound_ms}
        claims: list[Claim] = []
        compared: list[tuple[Any, ...]] = []
        for loop in sorted(runs.loop.unique()):
            of_loop = rows[rows.loop == loop]
            found = {where: _metrics(of_loop[of_loop["where"] == where]) for where in (LIVE, SIMULATED)}
            run = runs[runs.loop == loop].iloc[0]
            facts = {key: float(run[key]) for key in _FACTS}
            for where, own in found.items():
                metrics |= {f"{loop}.{where}.{key}": own[key] for key in _KEYS}
                compared.append((loop, where, *(own[key] for key in _SHOWN)))
            metrics |= {f"{loop}.live.{key}": value for key, value in facts.items()}
            start_s = run.get("moves_start_s")
            metrics[f"{loop}.live.moves_start_s"] = None if start_s is None or np.isnan(start_s) else float(start_s)
            for key in ("share_late", "longest_transient_s"):
                here, there = found[LIVE][key], found[SIMULATED][key]
                metrics[f"{loop}.ratio_{key}"] = here / there if here is not None and there else None
            claims += _claims(loop, found, run)
        lost = int(runs.lost.sum() + runs.repeated.sum() + runs.out_of_order.sum() + runs.gaps.sum())
        claims.append(
            equals("nothing-lost", "ours", "no message is lost, repeated or reordered", lost, 0, decided_by=NO_CHOICE)
        )
        metrics |= {key: int(runs[key].sum()) for key in ("lost", "repeated", "out_of_order", "gaps")}
        files = figures.draw(out, f"{self.name}-live", lambda figure: _draw(figure, rows), height_in=4.6)
        columns = (
            "loop",
            "where",
            "late (share)",
            "longest transient (s)",
            "late at the worst topic",
            "moves",
            "median (ms)",
        )
        body = f"## Live beside the simulator, bound {self.bound_ms:g} ms\n\n" + table(columns, compared)
        return ExperimentReport(metrics, claims, files, body, [self.scaled, *_NOTES])


_OF_SOME: Final = ("returned", "followed", "duration_s", "peak_ms")
"""Columns that only moves and transients have: a run without any has no such column."""
_FACTS: Final = (
    "relay_p99_ms",
    "late_p99_ms",
    "work_p50_ms",
    "work_p99_ms",
    "coordinate_error",
    "cpu_measuring",
    "cpu_relay",
    "cpu_servers",
    "measured_s",
)
_KEYS: Final = (
    *("share_late", "share_late_worst_topic", "longest_transient_s", "transients", "moves", "occasions_after_start"),
    *("median_latency_ms", "share_out_of_reach", "messages"),
)


def _metrics(rows: Any) -> dict[str, Any]:
    found = episode_metrics(rows)
    found["messages"] = int(rows[rows.kind == "run"].messages.sum())
    return found


def _claims(loop: str, found: dict[str, dict[str, Any]], run: Any) -> list[Claim]:
    """The live figures within a factor of 1.5 of the simulator's, on either side."""
    reason = ""
    if run.relay_p99_ms > MOST_ERROR_MS:
        reason = f"void: the 99th percentile of the relay's error was {run.relay_p99_ms:.1f} ms, above 2 ms"
    elif run.late_p99_ms > MOST_LATE_MS:
        reason = f"void: the machine was too busy; messages left {run.late_p99_ms:.1f} ms late, 99th percentile"
    elif found[SIMULATED]["messages"] < MESSAGES_AT_LEAST or found[LIVE]["messages"] < MESSAGES_AT_LEAST:
        reason = "void: too few messages"
    claims = []
    for id, key, unit in (
        ("share-late", "share_late", "of the messages"),
        ("longest-transient", "longest_transient_s", "s"),
    ):
        predicted, ours = found[SIMULATED][key], found[LIVE][key]
        missing = reason or ("the simulator predicts no late message" if not predicted else "no message was late")
        claims.append(
            reproduces(
                f"{id}-as-simulated-{loop}-loop",
                "the simulator, same seed",
                "its prediction",
                None if reason or not predicted else ours,
                predicted or 0.0,
                unit,
                missing=missing,
                decided_by=f"the phases of the reports; the first {START_S:g} s do not count",
            )
        )
    return claims


def _draw(figure: Figure, rows: Any) -> None:
    loops = sorted(rows.loop.dropna().unique())
    panels = figure.subplots(len(loops), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, loop in zip(panels, loops, strict=True):
        for where, colour, style in ((SIMULATED, figures.ORANGE, "--"), (LIVE, figures.BLUE, "-")):
            own = rows[(rows.kind == "window") & (rows.loop == loop) & (rows["where"] == where)].sort_values("at_s")
            axes.plot(own.at_s, 100.0 * own.share_above, color=colour, linestyle=style, linewidth=1.4, label=where)
        axes.set_ylabel(f"{loop} loop\nlate (%)")
        axes.set_ylim(0, None)
    panels[0].set_title(f"Share of late messages in windows of {WINDOW_S:g} s")
    panels[-1].set_xlabel("time (s)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)


_NOTES: Final = (
    f"The simulator runs the same places, rates, zones or groups, and seed. The first {START_S:g} s do not count in "
    "either. A live message also takes the work of client, relay and broker. A probe near each broker measures that "
    "work during the run, and the simulator adds what was measured at the same time to each delivery.",
    "The simulator starts moves at the phase of the live run, because the phase decides whether a change waits for the "
    "next plan: a change that is simulated just before a plan, and happens just behind it, is late for a period "
    "longer. The phases of the clients' reports, and in the paper's loop those of the homes, are random in the "
    "simulator, and live whatever they began with. So figures can still differ by chance.",
    "A run in which the 99th percentile of the relay's own error exceeds 2 ms is invalid: its claims are not judged.",
)
