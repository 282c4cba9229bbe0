"""`tocsin bench city`: from a publisher's report to the people's phones, in the emergency city of `tocsin demo`.

Timed: each delivery, from the publisher's send to the client's receipt, through the real gateway, Spark, brokers and
WebSocket clients. *Cold* are the first minutes after the network's start, as in `make demo`. *Warm* is the same network
minutes later. `demo/deliveries.py` says what counts, and `shared/stages.py` how a delivery is split.
Measured besides: missed ticks of the warm minutes, cores and memory of each process, and the CPU time of one round of
all channels without the network (`shared/city_round.py`).
Checked by: the demo's audit and its second computation of the results from the reports alone; nothing may be lost,
repeated, out of order or unexpected.
Prints: p50 and p95 of the continuous channel and of the repetitive ones, cold and warm, for each speed.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, temporary_folder

if TYPE_CHECKING:
    from tocsin.benchmarks.shared.city_deliveries import CityDeliveries
    from tocsin.benchmarks.shared.city_watch import CityWatch
    from tocsin.demo.run import DemoOutcome


def city(
    subscribers: Annotated[int, typer.Option(help="Number of people in the city.", min=1)] = 400,
    speeds: Annotated[str, typer.Option(help="Speeds of the city. The figures without a speed are the first's.")] = (
        "10,1"
    ),
    cold_minutes: Annotated[float, typer.Option(help="Minutes from the start that count as cold.")] = 3.0,
    warm_after_minutes: Annotated[float, typer.Option(help="Minutes after which the network counts as warm.")] = 5.0,
    warm_minutes: Annotated[float, typer.Option(help="Minutes that are measured as warm.")] = 3.0,
    shortest_period_s: Annotated[float, typer.Option(help="Shortest period of a channel.")] = 2.0,
    rounds: Annotated[int, typer.Option(help="Rounds of all channels whose CPU time is measured.", min=1)] = 20,
    round_warm_ups: Annotated[int, typer.Option(help="Rounds before the measured ones.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the day.", min=0)] = 7,
) -> dict[str, Any]:
    """Seconds from publisher to client in the emergency city, cold and warm."""
    plan = CityPlan(subscribers, cold_minutes, warm_after_minutes, warm_minutes, shortest_period_s, seed)
    return measure(plan, [float(speed) for speed in speeds.split(",")], rounds, round_warm_ups)


register = command(city, needs=("psutil",))


@dataclass(frozen=True, slots=True)
class CityPlan:
    subscribers: int
    cold_minutes: float
    warm_after_minutes: float
    warm_minutes: float
    shortest_period_s: float
    seed: int


def measure(plan: CityPlan, speeds: list[float], rounds: int, round_warm_ups: int) -> dict[str, Any]:
    from tocsin.benchmarks.shared.city_round import measure_round
    from tocsin.runtime.http.listening import loop_factory
    from tocsin.runtime.http.logs import configure_logs

    configure_logs("error")
    by_speed: dict[str, dict[str, Any]] = {}
    for speed in speeds:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            by_speed[f"{speed:g}"] = figures = runner.run(run_city(plan, speed))
        _announce_figures(speed, figures)
    announce("measuring the CPU time of one round of all channels")
    cost = measure_round(plan.subscribers, plan.seed, round_warm_ups, rounds)
    announce(f"one round: {cost.cpu_s:.2f} CPU s, {cost.wall_s:.2f} s, {cost.results:,} results")
    main = dict(by_speed[f"{speeds[0]:g}"])
    return (
        main
        | {"cpu_s_per_round": cost.cpu_s, "round": asdict(cost), "speed": speeds[0], "speeds": by_speed}
        | {"lost": sum(figures["lost"] for figures in by_speed.values())}
        | {"correct": all(figures["correct"] for figures in by_speed.values())}
    )


async def run_city(plan: CityPlan, speed: float) -> dict[str, Any]:
    """Run the city once and return the figures of this speed."""
    from tocsin.benchmarks.shared.city_watch import watched_day
    from tocsin.demo.run import DemoRun
    from tocsin.demo.settings import DemoSettings, application_file

    with temporary_folder() as name:
        folder = Path(name)
        settings = DemoSettings(
            application_file(),
            folder / "out",
            plan.subscribers,
            minutes=plan.warm_after_minutes + plan.warm_minutes,
            speed=speed,
            seed=plan.seed,
            shortest_period_s=plan.shortest_period_s,
        )
        run = DemoRun(settings, folder, announce)
        try:
            await run.start()
            return _figures(plan, *await watched_day(run, folder / "data"))
        finally:
            await run.stop()


def _figures(plan: CityPlan, outcome: DemoOutcome, watch: CityWatch, deliveries: CityDeliveries) -> dict[str, Any]:
    from tocsin.benchmarks.shared.city_deliveries import lost_of, problems_of
    from tocsin.benchmarks.shared.usage import cores_between, memory_between

    began_s = outcome.began_s
    cold = (began_s, began_s + plan.cold_minutes * 60.0)
    warm = (began_s + plan.warm_after_minutes * 60.0, began_s + outcome.day_took_s)
    problems = problems_of(outcome)
    for problem in problems:
        announce(f"failed: {problem}")
    return {
        **{f"warm_{name}": figure for name, figure in deliveries.quantiles(warm).items()},
        **{f"cold_{name}": figure for name, figure in deliveries.quantiles(cold).items()},
        "period_s": min(deliveries.periods_s.values()),
        "periods_s": deliveries.periods_s,
        "missed_ticks": watch.missed_between(*warm),
        "cold_missed_ticks": watch.missed_between(*cold),
        "warm_breakdown": deliveries.breakdown(warm),
        "cold_breakdown": deliveries.breakdown(cold),
        "warm_cores": cores_between(watch.usage, *warm),
        "warm_rss_mib": memory_between(watch.usage, *warm),
        "published": len(outcome.account.published),
        "delivered": outcome.audit.received,
        "lost": lost_of(outcome),
        "correct": not problems,
    }


def _announce_figures(speed: float, figures: dict[str, Any]) -> None:
    for state in ("cold", "warm"):
        for kind in ("continuous", "repetitive"):
            name = f"{state}_{kind}"
            count, stages = figures[f"{name}_deliveries"], figures[f"{state}_breakdown"][kind]
            p50_s, p95_s = figures[f"{name}_p50_s"], figures[f"{name}_p95_s"]
            if stages is None:
                announce(f"speed {speed:g}, {state}, {kind}: no deliveries")
                continue
            split = ", ".join(
                f"{stage} {stages[f'{stage}_s']:.2f}" for stage in ("ingest", "tick", "execution", "pull", "delivery")
            )
            announce(
                f"speed {speed:g}, {state}, {kind}: {count:,} deliveries, p50 {p50_s:.2f} s, p95 {p95_s:.2f} s; "
                f"mean seconds of {split}"
            )
    announce(f"speed {speed:g}: {figures['missed_ticks']} missed ticks while warm, {figures['lost']} lost")
