"""Figure 9 of ePulsar: players in groups that re-form, and the latencies of the messages that one player receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from matplotlib.figure import Figure

from tocsin.experiments import figures
from tocsin.experiments.epulsar_episodes import episode_claims, episode_metrics, episode_rows, episode_table
from tocsin.experiments.report import ExperimentReport
from tocsin.experiments.runner import Row
from tocsin.sim.kernel import seed_from
from tocsin.sim.topics import mmog

BOUND_MS = 100.0
CONSISTENT = 0.05
"""Ours: "consistently below" allows this share of late messages, at the worst topic."""


@dataclass(frozen=True)
class Mmog:
    name: str = "epulsar-mmog"
    title: str = "Players in groups that re-form (ePulsar, figure 9)"
    default_runs: int = 4

    def settings(self, runs: int, **options: str) -> Sequence[Mapping[str, Any]]:
        """Options: `duration_s` (600), `delay_per_ping` (1; see `epulsar-placement`)."""
        chosen = {key: float(options[key]) for key in ("duration_s", "delay_per_ping") if key in options}
        return [{"seed": seed_from(self.name, run), "run": run, "chosen": chosen} for run in range(runs)]

    def run(self, setting: Mapping[str, Any]) -> list[Row]:
        episode = mmog.run(mmog.MmogSetting(setting["seed"], **setting["chosen"]))
        rows = episode_rows(setting["run"], episode, BOUND_MS)
        rows.append({"kind": "regroupings", "run": setting["run"], "count": episode.regroupings})
        if setting["run"] == 0:  # figure 9 shows one player: the one that receives most late messages
            late = {
                player: sum(1e3 * latency_s > BOUND_MS for _, at_s, latency_s in received if at_s > 10.0)
                for player, received in episode.received.items()
            }
            rows += [
                {"kind": "message", "run": 0, "topic": name, "at_s": at_s, "latency_ms": 1e3 * latency_s}
                for name, at_s, latency_s in episode.received[max(sorted(late), key=lambda player: late[player])]
            ]
        return rows

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        rows = table_.to_pandas()
        metrics = episode_metrics(rows) | {"regroupings": int(rows[rows.kind == "regroupings"]["count"].sum())}
        statement, ping = "consistently below 100 ms", "a message takes a whole ping one way"
        claims = episode_claims(metrics, "[ePulsar §5.8.2, figure 9]", statement, CONSISTENT, ping)
        files = figures.draw(out, "epulsar-mmog", lambda figure: _draw(figure, rows), width_in=7.4, height_in=3.8)
        notes = [
            f"Five cities: {', '.join(mmog.CITIES)}; delays by great circle as in `epulsar-placement`. Hashing "
            "chooses the first home of a topic; the figure shows the player that received most late messages. Sixteen "
            "groups of about four. The simulation follows one message in 75."
        ]
        return ExperimentReport(metrics, claims, files, episode_table(rows), notes)


def _draw(figure: Figure, rows: Any) -> None:
    axes = figure.add_subplot()
    messages = rows[(rows.kind == "message") & (rows.run == 0)]
    for topic, of_topic in messages.groupby("topic"):
        city, of_topic = mmog.city_of(topic), of_topic.sort_values("at_s")
        style: Any = {"color": figures.COLOURS[mmog.CITIES.index(city)], "linewidth": 1.2, "alpha": 0.8}
        # An avatar that leaves the area of interest and returns later gets two lines, not one across the gap.
        for _, stay in of_topic.groupby((of_topic.at_s.diff() > 3.0).cumsum()):
            axes.plot(stay.at_s, stay.latency_ms, label=f"avatar in {city}", **style)
    axes.set(xlabel="time (s)", ylabel="E2E latency (ms)")
    axes.set_title("Messages that one player receives: a line per avatar in the area of interest")
    axes.set_ylim(0, None)
    axes.set_xlim(0, float(messages.at_s.max()))
    figures.seed_line(axes, BOUND_MS, "bound in ePulsar: 100 ms")
    by_label = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    labels = sorted(by_label)
    figure.legend([by_label[label] for label in labels], labels, loc="outside lower center", ncols=3)


EXPERIMENT = Mmog()
