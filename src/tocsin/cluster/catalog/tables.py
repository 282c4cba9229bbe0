"""The catalog's SQL tables and the values read from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NewType

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tocsin.model.entities import Channel, Dataset, Feed
from tocsin.model.ids import ChannelName, DatasetName, FeedName, SubscriptionId

schema = sa.MetaData()
_big = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite auto-increments only INTEGER

datasets = sa.Table(
    "datasets",
    schema,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("definition", sa.Text, nullable=False),
    sa.Column(
        "generation", sa.BigInteger, nullable=False
    ),  # names its feed log: a dataset created again gets a new one
    sa.Column("version", sa.BigInteger, nullable=False),  # the last committed batch
    sa.Column("position", sa.BigInteger, nullable=False),  # the dataset holds the feed log up to here
)
channels = sa.Table(
    "channels",
    schema,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("definition", sa.Text, nullable=False),
    sa.Column("execution", sa.BigInteger, nullable=False),  # the last execution number used
    sa.Column("tried", sa.BigInteger),  # subscriptions up to this number took part; NULL: all of an earlier release
)
positions = sa.Table(
    "positions",
    schema,
    sa.Column("channel", sa.Text, primary_key=True),
    sa.Column("dataset", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),  # NEW covers the versions above it
)
feeds = sa.Table(
    "feeds",
    schema,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("definition", sa.Text, nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False),  # names the checkpoint: a feed created again gets a new one
    sa.Column("batch", sa.BigInteger, nullable=False),  # the last micro-batch committed
)
feed_files = sa.Table(
    "feed_files",
    schema,
    sa.Column("feed", sa.Text, primary_key=True),
    sa.Column("path", sa.Text, primary_key=True),  # inside Spark's checkpoint
    sa.Column("content", sa.LargeBinary, nullable=False),  # compressed by zlib
)
files = sa.Table(
    "files",
    schema,
    sa.Column("id", _big, primary_key=True, autoincrement=True),
    sa.Column("owner", sa.Text, nullable=False, index=True),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("first", sa.BigInteger, nullable=False),  # lowest and highest version (or execution) inside
    sa.Column("last", sa.BigInteger, nullable=False),
    sa.Column("at_s", sa.Float, nullable=False),  # when its newest row was committed, by the retention clock
    sa.Column("generation", sa.Integer, nullable=False),  # how many merges its rows have been through
    sa.Column("widest", sa.BigInteger),  # bytes of its widest row in memory; NULL in older rows
)
contents = sa.Table(
    "contents",
    schema,
    sa.Column("path", sa.Text, primary_key=True),  # of a row of `files`, or of `garbage`
    sa.Column("content", sa.LargeBinary, nullable=False),
)
garbage = sa.Table(
    "garbage",
    schema,
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("since_s", sa.Float, nullable=False),
)
writes = sa.Table(
    "writes",
    schema,
    sa.Column("id", sa.Text, primary_key=True),  # the names of the files that the job writes start with it
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("since_s", sa.Float, nullable=False),
)
subscriptions = sa.Table(
    "subscriptions",
    schema,
    sa.Column("number", _big, primary_key=True, autoincrement=True),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("id", sa.LargeBinary(16), nullable=False),
    sa.Column("parameters", sa.Text, nullable=False),  # canonical values, a JSON array
    sa.UniqueConstraint("channel", "id"),
    sqlite_autoincrement=True,  # never gives a number twice: results name subscriptions by it
)
holders = sa.Table(
    "holders",
    schema,
    sa.Column("number", sa.BigInteger, primary_key=True),
    sa.Column("broker", sa.Text, primary_key=True, index=True),
)
refusals = sa.Table(
    "refusals",
    schema,
    sa.Column("channel", sa.Text, primary_key=True),
    sa.Column("id", sa.LargeBinary(16), primary_key=True),
    sa.Column("reason", sa.Text, nullable=False),
)
dead_letters = sa.Table(
    "dead_letters",
    schema,
    sa.Column("id", _big, primary_key=True, autoincrement=True),
    sa.Column("channel", sa.Text, nullable=False, index=True),
    sa.Column("dataset", sa.Text, nullable=False),
    sa.Column("record", sa.Text, nullable=False),  # a JSON object
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("at_s", sa.Float, nullable=False),  # by the retention clock
    sqlite_autoincrement=True,
)
trials = sa.Table(
    "trials",
    schema,
    sa.Column("channel", sa.Text, primary_key=True),
    sa.Column("deaths", sa.Integer, nullable=False),  # evidence of deaths of Spark since the last success
    sa.Column("kind", sa.Text),  # the values on trial: subscriptions, or records of a dataset; NULL before a trial
    sa.Column("first", sa.BigInteger),
    sa.Column("last", sa.BigInteger),
)
suspects = sa.Table(
    "suspects",
    schema,
    sa.Column("channel", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("value", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("evidence", sa.Integer, nullable=False),  # of deaths of Spark while this value alone was on trial
)
executions = sa.Table(
    "executions",
    schema,
    sa.Column("sequence", _big, primary_key=True, autoincrement=True),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("execution", sa.BigInteger, nullable=False),
    sa.Column("intervals", sa.Text, nullable=False),  # {dataset: [after, upto]}
    sa.Column("results", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("started_s", sa.Float, nullable=False),
    sa.Column("finished_s", sa.Float, nullable=False),
    sa.Column("retained_s", sa.Float),  # when it was committed, by the retention clock; NULL in older rows
    sa.Index("executions_by_number", "channel", "epoch", "execution"),
    sa.Index("executions_by_age", "channel", "retained_s"),  # upkeep reads only what it deletes, not all history
    sqlite_autoincrement=True,
)
tokens = sa.Table(
    "tokens",
    schema,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("scopes", sa.Text, nullable=False),
    sa.Column("expires_s", sa.Float),
)
facts = sa.Table(
    "facts",
    schema,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

logs = sa.Table(
    "logs",
    schema,
    sa.Column("log", sa.BigInteger, primary_key=True, autoincrement=False),  # the generation of its dataset
    sa.Column("tail", sa.BigInteger, nullable=False),  # the position after the last object
    sa.Column(
        "last_us", sa.BigInteger, nullable=False
    ),  # the time of the last object; each is later than the one before
    sa.Column("seed", sa.BigInteger, nullable=False),  # of the digests of keys
)
log_objects = sa.Table(
    "log_objects",
    schema,
    sa.Column("log", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),  # it covers the positions [first, next)
    sa.Column("next", sa.BigInteger, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("accepted_us", sa.BigInteger, nullable=False),
    sa.Column("left_out", sa.LargeBinary),  # lines that do not count, a compressed JSON object; NULL if all count
)
log_keys = sa.Table(
    "log_keys",
    schema,
    sa.Column("log", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),  # of the object that brought these keys
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("digests", sa.LargeBinary, nullable=False),  # of the keys that were new with it, one after the other
)
log_answers = sa.Table(
    "log_answers",
    schema,
    sa.Column("log", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("key", sa.LargeBinary(16), primary_key=True),
    sa.Column("body", sa.LargeBinary(32), nullable=False),
    sa.Column("answer", sa.LargeBinary, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),
)
log_cursors = sa.Table(
    "log_cursors",
    schema,
    sa.Column("log", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("recording", sa.Text, primary_key=True),
    sa.Column("upto", sa.BigInteger, nullable=False),
)

log_alerts = sa.Table(
    "log_alerts",
    schema,
    sa.Column("log", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("identifier", sa.Text, primary_key=True),
    sa.Column("sender", sa.Text, primary_key=True),
    sa.Column("sent_s", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.LargeBinary(32), nullable=False),
    sa.Column("root_identifier", sa.Text, nullable=False),
    sa.Column("root_sender", sa.Text, nullable=False),
    sa.Column("rows", sa.LargeBinary, nullable=False),  # its current records, a JSON array
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Index("log_alerts_by_root", "log", "root_identifier", "root_sender"),
)

Content = bytes
"""The bytes of a file."""
WriteId = NewType("WriteId", str)
"""Names a write intent. The name of each file that the job writes starts with it."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that is written and not committed yet."""

    path: str
    """Relative to the data root."""
    rows: int
    bytes: int
    first: int
    last: int
    widest: int | None = field(default=None, kw_only=True)
    """Bytes of its widest row in memory; None in a catalog of an earlier release."""
    content: Content | None = field(default=None, kw_only=True, repr=False)
    """The bytes of a new file that the catalog itself stores, see `in_catalog`; None if a file holds them."""


