"""What the engine holds of each dataset and channel while it runs. Rebuilt from the catalog at every start."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from tocsin.cluster.feed.gateway import FeedGateway
from tocsin.cluster.spark.execution import PreparedChannel
from tocsin.cluster.spark.ingestion import DatasetWriter, Ingestion
from tocsin.cluster.spark.subscribers import SubscriptionFrames
from tocsin.model.entities import Dataset, Feed
from tocsin.model.ids import DatasetName, SubscriptionId


@dataclass(slots=True)
class LiveDataset:
    dataset: Dataset
    generation: int
    writer: DatasetWriter
    gateway: FeedGateway | None
    """None for STATIC datasets."""
    query: Ingestion | None = None
    """Moves what the gateway accepted into the dataset; started with the first record."""
    starting: threading.Lock = field(default_factory=threading.Lock)
    dropping: bool = False
    """No query may begin any more."""


@dataclass(slots=True)
class LiveFeed:
    feed: Feed
    generation: int
    query: Ingestion


@dataclass(slots=True)
class LiveChannel:
    prepared: PreparedChannel
    epoch: int
    execution: int
    """The last execution number given out."""
    positions: dict[DatasetName, int]
    """NEW covers what is above; ahead of the catalog only while nobody is subscribed."""
    subscribers: SubscriptionFrames
    running: threading.Lock = field(default_factory=threading.Lock)
    """Executions of one channel follow each other."""
    uncertain: bool = False
    """Whether its last execution was committed is not known: the catalog is to be asked."""
    tried: int = 0
    """Subscriptions up to this number have been through an execution, or were there when this process started."""
    refused: dict[SubscriptionId, str] = field(default_factory=dict)
    """Whose values made the query fail, and how: they were ended, and are not taken again in this life."""
    executions: int = 0
    empty: int = 0
    failures: int = 0
    last_error: str | None = None
    last_started_s: float | None = None
    last_duration_s: float | None = None
    last_results: int = 0

    def reads(self, dataset: str) -> bool:
        query = self.prepared.query
        return dataset.lower() in {name.lower() for name in query.datasets | query.new_datasets}

    @property
    def matches_ahead(self) -> bool:
        """Whether it may match records while they are being stored. Its execution is committed after them all the same.
        Not if it also reads the same dataset as a whole: that has only what is stored."""
        query = self.prepared.query
        whole = {name.lower() for name in query.datasets}
        is_continuous = self.prepared.channel.period_s is None
        return is_continuous and not any(name.lower() in whole for name in query.new_datasets)
