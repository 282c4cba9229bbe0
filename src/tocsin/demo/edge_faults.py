"""The scenario `faults` of `ami-live`: transfers of a large operator, nodes that die, one that is only silent."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tocsin.demo.edge_options import EdgeOptions
from tocsin.demo.edge_queries import AREA_S, AREAS, BULK, BULK_DECLARATION, LATENESS_S, bulk
from tocsin.demo.edge_tree import is_running, operators_of
from tocsin.demo.edge_world import EdgeWorld
from tocsin.experiments.edge_rows import Reference, time_us
from tocsin.experiments.runner import Row
from tocsin.model.edge import EdgeNodeId
from tocsin.wire.edge_data import PieceEncoder

_POLL_S: Final = 0.05
_TRANSFER_S: Final = 15.0
_RECOVERY_S: Final = 60.0
_ROOT_DOWN_S: Final = 0.5
"""A supervisor restarts the root at once."""
_HOUR_US: Final = 3_600_000_000
_BULK_BATCHES: Final = 12


async def run_faults(
    world: EdgeWorld,
    options: EdgeOptions,
    opened: AsyncExitStack,
    report_progress: Callable[[str], None],
    reference: Reference,
) -> tuple[dict[str, float], list[Row]]:
    """Return the figures of the run, and a row per transfer and per fault."""
    facts: dict[str, float] = {"period_s": options.period_s}
    facts |= await _calm(world, options.calm_s)
    report_progress(f"faults: {100 * facts['bytes_share']:.3g} % of the raw readings' bytes climb the tree")
    large = LargeOperator(world, options.items)
    await large.open(opened)
    await large.load()
    transfers = await large.move(options.transfers)
    facts |= _transferred(transfers, await world.tree.handovers())
    report_progress(f"faults: {facts['transfers_done']:.0f} of {options.transfers} ordered transfers are done")
    faults = await _break(world, options, report_progress)
    close_us = await large.close_window()
    facts |= await compared(world, reference, report_progress, {bulk().name: close_us})
    for fault in faults:
        fault["duty_s"] = duty_s(world, fault)
    return facts, [*transfers, *[{name: value for name, value in one.items() if name != "areas"} for one in faults]]


async def _calm(world: EdgeWorld, length_s: float) -> dict[str, float]:
    """Count bytes on data connections while nothing fails."""
    await asyncio.sleep(0.2 * length_s)
    before, sent = _bytes(await world.tree.status()), [len(feeder.raw) for feeder in world.feeders]
    await asyncio.sleep(0.8 * length_s)
    after = _bytes(await world.tree.status())
    up, raw = after[0] - before[0], after[1] - before[1]
    encoded = sum(_encoded_bytes(feeder.raw[first:]) for feeder, first in zip(world.feeders, sent, strict=True))
    share, encoded_share = (up / whole if whole else float("nan") for whole in (raw, encoded))
    return {"bytes_up": up, "bytes_raw": raw, "bytes_share": share, "bytes_share_encoded": encoded_share}


def _encoded_bytes(batches: Sequence[pa.RecordBatch]) -> float:
    """The bytes of the readings on a data connection, which compresses: what aggregation saves beyond that is left."""
    encoder = PieceEncoder()
    return float(sum(len(message) for batch in batches for message in encoder.encode([("readings", 0, batch, None)])))


def _bytes(status: Mapping[str, Any] | None) -> tuple[float, float]:
    nodes = (status or {"nodes": []})["nodes"]
    return sum(float(node.get("bytes_up", 0)) for node in nodes), sum(float(node.get("raw_bytes", 0)) for node in nodes)


async def compared(
    world: EdgeWorld,
    reference: Reference,
    report_progress: Callable[[str], None],
    more_until_us: Mapping[str, int] | None = None,
) -> dict[str, float]:
    """Let the meters run on until the windows of all readings so far are published; compare the rows."""
    until_us = {"": time.time_ns() // 1_000} | dict(more_until_us or {})
    drained = await world.drain(until_us)
    total = world.compare(reference, until_us)
    for example in total.examples:
        report_progress(f"not equal: {example}")
    return {
        "drained": float(drained),
        "expected": float(total.expected),
        "published": float(total.published),
        "lost": float(total.lost),
        "repeated": float(total.repeated),
        "wrong": float(total.wrong),
        "late_rows": float(world.late_rows),
        "repeated_requests": float(world.results.repeated_requests),
        "readings": float(sum(batch.num_rows for feeder in world.feeders for batch in feeder.raw)),
    }


# -- transfers ---------------------------------------------------------------------------------------------------------


class LargeOperator:
    """A window of an hour with many keys at one leaf. Ordered transfers carry it to the parent and back."""

    def __init__(self, world: EdgeWorld, items: int) -> None:
        self._world = world
        self._items = items
        self._leaf = world.tree.leaves[0]
        self._parent = str(world.tree.tree.parents[EdgeNodeId(self._leaf)])
        # The window lies in the future, so that no clock of the tree can close it.
        self._hour_us = (time.time_ns() // 1_000 // _HOUR_US + 2) * _HOUR_US
        self._raw: list[pa.RecordBatch] = world.others.setdefault(BULK, [])

    async def open(self, opened: AsyncExitStack) -> None:
        await self._world.tree.apply(BULK_DECLARATION)
        await self._world.deploy([bulk()])
        self._publisher = await opened.enter_async_context(self._world.publisher(self._leaf, BULK, "bulk"))

    async def load(self) -> None:
        random = np.random.default_rng(7)
        for numbers in np.array_split(np.arange(self._items), _BULK_BATCHES):
            names = pa.array([f"item-{number:08}" for number in numbers])
            amounts = random.integers(1, 16 * 64, len(numbers)) / 64.0
            await self._send(names, amounts, self._hour_us + 1_000_000)
        async with asyncio.timeout(_TRANSFER_S):
            while await self._waiting_bytes():
                await asyncio.sleep(_POLL_S)

    async def _waiting_bytes(self) -> float:
        """What the leaf has stored and not processed: an acknowledged batch waits in its log first."""
        figures = await self._world.tree.metrics(self._leaf)
        return figures["tocsin_edge_inbox_bytes"] + figures["tocsin_edge_backlog_bytes"]

    async def _send(self, items: pa.Array, amounts: Any, at_us: int) -> None:
        times = pa.array(np.full(len(items), at_us)).cast(pa.timestamp("us", "UTC"))
        batch = pa.RecordBatch.from_arrays([items, times, pa.array(amounts)], names=["item", "ts", "amount"])
        self._raw.append(batch)
        await self._publisher.send(batch)

    async def move(self, count: int) -> list[Row]:
        """Move the operator up and down in turn, and wait for each transfer's end."""
        rows: list[Row] = []
        for number in range(count):
            source, target = (self._leaf, self._parent) if number % 2 == 0 else (self._parent, self._leaf)
            at_s = time.time()
            done = await self._move_once(source, target)
            row: Row = {"kind": "transfer", "at_s": at_s, "from": source, "to": target}
            rows.append(row | {"took_s": time.time() - at_s if done else float("nan")})
        return rows

    async def _move_once(self, source: str, target: str) -> bool:
        """A busy node refuses an order: repeat it until the operator is at the target."""
        tree = self._world.tree
        deadline_s = time.monotonic() + _TRANSFER_S
        ordered = False
        while time.monotonic() < deadline_s:
            status = await tree.status()
            if status is not None:
                operators = _large_at(status, source)
                if ordered and not operators and _large_at(status, target):
                    return True
                if not ordered and operators:
                    ordered = (await tree.move(operators, target))["status"] < 300
            await asyncio.sleep(_POLL_S)
        return False

    async def close_window(self) -> int:
        """End the hour of event time. Returns the end of the window."""
        end_us = self._hour_us + _HOUR_US
        await self._send(pa.array(["end"]), np.array([1.0]), end_us + 10_000_000)
        return end_us


