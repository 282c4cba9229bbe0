"""One network of real processes for all tests here: a data cluster with Spark, a coordinator, three brokers."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
import pytest

from tocsin.client import Patience, Publisher, Result, Subscriber, Subscription
from tocsin.cluster.spark.session import require_java
from tocsin.runtime.stack.stack import Stack, StackSettings
from tocsin.wire.errors import TocsinError

T = TypeVar("T")

APPLICATION = """
CREATE STREAM DATASET Reports (id STRING, kind STRING, lat DOUBLE, lon DOUBLE) KEY (id) RETAIN 7 DAYS;
CREATE KEYED DATASET People (name STRING, lat DOUBLE, lon DOUBLE) KEY (name) OWNED BY name;
CREATE CONTINUOUS CHANNEL OfKind (kind STRING) AS SELECT r.id, r.kind FROM NEW Reports r WHERE r.kind = :kind;
CREATE CONTINUOUS CHANNEL MyPlace (me STRING) AS SELECT p.name, p.lat FROM NEW People p WHERE p.name = :me;
CREATE CONTINUOUS CHANNEL NearMe (me STRING, radius_m DOUBLE) AS
  SELECT r.id, p.name, distance_m(r.lat, r.lon, p.lat, p.lon) AS away_m
  FROM NEW Reports r JOIN People p ON near(r.lat, r.lon, p.lat, p.lon, :radius_m) WHERE p.name = :me;
"""
# Shorter times than in production, to keep the tests fast.
COORDINATOR = {
    "heartbeat-s": "0.5",
    "suspect-s": "1.5",
    "dead-s": "3",
    "grace-s": "5",
    "probation-s": "1",
    "retry-s": "1",
}
PATIENCE = Patience(open_s=4.0, longest_s=2.0)


class Network:
    """The stack runs on an event loop in a thread; `run` runs a test's coroutine on that loop."""

    def __init__(self, settings: StackSettings) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()
        self.users = (f"user-{number}" for number in itertools.count())
        self.kinds = (f"kind-{number}" for number in itertools.count())

        async def make() -> Stack:
            return Stack(settings)

        self.stack = self.run(make())
        self.run(self.stack.start(), 240)
        self.token = self.stack.admin_token()
        self.coordinator = self._client(self.stack.coordinator_url)
        self.cluster = self._client(self.stack.cluster_url)
        self.publisher = self.run(self._call(lambda: Publisher(self.stack.cluster_url, self.token, longest_s=2.0)))

    @staticmethod
    async def _call(make: Callable[[], T]) -> T:
        return make()

    def _client(self, url: str) -> httpx.Client:
        return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {self.token}"}, timeout=60)

    def run(self, work: Coroutine[Any, Any, T], limit_s: float = 90) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(limit_s)

    @asynccontextmanager
    async def subscriber(self, user: str | None = None, **options: Any) -> AsyncIterator[Subscriber]:
        async with Subscriber(
            self.stack.coordinator_url, user=user or next(self.users), token=self.token, patience=PATIENCE, **options
        ) as subscriber:
            yield subscriber

    async def publish(self, kind: str, *ids: str) -> None:
        records = [{"id": f"{kind}-{name}", "kind": kind, "lat": 60.171, "lon": 24.941} for name in ids]
        published = await self.publisher.publish("Reports", records)
        assert published.accepted == len(ids), published

    def migrate(self, user: str | None, target: str) -> None:
        answer = self.coordinator.post("/v1/migrations", json={"subscriber": user, "target": target})
        assert answer.status_code == 202, answer.text

    def others(self, broker: str) -> list[str]:
        return [name for name in self.stack.brokers if name != broker]

    def stop(self) -> None:
        self.coordinator.close()
        self.cluster.close()
        self.run(self.publisher.close())
        self.run(self.stack.stop(), 180)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def take(subscription: Subscription[T], count: int, limit_s: float = 60) -> list[Result[T]]:
    async with asyncio.timeout(limit_s):
        return [await anext(subscription) for _ in range(count)]


async def until(holds: Callable[[], Any], limit_s: float = 30) -> Any:
    """Wait until `holds` returns a true value, and return that value."""
    async with asyncio.timeout(limit_s):
        while not (value := holds()):
            await asyncio.sleep(0.05)
        return value


@pytest.fixture(scope="package")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    try:
        require_java()
    except TocsinError as error:
        pytest.skip(error.message)
    folder = tmp_path_factory.mktemp("network")
    running = Network(
        StackSettings(
            folder / "data",
            3,
            free_ports=True,
            logs=folder,
            coordinator=COORDINATOR,
            broker={"progress-s": "1"},
            cluster={"master": "local[2]", "spark": "spark.driver.memory=1g", "heartbeat-s": "1", "log-form": "json"},
        )
    )
    answer = running.cluster.post("/v1/applications", json={"text": APPLICATION})
    assert answer.status_code == 200, answer.text
    yield running
    running.stop()
