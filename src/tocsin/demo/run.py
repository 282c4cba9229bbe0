"""Carries out a demo: starts the network, runs a compressed day of the city on it, and audits the notifications.

Every part is real: a data cluster, a coordinator and brokers as processes, a WebSocket per subscriber, reports through
the feed gateway, positions through the brokers. Only the people are simulated (`sim/city`).

At the end of the day all people are logged in and their positions are frozen. One last batch of reports follows, whose
notifications `recomputation` knows for every channel.
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
from tocsin.demo.account import Audit, DemoAccount, PublishedReport
from tocsin.demo.data_cluster import DemoCluster
from tocsin.demo.people import DemoPeople
from tocsin.demo.person import LOCATIONS, PeopleCounts, Surroundings
from tocsin.demo.recomputation import Recomputed, Shelters, recomputed_batch, recomputed_day
from tocsin.demo.requests import request_when_ready
from tocsin.demo.samples import Samples
from tocsin.demo.settings import DemoSettings
from tocsin.runtime.http.trace_recording import part_path
from tocsin.runtime.stack.stack import Stack, StackSettings
from tocsin.sim.city.crowd import CityCrowd, broker_places
from tocsin.sim.city.emergency_reports import PUBLISHERS, EmergencyReport
from tocsin.sim.city.streets import Streets, built_in, read_wkt
from tocsin.sim.city.subscriptions import named_places

_TURN_S: Final = 0.5
"""Real time between two requests with reports."""
_LOCATIONS_S: Final = 1.0
"""Real time between two updates of a person's location, as in the paper."""
_BALANCING_WAIT_SHARE: Final = 0.5
"""Share of the day that balancing waits at most for all people to subscribe."""
_SAMPLE_S: Final = 1.0
_SPARK_NICENESS: Final = 5
"""Niceness of Spark: brokers, clients and the dashboard have priority over executions."""
_PROGRESS_S: Final = 5.0
_PENDING_S: Final = 300.0
"""How long the demo waits at its end for pending notifications."""
_AFTER_ERRORS_S: Final = 30.0
"""The same if a person ended with an error: the notifications of that person do not arrive any more."""
_LATE_S: Final = 120.0
"""How long the demo waits at its end for people that are late, and for their last positions."""
_BATCH: Final = 300
"""Reports of the last batch."""


@dataclass(slots=True)
class DemoOutcome:
    """The measurements of a day; `report` and `figures` present them."""

    settings: DemoSettings
    account: DemoAccount
    samples: Samples
    audit: Audit
    recomputed: Recomputed | None
    """The day, for the channels without positions. None if the settings exclude it, as for `batch`."""
    batch: dict[str, Recomputed] | None
    """The last batch, by channel."""
    requested: int
    """Subscribe requests of the day."""
    counts: PeopleCounts
    channels: list[dict[str, Any]]
    periods: dict[float, float]
    day_took_s: float
    """The length of the day in seconds of real time."""
    balancing_from_s: float
    hand_overs: int
    errors: list[str]
    began_s: float = 0.0
    """When the day started, by the wall clock."""


