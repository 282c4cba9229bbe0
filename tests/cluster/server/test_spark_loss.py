"""A data cluster whose JVM freezes or dies: it says so, goes on acknowledging, ends, and delivers after its restart."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tocsin.chaos.processes import jvm_of
from tocsin.cluster.server.spark_watch import EXIT_SPARK_LOST
from tocsin.runtime.stack.supervisor import Child, free_ports

pytestmark = pytest.mark.spark

APPLICATION = """
CREATE STREAM DATASET Reports (report_id STRING, kind STRING) KEY (report_id) RETAIN 7 DAYS;
CREATE CONTINUOUS CHANNEL OfKind (kind STRING) AS SELECT r.report_id FROM NEW Reports r WHERE r.kind = :kind;
CREATE CONTINUOUS CHANNEL Padded (size INT) AS
  SELECT r.report_id, length(repeat(r.report_id, :size)) AS size FROM NEW Reports r;
"""


class SupervisedCluster:
    """`tocsin cluster` under the supervisor of `tocsin up`, with one subscription."""

    def __init__(self, folder: Path) -> None:
        port = free_ports(1)[0]
        self.log = folder / "log"
        flags = ["--root", str(folder / "data"), "--port", str(port), "--master", "local[2]"]
        flags += ["--spark", "spark.driver.memory=1g", "--spark-deadline-s", "12"]
        self.child = Child("cluster", ["cluster", *flags], log=self.log, stop_s=60)
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30)
        self._held = ""

    async def start(self) -> None:
        self.child.start()
        announcement = await self.child.ready(240)
        self.client.headers["Authorization"] = f"Bearer {announcement['token']}"
        applied = await self.client.post("/v1/applications", json={"text": APPLICATION})
        assert applied.status_code == 200, applied.text
        held = await self.client.post("/v1/subscriptions", json={"channel": "OfKind", "parameters": {"kind": "fire"}})
        self._held = held.json()[0]["id"]

    async def stop(self) -> None:
        await self.client.aclose()
        await self.child.stop()

    @property
    def jvm(self) -> int:
        pid = jvm_of(self.child.pid)
        assert pid is not None
        return pid

    async def readiness(self) -> list[str] | None:
        """The reasons of /readyz; None if the process does not answer."""
        try:
            return list((await self.client.get("/readyz")).json()["reasons"])
        except httpx.TransportError:
            return None

    async def publish(self, name: str) -> bool:
        try:
            answer = await self.client.post("/v1/datasets/Reports/records", json=[{"report_id": name, "kind": "fire"}])
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    async def results(self) -> list[str]:
        query = {"channel": "OfKind", "subscription": self._held}
        try:
            answer = await self.client.get("/v1/results", params=query, headers={"Accept": "application/x-ndjson"})
        except httpx.TransportError:
            return []
        lines = answer.text.splitlines() if answer.status_code == 200 else []
        return [json.loads(line)["result"]["report_id"] for line in lines]

    async def pad(self, size: int) -> str:
        """Subscribe to `Padded`, whose results take `size` times the memory of an id; return the subscription."""
        held = await self.client.post("/v1/subscriptions", json={"channel": "Padded", "parameters": {"size": size}})
        assert held.status_code == 200, held.text
        return str(held.json()[0]["id"])

    async def sizes(self, subscription: str) -> list[int]:
        query = {"channel": "Padded", "subscription": subscription}
        try:
            answer = await self.client.get("/v1/results", params=query, headers={"Accept": "application/x-ndjson"})
        except httpx.TransportError:
            return []
        lines = answer.text.splitlines() if answer.status_code == 200 else []
        return [json.loads(line)["result"]["size"] for line in lines]

    async def until(self, holds: Callable[[], Any], limit_s: float = 120.0) -> float:
        """Wait until the coroutine function returns something true; return the seconds it took."""
        began_s = time.monotonic()
        while not await holds():
            assert time.monotonic() - began_s < limit_s, f"not true within {limit_s} s"
            await asyncio.sleep(0.1)
        return time.monotonic() - began_s


def test_frozen_and_killed_jvm_lose_no_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = SupervisedCluster(tmp_path)
        try:
            await cluster.start()
            await _freeze_and_kill(cluster)
        finally:
            await cluster.stop()

    asyncio.run(scenario())


async def _freeze_and_kill(cluster: SupervisedCluster) -> None:
    assert await cluster.publish("before")

    async def all_delivered() -> bool:
        return await cluster.results() == published

    async def is_not_ready() -> bool:
        reasons = await cluster.readiness()
        return reasons is not None and any("Spark has not answered" in reason for reason in reasons)

    async def is_late() -> bool:
        answer = await cluster.client.get("/v1/status")
        late = answer.json()["late"] if answer.status_code == 200 else []
        return [channel["channel"] for channel in late] == ["OfKind"] and late[0]["since_s"] <= time.time()

    async def is_ready() -> bool:
        return await cluster.readiness() == []

    published = ["before"]
    await cluster.until(all_delivered)

    # A short freeze: the process says so, acknowledges records, names the late channel, and goes on by itself.
    jvm, starts = cluster.jvm, cluster.child.starts
    os.kill(jvm, signal.SIGSTOP)
    assert await cluster.publish("frozen")
    await cluster.until(is_not_ready, 30.0)
    os.kill(jvm, signal.SIGCONT)
    published.append("frozen")
    await cluster.until(all_delivered)
    assert cluster.jvm == jvm and cluster.child.starts == starts

    # A long freeze: the JVM is killed after the deadline, and the supervisor starts the process again.
    os.kill(jvm, signal.SIGSTOP)
    assert await cluster.publish("killed")
    await cluster.until(is_late)
    published.append("killed")
    await cluster.until(all_delivered)
    assert cluster.child.starts == starts + 1 and cluster.jvm != jvm
    await cluster.until(is_ready)

    # A dead JVM: noticed at once.
    os.kill(cluster.jvm, signal.SIGKILL)
    published.append("dead")
    while not await cluster.publish("dead"):
        await asyncio.sleep(0.1)
    await cluster.until(all_delivered)
    assert cluster.child.starts == starts + 2
    lines = cluster.log.read_text(encoding="utf-8")
    assert lines.count("Spark is lost") == 2
    assert f"exit code {EXIT_SPARK_LOST}" in lines
    assert lines.count('"level": "error"') < 20, "errors are not logged every second"


def test_value_that_exhausts_the_memory_of_the_jvm_ends_only_its_subscription(tmp_path: Path) -> None:
    """Spark ends its JVM when a task runs out of memory. The search for the value goes on over the restarts."""

    async def scenario() -> None:
        cluster = SupervisedCluster(tmp_path)
        try:
            await cluster.start()
            modest = await cluster.pad(2)

            async def delivered(expected: list[int]) -> bool:
                return await cluster.sizes(modest) == expected

            assert await cluster.publish("ab")
            await cluster.until(lambda: delivered([4]))
            greedy = await cluster.pad(1_000_000_000)
            assert await cluster.publish("cd")
            took_s = await cluster.until(lambda: delivered([4, 4]), 240.0)
            starts = cluster.child.starts
            assert 3 <= starts <= 5, f"{starts} starts in {took_s:.0f} s"
            refused = await cluster.client.post(
                "/v1/subscriptions", json={"channel": "Padded", "parameters": {"size": 1_000_000_000}}
            )
            assert refused.status_code == 400 and "Spark died" in refused.json()["error"]["message"], refused.text
            assert await cluster.sizes(greedy) == []
            letters = (await cluster.client.get("/v1/dead-letters")).json()
            assert letters["dead_letters"] == [], "no record is at fault"
        finally:
            await cluster.stop()

    asyncio.run(scenario())
