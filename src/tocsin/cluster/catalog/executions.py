"""The catalog's executions: those that had results, in the order in which brokers hear of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from tocsin.cluster.catalog.files import insert_files, results_owner
from tocsin.cluster.catalog.tables import (
    NewFile,
    StoredExecution,
    channels,
    executions,
    positions,
    read_fact,
    to_json,
    write_fact,
)
from tocsin.database.database import Database
from tocsin.model.ids import ChannelName, DatasetName
from tocsin.wire.errors import Code, TocsinError

_FORGOTTEN = "expired_sequence"
"""The fact that holds the highest sequence of an execution that was deleted."""


class ExecutionTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def page(
        self, after_sequence: int = 0, *, channel: ChannelName | None = None, limit: int = 1000, newest: bool = False
    ) -> list[StoredExecution]:
        """At most `limit` executions by sequence, oldest first or, with `newest`, newest first."""
        query = sa.select(executions).where(executions.c.sequence > after_sequence).limit(limit)
        query = query.order_by(executions.c.sequence.desc() if newest else executions.c.sequence)
        if channel is not None:
            query = query.where(executions.c.channel == channel)
        with self._database.read() as connection:
            return [_stored_execution(row) for row in connection.execute(query)]

    def times(self, channel: ChannelName, epoch: int, first: int = 0) -> Sequence[tuple[int, float]]:
        """(execution, time it finished in seconds), in order, from the last execution not after `first` on."""
        own = (executions.c.channel == channel) & (executions.c.epoch == epoch)
        before = sa.select(sa.func.max(executions.c.execution)).where(own & (executions.c.execution <= first))
        query = sa.select(executions.c.execution, executions.c.finished_s).order_by(executions.c.execution)
        query = query.where(own & (executions.c.execution >= sa.func.coalesce(before.scalar_subquery(), 0)))
        with self._database.read() as connection:
            return [(row.execution, row.finished_s) for row in connection.execute(query)]

    def last_sequence(self) -> int:
        with self._database.read() as connection:
            kept: int = connection.scalar(sa.select(sa.func.max(executions.c.sequence))) or 0
        return max(kept, self.forgotten_sequence())

    def forgotten_sequence(self) -> int:
        """Executions up to this sequence may be deleted: a broker that has not read them yet has a gap."""
        with self._database.read() as connection:
            return int(read_fact(connection, _FORGOTTEN) or 0)

    def expire(self, channel: ChannelName, before_s: float) -> None:
        """Delete a channel's executions that finished before `before_s`."""
        with self._database.write() as connection:
            old = (executions.c.channel == channel) & (executions.c.finished_s < before_s)
            forget_executions(connection, old)

    def commit(
        self,
        channel: ChannelName,
        epoch: int,
        execution: int,
        last: int,
        intervals: Mapping[DatasetName, tuple[int, int]],
        new_files: Sequence[NewFile],
        *,
        results: int,
        size_bytes: int,
        started_s: float,
        finished_s: float,
    ) -> int | None:
        """Move the channel past its intervals and make its results visible. Return the sequence, None without results.

        An execution with more results for one subscription than one number has room for takes the numbers from
        `execution` to `last`.
        """
        row = {
            "channel": channel,
            "epoch": epoch,
            "execution": execution,
            "intervals": to_json(intervals),
            "results": results,
            "bytes": size_bytes,
            "started_s": started_s,
            "finished_s": finished_s,
        }
        try:
            with self._database.write() as connection:
                move_positions(connection, channel, intervals)
                if not results:
                    return None
                connection.execute(sa.update(channels).where(channels.c.name == channel).values(execution=last))
                insert_files(connection, results_owner(channel, epoch), new_files, finished_s)
                primary_key = connection.execute(sa.insert(executions).values(**row)).inserted_primary_key
                assert primary_key is not None
                return int(primary_key[0])
        except DBAPIError:
            # The connection may have broken after the commit. Executions of a channel follow each other, so its
            # sequence or its positions tell.
            sequence = self._sequence_of(channel, epoch, execution) if results else None
            if sequence is None and (results or not self._has_moved_past(channel, intervals)):
                raise
            return sequence

    def _sequence_of(self, channel: ChannelName, epoch: int, execution: int) -> int | None:
        own = (executions.c.channel == channel) & (executions.c.epoch == epoch) & (executions.c.execution == execution)
        with self._database.read() as connection:
            return connection.scalar(sa.select(executions.c.sequence).where(own))

    def _has_moved_past(self, channel: ChannelName, intervals: Mapping[DatasetName, tuple[int, int]]) -> bool:
        """Whether the channel has moved past these intervals. False if all of them are empty."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(positions).where(positions.c.channel == channel))
            stored = {row.dataset: row.version for row in rows}
        moved = [(dataset, upto) for dataset, (after, upto) in intervals.items() if upto > after]
        return bool(moved) and all(stored.get(dataset) == upto for dataset, upto in moved)


def move_positions(
    connection: Connection, channel: ChannelName, intervals: Mapping[DatasetName, tuple[int, int]]
) -> None:
    """Move a channel from the start to the end of each interval; raise if it is not at the start."""
    for dataset, (after, upto) in intervals.items():
        moved = connection.execute(
            sa.update(positions)
            .where(positions.c.channel == channel, positions.c.dataset == dataset, positions.c.version == after)
            .values(version=upto)
        )
        if moved.rowcount != 1:
            raise TocsinError(Code.INTERNAL, f"channel {channel} is not at version {after} of {dataset}: it ran twice")


def forget_executions(connection: Connection, condition: sa.ColumnElement[bool]) -> None:
    """Delete executions and record the highest sequence among them in the same transaction."""
    highest: int = connection.scalar(sa.select(sa.func.max(executions.c.sequence)).where(condition)) or 0
    if highest:
        connection.execute(sa.delete(executions).where(condition))
        if highest > int(read_fact(connection, _FORGOTTEN) or 0):
            write_fact(connection, _FORGOTTEN, str(highest))


def _stored_execution(row: Any) -> StoredExecution:
    intervals = msgspec.json.decode(row.intervals, type=dict[str, tuple[int, int]])
    return StoredExecution(
        sequence=row.sequence,
        channel=ChannelName(row.channel),
        epoch=row.epoch,
        execution=row.execution,
        intervals={DatasetName(name): interval for name, interval in intervals.items()},
        results=row.results,
        bytes=row.bytes,
        started_s=row.started_s,
        finished_s=row.finished_s,
    )
