"""Three sites in a ring, for `tocsin experiment epeer-live`: a link fails, a head dies, heads are saturated.

Each site is a coordinator, a head and two edges of real processes; the links between sites run through a relay
(`runtime.stack.distance`), which can stop forwarding. Every site publishes to a persistent and to a volatile topic and
receives both, so each flow has two ways to each site [ePEER §4.3.2].
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np

from tocsin.client import SessionEnded, TopicMessage, Topics, TopicSubscription
from tocsin.demo.site_world import Publisher
from tocsin.experiments.epeer_live import RING
from tocsin.experiments.runner import Row
from tocsin.runtime.stack.distance import EmulatedDistance
from tocsin.runtime.stack.sites import HEAD, Reach, Sites
from tocsin.runtime.stack.stack import SUBSCRIBERS, Via
from tocsin.runtime.stack.supervisor import free_ports

SITES: Final = ("east", "north", "west")
KEPT, VOLATILE = "ring/kept", "ring/volatile"
_EDGES: Final = 2
_RATE_PER_S: Final = 100.0
"""Of each of the six publishers."""
_SIZE_BYTES: Final = 1_000
_CALM_S, _CUT_S, _SETTLE_S, _SATURATED_S = 5.0, 8.0, 5.0, 10.0
_NEVER_S: Final = 1e6
"""The delay of a link that forwards nothing."""
_PAUSE_S: Final = 0.1
"""Pauses of a flow from this length on are kept."""
_LEFT: Final = 0.5
"""The share of its output that a saturated broker may send."""
_WAIT_S: Final = 60.0
_SETTINGS: Final = (
    "heartbeat_s = 0.2\nsuspect_s = 0.5\ndead_s = 0.8\nprobation_s = 0.5\ntopic_lease_s = 0.6\n"
    "site_congestion = false\n"
)
"""Shorter times than in production: a head counts as dead after 0.8 s. Nothing lowers the rates of publishers."""


@dataclass(slots=True, eq=False)
class Flow:
    """The messages of one publisher at one reader."""

    number: int
    arrived_s: float
    pauses: list[tuple[float, float]] = field(default_factory=list)
    """(end, length) of pauses."""
    latencies: list[tuple[float, float]] = field(default_factory=list)
    """(arrival, latency) of each message."""
    missed: int = 0
    missed_untold: int = 0
    """Missed messages without a gap before the next message."""
    repeated: int = 0
    """Repeated or reordered."""
    told: bool = False
    """A gap arrived after the flow's last message."""

    def receive(self, number: int, sent_s: float, now_s: float) -> None:
        if number <= self.number:
            self.repeated += 1
            return
        missed = number - self.number - 1
        self.missed += missed
        self.missed_untold += 0 if self.told else missed
        if now_s - self.arrived_s >= _PAUSE_S:
            self.pauses.append((now_s, now_s - self.arrived_s))
        self.number, self.arrived_s, self.told = number, now_s, False
        self.latencies.append((now_s, now_s - sent_s))

    def longest_pause_s(self, since_s: float, now_s: float) -> float:
        """The longest pause that ended after `since_s`, or has not ended."""
        return max([now_s - self.arrived_s, *(length for end_s, length in self.pauses if end_s >= since_s)])


@dataclass(slots=True, eq=False)
class RingReader:
    site: str
    topic: str
    flows: dict[int, Flow] = field(default_factory=dict)
    """Number of the publisher → its flow."""

    async def read(self, subscription: TopicSubscription) -> None:
        with contextlib.suppress(SessionEnded):
            async for item in subscription:
                if isinstance(item, TopicMessage):
                    self.receive(item.data, time.perf_counter())
                else:
                    for flow in self.flows.values():
                        flow.told = True

    def receive(self, data: bytes, now_s: float) -> None:
        publisher, number, sent_s, _ = data.split(b" ", 3)
        if (flow := self.flows.get(int(publisher))) is None:
            flow = self.flows[int(publisher)] = Flow(int(number) - 1, now_s)
        flow.receive(int(number), float(sent_s), now_s)


