"""`tocsin experiment epeer-live`: a burst with and without offloading, brokers that lose capacity, and a ring of sites
[ePEER ch. 4, 5].

Experiments may not start processes: this module runs them (`site_world`) and hands the rows to
`experiments.epeer_live`.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from tocsin.coordinator.planning import compile_policies
from tocsin.demo.site_ring import run_ring
from tocsin.demo.site_visits import LOAD, VisitedWorld, open_clients, visited_world
from tocsin.demo.site_world import Look, Receiver, SiteLoad, SiteWorld, site_world
from tocsin.experiments import runner
from tocsin.experiments.epeer_live import DAMAGES, DISOBEDIENT, RING, TIGHT_S, VISITS, LiveSite
from tocsin.experiments.runner import Row
from tocsin.runtime.http.listening import loop_factory

SCENARIOS: Final = ("burst", "burst-without", *DAMAGES, DISOBEDIENT, RING, VISITS)
_TOLERANT_S: Final = 10.0
_BEFORE_S: Final = 15.0
"""Before the burst or the damage."""
_SETTLED_S: Final = 5.0
"""After the damage: shares and utilities count from then on."""
_DAMAGED_S: Final = 30.0
_DAMAGE: Final = 0.25
_AFTER_S: Final = 10.0
_QUIET_S: Final = 10.0
"""From this long after the burst on, no receiver moves any more, and no edge is overloaded."""
_LAST_S: Final = 10.0
"""What a receiver does not have so long after the last message counts as lost."""
_PROTECTED: Final = ("site/00", 5.0)
"""A topic with a guarantee, and its rate: a quiet alarm, rated lowest by all receivers."""
_FLOOD: Final = ("site/04", 250.0)
"""The topic of the publisher that ignores its limits, at the edge of the protected topic, and its rate after the
damage: ten times the messages that fit the edge by then."""


def run_live(options: Mapping[str, str], out: Path, report_progress: Callable[[str], None]) -> dict[str, Any]:
    """Run the scenarios and return the report. Options: `scenarios`, and `seconds` of a burst (90)."""
    known = ("scenarios", "seconds")
    if unknown := sorted(options.keys() - set(known)):
        raise ValueError(f"epeer-live has the options {', '.join(known)}, not {', '.join(unknown)}")
    seconds = float(options.get("seconds", 90.0))
    chosen = options.get("scenarios", ",".join(SCENARIOS)).split(",")
    if not set(chosen) <= set(SCENARIOS):
        raise ValueError(f"scenarios are some of {', '.join(SCENARIOS)}, separated by commas")
    compile_policies()  # once, for all coordinators
    rows: list[Row] = []
    for scenario in chosen:
        size = {RING: "three sites", VISITS: "two sites"}.get(scenario, "a head and four edges")
        report_progress(f"{scenario}: starting {size}")
        with (
            tempfile.TemporaryDirectory(prefix="tocsin-site-") as folder,
            asyncio.Runner(loop_factory=loop_factory()) as loop,
        ):
            if scenario == RING:
                rows += loop.run(run_ring(Path(folder)))
            elif scenario == VISITS:
                rows += loop.run(_run_visits(seconds, Path(folder)))
            else:
                rows += loop.run(_run(scenario, seconds, Path(folder)))
        facts = {key: value for key, value in rows[-1].items() if key not in ("kind", "scenario")}
        report_progress(f"{scenario}: " + ", ".join(f"{key} {value:.3g}" for key, value in facts.items()))
    command = "tocsin experiment epeer-live" + "".join(f" --set {name}={value}" for name, value in options.items())
    return runner.finish(LiveSite(), 1, runner.table_of(rows), out, command)


async def _run(scenario: str, seconds: float, folder: Path) -> list[Row]:
    is_burst = scenario.startswith("burst")
    load = SiteLoad() if is_burst else SiteLoad(publishers=2)
    delays_s = {name: TIGHT_S if name in _tight(load) else _TOLERANT_S for name in _names(load)}
    policy = "none" if scenario == "burst-without" else "drd-lb"
    async with (
        site_world(load, folder, policy, congestion=not is_burst) as world,
        AsyncExitStack() as opened,
    ):
        flooded = _FLOOD[0] if scenario == DISOBEDIENT else None
        await world.open(opened, delays_s, {} if is_burst else dict([_PROTECTED]), flooded)
        measure = partial(_burst, world, seconds) if is_burst else partial(_disruption, world, scenario)
        return await _measured(world, scenario, measure)


async def _run_visits(seconds: float, folder: Path) -> list[Row]:
    """All topics of the first site send twice as much: its edges are all overloaded."""
    delays_s = {name: TIGHT_S if name in _tight(LOAD) else _TOLERANT_S for name in _names(LOAD)}
    async with visited_world(folder) as world, AsyncExitStack() as opened:
        await open_clients(world, opened, delays_s)
        watching = asyncio.create_task(world.host.watch())
        try:
            return await _measured(world, VISITS, partial(_visits, world, seconds))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def _visits(world: VisitedWorld, seconds: float) -> dict[str, float]:
    facts = await _burst(world, seconds, set(_names(LOAD)))
    facts["visitors"] = float(world.visitors)
    facts["host_highest_used"] = max(look.used for look in world.host.looks)
    return facts


async def _measured(world: SiteWorld, scenario: str, measure: Callable[[], Awaitable[dict[str, float]]]) -> list[Row]:
    """Publish, let the site come to rest, and return what `measure` returns, with the looks at the edges."""
    tasks = [asyncio.create_task(world.publish()), asyncio.create_task(world.watch())]
    try:
        began_s, own_s, servers_s = time.perf_counter(), time.process_time(), world.servers_cpu_s()
        await asyncio.sleep(_BEFORE_S)
        facts = await measure()
        took_s = time.perf_counter() - began_s
        facts["server_cores"] = (world.servers_cpu_s() - servers_s) / took_s
        facts["cores"] = facts["server_cores"] + (time.process_time() - own_s) / took_s
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    looks = [_look_row(scenario, began_s, look) for look in world.looks]
    return [*looks, {"kind": "run", "scenario": scenario, **facts}]


def _look_row(scenario: str, began_s: float, look: Look) -> Row:
    where: Row = {"kind": "look", "scenario": scenario, "at_s": look.at_s - began_s, "edge": look.edge}
    return where | {"used": look.used, "sent": look.sent, "waiting_s": look.waiting, "state": look.state}


# -- a burst -----------------------------------------------------------------------------------------------------------


async def _burst(world: SiteWorld, seconds: float, topics: Collection[str] = ()) -> dict[str, float]:
    """Double the rates of topics: by default all of the edge with most receivers."""
    if not topics:
        crowded = max(world.edges, key=lambda edge: len(world.on(edge)))
        topics = {receiver.topic for receiver in world.on(crowded)}
    for publisher in world.publishers:
        publisher.rate_per_s *= 2.0 if publisher.topic in topics else 1.0
    at_s = time.perf_counter()
    await asyncio.sleep(seconds)
    end_s = time.perf_counter()
    looks = [look for look in world.looks if look.at_s >= at_s]
    seen_s = next((look.at_s - at_s for look in looks if look.state in ("OVERLOAD", "BUSY")), None)
    relieved_s = _relieved_s(looks, at_s)
    moves = [(moved_s, one) for one in world.receivers for moved_s, _ in one.edges[1:] if moved_s >= at_s]
    pauses_s = [_pause_s(one, moved_s, end_s) for moved_s, one in moves]
    await world.finish(_LAST_S)
    facts: dict[str, float] = {name: float(value) for name, value in world.wrong().items()}
    facts |= {
        "overload_seen_s": _or_nan(seen_s),
        "relieved_s": _or_nan(relieved_s),
        "unrelieved_looks": float(sum(_is_loaded(look) for look in looks if look.at_s > at_s + _QUIET_S)),
        "highest_used_at_end": max(look.used for look in looks[-4:]),
        "tight_p99_s": _quantile(
            (latency for one in world.receivers if one.topic in _tight(world.load) for latency in _since(one, at_s)),
            0.99,
        ),
        "moved": float(len(moves)),
        "moved_late": float(sum(moved_s > at_s + _QUIET_S for moved_s, _ in moves)),
        "longest_pause_ms": 1e3 * max(pauses_s, default=0.0),
    }
    return facts


def _relieved_s(looks: list[Look], at_s: float) -> float | None:
    """When every edge was at most at 0.95 and took part in no offloading, after an overload was seen."""
    latest: dict[str, Look] = {}
    overloaded = False
    for look in looks:
        latest[look.edge] = look
        overloaded = overloaded or look.state in ("OVERLOAD", "BUSY")
        if overloaded and not any(map(_is_loaded, latest.values())):
            return look.at_s - at_s
    return None


def _is_loaded(look: Look) -> bool:
    return look.used > 0.95 or look.state == "BUSY"


def _names(load: SiteLoad) -> list[str]:
    return [f"site/{number:02}" for number in range(load.topics)]


def _tight(load: SiteLoad) -> set[str]:
    """Topics with the shorter delay requirement. Topics go to the edges in turn, so that each edge has both kinds."""
    return {name for number, name in enumerate(_names(load)) if number // load.edges % 2}


def _since(receiver: Receiver, at_s: float) -> list[float]:
    return [latency for sent_s, latency, _ in receiver.deliveries if sent_s >= at_s]


def _pause_s(receiver: Receiver, moved_s: float, now_s: float) -> float:
    """The longest pause of a receiver around its move. A pause that began then and has not ended counts too."""
    ended = [length for end_s, length in receiver.pauses if abs(end_s - moved_s) < 2.0]
    present = now_s - receiver.arrived_s if receiver.arrived_s < moved_s + 2.0 else 0.0
    return max(present, *ended, 0.0)


# -- damage ------------------------------------------------------------------------------------------------------------


async def _disruption(world: SiteWorld, damage: str) -> dict[str, float]:
    """Leave each edge a quarter of its load as capacity, and repair it later."""
    for publisher in world.publishers:
        if publisher.topic == _PROTECTED[0]:
            publisher.rate_per_s, publisher.utility = _PROTECTED[1] / world.load.publishers, 0.0
    await asyncio.sleep(_SETTLED_S)
    brokers = (await world.http.get("/v1/brokers")).json()["brokers"]
    loads = [view["topic_load"] for view in brokers if view["broker"] in world.edges]
    name = "matched_per_s" if damage == "matching" else "out_bytes_per_s"
    whole = max(load[name] for load in loads)
    before_s, at_s = time.perf_counter() - _SETTLED_S, time.perf_counter()
    await world.set_capacity(**{name: _DAMAGE * whole})
    flooding = [one for one in world.publishers if one.is_disobedient]
    for publisher in flooding:
        publisher.rate_per_s = _FLOOD[1]
    await asyncio.sleep(_DAMAGED_S)
    repaired_s = time.perf_counter()
    for publisher in flooding:
        publisher.rate_per_s = world.load.rate_per_s / world.load.publishers
    await world.set_capacity(**{name: None})
    lifted_s = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_AFTER_S):
            while any(one.client.limit_per_s(one.topic) is not None for one in world.publishers):
                await asyncio.sleep(0.02)
            lifted_s = time.perf_counter() - repaired_s
    looks = [look for look in world.looks if at_s <= look.at_s < repaired_s]
    settled = [look for look in looks if look.at_s >= at_s + _SETTLED_S]
    window = (at_s + _SETTLED_S, repaired_s - 1.0)
    facts: dict[str, float] = {name: float(value) for name, value in world.wrong().items()}
    protected = [one for one in world.receivers if one.topic == _PROTECTED[0]]
    facts |= {
        "grew_until_s": _grew_until_s(looks, at_s),
        "used_p05": _quantile([look.used for look in settled], 0.05),
        "used_p95": _quantile([look.used for look in settled], 0.95),
        "sent_mean": sum(look.sent for look in settled) / max(1, len(settled)),
        "utility_per_byte_ratio": _utility(world, *window) / _utility(world, before_s, at_s),
        "limits_lifted_s": _or_nan(lifted_s),
        "kept_back": float(sum(one.refused for one in world.publishers)),
        "protected_per_s": min(_rate(one, *window) for one in protected),
    }
    for publisher in flooding:
        facts["excess"], dropped = publisher.excess(*window)
        facts["excess_dropped"] = dropped / facts["excess"]
    return facts


def _grew_until_s(looks: list[Look], at_s: float) -> float:
    """When the queues of all edges together were longest."""
    totals: dict[float, float] = {}
    latest: dict[str, float] = {}
    for look in looks:
        latest[look.edge] = look.waiting
        totals[look.at_s] = sum(latest.values())
    return max(totals, key=lambda moment_s: totals[moment_s]) - at_s if totals else float("nan")


def _utility(world: SiteWorld, from_s: float, until_s: float) -> float:
    """The mean utility of a delivered message, the protected topic excepted: all messages have the same size."""
    rated = [
        utility
        for one in world.receivers
        if one.topic != _PROTECTED[0]
        for sent_s, _, utility in one.deliveries
        if from_s <= sent_s < until_s
    ]
    return sum(rated) / len(rated) if rated else float("nan")


def _rate(receiver: Receiver, from_s: float, until_s: float) -> float:
    return sum(from_s <= sent_s < until_s for sent_s, _, _ in receiver.deliveries) / (until_s - from_s)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _quantile(values: Iterable[float], share: float) -> float:
    found = list(values)
    return float(np.quantile(found, share)) if found else float("nan")
