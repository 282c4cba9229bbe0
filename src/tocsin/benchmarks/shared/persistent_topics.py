"""The rows of persistent topics in `bench topics`: a topic with one replica beside a stream of JetStream.

Both servers acknowledge a message after the fsync that stored it, and deliver it when it is stored. Both get the same
number of messages in flight, so both may put as many of them into one fsync.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tocsin.benchmarks.shared.topic_servers import TopicServer, persistent_servers

OURS, PEER = "tocsin", "jetstream"
FIGURES = ("acknowledged_p50_s", "acknowledged_p99_s", "p50_s", "p99_s", "messages_per_s", "deliveries_per_cpu_s")
"""Publish to acknowledgement, publish to delivery, and rates."""
RATIOS = {
    "ratio_acknowledged_p50_jetstream": "acknowledged_p50_s",
    "ratio_p50_jetstream": "p50_s",
    "ratio_messages_jetstream": "messages_per_s",
    "ratio_rate_jetstream": "deliveries_per_cpu_s",
}
Measure = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Runs a load (its module) with a task."""


@dataclass(frozen=True, slots=True)
class PersistentRow:
    payload_bytes: int
    in_flight: int
    """Messages that wait for their acknowledgement."""

    def __str__(self) -> str:
        return f"persistent, {self.payload_bytes} B, {self.in_flight} in flight"


async def measure_persistent(
    rows: Sequence[PersistentRow], rounds: int, folder: Path, measure: Measure, announce: Callable[[str], None]
) -> list[dict[str, Any]]:
    figures: list[dict[str, Any]] = []
    async with persistent_servers(folder) as servers:
        for row in rows:
            measured: dict[str, list[dict[str, Any]]] = {server.server: [] for server in servers}
            for number in range(rounds):
                for server in servers[:: 1 if number % 2 == 0 else -1]:
                    measured[server.server].append(await measure("window_load", _task(row, server)))
            figures.append(persistent_summary(row, measured))
            announce(_line(row, figures[-1]))
    return figures


def _task(row: PersistentRow, server: TopicServer) -> dict[str, Any]:
    return asdict(row) | asdict(server) | {"subscribers": 1}


def persistent_summary(row: PersistentRow, measured: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """The medians of each server, and of the ratios of the same round."""
    servers = {
        name: {figure: statistics.median(one[figure] for one in own) for figure in FIGURES}
        for name, own in measured.items()
    }
    ratios: dict[str, float] = {}
    if PEER in measured:
        for name, figure in RATIOS.items():
            pairs = zip(measured[OURS], measured[PEER], strict=True)
            ratios[name] = statistics.median(ours[figure] / theirs[figure] for ours, theirs in pairs)
    return asdict(row) | {"servers": servers} | ratios


def _line(row: PersistentRow, figures: dict[str, Any]) -> str:
    servers = "; ".join(
        f"{name} acknowledged p50 {own['acknowledged_p50_s'] * 1e6:,.0f} µs, "
        f"p99 {own['acknowledged_p99_s'] * 1e6:,.0f} µs, received p50 {own['p50_s'] * 1e6:,.0f} µs, "
        f"p99 {own['p99_s'] * 1e6:,.0f} µs, "
        f"{own['messages_per_s']:,.0f}/s, {own['deliveries_per_cpu_s']:,.0f}/CPU s"
        for name, own in figures["servers"].items()
    )
    return f"{row}: {servers}; " + ", ".join(f"{name} {figures[name]:.2f}" for name in RATIOS if name in figures)
