"""Figure 6 of ePulsar: monitoring traffic of a broker, with constant-size reports or with every client's coordinate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from tocsin.coords.coordinate import DIMENSIONS, Coordinate
from tocsin.experiments import figures
from tocsin.experiments.report import ExperimentReport, above, at_least, table
from tocsin.experiments.runner import Row
from tocsin.model.ids import BrokerId
from tocsin.policies.topics.monitor import pack, pack_all_pairs, summarise
from tocsin.policies.topics.types import TopicName
from tocsin.sim.kernel import seed_from
from tocsin.sim.topics.control import PERIOD_S

TOPICS = (100, 250, 500, 750, 1000)
CLIENTS = (2, 4, 8, 32, 128)
SCENARIOS = {8: "a swarm or group of 8 [ePulsar §5.5]", 4: "a group of 4 [ePulsar §5.8.2]"}
"""The clients of a topic in the paper's own scenarios: 16 swarms of 8, 1,024 players in 128 groups, 64 in 16."""
CONSIDERABLE = 2.0
"""Ours: the factor that counts as a considerable saving."""


@dataclass(frozen=True)
class Monitoring:
    name: str = "epulsar-monitoring"
    title: str = "Monitoring traffic of a broker (ePulsar, figure 6)"
    default_runs: int = 1

    def settings(self, runs: int, **options: str) -> Sequence[Mapping[str, Any]]:
        return [
            {"seed": seed_from(self.name, run, clients), "run": run, "clients": clients}
            for run in range(runs)
            for clients in CLIENTS
        ]

    def run(self, setting: Mapping[str, Any]) -> list[Row]:
        """Sum the sizes of the packed reports; half of a topic's clients produce, half consume."""
        rng, half = np.random.default_rng(setting["seed"]), setting["clients"] // 2
        rows: list[Row] = []
        ours = naive = 0
        for number in range(max(TOPICS)):
            points = rng.uniform(0.0, 0.1, (2 * half, DIMENSIONS)).tolist()
            clients = [Coordinate(tuple(point), 0.005, 0.0, 0.1) for point in points]
            name = TopicName(f"topic-{number:04}")
            report = summarise(name, BrokerId("broker-00"), Coordinate(), clients[:half], clients[half:])
            ours += len(pack(report))
            naive += len(pack_all_pairs(report, clients[:half], clients[half:]))
            if number + 1 in TOPICS:
                for policy, size_bytes in (("partition", ours), ("all-pairs", naive)):
                    row: Row = {"run": setting["run"], "clients": 2 * half, "topics": number + 1, "policy": policy}
                    row |= {"bytes_per_topic": size_bytes / (number + 1), "bytes_per_s": size_bytes / PERIOD_S}
                    rows.append(row)
        return rows

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        rows = table_.to_pandas()
        ours, naive = rows[rows.policy == "partition"], rows[rows.policy == "all-pairs"]
        spread = float(ours.bytes_per_topic.max() - ours.bytes_per_topic.min())
        per_client = naive.groupby("clients").bytes_per_topic.mean()
        most = float(per_client.loc[max(CLIENTS)] / ours.bytes_per_topic.mean())
        metrics = {
            "bytes_per_topic": float(ours.bytes_per_topic.mean()),
            "bytes_per_topic_spread_over_clients": spread,
            **{f"all_pairs_bytes_per_topic_{clients}_clients": float(value) for clients, value in per_client.items()},
            "saving_factor_at_128_clients": most,
        }
        six, saves, encoding = "[ePulsar §5.6, figure 6]", "considerable savings over naive AllPairs", _ENCODING
        own = ours.groupby("clients").bytes_per_topic.mean()
        factors = {int(clients): float(value / own[clients]) for clients, value in per_client.items()}
        counts = f"{encoding}; {CONSIDERABLE:g} times counts as considerable"
        claims = [
            above("saving-at-every-size", six, saves, min(factors.values()), 1.0,
                  f"times fewer bytes, at the worst of {', '.join(map(str, factors))} clients", decided_by=encoding),
            *(at_least(f"saving-with-{clients}-clients", six, f"{saves}; {text}", factors.get(clients), CONSIDERABLE,
                       "times fewer bytes", decided_by=counts) for clients, text in SCENARIOS.items()),
        ]  # fmt: skip
        files = figures.draw(out, "epulsar-monitoring", lambda figure: _draw(figure, rows), width_in=6.4, height_in=3.6)
        body = "## Bytes per topic and report\n\n" + table(
            ("clients per topic", "Tocsin", "all pairs"),
            [(n, float(ours[ours.clients == n].bytes_per_topic.mean()), float(per_client[n])) for n in CLIENTS],
        )
        notes = [
            f"A coordinate is {DIMENSIONS + 3} numbers of 8 bytes; a report is sent every {PERIOD_S:g} s. The paper "
            "gives no numbers for its figure. With two clients per topic both are equal.",
            "That our report is constant and that the naive one grows with the clients follows from the two encodings: "
            "both are metrics, not claims.",
        ]
        return ExperimentReport(metrics, claims, files, body, notes)


_ENCODING = f"{DIMENSIONS + 3} numbers of 8 bytes in a coordinate"


def _draw(figure: Figure, rows: Any) -> None:
    axes = figure.add_subplot()
    ends = []
    for number, clients in enumerate(reversed(CLIENTS)):
        of_clients = rows[(rows.policy == "all-pairs") & (rows.clients == clients)]
        naive = of_clients.groupby("topics").bytes_per_s.mean() / 1e3
        axes.plot(naive.index, naive, color=figures.ORANGE, marker=figures.MARKERS[number + 1], alpha=1 - 0.18 * number)
        ends.append((float(naive.iloc[-1]), f"all pairs, {clients} clients per topic"))
    ours = rows[rows.policy == "partition"].groupby("topics").bytes_per_s.mean() / 1e3
    axes.plot(ours.index, ours, color=figures.BLUE, marker="o", linewidth=2.4)
    ends.append((float(ours.iloc[-1]), "Tocsin, any number of clients"))
    axes.set_yscale("log")
    axes.set(title="Monitoring traffic of one broker", xlabel="topics hosted", ylabel="kB/s (log scale)", xticks=TOPICS)
    for value, text in _apart(ends):
        axes.annotate(text, (1030, value), fontsize=8, va="center", color="#222222", annotation_clip=False)


def _apart(ends: Sequence[tuple[float, str]], factor: float = 1.35) -> list[tuple[float, str]]:
    """Labels at line ends, pushed apart (on a log scale) where they would overlap."""
    placed: list[tuple[float, str]] = []
    for value, text in sorted(ends):
        placed.append((max(value, placed[-1][0] * factor) if placed else value, text))
    return placed


EXPERIMENT = Monitoring()
