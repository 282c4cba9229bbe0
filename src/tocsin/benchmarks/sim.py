"""`tocsin bench sim`: run whole scenarios of the simulator with balancing on.

Timed: drawing and running each scenario, by default the paper's world and a million subscribers. A small scenario runs
first, so that compilation is reported apart.
Checked by: the policies' load model. It computes the loads from the final assignment; they must equal the run's own.
Prints: simulated seconds per second of wall clock, and for each scenario its times, events, migrations and peak memory.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, timed
from tocsin.benchmarks.shared.processes import MemoryWatch


def sim(
    scenario: Annotated[
        list[str] | None, typer.Option(help="A shipped scenario or a TOML file; may be repeated.")
    ] = None,
    scheme: Annotated[str, typer.Option(help="Migration: ldm, sdm, affinity or none.")] = "ldm",
    shuffle: Annotated[str, typer.Option(help="Shuffle: gsh, affinity or none.")] = "affinity",
    seed: Annotated[int, typer.Option()] = 1,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write the last scenario's trace, for `tocsin replay`; takes time.", show_default=False),
    ] = None,
) -> dict[str, Any]:
    """Run whole scenarios with balancing on; the final loads are checked before figures are printed."""
    from tocsin.policies.balance.settings import BalanceSettings

    settings = BalanceSettings(scheme=scheme, shuffle=shuffle)
    _, compile_s = timed(lambda: _run("paper-testbed", settings, seed))
    names = scenario or ["paper-simulation", "million"]
    worlds = {name: _run(name, settings, seed, trace if name == names[-1] else None) for name in names}
    return {
        "simulated_s_per_wall_s": worlds[names[0]]["simulated_s_per_wall_s"],
        "worlds": worlds,
        "compile_s": round(compile_s, 2),
        "correct": all(world["correct"] for world in worlds.values()),
    }


register = command(sim, needs=("psutil",))


def _run(name: str, settings: Any, seed: int, trace_path: Path | None = None) -> dict[str, Any]:
    import numpy as np

    from tocsin.policies.balance.load import LoadModel, known_rates
    from tocsin.policies.balance.settings import PlacementPolicy
    from tocsin.sim.balance import scenario as balance_scenario
    from tocsin.sim.balance.policy_coordinator import PolicyCoordinator
    from tocsin.sim.balance.run import BalanceRun
    from tocsin.sim.balance.trace import Trace
    from tocsin.sim.balance.world import draw
    from tocsin.sim.kernel import Kernel

    announce(f"{name} …")
    kernel = Kernel(seed)
    with MemoryWatch() as memory:
        started_s = time.perf_counter()
        world, draw_s = timed(lambda: draw(balance_scenario.load(name), kernel.stream))
        trace = None if trace_path is None else Trace()
        run = BalanceRun(kernel, world, PolicyCoordinator(PlacementPolicy.NEAREST, settings), trace)
        log = run.run()
        wall_s = time.perf_counter() - started_s
    if trace is not None and trace_path is not None:
        trace.write(trace_path)
    model = LoadModel(run.snapshot(), broker_of=run.brokers.served_by)
    correct = bool(np.allclose(model.loads, run.brokers.loads(known_rates(run.rate_seen)), rtol=1e-9))
    figures = {
        "simulated_s": kernel.now_s,
        "wall_s": round(wall_s, 2),
        "draw_s": round(draw_s, 2),
        "simulated_s_per_wall_s": round(kernel.now_s / wall_s, 2),
        "subscribers": len(world.subscribers),
        "events": kernel.events_happened,
        "migrations": log.migrations,
        "failed_over": log.failed_over,
        "cov_last": round(log.samples[-1].cov, 4),
        "peak_mib": memory.peak_mib,
        "correct": correct,
    }
    announce(f"{name}: {figures}")
    return figures
