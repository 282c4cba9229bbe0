"""What the two end-to-end experiments have in common: rows of an episode, and the claims about transients and moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tocsin.experiments.report import Claim, at_most, below, equals
from tocsin.experiments.runner import Row
from tocsin.policies.topics.types import TopicName
from tocsin.sim.topics.control import PERIOD_S, MoveMade
from tocsin.sim.topics.migration import Migration
from tocsin.sim.topics.transients import transients

TRANSIENT_AT_MOST_S = 2 * PERIOD_S
"""Two reporting periods."""


def episode_rows(
    run: int,
    latencies: Mapping[TopicName, Sequence[tuple[float, float]]],
    moves: Sequence[MoveMade],
    migrations: Sequence[Migration],
    lost: int,
    bound_ms: float,
) -> list[Row]:
    """A row per transient and per move, and one that sums the run up."""
    rows: list[Row] = []
    for name, found in latencies.items():
        rows += [
            {"kind": "transient", "run": run, "topic": name, "at_s": one.began_s, "duration_s": one.duration_s,
             "peak_ms": 1e3 * one.peak_s}
            for one in transients(found, bound_ms * 1e-3)
        ]  # fmt: skip
    rows += [
        {"kind": "move", "run": run, "topic": one.topic, "at_s": one.at_s, "source": one.source, "target": one.target,
         "returned": one.returned, "followed": one.followed}
        for one in moves
    ]  # fmt: skip
    every_ms = 1e3 * np.concatenate([[latency_s for _, latency_s in found] for found in latencies.values() if found])
    downtimes_s = [down for one in migrations for down in one.downtimes_s]
    rows.append(
        {
            "kind": "run", "run": run, "messages": len(every_ms), "lost": lost,
            "median_ms": float(np.median(every_ms)), "share_above": float((every_ms > bound_ms).mean()),
            "downtime_ms": 1e3 * float(np.median(downtimes_s)) if downtimes_s else None,
        }
    )  # fmt: skip
    return rows


def end_to_end_metrics(rows: Any) -> dict[str, Any]:
    runs, moves, late = rows[rows.kind == "run"], rows[rows.kind == "move"], rows[rows.kind == "transient"]
    returned = moves[moves.returned == True]  # noqa: E712  the column holds nulls for other kinds of rows
    return {
        "moves": len(moves),
        "moves_back_and_forth": int((returned.followed == False).sum()),  # noqa: E712
        "moves_back_with_their_clients": int((returned.followed == True).sum()),  # noqa: E712
        "transients": len(late),
        "longest_transient_s": float(late.duration_s.max()) if len(late) else 0.0,
        "share_of_messages_above_bound": float(np.average(runs.share_above, weights=runs.messages)),
        "median_latency_ms": float(runs.median_ms.median()),
        "median_client_downtime_ms": float(runs.downtime_ms.median()),
        "deliveries_lost": int(runs.lost.sum()),
    }


def end_to_end_claims(metrics: Mapping[str, Any], source: str, bound_ms: float) -> list[Claim]:
    return [
        below("median-below-bound", source, f"below {bound_ms:g} ms for most of the time", metrics["median_latency_ms"],
              bound_ms, "ms"),
        at_most("transients-end", source, "latency violations are transient", metrics["longest_transient_s"],
                TRANSIENT_AT_MOST_S, "s, the longest"),
        equals("no-back-and-forth", "beyond the paper", "not measured there", metrics["moves_back_and_forth"], 0),
        equals("nothing-lost", "beyond the paper", "not measured there", metrics["deliveries_lost"], 0),
    ]  # fmt: skip


def episode_table(rows: Any) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Columns and rows of the table in the report."""
    columns = ("run", "moves", "transients", "longest (s)", "above the bound (%)", "median (ms)", "downtime (ms)")
    lines = []
    for one in rows[rows.kind == "run"].itertuples():
        mine = rows[rows.run == one.run]
        late = mine[mine.kind == "transient"]
        longest_s = float(late.duration_s.max()) if len(late) else 0.0
        lines.append(
            (int(one.run), int((mine.kind == "move").sum()), len(late), longest_s, 100.0 * float(one.share_above),
             float(one.median_ms), float(one.downtime_ms))
        )  # fmt: skip
    return columns, lines
