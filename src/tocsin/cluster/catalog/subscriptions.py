"""The catalog's backend subscriptions: one row each, however many brokers hold it [BAD §3.1].

Inside the data cluster a subscription goes by its number, which is short, ordered and never given twice; outside by its
id, the digest that everybody can compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tocsin.cluster.catalog.tables import StoredSubscription, holders, subscriptions
from tocsin.database.database import Database, chunks, insert_many
from tocsin.model.ids import BrokerId, ChannelName, SubscriptionId


class SubscriptionTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def subscribe(
        self, channel: ChannelName, wanted: Sequence[tuple[SubscriptionId, str]], broker: BrokerId
    ) -> list[StoredSubscription]:
        """One row per distinct subscription, one holder row per broker that wants it; repeating it changes nothing."""
        if not wanted:
            return []
        with self._database.write() as connection:
            before = connection.scalar(sa.select(sa.func.max(subscriptions.c.number))) or 0
            keys = [bytes.fromhex(subscription) for subscription, _ in wanted]
            rows = [
                {"channel": channel, "id": key, "parameters": parameters}
                for key, (_, parameters) in zip(keys, wanted, strict=True)
            ]
            insert_many(connection, subscriptions, rows, ignore_existing=True)
            found = _numbers(connection, channel, keys)
            insert_many(
                connection,
                holders,
                [{"number": number, "broker": broker} for number in found.values()],
                ignore_existing=True,
            )
        return [
            StoredSubscription(found[key], subscription, parameters, created=found[key] > before)
            for (subscription, parameters), key in zip(wanted, keys, strict=True)
        ]

    def unsubscribe(
        self, channel: ChannelName, unwanted: Sequence[SubscriptionId], broker: BrokerId
    ) -> tuple[list[int], list[int]]:
        """The numbers `broker` let go of, and those of them that nobody holds any more and that are gone now."""
        with self._database.write() as connection:
            found = _numbers(connection, channel, [bytes.fromhex(subscription) for subscription in unwanted])
            released: list[int] = []
            gone: list[int] = []
            for numbers in chunks(sorted(found.values())):
                mine = list(
                    connection.scalars(
                        sa.select(holders.c.number).where(holders.c.broker == broker, holders.c.number.in_(numbers))
                    )
                )
                connection.execute(sa.delete(holders).where(holders.c.broker == broker, holders.c.number.in_(mine)))
                still = set(connection.scalars(sa.select(holders.c.number).where(holders.c.number.in_(mine))))
                orphaned = [number for number in mine if number not in still]
                connection.execute(sa.delete(subscriptions).where(subscriptions.c.number.in_(orphaned)))
                released += mine
                gone += orphaned
            return released, gone

    def remove(self, numbers: Sequence[int]) -> list[SubscriptionId]:
        """Whoever holds them; returns their ids."""
        with self._database.write() as connection:
            keys: list[bytes] = []
            for some in chunks(numbers):
                keys += connection.scalars(sa.select(subscriptions.c.id).where(subscriptions.c.number.in_(some)))
                connection.execute(sa.delete(holders).where(holders.c.number.in_(some)))
                connection.execute(sa.delete(subscriptions).where(subscriptions.c.number.in_(some)))
            return [SubscriptionId(key.hex()) for key in keys]

    def numbers(self, channel: ChannelName, wanted: Sequence[SubscriptionId]) -> dict[SubscriptionId, int]:
        """The numbers of those that exist."""
        with self._database.read() as connection:
            found = _numbers(connection, channel, [bytes.fromhex(subscription) for subscription in wanted])
        return {SubscriptionId(key.hex()): number for key, number in found.items()}

    def of_channel(self, channel: ChannelName) -> Iterator[tuple[int, bytes, str]]:
        """(number, id, parameters) of all, by number. Streams: there may be a million."""
        query = (
            sa.select(subscriptions.c.number, subscriptions.c.id, subscriptions.c.parameters)
            .where(subscriptions.c.channel == channel)
            .order_by(subscriptions.c.number)
        )
        with self._database.read() as connection:
            for row in connection.execution_options(yield_per=20_000).execute(query):
                yield row.number, row.id, row.parameters

    def holders(self) -> Iterator[tuple[int, BrokerId]]:
        with self._database.read() as connection:
            rows = connection.execution_options(yield_per=20_000).execute(
                sa.select(holders.c.number, holders.c.broker).order_by(holders.c.number)
            )
            for number, broker in rows:
                yield number, BrokerId(broker)

    def find(self, subscription: SubscriptionId) -> list[tuple[ChannelName, int, str, list[BrokerId]]]:
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(subscriptions).where(subscriptions.c.id == bytes.fromhex(subscription))
            ).all()
            return [
                (
                    ChannelName(row.channel),
                    row.number,
                    row.parameters,
                    [
                        BrokerId(name)
                        for name in connection.scalars(
                            sa.select(holders.c.broker).where(holders.c.number == row.number).order_by(holders.c.broker)
                        )
                    ],
                )
                for row in rows
            ]

    def page(
        self, channel: ChannelName | None, broker: BrokerId | None, after: int, limit: int
    ) -> list[tuple[int, ChannelName, SubscriptionId, str, list[BrokerId]]]:
        query = (
            sa.select(subscriptions).where(subscriptions.c.number > after).order_by(subscriptions.c.number).limit(limit)
        )
        if channel is not None:
            query = query.where(subscriptions.c.channel == channel)
        if broker is not None:
            query = query.where(
                subscriptions.c.number.in_(sa.select(holders.c.number).where(holders.c.broker == broker))
            )
        with self._database.read() as connection:
            rows = connection.execute(query).all()
            held: dict[int, list[BrokerId]] = {row.number: [] for row in rows}
            for numbers in chunks(list(held)):
                for number, name in connection.execute(
                    sa.select(holders.c.number, holders.c.broker).where(holders.c.number.in_(numbers))
                ):
                    held[number].append(BrokerId(name))
        return [
            (row.number, ChannelName(row.channel), SubscriptionId(row.id.hex()), row.parameters, held[row.number])
            for row in rows
        ]


def _numbers(connection: Connection, channel: ChannelName, keys: Sequence[bytes]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for chunk in chunks(keys):
        rows = connection.execute(
            sa.select(subscriptions.c.id, subscriptions.c.number).where(
                subscriptions.c.channel == channel, subscriptions.c.id.in_(chunk)
            )
        )
        found.update((key, number) for key, number in rows)
    return found
