"""Carries out `tocsin edge-demo`: meters, a tree of edge nodes, a data cluster, and a utility that gets alerts.

Every part is real: a process per node, readings over HTTP, results through the gateway into datasets, channels in
Spark, a subscriber's session. Only the meters are simulated. In the middle of the run the meters of one neighbourhood
read more often, and later a district's node dies. At the end the results that the utility received are compared with
the averages computed from the raw readings.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import numpy as np

from tocsin.demo.edge_queries import figure_3
from tocsin.demo.edge_reference import averages
from tocsin.demo.edge_tree import EdgeTree, TreeSettings
from tocsin.demo.edge_utility import ALERT_KWH, CHANNELS, MEANS, Utility
from tocsin.demo.edge_world import EdgeWorld, MeterLoad
from tocsin.demo.requests import request_when_ready
from tocsin.demo.settings import application_file
from tocsin.experiments.edge_rows import NOTHING, Comparison
from tocsin.experiments.edge_rows import compare as compare_rows
from tocsin.model.edge import EdgeNodeId
from tocsin.runtime.stack.stack import Stack, StackSettings
from tocsin.runtime.stack.supervisor import free_ports

USER_S: Final = 10
"""The window of users in examples/edge/meters.sql."""
_EXAMPLES: Final = Path("examples", "edge")
_SPARK_NICENESS: Final = 5
_BURST: Final = (0.25, 0.5)
"""The burst begins and ends at these shares of the run."""
_BURST_FACTOR: Final = 6.0
_DEATH: Final = (0.65, 0.8)
"""A district's node dies and returns at these shares of the run."""
_PROGRESS_S: Final = 5.0
_ARRIVE_S: Final = 60.0
"""How long the demo waits at its end for results on their way to the utility."""
_PAGE_USER: Final = "utility-page"


@dataclass(frozen=True, slots=True)
class EdgeDemoSettings:
    out: Path
    nodes: int = 7
    meters: int = 2_000
    seconds: float = 90.0
    cpu_share: float = 0.08
    """Budget of each node, as a share of one core: small, so that the burst overloads a leaf."""


