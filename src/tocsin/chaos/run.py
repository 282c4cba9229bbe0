"""Carries out a chaos run: starts a network, publishes and subscribes, injects faults, and reports the deliveries."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tocsin.chaos.crowd import ChaosCrowd, Member, SubscriptionRequest
from tocsin.chaos.faults import schedule
from tocsin.chaos.injection import Injector
from tocsin.chaos.ledger import DeliveryLedger, PingRecord
from tocsin.chaos.relay import Relays
from tocsin.chaos.unfiltered import EventStreamMember, RawSocketMember, UnfilteredMember
from tocsin.chaos.webhook_members import WebhookReceiver
from tocsin.client import Publisher
from tocsin.runtime.stack.stack import SUBSCRIBERS, Stack, StackSettings

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
COORDINATOR = {
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
BROKER = {"progress-s": "2", "webhooks-private": ""}
CLUSTER = {
    "master": "local[2]",
    "spark": "spark.driver.memory=1g",
    "heartbeat-s": "2",
    "spark-deadline-s": "8",
}
PUBLISHER = "publisher"


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
    unfiltered: int = 6
    """Subscribers of each kind without the SDK: raw WebSockets, event streams and webhooks share this number."""


class ChaosRun:
    """Create it on the event loop that runs it."""

    def __init__(self, settings: ChaosSettings, folder: Path, report_progress: Callable[[str], None]) -> None:
        self._settings = settings
        self._folder = folder
        self._root = folder / "data"
        self._report_progress = report_progress
        self._rng = random.Random(settings.seed + 1)
        self.ledger = DeliveryLedger()
        self._relays = Relays()
        self.stack = Stack(
            StackSettings(
                self._root,
                settings.brokers,
                free_ports=True,
                logs=folder,
                coordinator=COORDINATOR,
                broker=BROKER,
                cluster=CLUSTER,
                cluster_preload="tocsin.chaos.faulty_process",
                via=self._relays.address,
            )
        )
        relayed = self._relays.address
        self._coordinator_url = relayed(SUBSCRIBERS, "coordinator", self.stack.coordinator_url)
        self._cluster_url = relayed(PUBLISHER, "cluster", self.stack.cluster_url)
        self._publishing = True
        self._next_batch = 0
        """The first batch that the publisher has not begun to send."""
        self._retries = 0
        self._injecting: set[asyncio.Task[None]] = set()
        self._so_far: Callable[[], dict[str, Any]] = dict
        """Makes the report of what has happened so far; empty before the subscribers exist."""

    def report_so_far(self) -> dict[str, Any]:
        """The report of a run that was stopped before its end. Pending deliveries count as lost."""
        report = self._so_far()
        return report | {"stopped": True} if report else report

    async def run(self) -> dict[str, Any]:
        began_s = time.monotonic()
        self._report_progress(
            f"starting a data cluster, a coordinator and {self._settings.brokers} brokers in {self._folder}"
        )
        try:
            await self._relays.start()
            await self.stack.start()
            report = await self._on_running_stack()
        finally:
            await self.stack.stop()
            await self._relays.stop()
        return report | {"took_s": round(time.monotonic() - began_s, 1)}

    async def _on_running_stack(self) -> dict[str, Any]:
        stack, token = self.stack, self.stack.admin_token()
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx.AsyncClient(base_url=stack.coordinator_url, headers=headers, timeout=15.0) as coordinator,
            httpx.AsyncClient(base_url=stack.cluster_url, headers=headers, timeout=60.0) as cluster,
            Publisher(self._cluster_url, token, give_up_s=600.0, longest_s=2.0) as publisher,
        ):
            text = APPLICATION + (REPETITIVE if self._settings.repetitive else "")
            (await cluster.post("/v1/applications", json={"text": text})).raise_for_status()
            (self._folder / "clients").mkdir()
            numbers = range(self._settings.subscribers)
            members = [self._member(f"chaos-{number}", number) for number in numbers]
            crowd = ChaosCrowd(self._coordinator_url, token, self.ledger, members, lambda: self._next_batch)
            injector = Injector(stack, self._root, self._relays, crowd, coordinator, self._rng)
            async with self._unfiltered(token) as (unfiltered, webhooks):
                self._so_far = lambda: self._report(crowd, injector, unfiltered, webhooks)
                try:
                    await crowd.start()
                    users = {user for user, _ in self.ledger.matches}
                    self._report_progress(f"{len(users)} subscribers hold {len(self.ledger.matches)} subscriptions")
                    publishing = asyncio.create_task(self._publish(publisher))
                    await self._wait_for_first_results()
                    await self._rounds(crowd, injector)
                    self._publishing = False
                    await publishing
                    await self._drain(crowd)
                finally:
                    await crowd.stop()
        return self._so_far()

    @contextlib.asynccontextmanager
    async def _unfiltered(self, token: str) -> AsyncIterator[tuple[list[UnfilteredMember], WebhookReceiver]]:
        """The subscribers without the SDK, subscribed before the first record."""
        each = max(1, self._settings.unfiltered // 3)
        common = (self._coordinator_url, token, self.ledger, lambda: self._next_batch)
        members: list[UnfilteredMember] = []
        for number in range(each):
            kind = KINDS[number % len(KINDS)]
            members += [
                RawSocketMember(f"raw-{number}", kind, *common),
                EventStreamMember(f"stream-{number}", kind, *common),
            ]
        webhooks = WebhookReceiver(*common)
        try:
            await asyncio.gather(*(member.start() for member in members))
            await webhooks.start({f"webhook-{number}": KINDS[number % len(KINDS)] for number in range(each)})
            yield members, webhooks
        finally:
            await asyncio.gather(*(member.stop() for member in members))
            await webhooks.stop()

    async def _wait_for_first_results(self) -> None:
        """Wait until results arrive: earlier faults would hit an idle network."""
        async with asyncio.timeout(self._settings.drain_s):
            while len(self.ledger.published) < self._settings.batch or not any(self.ledger.deliveries.values()):
                await asyncio.sleep(0.1)

    def _member(self, user: str, number: int) -> Member:
        kind, least = KINDS[number % len(KINDS)], 4 + number % 5
        requests = [SubscriptionRequest("kind", "PingsOfKind", {"kind": kind}, lambda ping: ping.kind == kind)]
        if self._settings.repetitive and number % 3 == 0:
            requests.append(
                SubscriptionRequest("least", "PingsAtLeast", {"least": least}, lambda ping: ping.n % 10 >= least)
            )
        return Member(user, requests, self._folder / "clients" / user)

    async def _publish(self, publisher: Publisher) -> None:
        numbers = itertools.count()
        for batch in itertools.count():
            if not self._publishing:
                return
            self._next_batch = batch + 1
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

    # -- rounds --------------------------------------------------------------------------------------------------------

    async def _rounds(self, crowd: ChaosCrowd, injector: Injector) -> None:
        settings = self._settings
        links = [f"{source}>{target}" for source, target in self._relays.by_link]
        random.Random(settings.seed).shuffle(links)
        # The publisher's answers matter most: every run loses some of them.
        links.insert(0, f"{PUBLISHER}>cluster")
        plan = schedule(
            settings.seed,
            settings.rounds,
            settings.round_s,
            list(self.stack.brokers),
            links,
            cluster=settings.cluster_faults,
        )
        for number, faults in enumerate(plan, 1):
            await self._wait_until_all_up()  # otherwise the next faults would hit processes that are down
            began_s = time.monotonic()
            self._report_progress(f"round {number}: {', '.join(map(str, faults))}")
            crowd.join(self._member(f"late-{number}", number))  # it subscribes while the faults happen
            for fault in faults:
                await asyncio.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
                task = asyncio.create_task(injector.inject(fault))
                self._injecting.add(task)
                task.add_done_callback(self._injecting.discard)
            await asyncio.sleep(max(0.0, began_s + settings.round_s - time.monotonic()))
            delivered = sum(map(len, self.ledger.deliveries.values()))
            self._report_progress(f"  {len(self.ledger.published):,} published, {delivered:,} delivered")
        await asyncio.gather(*self._injecting)

    async def _wait_until_all_up(self) -> None:
        await asyncio.gather(*(child.ready(240.0) for child in self.stack.children))

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _drain(self, crowd: ChaosCrowd) -> None:
        self._report_progress("no more faults: waiting for pending deliveries")
        await self._wait_until_all_up()
        deadline_s = time.monotonic() + self._settings.drain_s
        next_report_s = 0.0
        while time.monotonic() < deadline_s:
            waiting = sum(not member.ready.is_set() for member in crowd.members)
            missing = self.ledger.missing()
            if not waiting and not missing:
                break
            if time.monotonic() >= next_report_s:
                self._report_progress(f"  {missing:,} deliveries and {waiting} subscribe requests pending")
                next_report_s = time.monotonic() + 5.0
            await asyncio.sleep(0.25)
        await asyncio.sleep(1.5)  # a repeat would arrive now

    def _report(
        self,
        crowd: ChaosCrowd,
        injector: Injector,
        unfiltered: list[UnfilteredMember],
        webhooks: WebhookReceiver,
    ) -> dict[str, Any]:
        brokers: Counter[str] = Counter()
        for member in crowd.members:
            brokers += member.brokers
        never = [f"{member.user} could not subscribe" for member in crowd.members if not member.ready.is_set()]
        return self.ledger.report() | {
            "broken_cursor_rules": sum(member.broken_rules for member in unfiltered),
            "repeated_before_filter": sum(member.repeats for member in unfiltered),
            "received_without_filter": sum(member.results for member in unfiltered),
            "connections_without_filter": sum(member.connections for member in unfiltered),
            "webhook_calls": webhooks.calls,
            "webhook_repeats": webhooks.repeats,
            "subscribed_under_faults": sum(m.ready.is_set() for m in crowd.members if m.user.startswith("late-")),
            "faults": dict(sorted(injector.faults.items())),
            "sessions": dict(sorted(brokers.items())),
            "publisher_retries": self._retries,
            "migrations": injector.migrations,
            "coordinator_said": dict(injector.answers.most_common(12)),
            "starts": {child.name: child.starts for child in self.stack.children},
            "errors": sorted({error for member in crowd.members for error in member.errors} | set(never)),
            "findings": self.ledger.findings(),
            "seed": self._settings.seed,
        }


def failed(report: dict[str, Any]) -> bool:
    """True if a promise is broken, or if the run shows nothing: no fault, no delivery, or stopped before its end."""
    names = ("lost", "duplicated", "out_of_order", "unexpected", "gaps", "broken_cursor_rules")
    shows_nothing = not report["delivered"] or not sum(report["faults"].values()) or "stopped" in report
    return any(report[name] for name in names) or shows_nothing or bool(report["errors"])


async def run_chaos(settings: ChaosSettings, folder: Path, report_progress: Callable[[str], None]) -> dict[str, Any]:
    """Run to the end, or until SIGINT or SIGTERM. In both cases stop every process.

    A run that a signal stopped returns its report so far, with `stopped`. Raises CancelledError if there is none yet.
    """
    loop = asyncio.get_running_loop()
    chaos = ChaosRun(settings, folder, report_progress)
    running = asyncio.create_task(chaos.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(number, running.cancel)
    try:
        return await running
    except asyncio.CancelledError:
        if report := chaos.report_so_far():
            return report
        raise
