"""`tocsin bench sim`: simulated seconds per second of wall clock, on the paper's world and on a million subscribers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, finish, memory_watch


def register(app: typer.Typer) -> None:
    app.command()(sim)


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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Run whole scenarios with balancing on; what comes out is checked for consistency before it is reported."""
    from tocsin.policies.balance.settings import BalanceSettings

    # A first world is small: it compiles what the others then only run.
    settings = BalanceSettings(scheme=scheme, shuffle=shuffle)
    started_s = time.perf_counter()
    _run("paper-testbed", settings, seed)
    result: dict[str, Any] = {"compile_s": round(time.perf_counter() - started_s, 2)}
    names = scenario or ["paper-simulation", "million"]
    worlds = {name: _run(name, settings, seed, trace if name == names[-1] else None) for name in names}
    first = next(iter(worlds.values()))
    finish(
        {"simulated_s_per_wall_s": first["simulated_s_per_wall_s"], "worlds": worlds, **result,
         "correct": all(world["correct"] for world in worlds.values())},
        as_json,
    )  # fmt: skip


def _run(name: str, settings: Any, seed: int, trace: Path | None = None) -> dict[str, Any]:
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
    with memory_watch() as memory:
        started_s = time.perf_counter()
        world = draw(balance_scenario.load(name), kernel.stream)
        drawn_s = time.perf_counter() - started_s
        kept = None if trace is None else Trace()
        run = BalanceRun(kernel, world, PolicyCoordinator(PlacementPolicy.NEAREST, settings), kept)
        log = run.run()
        wall_s = time.perf_counter() - started_s
    if kept is not None and trace is not None:
        kept.write(trace)
    # The run's own counts against the policies' load model, on where everybody ended up.
    model = LoadModel(run.snapshot(), broker_of=run.brokers.served_by)
    agrees = bool(np.allclose(model.loads, run.brokers.loads(known_rates(run.rate_seen)), rtol=1e-9))
    last = log.samples[-1]
    found = {
        "simulated_s": kernel.now_s, "wall_s": round(wall_s, 2), "draw_s": round(drawn_s, 2),
        "simulated_s_per_wall_s": round(kernel.now_s / wall_s, 2), "subscribers": len(world.subscribers),
        "events": kernel.events_happened, "migrations": log.migrations, "failed_over": log.failed_over,
        "cov_last": round(last.cov, 4), "peak_mib": memory.peak_mib, "correct": agrees,
    }  # fmt: skip
    announce(f"{name}: {found}")
    return found
