"""Three real edge processes: results are exact whatever happens to a node."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

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


def test_results_are_exact_while_operators_move(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_tree(tmp_path, CHAIN, ["leaf", "middle"], negotiates=False) as tree:
            await tree.until_running(3)
            await tree.apply()
            deployed = await tree.until(lambda status: status["running"] and bool(operators_of(status, "middle")))
            publishers = [KeepingPublisher(tree, "p0", ["leaf"]), KeepingPublisher(tree, "p1", ["middle"])]
            sent: list[Reading] = []
            for number, (operator, destination) in enumerate(
                [
                    ("PerMeter/final", "root"),
                    ("PerMeter/partial@leaf", "middle"),
                    ("PerMeter/partial@leaf", "leaf"),
                    ("PerMeter/final", "middle"),
                    ("Everything/final", "root"),
                ]
            ):
                sent += await send(publishers, 30 * number, 3)
                moved = await move(tree, operator, destination)
                assert operator in moved
                sent += await send(publishers, 30 * number + 15, 3)
                await tree.until(partial(holds, name=destination, operator=operator))
            handovers = await tree.client.get(f"{tree.address('middle')}/v1/edge/handovers")
            assert len(handovers.json()["handovers"]) == 3
            await tree.end(["leaf", "middle"])
            await tree.until_results(expected_rows(sent))
            assert (await tree.status())["generation"] == deployed["generation"], "a move needs no new generation"

    asyncio.run(run())


async def move(tree: RunningTree, operator: str, destination: str) -> list[str]:
    """Order a transfer until it begins. Returns all operators that move."""
    while True:
        order = {"operators": [operator], "destination": destination}
        reply = await tree.client.post(f"{tree.address('root')}/v1/edge/transfers", json=order)
        if reply.is_success:
            return list(reply.json()["operators"])
        assert reply.status_code == 409, reply.text
        await asyncio.sleep(0.1)


def holds(status: dict[str, Any], name: str, operator: str) -> bool:
    return operator in operators_of(status, name)


def operators_of(status: dict[str, Any], name: str) -> list[str]:
    return next(node.get("operators", []) for node in status["nodes"] if node["name"] == name)


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