class EdgeDemo:
    """Call `stop` in any case."""

    def __init__(self, settings: EdgeDemoSettings, folder: Path, report_progress: Callable[[str], None]) -> None:
        self._settings = settings
        self._report_progress = report_progress
        self._open = contextlib.AsyncExitStack()
        logs = settings.out / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        for earlier in logs.glob("*.log"):
            earlier.unlink()
        coordinator, cluster, self._broker_port = free_ports(3)
        self.stack = Stack(
            StackSettings(
                folder / "data",
                brokers=1,
                coordinator_port=coordinator,
                cluster_port=cluster,
                broker_port=self._broker_port,
                logs=logs,
                cluster_niceness=_SPARK_NICENESS,
                cluster={"spark": "spark.driver.memory=1g", "log-level": "warning"},
            )
        )
        tree = TreeSettings(
            settings.nodes,
            self.stack.cluster_url,
            self.stack.token_file,
            application_file(_EXAMPLES / "meters.sql"),
            node={"cpu_share": settings.cpu_share},
        )
        self.utility = Utility()
        self.tree = EdgeTree(tree, folder / "edge", logs)
        self._world = EdgeWorld(self.tree, self.utility.received)
        self.page = ""
        """The address of the tree view. Its fragment has the tree's secret and the page's own subscription; browsers do
        not send it."""

    async def start(self) -> None:
        """Return when everything runs. The page is there long before Spark."""
        await self.stack.start_coordinator()
        await self.tree.start_root()
        alerts = quote(await self._page_session(), safe="")
        self.page = f"{self.tree.addresses[self.tree.root]}/#token={quote(self.tree.token)}&alerts={alerts}"
        self._report_progress(f"tree view: {self.page}")
        self._report_progress(f"starting {self._settings.nodes - 1} more edge nodes, a broker and Spark")
        await asyncio.gather(self.tree.start_others(), self.stack.start_others())
        await self._world.expect(figure_3(USER_S))
        async with self._client(self.stack.cluster_url) as cluster:
            text = application_file(_EXAMPLES / "utility.sql").read_text(encoding="utf-8")
            await request_when_ready(cluster, "POST", "/v1/applications", json={"text": text})
        windows_s = {query.name: query.window_us / 1e6 for query in self._world.queries}
        await self.utility.open(self._open, self.stack.coordinator_url, self.stack.admin_token(), windows_s)

    def _client(self, url: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.stack.admin_token()}"}
        return httpx.AsyncClient(base_url=url, headers=headers, timeout=300.0)

    async def _page_session(self) -> str:
        """The page is a subscriber of its own: the broker's address, a user's token, the channel."""
        async with self._client(self.stack.coordinator_url) as coordinator:
            answer = await request_when_ready(coordinator, "POST", "/v1/users", json={"user": _PAGE_USER})
        place = {"broker": "broker-1", "address": f"ws://127.0.0.1:{self._broker_port}"}
        wanted = {"channel": CHANNELS["UserUse"], "parameters": {"above": ALERT_KWH}}
        return json.dumps(place | {"token": answer.json()["token"]} | wanted, separators=(",", ":"))

    async def stop(self) -> None:
        await self._open.aclose()
        await self.tree.stop()
        await self.stack.stop()

    # -- the run -------------------------------------------------------------------------------------------------------

    async def run(self) -> dict[str, Any]:
        """Feed the tree, break it, and return the report."""
        settings, world = self._settings, self._world
        await world.open_meters(self._open, MeterLoad(settings.meters))
        feeding = [asyncio.create_task(work) for work in (world.watch(), *(feeder.run() for feeder in world.feeders))]
        began_s = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                reporting = group.create_task(self._report_often(began_s))
                events = [group.create_task(self._burst(began_s)), group.create_task(self._death(began_s))]
                await self._until(began_s, 1.0)
                await asyncio.gather(*events)
                reporting.cancel()
            for task in feeding:
                if task.done():
                    task.result()
            return await self._report()
        finally:
            for task in feeding:
                task.cancel()
            await asyncio.gather(*feeding, return_exceptions=True)

    async def _burst(self, began_s: float) -> None:
        """The meters of one neighbourhood read more often, as with another tariff [AMI §1.1]."""
        leaf = self.tree.leaves[0]
        feeders = [feeder for feeder in self._world.feeders if feeder.leaf == leaf]
        for share, factor in zip(_BURST, (_BURST_FACTOR, 1.0 / _BURST_FACTOR), strict=True):
            await self._until(began_s, share)
            for feeder in feeders:
                feeder.change_rate(factor)
            change = "more often" if factor > 1.0 else "as before"
            self._report_progress(f"the meters of {leaf} read {change}")

    async def _death(self, began_s: float) -> None:
        victim = str(self.tree.tree.parents[EdgeNodeId(self.tree.leaves[-1])])
        await self._until(began_s, _DEATH[0])
        await self.tree.kill(victim)
        self._report_progress(f"{victim} was killed")
        await self._until(began_s, _DEATH[1])
        await self.tree.restart(victim)
        self._report_progress(f"{victim} was started again")

    async def _until(self, began_s: float, share: float) -> None:
        await asyncio.sleep(max(0.0, began_s + share * self._settings.seconds - time.monotonic()))

    async def _report_often(self, began_s: float) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            status = await self.tree.status()
            if status is None:
                continue
            alive = sum(node["state"] == "alive" for node in status["nodes"])
            results = sum(query["rows"] for query in status["queries"])
            self._report_progress(
                f"{time.monotonic() - began_s:3.0f} s  generation {status['generation']}, {alive} nodes alive, "
                f"{self._readings():,} readings, {results:,} results, {len(self.utility.alerts)} alerts"
            )

    def _readings(self) -> int:
        return sum(batch.num_rows for feeder in self._world.feeders for batch in feeder.raw)

    # -- the report ----------------------------------------------------------------------------------------------------

    async def _report(self) -> dict[str, Any]:
        """Wait for the results of all windows so far, and compare what the utility received."""
        self._report_progress("the run is over: waiting for the last results")
        world, utility = self._world, self.utility
        until_us = time.time_ns() // 1_000
        drained = await world.drain({"": until_us})
        total = await self._compared(until_us)
        status = await self.tree.status() or {"nodes": [], "generation": None}
        nodes = status["nodes"]
        raw, up = (sum(node.get(name, 0) for node in nodes) for name in ("raw_bytes", "bytes_up"))
        moved = await self.tree.handovers()
        return {
            "nodes": self._settings.nodes,
            "meters": self._settings.meters,
            "seconds": self._settings.seconds,
            "readings": self._readings(),
            "expected": total.expected,
            "received": total.published,
            "lost": total.lost,
            "repeated": total.repeated,
            "wrong": total.wrong,
            "late_rows": world.late_rows,
            "examples": list(total.examples),
            "alerts": len(utility.alerts),
            "alerts_s_p50": _quantile(utility.delays_s, 0.5),
            "alerts_s_p95": _quantile(utility.delays_s, 0.95),
            "generations": status["generation"],
            "operators_moved": sum(len(handover["operators"]) for handover in moved),
            "highest_load_pct": max((look.load_pct for look in world.looks), default=0.0),
            "bytes_up_share": up / raw if raw else None,
            "drained": drained,
            "errors": utility.errors,
        }

    async def _compared(self, until_us: int) -> Comparison:
        """Compare again while results are on their way to the utility."""
        readings = self._world.readings()["Readings"]
        expected = {query.name: averages(readings, query, MEANS[query.name]) for query in self._world.queries}
        deadline_s = time.monotonic() + _ARRIVE_S
        while True:
            total = NOTHING
            for query in self._world.queries:
                total += compare_rows(query, self.utility.received.of(query.name), expected[query.name], until_us)
            if not total.lost or time.monotonic() > deadline_s:
                return total
            await asyncio.sleep(1.0)


def problems(report: dict[str, Any]) -> list[str]:
    """Why the demo failed, as sentences; an empty list if it succeeded."""
    found = []
    wrong = {name: report[name] for name in ("lost", "repeated", "wrong", "late_rows") if report[name]}
    if wrong:
        counts = ", ".join(f"{name} {count}" for name, count in wrong.items())
        found.append(f"results were wrong ({counts}): this is a bug, please report it with the logs")
    if not report["alerts"]:
        found.append("no alert arrived: look into the logs, or give the run more --seconds")
    return [*found, *report["errors"]]


def sentences(report: dict[str, Any]) -> list[str]:
    share = report["bytes_up_share"]
    delay = report["alerts_s_p50"]
    return [
        f"{report['readings']:,} readings of {report['meters']:,} meters entered a tree of {report['nodes']} nodes",
        f"{report['received']:,} of {report['expected']:,} results arrived at the utility: lost {report['lost']}, "
        f"repeated {report['repeated']}, different from the raw readings' averages {report['wrong']}, late readings "
        f"{report['late_rows']}",
        f"{report['alerts']} alerts about high use"
        + ("" if delay is None else f", {delay:.1f} s after the end of the window (median)"),
        f"{report['generations']} generations; {report['operators_moved']} operators moved (since the last restart of "
        f"their nodes); highest load {report['highest_load_pct']:.0f} %",
        "" if share is None else f"the data connections carried {100 * share:.1f} % of the raw readings' bytes",
    ]


def _quantile(values: list[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None
