"""The parts that the UAV and MMOG experiments share: rows of an episode, metrics, claims and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tocsin.experiments.report import Claim, at_most, equals, table
from tocsin.experiments.runner import Row
from tocsin.sim.topics.control import PERIOD_S, Episode, transients

TRANSIENT_AT_MOST_S = 2 * PERIOD_S
"""The longest acceptable transient: two reporting periods."""


def episode_rows(run: int, episode: Episode, bound_ms: float) -> list[Row]:
    """A row per topic, per transient and per move, and a summary row."""
    rows: list[Row] = [
        {"kind": "topic", "run": run, "topic": name, "share_above": _share_above(latencies, bound_ms)}
        for name, latencies in episode.latencies.items()
        if latencies
    ]
    for name, latencies in episode.latencies.items():
        for span in transients(latencies, bound_ms * 1e-3):
            row: Row = {"kind": "transient", "run": run, "topic": name, "at_s": span.began_s}
            rows.append(row | {"duration_s": span.duration_s, "peak_ms": 1e3 * span.peak_s})
    for move in episode.moves:
        row = {"kind": "move", "run": run, "topic": move.topic, "at_s": move.at_s, "source": move.source}
        rows.append(row | {"target": move.target, "returned": move.returned, "followed": move.followed})
    every_ms = 1e3 * np.array([latency_s for pairs in episode.latencies.values() for _, latency_s in pairs])
    downtimes_s = [downtime_s for migration in episode.migrations for downtime_s in migration.downtimes_s]
    row = {"kind": "run", "run": run, "messages": len(every_ms), "lost": episode.lost}
    row |= {"median_ms": float(np.median(every_ms)), "share_above": float((every_ms > bound_ms).mean())}
    return [*rows, row | {"downtime_ms": 1e3 * float(np.median(downtimes_s)) if downtimes_s else None}]


def _share_above(latencies: Sequence[tuple[float, float]], bound_ms: float) -> float:
    """The share of the messages that took longer than the bound."""
    return float(np.mean([1e3 * latency_s > bound_ms for _, latency_s in latencies]))


def episode_metrics(rows: Any) -> dict[str, Any]:
    runs, moves, late = rows[rows.kind == "run"], rows[rows.kind == "move"], rows[rows.kind == "transient"]
    topics = rows[rows.kind == "topic"]
    returned = moves[moves.returned == True]  # noqa: E712  the column holds nulls for other kinds of rows
    return {
        "moves": len(moves),
        "moves_back_and_forth": int((returned.followed == False).sum()),  # noqa: E712
        "moves_back_with_their_clients": int((returned.followed == True).sum()),  # noqa: E712
        "transients": len(late),
        "longest_transient_s": float(late.duration_s.max()) if len(late) else None,
        "share_above_bound_worst_topic": float(topics.share_above.max()) if len(topics) else None,
        "share_of_messages_above_bound": float(np.average(runs.share_above, weights=runs.messages)),
        "median_latency_ms": float(runs.median_ms.median()),
        "median_client_downtime_ms": float(runs.downtime_ms.median()),
        "deliveries_lost": int(runs.lost.sum()),
    }


def episode_claims(
    metrics: Mapping[str, Any], source: str, statement: str, above_at_most: float, decided_by: str
) -> list[Claim]:
    """`statement` is the paper's about the time below the bound; `above_at_most` is our reading of it."""
    beyond, transient = ("beyond the paper", "not measured there"), "latency violations are transient"
    longest_s, share = metrics["longest_transient_s"], metrics["share_above_bound_worst_topic"]
    counts = f"{above_at_most:.0%} counts; {decided_by}"
    periods = "clients and brokers report together, and at a change of gateway"
    returned = metrics["moves_back_and_forth"] if metrics["moves"] else None
    return [
        at_most("below-bound-mostly", source, statement, share, above_at_most,
                "of the messages above the bound, at the worst topic", decided_by=counts),
        at_most("transients-end", source, transient, longest_s, TRANSIENT_AT_MOST_S, "s, the longest",
                decided_by=periods, missing="no message was late"),
        equals("no-back-and-forth", *beyond, returned, 0, missing="no topic moved"),
        equals("nothing-lost", *beyond, metrics["deliveries_lost"], 0),
    ]  # fmt: skip


def episode_table(rows: Any) -> str:
    """The report's table, one line per run."""
    columns = ("run", "moves", "transients", "longest (s)", "above the bound (%)", "median (ms)", "downtime (ms)")
    lines = []
    for run in rows[rows.kind == "run"].itertuples():
        of_run = rows[rows.run == run.run]
        late = of_run[of_run.kind == "transient"]
        longest_s = float(late.duration_s.max()) if len(late) else 0.0
        counts = (int(run.run), int((of_run.kind == "move").sum()), len(late))
        times = (float(run.median_ms), float(run.downtime_ms))
        lines.append((*counts, longest_s, 100.0 * float(run.share_above), *times))
    return "## Per run\n\n" + table(columns, lines)