@dataclass(frozen=True, slots=True)
class StoredFile(NewFile):
    id: int
    at_s: float
    generation: int


@dataclass(frozen=True, slots=True)
class StoredChannel:
    channel: Channel
    epoch: int
    execution: int
    positions: Mapping[DatasetName, int]
    tried: int | None
    """Subscriptions up to this number have taken part in an execution; None in a catalog of an earlier release."""


@dataclass(frozen=True, slots=True)
class StoredDataset:
    dataset: Dataset
    generation: int
    version: int
    position: int


@dataclass(frozen=True, slots=True)
class StoredFeed:
    feed: Feed
    generation: int
    batch: int


@dataclass(frozen=True, slots=True)
class FeedProgress:
    """The changes of a feed's checkpoint that belong to one micro-batch."""

    feed: FeedName
    batch: int
    added: Mapping[str, bytes]
    """Path inside the checkpoint → content."""
    dropped: Collection[str] = ()
    """Paths that later ones replace."""


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    number: int
    id: SubscriptionId
    parameters: str
    created: bool = False


@dataclass(frozen=True, slots=True)
class StoredExecution:
    """An execution that had results. `sequence` orders the executions of all channels; brokers resume by it."""

    sequence: int
    """0 before the execution is committed."""
    channel: ChannelName
    epoch: int
    execution: int
    intervals: Mapping[DatasetName, tuple[int, int]]
    results: int
    bytes: int
    started_s: float
    finished_s: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that makes a channel's query fail. The channel has not matched it."""

    dataset: DatasetName
    record: str
    """A JSON object."""
    reason: str


@dataclass(frozen=True, slots=True)
class StoredDeadLetter(DeadLetter):
    id: int
    channel: ChannelName
    at_s: float


_IN_CATALOG = "catalog:"


def catalog_path(path: str) -> str:
    """The path of a file whose bytes the catalog stores."""
    return _IN_CATALOG + path


def in_catalog(path: str) -> bool:
    """True if the catalog stores the bytes of this file: no file under the data root has this path."""
    return path.startswith(_IN_CATALOG)


def to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def read_fact(connection: Connection, name: str) -> str | None:
    value: str | None = connection.scalar(sa.select(facts.c.value).where(facts.c.name == name))
    return value


def write_fact(connection: Connection, name: str, value: str) -> None:
    connection.execute(sa.delete(facts).where(facts.c.name == name))
    connection.execute(sa.insert(facts).values(name=name, value=value))
