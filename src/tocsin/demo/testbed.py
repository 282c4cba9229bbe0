"""`tocsin experiment bad-testbed --live`: runs the demo's city once per placement and scheme and returns the rows.

Experiments may not start processes, so this module runs them and hands the rows to `experiments.bad_testbed_live`. Each
run has a new network with the same seed: the same people, subscriptions, logouts and reports.
Loads are measured: the bytes that brokers fetched and delivered.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tocsin.demo.load_windows import load_windows, measured_loads
from tocsin.demo.run import DemoOutcome, DemoRun
from tocsin.demo.samples import DemoSample
from tocsin.demo.settings import DemoSettings, application_file
from tocsin.experiments import runner
from tocsin.experiments.bad_testbed import PLACEMENTS
from tocsin.experiments.bad_testbed_live import WRONG, LiveTestbed
from tocsin.experiments.runner import Row
from tocsin.runtime.http.listening import loop_factory
from tocsin.sim.city.subscriptions import PAPER_CHANNELS

SCHEMES: Final = {
    "none": ("none", "none"),
    "LDM": ("LDM", "ldm"),
    "SDM": ("SDM", "sdm"),
    "GSH": ("LDM + GSH", "ldm+gsh"),
    "affinity": ("affinity", "affinity+affinity"),
}
"""The name in the experiment's table, and the demo's `--balance`, by the name on the command line."""
_WARM_UPS: Final = 1
"""One execution per channel is enough here: the phases before balancing are not measured."""
_OPTIONS: Final = ("placements", "schemes", "subscribers", "speed", "seed", "at_once")


def run_live(
    minutes: float, options: Mapping[str, str], out: Path, report_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Run every combination for `minutes` of real time and return the report. Raise ValueError on unknown options."""
    if unknown := sorted(options.keys() - set(_OPTIONS)):
        raise ValueError(f"bad-testbed --live has the options {', '.join(_OPTIONS)}, not {', '.join(unknown)}")
    placements = _chosen(options.get("placements", ",".join(PLACEMENTS)), PLACEMENTS)
    schemes = _chosen(options.get("schemes", ",".join(SCHEMES)), SCHEMES)
    application, speed = application_file(), float(options.get("speed", "1"))
    if not speed >= 1.0:
        raise ValueError(f"speed={speed:g}: expected at least 1")
    planned = [
        _PlannedRun(
            f"{placement} + {scheme}",
            {"seed": 0, "placement": placement, "scheme": SCHEMES[scheme][0]},
            DemoSettings(
                application,
                out / f"{placement}-{scheme}".lower(),
                int(options.get("subscribers", "400")),
                placement=PLACEMENTS[placement],
                balance=SCHEMES[scheme][1],
                minutes=minutes,
                speed=speed,
                seed=int(options.get("seed", "7")),
                channels=PAPER_CHANNELS,
                warm_ups=_WARM_UPS,
                recompute=False,
            ),
        )
        for placement in placements
        for scheme in schemes
    ]
    rows: list[Row] = []
    how: tuple[str, ...] = ()
    # Each run has a process of its own: a run that lasts longer does not delay the clients of another.
    with ProcessPoolExecutor(int(options.get("at_once", "1")), multiprocessing.get_context("spawn")) as pool:
        for number, (made, described) in enumerate(pool.map(_make, planned), start=1):
            report_progress(f"{number} of {len(planned)} runs are done")
            rows, how = rows + made, described
    command = f"tocsin experiment bad-testbed --live --minutes {minutes:g}"
    command += "".join(f" --set {name}={value}" for name, value in options.items())
    return runner.finish(LiveTestbed(how=how), 1, runner.table_of(rows), out, command)


@dataclass(frozen=True, slots=True)
class _PlannedRun:
    name: str
    labels: Mapping[str, Any]
    settings: DemoSettings


def _make(planned: _PlannedRun) -> tuple[list[Row], tuple[str, ...]]:
    """Make one run; return its rows and how it was made. Runs in a process of its own."""

    def report_progress(text: str) -> None:
        sys.stderr.write(f"{planned.name}: {text}\n")
        sys.stderr.flush()

    with asyncio.Runner(loop_factory=loop_factory()) as loop:
        outcome = loop.run(_run_city(planned.settings, report_progress))
    return rows_of(outcome, planned.labels), _how(outcome)


async def _run_city(settings: DemoSettings, report_progress: Callable[[str], None]) -> DemoOutcome:
    with tempfile.TemporaryDirectory(prefix="tocsin-testbed-") as folder:
        run = DemoRun(settings, Path(folder), report_progress)
        try:
            await run.start()
            outcome = await run.run_day()
        finally:
            await run.stop()
    wrong = {name: count for name, count in _wrong(outcome).items() if count}
    if wrong:
        report_progress(f"WRONG: {wrong} {' '.join((*outcome.errors, *outcome.audit.findings))}")
    return outcome


def _chosen(text: str, known: Mapping[str, Any]) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ValueError(f"{name!r}: expected some of {', '.join(known)}, separated by commas")
    return names


