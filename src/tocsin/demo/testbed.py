"""`tocsin experiment bad-testbed --live`: runs the demo's city once per placement and scheme and returns the rows.

Experiments may not start processes, so this module runs them and hands the rows to `experiments.bad_testbed`. The runs
follow each other, each on a new network with the same seed: the same people, subscriptions and reports.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tocsin.demo.run import DemoOutcome, DemoRun
from tocsin.demo.settings import PAPER_DAY_S, DemoSettings, application_file
from tocsin.experiments import runner
from tocsin.experiments.bad_testbed import PLACEMENTS, SCHEMES, LiveTestbed
from tocsin.experiments.balance_runs import STEADY_S
from tocsin.experiments.runner import Row
from tocsin.runtime.http.listening import loop_factory
from tocsin.wire.errors import Code, TocsinError

_PLACEMENTS: Final = "NR,RR"
_SCHEMES: Final = "none,LDM"


def run_live(
    minutes: float, seed: int, options: Mapping[str, str], out: Path, report_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Run every combination for `minutes` of real time and return the report. Raise ValueError on unknown options."""
    remaining = dict(options)
    placements = _chosen(remaining.pop("placements", _PLACEMENTS), PLACEMENTS)
    schemes = _chosen(remaining.pop("schemes", _SCHEMES), SCHEMES)
    subscribers = int(remaining.pop("subscribers", "400"))
    if remaining:
        raise ValueError(
            f"bad-testbed --live has the options placements, schemes and subscribers, not {sorted(remaining)}"
        )
    application = application_file()
    rows: list[Row] = []
    for placement in placements:
        for scheme in schemes:
            report_progress(f"{placement} + {scheme}")
            settings = DemoSettings(
                application,
                out / f"{placement}-{scheme}".lower().replace(" ", ""),
                subscribers,
                placement=PLACEMENTS[placement],
                balance=_balance(scheme),
                minutes=minutes,
                speed=max(1.0, PAPER_DAY_S / (60.0 * minutes)),
                seed=seed,
            )
            with asyncio.Runner(loop_factory=loop_factory()) as loop:
                outcome = loop.run(_run_city(settings, report_progress))
            rows += rows_of(outcome, {"seed": 0, "placement": placement, "scheme": scheme})
    speed = max(1.0, PAPER_DAY_S / (60.0 * minutes))
    how = (
        f"Live: {subscribers} subscribers over WebSockets, {minutes:g} min of real time a run: the paper's half hour "
        f"is {speed:g} times compressed; rounds, rests and averages too (docs/demo.md)."
    )
    command = f"tocsin experiment bad-testbed --live --minutes {minutes:g}"
    return runner.finish(LiveTestbed(how=how), 1, runner.table_of(rows), out, command)


async def _run_city(settings: DemoSettings, report_progress: Callable[[str], None]) -> DemoOutcome:
    with tempfile.TemporaryDirectory(prefix="tocsin-testbed-") as folder:
        run = DemoRun(settings, Path(folder), report_progress)
        try:
            await run.start()
            outcome = await run.run_day()
        finally:
            await run.stop()
    if outcome.audit.lost or outcome.errors:
        raise TocsinError(
            Code.INTERNAL, f"{outcome.audit.lost} lost, errors: {outcome.errors}; this is a bug, keep the seed"
        )
    return outcome


def _chosen(text: str, known: Mapping[str, Any]) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ValueError(f"{name!r}: expected some of {', '.join(known)}, separated by commas")
    return names


def _balance(scheme: str) -> str:
    chosen = SCHEMES[scheme]
    return chosen["scheme"] if chosen["shuffle"] == "none" else f"{chosen['scheme']}+{chosen['shuffle']}"


def rows_of(outcome: DemoOutcome, labels: Mapping[str, Any]) -> list[Row]:
    """Return the rows that `experiments.balance_runs.rows_of` makes of a simulated run; times are the city's."""
    speed, pace = outcome.settings.speed, outcome.settings.pace
    samples, rounds = outcome.samples.samples, outcome.samples.rounds
    steady = [sample for sample in samples if sample.at_s * speed >= STEADY_S * pace] or samples[-1:]
    first = rounds[0] if rounds else None
    run: Row = {
        **labels,
        "kind": "run",
        "cov": float(np.mean([sample.cov for sample in steady])),
        "maximum": float(np.mean([max(sample.loads_bytes_per_s.values()) for sample in steady])),
        "mean": float(np.mean([np.mean(list(sample.loads_bytes_per_s.values())) for sample in steady])),
        "migrations": outcome.hand_overs,
        "first_plan_s": None if first is None else first.at_s * speed,
        "first_plan_moves": None if first is None else first.moves,
        "shuffles": sum(moved.policy in ("gsh", "affinity-shuffle") for moved in rounds),
        "migrations_later": max(0, outcome.hand_overs - (0 if first is None else first.moves)),
        "most_subscribers": max(samples[-1].subscribers.values()),
        "fewest_subscribers": min(samples[-1].subscribers.values()),
    }
    return [run, *_curves(samples, speed, labels)]


def _curves(samples: Sequence[Any], speed: float, labels: Mapping[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for sample in samples:
        at_s = round(sample.at_s * speed, 1)
        loads = sample.loads_bytes_per_s
        rows.append(
            {
                **labels,
                "kind": "sample",
                "at_s": at_s,
                "cov": sample.cov,
                "maximum": max(loads.values()),
                "mean": float(np.mean(list(loads.values()))),
                "migrations": sample.hand_overs,
            }
        )
        rows += [
            {
                **labels,
                "kind": "broker",
                "at_s": at_s,
                "broker": number,
                "load": loads[broker],
                "people": sample.subscribers[broker],
            }
            for number, broker in enumerate(sorted(loads))
        ]
    return rows
