"""Two sites as real processes: receivers of an overloaded site continue at its neighbour, and return when it fails."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

from tests.end_to_end.test_federation import Ring, until_topic
from tests.end_to_end.test_site import WAIT_S, Publisher, Reader, is_complete, until
from tocsin.runtime.stack.sites import Sites
from tocsin.runtime.stack.supervisor import free_ports

HOME, HOST = "east", "west"
EDGE = "broker-2"
READERS = 4
COORDINATOR = "heartbeat_s = 0.5\nsuspect_s = 6.0\ndead_s = 12.0\ntopic_lease_s = 10.0\nsite_congestion = false\n"
"""No home fails here, however slow the machine is."""


def write_sites(folder: Path) -> list[Path]:
    ports = dict(zip((HOME, HOST), free_ports(2), strict=True))
    files = []
    for name, other in ((HOME, HOST), (HOST, HOME)):
        table = (
            f'[site]\nname = "{name}"\nroot = "{name}"\ncoordinator_port = {ports[name]}\nbroker_port = 0\nedges = 1\n'
        )
        table += f"\n[coordinator]\n{COORDINATOR}\n"
        table += f'[[neighbour]]\nsite = "{other}"\ncoordinator = "http://127.0.0.1:{ports[other]}"\n'
        table += f'token_file = "{name}/{other}.token"\n'
        files.append(folder / f"{name}.toml")
        files[-1].write_text(table, encoding="utf-8")
    return files


def test_receivers_of_an_overloaded_site_visit_its_neighbour(tmp_path: Path) -> None:
    async def scenario() -> None:
        sites = Sites(write_sites(tmp_path), tmp_path)
        async with AsyncExitStack() as opened:
            opened.push_async_callback(sites.stop)
            await sites.start()
            await check_visits(Ring(sites, opened))

    asyncio.run(asyncio.wait_for(scenario(), 120))


async def check_visits(ring: Ring) -> None:
    await ring.request(HOME, "POST", "/v1/topics", json={"topic": "waves", "delay_s": 5.0})
    publisher = Publisher(await ring.client(HOME), "waves", 100.0)
    await until(lambda: publisher.published > 0)
    await until_topic(ring, HOST, "waves")
    own = await ring.reader(HOST, "waves")
    readers = [await ring.reader(HOME, "waves") for _ in range(READERS)]
    await ring.until_subscribed(HOST, "waves", HOME)
    await asyncio.gather(*(reading.until(publisher.published + 50) for reading in (own, *readers)))
    await until_measured(ring, HOST)

    addresses = {site: await edge_address(ring, site) for site in (HOME, HOST)}
    load = await output(ring, HOME)
    await ring.request(HOME, "PUT", f"/v1/brokers/{EDGE}/capacity", json={"out_bytes_per_s": 0.5 * load})
    await until(lambda: addresses[HOST] in places(readers))
    await asyncio.gather(*(reading.until(publisher.published + 100) for reading in readers))

    # With room at home again, no receiver that returns leaves a second time.
    await ring.request(HOME, "PUT", f"/v1/brokers/{EDGE}/capacity", json={"out_bytes_per_s": None})
    ring.sites[HOST].stack.brokers[EDGE].signal(signal.SIGKILL)
    await until(lambda: places(readers) == {addresses[HOME]})
    last = await publisher.finish()
    for reading in readers:
        await reading.until(last)
        assert is_complete(reading.numbers, last)
        assert not reading.gaps


def places(readers: list[Reader]) -> set[str | None]:
    return {reading.client.receives_at("waves") for reading in readers}


async def edge_address(ring: Ring, site: str) -> str:
    brokers = (await ring.request(site, "GET", "/v1/brokers"))["brokers"]
    return next(str(view["address"]) for view in brokers if view["broker"] == EDGE)


async def output(ring: Ring, site: str) -> float:
    brokers = (await ring.request(site, "GET", "/v1/brokers"))["brokers"]
    return next(float(view["topic_load"]["out_bytes_per_s"]) for view in brokers if view["broker"] == EDGE)


async def until_measured(ring: Ring, site: str) -> None:
    """Wait until the site's neighbour has reported its edge."""
    async with asyncio.timeout(WAIT_S):
        while not any(view["brokers"] for view in (await ring.neighbours(site)).values()):
            await asyncio.sleep(0.1)
