"""Trace rows: a live, recorded or simulated network is shown as a stream of these.

A row is a flat record. Columns that its kind does not use are absent in JSON and null in a table; docs/watching.md
explains each kind. `sim` and `coordinator` create rows, `runtime` streams and records them, and `trace_state` folds
them into the current state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec
import pyarrow as pa

VERSION: Final = "2"


class Kind(StrEnum):
    STREET = "street"
    PLACE = "place"
    BROKER = "broker"
    SAMPLE = "sample"
    BALANCE = "balance"
    PLAN = "plan"
    JOIN = "join"
    LEAVE = "leave"
    MOVE = "move"
    MOVED = "moved"
    MOVE_FAILED = "move-failed"
    FAILOVER = "failover"
    BROKER_FAILED = "broker-failed"
    BROKER_BACK = "broker-back"
    POSITION = "position"
    EVENT = "event"
    CHANNEL = "channel"
    CLUSTER = "cluster"
    TOPIC = "topic"
    TOPIC_MOVE = "topic-move"
    TOPIC_MOVED = "topic-moved"
    TOPIC_STAYS = "topic-stays"
    TOPIC_FAILOVER = "topic-failover"
    OFFLOAD = "offload"
    OFFLOADED = "offloaded"
    OFFLOAD_FAILED = "offload-failed"
    OFFLOAD_WAITS = "offload-waits"
    OFFLOAD_REFUSED = "offload-refused"
    LIMITS = "limits"
    SITES = "sites"
    TICK = "tick"
    PICTURE = "picture"
    """Only in recordings: the rows after it rebuild the current state, and all earlier rows are obsolete."""


DRAWN: Final = frozenset({Kind.STREET, Kind.POSITION})
"""Kinds that only a map needs; `positions=false` omits them."""


class TraceRow(msgspec.Struct, frozen=True, omit_defaults=True):
    time_s: float
    """Wall-clock seconds of a live network, virtual seconds of a simulation."""
    kind: str
    """A value of `Kind`. It is text, so that a reader can skip kinds of a later version."""
    broker: str | None = None
    subscriber: str | None = None
    target: str | None = None
    """The broker that a subscriber moves to."""
    channel: str | None = None
    load_bytes_per_s: float | None = None
    subscribers: int | None = None
    cov: float | None = None
    """Coefficient of variation of the brokers' loads."""
    moves: int | None = None
    lat: float | None = None
    """Latitude in degrees; `lon` is the longitude in degrees."""
    lon: float | None = None
    note: str | None = None
    """A text for people."""
    detail: Mapping[str, Any] | None = None


COLUMNS: Final = TraceRow.__struct_fields__
SCHEMA: Final = pa.schema(
    [
        ("time_s", pa.float64()),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("broker", pa.string()),
        ("subscriber", pa.string()),
        ("target", pa.string()),
        ("channel", pa.string()),
        ("load_bytes_per_s", pa.float64()),
        ("subscribers", pa.int64()),
        ("cov", pa.float64()),
        ("moves", pa.int64()),
        ("lat", pa.float64()),
        ("lon", pa.float64()),
        ("note", pa.string()),
        ("detail", pa.string()),
    ],
    metadata={"tocsin.trace": VERSION},
)
"""The schema of a recording; its column `detail` holds JSON text."""

_KINDS: Final = tuple(str(kind) for kind in Kind)
_encode = msgspec.json.Encoder().encode
_decode_rows = msgspec.json.Decoder(list[TraceRow]).decode


def to_json(rows: Sequence[TraceRow]) -> bytes:
    """The rows as a JSON array of objects."""
    return _encode(rows)


def from_json(text: bytes | str) -> list[TraceRow]:
    """The rows of a JSON array. Raises msgspec.DecodeError if `text` is not an array of rows."""
    return _decode_rows(text)


def encoded_detail(detail: Mapping[str, Any]) -> str:
    return _encode(detail).decode()


def kind_column(kinds: Sequence[str]) -> pa.DictionaryArray:
    """The column `kind`. All batches share one dictionary, so that a file needs no replacement dictionaries."""
    names = [*_KINDS, *sorted(set(kinds).difference(_KINDS))]
    numbers = {name: number for number, name in enumerate(names)}
    return pa.DictionaryArray.from_arrays(pa.array([numbers[kind] for kind in kinds], pa.int8()), names)


def to_table(rows: Sequence[TraceRow]) -> pa.Table:
    arrays = []
    for field in SCHEMA:
        values = [getattr(row, field.name) for row in rows]
        if field.name == "kind":
            arrays.append(kind_column(values))
        elif field.name == "detail":
            texts = [None if detail is None else encoded_detail(detail) for detail in values]
            arrays.append(pa.array(texts, field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.table(arrays, schema=SCHEMA)


def from_table(table: pa.Table) -> Iterator[TraceRow]:
    columns = [table.column(name).to_pylist() for name in COLUMNS[:-1]]
    details = (None if text is None else msgspec.json.decode(text) for text in table.column("detail").to_pylist())
    return (TraceRow(*values) for values in zip(*columns, details, strict=True))


def problem_with(schema: pa.Schema) -> str | None:
    """Why a file with this schema cannot be read as a trace; None if it can."""
    version = (schema.metadata or {}).get(b"tocsin.trace", b"").decode("latin-1")
    if not version:
        return "it is a table but no trace: its metadata has no tocsin.trace"
    if version != VERSION:
        return f"it is a trace of version {version}, this program reads version {VERSION}: record or simulate it again"
    missing = [name for name in COLUMNS if name not in schema.names]
    return f"the columns {', '.join(missing)} are missing" if missing else None
