"""The coordinator's durable state in SQL: SQLite by default, PostgreSQL by URL. Calls block; use threads.

`commit` writes the `Store…` and `Forget…` effects of many events in one transaction; repeating a commit is harmless.
Only the process that opened the store last may write. Every transaction first checks this, and fails with `Superseded`
before it writes anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    ForgetTopicMove,
    StoreBroker,
    StoreCapacity,
    StoredState,
    StoreEffect,
    StoreFact,
    StoreMigration,
    StoreRevocation,
    StoreSubscriber,
    StoreSubscriptions,
    StoreTopic,
    StoreTopicLog,
    StoreTopicMove,
    StoreWebhook,
)
from tocsin.coords.coordinate import Coordinate
from tocsin.database.database import Database, Guard, chunks
from tocsin.database.formats import StoredFormat
from tocsin.database.lease import LeaseLost
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.model.snapshot import Place
from tocsin.runtime.coordinator.store_tables import (
    BROKERS,
    CAPACITIES,
    FACTS,
    KEYS,
    METADATA,
    MIGRATIONS,
    REVOCATIONS,
    SUBSCRIBERS,
    SUBSCRIPTIONS,
    TOPIC_LOGS,
    TOPIC_MOVES,
    TOPICS,
    WEBHOOKS,
)
from tocsin.wire.link import Frontend, Webhook
from tocsin.wire.site_link import Role

_FORMAT = StoredFormat("coordinator's store", METADATA)
_EPOCH = "epoch"
_TAKEN = "another coordinator has taken over this store"
_TABLES_OF_SUBSCRIBERS = (SUBSCRIBERS, SUBSCRIPTIONS, WEBHOOKS)

Key = tuple[str, ...]
Row = dict[str, Any]


class Superseded(Exception):
    """Another coordinator has opened this store, so this one must not write any more."""


class CoordinatorStore:
    def __init__(self, url: str, epoch: str, guard: Guard | None = None) -> None:
        """Take over the store. `epoch` must differ between processes. `guard` checks the lease in each transaction."""
        self._database = Database(url, _FORMAT, guard)
        self._epoch = epoch
        with self._database.write() as connection:
            _upsert(connection, FACTS, [{"name": _EPOCH, "value": epoch}])

    def close(self) -> None:
        self._database.close()

    def commit(self, effects: Iterable[StoreEffect]) -> None:
        """Write all effects or none. They are durable when it returns."""
        batch = _Batch()
        for effect in effects:
            batch.add(effect)
        with self._writing() as connection:
            batch.write(connection)

    def keys(self) -> dict[str, str]:
        """File name → content of the keys that `keep_keys` stored."""
        return {row.name: row.content for row in self._database.rows(sa.select(KEYS))}

    def keep_keys(self, keys: Mapping[str, str]) -> None:
        """Replace the stored keys."""
        with self._writing() as connection:
            connection.execute(sa.delete(KEYS))
            _upsert(connection, KEYS, [{"name": name, "content": content} for name, content in keys.items()])

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        try:
            with self._database.write() as connection:
                own_epoch = sa.and_(FACTS.c.name == _EPOCH, FACTS.c.value == self._epoch)
                if connection.execute(sa.update(FACTS).where(own_epoch).values(value=self._epoch)).rowcount != 1:
                    raise Superseded(_TAKEN)
                yield connection
        except LeaseLost as error:
            raise Superseded(_TAKEN) from error

    def load(self) -> StoredState:
        with self._database.read() as connection:
            return StoredState(
                tuple(_broker(row) for row in _rows(connection, BROKERS)),
                tuple(_subscriber(row) for row in _rows(connection, SUBSCRIBERS)),
                tuple(_subscription(row) for row in _rows(connection, SUBSCRIPTIONS)),
                tuple(_webhook(row) for row in _rows(connection, WEBHOOKS)),
                tuple(_migration(row) for row in _rows(connection, MIGRATIONS)),
                tuple(StoreFact(row["name"], row["value"]) for row in _rows(connection, FACTS)),
                tuple(StoreRevocation(**row) for row in _rows(connection, REVOCATIONS)),
                tuple(StoreTopic(**row) for row in _rows(connection, TOPICS)),
                tuple(
                    StoreTopicLog(**{**row, "replicas": tuple(msgspec.json.decode(row["replicas"]))})
                    for row in _rows(connection, TOPIC_LOGS)
                ),
                tuple(StoreTopicMove(**row) for row in _rows(connection, TOPIC_MOVES)),
                tuple(StoreCapacity(**row) for row in _rows(connection, CAPACITIES)),
            )


class _Batch:
    """The effects of one commit, reduced to the last value of each row. None deletes the row."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[Key, Row | None]] = {table.name: {} for table in METADATA.sorted_tables}
        self._removed_subscribers: set[SubscriberId] = set()

    def add(self, effect: StoreEffect) -> None:
        match effect:
            case StoreBroker():
                self._put(BROKERS, (effect.broker,), _without_place(effect) | {"role": effect.role.value})
            case ForgetBroker(broker):
                self._put(BROKERS, (broker,), None)
                self._put(CAPACITIES, (broker,), None)
            case StoreCapacity(broker):
                self._put(CAPACITIES, (broker,), msgspec.to_builtins(effect))
            case StoreSubscriber():
                row = _without_place(effect)
                row["moved_at_s"] = effect.moved_at_s if math.isfinite(effect.moved_at_s) else None
                row["coordinate"] = None if effect.coordinate is None else _json(effect.coordinate)
                self._put(SUBSCRIBERS, (effect.subscriber,), row)
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
                    self._put(SUBSCRIPTIONS, (subscriber, frontend.subscription), row)
                for subscription in removed:
                    self._put(SUBSCRIPTIONS, (subscriber, subscription), None)
            case StoreWebhook(subscriber, None):
                self._put(WEBHOOKS, (subscriber,), None)
            case StoreWebhook(subscriber, Webhook(url, secrets)):
                row = {"subscriber": subscriber, "url": url, "secrets": _json(secrets)}
                self._put(WEBHOOKS, (subscriber,), row)
            case StoreMigration():
                self._put(MIGRATIONS, (effect.migration,), msgspec.to_builtins(effect))
            case ForgetMigration(migration):
                self._put(MIGRATIONS, (migration,), None)
            case StoreFact(name, value):
                self._put(FACTS, (name,), {"name": name, "value": value})
            case StoreRevocation(kind, name, at_s):
                self._put(REVOCATIONS, (kind, name), {"kind": kind, "name": name, "at_s": at_s})
            case StoreTopic(topic):
                self._put(TOPICS, (topic,), msgspec.to_builtins(effect))
            case StoreTopicLog(topic, replicas):
                row = msgspec.to_builtins(effect) | {"replicas": msgspec.json.encode(replicas).decode()}
                self._put(TOPIC_LOGS, (topic,), row)
            case StoreTopicMove(topic):
                self._put(TOPIC_MOVES, (topic,), msgspec.to_builtins(effect))
            case ForgetTopicMove(topic):
                self._put(TOPIC_MOVES, (topic,), None)
            case ForgetTopic(topic):
                for table in (TOPICS, TOPIC_LOGS, TOPIC_MOVES):
                    self._put(table, (topic,), None)

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
        for table in METADATA.sorted_tables:
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
    """A row of an earlier version has no role: the broker registers with it again."""
    role = Role(row.pop("role") or Role.PLAIN)
    return StoreBroker(place=_place(row), role=role, standby=bool(row.pop("standby")), **row)


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
