"""`tocsin bench surge`: one channel's data becomes twenty times as much within a second, on a whole network.

Measured: the time from the first record of the surge to the coordinator's plan that answers it, by the coordinator's
clock, and the highest modelled load before and after it. A plan answers the surge if it moves subscribers at a maximal
load well above the usual one. Usually its urgency is `overload`; a busy machine delivers a surge so unevenly that the
next regular round may come first. Data cluster with Spark, coordinator, three brokers and all subscribers are real;
balancing runs with the product's settings. Most subscribers of the channel `Alarms` are near the first broker, those of
`News` anywhere, so that only the surge is uneven.
Checked by: every subscriber receives every record of its subscription once.
Prints: the seconds to the plan, its urgency and moves, the loads, and the results that were lost or repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, temporary_folder

if TYPE_CHECKING:
    import httpx

    from tocsin.client import Publisher, Subscriber

PLACES = ((60.17, 24.94), (60.45, 22.27), (61.50, 23.76))
DISTRICTS = 12
APPLICATION = """
CREATE STREAM DATASET Facts (id STRING, district STRING, text STRING) KEY (id) RETAIN 1 DAYS;
CREATE STREAM DATASET Incidents (id STRING, district STRING, text STRING) KEY (id) RETAIN 1 DAYS;
CREATE REPETITIVE CHANNEL News (district STRING) EVERY {period_s} SECONDS AS
  SELECT f.* FROM NEW Facts f WHERE f.district = :district;
CREATE REPETITIVE CHANNEL Alarms (district STRING) EVERY {period_s} SECONDS AS
  SELECT i.* FROM NEW Incidents i WHERE i.district = :district;
