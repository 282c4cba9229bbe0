"""Figure 6 of ePulsar: monitoring traffic of a broker, with our reports or with every client's coordinate.

The broker's own core measures clients and makes the reports (`sim.topics.reporting_home`); both kinds of report are
encoded as the link to the coordinator encodes them. So a list of clients in the report would show here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from tocsin.broker.topics.client_coordinates import NAMED, REPORT_S
from tocsin.coords.coordinate import DIMENSIONS, Coordinate
from tocsin.experiments import figures
from tocsin.experiments.report import Claim, ExperimentReport, above, at_least, at_most, table
from tocsin.experiments.runner import Row
from tocsin.model.ids import TopicName
from tocsin.sim.kernel import seed_from
from tocsin.sim.topics.reporting_home import ReportingHome

TOPICS = (50, 100, 150, 200, 250)
CLIENTS = (2, 4, 8, 32, 128)
SCENARIOS = {8: "a swarm or group of 8 [ePulsar §5.5]", 4: "a group of 4 [ePulsar §5.8.2]"}
"""The clients of a topic in the paper's own scenarios: 16 swarms of 8, 1,024 players in 128 groups, 64 in 16."""
CONSIDERABLE = 2.0
"""Ours: the factor that counts as a considerable saving."""
CONSTANT = 1.02
"""Ours: the growth from 32 to 128 clients that counts as none. The counts have more digits then."""
HOME = Coordinate((0.0,) * DIMENSIONS, 0.005, 0.0, 0.1)
SPREAD_S = 0.03
"""Clients are at random places up to this far from the home, in each dimension."""


