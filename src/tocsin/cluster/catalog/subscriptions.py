"""The catalog's backend subscriptions: one row each, however many brokers hold it [BAD §3.1].

Inside the data cluster a subscription is named by its number, which is short, ordered and never given twice. Outside it
is named by its id, a digest that every process can compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tocsin.cluster.catalog.tables import StoredSubscription, holders, refusals, subscriptions
from tocsin.database.database import Database, chunks, insert_many
from tocsin.model.ids import BrokerId, ChannelName, SubscriptionId


class SubscriptionTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def subscribe(
        self, channel: ChannelName, requested: Sequence[tuple[SubscriptionId, str]], broker: BrokerId
    ) -> list[StoredSubscription]:
        """Make `broker` a holder of each (id, parameters as JSON). Repeating the call changes nothing."""
        if not requested:
            return []
        with self._database.write() as connection:
            before = connection.scalar(sa.select(sa.func.max(subscriptions.c.number))) or 0
            keys = [bytes.fromhex(subscription) for subscription, _ in requested]
            rows = [
                {"channel": channel, "id": key, "parameters": parameters}
                for key, (_, parameters) in zip(keys, requested, strict=True)
            ]
            insert_many(connection, subscriptions, rows, ignore_existing=True)
            numbers = _numbers(connection, channel, keys)
            insert_many(
                connection,
                holders,
                [{"number": number, "broker": broker} for number in numbers.values()],
                ignore_existing=True,
            )
        return [
            StoredSubscription(numbers[key], subscription, parameters, created=numbers[key] > before)
            for (subscription, parameters), key in zip(requested, keys, strict=True)
        ]

    def unsubscribe(
        self, channel: ChannelName, ids: Sequence[SubscriptionId], broker: BrokerId
    ) -> tuple[list[int], list[int]]:
        """Release `broker`'s hold on these subscriptions. A subscription without a holder stays until `end_unheld`.

        Returns the numbers that the broker held, and those of them that no broker holds now.
        """
        with self._database.write() as connection:
            numbers_by_id = _numbers(connection, channel, [bytes.fromhex(subscription) for subscription in ids])
            released: list[int] = []
            for numbers in chunks(sorted(numbers_by_id.values())):
                own = list(
                    connection.scalars(
                        sa.select(holders.c.number).where(holders.c.broker == broker, holders.c.number.in_(numbers))
                    )
                )
                connection.execute(sa.delete(holders).where(holders.c.broker == broker, holders.c.number.in_(own)))
                released += own
            return released, _unheld(connection, released)

    def end_unheld(self, numbers: Sequence[int]) -> list[int]:
        """Delete those of these subscriptions that no broker holds, and return their numbers."""
        with self._database.write() as connection:
            unheld = _unheld(connection, numbers)
            for chunk in chunks(unheld):
                connection.execute(sa.delete(subscriptions).where(subscriptions.c.number.in_(chunk)))
            return unheld

    def unheld(self, channel: ChannelName) -> list[int]:
        """The numbers of a channel's subscriptions that no broker holds."""
        held = sa.exists().where(holders.c.number == subscriptions.c.number)
        query = sa.select(subscriptions.c.number).where(subscriptions.c.channel == channel, ~held)
        with self._database.read() as connection:
            return list(connection.scalars(query))

    def refuse(
        self, channel: ChannelName, reasons: Mapping[int, str], postponed: Sequence[int] = ()
    ) -> dict[SubscriptionId, str]:
        """End subscriptions, whichever brokers hold them, and store the reasons. Return the reason of each id.

        `postponed` are ended too, without a reason.
        """
        refused: dict[SubscriptionId, str] = {}
        with self._database.write() as connection:
            for chunk in chunks([*reasons, *postponed]):
                of_chunk = subscriptions.c.number.in_(chunk)
                rows = connection.execute(sa.select(subscriptions.c.number, subscriptions.c.id).where(of_chunk)).all()
                rows = [row for row in rows if row.number in reasons]
                stored = [{"channel": channel, "id": key, "reason": reasons[number]} for number, key in rows]
                insert_many(connection, refusals, stored, ignore_existing=True)
                connection.execute(sa.delete(holders).where(holders.c.number.in_(chunk)))
                connection.execute(sa.delete(subscriptions).where(of_chunk))
                refused |= {SubscriptionId(key.hex()): reasons[number] for number, key in rows}
        return refused

    def refused(self, channel: ChannelName) -> dict[SubscriptionId, str]:
        """The subscriptions that the channel has ended because its query fails with their values, with the reason."""
        rows = self._database.rows(sa.select(refusals).where(refusals.c.channel == channel))
        return {SubscriptionId(row.id.hex()): row.reason for row in rows}

    def numbers(self, channel: ChannelName, ids: Sequence[SubscriptionId]) -> dict[SubscriptionId, int]:
        """The numbers of the subscriptions with these ids. An id without a subscription is left out."""
        with self._database.read() as connection:
            numbers = _numbers(connection, channel, [bytes.fromhex(subscription) for subscription in ids])
        return {SubscriptionId(key.hex()): number for key, number in numbers.items()}

    def of_channel(self, channel: ChannelName) -> Iterator[tuple[int, bytes, str]]:
        """(number, id, parameters as JSON) of a channel's subscriptions, by number.

        Streams the rows: there may be a million.
        """
        query = (
            sa.select(subscriptions.c.number, subscriptions.c.id, subscriptions.c.parameters)
            .where(subscriptions.c.channel == channel)
            .order_by(subscriptions.c.number)
        )
        with self._database.read() as connection:
            for row in connection.execution_options(yield_per=20_000).execute(query):
                yield row.number, row.id, row.parameters

    def holders(self) -> Iterator[tuple[int, BrokerId]]:
        """(subscription number, a broker that holds it), by number."""
        with self._database.read() as connection:
            rows = connection.execution_options(yield_per=20_000).execute(
                sa.select(holders.c.number, holders.c.broker).order_by(holders.c.number)
            )
            for number, broker in rows:
                yield number, BrokerId(broker)

    def holders_of(self, numbers: Sequence[int]) -> dict[int, list[BrokerId]]:
        """The brokers that hold each of these subscriptions."""
        with self._database.read() as connection:
            return _holders(connection, numbers)

    def find(self, subscription: SubscriptionId) -> list[tuple[ChannelName, int, str, list[BrokerId]]]:
        """(channel, number, parameters as JSON, holders) of the subscriptions with this id."""
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(subscriptions).where(subscriptions.c.id == bytes.fromhex(subscription))
            ).all()
            brokers = _holders(connection, [row.number for row in rows])
        return [(ChannelName(row.channel), row.number, row.parameters, sorted(brokers[row.number])) for row in rows]

    def page(
        self, channel: ChannelName | None, broker: BrokerId | None, after: int, limit: int
    ) -> list[tuple[int, ChannelName, SubscriptionId, str, list[BrokerId]]]:
        """(number, channel, id, parameters as JSON, holders) of at most `limit` subscriptions above `after`."""
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
            brokers = _holders(connection, [row.number for row in rows])
        return [
            (row.number, ChannelName(row.channel), SubscriptionId(row.id.hex()), row.parameters, brokers[row.number])
            for row in rows
        ]


