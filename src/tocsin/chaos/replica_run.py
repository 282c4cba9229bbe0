"""`tocsin chaos --replicas`: two of everything; a leader or a standby is killed, stopped or cut off in each round.

Three claims beside those of every chaos run: no fault loses, repeats or reorders a record, the network goes on without
help, and no subscription of the continuous channel is silent for longer than `SILENCE_S`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tocsin.chaos.crowd import ChaosCrowd, Member, SubscriptionRequest
from tocsin.chaos.ledger import Account, Delivery, DeliveryLedger, PingRecord
from tocsin.chaos.relay import Relays
from tocsin.chaos.run import APPLICATION, BROKER, CLUSTER, COORDINATOR, KINDS, PUBLISHER
from tocsin.client import Publisher
from tocsin.leaders.clients import leading_client
from tocsin.runtime.stack.postgresql import LocalPostgresql
from tocsin.runtime.stack.stack import SUBSCRIBERS, Stack, StackSettings

SILENCE_S = 20.0
SEED = 7
"""With this seed the first fault is the first of `FAULTS`."""
_STOPPED_S = (12.0, 16.0)
"""How long a process is stopped or cut off: longer than its lease."""
_SETTLED_S = 4.0
"""After a round all processes have been up for this long."""
_READY_S = 240.0


@dataclass(frozen=True, slots=True)
class ReplicaFault:
    kind: str
    """kill, stop, cut off, or restart."""
    target: str
    """`leader` or `standby` and `cluster` or `coordinator`; `broker`; `results`; `postgresql`."""

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


FAULTS = (
    ReplicaFault("kill", "leader cluster"),
    ReplicaFault("stop", "leader coordinator"),
    ReplicaFault("cut off", "leader cluster"),
    ReplicaFault("kill", "leader coordinator"),
    ReplicaFault("stop", "leader cluster"),
    ReplicaFault("restart", "postgresql"),
    ReplicaFault("cut off", "leader coordinator"),
    ReplicaFault("kill", "broker"),
    ReplicaFault("stop", "standby cluster"),
    ReplicaFault("stop", "broker"),
    ReplicaFault("kill", "standby coordinator"),
    ReplicaFault("stop", "results"),
    ReplicaFault("kill", "results"),
)
"""In the order of the rounds, again and again."""


@dataclass(slots=True)
class TimedLedger(DeliveryLedger):
    """Also measures how long each subscription of the continuous channel is silent."""

    began_s: float = 0.0
    """The silence counts from here on."""
    last_s: dict[Account, float] = field(default_factory=dict)
    longest_s: float = 0.0
    round_s: float = 0.0
    """The longest silence that ended in this round."""

    def deliver(self, account: Account, delivery: Delivery) -> None:
        DeliveryLedger.deliver(self, account, delivery)
        now_s = time.monotonic()
        if self.began_s:
            silent_s = now_s - max(self.began_s, self.last_s.get(account, 0.0))
            self.longest_s, self.round_s = max(self.longest_s, silent_s), max(self.round_s, silent_s)
        self.last_s[account] = now_s


@dataclass(frozen=True, slots=True)
class ReplicaChaosSettings:
    rounds: int = 20
    subscribers: int = 12
    brokers: int = 3
    seed: int = SEED
    """Decides which fault is the first, and how long faults last."""
    drain_s: float = 180.0
    batch: int = 20
    pause_s: float = 0.5
    """Between two requests of the publisher."""


class ReplicaChaosRun:
    """Create it on the event loop that runs it."""

    def __init__(self, settings: ReplicaChaosSettings, folder: Path, report_progress: Callable[[str], None]) -> None:
        self._settings = settings
        self._folder = folder
        self._report_progress = report_progress
        self._rng = random.Random(settings.seed)
        self.ledger = TimedLedger()
        self._relays = Relays()
        self._database = LocalPostgresql(folder, relayed=True)
        self.stack = Stack(
            StackSettings(
                folder / "data",
                settings.brokers,
                free_ports=True,
                logs=folder,
                coordinator=COORDINATOR,
                broker=BROKER,
                cluster=CLUSTER,
                replicas=self._database.url,
                via=self._relays.address,
            )
        )
        stack = self.stack
        self._processes = {child.name: child for child in stack.children}
        names = ("coordinator", "coordinator-2", "cluster", "cluster-2")
        self._direct = dict(zip(names, f"{stack.coordinator_url},{stack.cluster_url}".split(","), strict=True))
        self._publishing = True
        self._publisher: asyncio.Task[None]
        self._next_batch = 0
        self._retries = 0
        self.faults: Counter[str] = Counter()
        self.silences: dict[str, float] = {}
        """Fault → the longest silence of its rounds."""

    async def run(self) -> dict[str, Any]:
        began_s = time.monotonic()
        self._report_progress("starting PostgreSQL, two of each server, and brokers")
        try:
            await self._database.start()
            relayed_coordinator = self._relayed(SUBSCRIBERS, "coordinator")
            relayed_cluster = self._relayed(PUBLISHER, "cluster")
            await self._relays.start()
            await self.stack.start()
            await self._all_up()
            return await self._on_running_stack(relayed_coordinator, relayed_cluster) | {
                "took_s": round(time.monotonic() - began_s, 1)
            }
        finally:
            await self.stack.stop()
            await self._database.stop()
            self._database.delete()
            await self._relays.stop()

    def _relayed(self, source: str, kind: str) -> str:
        return ",".join(self._relays.address(source, name, self._direct[name]) for name in (kind, f"{kind}-2"))

    async def _on_running_stack(self, coordinator: str, cluster: str) -> dict[str, Any]:
        token = self.stack.admin_token()
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            leading_client(self.stack.cluster_url, headers=headers, timeout=60.0) as http,
            Publisher(cluster, token, give_up_s=600.0, longest_s=1.0) as publisher,
        ):
            (await http.post("/v1/applications", json={"text": APPLICATION})).raise_for_status()
            (self._folder / "clients").mkdir()
            members = [self._member(f"chaos-{number}", number) for number in range(self._settings.subscribers)]
            crowd = ChaosCrowd(coordinator, token, self.ledger, members, lambda: self._next_batch)
            try:
                await crowd.start()
                publishing = self._publisher = asyncio.create_task(self._publish(publisher))
                async with asyncio.timeout(self._settings.drain_s):
                    while not all(self.ledger.deliveries[account] for account in self.ledger.matches):
                        await asyncio.sleep(0.1)
                self.ledger.began_s = time.monotonic()
                for number, fault in enumerate(self._faults(), 1):
                    await self._round(number, fault)
                self._publishing = False
                await publishing
                await self._drain()
            finally:
                await crowd.stop()
            return self._report(members)

    def _member(self, user: str, number: int) -> Member:
        kind = KINDS[number % len(KINDS)]
        requests = [SubscriptionRequest("kind", "PingsOfKind", {"kind": kind}, lambda ping: ping.kind == kind)]
        return Member(user, requests, self._folder / "clients" / user)

    def _faults(self) -> Iterator[ReplicaFault]:
        first = (self._settings.seed - SEED) % len(FAULTS)
        return itertools.islice(itertools.cycle(FAULTS), first, first + self._settings.rounds)

    async def _publish(self, publisher: Publisher) -> None:
        for batch in itertools.count():
            if not self._publishing:
                return
            self._next_batch = batch + 1
            first = batch * self._settings.batch
            # Each batch has every kind, so that a silent subscription is one that gets nothing.
            pings = [PingRecord(f"p{n}", KINDS[n % len(KINDS)], n, batch) for n in range(first, first + 20)]
            records = [{"id": ping.id, "kind": ping.kind, "n": ping.n, "batch": ping.batch} for ping in pings]
            published = await publisher.publish("Pings", records)
            assert published.accepted == len(pings) and not published.refused_total, published
            self._retries += published.retries
            self.ledger.publish(pings)
            await asyncio.sleep(self._settings.pause_s)

    # -- rounds --------------------------------------------------------------------------------------------------------

    async def _round(self, number: int, fault: ReplicaFault) -> None:
        await self._all_up()
        await asyncio.sleep(_SETTLED_S)
        self.ledger.round_s = 0.0
        name = await self._name_of(fault.target)
        self._report_progress(f"round {number}: {fault} ({name})")
        began_s = time.monotonic()
        await self._inject(fault.kind, name)
        # A silence is counted when it ends.
        async with asyncio.timeout(_READY_S):
            while min(self.ledger.last_s.values()) < began_s + SILENCE_S / 4:
                if self._publisher.done():
                    await self._publisher  # raises the reason
                await asyncio.sleep(0.1)
        await self._all_up()
        self.faults[str(fault)] += 1
        self.silences[str(fault)] = max(self.silences.get(str(fault), 0.0), round(self.ledger.round_s, 1))
        delivered = sum(map(len, self.ledger.deliveries.values()))
        self._report_progress(
            f"  longest silence {self.ledger.round_s:.1f} s; {len(self.ledger.published):,} published, "
            f"{delivered:,} delivered"
        )

    async def _name_of(self, target: str) -> str:
        """The process that a fault hits now."""
        role, _, kind = target.rpartition(" ")
        if not role:
            several = {"broker": list(self.stack.brokers), "results": list(self.stack.result_servers)}
            return self._rng.choice(several.get(target, [target]))
        leader = await self._leader(kind)
        standby = kind if leader != kind else f"{kind}-2"
        return leader if role == "leader" else standby

    async def _leader(self, kind: str) -> str:
        async with asyncio.timeout(_READY_S), httpx.AsyncClient(timeout=2.0) as client:
            while True:
                for name in (kind, f"{kind}-2"):
                    try:
                        if (await client.get(self._direct[name] + "/readyz")).status_code == httpx.codes.OK:
                            return name
                    except httpx.TransportError:
                        continue
                await asyncio.sleep(0.2)

    async def _inject(self, kind: str, name: str) -> None:
        lasting_s = self._rng.uniform(*_STOPPED_S)
        if kind == "restart":
            await self._database.restart()
        elif kind == "kill":
            self._processes[name].signal(signal.SIGKILL)
        elif kind == "stop":
            self._processes[name].signal(signal.SIGSTOP)
            await asyncio.sleep(lasting_s)
            self._processes[name].signal(signal.SIGCONT)
        else:  # every connection of this process, in both directions
            relays = [relay for link, relay in self._relays.by_link.items() if name in link]
            await asyncio.gather(*(relay.partition(lasting_s) for relay in relays))

    async def _all_up(self) -> None:
        await asyncio.gather(*(child.ready(_READY_S) for child in self._processes.values()))
        await self._leader("coordinator")
        await self._leader("cluster")

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        self._report_progress("no more faults: waiting for pending deliveries")
        deadline_s = time.monotonic() + self._settings.drain_s
        while self.ledger.missing() and time.monotonic() < deadline_s:
            await asyncio.sleep(0.25)
        await asyncio.sleep(1.5)  # a repeat would arrive now

    def _report(self, members: list[Member]) -> dict[str, Any]:
        return self.ledger.report() | {
            "longest_silence_s": round(self.ledger.longest_s, 1),
            "silences": self.silences,
            "faults": dict(sorted(self.faults.items())),
            "publisher_retries": self._retries,
            "starts": {child.name: child.starts for child in self.stack.children},
            "errors": sorted({error for member in members for error in member.errors}),
            "findings": self.ledger.findings(),
            "seed": self._settings.seed,
        }


def replicas_failed(report: dict[str, Any]) -> bool:
    names = ("lost", "duplicated", "out_of_order", "unexpected", "gaps")
    is_silent = report["longest_silence_s"] > SILENCE_S
    return any(report[name] for name in names) or is_silent or not report["delivered"] or bool(report["errors"])


async def run_replica_chaos(
    settings: ReplicaChaosSettings, folder: Path, report_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Run to the end, or until SIGINT or SIGTERM; then stop every process and raise CancelledError."""
    running = asyncio.create_task(ReplicaChaosRun(settings, folder, report_progress).run())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    return await running
