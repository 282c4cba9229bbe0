"""Carries out a chaos run: starts a network, publishes and subscribes, injects faults, and reports the deliveries."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tocsin.chaos.crowd import ChaosCrowd, Member
from tocsin.chaos.faults import Fault, FaultKind, schedule
from tocsin.chaos.ledger import DeliveryLedger, PingRecord
from tocsin.client import Publisher
from tocsin.runtime.stack.stack import Stack, StackSettings
from tocsin.runtime.stack.supervisor import Child

KINDS = ("fire", "flood", "storm", "quake", "smoke")
APPLICATION = """
CREATE STREAM DATASET Pings (id STRING, kind STRING, n BIGINT, batch BIGINT) KEY (id) RETAIN 1 DAYS;
CREATE CONTINUOUS CHANNEL PingsOfKind (kind STRING) AS
  SELECT p.id, p.kind, p.n FROM NEW Pings p WHERE p.kind = :kind;
"""
REPETITIVE = """
CREATE REPETITIVE CHANNEL PingsAtLeast (least BIGINT) EVERY 3 SECONDS AS
  SELECT p.id, p.n FROM NEW Pings p WHERE p.n % 10 >= :least;
"""
# Time-outs shorter than in production, so that they expire within a round.
_COORDINATOR = {
    "heartbeat-s": "0.5",
    "suspect-s": "1.5",
    "dead-s": "3",
    "grace-s": "6",
    "probation-s": "2",
    "prepare-s": "10",
    "hand-over-s": "8",
    "confirm-s": "5",
    "retry-s": "2",
    "report-s": "1",
}
_BROKER = {"progress-s": "2"}


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    rounds: int = 10
    subscribers: int = 60
    brokers: int = 3
    seed: int = 7
    round_s: float = 10.0
    drain_s: float = 180.0
    """How long the run waits at its end for pending deliveries, in seconds."""
    batch: int = 20
    """Records per request; the publisher sends a request every half second."""
    cluster_faults: bool = True
    repetitive: bool = True


class ChaosRun:
    def __init__(
        self, settings: ChaosSettings, folder: Path, report_progress: Callable[[str], None], stack: Stack | None = None
    ) -> None:
        """`stack` is a running network; without it the run starts its own."""
        self._settings = settings
        self._folder = folder
        self._report_progress = report_progress
        self._rng = random.Random(settings.seed + 1)
        self.ledger = DeliveryLedger()
        self.faults: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        """The coordinator's answers to the run's requests, counted."""
        self._migrations = 0
        self.stack = stack or Stack(
            StackSettings(
                folder / "data",
                settings.brokers,
                free_ports=True,
                logs=folder,
                coordinator=_COORDINATOR,
                broker=_BROKER,
                cluster={"master": "local[2]", "spark": "spark.driver.memory=1g", "heartbeat-s": "2"},
            )
        )
        self._publishing = True
        self._retries = 0
        self._injecting: set[asyncio.Task[None]] = set()

    async def run(self) -> dict[str, Any]:
        began_s = time.monotonic()
        self._report_progress(
            f"starting a data cluster, a coordinator and {self._settings.brokers} brokers in {self._folder}"
        )
        try:
            await self.stack.start()
            return await self.on_running_stack() | {"took_s": round(time.monotonic() - began_s, 1)}
        finally:
            await self.stack.stop()

    async def on_running_stack(self) -> dict[str, Any]:
        stack = self.stack
        headers = {"Authorization": f"Bearer {stack.admin_token()}"}
        async with (
            httpx.AsyncClient(base_url=stack.coordinator_url, headers=headers, timeout=5.0) as self._coordinator,
            httpx.AsyncClient(base_url=stack.cluster_url, headers=headers, timeout=60.0) as cluster,
            Publisher(stack.cluster_url, stack.admin_token(), give_up_s=600.0, longest_s=2.0) as publisher,
        ):
            text = APPLICATION + (REPETITIVE if self._settings.repetitive else "")
            (await cluster.post("/v1/applications", json={"text": text})).raise_for_status()
            crowd = ChaosCrowd(stack.coordinator_url, stack.admin_token(), self.ledger, self._members())
            try:
                await crowd.start()
                self._report_progress(f"{len(crowd.members)} subscribers hold {len(self.ledger.matches)} subscriptions")
                publishing = asyncio.create_task(self._publish(publisher))
                await self._wait_for_first_results()
                await self._rounds(crowd)
                self._publishing = False
                await publishing
                await self._drain(crowd)
            finally:
                await crowd.stop()
        return self._report(crowd)

    async def _wait_for_first_results(self) -> None:
        """Wait until results arrive: earlier faults would hit an idle network."""
        async with asyncio.timeout(self._settings.drain_s):
            while len(self.ledger.published) < self._settings.batch or not any(self.ledger.deliveries.values()):
                await asyncio.sleep(0.1)

    def _members(self) -> list[Member]:
        (self._folder / "clients").mkdir()
        members = []
        for number in range(self._settings.subscribers):
            user, kind, least = f"chaos-{number}", KINDS[number % len(KINDS)], 4 + number % 5
            requests: list[tuple[str, str, dict[str, Any]]] = [("kind", "PingsOfKind", {"kind": kind})]
            self.ledger.matches[user, "kind"] = lambda ping, kind=kind: ping.kind == kind  # type: ignore[misc]
            if self._settings.repetitive and number % 3 == 0:
                requests.append(("least", "PingsAtLeast", {"least": least}))
                self.ledger.matches[user, "least"] = lambda ping, least=least: ping.n % 10 >= least  # type: ignore[misc]
            members.append(Member(user, requests, self._folder / "clients" / user))
        return members

    async def _publish(self, publisher: Publisher) -> None:
        numbers = itertools.count()
        for batch in itertools.count():
            if not self._publishing:
                return
            pings = [
                PingRecord(f"p{n}", KINDS[self._rng.randrange(len(KINDS))], n, batch)
                for n in itertools.islice(numbers, self._settings.batch)
            ]
            records = [{"id": ping.id, "kind": ping.kind, "n": ping.n, "batch": ping.batch} for ping in pings]
            published = await publisher.publish("Pings", records)
            assert published.accepted == len(pings) and not published.refused_total, published
            self._retries += published.retries
            self.ledger.publish(pings)
            await asyncio.sleep(0.5)

    # -- faults --------------------------------------------------------------------------------------------------------

    async def _rounds(self, crowd: ChaosCrowd) -> None:
        settings = self._settings
        plan = schedule(
            settings.seed, settings.rounds, settings.round_s, list(self.stack.brokers), cluster=settings.cluster_faults
        )
        for number, faults in enumerate(plan, 1):
            await self._wait_until_all_up()  # otherwise the next faults would hit processes that are down
            began_s = time.monotonic()
            self._report_progress(f"round {number}: {', '.join(map(str, faults))}")
            for fault in faults:
                await asyncio.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
                task = asyncio.create_task(self._inject(fault, crowd))
                self._injecting.add(task)
                task.add_done_callback(self._injecting.discard)
            await asyncio.sleep(max(0.0, began_s + settings.round_s - time.monotonic()))
            delivered = sum(map(len, self.ledger.deliveries.values()))
            self._report_progress(f"  {len(self.ledger.published):,} published, {delivered:,} delivered")
        await asyncio.gather(*self._injecting)

    async def _wait_until_all_up(self) -> None:
        await asyncio.gather(*(child.ready(240.0) for child in self.stack.children))

    async def _inject(self, fault: Fault, crowd: ChaosCrowd) -> None:
        chosen = [member for member in crowd.members if self._rng.random() < fault.share]
        match fault.kind:
            case FaultKind.KILL | FaultKind.RESTART | FaultKind.PAUSE:
                happened = await self._signal(self._child(fault.target), fault)
            case FaultKind.MIGRATE:
                happened = await self._migrate(chosen)
            case FaultKind.DRAIN:
                happened = await self._post(f"/v1/brokers/{fault.target}/drain", {"on": True})
                await asyncio.sleep(fault.lasting_s)
                await self._post_until_accepted(f"/v1/brokers/{fault.target}/drain", {"on": False})
            case FaultKind.DROP:
                for member in chosen:
                    crowd.drop(member)
                happened = bool(chosen)
            case FaultKind.RETURN:
                await asyncio.gather(*(crowd.leave_for(member, fault.lasting_s) for member in chosen))
                happened = bool(chosen)
        if happened:
            where = "broker" if fault.target.startswith("broker") else fault.target
            self.faults[
                f"{fault.kind} {where}"
                if fault.kind in (FaultKind.KILL, FaultKind.RESTART, FaultKind.PAUSE)
                else fault.kind
            ] += 1

    def _child(self, name: str) -> Child:
        stack = self.stack
        return {"coordinator": stack.coordinator, "cluster": stack.cluster, **stack.brokers}[name]

    async def _signal(self, child: Child, fault: Fault) -> bool:
        if fault.kind is not FaultKind.PAUSE:
            return child.signal(signal.SIGKILL if fault.kind is FaultKind.KILL else signal.SIGTERM)
        happened = child.signal(signal.SIGSTOP)
        await asyncio.sleep(fault.lasting_s)
        child.signal(signal.SIGCONT)
        return happened

    async def _migrate(self, members: list[Member]) -> bool:
        """Request a move of each member to another live broker. Return whether the coordinator accepted any."""
        try:
            brokers = (await self._coordinator.get("/v1/brokers")).json()["brokers"]
            alive = [broker["broker"] for broker in brokers if broker["state"] == "alive"]
        except (httpx.HTTPError, LookupError, ValueError):
            return False
        requests = []
        for member in members:
            here = None if member.subscriber is None else member.subscriber.broker
            if elsewhere := [name for name in alive if name != here]:
                body = {"subscriber": member.user, "target": self._rng.choice(elsewhere)}
                requests.append(self._post("/v1/migrations", body))
        accepted = sum(await asyncio.gather(*requests))
        self._migrations += accepted
        return accepted > 0

    async def _post(self, path: str, body: dict[str, Any]) -> bool:
        """Return False if the coordinator is down or refuses: the faults make both likely."""
        try:
            response = await self._coordinator.post(path, json=body)
        except httpx.HTTPError as error:
            self._answers[f"none: {type(error).__name__}"] += 1
            return False
        outcome = "done" if response.is_success else str(response.json().get("error", {}).get("message"))
        self._answers[f"{response.status_code} {outcome}"] += 1
        return response.is_success

    async def _post_until_accepted(self, path: str, body: dict[str, Any]) -> None:
        for _ in range(60):
            if await self._post(path, body):
                return
            await asyncio.sleep(1.0)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _drain(self, crowd: ChaosCrowd) -> None:
        self._report_progress("no more faults: waiting for pending deliveries")
        await self._wait_until_all_up()
        deadline_s = time.monotonic() + self._settings.drain_s
        next_report_s = 0.0
        while (missing := self.ledger.missing()) and time.monotonic() < deadline_s:
            if time.monotonic() >= next_report_s:
                self._report_progress(f"  {missing:,} deliveries pending")
                next_report_s = time.monotonic() + 5.0
            await asyncio.sleep(0.25)
        await asyncio.sleep(1.5)  # a repeat would arrive now

    def _report(self, crowd: ChaosCrowd) -> dict[str, Any]:
        brokers: Counter[str] = Counter()
        for member in crowd.members:
            brokers += member.brokers
        return self.ledger.report() | {
            "faults": dict(sorted(self.faults.items())),
            "sessions": dict(sorted(brokers.items())),
            "publisher_retries": self._retries,
            "migrations": self._migrations,
            "coordinator_said": dict(self._answers.most_common(12)),
            "starts": {child.name: child.starts for child in self.stack.children},
            "errors": sorted({error for member in crowd.members for error in member.errors}),
            "findings": self.ledger.findings(),
            "seed": self._settings.seed,
        }


def failed(report: dict[str, Any]) -> bool:
    names = ("lost", "duplicated", "out_of_order", "unexpected", "gaps")
    return any(report[name] for name in names) or not report["delivered"] or bool(report["errors"])


async def run_chaos(settings: ChaosSettings, folder: Path, report_progress: Callable[[str], None]) -> dict[str, Any]:
    """Run to the end, or until SIGINT or SIGTERM. In both cases stop every process."""
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(ChaosRun(settings, folder, report_progress).run())
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(number, running.cancel)
    return await running
