"""The figures of a demo, in the look of the experiments: loads, cov, migrations, latencies."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tocsin.demo.run import Outcome
from tocsin.experiments import figures
from tocsin.policies.balance.settings import NONE, BalanceSettings

_KB: Final = 1e3
_PAPER: Final = BalanceSettings()


def draw(outcome: Outcome, out: Path) -> list[Path]:
    """Written as PNG and SVG; in the order in which they are read."""
    files = figures.draw(out, "demo-load", lambda figure: _loads(figure, outcome))
    files += figures.draw(out, "demo-cov", lambda figure: _cov(figure, outcome))
    files += figures.draw(out, "demo-migrations", lambda figure: _migrations(figure, outcome))
    return files + figures.draw(out, "demo-latency", lambda figure: _latencies(figure, outcome), height_in=3.6)


def _minutes(outcome: Outcome) -> list[float]:
    """The city's own time."""
    return [one.at_s * outcome.settings.speed / 60.0 for one in outcome.samples.samples]


def _mark_balancing(axes: Axes, outcome: Outcome) -> None:
    if outcome.settings.balance == NONE:
        return
    at = outcome.balancing_from_s * outcome.settings.speed / 60.0
    axes.axvline(at, color=figures.GREY, linestyle=":", linewidth=1.2)
    axes.annotate("balancing begins", (at, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -2), va="top",
                  textcoords="offset points", fontsize=7.5, color=figures.GREY)  # fmt: skip


def _loads(figure: Figure, outcome: Outcome) -> None:
    axes = figure.subplots()
    samples = outcome.samples.samples
    for number, broker in enumerate(sorted(samples[-1].loads_bytes_per_s)):
        loads = [one.loads_bytes_per_s.get(broker, 0.0) / _KB for one in samples]
        axes.plot(_minutes(outcome), loads, label=broker, color=figures.COLOURS[number % len(figures.COLOURS)],
                  marker=figures.MARKERS[number % len(figures.MARKERS)], markevery=(5 + 3 * number, 20))  # fmt: skip
    _mark_balancing(axes, outcome)
    axes.set(title="Load of each broker", xlabel="minutes in the city", ylabel="load (kB/s)")
    axes.set_ylim(bottom=0)
    figures.legend_below(figure, axes)


def _cov(figure: Figure, outcome: Outcome) -> None:
    axes = figure.subplots()
    scale = outcome.settings.speed / 60.0
    axes.plot(_minutes(outcome), [one.cov for one in outcome.samples.samples], color=figures.BLUE)
    for number, one in enumerate(outcome.samples.rounds):
        axes.plot([one.at_s * scale], [one.cov_before], marker="v", color=figures.ORANGE, linestyle="none",
                  label="a plan that moved somebody" if not number else None)  # fmt: skip
    figures.seed_line(axes, _PAPER.alpha, "α: migration above")
    figures.seed_line(axes, _PAPER.gamma, "γ: shuffle above")
    _mark_balancing(axes, outcome)
    axes.set(title="How uneven the brokers are", xlabel="minutes in the city", ylabel="cov of the loads")
    axes.set_ylim(bottom=0)
    if outcome.samples.rounds:
        figures.legend_below(figure, axes)


def _migrations(figure: Figure, outcome: Outcome) -> None:
    left, right = figure.subplots(1, 2)
    samples, minutes = outcome.samples.samples, _minutes(outcome)
    left.step(minutes, [one.hand_overs for one in samples], where="post", color=figures.ORANGE)
    _mark_balancing(left, outcome)
    left.set(title="(1) Migrations so far", xlabel="minutes in the city", ylabel="subscribers moved")
    left.set_ylim(bottom=0)
    for number, broker in enumerate(sorted(samples[-1].subscribers)):
        right.plot(minutes, [one.subscribers.get(broker, 0) for one in samples], label=broker,
                   color=figures.COLOURS[number % len(figures.COLOURS)],
                   marker=figures.MARKERS[number % len(figures.MARKERS)], markevery=(5 + 3 * number, 20))  # fmt: skip
    right.set(title="(2) Who serves how many", xlabel="minutes in the city", ylabel="subscribers")
    right.set_ylim(bottom=0)
    figures.legend_below(figure, right)


def _latencies(figure: Figure, outcome: Outcome) -> None:
    """One histogram per channel, stacked: how long each took is seen together with how many there were."""
    axes = figure.subplots()
    held = outcome.account.by_channel()
    names = [name for name in sorted(held) if any(len(one.latencies_s) for _, one in held[name])]
    values = [np.concatenate([np.array(one.latencies_s, np.float32) for _, one in held[name]]) for name in names]
    if not values:
        return
    most_s = max(1.0, float(np.quantile(np.concatenate(values), 0.995)))
    colours = [*figures.COLOURS, figures.GREY, "#222222"]
    axes.hist([np.minimum(one, most_s) for one in values], bins=np.linspace(0.0, most_s, 60).tolist(), stacked=True,
              label=names, color=colours[: len(names)])  # fmt: skip
    axes.set(title="From publisher to client", xlabel="seconds of real time", ylabel="notifications")
    figures.legend_below(figure, axes, columns=2)
