"""Two neighbouring sites, for `tocsin experiment epeer-live`: one gets more load than all its edges can send.

Each site is a coordinator, a head and two edges of real processes. All publishers and most receivers belong to the
first site; the second one receives each topic once, so that it has the flows [ePEER §4.4.4].
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import httpx

from tocsin.demo.site_world import SiteLoad, SiteWorld
from tocsin.runtime.stack.sites import Sites
from tocsin.runtime.stack.supervisor import free_ports

CROWDED, HOST = "east", "west"
LOAD: Final = SiteLoad(edges=2, topics=10)
"""1,000 messages/s and 1 MB/s leave each edge of the first site, of at most 1.6 MB/s."""
_SETTINGS: Final = "topic_lease_s = 20\nsuspect_s = 20\ndead_s = 40\nsite_congestion = false\n"
_WAIT_S: Final = 60.0


class VisitedWorld(SiteWorld):
    """The first site, and the loads of its host."""

    host: SiteWorld

    @property
    def visitors(self) -> int:
        """The receivers of the first site that an edge of the host serves now."""
        own = self.receivers[: LOAD.topics * LOAD.receivers]
        return sum(one.edges[-1][1] in self.host.addresses.values() for one in own)

    def servers_cpu_s(self) -> float:
        return super().servers_cpu_s() + self.host.servers_cpu_s()


@asynccontextmanager
async def visited_world(folder: Path) -> AsyncIterator[VisitedWorld]:
    sites = Sites(_write_files(folder), folder)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(sites.stop)
        await sites.start()
        stacks = {name: site.stack for name, site in sites.sites.items()}
        http: dict[str, httpx.AsyncClient] = {}
        for name, stack in stacks.items():
            headers = {"Authorization": f"Bearer {stack.admin_token()}"}
            client = httpx.AsyncClient(base_url=stack.coordinator_url, headers=headers, timeout=30.0)
            http[name] = await opened.enter_async_context(client)
        world = VisitedWorld(LOAD, stacks[CROWDED], http[CROWDED])
        world.host = SiteWorld(LOAD, stacks[HOST], http[HOST])
        for site in (world, world.host):
            await site.set_capacity(out_bytes_per_s=LOAD.out_bytes_per_s)
        yield world


async def open_clients(world: VisitedWorld, opened: AsyncExitStack, delays_s: Mapping[str, float]) -> None:
    """Connect all clients, and return when the host has the flows and the first site knows the host's loads."""
    await world.open(opened, delays_s, {})
    for publisher in world.publishers:
        publisher.publish(LOAD.size_bytes)  # the host gets to know the topic
    async with asyncio.timeout(_WAIT_S):
        while not set(delays_s) <= await _topics(world.host):
            await asyncio.sleep(0.1)
    for topic in delays_s:
        await world.host.open_receiver(opened, topic)
    world.receivers += world.host.receivers
    async with asyncio.timeout(_WAIT_S):
        while not await _is_ready(world, set(delays_s)):
            await asyncio.sleep(0.2)
    answer = (await world.host.http.get("/v1/brokers")).json()
    world.host.addresses = {view["broker"]: view["address"] for view in answer["brokers"]}


async def _topics(site: SiteWorld) -> set[str]:
    return {entry["topic"] for entry in (await site.http.get("/v1/topics")).json()["topics"]}


async def _is_ready(world: VisitedWorld, topics: set[str]) -> bool:
    """True if the host has subscribed all flows, and each site has the loads of the other one."""
    [here] = (await world.http.get("/v1/sites")).json()["neighbours"]
    [there] = (await world.host.http.get("/v1/sites")).json()["neighbours"]
    return topics <= {flow["topic"] for flow in there["subscribed"]} and bool(here["brokers"] and there["brokers"])


def _write_files(folder: Path) -> list[Path]:
    ports = dict(zip((CROWDED, HOST), free_ports(2), strict=True))
    files = []
    for name, other in ((CROWDED, HOST), (HOST, CROWDED)):
        text = f'[site]\nname = "{name}"\nroot = "{name}"\ncoordinator_port = {ports[name]}\nbroker_port = 0\n'
        text += f"edges = {LOAD.edges}\n\n[coordinator]\n{_SETTINGS}\n"
        text += f'[[neighbour]]\nsite = "{other}"\ncoordinator = "http://127.0.0.1:{ports[other]}"\n'
        text += f'token_file = "{name}/{other}.token"\n'
        files.append(folder / f"{name}.toml")
        files[-1].write_text(text, encoding="utf-8")
    return files
