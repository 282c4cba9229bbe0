"""Pulls from the catalog and the files alone give what the data cluster gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cluster.emergency import NORTH, SOUTH, report
from tests.conftest import publish
from tocsin.cluster.catalog import Catalog
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.pulling import Pulled, ResultSource, open_pull, pulled
from tocsin.cluster.stored_results import StoredResults
from tocsin.cluster.upkeep import merge_channel
from tocsin.model.ids import SubscriptionId
from tocsin.wire.errors import Code, TocsinError

pytestmark = pytest.mark.spark


@pytest.fixture
def stored(cluster: DataCluster) -> Iterator[StoredResults]:
    catalog = Catalog(cluster.settings.catalog_url(), as_it_is=True)
    yield StoredResults(catalog, cluster.storage)
    catalog.close()


def rows(source: ResultSource, channel: str, wanted: Mapping[SubscriptionId, str | None]) -> list[Pulled]:
    pull = open_pull(source, channel, wanted)
    return sorted(row for page in pulled(source.results, pull) for row in page)


def test_files_and_catalog_give_the_results_of_the_data_cluster(cluster: DataCluster, stored: StoredResults) -> None:
    granted = cluster.subscribe("OfKind", [{"kind": "fire"}, {"kind": "flood"}], NORTH)
    wanted = {subscription.id: str(subscription.cursor) for subscription in granted}
    assert rows(stored, "OfKind", wanted) == [], "the columns are known before the first result"
    for number in range(3):
        publish(cluster, "Reports", [report(f"a{number}"), report(f"b{number}", "flood")])
        cluster.execute("OfKind")
    assert (
        rows(stored, "ofkind", wanted) == rows(cluster, "OfKind", wanted) and len(rows(stored, "OfKind", wanted)) == 6
    )
    assert stored.head_of("OfKind") == cluster.head_of("OfKind")
    before = open_pull(stored, "OfKind", wanted)
    merge_channel(cluster, cluster.channel("OfKind"), fan_in=2)
    cluster.garbage.collect()
    assert rows(stored, "OfKind", wanted) == rows(cluster, "OfKind", wanted)
    assert before.upto == stored.head_of("OfKind").upto


def test_only_holders_are_recognised(cluster: DataCluster, stored: StoredResults) -> None:
    [granted] = cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    pull = open_pull(stored, "OfKind", {granted.id: None})
    assert pull.not_held_by(stored, lambda broker: broker == NORTH) is None
    assert pull.not_held_by(stored, lambda broker: broker == SOUTH) == granted.id


def test_unknown_channel_and_missing_catalog_are_refused(stored: StoredResults, tmp_path: Path) -> None:
    with pytest.raises(TocsinError) as unknown:
        stored.head_of("Nothing")
    assert unknown.value.code is Code.UNKNOWN_CHANNEL
    with pytest.raises(TocsinError, match="no data root yet"):
        Catalog(f"sqlite:///{tmp_path / 'new.sqlite'}", as_it_is=True)
