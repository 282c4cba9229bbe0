"""`tocsin experiment bad-testbed --live`: the demo's city once per placement and scheme, as rows of that experiment.

Experiments may not start processes; this may, and hands `experiments.bad_testbed` what it measured. One run after the
other, each on a new network with the same seed: the same people, wishes and reports.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tocsin.demo.run import DemoRun, Outcome
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
    minutes: float, seed: int, options: Mapping[str, str], out: Path, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Every combination, for `minutes` of real time each, and the report. Raises ValueError on unknown options."""
    known = dict(options)
    placements = _chosen(known.pop("placements", _PLACEMENTS), PLACEMENTS)
    schemes = _chosen(known.pop("schemes", _SCHEMES), SCHEMES)
    subscribers = int(known.pop("subscribers", "400"))
    if known:
        raise ValueError(f"bad-testbed --live has the options placements, schemes and subscribers, not {sorted(known)}")
    application = application_file()
    rows: list[Row] = []
    for placement in placements:
        for scheme in schemes:
            tell(f"{placement} + {scheme}")
            settings = DemoSettings(
                application, out / f"{placement}-{scheme}".lower().replace(" ", ""), subscribers,
                placement=PLACEMENTS[placement], balance=_balance(scheme), minutes=minutes,
                speed=max(1.0, PAPER_DAY_S / (60.0 * minutes)), seed=seed,
            )  # fmt: skip
            with asyncio.Runner(loop_factory=loop_factory()) as loop:
                outcome = loop.run(_one(settings, tell))
            rows += rows_of(outcome, {"seed": 0, "placement": placement, "scheme": scheme})
    speed = max(1.0, PAPER_DAY_S / (60.0 * minutes))
    how = (
        f"Live: {subscribers} subscribers over WebSockets, {minutes:g} min of real time a run: the paper's half hour "
        f"is {speed:g} times compressed; rounds, rests and averages too (docs/demo.md)."
    )
    command = f"tocsin experiment bad-testbed --live --minutes {minutes:g}"
    return runner.finish(LiveTestbed(how=how), 1, runner.table_of(rows), out, command)


async def _one(settings: DemoSettings, tell: Callable[[str], None]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="tocsin-testbed-") as folder:
        run = DemoRun(settings, Path(folder), tell)
        try:
            await run.start()
            outcome = await run.day()
        finally:
            await run.stop()
    if outcome.audit.lost or outcome.errors:
        raise TocsinError(Code.INTERNAL, f"{outcome.audit.lost} lost, errors: {outcome.errors}; a bug, keep the seed")
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


def rows_of(outcome: Outcome, labels: Mapping[str, Any]) -> list[Row]:
    """As `experiments.balance_runs.rows_of` makes them of a simulated run; times are the city's."""
    speed, pace = outcome.settings.speed, outcome.settings.pace
    samples, rounds = outcome.samples.samples, outcome.samples.rounds
    steady = [one for one in samples if one.at_s * speed >= STEADY_S * pace] or samples[-1:]
    first = rounds[0] if rounds else None
    run: Row = {
        **labels, "kind": "run", "cov": float(np.mean([one.cov for one in steady])),
        "maximum": float(np.mean([max(one.loads_bytes_per_s.values()) for one in steady])),
        "mean": float(np.mean([np.mean(list(one.loads_bytes_per_s.values())) for one in steady])),
        "migrations": outcome.hand_overs,
        "first_plan_s": None if first is None else first.at_s * speed,
        "first_plan_moves": None if first is None else first.moves,
        "shuffles": sum(one.policy in ("gsh", "affinity-shuffle") for one in rounds),
        "migrations_later": max(0, outcome.hand_overs - (0 if first is None else first.moves)),
        "most_subscribers": max(samples[-1].subscribers.values()),
        "fewest_subscribers": min(samples[-1].subscribers.values()),
    }  # fmt: skip
    return [run, *_curves(samples, speed, labels)]


def _curves(samples: Sequence[Any], speed: float, labels: Mapping[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for one in samples:
        at_s = round(one.at_s * speed, 1)
        loads = one.loads_bytes_per_s
        rows.append(
            {**labels, "kind": "sample", "at_s": at_s, "cov": one.cov, "maximum": max(loads.values()),
             "mean": float(np.mean(list(loads.values()))), "migrations": one.hand_overs}
        )  # fmt: skip
        rows += [
            {**labels, "kind": "broker", "at_s": at_s, "broker": number, "load": loads[broker],
             "people": one.subscribers[broker]}
            for number, broker in enumerate(sorted(loads))
        ]  # fmt: skip
    return rows
