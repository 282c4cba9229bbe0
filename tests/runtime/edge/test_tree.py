"""Three real edge processes: results are exact whatever happens to a node."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.edge.edge_tree import (
    KeepingPublisher,
    Reading,
    RunningTree,
    expected_rows,
    running_tree,
)

CHAIN = {"middle": "root", "leaf": "middle"}


def readings_of(meter: str, first_s: int, seconds: int) -> list[Reading]:
    """One reading a second; the values are exact binary fractions, so that sums do not depend on their order."""
    return [(meter, at_s, at_s % 8 / 4) for at_s in range(first_s, first_s + seconds)]


async def send(publishers: Sequence[KeepingPublisher], first_s: int, batches: int) -> list[Reading]:
    """Each publisher sends batches of five seconds of its own meter."""
    sent: list[Reading] = []
    for number in range(batches):
        for meter, publisher in enumerate(publishers):
            readings = readings_of(f"m{meter}", first_s + 5 * number, 5)
            await publisher.send(readings)
            sent += readings
    return sent


def test_readings_over_http_become_window_results(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_tree(tmp_path, CHAIN, ["leaf", "middle"]) as tree:
            await tree.until_running(3)
            await tree.apply()
            await tree.until_running(3, after=1)
            publishers = [KeepingPublisher(tree, "p0", ["leaf"]), KeepingPublisher(tree, "p1", ["middle"])]
            sent = await send(publishers, 0, 12)
            await tree.end(["leaf", "middle"])
            await tree.until_results(expected_rows(sent))

    asyncio.run(run())


def test_results_are_exact_when_nodes_die_stand_still_or_restart(tmp_path: Path) -> None:
    """One fault after the other in one tree, while publishers go on."""

    async def run() -> None:
        async with running_tree(tmp_path, {**CHAIN, "other": "middle"}, ["leaf", "middle", "other"]) as tree:
            await tree.until_running(4)
            await tree.apply()
            generation = (await tree.until_running(4, after=1))["generation"]
            publishers = [
                KeepingPublisher(tree, "p0", ["leaf", "middle"]),
                KeepingPublisher(tree, "p1", ["leaf", "middle"]),
                KeepingPublisher(tree, "p2", ["other"]),
                KeepingPublisher(tree, "p3", ["middle"]),
            ]
            sent = await send(publishers, 0, 6)

            # A leaf dies with its disk: its publishers continue at its parent.
            tree.nodes.children["leaf"].restart = False
            tree.signal("leaf", signal.SIGKILL)
            sent += await send(publishers, 30, 6)
            generation = (await tree.until_running(3, after=generation))["generation"]

            # A node in the middle dies and is started again. It keeps the readings in its log.
            tree.signal("middle", signal.SIGKILL)
            sent += await send(publishers, 60, 6)
            generation = (await tree.until_running(3, after=generation))["generation"]

            # A node stands still for longer than its lease, and is fenced.
            tree.signal("other", signal.SIGSTOP)
            await tree.until(lambda status: state_of(status, "other") == "dead")
            tree.signal("other", signal.SIGCONT)
            sent += await send(publishers, 90, 6)
            generation = (await tree.until_running(3, after=generation))["generation"]

            # The root dies and is started again.
            tree.signal("root", signal.SIGKILL)
            sent += await send(publishers, 120, 6)
            await tree.until_running(3, after=generation)

            sent += await send(publishers, 150, 2)
            await tree.end(["middle", "other"])
            await tree.until_results(expected_rows(sent))

    asyncio.run(run())


def state_of(status: dict[str, Any], name: str) -> str:
    return str(next(node["state"] for node in status["nodes"] if node["name"] == name))
