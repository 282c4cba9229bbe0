"""`tocsin bench soak`: what an hour of constant load does to CPU time, memory and delivery times.

The emergency city of `tocsin demo` runs on the real network. People log in, subscribe and change their minds in the
first sixth of the run; the load is constant afterwards.
Compared: the last sixth of the run with its second sixth; in an hour these are the last ten minutes and minutes 10-20.
CPU time and resident memory of each server process, and p95 from publisher to client of each kind of channel.
Checked by: the demo's audit and its second computation of the results; nothing may be lost.
Prints: the largest growth of each of the three, the growth of each process, and the lost results. `load_growth` says
how constant the load was: it is the growth of the notifications delivered, since reports fall where chance puts them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, temporary_folder

if TYPE_CHECKING:
    from tocsin.benchmarks.shared.city_deliveries import CityDeliveries
    from tocsin.benchmarks.shared.city_watch import CityWatch
    from tocsin.demo.run import DemoOutcome

SHARE = 1 / 6
"""Share of the run that each of the compared windows has, and the share before the first."""


def soak(
    minutes: Annotated[float, typer.Option(help="Length of the run.", min=0.5)] = 60.0,
    speed: Annotated[float, typer.Option(help="Speed of the city: 5.6 reports/s for each unit.", min=1)] = 4.0,
    subscribers: Annotated[int, typer.Option(help="Number of people in the city.", min=1)] = 400,
    seed: Annotated[int, typer.Option(help="Seed of the day.", min=0)] = 7,
) -> dict[str, Any]:
    """Growth of CPU time, memory and delivery times under constant load."""
    from tocsin.runtime.http.listening import loop_factory
    from tocsin.runtime.http.logs import configure_logs

    configure_logs("error")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(measure(minutes, speed, subscribers, seed))


register = command(soak, needs=("psutil",))


async def measure(minutes: float, speed: float, subscribers: int, seed: int) -> dict[str, Any]:
    from tocsin.benchmarks.shared.city_watch import watched_day
    from tocsin.demo.run import DemoRun
    from tocsin.demo.settings import DemoSettings, application_file

    with temporary_folder() as name:
        folder = Path(name)
        settings = DemoSettings(
            application_file(),
            folder / "out",
            subscribers,
            minutes=minutes,
            speed=speed,
            seed=seed,
            changing_share=SHARE,
        )
        run = DemoRun(settings, folder, announce)
        try:
            await run.start()
            return _figures(*await watched_day(run, folder / "data", probes=False))
        finally:
            await run.stop()


def _figures(outcome: DemoOutcome, watch: CityWatch, deliveries: CityDeliveries) -> dict[str, Any]:
    from tocsin.benchmarks.shared.city_deliveries import lost_of, problems_of
    from tocsin.benchmarks.shared.usage import cores_between, memory_between

    began_s, took_s = outcome.began_s, outcome.day_took_s
    early = (began_s + SHARE * took_s, began_s + 2 * SHARE * took_s)
    late = (began_s + (1 - SHARE) * took_s, began_s + took_s)
    cores = [cores_between(watch.usage, *window) for window in (early, late)]
    memory = [memory_between(watch.usage, *window) for window in (early, late)]
    quantiles = [deliveries.quantiles(window) for window in (early, late)]
    p95s = [{name: found[name] for name in ("continuous_p95_s", "repetitive_p95_s")} for found in quantiles]
    delivered = [{"delivered": found["continuous_deliveries"] + found["repetitive_deliveries"]} for found in quantiles]
    problems = problems_of(outcome)
    for problem in problems:
        announce(f"failed: {problem}")
    by_process = {
        "cpu": growths(*cores),
        "rss": growths(*memory),
        "p95": growths(*p95s),
        "load": growths(*delivered),
    }
    for name, grown in by_process.items():
        announce(f"{name}: " + ", ".join(f"{part} {factor:.2f} ×" for part, factor in grown.items()))
    return {
        **{f"{name}_growth": max(grown.values(), default=None) for name, grown in by_process.items()},
        "growth": by_process,
        "early": {"cores": cores[0], "rss_mib": memory[0]} | p95s[0] | delivered[0],
        "late": {"cores": cores[1], "rss_mib": memory[1]} | p95s[1] | delivered[1],
        "published": len(outcome.account.published),
        "delivered": outcome.audit.received,
        "lost": lost_of(outcome),
        "correct": not problems,
    }


def growths(early: Mapping[str, float | None], late: Mapping[str, float | None]) -> dict[str, float]:
    """Late over early, by name. Names without both figures are left out."""
    return {name: after / before for name, before in early.items() if before and (after := late.get(name)) is not None}
