"""Carries out a chaos run: starts a network, lets publishers and subscribers work, breaks things, draws up accounts."""

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

from tocsin.chaos.crowd import Crowd, Member
from tocsin.chaos.faults import Fault, Kind, schedule
from tocsin.chaos.ledger import Ledger, Ping
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
# Everything that waits for time to pass waits less than in production, so that a round sees it happen.
_COORDINATOR = {
    "heartbeat-s": "0.5", "suspect-s": "1.5", "dead-s": "3", "grace-s": "6", "probation-s": "2", "prepare-s": "10",
    "hand-over-s": "8", "confirm-s": "5", "retry-s": "2", "report-s": "1",
}  # fmt: skip
_BROKER = {"progress-s": "2"}


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    rounds: int = 10
    subscribers: int = 60
    brokers: int = 3
    seed: int = 7
    round_s: float = 10.0
    drain_s: float = 180.0
    """How long the end waits for what was published to arrive."""
    batch: int = 20
    """Records in a request; one request every half second."""
    cluster_faults: bool = True
    repetitive: bool = True


class ChaosRun:
    def __init__(
        self, settings: ChaosSettings, folder: Path, tell: Callable[[str], None], stack: Stack | None = None
    ) -> None:
        """On a network of its own, or on one that is running."""
        self._settings = settings
        self._folder = folder
        self._tell = tell
        self._dice = random.Random(settings.seed + 1)
        self.ledger = Ledger()
        self.faults: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        """Of the coordinator, to what was asked of it."""
        self._migrations = 0
        self.stack = stack or Stack(
            StackSettings(
                folder / "data", settings.brokers, free_ports=True, logs=folder, coordinator=_COORDINATOR,
                broker=_BROKER, cluster={"master": "local[2]", "spark": "spark.driver.memory=1g", "heartbeat-s": "2"},
            )
        )  # fmt: skip
        self._publishing = True
        self._retries = 0
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> dict[str, Any]:
        began_s = time.monotonic()
        self._tell(f"starting a data cluster, a coordinator and {self._settings.brokers} brokers in {self._folder}")
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
            crowd = Crowd(stack.coordinator_url, stack.admin_token(), self.ledger, self._members())
            try:
                await crowd.begin()
                self._tell(f"{len(crowd.members)} subscribers hold {len(self.ledger.wanted)} subscriptions")
                publishing = asyncio.create_task(self._publish(publisher))
                await self._flowing()
                await self._rounds(crowd)
                self._publishing = False
                await publishing
                await self._drain(crowd)
            finally:
                await crowd.end()
        return self._report(crowd)

    async def _flowing(self) -> None:
        """Until the first results arrive: faults before that would hit a network with nothing in it."""
        async with asyncio.timeout(self._settings.drain_s):
            while len(self.ledger.published) < self._settings.batch or not any(self.ledger.deliveries.values()):
                await asyncio.sleep(0.1)

    def _members(self) -> list[Member]:
        (self._folder / "clients").mkdir()
        members = []
        for number in range(self._settings.subscribers):
            user, kind, least = f"chaos-{number}", KINDS[number % len(KINDS)], 4 + number % 5
            wishes: list[tuple[str, str, dict[str, Any]]] = [("kind", "PingsOfKind", {"kind": kind})]
            self.ledger.wanted[user, "kind"] = lambda ping, kind=kind: ping.kind == kind  # type: ignore[misc]
            if self._settings.repetitive and number % 3 == 0:
                wishes.append(("least", "PingsAtLeast", {"least": least}))
                self.ledger.wanted[user, "least"] = lambda ping, least=least: ping.n % 10 >= least  # type: ignore[misc]
            members.append(Member(user, wishes, self._folder / "clients" / user))
        return members

    async def _publish(self, publisher: Publisher) -> None:
        numbers = itertools.count()
        for batch in itertools.count():
            if not self._publishing:
                return
            pings = [
                Ping(f"p{n}", KINDS[self._dice.randrange(len(KINDS))], n, batch)
                for n in itertools.islice(numbers, self._settings.batch)
            ]
            records = [{"id": one.id, "kind": one.kind, "n": one.n, "batch": one.batch} for one in pings]
            published = await publisher.publish("Pings", records)
            assert published.accepted == len(pings) and not published.refused_total, published
            self._retries += published.retries
            self.ledger.publish(pings)
            await asyncio.sleep(0.5)

    # -- faults --------------------------------------------------------------------------------------------------------

    async def _rounds(self, crowd: Crowd) -> None:
        settings = self._settings
        plan = schedule(
            settings.seed, settings.rounds, settings.round_s, list(self.stack.brokers), cluster=settings.cluster_faults
        )
        for number, faults in enumerate(plan, 1):
            await self._all_up()  # or the next faults would hit what is not there
            began_s = time.monotonic()
            self._tell(f"round {number}: {', '.join(map(str, faults))}")
            for fault in faults:
                await asyncio.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
                task = asyncio.create_task(self._inject(fault, crowd))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(max(0.0, began_s + settings.round_s - time.monotonic()))
            delivered = sum(map(len, self.ledger.deliveries.values()))
            self._tell(f"  {len(self.ledger.published):,} published, {delivered:,} delivered")
        await asyncio.gather(*self._under_way)

    async def _all_up(self) -> None:
        await asyncio.gather(*(child.ready(240.0) for child in self.stack.children))

    async def _inject(self, fault: Fault, crowd: Crowd) -> None:
        chosen = [member for member in crowd.members if self._dice.random() < fault.share]
        match fault.kind:
            case Kind.KILL | Kind.RESTART | Kind.PAUSE:
                happened = await self._hit(self._child(fault.target), fault)
            case Kind.MIGRATE:
                happened = await self._migrate(chosen)
            case Kind.DRAIN:
                happened = await self._ask(f"/v1/brokers/{fault.target}/drain", {"on": True})
                await asyncio.sleep(fault.lasting_s)
                await self._insist(f"/v1/brokers/{fault.target}/drain", {"on": False})
            case Kind.DROP:
                for member in chosen:
                    crowd.drop(member)
                happened = bool(chosen)
            case Kind.RETURN:
                await asyncio.gather(*(crowd.leave_for(member, fault.lasting_s) for member in chosen))
                happened = bool(chosen)
        if happened:
            where = "broker" if fault.target.startswith("broker") else fault.target
            self.faults[
                f"{fault.kind} {where}" if fault.kind in (Kind.KILL, Kind.RESTART, Kind.PAUSE) else fault.kind
            ] += 1

    def _child(self, name: str) -> Child:
        stack = self.stack
        return {"coordinator": stack.coordinator, "cluster": stack.cluster, **stack.brokers}[name]

    async def _hit(self, child: Child, fault: Fault) -> bool:
        if fault.kind is not Kind.PAUSE:
            return child.signal(signal.SIGKILL if fault.kind is Kind.KILL else signal.SIGTERM)
        happened = child.signal(signal.SIGSTOP)
        await asyncio.sleep(fault.lasting_s)
        child.signal(signal.SIGCONT)
        return happened

    async def _migrate(self, members: list[Member]) -> bool:
        """Each to some broker that accepts and is not where it is."""
        try:
            said = (await self._coordinator.get("/v1/brokers")).json()
            alive = [one["broker"] for one in said["brokers"] if one["state"] == "alive"]
        except (httpx.HTTPError, LookupError, ValueError):
            return False
        asked = []
        for member in members:
            here = None if member.subscriber is None else member.subscriber.broker
            if elsewhere := [name for name in alive if name != here]:
                body = {"subscriber": member.user, "target": self._dice.choice(elsewhere)}
                asked.append(self._ask("/v1/migrations", body))
        taken = sum(await asyncio.gather(*asked))
        self._migrations += taken
        return taken > 0

    async def _ask(self, path: str, body: dict[str, Any]) -> bool:
        """False if the coordinator is away or says no: both are part of the game."""
        try:
            response = await self._coordinator.post(path, json=body)
        except httpx.HTTPError as error:
            self._answers[f"none: {type(error).__name__}"] += 1
            return False
        said = "done" if response.is_success else str(response.json().get("error", {}).get("message"))
        self._answers[f"{response.status_code} {said}"] += 1
        return response.is_success

    async def _insist(self, path: str, body: dict[str, Any]) -> None:
        for _ in range(60):
            if await self._ask(path, body):
                return
            await asyncio.sleep(1.0)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _drain(self, crowd: Crowd) -> None:
        self._tell("no more faults: waiting for what is on its way")
        await self._all_up()
        deadline_s = time.monotonic() + self._settings.drain_s
        tell_s = 0.0
        while (missing := self.ledger.missing()) and time.monotonic() < deadline_s:
            if time.monotonic() >= tell_s:
                self._tell(f"  {missing:,} deliveries to come")
                tell_s = time.monotonic() + 5.0
            await asyncio.sleep(0.25)
        await asyncio.sleep(1.5)  # a repeat would come now

    def _report(self, crowd: Crowd) -> dict[str, Any]:
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


async def run_chaos(settings: ChaosSettings, folder: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """Until it is over, or SIGINT or SIGTERM end it; either way nothing is left running."""
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(ChaosRun(settings, folder, tell).run())
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(number, running.cancel)
    return await running