"""
TEXT = "x" * 300
STEP_S = 0.5
FACTS = 4
"""Records of each district per step: `News` is the usual load."""
LONGEST_START_S = 120.0
"""The longest time until every subscriber has its first result."""
LONGEST_ANSWER_S = 60.0
"""The time after the beginning of the surge at which it counts as unanswered."""
RISE = 1.5
"""A plan answers the surge if the maximal load before it is this many times the usual one."""
AFTER_ANSWER_S = 5.0
"""The surge lasts this much longer than the time to the answer, so that subscribers move under its load."""


def surge(
    subscribers: Annotated[int, typer.Option(help="Subscribers of the whole network.")] = 90,
    usual_s: Annotated[float, typer.Option(help="Seconds of usual traffic before the surge.")] = 100.0,
    surge_s: Annotated[float, typer.Option(help="Longest surge; it ends soon after the answer.")] = 40.0,
    factor: Annotated[int, typer.Option(help="How many times as much data `Alarms` has in the surge.")] = 20,
) -> dict[str, Any]:
    """Seconds from a surge to the plan that answers it, on a whole network."""
    return asyncio.run(measure(subscribers, usual_s, surge_s, factor))


register = command(surge)


async def measure(
    subscribers: int,
    usual_s: float,
    surge_s: float,
    factor: int,
    period_s: int = 10,
    broker: dict[str, str] | None = None,
    coordinator: dict[str, str] | None = None,
) -> dict[str, Any]:
    """`broker` and `coordinator` are additional flags of the processes."""
    import httpx

    from tocsin.client import Publisher
    from tocsin.runtime.stack.stack import Stack, StackSettings

    with temporary_folder() as folder:
        quiet = {"log-level": "error"}
        stack = Stack(
            StackSettings(
                Path(folder) / "data",
                brokers=len(PLACES),
                free_ports=True,
                places=PLACES,
                broker=quiet | (broker or {}),
                coordinator=quiet | {"scheme": "ldm", "shuffle": "none"} | (coordinator or {}),
                cluster=quiet,
            )
        )
        async with AsyncExitStack() as opened:
            opened.push_async_callback(stack.stop)
            announce("starting a data cluster, a coordinator and three brokers")
            await stack.start()
            token = stack.admin_token()
            headers = {"Authorization": f"Bearer {token}"}
            api = await opened.enter_async_context(
                httpx.AsyncClient(base_url=stack.coordinator_url, headers=headers, timeout=30)
            )
            text = APPLICATION.format(period_s=period_s)
            applied = await _cluster_post(stack.cluster_url, headers, "/v1/applications", {"text": text})
            announce(f"{len(applied['changes'])} definitions; {subscribers} subscribers connect")
            people = [await _connect(opened, stack, token, number) for number in range(subscribers)]
            publisher = await opened.enter_async_context(Publisher(stack.cluster_url, token))
            return await _run(api, publisher, people, _Traffic(usual_s, surge_s, factor, period_s))


async def _cluster_post(url: str, headers: dict[str, str], path: str, body: dict[str, Any]) -> Any:
    import httpx

    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        return (await client.post(path, json=body)).raise_for_status().json()


class _Person:
    """One subscriber with one subscription, and the ids that it has received."""

    def __init__(self, subscriber: Subscriber, dataset: str, district: str) -> None:
        self.subscriber = subscriber
        self.wanted = (dataset, district)
        self.received: list[str] = []

    async def receive(self) -> None:
        from tocsin.client import Result

        async for notification in self.subscriber:
            if isinstance(notification, Result):
                self.received.append(notification.value["id"])


async def _connect(opened: AsyncExitStack, stack: Any, token: str, number: int) -> _Person:
    """A third of the people subscribe to alarms, and four of five of those live near the first broker."""
    from tocsin.client import Subscriber

    alarmed = number % 3 == 0
    lat, lon = PLACES[0 if alarmed and number % 15 else number % len(PLACES)]
    subscriber = await opened.enter_async_context(
        Subscriber(stack.coordinator_url, user=f"person-{number}", token=token, lat=lat, lon=lon)
    )
    channel, dataset = ("Alarms", "Incidents") if alarmed else ("News", "Facts")
    district = str(number % DISTRICTS)
    await subscriber.subscribe(channel, {"district": district})
    person = _Person(subscriber, dataset, district)
    task = asyncio.create_task(person.receive())
    opened.callback(task.cancel)
    return person


@dataclass(frozen=True, slots=True)
class _Traffic:
    usual_s: float
    surge_s: float
    factor: int
    period_s: int


async def _run(
    api: httpx.AsyncClient, publisher: Publisher, people: list[_Person], traffic: _Traffic
) -> dict[str, Any]:
    sent: dict[tuple[str, str], list[str]] = {}
    # The usual time begins with the first results: averages of a machine that is still starting show no usual traffic.
    await _publish(publisher, sent, LONGEST_START_S, 1, lambda: all(person.received for person in people))
    announce(f"usual traffic for {traffic.usual_s:g} s")
    await _publish(publisher, sent, traffic.usual_s, 1)
    before = await _last_round(api)
    began_s, usual_maximum = time.time(), max(await _loads(api))
    announce(f"surge: {traffic.factor} times as many incidents for at most {traffic.surge_s:g} s")
    answer: dict[str, Any] = {}

    async def wait_for_answer() -> None:
        seen = before
        while not answer:
            last = await _last_round(api)
            if last is not None and last != seen:
                seen = last
                announce(f"after {last['at_s'] - began_s:.1f} s: {last['urgency']}, {last['note']}")
                if last["taken"] and last["maximum_before"] >= RISE * usual_maximum:
                    answer.update(last)
            await asyncio.sleep(0.2)

    waiting = asyncio.create_task(wait_for_answer())
    await _publish(publisher, sent, traffic.surge_s, traffic.factor, lambda: bool(answer))
    if answer:
        await _publish(publisher, sent, AFTER_ANSWER_S, traffic.factor)
    await asyncio.wait([waiting], timeout=max(0.0, began_s + LONGEST_ANSWER_S - time.time()))
    waiting.cancel()
    deadline_s = time.monotonic() + 3 * traffic.period_s + 30.0
    while any(len(person.received) < len(sent[person.wanted]) for person in people) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.5)
    lost = sum(len(set(sent[person.wanted]) - set(person.received)) for person in people)
    repeated = sum(len(person.received) - len(set(person.received)) for person in people)
    return {
        "answer_s": answer["at_s"] - began_s if answer else None,
        "urgency": answer.get("urgency"),
        "moves": answer.get("taken"),
        "maximum_before_bytes_per_s": answer.get("maximum_before"),
        "maximum_after_bytes_per_s": answer.get("maximum_after"),
        "usual_maximum_bytes_per_s": usual_maximum,
        "delivered": sum(len(person.received) for person in people),
        "lost": lost,
        "repeated": repeated,
        "correct": lost == repeated == 0,
    }


async def _publish(
    publisher: Publisher,
    sent: dict[tuple[str, str], list[str]],
    seconds: float,
    incidents: int,
    enough: Callable[[], bool] = lambda: False,
) -> None:
    """Publish facts and incidents of every district, one step after the other, until the time is over or `enough`."""
    ends_s = time.monotonic() + seconds
    while (now_s := time.monotonic()) < ends_s and not enough():
        for dataset, count in (("Facts", FACTS), ("Incidents", incidents)):
            records = []
            for district in map(str, range(DISTRICTS)):
                ids = sent.setdefault((dataset, district), [])
                new = [f"{dataset}-{district}-{len(ids) + number}" for number in range(count)]
                ids += new
                records += [{"id": name, "district": district, "text": TEXT} for name in new]
            await publisher.publish(dataset, records)
        await asyncio.sleep(max(0.0, now_s + STEP_S - time.monotonic()))


async def _last_round(api: httpx.AsyncClient) -> dict[str, Any] | None:
    last: dict[str, Any] | None = (await api.get("/v1/balance")).raise_for_status().json()["last_round"]
    return last


async def _loads(api: httpx.AsyncClient) -> list[float]:
    brokers = (await api.get("/v1/brokers")).raise_for_status().json()["brokers"]
    return [broker["modelled_bytes_per_s"] or 0.0 for broker in brokers]
