"""The coordinator's durable state in SQL: SQLite by default, PostgreSQL by URL. Calls block; use threads.

`commit` writes the `Store…` and `Forget…` effects of many events in one transaction; repeating a commit is harmless.
Only the process that opened the store last may write. Every transaction first checks this, and fails with `Superseded`
before it writes anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from tocsin.coordinator.effects import (
    ForgetBroker,
    ForgetMigration,
    ForgetSubscriber,
    ForgetTopic,
    StoreBroker,
    StoredState,
    StoreEffect,
    StoreFact,
    StoreMigration,
    StoreRevocation,
    StoreSubscriber,
    StoreSubscriptions,
    StoreTopic,
    StoreTopicLog,
    StoreWebhook,
)
from tocsin.coords.coordinate import Coordinate
from tocsin.database.database import Database, chunks
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.model.snapshot import Place
from tocsin.wire.link import Frontend, Webhook

_metadata = sa.MetaData()
_ID = sa.String(256)

_brokers = sa.Table(
    "coordinator_brokers", _metadata,
    sa.Column("broker", _ID, primary_key=True), sa.Column("address", sa.Text, nullable=False),
    sa.Column("incarnation", sa.Text, nullable=False), sa.Column("capacity", sa.Double, nullable=False),
    sa.Column("lat", sa.Double), sa.Column("lon", sa.Double), sa.Column("draining", sa.Boolean, nullable=False),
    sa.Column("dead", sa.Boolean, nullable=False), sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("dismissed", sa.Boolean, nullable=False),
)  # fmt: skip
_subscribers = sa.Table(
    "coordinator_subscribers", _metadata,
    sa.Column("subscriber", _ID, primary_key=True), sa.Column("lat", sa.Double), sa.Column("lon", sa.Double),
    sa.Column("coordinate", sa.Text), sa.Column("home", _ID), sa.Column("moved_at_s", sa.Double),
    sa.Column("deleted", sa.Boolean, nullable=False), sa.Column("uncertain", sa.Boolean, nullable=False),
)  # fmt: skip
_subscriptions = sa.Table(
    "coordinator_subscriptions", _metadata,
    sa.Column("subscriber", _ID, primary_key=True), sa.Column("subscription", _ID, primary_key=True),
    sa.Column("channel", sa.Text, nullable=False), sa.Column("parameters", sa.Text, nullable=False),
    sa.Column("cursor", sa.Text, nullable=False),
)  # fmt: skip
_webhooks = sa.Table(
    "coordinator_webhooks", _metadata,
    sa.Column("subscriber", _ID, primary_key=True), sa.Column("url", sa.Text, nullable=False),
    sa.Column("secrets", sa.Text, nullable=False),
)  # fmt: skip
_migrations = sa.Table(
    "coordinator_migrations", _metadata,
    sa.Column("migration", _ID, primary_key=True), sa.Column("subscriber", _ID, nullable=False),
    sa.Column("source", _ID, nullable=False), sa.Column("target", _ID, nullable=False),
    sa.Column("step", sa.Text, nullable=False), sa.Column("urgency", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False), sa.Column("began_s", sa.Double, nullable=False),
    sa.Column("claimed", sa.Boolean, nullable=False), sa.Column("adopted", sa.Boolean, nullable=False),
)  # fmt: skip
_facts = sa.Table(
    "coordinator_facts", _metadata,
    sa.Column("name", _ID, primary_key=True), sa.Column("value", sa.Text, nullable=False),
)  # fmt: skip

_revocations = sa.Table(
    "coordinator_revocations", _metadata,
    sa.Column("kind", sa.String(16), primary_key=True), sa.Column("name", _ID, primary_key=True),
    sa.Column("at_s", sa.Double, nullable=False),
)  # fmt: skip

_topics = sa.Table(
    "coordinator_topics", _metadata,
    sa.Column("topic", _ID, primary_key=True), sa.Column("created", sa.BigInteger, nullable=False),
    sa.Column("within_s", sa.Double), sa.Column("made_on_use", sa.Boolean, nullable=False),
    sa.Column("home", _ID), sa.Column("incarnation", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False), sa.Column("record_into", sa.Text),
    sa.Column("recording", sa.Text),
)  # fmt: skip

_topic_logs = sa.Table(
    "coordinator_topic_logs", _metadata,
    sa.Column("topic", _ID, primary_key=True), sa.Column("replicas", sa.Text, nullable=False),
    sa.Column("quorum", sa.Integer, nullable=False), sa.Column("retain_bytes", sa.BigInteger, nullable=False),
    sa.Column("retain_s", sa.Double),
)  # fmt: skip

_EPOCH = "epoch"
_TABLES_OF_SUBSCRIBERS = (_subscribers, _subscriptions, _webhooks)

Key = tuple[str, ...]
Row = dict[str, Any]


class Superseded(Exception):
    """Another coordinator has opened this store, so this one must not write any more."""


class CoordinatorStore:
    def __init__(self, url: str, epoch: str) -> None:
        """Take over the store. `epoch` must differ between processes."""
        self._database = Database(url, _metadata)
        self._epoch = epoch
        with self._database.write() as connection:
            _upsert(connection, _facts, [{"name": _EPOCH, "value": epoch}])

    def close(self) -> None:
        self._database.close()

    def commit(self, effects: Iterable[StoreEffect]) -> None:
        """Write all effects or none. They are durable when it returns."""
        batch = _Batch()
        for effect in effects:
            batch.add(effect)
        with self._database.write() as connection:
            own_epoch = sa.and_(_facts.c.name == _EPOCH, _facts.c.value == self._epoch)
            if connection.execute(sa.update(_facts).where(own_epoch).values(value=self._epoch)).rowcount != 1:
                raise Superseded("another coordinator has taken over this store")
            batch.write(connection)

    def load(self) -> StoredState:
        with self._database.read() as connection:
            return StoredState(
                tuple(_broker(row) for row in _rows(connection, _brokers)),
                tuple(_subscriber(row) for row in _rows(connection, _subscribers)),
                tuple(_subscription(row) for row in _rows(connection, _subscriptions)),
                tuple(_webhook(row) for row in _rows(connection, _webhooks)),
                tuple(_migration(row) for row in _rows(connection, _migrations)),
                tuple(StoreFact(row["name"], row["value"]) for row in _rows(connection, _facts)),
                tuple(StoreRevocation(**row) for row in _rows(connection, _revocations)),
                tuple(StoreTopic(**row) for row in _rows(connection, _topics)),
                tuple(
                    StoreTopicLog(**{**row, "replicas": tuple(msgspec.json.decode(row["replicas"]))})
                    for row in _rows(connection, _topic_logs)
                ),
            )


class _Batch:
    """The effects of one commit, reduced to the last value of each row. None deletes the row."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[Key, Row | None]] = {table.name: {} for table in _metadata.sorted_tables}
        self._removed_subscribers: set[SubscriberId] = set()

    def add(self, effect: StoreEffect) -> None:
        match effect:
            case StoreBroker():
                self._put(_brokers, (effect.broker,), _without_place(effect))
            case ForgetBroker(broker):
                self._put(_brokers, (broker,), None)
            case StoreSubscriber():
                row = _without_place(effect)
                row["moved_at_s"] = effect.moved_at_s if math.isfinite(effect.moved_at_s) else None
                row["coordinate"] = None if effect.coordinate is None else _json(effect.coordinate)
                self._put(_subscribers, (effect.subscriber,), row)
            case ForgetSubscriber(subscriber):
                self._remove_subscriber(subscriber)
            case StoreSubscriptions(subscriber, held, removed):
                for frontend in held:
                    row = {
                        "subscriber": subscriber,
                        "subscription": frontend.subscription,
                        "channel": frontend.channel,
                        "parameters": _json(frontend.parameters),
                        "cursor": frontend.cursor,
                    }
                    self._put(_subscriptions, (subscriber, frontend.subscription), row)
                for subscription in removed:
                    self._put(_subscriptions, (subscriber, subscription), None)
            case StoreWebhook(subscriber, None):
                self._put(_webhooks, (subscriber,), None)
            case StoreWebhook(subscriber, Webhook(url, secrets)):
                row = {"subscriber": subscriber, "url": url, "secrets": _json(secrets)}
                self._put(_webhooks, (subscriber,), row)
            case StoreMigration():
                self._put(_migrations, (effect.migration,), msgspec.to_builtins(effect))
            case ForgetMigration(migration):
                self._put(_migrations, (migration,), None)
            case StoreFact(name, value):
                self._put(_facts, (name,), {"name": name, "value": value})
            case StoreRevocation(kind, name, at_s):
                self._put(_revocations, (kind, name), {"kind": kind, "name": name, "at_s": at_s})
            case StoreTopic(topic):
                self._put(_topics, (topic,), msgspec.to_builtins(effect))
            case StoreTopicLog(topic, replicas):
                row = msgspec.to_builtins(effect) | {"replicas": msgspec.json.encode(replicas).decode()}
                self._put(_topic_logs, (topic,), row)
            case ForgetTopic(topic):
                self._put(_topics, (topic,), None)
                self._put(_topic_logs, (topic,), None)

    def _put(self, table: sa.Table, key: Key, row: Row | None) -> None:
        self._rows[table.name][key] = row

    def _remove_subscriber(self, subscriber: SubscriberId) -> None:
        self._removed_subscribers.add(subscriber)
        for table in _TABLES_OF_SUBSCRIBERS:
            rows = self._rows[table.name]
            for key in [key for key in rows if key[0] == subscriber]:
                del rows[key]

    def write(self, connection: Connection) -> None:
        for subscribers in chunks(sorted(self._removed_subscribers), 500):
            for table in _TABLES_OF_SUBSCRIBERS:
                connection.execute(sa.delete(table).where(table.c.subscriber.in_(subscribers)))
        for table in _metadata.sorted_tables:
            rows = self._rows[table.name]
            _delete(connection, table, [key for key, row in rows.items() if row is None])
            _upsert(connection, table, [row for row in rows.values() if row is not None])


