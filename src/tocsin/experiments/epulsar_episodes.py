"""The parts that the UAV and MMOG experiments share: settings, rows of an episode, metrics, claims and the table.

Both experiments run the paper's control loop and Tocsin's on the same seeds, and once with each deliberate mistake: if
the observer does not find the mistakes, the claim that nothing is lost is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tocsin.experiments.report import NO_CHOICE, Claim, at_most, equals, shown, table
from tocsin.experiments.runner import Row
from tocsin.sim.kernel import seed_from
from tocsin.sim.topics.control import LOOPS, PERIOD_S, Episode, transients
from tocsin.sim.topics.world import Mistake

TRANSIENT_AT_MOST_S = 2 * PERIOD_S
"""The longest acceptable transient: two reporting periods."""
STARTED_S = 60.0
"""Topics start at the home that hashing chooses. Moves before this time say nothing about the scenario."""
OCCASIONS_PER_MOVE = 20
"""Ours: with fewer than one move in so many regroupings or changes of zone, no claim about moving topics is judged."""
MISTAKEN_S = 60.0
"""Duration of a run with a mistake."""
MESSAGES_AT_LEAST = 50
"""Ours: a topic with fewer messages has no share of late messages."""


def episode_settings(
    name: str,
    runs: int,
    options: Mapping[str, str],
    numbers: Sequence[str],
    mistakes: Sequence[Mistake] = tuple(Mistake),
) -> list[dict[str, Any]]:
    """A setting per run and loop, and one per mistake. `numbers` are the options that the scenario accepts as they are.

    Common options: `loops` (paper,tocsin), `seed` (of the first run; the next has the next), `rate_share` (1: the
    paper's message rates).
    """
    chosen = {key: float(options[key]) for key in numbers if key in options}
    share = float(options.get("rate_share", "1"))
    loops = options.get("loops", ",".join(LOOPS)).split(",")
    if not set(loops) <= set(LOOPS):
        raise ValueError(f"loops are {', '.join(LOOPS)}, not {options['loops']}")
    settings: list[dict[str, Any]] = []
    for run in range(runs):
        seed = int(options["seed"]) + run if "seed" in options else seed_from(name, run)
        common = {"seed": seed, "run": run, "chosen": chosen, "rate_share": share}
        settings += [{**common, "loop": loop, "mistake": None} for loop in loops]
        if run == 0:
            settings += [{**common, "loop": "tocsin", "mistake": mistake.value} for mistake in mistakes]
    return settings


def mistake_row(setting: Mapping[str, Any], episode: Episode) -> Row:
    return {"kind": "mistake", "run": setting["run"], "mistake": setting["mistake"], **_faults(episode)}


def _faults(episode: Episode) -> Row:
    seen = episode.deliveries
    return {"lost": seen.outstanding, "repeated": seen.repeated, "out_of_order": seen.out_of_order}


def episode_rows(key: Row, episode: Episode, bound_ms: float, occasions_s: Sequence[float]) -> list[Row]:
    """A row per topic, per transient and per move, and a summary row, each with the key (run, loop, bound).

    `occasions_s` are the times at which something changed that may ask for a move: regroupings or changes of zone.
    """
    key = {**key, "bound_ms": bound_ms}
    by_topic = episode.deliveries.latencies
    rows: list[Row] = [
        {"kind": "topic", **key, "topic": name, "share_above": _share_above(latencies, bound_ms)}
        for name, latencies in by_topic.items()
        if len(latencies) >= MESSAGES_AT_LEAST
    ]
    for name, latencies in by_topic.items():
        for span in transients(latencies, bound_ms * 1e-3):
            row: Row = {"kind": "transient", **key, "topic": name, "at_s": span.began_s}
            rows.append(row | {"duration_s": span.duration_s, "peak_ms": 1e3 * span.peak_s})
    for move in episode.moves:
        row = {"kind": "move", **key, "topic": move.topic, "at_s": move.at_s, "source": move.source}
        rows.append(row | {"target": move.target, "returned": move.returned, "followed": move.followed})
    every_ms = 1e3 * np.array([latency_s for pairs in by_topic.values() for _, latency_s in pairs])
    downtimes_s = [downtime_s for migration in episode.migrations for downtime_s in migration.downtimes_s]
    row = {"kind": "run", **key, "messages": len(every_ms), "out_of_reach": episode.deliveries.out_of_reach}
    row |= {**_faults(episode), "occasions": sum(at_s > STARTED_S for at_s in occasions_s)}
    row |= {
        "median_ms": float(np.median(every_ms)) if len(every_ms) else None,
        "late": int((every_ms > bound_ms).sum()),
    }
    return [*rows, row | {"downtime_ms": 1e3 * float(np.median(downtimes_s)) if downtimes_s else None}]


def _share_above(latencies: Sequence[tuple[float, float]], bound_ms: float) -> float:
    """The share of the messages that took longer than the bound."""
    return float(np.mean([1e3 * latency_s > bound_ms for _, latency_s in latencies]))


def episode_metrics(rows: Any) -> dict[str, Any]:
    """The metrics of one loop at one bound, over its runs. Shares are of the messages that some broker could deliver
    within the bound."""
    runs, moves, late = rows[rows.kind == "run"], rows[rows.kind == "move"], rows[rows.kind == "transient"]
    topics = rows[rows.kind == "topic"]
    returned = moves[moves.returned == True]  # noqa: E712  the column holds nulls for other kinds of rows
    messages, out_of_reach = int(runs.messages.sum()), int(runs.out_of_reach.sum())
    started = late[late.at_s > STARTED_S]
    return {
        "moves": len(moves),
        "moves_after_start": int((moves.at_s > STARTED_S).sum()),
        "occasions_after_start": int(runs.occasions.sum()),
        "moves_back_and_forth": int((returned.followed == False).sum()),  # noqa: E712
        "moves_back_with_their_clients": int((returned.followed == True).sum()),  # noqa: E712
        "transients": len(late),
        "longest_transient_s": float(late.duration_s.max()) if len(late) else None,
        "longest_transient_after_start_s": float(started.duration_s.max()) if len(started) else None,
        "share_late": float(runs.late.sum()) / messages if messages else None,
        "share_late_worst_topic": float(topics.share_above.max()) if len(topics) else None,
        "share_out_of_reach": out_of_reach / (messages + out_of_reach) if messages + out_of_reach else None,
        "median_latency_ms": float(runs.median_ms.median()),
        "median_client_downtime_ms": float(runs.downtime_ms.median()) if runs.downtime_ms.notna().any() else None,
        "lost": int(runs.lost.sum()),
        "repeated": int(runs.repeated.sum()),
        "out_of_order": int(runs.out_of_order.sum()),
    }


def too_few_moves(metrics: Mapping[str, Any], occasion: str) -> str:
    """The reason why no claim about moving topics can be judged; empty if enough topics moved."""
    moves, occasions = metrics["moves_after_start"], metrics["occasions_after_start"]
    if moves and moves * OCCASIONS_PER_MOVE >= occasions:
        return ""
    return f"void: {moves} moves in {occasions} {occasion} after {STARTED_S:g} s, so bounds are met without moving"


def episode_claims(
    metrics: Mapping[str, Any],
    *,
    at: str,
    source: str,
    statement: str,
    above_at_most: float,
    decided_by: str,
    void: str,
) -> list[Claim]:
    """`at` names loop and bound; `statement` is the paper's about the time below the bound, `above_at_most` our reading
    of it. `void` is the reason why the claims cannot be judged, if any."""
    longest_s, share = metrics["longest_transient_s"], metrics["share_late_worst_topic"]
    returns = "a return without the clients within a minute counts"
    counts = f"{above_at_most:.0%} counts; {decided_by}"
    late = "of the messages that some broker could deliver in time, at the worst topic"
    return [
        at_most(f"below-bound-mostly-{at}", source, statement, None if void else share, above_at_most, late,
                decided_by=counts, missing=void or "no topic had enough messages"),
        at_most(f"transients-end-{at}", source, "latency violations are transient", None if void else longest_s,
                TRANSIENT_AT_MOST_S, "s, the longest", decided_by="two reporting periods count as transient",
                missing=void or "no message was late"),
        equals(f"no-back-and-forth-{at}", "beyond the paper", "not measured there",
               None if void else metrics["moves_back_and_forth"], 0, decided_by=returns, missing=void),
    ]  # fmt: skip


def nothing_lost(rows: Any) -> tuple[Claim, dict[str, Any]]:
    """The claim that no delivery was lost, repeated or out of order, and what the observer found with each mistake."""
    runs, wrong = rows[rows.kind == "run"], rows[rows.kind == "mistake"]
    faults = ["lost", "repeated", "out_of_order"]
    found = {f"mistake_{row.mistake}": int(sum(getattr(row, fault) for fault in faults)) for row in wrong.itertuples()}
    unnoticed = [name for name, count in found.items() if not count]
    reason = f"void: the observer did not notice {', '.join(unnoticed)}" if unnoticed else "no mistake was tried"
    total = int(runs[faults].to_numpy().sum()) if found and not unnoticed else None
    beyond = ("beyond the paper", "deliveries lost, repeated or out of order: not measured there")
    return equals("nothing-lost", *beyond, total, 0, decided_by=NO_CHOICE, missing=reason), found


def episode_table(metrics_of: Mapping[str, Mapping[str, Any]]) -> str:
    """The report's table, one line per loop and bound."""
    columns = (
        *("loop and bound", "late (%)", "late at the worst topic (%)", "longest transient (s)"),
        f"the same, begun after {STARTED_S:g} s",
        *("moves after it", "occasions after it", "back and forth", "out of reach (%)"),
    )
    lines = []
    for name, metrics in metrics_of.items():
        percent = [None if metrics[key] is None else 100.0 * metrics[key]
                   for key in ("share_late", "share_late_worst_topic", "share_out_of_reach")]  # fmt: skip
        longest = (metrics["longest_transient_s"], metrics["longest_transient_after_start_s"])
        counts = (metrics["moves_after_start"], metrics["occasions_after_start"], metrics["moves_back_and_forth"])
        lines.append((name, percent[0], percent[1], *longest, *counts, percent[2]))
    return "## Both control loops\n\n" + table(columns, lines)


def status(claims: Sequence[Claim]) -> str:
    """Which claims hold, which do not and which are void, one plain sentence each."""
    lines = ["## Status"]
    for verdict, title in ((True, "holds"), (False, "does not hold"), (None, "not judged")):
        for claim in (claim for claim in claims if claim.holds is verdict):
            figure = f": {shown(claim.ours)}" if verdict else f": {claim.differs}"
            lines.append(f"- `{claim.id}` {title}{figure}")
    return "\n".join(lines)
