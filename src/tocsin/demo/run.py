"""Carries out a demo: starts the network, runs a compressed day of the city on it, and audits the notifications.

Every part is real: a data cluster, a coordinator and brokers as processes, a WebSocket per subscriber, records through
the feed gateway. Only the people are simulated (`sim/city`).
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
from tocsin.demo.account import Audit, DemoAccount, Recomputed
from tocsin.demo.data_cluster import DemoCluster
from tocsin.demo.people import DemoPeople
from tocsin.demo.samples import Samples
from tocsin.demo.settings import DemoSettings, compressed
from tocsin.runtime.http.trace_recording import part_path
from tocsin.runtime.stack.stack import Stack, StackSettings
from tocsin.sim.city.crowd import PUBLISHERS, CityCrowd, EmergencyReport, broker_places
from tocsin.sim.city.streets import Streets, built_in, read_wkt
from tocsin.sim.city.subscriptions import named_places

_TURN_S: Final = 0.5
"""Real time between two requests with reports."""
_LOCATIONS_S: Final = 1.0
"""Real time between two updates of all locations, as in the paper; one request has all of them."""
_BALANCING_WAIT_SHARE: Final = 0.5
"""Share of the day that balancing waits at most for all people to subscribe."""
_SAMPLE_S: Final = 1.0
_SPARK_NICENESS: Final = 5
"""Niceness of Spark: brokers, clients and the dashboard have priority over executions."""
_PROGRESS_S: Final = 5.0
_PENDING_S: Final = 300.0
"""How long the demo waits at its end for pending notifications."""


@dataclass(slots=True)
class DemoOutcome:
    """The measurements of a day; `report` and `figures` present them."""

    settings: DemoSettings
    account: DemoAccount
    samples: Samples
    audit: Audit
    recomputed: Recomputed
    channels: list[dict[str, Any]]
    periods: dict[float, float]
    day_took_s: float
    """The length of the day in seconds of real time."""
    balancing_from_s: float
    hand_overs: int
    errors: list[str]


class DemoRun:
    def __init__(self, settings: DemoSettings, folder: Path, report_progress: Callable[[str], None]) -> None:
        """`folder` holds temporary data; the report goes to the folder of the settings."""
        self._settings = settings
        self._folder = folder
        self._report_progress = report_progress
        self.streets = _streets(settings)
        places = named_places(self.streets, settings.seed)
        self._crowd = CityCrowd(self.streets, settings.subscribers, settings.seed, places=places, pace=settings.pace)
        self._account = DemoAccount()
        self._samples = Samples()
        self._positions = self._crowd.positions(0.0)
        self._records = 0
        self._warm_ups = 0
        self._began_s = 0.0
        self._balanced_s = settings.balancing_from_s / settings.speed
        self._open = contextlib.AsyncExitStack()
        settings.out.mkdir(parents=True, exist_ok=True)
        self.trace = settings.out.absolute() / "trace.parquet"
        """The recording of what the dashboard shows; complete when the run has stopped."""
        logs = settings.out / "logs"
        logs.mkdir(exist_ok=True)
        for earlier in (self.trace, part_path(self.trace), *logs.glob("*.log")):
            earlier.unlink(missing_ok=True)
        streets = folder / "streets.geojson"
        streets.write_text(json.dumps(self.streets.geojson()), encoding="utf-8")
        self.stack = Stack(
            StackSettings(
                folder / "data",
                settings.brokers,
                free_ports=True,
                logs=logs,
                places=broker_places(self.streets, settings.brokers),
                broker=settings.broker_flags(),
                coordinator=settings.coordinator_flags() | {"streets": str(streets), "trace": str(self.trace)},
                cluster_niceness=_SPARK_NICENESS,
                cluster={"spark": "spark.driver.memory=1g", "log-level": "warning"} | settings.cluster,
            )
        )

    async def start(self) -> None:
        """Start the network. Call `stop` even if this raises."""
        settings, stack = self._settings, self.stack
        self._report_progress(f"starting a coordinator, {settings.brokers} brokers and a data cluster with Spark")
        await stack.start_coordinator()
        self._report_progress(f"dashboard: {self.dashboard}")
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
        """The address with the token in the fragment, which browsers do not send."""
        return f"{self.stack.coordinator_url}/#token={self.stack.admin_token()}"

    async def _client(self, url: str, timeout_s: float) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.stack.admin_token()}"}
        client = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout_s)
        return await self._open.enter_async_context(client)

    async def stop(self) -> None:
        await self._open.aclose()
        await self.stack.stop()

    async def run_day(self) -> DemoOutcome:
        """Apply the application, run the day and audit it."""
        periods = await self._prepare()
        people = DemoPeople(
            self.stack.coordinator_url,
            self.stack.admin_token(),
            self._account,
            self._crowd.people,
            self._wait_until,
            self._position_of,
            self._report_progress,
        )
        self._began_s = time.monotonic()
        people.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                sampling = tasks.create_task(self._sample(people))
                balancing = tasks.create_task(self._balance())
                await self._publish_day(people)
                sampling.cancel()
                balancing.cancel()
            took_s = self._now_s()
            audit, recomputed = await self._audit()
            channels = await self._cluster.channels()
            hand_overs = people.hand_overs
        finally:
            await people.stop()
        return DemoOutcome(
            self._settings,
            self._account,
            self._samples,
            audit,
            recomputed,
            channels,
            periods,
            took_s,
            self._balanced_s,
            hand_overs,
            sorted(people.errors),
        )

    # -- before --------------------------------------------------------------------------------------------------------

    async def _prepare(self) -> dict[float, float]:
        settings = self._settings
        text, periods = compressed(settings.application.read_text(encoding="utf-8"), settings.speed)
        made = await self._cluster.apply(text, str(settings.application.parent.absolute()))
        changed = ", ".join(f"{was:g} s → {now:g} s" for was, now in sorted(periods.items()))
        self._report_progress(
            f"{made} datasets and channels from {settings.application.name}; periods for this speed: {changed}"
        )
        await self._publishers[0].publish("UserLocations", self._crowd.locations(0.0, _now()))
        began_s = time.monotonic()
        lat, lon = self.streets.anchor
        self._warm_ups = await self._cluster.warm_up(self._publishers[0], lat, lon, _now())
        self._report_progress(f"channels warmed up in {time.monotonic() - began_s:.0f} s; the day starts")
        return periods

    # -- the day -------------------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        """Real seconds since the day started."""
        return time.monotonic() - self._began_s

    async def _wait_until(self, moment_s: float) -> None:
        await asyncio.sleep(max(0.0, moment_s / self._settings.speed - self._now_s()))

    def _position_of(self, number: int) -> tuple[float, float]:
        lat, lon = self._positions[number].tolist()
        return lat, lon

    async def _publish_day(self, people: DemoPeople) -> None:
        settings = self._settings
        located_s = reported_s = 0.0
        while (now_s := self._now_s()) < settings.minutes * 60.0:
            reports = self._crowd.reports(now_s * settings.speed)
            work = [self._publish_reports(number, reports) for number in range(PUBLISHERS)]
            if now_s - located_s >= _LOCATIONS_S:
                located_s = now_s
                work.append(self._publish_locations(now_s * settings.speed))
            await asyncio.gather(*work)
            if now_s - reported_s >= _PROGRESS_S:
                reported_s = now_s
                self._report_progress(self._progress(now_s, people))
            await asyncio.sleep(max(0.0, now_s + _TURN_S - self._now_s()))

    async def _publish_reports(self, publisher: int, reports: list[EmergencyReport]) -> None:
        mine = [report for report in reports if report.publisher == publisher]
        if not mine:
            return
        at, now_s = _now(), time.time()
        for report in mine:
            self._account.publish(report.number, report.kind, report.lat, report.lon, now_s)
        records = [report.record(at) for report in mine]
        published = await self._publishers[publisher].publish("EmergencyReports", records)
        assert published.accepted == len(mine), published
        self._records += len(mine)

    async def _publish_locations(self, moment_s: float) -> None:
        self._positions = self._crowd.positions(moment_s)
        records = self._crowd.locations(moment_s, _now())
        await self._publishers[0].publish("UserLocations", records)

    async def _balance(self) -> None:
        settings = self._settings
        await self._wait_until(settings.balancing_from_s)
        await self._wait_until_all_subscribed(self._began_s + _BALANCING_WAIT_SHARE * settings.minutes * 60.0)
        self._balanced_s = self._now_s()
        if settings.scheme() == {"scheme": "none", "shuffle": "none"}:
            return
        cov = self._samples.cov_at(self._now_s())
        await self._put_balance({"on": True})
        self._report_progress(f"balancing ({settings.balance}) begins at cov {cov or 0.0:.2f}")

    async def _wait_until_all_subscribed(self, deadline_s: float) -> None:
        """Wait until every subscription is granted; a busy machine may lag behind the city's time."""
        requested = sum(len(person.subscriptions) for person in self._crowd.people)
        while self._account.frontend() < requested and time.monotonic() < deadline_s:
            await asyncio.sleep(0.25)

    async def _put_balance(self, settings: dict[str, Any]) -> None:
        (await self._coordinator.put("/v1/balance", json=settings)).raise_for_status()

    async def _sample(self, people: DemoPeople) -> None:
        while True:
            with contextlib.suppress(httpx.TransportError):  # a busy machine: the next sample is a second away
                status = (await self._coordinator.get("/v1/status")).raise_for_status().json()
                self._samples.add(self._now_s(), status, people.hand_overs)
            await asyncio.sleep(_SAMPLE_S)

    def _progress(self, now_s: float, people: DemoPeople) -> str:
        account = self._account
        last = self._samples.samples[-1] if self._samples.samples else None
        moment_s = now_s * self._settings.speed
        balance = "" if last is None else f", cov {last.cov:.2f}, {last.hand_overs} moved"
        return (
            f"{int(moment_s // 60):3}:{int(moment_s % 60):02}  {people.logged_in} people, {account.frontend():,} "
            f"subscriptions, {self._records:,} reports, {account.delivered:,} delivered{balance}"
        )

    # -- after ---------------------------------------------------------------------------------------------------------

    async def _audit(self) -> tuple[Audit, Recomputed]:
        """Run every channel once more, wait for pending notifications, and compare with the stored results."""
        self._report_progress("the day is over: running every channel once more and waiting for pending notifications")
        await self._wait_until_all_subscribed(time.monotonic() + _PENDING_S)
        await self._cluster.settled("EmergencyReports", self._records + self._warm_ups, _PENDING_S)
        holdings = self._account.by_channel()
        await self._cluster.execute(holdings)
        stored = await self._cluster.stored(
            {channel: {subscription for subscription, _ in held} for channel, held in holdings.items()}
        )
        expected = self._account.audited(stored).expected
        deadline_s, reported_s = time.monotonic() + _PENDING_S, time.monotonic()
        # The audit would block the event loop, so this loop only compares counts.
        while self._account.delivered < expected and time.monotonic() < deadline_s:
            await asyncio.sleep(0.25)
            if time.monotonic() - reported_s >= _PROGRESS_S:
                reported_s = time.monotonic()
                self._report_progress(f"  {expected - self._account.delivered:,} notifications pending")
        await asyncio.sleep(1.0)  # a repeat would arrive now
        return self._account.audited(stored), self._account.recomputed()


def _streets(settings: DemoSettings) -> Streets:
    if settings.map is None:
        return built_in()
    return read_wkt(settings.map.read_text(encoding="utf-8"))


def _now() -> str:
    return datetime.now(UTC).isoformat()
