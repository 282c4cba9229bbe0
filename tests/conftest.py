"""Fixtures for all tests: one Spark session for the whole run, and data clusters in their own folders."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog

from tests import object_storage
from tests.object_storage import ObjectStore, use_credentials
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.feed.gateway import Accepted, RecordForm
from tocsin.cluster.retention import Uptime
from tocsin.cluster.settings import ClusterSettings
from tocsin.cluster.spark.session import Session, make_session, require_java
from tocsin.model.ids import ChannelName
from tocsin.runtime.http.logs import configure_logs
from tocsin.wire.errors import TocsinError

ClusterAt = Callable[..., DataCluster]
use_credentials()
# For every Java process that a test starts, directly or not: in a minute, the optimising compiler and the parallel
# collector do not pay off.
os.environ["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Background jobs of a script ignore Ctrl-C. Without this line, so would the processes that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A failing run must fail again, so examples are drawn from the test's own text. To search for new examples, run
# `make test PYTEST_ARGS="--hypothesis-profile=explore tests/policies"`.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", derandomize=False, deadline=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture
def log_lines() -> Iterator[io.StringIO]:
    """All log lines of this process, as JSON. An earlier test may have sent them elsewhere."""
    root = logging.getLogger()
    before = (root.handlers, root.level)
    stream = io.StringIO()
    configure_logs("debug", "json", stream)
    yield stream
    root.handlers, level = before
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One shared local session: starting Spark takes longer than most tests."""
    try:
        require_java()
    except TocsinError as error:
        pytest.skip(error.message)
    warehouse = tmp_path_factory.mktemp("warehouse")
    own = {"spark.driver.memory": "2g", "spark.sql.warehouse.dir": str(warehouse), "spark.app.name": "tests"}
    session = make_session("local[2]", own)
    yield session
    session.stop()


class Clock:
    """Wall time that a test may step or freeze, and the time that passes."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        """How far the wall clock was set forward."""
        self.passed_s = 0.0
        """Time that has passed in the test, besides the real one."""
        self.frozen_s: float | None = None

    def __call__(self) -> float:
        return time.time() + self.ahead_s + self.passed_s if self.frozen_s is None else self.frozen_s

    def uptime(self) -> Uptime:
        return Uptime(lambda: time.monotonic() + self.passed_s, "this boot")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster_at(spark: Session, clock: Clock, tmp_path: Path) -> Iterator[ClusterAt]:
    """`cluster_at(root)` opens a data cluster. A second call with the same root restarts it: it closes the first.

    With `store`, the data is in object storage, and the folder `root` has the local state.
    """
    opened: dict[Path, DataCluster] = {}

    def open_cluster(
        root: Path = tmp_path / "data",
        arrived: Callable[[ChannelName], None] | None = None,
        store: ObjectStore | None = None,
        **settings: Any,
    ) -> DataCluster:
        if root in opened:
            opened[root].close()
        place = {"root": str(root)} if store is None else store.settings(root)
        own = ClusterSettings(**place | {"files": str(tmp_path)} | settings)
        opened[root] = DataCluster(spark, own, clock, arrived, clock.uptime())
        return opened[root]

    yield open_cluster
    for cluster in opened.values():
        cluster.close()


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """A real S3 server."""
    yield from object_storage.running_or_skipped()


def publish(cluster: DataCluster, dataset: str, records: Sequence[dict[str, Any]]) -> Accepted:
    """Publish records through the gateway. They are in the dataset when this returns."""
    gateway = cluster.gateway(dataset)
    outcome = gateway.accept(json.dumps(list(records)).encode(), RecordForm.JSON)
    assert isinstance(outcome, Accepted), outcome
    gateway.sync()
    cluster.catch_up(dataset)
    return outcome


def results_of(cluster: DataCluster, channel: str, after: int = 0) -> dict[tuple[object, ...], list[dict[str, Any]]]:
    """Every stored result of a channel from an offset on, by the parameter values of its subscription."""
    live = cluster.channel(channel)
    rows = list(cluster.catalog.subscriptions.of_channel(live.prepared.channel.name))
    values = {number: tuple(json.loads(parameters)) for number, _, parameters in rows}
    results: dict[tuple[object, ...], list[dict[str, Any]]] = {key: [] for key in values.values()}
    for table in cluster.results.read(live.prepared.channel.name, live.epoch, dict.fromkeys(values, after)):
        for row in table.to_pylist():
            own = {name: value for name, value in row.items() if not name.startswith("_tocsin")}
            results[values[row["_tocsin_subscription"]]].append(own)
    return results
