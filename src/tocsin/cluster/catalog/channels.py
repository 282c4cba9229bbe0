"""The catalog's channels: definitions, epochs, and the version of each dataset up to which a channel has matched."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tocsin.cluster.catalog.executions import forget_executions, move_positions
from tocsin.cluster.catalog.files import discard_files, results_owner
from tocsin.cluster.catalog.tables import (
    StoredChannel,
    channels,
    executions,
    files,
    holders,
    positions,
    subscriptions,
    to_json,
)
from tocsin.database.database import Database, insert_many
from tocsin.model.entities import Channel
from tocsin.model.ids import ChannelName, DatasetName


class ChannelTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[StoredChannel]:
        with self._database.read() as connection:
            matched: dict[str, dict[DatasetName, int]] = {}
            for row in connection.execute(sa.select(positions)):
                matched.setdefault(row.channel, {})[DatasetName(row.dataset)] = row.version
            return [
                StoredChannel(
                    msgspec.json.decode(row.definition, type=Channel),
                    row.epoch,
                    row.execution,
                    matched.get(row.name, {}),
                )
                for row in connection.execute(sa.select(channels).order_by(channels.c.name))
            ]

    def get(self, name: ChannelName) -> StoredChannel:
        return next(stored for stored in self.all() if stored.channel.name == name)

    def create(self, channel: Channel, epoch: int, at: Mapping[DatasetName, int]) -> None:
        """`at` is the channel's first position in each dataset: NEW covers the versions above it."""
        with self._database.write() as connection:
            connection.execute(
                sa.insert(channels).values(name=channel.name, epoch=epoch, definition=to_json(channel), execution=0)
            )
            _insert_positions(connection, channel.name, at)

    def replace(self, channel: Channel, old_epoch: int, epoch: int, at: Mapping[DatasetName, int], at_s: float) -> None:
        """Put another definition in the place of a channel. Its subscriptions stay; its old results are discarded."""
        with self._database.write() as connection:
            name = channel.name
            connection.execute(
                sa.update(channels)
                .where(channels.c.name == name)
                .values(epoch=epoch, definition=to_json(channel), execution=0)
            )
            connection.execute(sa.delete(positions).where(positions.c.channel == name))
            _insert_positions(connection, name, at)
            forget_executions(connection, executions.c.channel == name)
            discard_files(connection, files.c.owner == results_owner(name, old_epoch), at_s)

    def drop(self, name: ChannelName, epoch: int, at_s: float) -> None:
        with self._database.write() as connection:
            own = sa.select(subscriptions.c.number).where(subscriptions.c.channel == name)
            connection.execute(sa.delete(holders).where(holders.c.number.in_(own)))
            connection.execute(sa.delete(subscriptions).where(subscriptions.c.channel == name))
            connection.execute(sa.delete(positions).where(positions.c.channel == name))
            connection.execute(sa.delete(executions).where(executions.c.channel == name))
            connection.execute(sa.delete(channels).where(channels.c.name == name))
            discard_files(connection, files.c.owner == results_owner(name, epoch), at_s)

    def advance(self, channel: ChannelName, intervals: Mapping[DatasetName, tuple[int, int]]) -> None:
        """Move a channel past records that arrived while it had no subscription."""
        with self._database.write() as connection:
            move_positions(connection, channel, intervals)


def _insert_positions(connection: Connection, channel: ChannelName, at: Mapping[DatasetName, int]) -> None:
    insert_many(
        connection,
        positions,
        [{"channel": channel, "dataset": dataset, "version": version} for dataset, version in at.items()],
    )
