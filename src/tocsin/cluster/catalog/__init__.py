"""What the data cluster must not forget: see `catalog.catalog`."""

from tocsin.cluster.catalog.catalog import GENERATION, Catalog, dataset_owner, results_owner
from tocsin.cluster.catalog.tables import (
    NewFile,
    StoredChannel,
    StoredDataset,
    StoredExecution,
    StoredFeed,
    StoredFile,
    StoredSubscription,
)

__all__ = [
    "GENERATION",
    "Catalog",
    "NewFile",
    "StoredChannel",
    "StoredDataset",
    "StoredExecution",
    "StoredFeed",
    "StoredFile",
    "StoredSubscription",
    "dataset_owner",
    "results_owner",
]