def _upsert(connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    dialect: Any = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(table)
    keys = [column.name for column in table.primary_key]
    values = {column.name: statement.excluded[column.name] for column in table.c if column.name not in keys}
    for chunk in chunks(rows):
        connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=values), list(chunk))


def _delete(connection: Connection, table: sa.Table, keys: Sequence[Key]) -> None:
    if not keys:
        return
    columns = list(table.primary_key)
    matches = sa.and_(*(column == sa.bindparam(f"key_{number}") for number, column in enumerate(columns)))
    statement = sa.delete(table).where(matches)
    connection.execute(statement, [{f"key_{number}": part for number, part in enumerate(key)} for key in keys])


def _rows(connection: Connection, table: sa.Table) -> Iterable[Row]:
    for row in connection.execute(sa.select(table)).mappings():
        yield dict(row)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _without_place(effect: StoreBroker | StoreSubscriber) -> Row:
    row: Row = {name: getattr(effect, name) for name in effect.__dataclass_fields__ if name != "place"}
    row["lat"] = None if effect.place is None else effect.place.lat
    row["lon"] = None if effect.place is None else effect.place.lon
    return row


def _place(row: Row) -> Place | None:
    lat, lon = row.pop("lat"), row.pop("lon")
    return None if lat is None or lon is None else Place(lat, lon)


def _broker(row: Row) -> StoreBroker:
    return StoreBroker(place=_place(row), **row)


def _subscriber(row: Row) -> StoreSubscriber:
    place, coordinate, moved_at_s = _place(row), row.pop("coordinate"), row.pop("moved_at_s")
    return StoreSubscriber(
        place=place,
        coordinate=None if coordinate is None else msgspec.json.decode(coordinate, type=Coordinate),
        moved_at_s=-math.inf if moved_at_s is None else moved_at_s,
        **row,
    )


def _subscription(row: Row) -> StoreSubscriptions:
    parameters = msgspec.json.decode(row["parameters"])
    frontend = Frontend(SubscriptionId(row["subscription"]), ChannelName(row["channel"]), parameters, row["cursor"])
    return StoreSubscriptions(SubscriberId(row["subscriber"]), (frontend,))


def _webhook(row: Row) -> StoreWebhook:
    secrets = msgspec.json.decode(row["secrets"], type=list[str])
    return StoreWebhook(SubscriberId(row["subscriber"]), Webhook(row["url"], secrets))


def _migration(row: Row) -> StoreMigration:
    return StoreMigration(**(row | {"source": BrokerId(row["source"]), "target": BrokerId(row["target"])}))
