"""The present release on a data root of an earlier one (tests/stored/README.md says what is in it)."""

from __future__ import annotations

import asyncio
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.conftest import COORDINATOR, Network
from tocsin.client import Recovered, Result
from tocsin.cluster.spark.session import require_java
from tocsin.runtime.stack.stack import StackSettings
from tocsin.wire.errors import TocsinError

STORED = Path(__file__).parent.parent / "stored" / "e786fdd.tar.xz"


@pytest.fixture
def updated(tmp_path: Path) -> Iterator[Network]:
    try:
        require_java()
    except TocsinError as error:
        pytest.skip(error.message)
    with tarfile.open(STORED) as archive:
        archive.extractall(tmp_path / "root", filter="data")
    (tmp_path / "logs").mkdir()
    settings = StackSettings(
        tmp_path / "root",
        1,
        free_ports=True,
        logs=tmp_path / "logs",
        coordinator=COORDINATOR,
        cluster={"master": "local[2]"},
    )
    network = Network(settings)
    yield network
    network.stop()


async def notifications(network: Network, count: int) -> list[tuple[str, str]]:
    """(channel, report) of the next results of ann. A gap fails the test."""
    found: list[tuple[str, str]] = []
    async with network.subscriber("ann") as subscriber, asyncio.timeout(90):
        async for notification in subscriber:
            if isinstance(notification, Recovered):
                assert notification.complete, notification
                continue
            assert isinstance(notification, Result), notification
            found.append((notification.channel, notification.value["id"]))
            if len(found) == count:
                return found
    raise AssertionError("the subscriber ended")


def formats(database: Path) -> dict[str, int]:
    connection = sqlite3.connect(database)
    try:
        return dict(connection.execute("SELECT store, format FROM stored_formats"))
    finally:
        connection.close()


def test_results_of_an_earlier_release_arrive_once_and_without_a_gap(updated: Network, tmp_path: Path) -> None:
    """Results that ann had not fetched, and a record that was acknowledged just before all processes were killed."""
    left = updated.run(notifications(updated, 5))
    assert sorted(left) == [("NearMe", "r3"), ("NearMe", "r4"), ("NearMe", "r5"), ("OfKind", "r3"), ("OfKind", "r5")]
    record = {"id": "r6", "kind": "fire", "severity": 6, "lat": 52.5, "lon": 13.4, "at": "2026-11-18T12:00:00Z"}
    again = record | {"id": "r5", "severity": 5}
    published = updated.run(updated.publisher.publish("Reports", [again, record]))
    assert (published.accepted, published.duplicates) == (1, 1)
    assert sorted(updated.run(notifications(updated, 2))) == [("NearMe", "r6"), ("OfKind", "r6")]
    assert formats(tmp_path / "root/state/catalog.sqlite") == {"data root": 3, "leases": 1}
    assert formats(tmp_path / "root/coordinator/coordinator.sqlite") == {"coordinator's store": 1, "leases": 1}