def _large_at(status: Mapping[str, Any], node: str) -> list[str]:
    """The aggregate of the large query, if it is at this node."""
    own = [operator for operator in operators_of(dict(status), node) if operator.startswith(f"{bulk().name}/")]
    return [operator for operator in own if "/map@" not in operator]


def _transferred(transfers: list[Row], handovers: list[dict[str, Any]]) -> dict[str, float]:
    """Pauses and sizes as the givers report them: from freezing the operator until the taker may run it."""
    took = [row["took_s"] for row in transfers if row["took_s"] == row["took_s"]]
    own = [one for one in handovers if any(name.startswith(f"{bulk().name}/") for name in one["operators"])]
    pauses = [float(one["pause_s"]) for one in own]
    return {
        "transfers_ordered": float(len(transfers)),
        "transfers_done": float(len(took)),
        "transfer_p99_s": _quantile(took, 0.99),
        "pause_p99_s": _quantile(pauses, 0.99),
        "pause_median_s": _quantile(pauses, 0.5),
        "pauses": float(len(pauses)),
        "state_bytes": min((float(one["state_bytes"]) for one in own), default=float("nan")),
    }


def _quantile(values: list[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else float("nan")


# -- faults ------------------------------------------------------------------------------------------------------------


async def _break(world: EdgeWorld, options: EdgeOptions, report_progress: Callable[[str], None]) -> list[Row]:
    """Kill nodes one at a time: a leaf, a middle node, a leaf that stays dead, the middle node above it, the root. Then
    stop a leaf for a while and continue it."""
    tree = world.tree
    middle = [str(tree.tree.parents[EdgeNodeId(leaf)]) for leaf in tree.leaves]
    leaves = tree.leaves
    victims = [leaves[0], middle[0], leaves[len(leaves) // 2], middle[len(leaves) // 2], tree.root][: options.kills]
    left_dead = {leaves[len(leaves) // 2]}
    faults: list[Row] = []
    for victim in victims:
        fault = await _kill(world, victim, options.down_s, stays_dead=victim in left_dead)
        report_progress(f"faults: {victim} was killed, the next generation ran after {fault['generation_s']:.2f} s")
        faults.append(fault)
        await _settle(world, fault, options.settle_s)
    faults.append(await _silence(world, leaves[-1], options.down_s))
    report_progress(
        f"faults: {leaves[-1]} was silent, the next generation ran after {faults[-1]['generation_s']:.2f} s"
    )
    await asyncio.sleep(options.settle_s)
    return faults


async def _settle(world: EdgeWorld, fault: Row, settle_s: float) -> None:
    """Wait until the areas below the node have results again and the latest are timely, so that faults come one at a
    time."""
    for _ in range(round(_RECOVERY_S / _POLL_S)):
        arrived = world.results.rows.get(AREAS, [])
        newest_s = max((time_us(row["since"]) / 1e6 for _, row in arrived[-64:]), default=0.0)
        is_timely = time.time() - newest_s < 3 * AREA_S + LATENESS_S
        if is_timely and math.isfinite(duty_s(world, fault)):
            break
        await asyncio.sleep(_POLL_S)
    await asyncio.sleep(settle_s)


async def _kill(world: EdgeWorld, node: str, down_s: float, *, stays_dead: bool) -> Row:
    tree = world.tree
    before = await tree.status() or {"generation": 0, "nodes": []}
    alive = [one["name"] for one in before["nodes"] if one["state"] == "alive" and one["name"] != node]
    at_s = time.time()
    await tree.kill(node)
    recovery = asyncio.create_task(_next_generation(world, int(before["generation"]), alive))
    fault: Row = {"kind": "fault", "fault": "killed", "node": node, "at_s": at_s, "areas": tree.leaves_below(node)}
    if node == tree.root:
        await asyncio.sleep(_ROOT_DOWN_S)
        await tree.restart(node)
        fault["down_s"] = time.time() - at_s
    fault["generation_s"] = await recovery - at_s
    if not stays_dead and node != tree.root:
        await asyncio.sleep(max(0.0, at_s + down_s - time.time()))
        await tree.restart(node)
        fault["down_s"] = time.time() - at_s
        await tree.wait_until_alive([*alive, node])
    return fault


async def _silence(world: EdgeWorld, node: str, length_s: float) -> Row:
    """Stop a process and continue it later: its lease has ended, so it must do no further work of its generation."""
    tree = world.tree
    before = await tree.status() or {"generation": 0, "nodes": []}
    alive = [one["name"] for one in before["nodes"] if one["state"] == "alive" and one["name"] != node]
    at_s = time.time()
    tree.pause(node)
    fault: Row = {"kind": "fault", "fault": "silent", "node": node, "at_s": at_s, "areas": tree.leaves_below(node)}
    fault["generation_s"] = await _next_generation(world, int(before["generation"]), alive) - at_s
    await asyncio.sleep(max(0.0, at_s + length_s - time.time()))
    tree.resume(node)
    fault["down_s"] = time.time() - at_s
    await tree.wait_until_alive([*alive, node])
    return fault


async def _next_generation(world: EdgeWorld, before: int, alive: list[str]) -> float:
    """When a later generation runs at the living nodes; not a number if that takes too long."""
    for _ in range(round(_RECOVERY_S / _POLL_S)):
        status = await world.tree.status()
        if status is not None and status["generation"] > before and is_running(status, alive):
            return time.time()
        await asyncio.sleep(_POLL_S)
    return float("nan")


def duty_s(world: EdgeWorld, fault: Row) -> float:
    """From the fault to the first result of every area below the node that was not due before the fault."""
    first: dict[str, float] = {}
    for arrived_s, row in world.results.rows.get(AREAS, []):
        due_s = time_us(row["since"]) / 1e6 + AREA_S + LATENESS_S
        if arrived_s > fault["at_s"] and due_s > fault["at_s"]:
            first.setdefault(row["neighbourhood"], arrived_s - fault["at_s"])
    return max((first.get(area, float("nan")) for area in fault["areas"]), default=float("nan"))
