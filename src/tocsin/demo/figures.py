"""The figures of a demo, in the look of the experiments: loads, cov, migrations, latencies."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tocsin.demo.deliveries import Deliveries
from tocsin.demo.run import DemoOutcome
from tocsin.experiments import figures
from tocsin.policies.balance.settings import NONE, BalanceSettings

_KB: Final = 1e3
_PAPER: Final = BalanceSettings()


def draw(outcome: DemoOutcome, out: Path) -> list[Path]:
    """Write every figure as PNG and SVG, and return the files in reading order."""
    files = figures.draw(out, "demo-load", lambda figure: _loads(figure, outcome))
    files += figures.draw(out, "demo-cov", lambda figure: _cov(figure, outcome))
    files += figures.draw(out, "demo-migrations", lambda figure: _migrations(figure, outcome))
    return files + figures.draw(out, "demo-latency", lambda figure: _latencies(figure, outcome), height_in=3.6)


def _minutes(outcome: DemoOutcome) -> list[float]:
    """Times of the samples, in minutes of the city's time."""
    return [sample.at_s * outcome.settings.speed / 60.0 for sample in outcome.samples.samples]


def _mark_balancing(axes: Axes, outcome: DemoOutcome) -> None:
    if outcome.settings.balance == NONE:
        return
    at = outcome.balancing_from_s * outcome.settings.speed / 60.0
    axes.axvline(at, color=figures.GREY, linestyle=":", linewidth=1.2)
    axes.annotate(
        "balancing begins",
        (at, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(3, -2),
        va="top",
        textcoords="offset points",
        fontsize=7.5,
        color=figures.GREY,
    )


def _loads(figure: Figure, outcome: DemoOutcome) -> None:
    axes = figure.subplots()
    samples = outcome.samples.samples
    for number, broker in enumerate(sorted(samples[-1].loads_bytes_per_s)):
        loads = [sample.loads_bytes_per_s.get(broker, 0.0) / _KB for sample in samples]
        axes.plot(
            _minutes(outcome),
            loads,
            label=broker,
            color=figures.COLOURS[number % len(figures.COLOURS)],
            marker=figures.MARKERS[number % len(figures.MARKERS)],
            markevery=(5 + 3 * number, 20),
        )
    _mark_balancing(axes, outcome)
    axes.set(title="Load of each broker", xlabel="minutes in the city", ylabel="load (kB/s)")
    axes.set_ylim(bottom=0)
    figures.legend_below(figure, axes)


def _cov(figure: Figure, outcome: DemoOutcome) -> None:
    axes = figure.subplots()
    scale = outcome.settings.speed / 60.0
    axes.plot(_minutes(outcome), [sample.cov for sample in outcome.samples.samples], color=figures.BLUE)
    for number, moved in enumerate(outcome.samples.rounds):
        axes.plot(
            [moved.at_s * scale],
            [moved.cov_before],
            marker="v",
            color=figures.ORANGE,
            linestyle="none",
            label="a plan with moves" if not number else None,
        )
    figures.seed_line(axes, _PAPER.alpha, "α: migration above")
    figures.seed_line(axes, _PAPER.gamma, "γ: shuffle above")
    _mark_balancing(axes, outcome)
    axes.set(title="How uneven the brokers are", xlabel="minutes in the city", ylabel="cov of the loads")
    axes.set_ylim(bottom=0)
    if outcome.samples.rounds:
        figures.legend_below(figure, axes)


def _migrations(figure: Figure, outcome: DemoOutcome) -> None:
    left, right = figure.subplots(1, 2)
    samples, minutes = outcome.samples.samples, _minutes(outcome)
    left.step(minutes, [sample.hand_overs for sample in samples], where="post", color=figures.ORANGE)
    _mark_balancing(left, outcome)
    left.set(title="(1) Migrations so far", xlabel="minutes in the city", ylabel="subscribers moved")
    left.set_ylim(bottom=0)
    for number, broker in enumerate(sorted(samples[-1].subscribers)):
        right.plot(
            minutes,
            [sample.subscribers.get(broker, 0) for sample in samples],
            label=broker,
            color=figures.COLOURS[number % len(figures.COLOURS)],
            marker=figures.MARKERS[number % len(figures.MARKERS)],
            markevery=(5 + 3 * number, 20),
        )
    right.set(title="(2) Subscribers per broker", xlabel="minutes in the city", ylabel="subscribers")
    right.set_ylim(bottom=0)
    figures.legend_below(figure, right)


def _latencies(figure: Figure, outcome: DemoOutcome) -> None:
    """Draw one histogram per channel, stacked, so that the figure shows times and counts."""
    axes = figure.subplots()
    by_channel = sorted(outcome.account.by_channel().items())
    latencies_s = {name: Deliveries.of(outcome.account, holdings).latencies_s for name, holdings in by_channel}
    names = [name for name, own_s in latencies_s.items() if len(own_s)]
    values = [latencies_s[name] for name in names]
    if not values:
        return
    most_s = max(1.0, float(np.quantile(np.concatenate(values), 0.995)))
    colours = [*figures.COLOURS, figures.GREY, "#222222"]
    axes.hist(
        [np.minimum(latencies, most_s) for latencies in values],
        bins=np.linspace(0.0, most_s, 60).tolist(),
        stacked=True,
        label=names,
        color=colours[: len(names)],
    )
    axes.set(title="From publisher to client", xlabel="seconds of real time", ylabel="notifications")
    figures.legend_below(figure, axes, columns=2)
