"""Carries out a demo: starts the network, lets the city live a compressed day on it, and draws up the account.

Everything runs as it would anywhere: a data cluster, a coordinator and brokers as processes of their own, a WebSocket
per subscriber, records through the feed gateway. Only the people are made up (`sim.crowd`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx

from tocsin.client import Publisher
from tocsin.demo.account import Account, Audit, Recomputed
from tocsin.demo.data_cluster import DemoCluster
from tocsin.demo.people import People
from tocsin.demo.samples import Samples
from tocsin.demo.settings import DemoSettings, compressed
from tocsin.runtime.http.trace_recording import part_path
from tocsin.runtime.stack.stack import Stack, StackSettings
from tocsin.sim.city.crowd import PUBLISHERS, CityCrowd, EmergencyReport, broker_places
from tocsin.sim.city.streets import Streets, built_in, read_wkt
from tocsin.sim.city.subscriptions import named_places

_TURN_S: Final = 0.5
"""Real time between two looks at what has been reported."""
_LOCATIONS_S: Final = 1.0
"""Real time between two updates of everybody's location, as in the paper; all of them in one request."""
_PATIENT_SHARE: Final = 0.5
"""Of the day: balancing waits until everybody has subscribed, but no longer than this."""
_SAMPLE_S: Final = 1.0
_SPARK_NICENESS: Final = 5
"""Brokers, clients and whoever watches come first: an execution may wait a moment, a session should not."""
_TELL_S: Final = 5.0
_LAST_S: Final = 300.0
"""How long the end waits for what is on its way."""


@dataclass(slots=True)
class Outcome:
    """What a day was; `report` makes tables and figures of it."""

    settings: DemoSettings
    account: Account
    samples: Samples
    audit: Audit
    recomputed: Recomputed
    channels: list[dict[str, Any]]
    periods: dict[float, float]
    day_took_s: float
    """Of real time."""
    balancing_from_s: float
    hand_overs: int
    errors: list[str]


