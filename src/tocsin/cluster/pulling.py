"""A broker's pull: results of some backend subscriptions of one channel, each from its cursor on.

`open_pull` decides what to read and where a gap is. The generators then read a row group at a time and give Arrow, JSON
lines or values. A cursor of another epoch, or one that points at results past their retention, is a gap. Gaps are
reported before the first result.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.cluster.catalog import Catalog
from tocsin.cluster.sql.result_columns import BYTES, OFFSET, SUBSCRIPTION
from tocsin.cluster.store.results import ResultStore
from tocsin.model.cursor import Cursor, execution_of, offset_of
from tocsin.model.ids import BrokerId, ChannelName, SubscriptionId
from tocsin.wire.cluster import CURSOR_METADATA, GAP_METADATA
from tocsin.wire.errors import Code, TocsinError

OWN_COLUMNS = ("subscription", "cursor", "bytes")
_LINES_AT_ONCE = 1_000
_LAST_OFFSET = 2**53
_encode = msgspec.json.Encoder().encode


class ChannelHead(NamedTuple):
    name: ChannelName
    columns: pa.Schema
    """The columns that the channel's query selects."""
    upto: Cursor
    """The position after the last committed result."""


class ResultSource(Protocol):
    """What a pull reads: a data cluster, or its files and its catalog alone (`cluster.stored_results`)."""

    catalog: Catalog
    results: ResultStore

    def head_of(self, channel: str) -> ChannelHead:
        """Raises UNKNOWN_CHANNEL."""

    def numbers_of(self, channel: ChannelName, ids: Iterable[SubscriptionId]) -> Mapping[SubscriptionId, int]:
        """The numbers of the subscriptions with these ids. An id without a subscription is left out."""

    def held(self, numbers: Sequence[int], brokers: Callable[[BrokerId], bool]) -> npt.NDArray[np.bool_]:
        """For each subscription, whether a broker for which `brokers` is true holds it."""


@dataclass(frozen=True, slots=True)
class Pull:
    channel: ChannelName
    columns: pa.Schema
    """The columns that the channel's query selects."""
    after: Mapping[int, int]
    """Subscription number → the first offset to read."""
    numbers: npt.NDArray[np.int64]
    """The subscription numbers, sorted."""
    ids: pa.Array
    """The subscription ids, in the order of `numbers`."""
    gaps: Mapping[SubscriptionId, Cursor]
    """Subscriptions whose cursor points at deleted results, and the position where reading starts instead."""
    upto: Cursor
    """The pull holds all stored results before this position; the next pull starts here."""
    kept_from: int | None
    """The first stored execution when the gaps were found; None if there was none."""
    tables: list[pa.Table] | None = None
    """The results of the executions that the pull reads, if all of them are in memory."""

    def not_held_by(self, source: ResultSource, brokers: Callable[[BrokerId], bool]) -> SubscriptionId | None:
        """A subscription that none of the brokers for which `brokers` is true holds; None if all are held."""
        missing = np.flatnonzero(~source.held(self.numbers.tolist(), brokers))
        return SubscriptionId(self.ids[int(missing[0])].as_py()) if len(missing) else None


class Pulled(NamedTuple):
    """One result and its position."""

    subscription: SubscriptionId
    cursor: str
    """The position after this result."""
    bytes: int
    result: dict[str, Any]


def open_pull(source: ResultSource, channel: str, requested: Mapping[SubscriptionId, str | None]) -> Pull:
    """Plan a pull from a cursor per subscription, or from the first stored result if the cursor is None.

    Raises if the channel or a subscription is unknown, or if a text is no cursor.
    """
    cursors = {subscription: None if text is None else parsed_cursor(text) for subscription, text in requested.items()}
    # Before anything is read: an execution that is committed later is not part of this pull.
    name, columns, upto = source.head_of(channel)
    numbers = source.numbers_of(name, cursors)
    for subscription in cursors:
        if subscription not in numbers:
            raise TocsinError(Code.UNKNOWN_SUBSCRIPTION, f"channel {name} has no subscription {subscription}")
    tables = _in_memory(source, name, cursors.values(), upto)
    earliest = None if tables is not None else source.results.kept_from(name)
    kept_from = execution_of(upto.offset) if earliest is None else earliest
    after: dict[int, int] = {}
    gaps: dict[SubscriptionId, Cursor] = {}
    for subscription, cursor in cursors.items():
        start = 0 if cursor is None else cursor.offset
        if tables is None and cursor is not None and _is_gap(cursor, upto, kept_from):
            start = 0
            gaps[subscription] = Cursor(upto.epoch, offset_of(kept_from))
        after[numbers[subscription]] = start
    ordered = sorted((number, subscription) for subscription, number in numbers.items())
    return Pull(
        name,
        columns,
        after,
        np.array([number for number, _ in ordered], np.int64),
        pa.array([subscription for _, subscription in ordered], pa.string()),
        gaps,
        upto,
        earliest,
        tables,
    )


