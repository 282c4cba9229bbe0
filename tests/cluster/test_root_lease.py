"""Two processes on one data root: one writes, and the other takes over only when the first can write no more."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import postgresql
from tests.cluster.emergency import APPLICATION, NORTH, declare, report
from tests.conftest import Clock, publish
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.feed.gateway import RecordForm
from tocsin.cluster.root_lease import RootLease
from tocsin.cluster.settings import ClusterSettings
from tocsin.cluster.spark.session import Session
from tocsin.database.lease import LeaseLost
from tocsin.wire.errors import Code, TocsinError

LEASE_S = 2.0


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    yield from postgresql.running_or_skipped()


@pytest.fixture
def settings(server: str, tmp_path: Path) -> ClusterSettings:
    postgresql.make_empty(server)
    return ClusterSettings(root=str(tmp_path / "data"), files=str(tmp_path), catalog=server)


def stop_renewing(lease: RootLease) -> None:
    """As if the process were stopped: its thread renews nothing more."""
    lease.lease._ended.set()


def test_second_process_on_one_machine_is_refused_with_either_catalog(
    settings: ClusterSettings, tmp_path: Path
) -> None:
    first = RootLease(settings, LEASE_S)
    first.acquire()
    with pytest.raises(TocsinError) as error:
        RootLease(settings, LEASE_S).acquire()
    assert error.value.code is Code.IN_USE
    first.release()
    local = ClusterSettings(root=str(tmp_path / "local"))
    held = RootLease(local)
    held.acquire()
    with pytest.raises(TocsinError, match="another process"):
        RootLease(local)
    held.release()


def test_dead_leader_on_the_same_machine_is_followed_at_once(settings: ClusterSettings) -> None:
    first = RootLease(settings, 3_600.0)
    first.acquire()
    stop_renewing(first)
    first._unlock()  # the kernel does this when the process ends
    second = RootLease(settings, 3_600.0)
    assert second.acquire() and second.lease.is_clean and second.lease.epoch == first.lease.epoch + 1
    second.release()
    first.release()


def test_local_lock_needs_no_renewals(tmp_path: Path) -> None:
    lease = RootLease(ClusterSettings(root=str(tmp_path)))
    lease.acquire()
    assert lease.lease.is_held() and lease.lease.is_clean and math.isinf(lease.lease._until_s)
    lease.release()
    assert not lease.lease.is_held()


@pytest.mark.spark
def test_standby_continues_and_the_former_leader_commits_nothing(
    spark: Session, clock: Clock, settings: ClusterSettings
) -> None:
    first = RootLease(settings, LEASE_S)
    first.acquire()
    former = DataCluster(spark, settings, clock, uptime=clock.uptime(), lease=first)
    declare(former, APPLICATION)
    reports = [report(str(number)) for number in range(20)]
    publish(former, "Reports", reports[:10])
    gateway = former.gateway("Reports")
    gateway.accept(b'[{"id": "10", "kind": "fire", "severity": 3}]', RecordForm.JSON)
    gateway.sync()  # acknowledged, and not in the dataset
    former.datasets.get("Reports").stop_query()
    stop_renewing(first)

    second = RootLease(settings, LEASE_S)
    lost = threading.Event()
    first.lease.on_lost = lost.set
    assert second.acquire(standby=True) and not second.lease.is_clean
    assert not first.lease.is_held(), "the former leader stops acknowledging before its lease can be taken"
    standby = DataCluster(spark, settings, clock, uptime=clock.uptime(), lease=second)
    standby.catch_up("Reports")
    assert standby.dataset("Reports").writer.version > 0
    assert publish(standby, "Reports", reports[:11]).duplicates == 11

    with pytest.raises(LeaseLost):
        former.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    assert lost.is_set()
    former.close()
    assert publish(standby, "Reports", reports).accepted == 9
    standby.close()
