"""The data cluster's stored state: see `catalog.catalog`."""

from tocsin.cluster.catalog.catalog import Catalog
from tocsin.cluster.catalog.executions import ExecutionOutcome
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
)

__all__ = [
    "Catalog",
    "DeadLetter",
    "ExecutionOutcome",
    "FeedProgress",
    "NewFile",
    "StoredChannel",
    "StoredDataset",
    "StoredDeadLetter",
    "StoredExecution",
    "StoredFeed",
    "StoredFile",
    "StoredSubscription",
    "WriteId",
    "channels_of",
    "dataset_owner",
    "results_owner",
]
