"""What an application file says, statement by statement. Values only: `declarations` makes them."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.cluster.sql.channel_query import ChannelQuery
from tocsin.cluster.sql.problems import Position, Problem
from tocsin.model.entities import Channel, Dataset, Feed
from tocsin.model.ids import ChannelName, DatasetName, FeedName


@dataclass(frozen=True, slots=True)
class CreateDataset:
    dataset: Dataset
    position: Position
    """Of the statement's first word."""
    replace: bool = False
    if_not_exists: bool = False
    format: str | None = None
    """STATIC: `csv`, `json` or `parquet`, as said or as the file's name ends."""


@dataclass(frozen=True, slots=True)
class CreateChannel:
    channel: Channel
    position: Position
    query: ChannelQuery
    """`channel.query`, parsed."""
    query_position: Position
    """Where the query starts in the file: places inside the query are counted from there."""
    replace: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateFeed:
    feed: Feed
    position: Position
    dataset_position: Position
    replace: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropDataset:
    name: DatasetName
    position: Position
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropChannel:
    name: ChannelName
    position: Position
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropFeed:
    name: FeedName
    position: Position
    if_exists: bool = False


Statement = CreateDataset | CreateChannel | CreateFeed | DropDataset | DropChannel | DropFeed


@dataclass(frozen=True, slots=True)
class Application:
    statements: tuple[Statement, ...]
    """In the order of the file; those with problems are left out."""
    problems: tuple[Problem, ...]
    """In the order of the file. Nothing should be applied while there is one."""
    text: str = ""
