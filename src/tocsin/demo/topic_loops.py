"""`tocsin experiment epulsar-uav --live` and `epulsar-mmog --live`: both control loops, live and simulated.

Each loop runs once on real processes (`topic_scenarios`) and once in the simulator, with the same seed.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from tocsin.demo.topic_scenarios import LiveEpisode, run_scenario
from tocsin.experiments import runner
from tocsin.experiments.epulsar_live import LIVE, SIMULATED, START_S, LiveLoops, rows_of
from tocsin.experiments.runner import Row
from tocsin.runtime.http.listening import loop_factory
from tocsin.sim.kernel import seed_from
from tocsin.sim.topics import mmog, uav
from tocsin.sim.topics.control import LOOPS, PERIOD_S, Episode
from tocsin.sim.topics.scenario import Scenario, mmog_scenario, uav_scenario

_MOVES: Final = 64
"""The default of `topic_moves`: the executors of the simulator."""


@dataclass(frozen=True, slots=True)
class _World:
    """One scenario, for both."""

    scenario: Scenario
    simulate: Callable[[str, Sequence[tuple[float, float]], float | None], Episode]
    """With this loop, the measured work of the live run and a time at which its moves started."""
    scaled: str


def run_live(
    name: str, minutes: float, options: Mapping[str, str], out: Path, report_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Run both loops and return the report. Raise ValueError on unknown options.

    Options of both: `loops` (paper,tocsin), `seed`, `rate_share` (0.1: a tenth of the paper's rates).
    UAV: `swarms` (8), `members` (8), `speed_m_per_s` (50). MMOG: `players` (32), `groups` (8), `bound_ms` (90).
    """
    make, own = (_uav, _UAV) if name == "epulsar-uav" else (_mmog, _MMOG)
    known = ("loops", "seed", "rate_share", *own)
    if unknown := sorted(options.keys() - set(known)):
        raise ValueError(f"{name} --live has the options {', '.join(known)}, not {', '.join(unknown)}")
    loops = options.get("loops", ",".join(LOOPS)).split(",")
    if not set(loops) <= set(LOOPS):
        raise ValueError(f"loops are {', '.join(LOOPS)}, not {options['loops']}")
    seed = int(options["seed"]) if "seed" in options else seed_from(name, 0)
    world = make(
        seed, START_S + 60.0 * minutes, {key: float(value) for key, value in options.items() if key in known[1:]}
    )
    rows = [row for loop in loops for row in _run(world, loop, seed, out, report_progress)]
    command = f"tocsin experiment {name} --live --minutes {minutes:g}"
    command += "".join(f" --set {key}={value}" for key, value in options.items())
    title = f"{runner.find(name).title}, live"
    report = LiveLoops(name, title, 1e3 * world.scenario.bound_s, world.scaled)
    return runner.finish(report, 1, runner.table_of(rows), out, command)


def _run(world: _World, loop: str, seed: int, out: Path, report_progress: Callable[[str], None]) -> Sequence[Row]:
    scenario = world.scenario
    with (
        tempfile.TemporaryDirectory(prefix="tocsin-loops-") as folder,
        asyncio.Runner(loop_factory=loop_factory()) as run,
    ):
        live = run.run(run_scenario(scenario, loop, seed, Path(folder), report_progress))
        log = (Path(folder) / "coordinator.log").read_bytes()
    (out / f"{loop}-coordinator.log").write_bytes(log)
    moves_start_s = start_of_moves(log, live.began_at)
    row = _live_row(live, loop, scenario.duration_s) | {"moves_start_s": moves_start_s}
    report_progress(f"{loop}: {row}")
    common = (1e3 * scenario.bound_s, scenario.occasions_s)
    rows = [row, *rows_of(LIVE, loop, live.episode, *common)]
    report_progress(f"{loop}: simulating the same scenario")
    return rows + rows_of(SIMULATED, loop, world.simulate(loop, live.work, moves_start_s), *common)


def start_of_moves(log: bytes, began_at: datetime) -> float | None:
    """When the coordinator started moves, in seconds since the beginning: the median of the phases in its period.

    The phase decides how long a message is late after a change: a change that comes just behind a plan waits a period
    for the next one. None if no move started after the beginning.
    """
    starts_s = []
    for line in log.splitlines():
        if b'"topic moves"' in line:
            at = datetime.fromisoformat(msgspec.json.decode(line)["timestamp"])
            starts_s.append((at - began_at).total_seconds())
    phases_s = np.array([start_s for start_s in starts_s if start_s > 0.0]) % PERIOD_S
    if not len(phases_s):
        return None
    around = phases_s[0]  # phases lie on a circle: those around the first one have no jump
    return float((around + np.median((phases_s - around + PERIOD_S / 2) % PERIOD_S - PERIOD_S / 2)) % PERIOD_S)


def _live_row(live: LiveEpisode, loop: str, duration_s: float) -> Row:
    seen = live.episode.deliveries
    row: Row = {
        "kind": "live",
        "loop": loop,
        "relay_p99_ms": 1e3 * live.relay.p99_s,
        "late_p99_ms": 1e3 * live.late_p99_s,
    }
    work_ms = 1e3 * np.array([work_s for at_s, work_s in live.work if at_s >= START_S])
    row |= {f"work_p{share}_ms": float(np.quantile(work_ms, share / 100)) for share in (50, 99)}
    row |= {"relay_chunks": live.relay.chunks, "coordinate_error": live.coordinate_error, "gaps": live.gaps}
    row |= {"lost": seen.outstanding, "repeated": seen.repeated, "out_of_order": seen.out_of_order}
    return row | {f"cpu_{name}": cores for name, cores in live.cpu.items()} | {"measured_s": duration_s - START_S}


def _simulate(
    run: Callable[..., Episode],
    setting: Any,
    loop: str,
    work: Sequence[tuple[float, float]],
    moves_start_s: float | None,
) -> Episode:
    return run(replace(setting, loop=loop), measured_work=work, moves_start_s=moves_start_s)


_UAV: Final = ("swarms", "members", "speed_m_per_s")
_MMOG: Final = ("players", "groups", "bound_ms")


def _uav(seed: int, duration_s: float, chosen: Mapping[str, float]) -> _World:
    rate_per_s = 200.0 * chosen.get("rate_share", 0.1)
    setting = uav.UavSetting(
        seed,
        swarms=int(chosen.get("swarms", 8)),
        members=int(chosen.get("members", 8)),
        speed_m_per_s=chosen.get("speed_m_per_s", 50.0),
        duration_s=duration_s,
        rate_per_s=rate_per_s,
        followed_per_s=rate_per_s,
        executors=_MOVES,
    )
    scaled = f"{setting.swarms} swarms of {setting.members}, {rate_per_s:g} messages a second of each (the paper: 200)."
    return _World(uav_scenario(setting), partial(_simulate, uav.run, setting), scaled)


def _mmog(seed: int, duration_s: float, chosen: Mapping[str, float]) -> _World:
    rate_per_s = 300.0 * chosen.get("rate_share", 0.1)
    setting = mmog.MmogSetting(
        seed,
        players=int(chosen.get("players", 32)),
        groups=int(chosen.get("groups", 8)),
        bound_s=1e-3 * chosen.get("bound_ms", 90.0),
        duration_s=duration_s,
        rate_per_s=rate_per_s,
        followed_per_s=rate_per_s,
        executors=_MOVES,
    )
    scaled = f"{setting.players} players in {setting.groups} groups (the paper: 64 players), "
    scaled += f"{rate_per_s:g} messages a second of each (the paper: 300)."
    return _World(mmog_scenario(setting), partial(_simulate, mmog.run, setting), scaled)
