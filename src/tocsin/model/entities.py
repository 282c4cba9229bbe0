"""Datasets, feeds and channels, as an application declares them [BAD §3.1]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.model.ids import ChannelName, DatasetName, FeedName
from tocsin.model.schema import Schema


class DatasetKind(StrEnum):
    STREAM = "STREAM"
    """The dataset is append-only; its records expire after the retention."""
    KEYED = "KEYED"
    """The dataset keeps the latest record of each key."""
    STATIC = "STATIC"
    """The dataset is loaded from a file and replaced as a whole."""


class ChannelKind(StrEnum):
    REPETITIVE = "REPETITIVE"
    """The channel runs once every period."""
    CONTINUOUS = "CONTINUOUS"
    """The channel runs as records arrive."""


DEFAULT_RESULT_RETENTION_S = 86_400.0
"""How long results are kept by default: a subscriber that is offline for a day loses nothing."""


@dataclass(frozen=True, slots=True)
class Dataset:
    name: DatasetName
    kind: DatasetKind
    schema: Schema
    """The columns. A STATIC dataset declared without columns has none until its file is read."""
    key: tuple[str, ...] = ()
    """STREAM: a record whose key was stored within the retention is a duplicate. KEYED: one record is kept per key."""
    order_by: str | None = None
    """KEYED: the latest record of a key has the largest value in this column; ties, and None, use arrival order."""
    retain_s: float | None = None
    """STREAM: how long a record is kept after its arrival; None keeps it without limit."""
    source: str | None = None
    """STATIC: the file to load."""
    owned_by: str | None = None
    """KEYED: the column with the user that a record belongs to, which is the whole key.

    Each subscriber may update its own record through its broker. None: only publishers may write.
    """


@dataclass(frozen=True, slots=True)
class Channel:
    name: ChannelName
    kind: ChannelKind
    parameters: Schema
    query: str
    """The query as declared, with `:name` markers and `NEW dataset`."""
    period_s: float | None = None
    """REPETITIVE: the time between two executions. None for a CONTINUOUS channel."""
    retain_s: float = DEFAULT_RESULT_RETENTION_S
    """How long results are kept."""
    bound: tuple[str, ...] = ()
    """Parameters whose value is always the name of the session's user (DEFAULT CURRENT_USER ONLY)."""


@dataclass(frozen=True, slots=True)
class Feed:
    """A Spark streaming source that fills a dataset. Records sent to the gateway need no feed."""

    name: FeedName
    dataset: DatasetName
    format: str
    options: Mapping[str, str] = field(default_factory=dict)
