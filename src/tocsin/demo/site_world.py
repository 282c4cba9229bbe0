"""A live site under load, for `tocsin experiment epeer-live`: one head, edges, publishers and receivers.

The servers are processes of their own. All clients are in this process, so that one clock times every message, and each
has its own connections. A message carries its publisher, its number, the time at which it was sent and its utility.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import time
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx

from tocsin.client import RequestRefused, SessionEnded, TopicGap, TopicMessage, Topics, TopicSubscription
from tocsin.client.topic_limits import PublishLimits
from tocsin.model.ids import TopicName
from tocsin.runtime.stack.stack import Stack, StackSettings
from tocsin.runtime.stack.supervisor import cpu_time_s

HEAD: Final = "broker-1"
_LOOK_S: Final = 0.2
_PAUSE_S: Final = 0.1
"""Pauses of a receiver from this length on are kept."""
_AT_ONCE: Final = 20


@dataclass(frozen=True, slots=True)
class SiteLoad:
    edges: int = 4
    topics: int = 20
    receivers: int = 8
    """Per topic."""
    rate_per_s: float = 25.0
    """Messages per second of each topic: 1,000/s and 1 MB/s leave each edge."""
    size_bytes: int = 1_000
    out_bytes_per_s: float = 1.6e6
    """The configured output of an edge."""
    publishers: int = 1
    """Per topic. Their utilities are spread evenly over 0 to 1, with similar ones on the same topic."""


class _IgnoredLimits(PublishLimits):
    def admit(self, topic: TopicName, now_s: float) -> bool:
        super().admit(topic, now_s)
        return True


class DisobedientTopics(Topics):
    """A client that gets the limits of its publishers and sends whatever the application offers."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._session.limits = _IgnoredLimits()


