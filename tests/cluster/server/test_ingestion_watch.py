"""A streaming query that died comes back, with growing pauses, and readiness says so meanwhile."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

from tocsin.cluster.engine import DataCluster
from tocsin.cluster.server.ingestion_watch import HEALTHY_AFTER_S, IngestionWatch
from tocsin.cluster.server.metrics import Metrics


class Engine:
    """One dataset whose query does as it is told."""

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

    def feeds(self) -> list[Any]:
        return []

    def restart_ingestion(self, name: str) -> None:
        assert name == "D"
        self.restarts += 1
        if self.recovers:
            self.failure = None


def watching(engine: Engine) -> IngestionWatch:
    return IngestionWatch(cast(DataCluster, engine), Metrics(), lambda: engine.now_s)


def test_a_query_that_lives_is_left_alone() -> None:
    engine = Engine()
    watch = watching(engine)
    watch.look()
    assert engine.restarts == 0 and watch.reasons() == []


def test_a_failure_to_start_that_is_noted_while_it_looks_is_kept() -> None:
    engine = Engine()
    watch = watching(engine)

    def fails(_: str) -> None:
        raise OSError("no memory")

    def failure() -> None:
        engine.start_ingestion = fails  # type: ignore[attr-defined]
        watch.start("E")

    engine._live.query.failure = failure
    watch.look()
    assert watch.reasons() == ["ingestion of E: no memory"]


def test_a_dead_query_is_restarted_after_a_pause_and_counts_as_down_until_it_has_lived_a_while() -> None:
    engine = Engine()
    engine.failure, engine.recovers = "the disk is gone", True
    watch = watching(engine)
    watch.look()
    assert engine.restarts == 0 and watch.reasons() == ["ingestion of D: the disk is gone"]
    engine.now_s = 1.0
    watch.look()
    assert engine.restarts == 1 and watch.reasons()
    engine.now_s = 2.0
    watch.look()
    assert watch.reasons(), "it may die again"
    engine.now_s = 1.5 + HEALTHY_AFTER_S
    watch.look()
    assert watch.reasons() == []


def test_pauses_grow_while_it_keeps_dying() -> None:
    engine = Engine()
    engine.failure = "still gone"
    watch = watching(engine)
    restarted_at_s = []
    for tenth in range(1_300):
        engine.now_s = tenth / 10
        before = engine.restarts
        watch.look()
        if engine.restarts > before:
            restarted_at_s.append(engine.now_s)
    pauses_s = [later - earlier for earlier, later in pairwise(restarted_at_s)]
    assert pauses_s == sorted(pauses_s) and pauses_s[-1] > 30
