"""The data cluster's stored state: see `catalog.catalog`."""

from tocsin.cluster.catalog.catalog import Catalog
from tocsin.cluster.catalog.files import dataset_owner, results_owner
from tocsin.cluster.catalog.tables import (
    NewFile,
    StoredChannel,
    StoredDataset,
    StoredExecution,
    StoredFeed,
    StoredFile,
    StoredSubscription,
    WriteId,
)

__all__ = [
    "Catalog",
    "NewFile",
    "StoredChannel",
    "StoredDataset",
    "StoredExecution",
    "StoredFeed",
    "StoredFile",
    "StoredSubscription",
    "WriteId",
    "dataset_owner",
    "results_owner",
]
