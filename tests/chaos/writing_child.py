"""Stores records and facts, and prints an acknowledgement for each; test_unsynced_writes.py records its system calls.

python writing_child.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from tocsin.cluster.catalog import Catalog
from tocsin.cluster.feed.gateway import Accepted, FeedGateway, FeedLimits, RecordForm
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName
from tocsin.model.schema import Column, Schema

LIMITS = FeedLimits(segment_bytes=2_000, memory_keys=30)
"""Small, so that a short run begins and trims several segments and writes key files."""
REQUESTS = 40
INGESTED = "ingested"


def dataset() -> Dataset:
    schema = Schema((Column("id", "STRING"), Column("text", "STRING")))
    return Dataset(DatasetName("Reports"), DatasetKind.STREAM, schema, key=("id",), retain_s=86_400.0)


def open_store(folder: Path) -> tuple[FeedGateway, Catalog]:
    return FeedGateway(dataset(), folder / "feed", LIMITS, time.time), Catalog(f"sqlite:///{folder / 'catalog.sqlite'}")


def acknowledge(kind: str, name: str) -> None:
    os.write(1, f"{kind} {name}\n".encode())


def main(folder: Path) -> None:
    gateway, catalog = open_store(folder)
    acknowledge("open", "-")
    for request in range(REQUESTS):
        names = [f"{request}-{index}" for index in range(3)]
        body = json.dumps([{"id": name, "text": "x" * 60} for name in names]).encode()
        outcome = gateway.accept(body, RecordForm.JSON, f"key-{request}")
        assert isinstance(outcome, Accepted)
        gateway.sync()
        for name in names:
            acknowledge("record", f"{name} {outcome.position}")
        if request % 4 == 3:
            # As ingestion does: the catalog has the position first, then the log may be trimmed.
            catalog.set_fact(INGESTED, str(outcome.position))
            acknowledge("ingested", str(outcome.position))
            gateway.ingested(outcome.position)
            gateway.maintain()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
