"""The report of a demo: one JSON object, a table for the terminal and a Markdown page. `figures` draws."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tocsin.demo.deliveries import Deliveries, quantiles_s
from tocsin.demo.recomputation import Recomputed
from tocsin.demo.run import DemoOutcome
from tocsin.experiments.report import shown, table

PAPER: Final = {"frontend": 2_200, "backend": 600}
"""Subscriptions of 400 subscribers [BAD §6.1.2]."""
_WRONG: Final = ("lost", "repeated", "out_of_order", "unexpected", "gaps")
_ENOUGH: Final = 20
"""Subscriptions of a channel that make results in the last batch certain."""


def numbers(outcome: DemoOutcome) -> dict[str, Any]:
    """Return the object that `--json` prints."""
    account, samples, audit = outcome.account, outcome.samples, outcome.audit
    end_s, from_s = outcome.day_took_s, outcome.balancing_from_s
    last_s = max(from_s, end_s - 0.25 * (end_s - from_s))
    p50_s, p95_s = quantiles_s([Deliveries.of(account, account).latencies_s])
    return {
        "published": len(account.published),
        "delivered": audit.received,
        "expected": audit.expected,
        **{name: getattr(audit, name) for name in _WRONG},
        "recomputed": None if outcome.recomputed is None else asdict(outcome.recomputed),
        "recomputed_batch": None if outcome.batch is None else _batch(outcome.batch),
        "requested_subscriptions": outcome.requested,
        "granted_subscriptions": account.granted,
        "people": outcome.counts.as_json(),
        "frontend_subscriptions": account.frontend(),
        "backend_subscriptions": account.backend(),
        "cov_before": samples.cov_at(from_s),
        "cov_after": samples.cov_between(last_s, end_s),
        "maximum_before_bytes_per_s": samples.maximum_at(from_s),
        "maximum_after_bytes_per_s": samples.maximum_between(last_s, end_s),
        "migrations": outcome.hand_overs,
        "rounds": [
            {
                "at_s": round(moved.at_s, 1),
                "policy": moved.policy,
                "moves": moved.moves,
                "cov_before": moved.cov_before,
                "cov_after": moved.cov_after,
                "maximum_after_bytes_per_s": moved.maximum_after_bytes_per_s,
            }
            for moved in samples.rounds
        ],
        "latency_s_p50": p50_s,
        "latency_s_p95": p95_s,
        "notifications_per_s_most": max((sample.notifications_per_s for sample in samples.samples), default=0.0),
        "day_took_s": round(end_s, 1),
        "channels": _channels(outcome),
        "errors": outcome.errors,
        "findings": audit.findings,
        "settings": outcome.settings.as_json(),
    }


def _channels(outcome: DemoOutcome) -> list[dict[str, Any]]:
    by_channel = outcome.account.by_channel()
    rows = []
    for channel in outcome.channels:
        mine = by_channel.get(channel["name"], [])
        p50_s, p95_s = quantiles_s([Deliveries.of(outcome.account, mine).latencies_s])
        rows.append(
            {
                "name": channel["name"],
                "period_s": channel["period_s"],
                "frontend": len({(holding.person, holding.subscription) for holding in mine}),
                "backend": len({holding.subscription for holding in mine}),
                "executions": channel["executions"],
                "missed_ticks": channel["missed_ticks"],
                "last_duration_s": channel["last_duration_s"],
                "delivered": sum(len(holding.offsets) for holding in mine),
                "latency_s_p50": p50_s,
                "latency_s_p95": p95_s,
            }
        )
    return rows


def _batch(by_channel: dict[str, Recomputed]) -> dict[str, Any]:
    total = Recomputed()
    for compared in by_channel.values():
        total += compared
    return asdict(total) | {"channels": {channel: asdict(compared) for channel, compared in by_channel.items()}}


def problems(report: dict[str, Any]) -> list[str]:
    """Return why the demo failed, as sentences that say what to do; an empty list if it succeeded."""
    found = []
    missing = report["requested_subscriptions"] - report["granted_subscriptions"]
    if missing:
        found.append(
            f"{missing} of {report['requested_subscriptions']:,} subscribe requests were not granted: "
            "look for refusals in the brokers' logs, or give a slow machine more --minutes"
        )
    wrong = {name: report[name] for name in _WRONG if report[name]}
    wrong |= _wrong_again("recomputed", report) | _wrong_again("recomputed_batch", report)
    if wrong:
        counts = ", ".join(f"{name} {count}" for name, count in wrong.items())
        found.append(f"notifications were wrong ({counts}): this is a bug, please report it with the seed and the logs")
    if unchecked := _unchecked(report):
        found.append(
            f"the last batch did not check {', '.join(unchecked)}: no result was expected there; "
            "give the day more --minutes or more --subscribers"
        )
    if not report["delivered"]:
        found.append("no notification arrived: look into the logs, and give the day more --minutes")
    if report["errors"]:
        found.append(f"people ended with errors: {report['errors'][0]}; look into the brokers' logs")
    return found


def _unchecked(report: dict[str, Any]) -> list[str]:
    """The channels with many subscriptions for which the recomputation of the last batch expects no result."""
    if report["recomputed_batch"] is None:
        return []
    checked = {name for name, counts in report["recomputed_batch"]["channels"].items() if counts["expected"]}
    return [row["name"] for row in report["channels"] if row["frontend"] >= _ENOUGH and row["name"] not in checked]


def _wrong_again(name: str, report: dict[str, Any]) -> dict[str, int]:
    counts = report[name] or {}
    wrong = ("lost", "unexpected", "wrong_shelters")
    return {f"{name}.{wrong_name}": counts[wrong_name] for wrong_name in wrong if counts.get(wrong_name)}


CHANNEL_COLUMNS: Final = ("channel", "period", "FE", "BE", "executions", "missed", "delivered", "p50", "p95")


def channel_rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            channel["name"],
            "continuous" if channel["period_s"] is None else f"{channel['period_s']:g} s",
            *(f"{channel[name]:,}" for name in ("frontend", "backend", "executions", "missed_ticks", "delivered")),
            _seconds(channel["latency_s_p50"]),
            _seconds(channel["latency_s_p95"]),
        )
        for channel in report["channels"]
    ]


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def sentences(report: dict[str, Any]) -> list[str]:
    """Summarise the report in a few lines."""
    before, after, people = report["cov_before"], report["cov_after"], report["people"]
    return [
        f"{report['published']:,} reports published, {report['delivered']:,} notifications delivered, "
        f"lost {report['lost']}, repeated {report['repeated']}, out of order {report['out_of_order']}, "
        f"unexpected {report['unexpected']}, gaps {report['gaps']}",
        *_recomputations(report),
        f"{report['frontend_subscriptions']:,} frontend subscriptions (FE) are {report['backend_subscriptions']:,} "
        f"backend subscriptions (BE); the paper: about {PAPER['frontend']:,} and {PAPER['backend']:,} for 400 people",
        f"{report['granted_subscriptions']:,} of {report['requested_subscriptions']:,} subscribe requests granted; "
        f"{people['logins']:,} logins, {people['logouts']:,} logouts, {people['unsubscribes']:,} unsubscribes; "
        f"{people['updates']:,} positions stored, {people['updates_skipped']:,} skipped, "
        f"{people['updates_failed']:,} failed",
        f"cov before balancing {shown(before)}, after {shown(after)}; {report['migrations']:,} migrations in "
        f"{len(report['rounds'])} rounds; most loaded broker {_kilobytes(report['maximum_before_bytes_per_s'])} "
        f"before, {_kilobytes(report['maximum_after_bytes_per_s'])} after",
        f"from publisher to client, for people who were logged in: p50 {_seconds(report['latency_s_p50'])}, "
        f"p95 {_seconds(report['latency_s_p95'])}; "
        f"at most {report['notifications_per_s_most']:,.0f} notifications/s",
    ]


def _recomputations(report: dict[str, Any]) -> list[str]:
    day, batch = report["recomputed"], report["recomputed_batch"]
    lines = []
    if day is not None:
        lines.append(
            f"computed again from the reports alone, for {day['subscriptions']:,} subscriptions to kinds and places: "
            f"{day['expected']:,} expected, lost {day['lost']}, unexpected {day['unexpected']}"
        )
    if batch is not None:
        lines.append(
            f"last batch, computed again for {batch['subscriptions']:,} subscriptions of {len(batch['channels'])} "
            f"channels: {batch['expected']:,} expected, lost {batch['lost']}, unexpected {batch['unexpected']}, wrong "
            f"lists of shelters {batch['wrong_shelters']}, too close to an edge {batch['skipped']}"
        )
    return lines


def _kilobytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e3:,.0f} kB/s"


def show(report: dict[str, Any], files: Sequence[Path]) -> None:
    """Print the report to the terminal or a pipe."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140)
    drawn = Table(title="The emergency city", title_justify="left")
    for name in CHANNEL_COLUMNS:
        drawn.add_column(name, justify="left" if name == "channel" else "right")
    for row in channel_rows(report):
        drawn.add_row(*row)
    console.print(drawn)
    for line in sentences(report):
        console.print(line, highlight=False, markup=False)
    for error in report["errors"]:
        console.print(f"error: {error}", highlight=False, markup=False)
    for finding in report["findings"]:
        console.print(f"found: {finding}", highlight=False, markup=False)
    for problem in problems(report):
        console.print(f"failed: {problem}", highlight=False, markup=False)
    for path in files:
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)