class DemoRun:
    def __init__(self, settings: DemoSettings, folder: Path, tell: Callable[[str], None]) -> None:
        """`folder` is for data that goes with the run; what stays is written where the settings say."""
        self._settings = settings
        self._folder = folder
        self._tell = tell
        self.streets = _streets(settings)
        places = named_places(self.streets, settings.seed)
        self._crowd = CityCrowd(self.streets, settings.subscribers, settings.seed, places=places, pace=settings.pace)
        self._account = Account()
        self._samples = Samples()
        self._positions = self._crowd.positions(0.0)
        self._records = 0
        self._warm_ups = 0
        self._began_s = 0.0
        self._balanced_s = settings.balancing_from_s / settings.speed
        self._open = contextlib.AsyncExitStack()
        settings.out.mkdir(parents=True, exist_ok=True)
        self.trace = settings.out.absolute() / "trace.parquet"
        """What the dashboard shows, recorded; complete once the run has stopped."""
        logs = settings.out / "logs"
        logs.mkdir(exist_ok=True)
        for left in (self.trace, part_path(self.trace), *logs.glob("*.log")):
            left.unlink(missing_ok=True)  # of an earlier demo
        streets = folder / "streets.geojson"
        streets.write_text(json.dumps(self.streets.geojson()), encoding="utf-8")
        self.stack = Stack(
            StackSettings(
                folder / "data", settings.brokers, free_ports=True, logs=logs,
                places=broker_places(self.streets, settings.brokers), broker=settings.broker_flags(),
                coordinator=settings.coordinator_flags() | {"streets": str(streets), "trace": str(self.trace)},
                cluster_niceness=_SPARK_NICENESS,
                cluster={"spark": "spark.driver.memory=1g", "log-level": "warning"} | settings.cluster,
            )
        )  # fmt: skip

    async def start(self) -> None:
        """The network is up, and the city about to wake, when this returns. Call `stop` also if it raises."""
        settings, stack = self._settings, self.stack
        self._tell(f"starting a coordinator, {settings.brokers} brokers and a data cluster with Spark")
        await stack.start_coordinator()
        self._tell(f"dashboard: {self.dashboard}")
        self._coordinator = await self._client(stack.coordinator_url, 60.0)
        await self._put_balance({"on": False, **settings.scheme()})
        await stack.start_others()
        self._cluster = DemoCluster(await self._client(stack.cluster_url, 300.0))
        self._publishers = [
            await self._open.enter_async_context(Publisher(stack.cluster_url, stack.admin_token()))
            for _ in range(PUBLISHERS)
        ]

    @property
    def dashboard(self) -> str:
        """With the token in the fragment, which browsers keep to themselves."""
        return f"{self.stack.coordinator_url}/#token={self.stack.admin_token()}"

    async def _client(self, url: str, timeout_s: float) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.stack.admin_token()}"}
        client = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout_s)
        return await self._open.enter_async_context(client)

    async def stop(self) -> None:
        await self._open.aclose()
        await self.stack.stop()

    async def day(self) -> Outcome:
        """From the application to the account."""
        periods = await self._prepare()
        people = People(
            self.stack.coordinator_url,
            self.stack.admin_token(),
            self._account,
            self._crowd.people,
            self._at,
            self._where,
            self._tell,
        )
        self._began_s = time.monotonic()
        people.begin()
        try:
            async with asyncio.TaskGroup() as tasks:
                sampling = tasks.create_task(self._sample(people))
                balancing = tasks.create_task(self._balance())
                await self._things_happen(people)
                sampling.cancel()
                balancing.cancel()
            took_s = self._now_s()
            audit, recomputed = await self._accounts()
            channels = await self._cluster.channels()
            hand_overs = people.hand_overs
        finally:
            await people.end()
        return Outcome(
            self._settings, self._account, self._samples, audit, recomputed, channels, periods, took_s,
            self._balanced_s, hand_overs, sorted(people.errors),
        )  # fmt: skip

    # -- before --------------------------------------------------------------------------------------------------------

    async def _prepare(self) -> dict[float, float]:
        settings = self._settings
        text, periods = compressed(settings.application.read_text(encoding="utf-8"), settings.speed)
        made = await self._cluster.apply(text, str(settings.application.parent.absolute()))
        told = ", ".join(f"{was:g} s → {now:g} s" for was, now in sorted(periods.items()))
        self._tell(f"{made} datasets and channels from {settings.application.name}; periods for this speed: {told}")
        await self._publishers[0].publish("UserLocations", self._crowd.locations(0.0, _now()))
        began_s = time.monotonic()
        lat, lon = self.streets.anchor
        self._warm_ups = await self._cluster.warm_up(self._publishers[0], lat, lon, _now())
        self._tell(f"channels warmed up in {time.monotonic() - began_s:.0f} s; the city wakes")
        return periods

    # -- the day -------------------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        """Real seconds since the city woke."""
        return time.monotonic() - self._began_s

    async def _at(self, moment_s: float) -> None:
        await asyncio.sleep(max(0.0, moment_s / self._settings.speed - self._now_s()))

    def _where(self, number: int) -> tuple[float, float]:
        lat, lon = self._positions[number].tolist()
        return lat, lon

    async def _things_happen(self, people: People) -> None:
        settings = self._settings
        located_s = told_s = 0.0
        while (now_s := self._now_s()) < settings.minutes * 60.0:
            reports = self._crowd.reports(now_s * settings.speed)
            work = [self._publish_reports(number, reports) for number in range(PUBLISHERS)]
            if now_s - located_s >= _LOCATIONS_S:
                located_s = now_s
                work.append(self._publish_locations(now_s * settings.speed))
            await asyncio.gather(*work)
            if now_s - told_s >= _TELL_S:
                told_s = now_s
                self._tell(self._progress(now_s, people))
            await asyncio.sleep(max(0.0, now_s + _TURN_S - self._now_s()))

    async def _publish_reports(self, publisher: int, reports: list[EmergencyReport]) -> None:
        mine = [report for report in reports if report.publisher == publisher]
        if not mine:
            return
        at, now_s = _now(), time.time()
        for one in mine:
            self._account.publish(one.number, one.kind, one.lat, one.lon, now_s)
        published = await self._publishers[publisher].publish("EmergencyReports", [one.record(at) for one in mine])
        assert published.accepted == len(mine), published
        self._records += len(mine)

    async def _publish_locations(self, moment_s: float) -> None:
        self._positions = self._crowd.positions(moment_s)
        records = self._crowd.locations(moment_s, _now())
        await self._publishers[0].publish("UserLocations", records)

    async def _balance(self) -> None:
        settings = self._settings
        await self._at(settings.balancing_from_s)
        await self._all_subscribed(self._began_s + _PATIENT_SHARE * settings.minutes * 60.0)
        self._balanced_s = self._now_s()
        if settings.scheme() == {"scheme": "none", "shuffle": "none"}:
            return
        cov = self._samples.cov_at(self._now_s())
        await self._put_balance({"on": True})
        self._tell(f"balancing ({settings.balance}) begins at cov {cov or 0.0:.2f}")

    async def _all_subscribed(self, deadline_s: float) -> None:
        """Everybody has what it wants by then, unless a busy machine is behind the city's time."""
        wishes = sum(len(person.subscriptions) for person in self._crowd.people)
        while self._account.frontend() < wishes and time.monotonic() < deadline_s:
            await asyncio.sleep(0.25)

    async def _put_balance(self, wanted: dict[str, Any]) -> None:
        (await self._coordinator.put("/v1/balance", json=wanted)).raise_for_status()

    async def _sample(self, people: People) -> None:
        while True:
            with contextlib.suppress(httpx.TransportError):  # a busy machine: the next look is a second away
                status = (await self._coordinator.get("/v1/status")).raise_for_status().json()
                self._samples.add(self._now_s(), status, people.hand_overs)
            await asyncio.sleep(_SAMPLE_S)

    def _progress(self, now_s: float, people: People) -> str:
        account = self._account
        last = self._samples.samples[-1] if self._samples.samples else None
        moment_s = now_s * self._settings.speed
        balance = "" if last is None else f", cov {last.cov:.2f}, {last.hand_overs} moved"
        return (
            f"{int(moment_s // 60):3}:{int(moment_s % 60):02}  {people.logged_in} people, {account.frontend():,} "
            f"subscriptions, {self._records:,} reports, {account.delivered:,} delivered{balance}"
        )

    # -- after ---------------------------------------------------------------------------------------------------------

    async def _accounts(self) -> tuple[Audit, Recomputed]:
        """Every channel runs once more; then whatever is stored must arrive."""
        self._tell("the day is over: running every channel once more, waiting for what is on its way")
        await self._all_subscribed(time.monotonic() + _LAST_S)
        await self._cluster.settled("EmergencyReports", self._records + self._warm_ups, _LAST_S)
        holdings = self._account.by_channel()
        await self._cluster.execute(holdings)
        wanted = {channel: {name for name, _ in held} for channel, held in holdings.items()}
        stored = await self._cluster.stored(wanted)
        expected = self._account.audited(stored).expected
        deadline_s, told_s = time.monotonic() + _LAST_S, time.monotonic()
        # Counting is enough to wait by; the audit itself would keep the loop from receiving.
        while self._account.delivered < expected and time.monotonic() < deadline_s:
            await asyncio.sleep(0.25)
            if time.monotonic() - told_s >= _TELL_S:
                told_s = time.monotonic()
                self._tell(f"  {expected - self._account.delivered:,} notifications to come")
        await asyncio.sleep(1.0)  # a repeat would come now
        return self._account.audited(stored), self._account.recomputed()


def _streets(settings: DemoSettings) -> Streets:
    if settings.map is None:
        return built_in()
    return read_wkt(settings.map.read_text(encoding="utf-8"))


def _now() -> str:
    return datetime.now(UTC).isoformat()
