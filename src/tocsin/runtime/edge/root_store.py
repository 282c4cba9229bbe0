"""The root's durable state in SQLite: the tree control, the floors of the queries, and the outbox. Calls block.

`accept` stores result rows and the new floor in one transaction: after a crash, a window is either in the outbox and at
or below the floor, or neither.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from tocsin.database.database import Database, insert_many
from tocsin.database.formats import StoredFormat
from tocsin.edge.generations import ControlState, NodeRecord, PublisherRecord, SourceRecord
from tocsin.model.edge import EdgeNodeId, OperatorId
from tocsin.runtime.edge.codecs import decode_source, decode_stream, encode_source, encode_stream
from tocsin.wire import edge_link

_METADATA = sa.MetaData()
_CONTROL = sa.Table(
    "edge_control",
    _METADATA,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
)
_FLOORS = sa.Table(
    "edge_floors",
    _METADATA,
    sa.Column("query", sa.String(128), primary_key=True),
    sa.Column("floor_us", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
)
_OUTBOX = sa.Table(
    "edge_outbox",
    _METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("query", sa.String(128), nullable=False),
    sa.Column("dataset", sa.String(128), nullable=False),
    sa.Column("key", sa.String(64), nullable=False),
    sa.Column("rows", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)
_FORMAT = StoredFormat("edge root's store", _METADATA)


@dataclass(frozen=True, slots=True)
class Results:
    """Rows of a query as JSON lines, and the event time up to which its result is complete with them."""

    query: str
    dataset: str
    batches: Sequence[bytes]
    rows: int
    floor_us: int


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    number: int
    query: str
    dataset: str
    key: str
    """The Idempotency-Key under which the entry is published."""
    rows: int
    body: bytes


class _Node(msgspec.Struct):
    parent: str | None
    run: int
    address: str
    streams: list[str]


class _Source(msgspec.Struct):
    home: str
    source: edge_link.Source
    position: int


class _State(msgspec.Struct):
    generation: int
    nodes: dict[str, _Node]
    streams: dict[str, edge_link.StreamDeclaration]
    queries: dict[str, str]
    publishers: dict[str, tuple[str, list[str]]]
    sources: dict[str, _Source]
    placement: dict[str, str]
    members: list[str] | None = None


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_State)


class RootStore:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._database = Database(f"sqlite:///{path}", _FORMAT)

    def close(self) -> None:
        self._database.close()

    # -- the tree control ----------------------------------------------------------------------------------------------

    def save(self, state: ControlState) -> None:
        value = _encode(_encoded(state))
        with self._database.write() as connection:
            _upsert(connection, _CONTROL, {"name": "state", "value": value})
            dropped = sa.delete(_FLOORS).where(_FLOORS.c.query.not_in(list(state.queries)))
            connection.execute(dropped)

    def load(self) -> ControlState:
        rows = self._database.rows(sa.select(_CONTROL.c.value).where(_CONTROL.c.name == "state"))
        state = ControlState() if not rows else _decoded(_decoder.decode(rows[0].value))
        return replace(state, floors_us=dict(self.floors_us()) if rows else {})

    def floors_us(self) -> Mapping[str, int]:
        return {row.query: row.floor_us for row in self._database.rows(sa.select(_FLOORS))}

    def result_rows(self) -> dict[str, int]:
        """Query → the rows accepted so far."""
        return {row.query: row.rows for row in self._database.rows(sa.select(_FLOORS.c.query, _FLOORS.c.rows))}

    # -- the outbox ----------------------------------------------------------------------------------------------------

    def accept(self, results: Sequence[Results]) -> None:
        """Store the rows of all queries with their floors, or nothing. Durable when it returns."""
        with self._database.write() as connection:
            for result in results:
                entries = [
                    {
                        "query": result.query,
                        "dataset": result.dataset,
                        "key": uuid.uuid4().hex,
                        "rows": body.count(b"\n") + 1,
                        "body": body,
                    }
                    for body in result.batches
                ]
                insert_many(connection, _OUTBOX, entries)
                values = {"query": result.query, "floor_us": result.floor_us, "rows": result.rows}
                statement = insert(_FLOORS).values(values)
                # A publisher that has moved takes the watermark of a new generation back; results stay accepted.
                floor_us = sa.func.max(_FLOORS.c.floor_us, result.floor_us)
                more = {"floor_us": floor_us, "rows": _FLOORS.c.rows + result.rows}
                connection.execute(statement.on_conflict_do_update(index_elements=["query"], set_=more))

    def outbox(self, after: int = 0, limit: int = 100, without: Collection[str] = ()) -> list[OutboxEntry]:
        """The oldest entries behind this number, for all datasets but these."""
        query = sa.select(_OUTBOX).where(_OUTBOX.c.number > after).order_by(_OUTBOX.c.number).limit(limit)
        if without:
            query = query.where(_OUTBOX.c.dataset.not_in(without))
        return [OutboxEntry(**row._mapping) for row in self._database.rows(query)]

    def outbox_size(self) -> int:
        return int(self._database.rows(sa.select(sa.func.count()).select_from(_OUTBOX))[0][0])

    def delete(self, number: int) -> None:
        self._database.execute(sa.delete(_OUTBOX).where(_OUTBOX.c.number == number))


def _upsert(connection: sa.Connection, table: sa.Table, values: dict[str, Any]) -> None:
    keys = [column.name for column in table.primary_key]
    connection.execute(insert(table).values(values).on_conflict_do_update(index_elements=keys, set_=values))


def _encoded(state: ControlState) -> _State:
    return _State(
        generation=state.generation,
        nodes={
            str(name): _Node(node.parent, node.run, node.address, list(node.streams))
            for name, node in state.nodes.items()
        },
        streams={name: encode_stream(stream) for name, stream in state.streams.items()},
        queries=dict(state.queries),
        publishers={name: (str(record.owner), list(record.streams)) for name, record in state.publishers.items()},
        sources={
            name: _Source(source.home, encode_source(source.spec), source.position)
            for name, source in state.sources.items()
        },
        placement={str(operator): str(node) for operator, node in state.placement.items()},
        members=None if state.members is None else [str(node) for node in state.members],
    )


def _decoded(state: _State) -> ControlState:
    return ControlState(
        generation=state.generation,
        nodes={
            EdgeNodeId(name): NodeRecord(
                None if node.parent is None else EdgeNodeId(node.parent), node.run, node.address, tuple(node.streams)
            )
            for name, node in state.nodes.items()
        },
        streams={name: decode_stream(stream) for name, stream in state.streams.items()},
        queries=state.queries,
        publishers={
            name: PublisherRecord(EdgeNodeId(owner), tuple(streams))
            for name, (owner, streams) in state.publishers.items()
        },
        sources={
            name: SourceRecord(EdgeNodeId(source.home), decode_source(source.source), source.position)
            for name, source in state.sources.items()
        },
        placement={OperatorId(operator): EdgeNodeId(node) for operator, node in state.placement.items()},
        members=None if state.members is None else tuple(map(EdgeNodeId, state.members)),
    )