def markdown(report: dict[str, Any], periods: dict[float, float], figures: Sequence[Path]) -> str:
    settings = report["settings"]
    changed = ", ".join(f"{was:g} s became {now:g} s" for was, now in sorted(periods.items()))
    rounds = [
        (moved["at_s"], moved["policy"], moved["moves"], moved["cov_before"], moved["cov_after"])
        for moved in report["rounds"]
    ]
    parts = [
        "# The emergency city",
        f"{settings['subscribers']} subscribers on {settings['brokers']} brokers, placement {settings['placement']}, "
        f"balancing {settings['balance']}, {settings['minutes']:g} min at speed {settings['speed']:g}, seed "
        f"{settings['seed']}. Periods were divided by the speed: {changed}.",
        "\n".join(f"- {line}" for line in sentences(report)),
        "\n".join(f"**Failed:** {problem}" for problem in problems(report)) or "Nothing failed.",
        *(f"![{path.stem}]({path.name})" for path in figures if path.suffix == ".png"),
        "## Channels",
        table(CHANNEL_COLUMNS, channel_rows(report)),
        "## Balancing rounds with moves",
        table(("at (s)", "policy", "moves", "cov before", "cov expected after"), rounds) if rounds else "None.",
    ]
    return "\n\n".join(parts) + "\n"
