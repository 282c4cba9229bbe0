"""Three sites in a ring, as real processes: messages cross links, links fail, a head dies."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.end_to_end.test_site import WAIT_S, Publisher, Reader, is_complete, until
from tests.end_to_end.topic_network import PATIENCE
from tocsin.client import Topics
from tocsin.runtime.stack.sites import HEAD, Sites
from tocsin.runtime.stack.supervisor import free_ports

NAMES = ("ntwc1", "ntwc2", "ntwc3")
EDGES = {"ntwc1": 0, "ntwc2": 1, "ntwc3": 0}
# Shorter times than in production, to keep the test fast.
COORDINATOR = "heartbeat_s = 0.5\nsuspect_s = 1.5\ndead_s = 3.0\nprobation_s = 1.0\ntopic_lease_s = 1.5\n"


def write_sites(folder: Path) -> list[Path]:
    ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    files = []
    for name in NAMES:
        table = f'[site]\nname = "{name}"\nroot = "{name}"\ncoordinator_port = {ports[name]}\n'
        table += f"broker_port = 0\nedges = {EDGES[name]}\n\n[coordinator]\n{COORDINATOR}\n"
        for other in NAMES:
            if other != name:
                table += f'[[neighbour]]\nsite = "{other}"\ncoordinator = "http://127.0.0.1:{ports[other]}"\n'
                table += f'token_file = "{name}/{other}.token"\n\n'
        files.append(folder / f"{name}.toml")
        files[-1].write_text(table, encoding="utf-8")
    return files


class Ring:
    def __init__(self, sites: Sites, opened: AsyncExitStack) -> None:
        self.sites = sites.sites
        self._opened = opened

    async def client(self, site: str) -> Topics:
        stack = self.sites[site].stack
        client = Topics(stack.coordinator_url, token=stack.admin_token(), patience=PATIENCE, coordinates=False)
        return await self._opened.enter_async_context(client)

    async def request(self, site: str, method: str, path: str, **request: Any) -> Any:
        stack = self.sites[site].stack
        headers = {"Authorization": f"Bearer {stack.admin_token()}"}
        async with httpx.AsyncClient(base_url=stack.coordinator_url, headers=headers, timeout=30) as http:
            answer = await http.request(method, path, **request)
        assert not answer.is_error, answer.text
        return answer.json()

    async def reader(self, site: str, topic: str) -> Reader:
        client = await self.client(site)
        reading = Reader(client, await self._opened.enter_async_context(client.subscribe(topic)))
        self._opened.callback(reading.task.cancel)
        return reading

    async def neighbours(self, site: str) -> dict[str, dict[str, Any]]:
        view = await self.request(site, "GET", "/v1/sites")
        return {neighbour["site"]: neighbour for neighbour in view["neighbours"]}

    async def crossed(self, site: str, topic: str) -> dict[tuple[str, str], tuple[int, int]]:
        """(neighbour, source) → messages of the topic that came from there, and those that the site had already."""
        return {
            (name, flow["source"]): (flow["messages"], flow["repeated"])
            for name, neighbour in (await self.neighbours(site)).items()
            for flow in neighbour["flows"]
            if flow["topic"] == topic
        }

    async def until_subscribed(self, site: str, topic: str, source: str) -> None:
        """Wait until the site has subscribed the flow of another site."""
        wanted = {"topic": topic, "source": source}
        async with asyncio.timeout(WAIT_S):
            while not any(wanted in view["subscribed"] for view in (await self.neighbours(site)).values()):
                await asyncio.sleep(0.05)


@asynccontextmanager
async def site_ring(folder: Path) -> AsyncIterator[Ring]:
    sites = Sites(write_sites(folder), folder)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(sites.stop)
        await sites.start()
        yield Ring(sites, opened)


def test_ring_of_sites_loses_and_repeats_nothing_when_a_head_dies(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site_ring(tmp_path) as ring:
            await check_ring(ring)

    asyncio.run(asyncio.wait_for(scenario(), 240))


async def check_ring(ring: Ring) -> None:
    source, receiving, third = NAMES
    await ring.request(source, "POST", "/v1/topics", json={"topic": "waves", "replicas": 1, "quorum": 1})
    publisher = Publisher(await ring.client(source), "waves", 200.0)
    await until(lambda: publisher.published > 0)
    for site in (receiving, third):
        await until_topic(ring, site, "waves")
    readers = {site: await ring.reader(site, "waves") for site in NAMES}
    for site in (receiving, third):
        await ring.until_subscribed(site, "waves", source)
    await asyncio.gather(*(reading.until(100) for reading in readers.values()))
    ring.sites[receiving].stack.brokers[HEAD].signal(signal.SIGKILL)  # it restarts with its log
    await readers[receiving].until(publisher.published + 200)
    last = await publisher.finish()
    for reading in readers.values():
        await reading.until(last)
        assert is_complete(reading.numbers, last)
        assert not reading.gaps
    async with asyncio.timeout(WAIT_S):  # homes report each second
        while set(await ring.crossed(receiving, "waves")) != {(source, source)}:
            await asyncio.sleep(0.1)
        while (crossed := await ring.crossed(third, "waves")) != {(source, source): (last + 1, 0)}:
            assert all(repeated == 0 for _, repeated in crossed.values())
            await asyncio.sleep(0.1)


async def until_topic(ring: Ring, site: str, topic: str) -> None:
    """Wait until the site has created a topic that another one advertises."""
    async with asyncio.timeout(WAIT_S):
        while not any(entry["topic"] == topic for entry in (await ring.request(site, "GET", "/v1/topics"))["topics"]):
            await asyncio.sleep(0.05)