class DemoRun:
    def __init__(self, settings: DemoSettings, folder: Path, report_progress: Callable[[str], None]) -> None:
        """`folder` holds temporary data; the report goes to the folder of the settings."""
        self._settings = settings
        self._folder = folder
        self._report_progress = report_progress
        self.streets = _streets(settings)
        self._places = named_places(self.streets, settings.seed)
        self.crowd = CityCrowd(
            self.streets,
            settings.subscribers,
            settings.seed,
            places=self._places,
            pace=settings.pace,
            channels=settings.channels,
        )
        self.account = DemoAccount()
        """Filled while the day runs."""
        self._samples = Samples()
        self._records = 0
        self._warm_ups = 0
        self._began_s = 0.0
        self._began_wall_s = 0.0
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
                cluster={
                    "spark": "spark.driver.memory=1g",
                    "log-level": "warning",
                    "files": str(settings.application.absolute().parent),
                }
                | settings.cluster,
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
        client = await self._client(stack.cluster_url, 300.0)
        self._cluster = DemoCluster(client, settings.channels, settings.warm_ups)
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
        states = self._folder / "people"
        states.mkdir()
        people = DemoPeople(
            Surroundings(
                self.stack.coordinator_url,
                self.stack.admin_token(),
                self.account,
                self._wait_until,
                self._cluster.stored_of,
                states,
            ),
            self.crowd.people,
            self._report_progress,
        )
        self._began_s, self._began_wall_s = time.monotonic(), time.time()
        people.move(self.crowd.positions(0.0))
        people.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                sampling = tasks.create_task(self._sample(people))
                balancing = tasks.create_task(self._balance())
                moving = tasks.create_task(self._move(people))
                await self._publish_day(people)
                for task in (sampling, balancing, moving):
                    task.cancel()
            took_s, hand_overs = self._now_s(), people.activity().hand_overs
            return await self._audited(people, periods, took_s, hand_overs)
        finally:
            await people.stop()

    # -- before --------------------------------------------------------------------------------------------------------

    async def _prepare(self) -> dict[float, float]:
        settings = self._settings
        text, periods = settings.application_text()
        made = await self._cluster.apply(text, str(settings.application.parent.absolute()))
        changed = ", ".join(f"{was:g} s → {now:g} s" for was, now in sorted(periods.items()))
        self._report_progress(
            f"{made} datasets and channels from {settings.application.name}; periods for this speed: {changed}"
        )
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

    async def _publish_day(self, people: DemoPeople) -> None:
        settings = self._settings
        reported_s = 0.0
        while (now_s := self._now_s()) < settings.minutes * 60.0:
            await self._publish(self.crowd.reports.until(now_s * settings.speed))
            if now_s - reported_s >= _PROGRESS_S:
                reported_s = now_s
                self._report_progress(self._progress(now_s, people))
            await asyncio.sleep(max(0.0, now_s + _TURN_S - self._now_s()))

    async def _move(self, people: DemoPeople) -> None:
        while True:
            await asyncio.sleep(_LOCATIONS_S - self._now_s() % _LOCATIONS_S)  # a late beat does not delay the next
            people.move(self.crowd.positions(self._now_s() * self._settings.speed))
            people.send_positions()

    async def _publish(self, reports: list[EmergencyReport]) -> None:
        await asyncio.gather(*(self._publish_as(publisher, reports) for publisher in range(PUBLISHERS)))

    async def _publish_as(self, publisher: int, reports: list[EmergencyReport]) -> None:
        mine = [report for report in reports if report.publisher == publisher]
        if not mine:
            return
        at, now_s = _now(), time.time()
        for report in mine:
            published = PublishedReport(report.kind, report.severity, report.lat, report.lon, now_s)
            self.account.publish(report.number, published)
        records = [report.record(at) for report in mine]
        answer = await self._publishers[publisher].publish("EmergencyReports", records)
        assert answer.accepted == len(mine), answer
        self._records += len(mine)

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
        requested = sum(len(person.subscriptions) for person in self.crowd.people)
        while self.account.frontend() < requested and time.monotonic() < deadline_s:
            await asyncio.sleep(0.25)

    async def _put_balance(self, settings: dict[str, Any]) -> None:
        await request_when_ready(self._coordinator, "PUT", "/v1/balance", json=settings)

    async def _sample(self, people: DemoPeople) -> None:
        while True:
            with contextlib.suppress(httpx.HTTPError):  # a busy machine: the next sample is a second away
                status = (await self._coordinator.get("/v1/status")).raise_for_status().json()
                self._samples.add(self._now_s(), status, people.activity())
            await asyncio.sleep(_SAMPLE_S)

    def _progress(self, now_s: float, people: DemoPeople) -> str:
        account = self.account
        last = self._samples.samples[-1] if self._samples.samples else None
        moment_s = now_s * self._settings.speed
        balance = "" if last is None else f", cov {last.cov:.2f}, {last.hand_overs} moved"
        return (
            f"{int(moment_s // 60):3}:{int(moment_s % 60):02}  {people.online} people online, {account.frontend():,} "
            f"subscriptions, {self._records:,} reports, {account.delivered:,} delivered{balance}"
        )

    # -- after ---------------------------------------------------------------------------------------------------------

    async def _audited(
        self, people: DemoPeople, periods: dict[float, float], took_s: float, hand_overs: int
    ) -> DemoOutcome:
        self._report_progress("the day is over: waiting for the last interactions of people")
        await people.finished(_LATE_S)
        positions = await self._publish_last_batch(people) if self._settings.recompute else None
        audit = await self._audit(_AFTER_ERRORS_S if people.errors else _PENDING_S)
        recomputed = batch = None
        if positions is not None:
            shelters = self._settings.application.with_name("shelters.csv").read_text(encoding="utf-8").splitlines()
            recomputed = recomputed_day(self.account)
            batch = recomputed_batch(self.account, positions, Shelters.read(shelters))
        return DemoOutcome(
            self._settings,
            self.account,
            self._samples,
            audit,
            recomputed,
            batch,
            people.requested,
            people.counts,
            await self._cluster.channels(),
            periods,
            took_s,
            self._balanced_s,
            hand_overs,
            sorted(people.errors),
            self._began_wall_s,
        )

    async def _publish_last_batch(self, people: DemoPeople) -> dict[str, tuple[float, float]]:
        """Freeze the positions of people and publish one more batch of reports. Return the positions."""
        now_s = self._now_s() * self._settings.speed
        final = self.crowd.positions(now_s)
        people.move(final)
        positions = await people.freeze(_LATE_S)
        await self._cluster.settled(LOCATIONS, len(positions), _PENDING_S)
        self._report_progress(f"positions are frozen: publishing a last batch of {_BATCH} reports")
        batch = self.crowd.reports.last_batch(_BATCH, now_s, final, self._places)
        self.account.batch_from = batch[0].number
        await self._publish(batch)
        return positions

    async def _audit(self, limit_s: float) -> Audit:
        """Run every channel once more, wait for pending notifications, and compare with the stored results."""
        self._report_progress("running every channel once more and waiting for pending notifications")
        await self._cluster.settled("EmergencyReports", self._records + self._warm_ups, _PENDING_S)
        holdings = self.account.open_by_channel()
        await self._cluster.execute(holdings)
        stored = await self._cluster.stored(holdings)
        # The audit takes too long to run while notifications arrive, so the loop only compares counts.
        complete = self.account.delivered + self.account.audited(stored).lost
        deadline_s, reported_s = time.monotonic() + limit_s, time.monotonic()
        while (pending := complete - self.account.delivered) > 0 and time.monotonic() < deadline_s:
            await asyncio.sleep(0.25)
            if time.monotonic() - reported_s >= _PROGRESS_S:
                reported_s = time.monotonic()
                self._report_progress(f"  {pending:,} notifications pending")
        await asyncio.sleep(1.0)  # a repeat would arrive now
        return self.account.audited(stored)


def _streets(settings: DemoSettings) -> Streets:
    if settings.map is None:
        return built_in()
    return read_wkt(settings.map.read_text(encoding="utf-8"))


def _now() -> str:
    return datetime.now(UTC).isoformat()
