"""What a demo says in the end: numbers as one object, a table for people, a Markdown page. Computes; draws nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tocsin.demo.account import quantiles_s
from tocsin.demo.run import Outcome
from tocsin.experiments.report import shown, table

PAPER: Final = {"frontend": 2_200, "backend": 600}
"""Of 400 subscribers [BAD §6.1.2]."""
_WRONG: Final = ("lost", "repeated", "out_of_order", "unexpected", "gaps")


def numbers(outcome: Outcome) -> dict[str, Any]:
    """What `--json` prints."""
    account, samples, audit = outcome.account, outcome.samples, outcome.audit
    end_s, from_s = outcome.day_took_s, outcome.balancing_from_s
    last_s = max(from_s, end_s - 0.25 * (end_s - from_s))
    overall = quantiles_s(one.latencies_s for one in account.holdings.values())
    return {
        "published": len(account.published),
        "delivered": audit.received,
        "expected": audit.expected,
        **{name: getattr(audit, name) for name in _WRONG},
        "recomputed": {
            "subscriptions": outcome.recomputed.subscriptions, "expected": outcome.recomputed.expected,
            "lost": outcome.recomputed.lost, "unexpected": outcome.recomputed.unexpected,
        },
        "frontend_subscriptions": account.frontend(),
        "backend_subscriptions": account.backend(),
        "cov_before": samples.cov_at(from_s),
        "cov_after": samples.cov_between(last_s, end_s),
        "maximum_before_bytes_per_s": samples.maximum_at(from_s),
        "maximum_after_bytes_per_s": samples.maximum_between(last_s, end_s),
        "migrations": outcome.hand_overs,
        "rounds": [
            {"at_s": round(one.at_s, 1), "policy": one.policy, "moves": one.moves, "cov_before": one.cov_before,
             "cov_after": one.cov_after}
            for one in samples.rounds
        ],
        "latency_s_p50": None if overall is None else overall[0],
        "latency_s_p95": None if overall is None else overall[1],
        "notifications_per_s_most": max((one.notifications_per_s for one in samples.samples), default=0.0),
        "day_took_s": round(end_s, 1),
        "channels": _channels(outcome),
        "errors": outcome.errors,
        "settings": outcome.settings.as_json(),
    }  # fmt: skip


def _channels(outcome: Outcome) -> list[dict[str, Any]]:
    held = outcome.account.by_channel()
    found = []
    for said in outcome.channels:
        mine = held.get(said["name"], [])
        quantiles = quantiles_s(holding.latencies_s for _, holding in mine)
        found.append(
            {
                "name": said["name"], "period_s": said["period_s"], "frontend": len(mine),
                "backend": len({name for name, _ in mine}), "executions": said["executions"],
                "missed_ticks": said["missed_ticks"], "last_duration_s": said["last_duration_s"],
                "delivered": sum(len(holding.offsets) for _, holding in mine),
                "latency_s_p50": None if quantiles is None else quantiles[0],
                "latency_s_p95": None if quantiles is None else quantiles[1],
            }
        )  # fmt: skip
    return found


def failed(report: dict[str, Any]) -> bool:
    wrong = any(report[name] for name in _WRONG) or report["recomputed"]["lost"] or report["recomputed"]["unexpected"]
    return bool(wrong or report["errors"] or not report["delivered"])


CHANNEL_COLUMNS: Final = (
    "channel", "period", "FE", "BE", "executions", "missed", "delivered", "p50", "p95"
)  # fmt: skip


def channel_rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            one["name"], "as it happens" if one["period_s"] is None else f"{one['period_s']:g} s",
            f"{one['frontend']:,}", f"{one['backend']:,}", f"{one['executions']:,}", f"{one['missed_ticks']:,}",
            f"{one['delivered']:,}", _seconds(one["latency_s_p50"]), _seconds(one["latency_s_p95"]),
        )
        for one in report["channels"]
    ]  # fmt: skip


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def sentences(report: dict[str, Any]) -> list[str]:
    """The whole story in a few lines."""
    again = report["recomputed"]
    before, after = report["cov_before"], report["cov_after"]
    return [
        f"{report['published']:,} reports published, {report['delivered']:,} notifications delivered, "
        f"lost {report['lost']}, repeated {report['repeated']}, out of order {report['out_of_order']}, "
        f"unexpected {report['unexpected']}, gaps {report['gaps']}",
        f"computed again from the reports alone, for {again['subscriptions']:,} subscriptions to kinds and places: "
        f"{again['expected']:,} expected, lost {again['lost']}, unexpected {again['unexpected']}",
        f"{report['frontend_subscriptions']:,} frontend subscriptions (FE) are {report['backend_subscriptions']:,} "
        f"backend subscriptions (BE); the paper: about {PAPER['frontend']:,} and {PAPER['backend']:,} for 400 people",
        f"cov before balancing {shown(before)}, after {shown(after)}; {report['migrations']:,} migrations in "
        f"{len(report['rounds'])} rounds; most loaded broker {_kilobytes(report['maximum_before_bytes_per_s'])} "
        f"before, {_kilobytes(report['maximum_after_bytes_per_s'])} after",
        f"from publisher to client: p50 {_seconds(report['latency_s_p50'])}, p95 {_seconds(report['latency_s_p95'])}; "
        f"at most {report['notifications_per_s_most']:,.0f} notifications/s",
    ]


def _kilobytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e3:,.0f} kB/s"


def show(report: dict[str, Any], files: Sequence[Path]) -> None:
    """On the terminal, or into a pipe."""
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
    for path in files:
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)


def markdown(report: dict[str, Any], periods: dict[float, float], figures: Sequence[Path]) -> str:
    settings = report["settings"]
    told = ", ".join(f"{was:g} s became {now:g} s" for was, now in sorted(periods.items()))
    rounds = [
        (one["at_s"], one["policy"], one["moves"], one["cov_before"], one["cov_after"]) for one in report["rounds"]
    ]
    parts = [
        "# The emergency city",
        f"{settings['subscribers']} subscribers on {settings['brokers']} brokers, placement {settings['placement']}, "
        f"balancing {settings['balance']}, {settings['minutes']:g} min at speed {settings['speed']:g}, seed "
        f"{settings['seed']}. Periods were divided by the speed: {told}.",
        "\n".join(f"- {line}" for line in sentences(report)),
        *(f"![{path.stem}]({path.name})" for path in figures if path.suffix == ".png"),
        "## Channels",
        table(CHANNEL_COLUMNS, channel_rows(report)),
        "## Rounds of the balancer that moved somebody",
        table(("at (s)", "policy", "moves", "cov before", "cov expected after"), rounds) if rounds else "None.",
    ]
    return "\n\n".join(parts) + "\n"