class SiteRing:
    def __init__(self, sites: Sites, distance: EmulatedDistance, opened: AsyncExitStack) -> None:
        self._sites = sites.sites
        self._distance = distance
        self._opened = opened
        self._http: dict[str, httpx.AsyncClient] = {}
        self.publishers: list[Publisher] = []
        self.readers: list[RingReader] = []

    # -- load ----------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Create the topics, connect all clients, and return when every reader receives from every site."""
        for site in SITES:
            await self._wait_for_brokers(site)
            for body in ({"topic": KEPT, "replicas": 1 + _EDGES, "quorum": 2}, {"topic": VOLATILE}):
                await self._request(site, "POST", "/v1/topics", body)
            for topic in (KEPT, VOLATILE):
                reader = RingReader(site, topic)
                self.readers.append(reader)
                subscription = await self._opened.enter_async_context((await self._client(site)).subscribe(topic))
                self._start(reader.read(subscription))
                client = await self._client(site)
                self.publishers.append(Publisher(topic, len(self.publishers), _RATE_PER_S, 0.0, client))
        self._start(self._publish())
        await until(lambda: all(len(reader.flows) == len(SITES) for reader in self.readers))

    async def _wait_for_brokers(self, site: str) -> None:
        """A coordinator refuses to create a topic while too few brokers can hold its replicas."""
        async with asyncio.timeout(_WAIT_S):
            while True:
                brokers = (await self._request(site, "GET", "/v1/brokers"))["brokers"]
                if sum(view["accepting"] for view in brokers) == 1 + _EDGES:
                    return
                await asyncio.sleep(0.1)

    async def _client(self, site: str) -> Topics:
        stack = self._sites[site].stack
        client = Topics(stack.coordinator_url, token=stack.admin_token(), coordinates=False)
        return await self._opened.enter_async_context(client)

    def _start(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._opened.callback(task.cancel)

    async def _publish(self) -> None:
        began_s = time.perf_counter()
        while True:
            due = int((time.perf_counter() - began_s) * _RATE_PER_S)
            for publisher in self.publishers:
                while publisher.rate_per_s and publisher.sent < due:
                    publisher.publish(_SIZE_BYTES)
            await asyncio.sleep(0.005)

    async def finish(self) -> None:
        """Stop publishing and wait until the readers of the persistent topic have everything, or have had the time."""
        for publisher in self.publishers:
            publisher.rate_per_s = 0.0
        with contextlib.suppress(TimeoutError):
            await until(lambda: not self.missing())

    # -- faults --------------------------------------------------------------------------------------------------------

    async def set_link(self, one: str, other: str, *, works: bool) -> None:
        """A link that does not work takes bytes and forwards none, as a broken route does; nothing is closed."""
        await self._distance.set_delay(one, other, 0.0 if works else _NEVER_S)

    def kill_head(self, site: str) -> None:
        """The supervisor starts the process again."""
        self._sites[site].stack.brokers[HEAD].signal(signal.SIGKILL)

    async def saturate(self) -> None:
        """Leave each broker a part of its output."""
        for site, broker, view in await self._brokers():
            if (out := view["topic_load"]["out_bytes_per_s"]) > _RATE_PER_S * _SIZE_BYTES:
                await self._request(site, "PUT", f"/v1/brokers/{broker}/capacity", {"out_bytes_per_s": _LEFT * out})

    async def repair(self) -> None:
        for site, broker, _ in await self._brokers():
            await self._request(site, "PUT", f"/v1/brokers/{broker}/capacity", {"out_bytes_per_s": None})

    async def watch_control(self, seconds: float) -> tuple[list[float], float]:
        """Round trips on the control connections, and the longest queue of any broker in seconds of its output."""
        round_trips: list[float] = []
        counts: dict[tuple[str, str], int] = {}
        waiting_s = 0.0
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s:
            for site in SITES:
                for neighbour in (await self._request(site, "GET", "/v1/sites"))["neighbours"]:
                    ping, key = neighbour["round_trip"], (site, neighbour["site"])
                    if counts.get(key, ping["count"]) != ping["count"]:
                        round_trips.append(ping["last_s"])
                    counts[key] = ping["count"]
            for _, _, view in await self._brokers():
                if limit := view["topic_capacity"]["out_bytes_per_s"]:
                    waiting_s = max(waiting_s, view["topic_load"]["waiting_bytes"] / limit)
            await asyncio.sleep(0.05)
        return round_trips, waiting_s

    # -- results -------------------------------------------------------------------------------------------------------

    async def crossed(self) -> tuple[float, int]:
        """The largest share of a flow's messages that crossed a link in one direction, and the messages that reached a
        site twice."""
        shares, repeated = [0.0], 0
        for site in SITES:
            for neighbour in (await self._request(site, "GET", "/v1/sites"))["neighbours"]:
                for flow in neighbour["flows"]:
                    published = self.publishers[self._number(flow["source"], flow["topic"])].sent
                    shares.append(flow["messages"] / published)
                    repeated += flow["repeated"]
        return max(shares), repeated

    def missing(self) -> int:
        """Messages of the persistent topic that readers have not received."""
        return sum(flow.missed + self.publishers[number].sent - flow.number for number, flow in self._flows(KEPT))

    def wrong(self) -> dict[str, float]:
        flows = [flow for topic in (KEPT, VOLATILE) for _, flow in self._flows(topic)]
        return {
            "lost": float(self.missing()),
            "repeated": float(sum(flow.repeated for flow in flows)),
            "missed_volatile": float(sum(flow.missed for _, flow in self._flows(VOLATILE))),
            "missed_untold": float(sum(flow.missed_untold for flow in flows)),
        }

    def longest_pause_s(self, since_s: float) -> float:
        now_s = time.perf_counter()
        return max(flow.longest_pause_s(since_s, now_s) for reader in self.readers for flow in reader.flows.values())

    def rows(self, began_s: float) -> Iterator[Row]:
        """The slowest message of each quarter of a second, by source and receiving site."""
        slowest: dict[tuple[str, float], float] = {}
        for reader in self.readers:
            for number, flow in reader.flows.items():
                for arrived_s, latency_s in flow.latencies:
                    key = f"{SITES[number // 2]} → {reader.site}", (arrived_s - began_s) // 0.25 * 0.25
                    slowest[key] = max(latency_s, slowest.get(key, 0.0))
        for (name, at_s), latency_s in sorted(slowest.items()):
            yield {"kind": "flow", "scenario": RING, "at_s": at_s, "edge": name, "latency_s": latency_s}

    def _flows(self, topic: str) -> list[tuple[int, Flow]]:
        return [found for reader in self.readers if reader.topic == topic for found in reader.flows.items()]

    def _number(self, site: str, topic: str) -> int:
        return 2 * SITES.index(site) + (topic == VOLATILE)

    async def _brokers(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(site, broker, view) of the brokers that have reported their load of topics."""
        found = [(site, (await self._request(site, "GET", "/v1/brokers"))["brokers"]) for site in SITES]
        return [(site, view["broker"], view) for site, views in found for view in views if view["topic_load"]]

    async def _request(self, site: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        if (http := self._http.get(site)) is None:
            stack = self._sites[site].stack
            headers = {"Authorization": f"Bearer {stack.admin_token()}"}
            client = httpx.AsyncClient(base_url=stack.coordinator_url, headers=headers, timeout=30.0)
            http = self._http[site] = await self._opened.enter_async_context(client)
        answer = await http.request(method, path, json=body)
        answer.raise_for_status()
        return answer.json()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(_WAIT_S):
        while not holds():
            await asyncio.sleep(0.02)


# -- the processes -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def site_ring(folder: Path) -> AsyncIterator[SiteRing]:
    async with AsyncExitStack() as opened:
        distance = await opened.enter_async_context(EmulatedDistance())
        reach = {site: await _reach(distance, site) for site in SITES}
        sites = Sites(await _write(distance, folder), folder, reach)
        await distance.open_routes()
        opened.push_async_callback(sites.stop)
        await sites.start()
        yield SiteRing(sites, distance, opened)


async def _reach(distance: EmulatedDistance, site: str) -> Reach:
    """Brokers are reached through the relay, which recognises brokers of other sites by their addresses."""
    sources = {}
    for number in range(1, 2 + _EDGES):
        sources[f"broker-{number}"] = await distance.address(f"{site}/broker-{number}")
        await distance.place(f"{site}/broker-{number}", site)
    await distance.place(f"{site}/coordinator", site)
    return Reach(_via(distance, site), sources)


def _via(distance: EmulatedDistance, site: str) -> Via:
    def via(source: str, target: str, url: str) -> str:
        return distance.via(source, f"{site}/{target}", url) if source == SUBSCRIBERS else url

    return via


async def _write(distance: EmulatedDistance, folder: Path) -> list[Path]:
    """Write the files of the sites. Each coordinator has a route of its own to each neighbour's."""
    ports = dict(zip(SITES, free_ports(len(SITES)), strict=True))
    tables = {
        site: f'[site]\nname = "{site}"\nroot = "{site}"\ncoordinator_port = {port}\nbroker_port = 0\n'
        f"edges = {_EDGES}\n\n[coordinator]\n{_SETTINGS}\n"
        for site, port in ports.items()
    }
    for pair in combinations(SITES, 2):
        for site, other in (pair, pair[::-1]):
            host, port = await distance.route(f"{other}/coordinator", ports[other], f"{site}/coordinator")
            tables[site] += f'[[neighbour]]\nsite = "{other}"\ncoordinator = "http://{host}:{port}"\n'
            tables[site] += f'token_file = "{site}/{other}.token"\n\n'
    for site, table in tables.items():
        (folder / f"{site}.toml").write_text(table, encoding="utf-8")
    return [folder / f"{site}.toml" for site in SITES]


# -- the scenario ------------------------------------------------------------------------------------------------------


async def run_ring(folder: Path) -> list[Row]:
    async with site_ring(folder) as ring:
        began_s = time.perf_counter()
        await ring.open()
        facts: dict[str, float] = {}
        await asyncio.sleep(_CALM_S)
        facts["crossed_most"], repeated = await ring.crossed()
        facts["crossed_repeated"] = float(repeated)

        cut_s = time.perf_counter()
        await ring.set_link("east", "north", works=False)
        await asyncio.sleep(_CUT_S)
        facts["link_pause_s"] = ring.longest_pause_s(cut_s)
        await ring.set_link("east", "north", works=True)
        await asyncio.sleep(_SETTLE_S)

        killed_s = time.perf_counter()
        ring.kill_head("north")
        await asyncio.sleep(_CUT_S)
        facts["head_pause_s"] = ring.longest_pause_s(killed_s)
        await asyncio.sleep(_SETTLE_S)

        await ring.saturate()
        round_trips, facts["saturated_waiting_s"] = await ring.watch_control(_SATURATED_S)
        facts["control_p99_s"] = float(np.quantile(round_trips, 0.99)) if round_trips else float("nan")
        facts["control_round_trips"] = float(len(round_trips))
        await ring.repair()
        await asyncio.sleep(_SETTLE_S)
        await ring.finish()
        _, repeated = await ring.crossed()
        facts |= {"crossed_repeated_at_end": float(repeated), **ring.wrong()}
        return [*ring.rows(began_s), {"kind": "run", "scenario": RING, **facts}]
