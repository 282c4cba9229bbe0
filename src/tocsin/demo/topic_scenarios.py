"""Runs a `Scenario` on real processes at emulated distances: coordinator, brokers, and an SDK client per UAV or player.

All clients are in this process, so that one clock times every message. Each has its own connections, from the address
of its node, by which the relay knows where it is. `Deliveries`, the observer of the simulator, judges the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from tocsin.client import TopicGap, Topics, TopicSubscription
from tocsin.client.errors import SessionEnded
from tocsin.coords.coordinate import Coordinate, distance_s
from tocsin.demo.topic_work import WorkProbe
from tocsin.model.ids import BrokerId, TopicName
from tocsin.policies.topics.types import TopicMoveReason
from tocsin.runtime.stack.distance import EmulatedDistance, RelayError
from tocsin.runtime.stack.stack import Stack, StackSettings
from tocsin.runtime.stack.supervisor import cpu_time_s
from tocsin.sim.kernel import Kernel
from tocsin.sim.topics.control import Episode, MoveMade
from tocsin.sim.topics.deliveries import Deliveries, SimulatedMessage
from tocsin.sim.topics.scenario import COORDINATOR, ClientsMoved, Scenario

_SETTLED_ERROR: Final = 0.1
_SETTLE_S: Final = 45.0
_READY_S: Final = 60.0
_TRANSIT_S: Final = 15.0
"""Time after the last message in which messages may arrive."""
_LOOK_S: Final = 0.25
_KEPT_S: Final = 30.0
_STAGGER_S: Final = 5.0
"""Clients start over this time, so that they do not probe at the same moments."""
_COORDINATOR: Final = {"topic-lease-s": "20", "suspect-s": "20", "dead-s": "40"}
"""Long times: a busy machine must not cause a failover, which the simulator does not have."""


@dataclass(frozen=True, slots=True)
class LiveEpisode:
    episode: Episode
    relay: RelayError
    coordinate_error: float
    """Largest relative error of a predicted round trip between two brokers, when the scenario began."""
    gaps: int
    """Gaps that homes reported to consumers."""
    late_p99_s: float
    """How late messages left this process, 99th percentile: the machine was too busy if it is large."""
    cpu: dict[str, float]
    """Process → cores that it used."""
    work: list[tuple[float, float]]
    """(time, seconds that the processes worked on a message of a probe)"""
    began_at: datetime
    """When the scenario began, as processes write the time in their logs."""


async def run_scenario(
    scenario: Scenario, loop: str, seed: int, folder: Path, report_progress: Callable[[str], None]
) -> LiveEpisode:
    """Run the scenario once with this control loop (`paper` or `tocsin`)."""
    async with EmulatedDistance() as distance:
        for (one, other), delay_s in scenario.delays_s.items():
            await distance.set_delay(one, other, delay_s)
        for node, place in scenario.places.items():
            await distance.place(node, place)
        sources = {f"broker-{number}": await distance.address(f"broker-{number}") for number in _numbers(scenario)}
        settings: dict[str, Any] = {"free_ports": True, "data_cluster": False, "logs": folder}
        flags = {**_COORDINATOR, "topic-loop": loop}
        settings |= {"coordinator": flags, "via": distance.via, "sources": sources}
        stack = Stack(StackSettings(folder, scenario.brokers, **settings))
        try:
            await distance.open_routes()
            await stack.start()
            return await _Run(scenario, loop, seed, stack, distance, report_progress).run()
        finally:
            await stack.stop()


def _numbers(scenario: Scenario) -> range:
    return range(1, scenario.brokers + 1)


@dataclass(slots=True)
class _Run:
    scenario: Scenario
    loop: str
    seed: int
    stack: Stack
    distance: EmulatedDistance
    report_progress: Callable[[str], None]
    deliveries: Deliveries = field(default_factory=Deliveries)
    moves: list[MoveMade] = field(default_factory=list)
    gaps: int = 0
    _probes: list[WorkProbe] = field(default_factory=list)
    _http: httpx.AsyncClient = field(init=False)
    _addresses: dict[str, str] = field(default_factory=dict)
    _clients: dict[str, Topics] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _subscriptions: dict[tuple[TopicName, str], TopicSubscription] = field(default_factory=dict)
    _consumers: dict[TopicName, set[str]] = field(default_factory=dict)
    _messages: dict[TopicName, dict[bytes, SimulatedMessage]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _began_s: float = 0.0
    _late_s: array[float] = field(default_factory=lambda: array("d"))
    _homes: dict[TopicName, str] = field(default_factory=dict)
    _left: dict[tuple[TopicName, str], float] = field(default_factory=dict)

    @property
    def now_s(self) -> float:
        """Seconds since the scenario began."""
        return time.perf_counter() - self._began_s

    async def run(self) -> LiveEpisode:
        headers = {"Authorization": f"Bearer {self.stack.admin_token()}"}
        async with AsyncExitStack() as stack:
            http = httpx.AsyncClient(base_url=self.stack.coordinator_url, headers=headers, timeout=_READY_S)
            self._http = await stack.enter_async_context(http)
            coordinate_error = await self._settle()
            await self._create_topics()
            await self._start_clients(stack)
            self.report_progress(f"{self.loop}: {len(self._clients)} clients are ready")
            await self.distance.report()
            gc.collect()
            gc.freeze()
            gc.disable()  # a collection among a million messages would stop all clients
            began = self._cpu_s()
            self._began_s, began_at = time.perf_counter(), datetime.now(UTC)
            probing = (probe.run() for probe in self._probes)
            async with self._background(self._watch_homes(), self._change(), self._forget_old(), *probing):
                await self._publish()
                lasted_s = self.now_s
                used = {name: (cpu_s - began[name]) / lasted_s for name, cpu_s in self._cpu_s().items()}
                until_s = self.now_s + _TRANSIT_S
                while self.deliveries.outstanding and self.now_s < until_s:
                    await asyncio.sleep(0.1)
            gc.enable()
            relay = await self.distance.report()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        late_p99_s = sorted(self._late_s)[int(0.99 * len(self._late_s))] if self._late_s else float("inf")
        episode = Episode(self.moves, [], self.deliveries)
        work = [sample for probe in self._probes for sample in probe.measured]
        return LiveEpisode(episode, relay, coordinate_error, self.gaps, late_p99_s, used, work, began_at)

    @asynccontextmanager
    async def _background(self, *coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
        try:
            yield
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- start ---------------------------------------------------------------------------------------------------------

    async def _settle(self) -> float:
        """Wait for the coordinates of the brokers and for the policies. Returns the largest error of a prediction."""
        (await self._http.post("/v1/plans", json={"moves": []})).raise_for_status()
        places = self.scenario.places
        until_s = time.perf_counter() + _SETTLE_S
        while True:
            brokers = (await self._http.get("/v1/brokers")).json()["brokers"]
            self._addresses = {view["broker"]: view["address"] for view in brokers}
            known = {view["broker"]: view["coordinate"] for view in brokers if view["coordinate"] is not None}
            at = {name: Coordinate(**{**value, "vector": tuple(value["vector"])}) for name, value in known.items()}
            errors = []
            for one, other in combinations(sorted(at), 2):
                true_s = 2 * self._delay_s(places[one], places[other])
                errors.append(abs(distance_s(at[one], at[other]) - true_s) / true_s)
            settled = len(at) == self.scenario.brokers and all(value.error < _SETTLED_ERROR for value in at.values())
            if (settled and max(errors) < _SETTLED_ERROR) or time.perf_counter() > until_s:
                self.report_progress(
                    f"{self.loop}: coordinates predict round trips within {max(errors, default=1.0):.0%}"
                )
                return max(errors, default=float("inf"))
            await asyncio.sleep(0.5)

    async def _create_topics(self) -> None:
        """Create the topics at the homes that hashing chooses; they have no clients yet, so nothing moves them."""

        async def create(name: TopicName, home: str, bound: dict[str, float]) -> None:
            (await self._http.post("/v1/topics", json={"topic": name} | bound)).raise_for_status()
            while (entry := await self._entries(name)).get(name) != home:
                await self._http.post("/v1/topics/move", json={"topic": name, "target": home})
                await asyncio.sleep(0.2)
            self._homes |= entry

        for name in self.scenario.topics:
            self.deliveries.latencies[name] = []
            self._messages[name], self._consumers[name] = {}, set()
        bound = {"within_s": self.scenario.bound_s}
        creating = [create(name, topic.home, bound) for name, topic in self.scenario.topics.items()]
        creating += [create(TopicName(probe), broker, {}) for probe, broker in self.scenario.probes.items()]
        async with asyncio.timeout(_READY_S):
            await asyncio.gather(*creating)

    async def _entries(self, pattern: str) -> dict[TopicName, str]:
        entries = (await self._http.get("/v1/topics", params={"pattern": pattern})).raise_for_status().json()["topics"]
        return {entry["topic"]: entry["home"] for entry in entries if entry["moving_to"] is None}

    async def _start_clients(self, stack: AsyncExitStack) -> None:
        port = urlsplit(self.stack.coordinator_url).port
        assert port is not None
        host, route = await self.distance.route(COORDINATOR, port)
        make = partial(self._client, stack, f"http://{host}:{route}")
        for number, (name, node) in enumerate(self.scenario.clients.items()):
            self._clients[name] = await make(node, self.scenario.gateways[node])
            self._numbers[name] = number
            await asyncio.sleep(_STAGGER_S / len(self.scenario.clients))
        for node, broker in self.scenario.probes.items():
            delay_s = 2 * self._delay_s(self.scenario.places[node], self.scenario.places[broker])
            self._probes.append(WorkProbe(TopicName(node), await make(node, broker), delay_s, lambda: self.now_s))
        pairs = [(name, consumer) for name, topic in self.scenario.topics.items() for consumer in topic.consumers]
        async with asyncio.timeout(_READY_S):
            await asyncio.gather(*(self._join(*pair) for pair in pairs), *(probe.ready() for probe in self._probes))

    async def _client(self, stack: AsyncExitStack, coordinator: str, node: str, gateway: str) -> Topics:
        client = Topics(
            coordinator,
            token=self.stack.admin_token(),
            source=await self.distance.address(node),
            gateway=self._addresses[gateway],
            prompt=False,
        )
        assert client.agent is not None
        client.agent.prompt = self.loop != "paper"
        return await stack.enter_async_context(client)

    def _delay_s(self, one: str, other: str) -> float:
        delays_s = self.scenario.delays_s
        return delays_s[one, other] if (one, other) in delays_s else delays_s[other, one]

    # -- messages ------------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        """Each producer publishes at its own phase of a common period."""
        phases, period_s = Kernel(self.seed).stream("publish"), 1.0 / self.scenario.rate_per_s
        order = sorted(
            (float(phases.uniform(0.0, period_s)), name, producer)
            for name, topic in self.scenario.topics.items()
            for producer in topic.producers
        )
        for number in range(1, int(self.scenario.duration_s / period_s) + 1):
            for phase_s, name, producer in order:
                due_s = (number - 1) * period_s + phase_s
                if due_s - self.now_s > 0.0005:
                    await asyncio.sleep(due_s - self.now_s)
                self._late_s.append(self.now_s - due_s)
                self._send(name, producer, number)

    def _send(self, name: TopicName, producer: str, number: int) -> None:
        message = SimulatedMessage(name, producer, number, self.now_s, set())
        consumers = self._consumers[name]
        message.reachable = self.scenario.is_reachable(producer, consumers)
        data = b"%d %d" % (self._numbers[producer], number)
        if consumers:
            self.deliveries.publish(message, consumers)
            self._messages[name][data] = message
        self._clients[producer].send(name, data)

    async def _read(self, name: TopicName, consumer: str, subscription: TopicSubscription) -> None:
        messages, receive = self._messages[name], self.deliveries.receive
        with contextlib.suppress(SessionEnded):  # the player has left
            async for item in subscription:
                if isinstance(item, TopicGap):
                    self.gaps += 1
                elif (message := messages.get(item.data)) is not None:
                    receive(message, consumer, self.now_s)

    async def _forget_old(self) -> None:
        """Forget messages that are too old to arrive again."""
        while True:
            for messages in list(self._messages.values()):
                await asyncio.sleep(_KEPT_S / 3 / len(self._messages))
                for data in [data for data, old in messages.items() if old.published_s < self.now_s - _KEPT_S]:
                    if not messages[data].waiting:
                        del messages[data]

    # -- changes -------------------------------------------------------------------------------------------------------

    async def _change(self) -> None:
        joining: set[asyncio.Task[None]] = set()
        for change in self.scenario.changes:
            await asyncio.sleep(max(0.0, change.at_s - self.now_s))
            if isinstance(change, ClientsMoved):
                await self.distance.place(change.node, change.place)
                for client, node in self.scenario.clients.items():
                    if node == change.node:
                        self._clients[client].use_gateway(self._addresses[change.gateway])
                continue
            for name, consumer in change.left:
                self._leave(name, consumer)
            joining = {task for task in joining if not task.done()}
            joining |= {asyncio.create_task(self._join(*pair)) for pair in change.joined}
        await asyncio.gather(*joining)

    async def _join(self, name: TopicName, consumer: str) -> None:
        subscription = self._clients[consumer].subscribe(name)
        self._subscriptions[name, consumer] = subscription
        with contextlib.suppress(SessionEnded):  # the player has left meanwhile
            await subscription.ready()
        if self._subscriptions.get((name, consumer)) is subscription:
            self._consumers[name].add(consumer)
            task = asyncio.create_task(self._read(name, consumer, subscription))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _leave(self, name: TopicName, consumer: str) -> None:
        self._consumers[name].discard(consumer)
        self.deliveries.leave(name, consumer)
        subscription = self._subscriptions.pop((name, consumer), None)
        if subscription is not None:
            subscription.end()

    async def _watch_homes(self) -> None:
        """Record every change of a home."""
        while True:
            for name, home in (await self._entries("#")).items():
                source = self._homes.get(name, home)
                if source != home:
                    returned = self.now_s - self._left.get((name, home), float("-inf")) < 60.0
                    brokers = BrokerId(source), BrokerId(home)
                    self.moves.append(
                        MoveMade(self.now_s, name, *brokers, TopicMoveReason.LATENCY, returned, followed=returned)
                    )
                    self._left[name, source] = self.now_s
                self._homes[name] = home
            await asyncio.sleep(_LOOK_S)

    def _cpu_s(self) -> dict[str, float]:
        """CPU seconds of this process, of the relay and of the others together."""
        servers = [child.pid for child in self.stack.children if child.pid is not None]
        return {
            "measuring": time.process_time(),
            "relay": cpu_time_s(self.distance.pid),
            "servers": sum(map(cpu_time_s, servers)),
        }
