"""Datasets, feeds and channels: what an application declares [BAD §3.1]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.model.ids import ChannelName, DatasetName, FeedName
from tocsin.model.schema import Schema


class DatasetKind(StrEnum):
    STREAM = "STREAM"
    """Append-only, retained for a while."""
    KEYED = "KEYED"
    """The latest record per key."""
    STATIC = "STATIC"
    """Loaded once from a file, replaced as a whole."""


class ChannelKind(StrEnum):
    REPETITIVE = "REPETITIVE"
    """Runs every period."""
    CONTINUOUS = "CONTINUOUS"
    """Runs as records arrive."""


DEFAULT_RESULT_RETENTION_S = 86_400.0
"""How long results are kept when the channel does not say: a day away from the network loses nothing."""


@dataclass(frozen=True, slots=True)
class Dataset:
    name: DatasetName
    kind: DatasetKind
    schema: Schema
    """Empty for a STATIC dataset declared without columns, until its file has been read."""
    key: tuple[str, ...] = ()
    """STREAM: a key seen twice within the retention is stored once. KEYED: what the latest record is kept per."""
    order_by: str | None = None
    """KEYED: the column that says which record of a key is the latest; ties and None fall back to arrival order."""
    retain_s: float | None = None
    """STREAM: how long a record is kept after it arrived; None keeps it for good."""
    source: str | None = None
    """STATIC: the file it is loaded from."""


@dataclass(frozen=True, slots=True)
class Channel:
    name: ChannelName
    kind: ChannelKind
    parameters: Schema
    query: str
    """As written, with `:name` markers and `NEW dataset`."""
    period_s: float | None = None
    """REPETITIVE only."""
    retain_s: float = DEFAULT_RESULT_RETENTION_S
    """How long results are kept."""


@dataclass(frozen=True, slots=True)
class Feed:
    """A Spark streaming source that fills a dataset. Records sent to the gateway need no feed declared."""

    name: FeedName
    dataset: DatasetName
    format: str
    options: Mapping[str, str] = field(default_factory=dict)
