"""`tocsin chaos --topics`: SIGKILL and SIGSTOP of home, target and coordinator while topics move, over real processes.

Each round orders a move of one topic, waits until the coordinator has reached a step of the move, and injects one fault
in it. The coordinator is some milliseconds away from the brokers, by emulated distance, so that every step lasts longer
than the request that observes it. Publishers and subscribers work all the time. A round ends when every topic accepts
and delivers again.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from tocsin.chaos.topic_ledger import PROBE, Homes, Received, TopicLedger
from tocsin.chaos.topic_observer import Observer
from tocsin.client import Patience, TopicMessage, Topics, TopicSubscription
from tocsin.runtime.stack.distance import EmulatedDistance
from tocsin.runtime.stack.stack import Stack, StackSettings
from tocsin.wire.topic_directory import TOPICS, WATCH

VICTIMS = ("home", "target", "coordinator")
FAULTS = (signal.SIGKILL, signal.SIGSTOP)
STEPS = ("preparing", "stopping", "opening", "done")
"""Steps of a move at the coordinator. A persistent topic has `copying` too, which faults in `preparing` reach."""
_DISTANCE_S = 0.03
"""One way between the coordinator and a broker: every step of a move takes at least one round trip."""
_LOOK_S = 0.004
_STEP_S = 15.0
"""A move that has not reached the step by then is disturbed where it is."""
_FROZEN_S = (0.5, 3.0)
"""Shorter and longer than a lease."""
_RECOVER_S = 90.0
_COORDINATOR = {
    "heartbeat-s": "0.5",
    "suspect-s": "1.5",
    "dead-s": "4",
    "grace-s": "5",
    "probation-s": "0.2",
    "forgive-s": "0.5",
    "topic-lease-s": "1.5",
    "topic-move-s": "4",
}
_KEPT: dict[str, dict[str, Any]] = {
    "chaos/volatile": {},
    "chaos/kept-2-2": {"replicas": 2, "quorum": 2},
    "chaos/kept-3-2": {"replicas": 3, "quorum": 2},
}
_COMBINATIONS = list(product(FAULTS, STEPS, VICTIMS, _KEPT))
_STRIDE = 31
"""Neighbouring rounds differ in everything. It has no divisor in common with the number of combinations."""
_PATIENCE = Patience(open_s=4.0, shortest_s=0.1, longest_s=0.5)


@dataclass(frozen=True, slots=True)
class TopicChaosSettings:
    rounds: int = 10
    brokers: int = 4
    subscribers: int = 2
    """Per topic."""
    rate_per_s: float = 100.0
    """Messages per second and topic."""
    seed: int = 7
    workflow: str = "tocsin"


class TopicChaos:
    def __init__(self, settings: TopicChaosSettings, folder: Path, report_progress: Callable[[str], None]) -> None:
        self._settings = settings
        self._progress = report_progress
        self._rng = random.Random(settings.seed)
        self._distance = EmulatedDistance()
        self._stack = Stack(
            StackSettings(
                folder,
                settings.brokers,
                free_ports=True,
                data_cluster=False,
                logs=folder,
                coordinator=_COORDINATOR | {"topic-workflow": settings.workflow},
                restart=True,
                via=self._via,
            )
        )
        self._ledgers = {topic: TopicLedger(topic, bool(options)) for topic, options in _KEPT.items()}
        self._homes = {topic: Homes() for topic in _KEPT}
        self._http: httpx.AsyncClient
        self._published = dict.fromkeys(_KEPT, 0)
        self._stopping = False
        self._faults: Counter[str] = Counter()
        self._steps: Counter[str] = Counter()
        self._longest = ""
        self._served_s: dict[str, float] = {}
        """Topic → when its last message was acknowledged."""
        self._outages_s: list[float] = []
        """Per round: the longest time in which a topic acknowledged nothing."""
        self._recovery_s: list[float] = []
        self._interrupted = 0
        self._stuck = 0
        """Rounds after which something did not work again in time."""
        self._token = ""

    def _via(self, source: str, target: str, url: str) -> str:
        """Brokers reach the coordinator over a distance. Clients reach everything directly."""
        return self._distance.via(source, target, url) if target == "coordinator" and source != "cluster" else url

    async def run(self) -> dict[str, Any]:
        async with self._distance as distance:
            await distance.set_delay("centre", "edge", _DISTANCE_S)
            await distance.place("coordinator", "centre")
            for name in self._stack.brokers:
                await distance.place(name, "edge")
            await distance.open_routes()
            try:
                await self._stack.start()
                headers = {"Authorization": f"Bearer {self._stack.admin_token()}"}
                url = self._stack.coordinator_url
                async with httpx.AsyncClient(base_url=url, headers=headers, timeout=10) as self._http:
                    return await self._on_running_stack()
            finally:
                await self._stack.stop()

    async def _on_running_stack(self) -> dict[str, Any]:
        began_s = time.monotonic()
        for topic, options in _KEPT.items():
            await self._request("POST", TOPICS, {"topic": topic, **options})
        self._token = (await self._request("POST", WATCH, {"receive": ["chaos/#"]}))["token"]
        async with AsyncExitStack() as stack:
            tasks = [asyncio.create_task(self._follow(subscription)) for subscription in await self._subscribe(stack)]
            publisher = await stack.enter_async_context(self._client())
            publishing = [asyncio.create_task(self._publish(publisher, topic)) for topic in _KEPT]
            for broker in await self._brokers():
                observer = Observer(broker["broker"], broker["address"], lambda: self._token, self._homes)
                tasks.append(observer.task)
            try:
                for number in range(self._settings.rounds):
                    await self._round(number)
                self._stopping = True
                async with asyncio.timeout(_RECOVER_S):
                    await asyncio.gather(*publishing)
                await self._wait_until_received()
            finally:
                for task in (*tasks, *publishing):
                    task.cancel()
                await asyncio.gather(*tasks, *publishing, return_exceptions=True)
        return self._report(time.monotonic() - began_s)

    # -- clients -------------------------------------------------------------------------------------------------------

    def _client(self) -> Topics:
        return Topics(self._stack.coordinator_url, token=self._stack.admin_token(), patience=_PATIENCE)

    async def _subscribe(self, stack: AsyncExitStack) -> list[tuple[TopicLedger, Received, TopicSubscription]]:
        subscriptions = []
        for ledger in self._ledgers.values():
            for _ in range(self._settings.subscribers):
                client = await stack.enter_async_context(self._client())
                subscription = await stack.enter_async_context(client.subscribe(ledger.topic))
                ledger.subscribers.append(Received())
                subscriptions.append((ledger, ledger.subscribers[-1], subscription))
        return subscriptions

    async def _follow(self, what: tuple[TopicLedger, Received, TopicSubscription]) -> None:
        ledger, received, subscription = what
        async for item in subscription:
            if not isinstance(item, TopicMessage):
                received.items.append(None)
                continue
            ledger.place(item.position.epoch, item.position.sequence, item.data)
            if not item.data.startswith(PROBE):
                received.items.append(int(item.data))

    async def _publish(self, publisher: Topics, topic: str) -> None:
        ledger = self._ledgers[topic]
        waiting: set[asyncio.Future[None]] = set()
        while not self._stopping:
            number = self._published[topic]
            self._published[topic] += 1
            future = publisher.send(topic, b"%d" % number)
            future.add_done_callback(partial(self._note_acknowledged, ledger, number))
            waiting.add(future)
            future.add_done_callback(waiting.discard)
            await asyncio.sleep(1.0 / self._settings.rate_per_s)
        await asyncio.gather(*waiting, return_exceptions=True)

    def _note_acknowledged(self, ledger: TopicLedger, number: int, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is None:
            ledger.acknowledged.add(number)
            now_s = time.monotonic()
            outage_s = now_s - self._served_s.get(ledger.topic, now_s)
            self._served_s[ledger.topic] = now_s
            if self._outages_s:
                self._outages_s[-1] = max(self._outages_s[-1], outage_s)

    # -- rounds --------------------------------------------------------------------------------------------------------

    async def _round(self, number: int) -> None:
        """Every round has another combination of topic, victim, step and fault; all of them occur in 72 rounds."""
        fault, step, victim, topic = _COMBINATIONS[number * _STRIDE % len(_COMBINATIONS)]
        self._outages_s.append(0.0)
        entry = await self._entry(topic)
        target = self._rng.choice([name for name in self._stack.brokers if name != entry["home"]])
        process = {"home": self._stack.brokers[entry["home"]], "target": self._stack.brokers[target]}.get(
            victim, self._stack.coordinator
        )
        await self._request("POST", f"{TOPICS}/move", {"topic": topic, "target": target})
        reached = await self._wait_for_step(topic, step)
        await asyncio.sleep(self._rng.uniform(0.0, _DISTANCE_S))
        process.signal(fault)
        began_s = time.monotonic()
        if fault is signal.SIGSTOP:
            await asyncio.sleep(self._rng.choice(_FROZEN_S))
            process.signal(signal.SIGCONT)
        self._faults[f"{fault.name} {victim}"] += 1
        self._steps[reached] += 1
        moved = await self._wait_until_healthy(topic, target)
        self._interrupted += not moved
        self._recovery_s.append(time.monotonic() - began_s)
        what = f"{topic}: {fault.name} of the {victim} in the step {reached!r} of a move"
        if self._outages_s[-1] == max(self._outages_s):
            self._longest = what
        times = f"served after {self._outages_s[-1]:.1f} s, all processes back after {self._recovery_s[-1]:.1f} s"
        self._progress(f"round {number + 1}: {what}; {times}")

    async def _wait_for_step(self, topic: str, step: str) -> str:
        """Wait until the move is in this step, or beyond it. Returns the step that it is in."""
        deadline_s = time.monotonic() + _STEP_S
        while True:
            now = (await self._entry(topic))["move_step"] or "done"
            if now == step or now == "done" or time.monotonic() > deadline_s:
                return now
            await asyncio.sleep(_LOOK_S)

    async def _wait_until_healthy(self, topic: str, target: str) -> bool:
        """Wait until every topic accepts again and all brokers are linked. Returns True if the move succeeded."""
        before = {name: len(ledger.acknowledged) for name, ledger in self._ledgers.items()}
        deadline_s = time.monotonic() + _RECOVER_S
        while True:
            await asyncio.sleep(0.1)
            entries = (await self._request("GET", TOPICS))["topics"]
            settled = all(
                entry["home"] is not None and entry["moving_to"] is None and entry["status"] is None
                for entry in entries
            )
            served = all(len(ledger.acknowledged) > before[name] for name, ledger in self._ledgers.items())
            brokers = {broker["broker"]: broker["state"] for broker in await self._brokers()}
            if settled and served and list(brokers.values()) == ["alive"] * self._settings.brokers:
                return any(entry["topic"] == topic and entry["home"] == target for entry in entries)
            if time.monotonic() > deadline_s:
                self._stuck += 1
                self._progress(f"still not well after {_RECOVER_S:g} s: {entries} {brokers}")
                return False

    async def _wait_until_received(self) -> None:
        """Wait until every subscriber has the last acknowledged message of its topic, at most for a while."""
        deadline_s = time.monotonic() + 30.0
        while time.monotonic() < deadline_s:
            if all(
                max(received.numbers, default=-1) >= max(ledger.acknowledged, default=-1)
                for ledger in self._ledgers.values()
                for received in ledger.subscribers
            ):
                return
            await asyncio.sleep(0.1)

    # -- the coordinator -----------------------------------------------------------------------------------------------

    async def _request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request until it succeeds: the coordinator may be dead or frozen, or a broker not ready."""
        async with asyncio.timeout(_RECOVER_S):
            while True:
                try:
                    answer = await self._http.request(method, path, json=body)
                    if answer.is_success or answer.status_code == 409:
                        return answer.json()
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.1)

    async def _entry(self, topic: str) -> dict[str, Any]:
        entries = (await self._request("GET", TOPICS))["topics"]
        return next(entry for entry in entries if entry["topic"] == topic)

    async def _brokers(self) -> list[dict[str, Any]]:
        return list((await self._request("GET", "/v1/brokers"))["brokers"])

    # -- the report ----------------------------------------------------------------------------------------------------

    def _report(self, took_s: float) -> dict[str, Any]:
        two_homes = sum(homes.two_homes() for homes in self._homes.values())
        topics = {topic: ledger.report() for topic, ledger in self._ledgers.items()}
        kept = [report for topic, report in topics.items() if self._ledgers[topic].persistent]
        volatile = [report for topic, report in topics.items() if not self._ledgers[topic].persistent]
        return {
            "rounds": len(self._recovery_s),
            "seed": self._settings.seed,
            "workflow": self._settings.workflow,
            "faults": dict(sorted(self._faults.items())),
            "steps": dict(sorted(self._steps.items())),
            "moves_interrupted": self._interrupted,
            "stuck": self._stuck,
            "epochs": sum(len(homes.first_s) for homes in self._homes.values()),
            "probes_accepted": sum(len(set(homes.probes)) for homes in self._homes.values()),
            "two_homes": two_homes,
            "persistent_lost": sum(report["lost"] for report in kept),
            "persistent_gaps": sum(report["gaps"] for report in kept),
            "volatile_lost": sum(report["lost"] for report in volatile),
            "volatile_lost_untold": sum(report["lost_untold"] for report in volatile),
            "outage_s_median": round(median(self._outages_s), 2),
            "outage_s_max": round(max(self._outages_s), 2),
            "longest_outage": self._longest,
            "recovery_s_median": round(median(self._recovery_s), 2),
            "recovery_s_max": round(max(self._recovery_s), 2),
            "topics": topics,
            "took_s": round(took_s, 1),
            "correct": not two_homes and not self._stuck and all(ledger.correct for ledger in self._ledgers.values()),
        }


async def run_topic_chaos(
    settings: TopicChaosSettings, folder: Path, report_progress: Callable[[str], None]
) -> dict[str, Any]:
    return await TopicChaos(settings, folder, report_progress).run()