def _numbers(connection: Connection, channel: ChannelName, keys: Sequence[bytes]) -> dict[bytes, int]:
    """The numbers of the subscriptions with these ids. An id without a subscription is left out."""
    numbers: dict[bytes, int] = {}
    for chunk in chunks(keys):
        rows = connection.execute(
            sa.select(subscriptions.c.id, subscriptions.c.number).where(
                subscriptions.c.channel == channel, subscriptions.c.id.in_(chunk)
            )
        )
        numbers.update((key, number) for key, number in rows)
    return numbers


def _unheld(connection: Connection, numbers: Sequence[int]) -> list[int]:
    """Those of these subscriptions that no broker holds."""
    unheld: list[int] = []
    for chunk in chunks(numbers):
        held = set(connection.scalars(sa.select(holders.c.number).where(holders.c.number.in_(chunk))))
        unheld += [number for number in chunk if number not in held]
    return unheld


def _holders(connection: Connection, numbers: Sequence[int]) -> dict[int, list[BrokerId]]:
    """The brokers that hold each of these subscriptions."""
    brokers: dict[int, list[BrokerId]] = {number: [] for number in numbers}
    for chunk in chunks(numbers):
        rows = connection.execute(sa.select(holders.c.number, holders.c.broker).where(holders.c.number.in_(chunk)))
        for number, broker in rows:
            brokers[number].append(BrokerId(broker))
    return brokers
