"""A failed streaming query is restarted with growing pauses, and the process is not ready meanwhile."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

from tocsin.cluster.engine import DataCluster
from tocsin.cluster.server.ingestion_watch import HEALTHY_AFTER_S, IngestionWatch
from tocsin.cluster.server.metrics import ClusterMetrics


class Engine:
    """An engine with one dataset, whose query fails on demand."""

    def __init__(self) -> None:
        self.failure: str | None = None
        self.restarts = 0
        self.recovers = False
        self.now_s = 0.0
        query = SimpleNamespace(failure=lambda: self.failure)
        self._live: Any = SimpleNamespace(dataset=SimpleNamespace(name="D"), query=query)

    @property
    def datasets(self) -> Engine:
        return self

    def all(self) -> list[Any]:
        return [self._live]

    def with_records_of_other_gateways(self) -> list[str]:
        return []

    def feeds(self) -> list[Any]:
        return []

    def restart_ingestion(self, name: str) -> None:
        assert name == "D"
        self.restarts += 1
        if self.recovers:
            self.failure = None


def watching(engine: Engine) -> IngestionWatch:
    return IngestionWatch(cast(DataCluster, engine), ClusterMetrics(), lambda: engine.now_s)


def test_running_query_is_not_restarted() -> None:
    engine = Engine()
    watch = watching(engine)
    watch.check()
    assert engine.restarts == 0 and watch.reasons() == []


def test_failed_start_during_a_check_is_kept() -> None:
    engine = Engine()
    watch = watching(engine)

    def fails(_: str) -> None:
        raise OSError("no memory")

    def failure() -> None:
        engine.start_ingestion = fails  # type: ignore[attr-defined]
        watch.start("E")

    engine._live.query.failure = failure
    watch.check()
    assert watch.reasons() == ["ingestion of E: no memory"]


def test_failed_query_is_restarted_after_a_pause_and_recovers() -> None:
    engine = Engine()
    engine.failure, engine.recovers = "the disk is gone", True
    watch = watching(engine)
    watch.check()
    assert engine.restarts == 0 and watch.reasons() == ["ingestion of D: the disk is gone"]
    engine.now_s = 1.0
    watch.check()
    assert engine.restarts == 1 and watch.reasons()
    engine.now_s = 2.0
    watch.check()
    assert watch.reasons(), "the query may fail again"
    engine.now_s = 1.5 + HEALTHY_AFTER_S
    watch.check()
    assert watch.reasons() == []


def test_pauses_grow_while_restarts_fail() -> None:
    engine = Engine()
    engine.failure = "still gone"
    watch = watching(engine)
    restarted_at_s = []
    for tenth in range(1_300):
        engine.now_s = tenth / 10
        before = engine.restarts
        watch.check()
        if engine.restarts > before:
            restarted_at_s.append(engine.now_s)
    pauses_s = [later - earlier for earlier, later in pairwise(restarted_at_s)]
    assert pauses_s == sorted(pauses_s) and pauses_s[-1] > 30
