"""The catalog's executions: those that had results, in the order in which they are announced to brokers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from tocsin.cluster.catalog.dead_letters import delete_letters, insert_letters
from tocsin.cluster.catalog.files import insert_files, insert_owned_files, results_owner
from tocsin.cluster.catalog.tables import (
    DeadLetter,
    NewFile,
    StoredExecution,
    WriteId,
    channels,
    executions,
    positions,
    read_fact,
    to_json,
    write_fact,
)
from tocsin.cluster.catalog.writes import finish_write, finish_writes
from tocsin.database.database import Database
from tocsin.model.ids import ChannelName, DatasetName
from tocsin.wire.errors import Code, TocsinError

_FORGOTTEN = "expired_sequence"
"""The fact that holds the highest sequence of an execution that was deleted."""


@dataclass(frozen=True, slots=True)
class ExecutionOutcome:
    """What an execution learnt about its inputs."""

    tried: int
    """Subscriptions up to this number have taken part in an execution."""
    letters: Sequence[DeadLetter] = ()
    """Records that it passed over, because they make the query fail."""
    replayed: Sequence[int] = ()
    """The ids of dead letters that it has matched."""


@dataclass(frozen=True, slots=True)
class NewExecution:
    """An execution that is not committed yet."""

    execution: StoredExecution
    last: int
    """The last execution number that it uses."""
    files: Sequence[NewFile]
    write: WriteId
    """The intent of the files."""
    tried: int
    """See `ExecutionOutcome`."""


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
        return [_stored_execution(row) for row in self._database.rows(query)]

    def times(self, channel: ChannelName, epoch: int, first: int = 0) -> Sequence[tuple[int, float]]:
        """(execution, time it finished in seconds), in order, from the last execution not after `first` on."""
        own = (executions.c.channel == channel) & (executions.c.epoch == epoch)
        before = sa.select(sa.func.max(executions.c.execution)).where(own & (executions.c.execution <= first))
        query = sa.select(executions.c.execution, executions.c.finished_s).order_by(executions.c.execution)
        query = query.where(own & (executions.c.execution >= sa.func.coalesce(before.scalar_subquery(), 0)))
        return [(row.execution, row.finished_s) for row in self._database.rows(query)]

    def last_sequence(self) -> int:
        with self._database.read() as connection:
            kept: int = connection.scalar(sa.select(sa.func.max(executions.c.sequence))) or 0
        return max(kept, self.forgotten_sequence())

    def forgotten_sequence(self) -> int:
        """Executions up to this sequence may be deleted: a broker that has not read them yet has a gap."""
        with self._database.read() as connection:
            return int(read_fact(connection, _FORGOTTEN) or 0)

    def expire(self, channel: ChannelName, before_s: float) -> bool:
        """Delete a channel's executions that were committed before `before_s`, by the retention clock.

        Return True if there were some.
        """
        with self._database.write() as connection:
            expired = (executions.c.retained_s < before_s) | (
                executions.c.retained_s.is_(None) & (executions.c.finished_s < before_s)
            )
            return forget_executions(connection, (executions.c.channel == channel) & expired)

    def oldest_s(self, channel: ChannelName) -> float:
        """When the oldest execution of a channel was committed, by the retention clock; infinity if there is none.

        Minus infinity if one of an earlier release does not say so.
        """
        own = executions.c.channel == channel
        without = sa.select(executions.c.sequence).where(own, executions.c.retained_s.is_(None)).limit(1)
        with self._database.read() as connection:
            if connection.scalar(without) is not None:
                return -math.inf
            oldest: float | None = connection.scalar(sa.select(sa.func.min(executions.c.retained_s)).where(own))
        return math.inf if oldest is None else oldest

    def commit(
        self,
        execution: StoredExecution,
        last: int,
        new_files: Sequence[NewFile],
        at_s: float,
        write: WriteId | None = None,
        outcome: ExecutionOutcome | None = None,
    ) -> StoredExecution | None:
        """Move the channel past its intervals and make the results visible. Return None if there are none.

        The sequence of the returned execution is set. An execution with more results for one subscription than one
        number has room for uses the numbers from its own to `last`. `at_s` is the time by the
        retention clock, `write` the intent of the files, `outcome` what the execution learnt about its inputs.
        """
        channel, owner = execution.channel, results_owner(execution.channel, execution.epoch)
        row = _row(execution, at_s)
        try:
            with self._database.write() as connection:
                move_positions(connection, channel, execution.intervals)
                finish_write(connection, write)
                if outcome is not None:
                    _store_outcome(connection, channel, outcome, at_s)
                if not execution.results:
                    return None
                connection.execute(sa.update(channels).where(channels.c.name == channel).values(execution=last))
                insert_files(connection, owner, new_files, at_s)
                primary_key = connection.execute(sa.insert(executions).values(**row)).inserted_primary_key
                assert primary_key is not None
                return replace(execution, sequence=int(primary_key[0]))
        except DBAPIError:
            # The connection may have broken after the commit. Executions of a channel follow each other, so the stored
            # sequence or the positions show whether this one was committed.
            if not execution.results and self._has_moved_past(channel, execution.intervals):
                return None
            sequence = self._sequence_of(execution) if execution.results else None
            if sequence is None:
                raise
            return replace(execution, sequence=sequence)

    def commit_together(self, new: Sequence[NewExecution], at_s: float) -> list[StoredExecution | None]:
        """Commit executions of different channels in one transaction: see `commit`.

        If this raises, either all are committed or none is. The caller reads the catalog to find out.
        """
        with_results = [one for one in new if one.execution.results]
        owned = [
            (results_owner(one.execution.channel, one.execution.epoch), file)
            for one in with_results
            for file in one.files
        ]
        with self._database.write() as connection:
            move_positions_together(connection, [(one.execution.channel, one.execution.intervals) for one in new])
            finish_writes(connection, [one.write for one in new])
            connection.execute(
                _PROGRESS,
                [{"of": one.execution.channel, "tried": one.tried, "execution": one.last} for one in new],
            )
            insert_owned_files(connection, owned, at_s)
            sequences = self._insert_together(connection, [one.execution for one in with_results], at_s)
        return [
            replace(one.execution, sequence=sequences[one.execution.channel]) if one.execution.results else None
            for one in new
        ]

    def _insert_together(
        self, connection: Connection, new: Sequence[StoredExecution], at_s: float
    ) -> dict[ChannelName, int]:
        """Insert executions in this order; return their sequences by channel."""
        if not new:
            return {}
        rows = [_row(execution, at_s) for execution in new]
        inserted = connection.execute(
            sa.insert(executions).returning(executions.c.sequence, executions.c.channel, sort_by_parameter_order=True),
            rows,
        )
        return {ChannelName(row.channel): int(row.sequence) for row in inserted}

    def _sequence_of(self, execution: StoredExecution) -> int | None:
        query = sa.select(executions.c.sequence).where(executions.c.channel == execution.channel)
        query = query.where(executions.c.epoch == execution.epoch, executions.c.execution == execution.execution)
        return next((row.sequence for row in self._database.rows(query)), None)

    def _has_moved_past(self, channel: ChannelName, intervals: Mapping[DatasetName, tuple[int, int]]) -> bool:
        """Whether the channel has moved past these intervals. False if all of them are empty."""
        rows = self._database.rows(sa.select(positions).where(positions.c.channel == channel))
        stored = {row.dataset: row.version for row in rows}
        moved = [(dataset, upto) for dataset, (after, upto) in intervals.items() if upto > after]
        return bool(moved) and all(stored.get(dataset) == upto for dataset, upto in moved)


_PROGRESS = (
    sa.update(channels)
    .where(channels.c.name == sa.bindparam("of"))
    .values(tried=sa.bindparam("tried"), execution=sa.bindparam("execution"))
)
_MOVE = (
    sa.update(positions)
    .where(
        positions.c.channel == sa.bindparam("of"),
        positions.c.dataset == sa.bindparam("from_dataset"),
        positions.c.version == sa.bindparam("after"),
    )
    .values(version=sa.bindparam("upto"))
)


def _row(execution: StoredExecution, at_s: float) -> dict[str, object]:
    return {
        "channel": execution.channel,
        "epoch": execution.epoch,
        "execution": execution.execution,
        "intervals": to_json(execution.intervals),
        "results": execution.results,
        "bytes": execution.bytes,
        "started_s": execution.started_s,
        "finished_s": execution.finished_s,
        "retained_s": at_s,
    }


def _store_outcome(connection: Connection, channel: ChannelName, outcome: ExecutionOutcome, at_s: float) -> None:
    connection.execute(sa.update(channels).where(channels.c.name == channel).values(tried=outcome.tried))
    insert_letters(connection, channel, outcome.letters, at_s)
    delete_letters(connection, outcome.replayed)


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


def move_positions_together(
    connection: Connection, moves: Sequence[tuple[ChannelName, Mapping[DatasetName, tuple[int, int]]]]
) -> None:
    """Move several channels: see `move_positions`."""
    rows = [
        {"of": channel, "from_dataset": dataset, "after": after, "upto": upto}
        for channel, intervals in moves
        for dataset, (after, upto) in intervals.items()
    ]
    # Some drivers count only the rows of the last statement.
    at_once = [rows] if connection.dialect.supports_sane_multi_rowcount else [[row] for row in rows]
    if sum(connection.execute(_MOVE, part).rowcount for part in at_once if part) != len(rows):
        raise TocsinError(Code.INTERNAL, "a channel is not at the version that it has read from: it ran twice")


def forget_executions(connection: Connection, condition: sa.ColumnElement[bool]) -> bool:
    """Delete executions and record the highest sequence among them in the same transaction.

    Return False if there are none.
    """
    highest: int = connection.scalar(sa.select(sa.func.max(executions.c.sequence)).where(condition)) or 0
    if highest:
        connection.execute(sa.delete(executions).where(condition))
        if highest > int(read_fact(connection, _FORGOTTEN) or 0):
            write_fact(connection, _FORGOTTEN, str(highest))
    return highest > 0


def _stored_execution(row: Any) -> StoredExecution:
    values = {name: value for name, value in row._mapping.items() if name != "retained_s"}
    values["intervals"] = msgspec.json.decode(row.intervals, type=dict[str, tuple[int, int]])
    return StoredExecution(**values)