@dataclass(slots=True, eq=False)
class Publisher:
    topic: str
    number: int
    rate_per_s: float
    utility: float
    client: Topics
    sent: int = 0
    refused: int = 0
    """Messages that a limit kept back here."""
    refused_late: int = 0
    """Messages that the home refused: they have a number that no receiver gets."""
    due_s: float = 0.0
    attempts: list[tuple[float, float | None]] = field(default_factory=list)
    """(time, limit) of each message of a disobedient publisher."""
    drops: list[float] = field(default_factory=list)
    """When the home refused a message of a disobedient publisher, by the time at which it was sent."""

    @property
    def is_disobedient(self) -> bool:
        return isinstance(self.client, DisobedientTopics)

    def publish(self, size_bytes: int) -> None:
        now_s = time.perf_counter()
        head = b"%d %d %.6f %.3f " % (self.number, self.sent + 1, now_s, self.utility)
        if self.is_disobedient:
            self.attempts.append((now_s, self.client.limit_per_s(self.topic)))
        future = self.client.send(self.topic, head.ljust(size_bytes, b"."))
        if future.done():
            self.refused += isinstance(future.exception(), RequestRefused)
        else:
            self.sent += 1
            future.add_done_callback(partial(self._check, now_s))

    def _check(self, sent_s: float, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and isinstance(done.exception(), RequestRefused):
            self.refused_late += 1
            if self.is_disobedient:
                self.drops.append(sent_s)

    def excess(self, from_s: float, until_s: float) -> tuple[float, int]:
        """Messages beyond the limit of a disobedient publisher in this time, and how many of them the home dropped."""
        sent = [(at_s, limit) for at_s, limit in self.attempts if from_s <= at_s < until_s]
        allowed = sum((after_s - at_s) * limit for (at_s, limit), (after_s, _) in pairwise(sent) if limit is not None)
        return len(sent) - allowed, sum(from_s <= at_s < until_s for at_s in self.drops)


@dataclass(slots=True, eq=False)
class Receiver:
    topic: str
    client: Topics
    numbers: dict[int, int] = field(default_factory=dict)
    """Publisher → its last number."""
    lost: int = 0
    repeated: int = 0
    """Repeated or reordered."""
    gaps: int = 0
    arrived_s: float = 0.0
    pauses: list[tuple[float, float]] = field(default_factory=list)
    """(end, length) of pauses."""
    _delivered: array[float] = field(default_factory=lambda: array("d"))
    """Time of sending, latency and utility of each message. Not tuples: half a million of them make the garbage
    collector stop all clients for 0.2 s at a time."""
    edges: list[tuple[float, str | None]] = field(default_factory=list)
    """(time, address) whenever the broker that sends the topic changes."""

    async def read(self, subscription: TopicSubscription) -> None:
        with contextlib.suppress(SessionEnded):
            async for item in subscription:
                if isinstance(item, TopicMessage):
                    self._receive(item.data, time.perf_counter())
                elif isinstance(item, TopicGap):
                    self.gaps += 1

    def _receive(self, data: bytes, now_s: float) -> None:
        publisher, number, sent_s, utility, _ = data.split(b" ", 4)
        key, count = int(publisher), int(number)
        last = self.numbers.get(key)
        if last is not None and count <= last:
            self.repeated += 1
        else:
            self.lost += 0 if last is None else count - last - 1
            self.numbers[key] = count
        if self.arrived_s and now_s - self.arrived_s >= _PAUSE_S:
            self.pauses.append((now_s, now_s - self.arrived_s))
        self.arrived_s = now_s
        self._delivered.extend((float(sent_s), now_s - float(sent_s), float(utility)))

    @property
    def deliveries(self) -> Iterator[tuple[float, float, float]]:
        """(time of sending, latency, utility) of each message."""
        values = iter(self._delivered)
        return zip(values, values, values, strict=True)

    def note_edge(self, now_s: float) -> None:
        address = self.client.receives_at(self.topic)
        if address is not None and (not self.edges or self.edges[-1][1] != address):
            self.edges.append((now_s, address))


@dataclass(frozen=True, slots=True)
class Look:
    """The state of one edge at one moment, as the coordinator has it."""

    at_s: float
    edge: str
    state: str
    used: float
    """Uo or Um, the larger one: the offered load as a share of the capacity."""
    sent: float
    """The sent bytes as a share of the capacity; 0 without a limit."""
    waiting: float
    """Bytes and messages that wait in the shapers, in seconds of their rates."""


class SiteWorld:
    def __init__(self, load: SiteLoad, stack: Stack, http: httpx.AsyncClient) -> None:
        self.load = load
        self.stack = stack
        self.http = http
        self.edges = [f"broker-{number}" for number in range(2, load.edges + 2)]
        self.publishers: list[Publisher] = []
        self.receivers: list[Receiver] = []
        self.looks: list[Look] = []
        self.addresses: dict[str, str] = {}
        self.is_publishing = True

    # -- load ----------------------------------------------------------------------------------------------------------

    async def open(
        self,
        opened: AsyncExitStack,
        delays_s: Mapping[str, float],
        protected: Mapping[str, float],
        disobedient: str | None = None,
    ) -> None:
        """Create the topics with their delay requirements and protected rates, and connect all clients. `disobedient`:
        the topic whose first publisher ignores its limits."""
        for topic, delay_s in delays_s.items():
            body: dict[str, Any] = {"topic": topic, "delay_s": delay_s}
            if topic in protected:
                body["protected_per_s"] = protected[topic]
            (await self.http.post("/v1/topics", json=body)).raise_for_status()
        for topic in delays_s:
            rate_per_s = self.load.rate_per_s / self.load.publishers
            for number in range(self.load.publishers):
                kind = DisobedientTopics if topic == disobedient and number == 0 else Topics
                client = await opened.enter_async_context(self._client(kind, prompt=False))
                self.publishers.append(Publisher(topic, number, rate_per_s, 0.0, client))
            for first in range(0, self.load.receivers, _AT_ONCE):
                several = range(first, min(first + _AT_ONCE, self.load.receivers))
                await asyncio.gather(*(self.open_receiver(opened, topic) for _ in several))
        for index, publisher in enumerate(self.publishers):
            publisher.utility = (index + 0.5) / len(self.publishers)
        answer = (await self.http.get("/v1/brokers")).json()
        self.addresses = {view["broker"]: view["address"] for view in answer["brokers"]}

    async def open_receiver(self, opened: AsyncExitStack, topic: str) -> None:
        client = await opened.enter_async_context(self._client(utility=_utility))
        subscription = await opened.enter_async_context(client.subscribe(topic))
        receiver = Receiver(topic, client)
        receiver.note_edge(time.perf_counter())
        self.receivers.append(receiver)
        task = asyncio.create_task(receiver.read(subscription))
        opened.callback(task.cancel)

    def _client(self, kind: type[Topics] = Topics, **more: Any) -> Topics:
        return kind(self.stack.coordinator_url, token=self.stack.admin_token(), coordinates=False, **more)

    async def publish(self) -> None:
        """Publish until `finish`, each publisher at its rate."""
        began_s = time.perf_counter()
        for number, publisher in enumerate(self.publishers):
            publisher.due_s = began_s + number / len(self.publishers) / publisher.rate_per_s
        queue = [(publisher.due_s, number) for number, publisher in enumerate(self.publishers)]
        heapq.heapify(queue)
        while True:
            due_s, number = queue[0]
            if (wait_s := due_s - time.perf_counter()) > 0.001:
                await asyncio.sleep(wait_s)
            if not self.is_publishing:
                return
            publisher = self.publishers[number]
            publisher.publish(self.load.size_bytes)
            heapq.heapreplace(queue, (due_s + 1.0 / publisher.rate_per_s, number))

    async def watch(self) -> None:
        """Look at the loads and at the receivers' edges for ever."""
        while True:
            for view in (await self.http.get("/v1/brokers")).json()["brokers"]:
                if view["broker"] in self.edges and view["topic_load"] is not None:
                    self.looks.append(_look(time.perf_counter(), view))
            for receiver in self.receivers:
                receiver.note_edge(time.perf_counter())
            await asyncio.sleep(_LOOK_S)

    async def set_capacity(self, **capacity: float | None) -> None:
        """Change the capacity of all edges."""
        bodies = (self.http.put(f"/v1/brokers/{edge}/capacity", json=capacity) for edge in self.edges)
        for answer in await asyncio.gather(*bodies):
            answer.raise_for_status()

    async def finish(self, most_s: float) -> None:
        """Stop publishing, and wait until every receiver has everything, or so long."""
        self.is_publishing = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                while self.outstanding():
                    await asyncio.sleep(0.02)

    # -- results -------------------------------------------------------------------------------------------------------

    def on(self, edge: str) -> list[Receiver]:
        """The receivers at an edge now."""
        return [receiver for receiver in self.receivers if receiver.edges[-1][1] == self.addresses[edge]]

    def outstanding(self) -> int:
        """Messages behind the last one of each receiver: in flight, or lost if the receiver gets nothing more."""
        sent: dict[str, dict[int, int]] = {}
        for publisher in self.publishers:
            sent.setdefault(publisher.topic, {})[publisher.number] = publisher.sent
        return sum(
            count - one.numbers.get(number, 0) for one in self.receivers for number, count in sent[one.topic].items()
        )

    def wrong(self) -> dict[str, int]:
        """Messages that receivers miss without a refusal, repeated or reordered ones, and reported gaps."""
        found = {name: sum(getattr(one, name) for one in self.receivers) for name in ("lost", "repeated", "gaps")}
        refused = self.load.receivers * sum(publisher.refused_late for publisher in self.publishers)
        missing = found["lost"] + (0 if self.is_publishing else self.outstanding())
        return found | {"lost": max(0, missing - refused)}

    def servers_cpu_s(self) -> float:
        """CPU seconds of the coordinator and all brokers."""
        return sum(cpu_time_s(child.pid) for child in self.stack.children if child.pid is not None)


def _utility(message: TopicMessage) -> float:
    return float(message.data.split(b" ", 4)[3])


def _look(now_s: float, view: dict[str, Any]) -> Look:
    load, capacity = view["topic_load"], view["topic_capacity"]
    output, matched = capacity["out_bytes_per_s"], capacity["matched_per_s"]
    waiting = load["waiting_bytes"] / output if output else 0.0
    waiting += load["waiting_messages"] / matched if matched else 0.0
    sent = load["sent_bytes_per_s"] / output if output else 0.0
    return Look(now_s, view["broker"], load["state"], max(load["Uo"], load["Um"]), sent, waiting)


@asynccontextmanager
async def site_world(load: SiteLoad, folder: Path, policy: str, congestion: bool) -> AsyncIterator[SiteWorld]:
    edge = {"role": "edge", "topic-out-bytes-per-s": str(load.out_bytes_per_s)}
    flags = {HEAD: {"role": "head"}} | {f"broker-{number}": edge for number in range(2, load.edges + 2)}
    coordinator = {"site-policy": policy, "topic-lease-s": "20", "suspect-s": "20", "dead-s": "40"}
    if not congestion:
        coordinator["no-site-congestion"] = ""
    more: dict[str, Any] = {"free_ports": True, "data_cluster": False, "logs": folder}
    stack = Stack(
        StackSettings(folder, load.edges + 1, coordinator=coordinator, broker_flags=flags, **more),
    )
    try:
        await stack.start()
        headers = {"Authorization": f"Bearer {stack.admin_token()}"}
        async with httpx.AsyncClient(base_url=stack.coordinator_url, headers=headers, timeout=30.0) as http:
            yield SiteWorld(load, stack, http)
    finally:
        await stack.stop()
