"""What a gateway process does beside accepting records, without a server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.cluster.catalog import Catalog
from tocsin.cluster.feed.gateway import RecordForm
from tocsin.cluster.feed.outcomes import FeedLimits
from tocsin.cluster.feed.shared_gateway import new_seed
from tocsin.cluster.server.gateway.process import SharedDatasets
from tocsin.cluster.settings import ClusterSettings
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName
from tocsin.model.schema import Schema

REPORTS = Dataset(DatasetName("Reports"), DatasetKind.STREAM, Schema.of(id="STRING"), key=("id",), retain_s=3600.0)


@pytest.fixture
def datasets(tmp_path: Path) -> Iterator[SharedDatasets]:
    settings = ClusterSettings(root=str(tmp_path), log="shared", limits=FeedLimits(memory_keys=1))
    settings.state_folder().mkdir(parents=True)
    catalog = Catalog(settings.catalog_url())
    catalog.datasets.create(REPORTS, catalog.next_generation(), new_seed())
    datasets = SharedDatasets(settings)
    yield datasets
    datasets.close()
    catalog.close()


def test_index_of_keys_does_not_grow_for_ever(datasets: SharedDatasets, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = datasets.gateway("Reports")
    assert gateway._keys is not None
    folder = gateway._keys._folder

    def publish(*names: str) -> None:
        gateway.accept(json.dumps([{"id": name} for name in names]).encode(), RecordForm.JSON)
        gateway.sync()

    for number in range(9):
        publish(f"r{number}")
    assert len(list(folder.glob("*.keys"))) == 8
    datasets.maintain()
    assert len(list(folder.glob("*.keys"))) < 4, "files of similar size are merged"
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 3_700)
    publish("later", "last")
    datasets.maintain()
    publish("more")
    assert len(list(folder.glob("*.keys"))) <= 2, "expired keys are deleted"