def _how(outcome: DemoOutcome) -> tuple[str, ...]:
    settings, flags = outcome.settings, outcome.settings.coordinator_flags()
    periods = "/".join(f"{period_s:g}" for period_s in sorted(set(outcome.periods.values())))
    thresholds = outcome.samples.balance
    return (
        f"Live: {settings.subscribers} subscribers over WebSockets, the paper's seven channels with periods of "
        f"{periods} s, {settings.minutes:g} min of real time a run at speed {settings.speed:g}. Logins and "
        f"subscriptions take the first {100 * settings.balancing_from_s / settings.day_s:.0f} % of a run.",
        f"α = {thresholds['alpha']:g} and γ = {thresholds['gamma']:g} are the paper's. It gives no β and θ for the "
        f"testbed; ours are {thresholds['beta_bytes_per_s']:g} and {thresholds['theta_bytes_per_s']:g} bytes/s. Rounds "
        f"every {flags['balance-s']} s, {thresholds['hits']} hits, rest {flags['rest-s']} s. A window has "
        f"{window_s(outcome):g} s.",
    )


# -- rows --------------------------------------------------------------------------------------------------------------


def window_s(outcome: DemoOutcome) -> float:
    """The length of a window: the averaging window of λ, and at least two of the longest periods."""
    return max(outcome.settings.rate_window_s, 2.0 * max(outcome.periods.values(), default=0.0))


def rows_of(outcome: DemoOutcome, labels: Mapping[str, Any]) -> list[Row]:
    """Return the rows that `experiments.balance_runs.rows_of` makes of a simulated run, with measured loads, and one
    row per window and broker. Times are the city's."""
    samples, rounds = outcome.samples.samples, outcome.samples.rounds
    first, last = (rounds[0], rounds[-1]) if rounds else (None, None)
    loads = steady_loads(outcome)
    run: Row = {
        **labels,
        "kind": "run",
        "cov": _cov(loads),
        "maximum": float(loads.max(initial=0.0)),
        "mean": float(loads.mean()) if len(loads) else 0.0,
        "promised_cov": None if last is None else last.cov_after,
        "promised_maximum": None if last is None else last.maximum_after_bytes_per_s,
        "migrations": outcome.hand_overs,
        "first_plan_s": None if first is None else first.at_s * outcome.settings.speed,
        "first_plan_moves": None if first is None else first.moves,
        "shuffles": sum(moved.policy in ("gsh", "affinity-shuffle") for moved in rounds),
        "migrations_later": max(0, outcome.hand_overs - (0 if first is None else first.moves)),
        "most_subscribers": max(samples[-1].subscribers.values()),
        "fewest_subscribers": min(samples[-1].subscribers.values()),
        "frontend": outcome.account.frontend(),
        "backend": outcome.account.backend(),
        "delivered": outcome.audit.received,
        "logouts": outcome.counts.logouts,
        "updates_skipped": outcome.counts.updates_skipped,
        "updates_failed": outcome.counts.updates_failed,
        **_wrong(outcome),
    }
    return [run, *_curves(outcome, labels), *_windows(outcome, labels)]


def _wrong(outcome: DemoOutcome) -> dict[str, int]:
    counts = {name: getattr(outcome.audit, name, 0) for name in WRONG}
    return counts | {"not_granted": outcome.requested - outcome.account.granted, "errors": len(outcome.errors)}


def steady_loads(outcome: DemoOutcome) -> Any:
    """The measured load of each broker over the second half of the time with balancing, at least one window."""
    samples = outcome.samples.samples
    end_s = samples[-1].at_s
    half_s = 0.5 * (end_s - outcome.balancing_from_s)
    from_s = end_s - max(half_s, window_s(outcome))
    start = next((sample for sample in samples if sample.at_s >= from_s), samples[0])
    return np.array(list(measured_loads(start, samples[-1]).values()))


def _cov(loads: Any) -> float:
    return float(loads.std() / loads.mean()) if len(loads) and loads.mean() > 0.0 else 0.0


def _curves(outcome: DemoOutcome, labels: Mapping[str, Any]) -> list[Row]:
    """The measured loads over time, each over the window before it."""
    samples, speed, length_s = outcome.samples.samples, outcome.settings.speed, window_s(outcome)
    rows: list[Row] = []
    for sample in samples[1:]:
        loads = measured_loads(_latest_until(samples, sample.at_s - length_s), sample)
        if not loads:
            continue
        at_s, values = round(sample.at_s * speed, 1), np.array(list(loads.values()))
        rows.append(
            {
                **labels,
                "kind": "sample",
                "at_s": at_s,
                "cov": _cov(values),
                "maximum": float(values.max()),
                "mean": float(values.mean()),
                "migrations": sample.hand_overs,
            }
        )
        rows += [
            {
                **labels,
                "kind": "broker",
                "at_s": at_s,
                "broker": _number(sample, broker),
                "load": load,
                "people": sample.subscribers[broker],
            }
            for broker, load in loads.items()
        ]
    return rows


def _windows(outcome: DemoOutcome, labels: Mapping[str, Any]) -> list[Row]:
    samples = outcome.samples.samples
    return [
        {
            **labels,
            "kind": "window",
            "at_s": round(window.at_s * outcome.settings.speed, 1),
            "broker": _number(samples[-1], window.broker),
            "modelled": window.modelled_bytes_per_s,
            "forecast": window.forecast_bytes_per_s,
            "measured": window.measured_bytes_per_s,
            "live": window.live_bytes_per_s,
            "migrations": window.migrations,
            "follows_migration": window.follows_migration,
            "session_changes": window.session_changes,
        }
        for window in load_windows(samples, outcome.balancing_from_s, window_s(outcome))
    ]


def _latest_until(samples: Sequence[DemoSample], at_s: float) -> DemoSample:
    return next((sample for sample in reversed(samples) if sample.at_s <= at_s), samples[0])


def _number(sample: DemoSample, broker: str) -> int:
    return sorted(sample.subscribers).index(broker)