def _in_memory(
    source: ResultSource, channel: ChannelName, cursors: Collection[Cursor | None], upto: Cursor
) -> list[pa.Table] | None:
    """The results from the first cursor on if all of them are in memory. Then none of the cursors is a gap."""
    offsets = [cursor.offset for cursor in cursors if cursor is not None and cursor.epoch == upto.epoch]
    if not offsets or len(offsets) < len(cursors) or max(offsets) > upto.offset:
        return None
    return source.results.latest(channel, upto.epoch, execution_of(min(offsets)))


def _is_gap(cursor: Cursor, upto: Cursor, kept_from: int) -> bool:
    """True if the results at the cursor are gone.

    Execution numbers have no holes, so a cursor before the first stored execution points at a deleted one.
    """
    return cursor.epoch != upto.epoch or execution_of(cursor.offset) < kept_from or cursor.offset > upto.offset


def parsed_cursor(text: str) -> Cursor:
    cursor = Cursor.parse(text) if len(text) <= 40 else None
    if cursor is None or cursor.offset > _LAST_OFFSET:
        raise TocsinError(Code.BAD_CURSOR, f"{text[:40]!r} is no cursor: expected epoch-offset, such as 3-1048576")
    return cursor


def arrow_stream(store: ResultStore, pull: Pull) -> Iterator[bytes]:
    """The results as an Arrow IPC stream: Tocsin's columns first, then the channel's own.

    A column of Tocsin gets another name if the channel has a column with the same name.
    """
    schema = _stream_schema(pull)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        yield _take(sink)
        for rows in _rows(store, pull):
            columns = [*_own(pull, rows), *(rows[field.name].cast(field.type) for field in pull.columns)]
            writer.write_table(pa.table(columns, schema=schema))
            yield _take(sink)
    yield _take(sink)


def json_lines(store: ResultStore, pull: Pull) -> Iterator[bytes]:
    """JSON lines: first a line for each gap, then a line for each result.

    A gap is `{"subscription", "cursor", "gap": true}`, a result `{"subscription", "cursor", "bytes", "result"}`.
    """
    if pull.gaps:
        yield b"".join(
            _encode({"subscription": subscription, "cursor": str(cursor), "gap": True}) + b"\n"
            for subscription, cursor in pull.gaps.items()
        )
    for page in pulled(store, pull):
        yield b"".join(_encode(row._asdict()) + b"\n" for row in page)


def pulled(store: ResultStore, pull: Pull) -> Iterator[list[Pulled]]:
    """The results as values, a page at a time."""
    names = pull.columns.names
    for table in _rows(store, pull):
        for start in range(0, table.num_rows, _LINES_AT_ONCE):
            rows = table.slice(start, _LINES_AT_ONCE)
            own = [column.to_pylist() for column in _own(pull, rows)]
            results = rows.select(names).to_pylist()
            yield [Pulled(*row) for row in zip(*own, results, strict=True)]


def only(pull: Pull, cursor: Cursor) -> Pull:
    """The part of a pull up to the result with this cursor, that result included."""
    return replace(pull, upto=cursor)


def _rows(store: ResultStore, pull: Pull) -> Iterator[pa.Table]:
    if pull.tables is not None:
        return store.select(pull.tables, pull.after, pull.upto.offset)
    return store.read(pull.channel, pull.upto.epoch, pull.after, pull.upto.offset, pull.kept_from)


def _own(pull: Pull, rows: pa.Table) -> list[pa.ChunkedArray | pa.Array]:
    places = np.searchsorted(pull.numbers, rows[SUBSCRIPTION].to_numpy())
    following = pc.cast(pc.add(rows[OFFSET], 1), pa.string())
    cursors = pc.binary_join_element_wise(pa.scalar(f"{pull.upto.epoch}"), following, "-")
    return [pull.ids.take(pa.array(places)), cursors, rows[BYTES]]


def _stream_schema(pull: Pull) -> pa.Schema:
    taken = {name.lower() for name in pull.columns.names}
    names = [f"_tocsin_{name}" if name in taken else name for name in OWN_COLUMNS]
    own = [(names[0], pa.string()), (names[1], pa.string()), (names[2], pa.int64())]
    fields = [pa.field(name, kind) for name, kind in own] + [pull.columns.field(name) for name in pull.columns.names]
    metadata = {CURSOR_METADATA: str(pull.upto)}
    if pull.gaps:
        metadata[GAP_METADATA] = _encode({key: str(cursor) for key, cursor in pull.gaps.items()}).decode()
    return pa.schema(fields, metadata)


def _take(sink: io.BytesIO) -> bytes:
    """Return the bytes written so far, and empty the sink."""
    written = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return written
