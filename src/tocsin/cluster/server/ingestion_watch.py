"""Restarts streaming queries that failed, with growing pauses. The process is not ready while one is down.

The process calls `check` about once a second, from a thread. The engine owns the queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tocsin.cluster.engine import DataCluster
from tocsin.cluster.server.metrics import ClusterMetrics
from tocsin.cluster.spark.errors import first_line
from tocsin.model.backoff import retry_delay_s
from tocsin.runtime.http.logs import logger

HEALTHY_AFTER_S = 5.0
"""A query that has run this long since its restart has recovered."""


@dataclass(slots=True)
class _FailedQuery:
    reason: str
    failures: int
    restart_at_s: float
    restarted_at_s: float | None = None
    """When the query was restarted; None before the restart."""


class IngestionWatch:
    def __init__(self, cluster: DataCluster, metrics: ClusterMetrics, clock_s: Callable[[], float]) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._clock_s = clock_s
        self._log = logger()
        self._failed: dict[str, _FailedQuery] = {}

    def reasons(self) -> list[str]:
        """Why the process is not ready; empty if every query runs."""
        return [f"{name}: {failed.reason}" for name, failed in sorted(self._failed.items())]

    def start(self, dataset: str) -> None:
        """Start the ingestion of a dataset that has accepted records; cheap if it runs already."""
        try:
            self._cluster.datasets.start_ingestion(dataset)
        except Exception as error:
            self._record_failure(_ingestion_of(dataset), first_line(error), self._clock_s())

    def check(self) -> None:
        """Check every query once, and restart those whose pause is over."""
        for dataset in self._cluster.datasets.with_records_of_other_gateways():
            if _ingestion_of(dataset) not in self._failed:
                self.start(dataset)
        before, present = set(self._failed), set()
        for name, failure, restart in self._queries():
            present.add(name)
            self._check_query(name, failure(), restart)
        # Forget dropped queries, but not a failure that `start` recorded during this loop.
        for name in before - present:
            self._failed.pop(name, None)

    def _queries(self) -> Iterator[tuple[str, Callable[[], str | None], Callable[[], None]]]:
        """(name, function that returns the failure, function that restarts it) of every query."""
        for live in self._cluster.datasets.all():
            dataset, query = live.dataset.name, live.query
            name = _ingestion_of(dataset)
            if query is not None:
                yield name, query.failure, partial(self._cluster.datasets.restart_ingestion, dataset)
            elif name in self._failed:
                yield name, lambda: "not started", partial(self._cluster.datasets.restart_ingestion, dataset)
        for feed in self._cluster.datasets.feeds():
            yield (
                f"feed {feed.feed.name}",
                feed.query.failure,
                partial(self._cluster.datasets.restart_feed, feed.feed.name),
            )

    def _check_query(self, name: str, failure: str | None, restart: Callable[[], None]) -> None:
        now_s = self._clock_s()
        failed = self._failed.get(name)
        if failure is None:
            restarted_at_s = None if failed is None else failed.restarted_at_s
            if restarted_at_s is not None and now_s - restarted_at_s > HEALTHY_AFTER_S:
                self._log.info("query recovered", query=name)
                del self._failed[name]
            return
        if failed is None or failed.restarted_at_s is not None:
            failed = self._record_failure(name, failure, now_s)
        if now_s < failed.restart_at_s:
            return
        self._metrics.restarts.labels(name).inc()
        try:
            restart()
            failed.restarted_at_s = now_s
        except Exception as error:
            self._record_failure(name, first_line(error), now_s)

    def _record_failure(self, name: str, reason: str, now_s: float) -> _FailedQuery:
        before = self._failed.get(name)
        failures = 1 if before is None else before.failures + 1
        wait_s = retry_delay_s(failures)
        self._log.error("query failed", query=name, reason=reason, restart_in_s=wait_s)
        self._failed[name] = failed = _FailedQuery(reason, failures, now_s + wait_s)
        return failed


def _ingestion_of(dataset: str) -> str:
    return f"ingestion of {dataset}"
