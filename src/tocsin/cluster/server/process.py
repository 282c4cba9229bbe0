"""Drives a data cluster: executes its channels on time, runs upkeep, and restarts failed streaming queries.

Runs on one asyncio loop; blocking work goes to threads. `cluster.schedule` decides when a channel runs, and
`cluster.engine` what an execution does. An execution that fails is logged, counted and retried: it stops neither this
process nor another channel.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from tocsin.cluster.catalog import StoredExecution
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.joint_executions import MOST_TOGETHER, JointOutcome
from tocsin.cluster.live import LiveChannel
from tocsin.cluster.schedule import Schedule, joint_groups, phase_s, rest_s
from tocsin.cluster.server.ingestion_watch import IngestionWatch
from tocsin.cluster.server.lateness import LateChannel, late_channels
from tocsin.cluster.server.leading import Leading
from tocsin.cluster.server.memory import RELEASE_S, release_memory
from tocsin.cluster.server.metrics import ClusterMetrics
from tocsin.cluster.server.spark_watch import CHECK_S, SparkWatch
from tocsin.cluster.spark.heartbeat import SparkHeartbeat
from tocsin.cluster.spark.session import described
from tocsin.cluster.upkeep import OrphanSweep, maintain
from tocsin.model.backoff import retry_delay_s
from tocsin.model.ids import ChannelName
from tocsin.runtime.http.logs import is_worth_logging, logger
from tocsin.wire.errors import Code, TocsinError

FACTS_S = 2.0
"""Pause between two requests for facts about Spark."""
WARM_UP_S = 1.0
"""Seconds after which the process looks for channels that have not been planned yet."""
SWEEP_S = 600.0
"""Pause between searches for files that no catalog row names."""


OpenCluster = Callable[[Callable[[ChannelName], None]], DataCluster]
"""Opens a data cluster that calls the function with each channel that has NEW records. Blocks while Spark starts."""


class ClusterProcess:
    def __init__(
        self,
        open_cluster: OpenCluster,
        metrics: ClusterMetrics,
        *,
        executions: int = 4,
        maintain_s: float = 5.0,
        stop_s: float = 30.0,
        spark_deadline_s: float = 20.0,
        standby: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_cluster = open_cluster
        self._metrics = metrics
        self._maintain_s = maintain_s
        self._stop_s = stop_s
        self._spark_deadline_s = spark_deadline_s
        self.leading = Leading(standby=standby)
        self._clock_s = clock_s
        self._pool = ThreadPoolExecutor(executions, "execution")
        self._continuous_pool = ThreadPoolExecutor(executions, "continuous")
        """Threads of continuous channels: they never wait until repetitive channels, which may be slow, have ended."""
        self._schedule = Schedule()
        self._scheduled: dict[ChannelName, tuple[int, float | None]] = {}
        """(epoch, period in seconds); the period of a continuous channel is None."""
        self._groups: dict[ChannelName, int] = {}
        """The group in which each continuous channel runs."""
        self._apart: dict[ChannelName, int] = {}
        """Channels of groups that run by themselves, and for how many executions."""
        self._joint_failures = 0
        """Failed joint executions in a row, since the last success."""
        self._failures: dict[ChannelName, int] = {}
        """Failed executions in a row, since the last success."""
        self._retry_at_s: dict[ChannelName, float] = {}
        self._arriving: set[ChannelName] = set()
        """Channels with NEW records that the loop has not noted yet: one batch of records may concern hundreds."""
        self._arriving_lock = threading.Lock()
        self._running: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._log = logger()
        self._cluster: DataCluster | None = None
        self.watch: IngestionWatch | None = None
        self._heartbeat: SparkHeartbeat | None = None
        self.spark_watch: SparkWatch | None = None
        self._spark_facts: dict[str, Any] = {}
        """Facts about Spark from the last time it answered."""
        self.lost = asyncio.Event()
        """Set when Spark or the lease is lost: this process can only end then."""
        self.lost_reason = ""
        self.lease_lost = False
        """True if another process has taken the lease."""
        self.stopping = asyncio.Event()
        self._on_stop: set[Callable[[], object]] = set()
        self.changing = asyncio.Lock()
        """Held while datasets, channels and feeds are created or dropped."""

    @property
    def cluster(self) -> DataCluster:
        """The open data cluster. Raises NOT_READY while it starts or stops, and if this process does not lead."""
        self.leading.require()
        if self._cluster is None or self.stopping.is_set():
            reason = "the data cluster is stopping" if self.stopping.is_set() else "the data cluster is still starting"
            raise TocsinError(Code.NOT_READY, reason, retry_after_s=2)
        return self._cluster

    def reasons_not_ready(self) -> list[str]:
        if self.stopping.is_set():
            return ["stopping"]
        if (reason := self.leading.reason()) is not None:
            return [reason]
        if self._cluster is None or self.watch is None:
            return ["Spark is starting"]
        spark = [] if self.spark_watch is None else self.spark_watch.reasons()
        # Queries that a silent Spark runs cannot be judged.
        return spark or self.watch.reasons()

    def spark_facts(self) -> dict[str, Any]:
        """Facts about Spark for an administrator, a few seconds old. Never waits for Spark."""
        return self._spark_facts

    def _refresh_spark_facts(self) -> None:
        self._spark_facts = described(self.cluster.spark)

    def late_channels(self) -> list[LateChannel]:
        """The channels whose subscribers wait for results, and since when. Reads feed logs, so it may block."""
        return late_channels(self.cluster, self._schedule, self._clock_s())

    async def start(self) -> DataCluster:
        loop = asyncio.get_running_loop()

        def arrived(channel: ChannelName) -> None:
            with self._arriving_lock:
                is_first = not self._arriving
                self._arriving.add(channel)
            if is_first:
                _call(loop, self._all_arrived)

        self.leading.on_lost = lambda: _call(loop, self._lose_lease)
        cluster = self._cluster = await asyncio.to_thread(self._open_cluster, arrived)
        self._metrics.watch(cluster, self.missed, self.late_channels)
        self.watch = IngestionWatch(cluster, self._metrics, self._clock_s)
        await asyncio.to_thread(self._refresh_spark_facts)
        self._heartbeat = SparkHeartbeat(cluster.spark)
        self._heartbeat.start()
        self.spark_watch = SparkWatch(self._heartbeat, self._spark_deadline_s, self._lose_spark)
        await self.refresh()
        self._loops = [
            asyncio.create_task(self._drive(), name="drive"),
            asyncio.create_task(self._every(self._maintain_s, "upkeep", lambda: maintain(cluster))),
            asyncio.create_task(self._every(SWEEP_S, "sweep", OrphanSweep(cluster).sweep, at_once=True)),
            asyncio.create_task(self._every(RELEASE_S, "release of memory", release_memory)),
            asyncio.create_task(self._every(1.0, "ingestion", self.watch.check)),
            asyncio.create_task(self._every(WARM_UP_S, "warm-up", cluster.warm_up, at_once=True)),
            asyncio.create_task(self._every(FACTS_S, "state of Spark", self._refresh_spark_facts)),
            asyncio.create_task(self._watch_spark(self.spark_watch), name="watch Spark"),
        ]
        for name, reason in cluster.channels.refused.items():
            self._log.error(
                "a stored channel is refused and does not run: declare it again", channel=name, reason=reason
            )
        self._log.info(
            "data cluster ready",
            datasets=len(cluster.datasets.all()),
            channels=len(self._scheduled),
            subscriptions=len(cluster.subscriptions.book),
        )
        return cluster

    async def refresh(self) -> None:
        """Schedule the channels that exist now, after some were created, replaced or dropped."""
        live_channels = await asyncio.to_thread(self.cluster.channels.all)
        present: set[ChannelName] = set()
        for live in live_channels:
            channel = live.prepared.channel
            present.add(channel.name)
            entry = (live.epoch, channel.period_s)
            if self._scheduled.get(channel.name) == entry:
                continue
            self._scheduled[channel.name] = entry
            self._failures.pop(channel.name, None)
            self._retry_at_s.pop(channel.name, None)
            if channel.period_s is not None:
                early_s = phase_s(channel.period_s, len(self._scheduled))
                self._schedule.add_repetitive(channel.name, channel.period_s, self._clock_s() - early_s)
            else:
                self._schedule.add_continuous(channel.name)
                # Records may have come in before this process started.
                self._schedule.arrived(channel.name, self._clock_s())
        for name in self._scheduled.keys() - present:
            del self._scheduled[name]
            self._schedule.remove(name)
        reads = {
            live.name: frozenset(live.positions) for live in live_channels if live.prepared.channel.period_s is None
        }
        self._groups = joint_groups(reads, MOST_TOGETHER)
        self._regroup()
        self._wake.set()

    def missed(self, channel: str) -> int:
        """Ticks of a channel that passed while an execution of it still ran."""
        return self._schedule.missed(ChannelName(channel))

    async def execute(self, channel: str) -> StoredExecution | None:
        """Execute a channel now, for an administrator; waits for an execution in progress."""
        name = (await asyncio.to_thread(self.cluster.channel, channel)).prepared.channel.name
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._execute, self.cluster, name)

    async def replay(self, channel: str, ids: list[int] | None) -> int:
        """Match dead letters of a channel again; return how many. Waits for an execution in progress."""
        cluster = self.cluster
        return await asyncio.get_running_loop().run_in_executor(self._pool, cluster.replay, channel, ids)

    @contextmanager
    def calling_on_stop(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call `callback` if this process begins to stop inside the block: endless streams end then."""
        self._on_stop.add(callback)
        try:
            yield
        finally:
            self._on_stop.discard(callback)

    def begin_stop(self) -> None:
        """Refuse new requests and end streams. Executions in progress go on until `stop`."""
        if not self.stopping.is_set():
            self.stopping.set()
            self.leading.stop()
            self._wake.set()
            for callback in list(self._on_stop):
                callback()

    async def _watch_spark(self, watch: SparkWatch) -> None:
        while True:
            watch.check()
            await asyncio.sleep(CHECK_S)

    def _lose_spark(self, reason: str) -> None:
        self._end("Spark is lost", reason)

    def _end(self, event: str, reason: str) -> None:
        self._log.error(f"{event}: the data cluster ends and must be started again", reason=reason)
        self.lost_reason = reason
        self.begin_stop()
        self.lost.set()

    def _lose_lease(self) -> None:
        self.lease_lost = True
        self._end("the lease is lost", "another data cluster has taken over: this one commits nothing more")

    async def executions_ended(self, limit_s: float) -> None:
        """Return when the running executions have ended, or after `limit_s`.

        Executions that fail because Spark is lost store how it ended, for the search of `cluster.deaths`.
        """
        if self._running:
            await asyncio.wait(self._running, timeout=limit_s)

    async def stop(self) -> None:
        """Wait up to `stop_s` for running executions, then cancel them; close the data cluster, but not Spark."""
        self.begin_stop()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        cluster = self._cluster
        if cluster is None:
            return
        if self._running:
            self._log.info("waiting for executions", running=len(self._running))
            _, late = await asyncio.wait(self._running, timeout=self._stop_s)
            if late:
                self._log.warning("executions cancelled; the next start repeats them", running=len(late))
                with suppress(Exception):
                    await asyncio.to_thread(cluster.spark.sparkContext.cancelAllJobs)
                await asyncio.wait(late, timeout=5)
        for pool in (self._pool, self._continuous_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(cluster.close)
        self._log.info("data cluster closed")

    # -- channels --------------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        """Start the channels that are due, then wait for the next tick or for NEW records."""
        while not self.stopping.is_set():
            self._wake.clear()
            for names in self._together(self._schedule.take_due(self._clock_s())):
                task = asyncio.create_task(self._run(names[0]) if len(names) == 1 else self._run_together(names))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            wait_s = self._schedule.wait_s(self._clock_s())
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    def _regroup(self) -> None:
        """Let the channels of a group start together, except those that run apart."""
        self._schedule.groups = {name: group for name, group in self._groups.items() if name not in self._apart}

    def _together(self, due: list[ChannelName]) -> list[list[ChannelName]]:
        """The channels that run together, those that wait longest first. A repetitive channel runs by itself."""
        groups: dict[int | ChannelName, list[ChannelName]] = {}
        for name in due:
            groups.setdefault(self._schedule.groups.get(name, name), []).append(name)
        return list(groups.values())

    async def _run_together(self, names: list[ChannelName]) -> None:
        """Execute continuous channels as far as possible together, and the others of them one by one."""
        assert self._cluster is not None
        entries = {name: self._scheduled.get(name) for name in names}
        loop = asyncio.get_running_loop()
        began_s = self._clock_s()
        try:
            outcome = await loop.run_in_executor(self._continuous_pool, self._execute_together, self._cluster, names)
        except Exception as error:
            outcome = JointOutcome(failure=error)
        if (group := self._schedule.groups.get(names[0])) is not None:
            ended_s = self._clock_s()
            self._schedule.rest(group, ended_s + rest_s(ended_s - began_s))
        if outcome.failure is not None:
            self._joint_failures += 1
            if is_worth_logging(self._joint_failures) and not self.lost.is_set():
                reason = str(outcome.failure).partition("\n")[0]
                self._log.warning("a joint execution failed; its channels run one by one", reason=reason)
        elif outcome.done:
            self._joint_failures = 0
        if outcome.apart:
            self._apart |= outcome.apart
            self._regroup()
        for name in outcome.done:
            self._failures.pop(name, None)
            self._finish(name, entries[name], succeeded=True)
        await asyncio.gather(*(self._run(name) for name in names if name not in outcome.done))

    async def _run(self, name: ChannelName) -> None:
        assert self._cluster is not None
        entry = self._scheduled.get(name)
        succeeded = False
        pool = self._continuous_pool if entry is not None and entry[1] is None else self._pool
        try:
            await asyncio.get_running_loop().run_in_executor(pool, self._execute, self._cluster, name)
            self._failures.pop(name, None)
            succeeded = True
        except Exception as error:
            self._record_failure(name, error)
        finally:
            self._finish(name, entry, succeeded=succeeded)

    def _finish(self, name: ChannelName, entry: tuple[int, float | None] | None, *, succeeded: bool) -> None:
        if name in self._apart:
            self._apart[name] -= 1
            if self._apart[name] < 0:
                del self._apart[name]
                self._regroup()
        if self._scheduled.get(name) == entry:  # else the channel was replaced, and the new one is not running
            missed = self._schedule.finished(name, self._clock_s(), succeeded=succeeded)
            if missed:
                self._log.warning("execution overran its period", channel=name, missed_ticks=missed)
        self._wake.set()

    def _execute_together(self, cluster: DataCluster, names: list[ChannelName]) -> JointOutcome:
        before = {live.name: live.executions for live in cluster.channels.all()}
        outcome = cluster.execute_together(names)
        for live in cluster.channels.all():
            if live.name in outcome.done:
                self._count(live, before.get(live.name), outcome.done[live.name])
        return outcome

    def _execute(self, cluster: DataCluster, name: ChannelName) -> StoredExecution | None:
        before = cluster.channel(name).executions
        execution = cluster.execute(name)
        live = cluster.channel(name)
        while live.notices:
            self._log.warning("bad value set aside", channel=name, notice=live.notices.popleft())
        self._count(live, before, execution)
        return execution

    def _count(self, live: LiveChannel, before: int | None, execution: StoredExecution | None) -> None:
        """Count an execution in the metrics. `before` are the executions of the channel before it."""
        if live.executions != before and live.last_duration_s is not None:
            self._metrics.duration.labels(live.name).observe(live.last_duration_s)
        if execution is not None:
            self._metrics.results.labels(live.name).inc(execution.results)
            self._metrics.result_bytes.labels(live.name).inc(execution.bytes)

    def _record_failure(self, name: ChannelName, error: Exception) -> None:
        if isinstance(error, TocsinError) and error.code is Code.UNKNOWN_CHANNEL:
            return  # the channel was dropped before its turn
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        reason = str(error).partition("\n")[0]
        assert self._cluster is not None
        with suppress(TocsinError):
            live = self._cluster.channel(name)
            live.failures += 1
            live.last_error = reason
        wait_s = retry_delay_s(failures)
        if is_worth_logging(failures) and not self.lost.is_set():
            first = error if failures == 1 else None  # one stack trace is enough
            self._log.error("execution failed", channel=name, reason=reason, in_a_row=failures, exc_info=first)
        if name in self._scheduled and self._scheduled[name][1] is None:
            # A continuous channel has no next tick at which it would be retried.
            self._retry_at_s[name] = self._clock_s() + wait_s
            asyncio.get_running_loop().call_later(wait_s, self._retry, name)

    def _retry(self, name: ChannelName) -> None:
        self._retry_at_s.pop(name, None)
        self._arrived(name)

    def _all_arrived(self) -> None:
        with self._arriving_lock:
            names, self._arriving = self._arriving, set()
        for name in names:
            self._arrived(name)

    def _arrived(self, name: ChannelName) -> None:
        if name not in self._retry_at_s:
            self._schedule.arrived(name, self._clock_s())
            self._wake.set()

    # -- upkeep ----------------------------------------------------------------------------------------------------

    async def _every(self, pause_s: float, task: str, work: Callable[[], Any], *, at_once: bool = False) -> None:
        """Run `work` in a thread, then pause, for ever. An error is logged, and the next round retries."""
        if not at_once:
            await asyncio.sleep(pause_s)
        failures = 0
        while True:
            try:
                await asyncio.to_thread(work)
                failures = 0
            except Exception as error:
                failures += 1
                if is_worth_logging(failures) and not self.stopping.is_set():
                    first = error if failures == 1 else None  # one stack trace is enough
                    reason = str(error).partition("\n")[0]
                    self._log.error(
                        f"{task} failed and will be retried", reason=reason, in_a_row=failures, exc_info=first
                    )
            await asyncio.sleep(pause_s)


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call it on the loop, from any thread."""
    with suppress(RuntimeError):  # the loop is closed; the next start looks for NEW records
        loop.call_soon_threadsafe(callback)
