"""The data cluster's stored state: see `catalog.catalog`."""

from tocsin.cluster.catalog.catalog import Catalog
from tocsin.cluster.catalog.executions import ExecutionOutcome, NewExecution
from tocsin.cluster.catalog.files import channels_of, dataset_owner, results_owner
from tocsin.cluster.catalog.tables import (
    DeadLetter,
    FeedProgress,
    NewFile,
    StoredChannel,
    StoredDataset,
    StoredDeadLetter,
    StoredExecution,
    StoredFeed,
    StoredFile,
    StoredSubscription,
    WriteId,
    catalog_path,
    in_catalog,
)

__all__ = [
    "Catalog",
    "DeadLetter",
    "ExecutionOutcome",
    "FeedProgress",
    "NewExecution",
    "NewFile",
    "StoredChannel",
    "StoredDataset",
    "StoredDeadLetter",
    "StoredExecution",
    "StoredFeed",
    "StoredFile",
    "StoredSubscription",
    "WriteId",
    "catalog_path",
    "channels_of",
    "dataset_owner",
    "in_catalog",
    "results_owner",
]
