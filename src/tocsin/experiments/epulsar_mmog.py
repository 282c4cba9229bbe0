"""Figure 9 of ePulsar: players whose groups re-form, and what one of them hears from the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from matplotlib.figure import Figure

from tocsin.experiments import figures
from tocsin.experiments.outcome import end_to_end_claims, end_to_end_metrics, episode_rows, episode_table
from tocsin.experiments.report import ExperimentReport, table
from tocsin.experiments.runner import Row
from tocsin.sim.kernel import seed_from
from tocsin.sim.topics import mmog

BOUND_MS = 100.0


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
        outcome = mmog.run(mmog.MmogSetting(setting["seed"], **setting["chosen"]))
        rows = episode_rows(
            setting["run"], outcome.latencies, outcome.moves, outcome.migrations, outcome.lost, BOUND_MS
        )
        rows.append({"kind": "regroupings", "run": setting["run"], "count": outcome.regroupings})
        if setting["run"] == 0:  # figure 9 shows what one player hears: the one that hears most late messages
            late = {
                player: sum(1e3 * latency_s > BOUND_MS for _, at_s, latency_s in heard if at_s > 10.0)
                for player, heard in outcome.heard.items()
            }
            rows += [
                {"kind": "message", "run": 0, "topic": name, "at_s": at_s, "latency_ms": 1e3 * latency_s}
                for name, at_s, latency_s in outcome.heard[max(sorted(late), key=lambda player: late[player])]
            ]
        return rows

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        rows = table_.to_pandas()
        metrics = end_to_end_metrics(rows) | {"regroupings": int(rows[rows.kind == "regroupings"]["count"].sum())}
        claims = end_to_end_claims(metrics, "[ePulsar §5.8.2, figure 9]", BOUND_MS)
        files = figures.draw(out, "epulsar-mmog", lambda figure: _draw(figure, rows), width_in=7.4, height_in=3.8)
        body = "## Per run\n\n" + table(*episode_table(rows))
        notes = [
            f"Five cities: {', '.join(mmog.CITIES)}; delays by great circle as in `epulsar-placement`. Topics start "
            "where hashing puts them; the figure shows the player that heard most late messages. Sixteen groups of "
            "about four. One message in 75 is followed."
        ]
        return ExperimentReport(metrics, claims, files, body, notes)


def _draw(figure: Figure, rows: Any) -> None:
    axes = figure.add_subplot()
    messages = rows[(rows.kind == "message") & (rows.run == 0)]
    for topic, mine in messages.groupby("topic"):
        city, mine = mmog.city_of(topic), mine.sort_values("at_s")
        # An avatar that leaves the area of interest and comes back later is two lines, not one across the gap.
        for _, stay in mine.groupby((mine.at_s.diff() > 3.0).cumsum()):
            axes.plot(
                stay.at_s, stay.latency_ms, color=figures.COLOURS[mmog.CITIES.index(city)], linewidth=1.2, alpha=0.8,
                label=f"avatar in {city}",
            )  # fmt: skip
    axes.set(
        title="What one player hears: a line per avatar while it is in the area of interest",
        xlabel="time (s)", ylabel="E2E latency (ms)",
    )  # fmt: skip
    axes.set_ylim(0, None)
    axes.set_xlim(0, float(messages.at_s.max()))
    figures.seed_line(axes, BOUND_MS, "bound in ePulsar: 100 ms")
    by_label = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(
        [by_label[label] for label in sorted(by_label)], sorted(by_label), loc="outside lower center", ncols=3
    )


EXPERIMENT = Mmog()
