"""Fixtures for tests of the data cluster on real Spark."""

from __future__ import annotations

import pytest

from tests.cluster.emergency import APPLICATION, declare
from tests.conftest import ClusterAt
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.store import smalltables


@pytest.fixture
def cluster(cluster_at: ClusterAt) -> DataCluster:
    cluster = cluster_at()
    declare(cluster, APPLICATION)
    return cluster


@pytest.fixture(params=["cached in memory", "read from files"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with small datasets cached in memory, and with all datasets read by Spark."""
    if request.param == "read from files":
        monkeypatch.setattr(smalltables, "SMALL_TABLE_ROWS", 0)