class AllPairsReport(msgspec.Struct, tag_field="type", tag="topic_all_pairs"):
    """The naive report of one topic [ePulsar §5.6]: the coordinate of every client, and the rates."""

    topic: TopicName
    epoch: int
    senders: list[Coordinate]
    receivers: list[Coordinate]
    in_per_s: float
    out_per_s: float


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
        """Sum the sizes of the encoded reports; half of a topic's clients produce, half consume."""
        rng, clients = np.random.default_rng(setting["seed"]), setting["clients"]
        topics = [TopicName(f"topic-{number:04}") for number in range(max(TOPICS))]
        home = ReportingHome(HOME, topics)
        for number, topic in enumerate(topics):
            for client, point in enumerate(rng.uniform(0.0, SPREAD_S, (clients, DIMENSIONS)).tolist()):
                coordinate = Coordinate(tuple(point), 0.005, 0.0, 0.1)
                home.attach(topic, f"user-{number * clients + client:06}", coordinate, sends=client < clients // 2)
        home.run_period()
        rows: list[Row] = []
        ours = naive = 0
        for number, topic in enumerate(topics, start=1):
            ours += len(msgspec.json.encode(home.reports[topic]))
            naive += len(msgspec.json.encode(_all_pairs(home, topic)))
            if number in TOPICS:
                for policy, size_bytes in (("partition", ours), ("all-pairs", naive)):
                    row: Row = {"run": setting["run"], "clients": clients, "topics": number, "policy": policy}
                    row |= {"bytes_per_topic": size_bytes / number, "bytes_per_s": size_bytes / REPORT_S}
                    rows.append(row)
        return rows

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        rows = table_.to_pandas()
        ours, naive = rows[rows.policy == "partition"], rows[rows.policy == "all-pairs"]
        per_client = naive.groupby("clients").bytes_per_topic.mean()
        own = ours.groupby("clients").bytes_per_topic.mean()
        factors = {int(clients): float(value / own[clients]) for clients, value in per_client.items()}
        metrics = {
            **{f"bytes_per_topic_{clients}_clients": float(value) for clients, value in own.items()},
            **{f"all_pairs_bytes_per_topic_{clients}_clients": float(value) for clients, value in per_client.items()},
            **{f"saving_factor_{clients}_clients": factor for clients, factor in factors.items()},
        }
        claims = _claims(factors, float(own[128] / own[32]))
        files = figures.draw(out, "epulsar-monitoring", lambda figure: _draw(figure, rows), width_in=6.4, height_in=3.6)
        body = "## Bytes per topic and report\n\n" + table(
            ("clients per topic", "Tocsin", "all pairs"),
            [(n, float(own[n]), float(per_client[n])) for n in CLIENTS],
        )
        notes = [
            f"A report is sent when something has changed, at most every {REPORT_S:g} s; the figure shows the traffic "
            "if every topic changes all the time. The paper gives no numbers for its figure.",
            "Both reports are JSON, as on the link to the coordinator, with coordinates rounded to microseconds. The "
            "naive one has no names of clients.",
        ]
        return ExperimentReport(metrics, claims, files, body, notes)


def _all_pairs(home: ReportingHome, topic: TopicName) -> AllPairsReport:
    senders, receivers = ([at.rounded() for at in coordinates] for coordinates in home.believed(topic))
    report = home.reports[topic]
    return AllPairsReport(topic, report.epoch, senders, receivers, report.in_per_s, report.out_per_s)


def _claims(factors: Mapping[int, float], growth: float) -> list[Claim]:
    six, saves = "[ePulsar §5.6, figure 6]", "considerable savings over naive AllPairs"
    named = f"our report names up to {NAMED} senders and {NAMED} receivers for maps"
    counts = f"{CONSIDERABLE:g} times counts as considerable; {_ENCODING}; {named}"
    sizes, same = ", ".join(map(str, factors)), "the data of a topic is independent of the number of clients"
    return [
        above("saving-at-every-size", six, saves, min(factors.values()), 1.0,
              f"times fewer bytes, at the worst of {sizes} clients", decided_by=f"{_ENCODING}; {named}"),
        *(at_least(f"saving-with-{clients}-clients", six, f"{saves}; {text}", factors.get(clients), CONSIDERABLE,
                   "times fewer bytes", decided_by=counts) for clients, text in SCENARIOS.items()),
        at_most("independent-of-clients", six, same, growth, CONSTANT, "times the bytes with 32 clients, with 128",
                decided_by=f"{CONSTANT} times counts as independent; {named}, so fewer clients are fewer bytes"),
    ]  # fmt: skip


_ENCODING = f"{DIMENSIONS + 3} numbers in a coordinate, as JSON"


def _draw(figure: Figure, rows: Any) -> None:
    axes = figure.add_subplot()
    ends = []
    for number, clients in enumerate(reversed(CLIENTS)):
        of_clients = rows[(rows.policy == "all-pairs") & (rows.clients == clients)]
        naive = of_clients.groupby("topics").bytes_per_s.mean() / 1e3
        axes.plot(naive.index, naive, color=figures.ORANGE, marker=figures.MARKERS[number + 1], alpha=1 - 0.18 * number)
        ends.append((float(naive.iloc[-1]), f"all pairs, {clients} clients per topic"))
    most = rows[(rows.policy == "partition") & (rows.clients == max(CLIENTS))]
    ours = most.groupby("topics").bytes_per_s.mean() / 1e3
    axes.plot(ours.index, ours, color=figures.BLUE, marker="o", linewidth=2.4)
    ends.append((float(ours.iloc[-1]), f"Tocsin, {max(CLIENTS)} clients or fewer"))
    axes.set_yscale("log")
    axes.set(title="Monitoring traffic of one broker", xlabel="topics hosted", ylabel="kB/s (log scale)", xticks=TOPICS)
    for value, text in _apart(ends):
        axes.annotate(
            text, (1.03 * max(TOPICS), value), fontsize=8, va="center", color="#222222", annotation_clip=False
        )


def _apart(ends: Sequence[tuple[float, str]], factor: float = 1.35) -> list[tuple[float, str]]:
    """Labels at line ends, pushed apart (on a log scale) where they would overlap."""
    placed: list[tuple[float, str]] = []
    for value, text in sorted(ends):
        placed.append((max(value, placed[-1][0] * factor) if placed else value, text))
    return placed


EXPERIMENT = Monitoring()
