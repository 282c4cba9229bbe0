"""Streaming queries that died are started again, with growing pauses; until they live, the process is not ready.

Called about once a second from a thread. The queries themselves are the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tocsin.cluster.engine import DataCluster
from tocsin.cluster.server.metrics import Metrics
from tocsin.runtime.http.backoff import delay_s
from tocsin.runtime.http.logs import logger

HEALTHY_AFTER_S = 5.0
"""A query that has lived this long since its restart has recovered."""


@dataclass(slots=True)
class _Down:
    reason: str
    failures: int
    restart_at_s: float
    restarted_at_s: float | None = None


class IngestionWatch:
    def __init__(self, cluster: DataCluster, metrics: Metrics, clock_s: Callable[[], float]) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._clock_s = clock_s
        self._log = logger()
        self._down: dict[str, _Down] = {}

    def reasons(self) -> list[str]:
        return [f"{name}: {down.reason}" for name, down in sorted(self._down.items())]

    def start(self, dataset: str) -> None:
        """Begin to move a dataset's records, because some were accepted; cheap when that is under way."""
        name = f"ingestion of {dataset}"
        try:
            self._cluster.datasets.start_ingestion(dataset)
        except Exception as error:
            self._note(name, str(error).partition("\n")[0], self._clock_s())

    def look(self) -> None:
        before, seen = set(self._down), set()
        for name, failure, restart in self._queries():
            seen.add(name)
            self._judge(name, failure(), restart)
        for name in before - seen:  # dropped; not one that `start` noted while this looked
            self._down.pop(name, None)

    def _queries(self) -> Iterator[tuple[str, Callable[[], str | None], Callable[[], None]]]:
        datasets = self._cluster.datasets
        for live in datasets.all():
            name, query = live.dataset.name, live.query
            waiting = f"ingestion of {name}" in self._down
            if query is not None:
                yield f"ingestion of {name}", query.failure, _later(datasets.restart_ingestion, name)
            elif waiting:
                yield f"ingestion of {name}", lambda: "not started", _later(datasets.restart_ingestion, name)
        for feed in datasets.feeds():
            yield f"feed {feed.feed.name}", feed.query.failure, _later(datasets.restart_feed, feed.feed.name)

    def _judge(self, name: str, failure: str | None, restart: Callable[[], None]) -> None:
        now_s = self._clock_s()
        down = self._down.get(name)
        if failure is None:
            if down is not None and down.restarted_at_s is not None and now_s - down.restarted_at_s > HEALTHY_AFTER_S:
                self._log.info("query lives again", query=name)
                del self._down[name]
            return
        if down is None or down.restarted_at_s is not None:
            down = self._note(name, failure, now_s)
        if now_s < down.restart_at_s:
            return
        self._metrics.restarts.labels(name).inc()
        try:
            restart()
            down.restarted_at_s = now_s
        except Exception as error:
            self._note(name, str(error).partition("\n")[0], now_s)

    def _note(self, name: str, reason: str, now_s: float) -> _Down:
        before = self._down.get(name)
        failures = 1 if before is None else before.failures + 1
        wait_s = delay_s(failures)
        self._log.error("query died", query=name, reason=reason, restart_in_s=wait_s)
        self._down[name] = down = _Down(reason, failures, now_s + wait_s)
        return down


def _later(restart: Callable[[str], None], name: str) -> Callable[[], None]:
    return lambda: restart(name)
