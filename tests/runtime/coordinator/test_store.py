"""The coordinator's store, on SQLite and on PostgreSQL: `load` returns what `commit` wrote."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import postgresql
from tocsin.coordinator.effects import (
    CheckStore,
    ForgetBroker,
    ForgetMigration,
    ForgetSubscriber,
    ForgetTopic,
    StoreBroker,
    StoreCapacity,
    StoredState,
    StoreEffect,
    StoreFact,
    StoreMigration,
    StoreSubscriber,
    StoreSubscriptions,
    StoreTopic,
    StoreWebhook,
)
from tocsin.coordinator.storage import InMemoryStore
from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId, TopicName
from tocsin.model.snapshot import Place
from tocsin.runtime.coordinator.store import CoordinatorStore, Superseded
from tocsin.wire.link import Frontend, Webhook
from tocsin.wire.site_link import Role


@pytest.fixture(scope="module")
def postgresql_url() -> Iterator[str]:
    yield from postgresql.running_or_skipped()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'coordinator.sqlite'}"
        return
    server: str = request.getfixturevalue("postgresql_url")
    yield server
    postgresql.make_empty(server)


ADA, BOB = SubscriberId("ada"), SubscriberId("bob")
B1, B2 = BrokerId("b1"), BrokerId("b2")


def frontend(name: str, cursor: str = "1-0") -> Frontend:
    return Frontend(SubscriptionId(name), ChannelName("Fires"), {"kind": "ü\u2603", "least": 2.5}, cursor)


EVERYTHING: list[StoreEffect] = [
    StoreBroker(B1, "ws://one", "i1", 2.5, Place(1.5, -2.5), True, False, 3, False),
    StoreBroker(B2, "ws://two", "i2", 1.0, None, False, True, 0, True, Role.EDGE, standby=True),
    StoreCapacity(B1, None, 250_000.0, 1_000.5),
    StoreCapacity(B2, 1e6, None, None),
    StoreSubscriber(ADA, Place(48.1, 11.6), Coordinate(height_s=0.01), B1, 1_800_000_000.25, False, True),
    StoreSubscriber(BOB, None, None, None, -math.inf, True),
    StoreSubscriptions(ADA, (frontend("s1"), frontend("s2", "3-1048577"))),
    StoreWebhook(ADA, Webhook("https://example.org/hook?a=1", ["whsec_1", "whsec_2"])),
    StoreMigration("m1", ADA, B1, B2, "handing_over", "drain", "b1 is drained", 1_800_000_000.5, False),
    StoreFact("placement", "random"),
    StoreTopic(TopicName("swarm/3"), 7, 0.04, False, B1, "i1", 9),
    StoreTopic(TopicName("game/1"), 8, None, True, None, "", 0),
    StoreTopic(TopicName("room/1"), 9, None, False, B1, "i1", 10, "Readings", "5f0c"),
    StoreTopic(TopicName("alarm/1"), 10, None, False, B1, "i1", 11, delay_s=1.0, protected_per_s=5.0),
    CheckStore(),
]


def as_sets(memory: StoredState) -> dict[str, set[str]]:
    """Comparable rows: without order, and without the fact that the store keeps for itself."""
    rows = {name: {repr(row) for row in getattr(memory, name)} for name in StoredState.__slots__}
    rows["facts"] = {row for row in rows["facts"] if "'epoch'" not in row}
    return rows


def test_load_returns_the_committed_rows(url: str) -> None:
    store = CoordinatorStore(url, "first")
    store.commit(EVERYTHING)
    store.close()
    again = CoordinatorStore(url, "second")
    expected = InMemoryStore()
    expected.commit(EVERYTHING)
    assert as_sets(again.load()) == as_sets(expected.load())
    again.close()


def test_repeated_commit_changes_nothing(url: str) -> None:
    store = CoordinatorStore(url, "e")
    store.commit(EVERYTHING)
    before = as_sets(store.load())
    store.commit(EVERYTHING)
    assert as_sets(store.load()) == before
    store.close()


def test_last_effect_on_a_row_in_a_batch_wins(url: str) -> None:
    store = CoordinatorStore(url, "e")
    store.commit(EVERYTHING)
    batch: list[StoreEffect] = [
        StoreSubscriptions(ADA, (frontend("s3"),)),
        ForgetSubscriber(ADA),
        StoreSubscriber(ADA, None, None, B2, 5.0, False),
        StoreSubscriptions(ADA, (frontend("s4"),), (SubscriptionId("s4"),)),
        StoreSubscriptions(ADA, (frontend("s5", "1-1"),)),
        StoreSubscriptions(ADA, (frontend("s5", "1-2"),)),
        ForgetBroker(B2),
        ForgetMigration("m1"),
        ForgetTopic(TopicName("swarm/3")),
    ]
    store.commit(batch)
    expected = InMemoryStore()
    expected.commit([*EVERYTHING, *batch])
    loaded = store.load()
    assert as_sets(loaded) == as_sets(expected.load())
    assert [stored.held[0].subscription for stored in loaded.subscriptions] == ["s5"] and not loaded.webhooks
    store.close()


def test_check_alone_fails_when_another_coordinator_owns_the_store(url: str) -> None:
    first = CoordinatorStore(url, "first")
    first.commit([CheckStore()])
    second = CoordinatorStore(url, "second")
    with pytest.raises(Superseded):
        first.commit([CheckStore()])
    for store in (first, second):
        store.close()


names = st.sampled_from(["a", "b", "c"])
changes = st.one_of(
    st.builds(lambda s, h: StoreSubscriber(SubscriberId(s), None, None, BrokerId(h), 1.0, False), names, names),
    st.builds(lambda s: ForgetSubscriber(SubscriberId(s)), names),
    st.builds(
        lambda s, held, removed: StoreSubscriptions(
            SubscriberId(s), tuple(frontend(name) for name in held), tuple(SubscriptionId(name) for name in removed)
        ),
        names,
        st.sets(names),
        st.sets(names),
    ),
    st.builds(lambda s, on: StoreWebhook(SubscriberId(s), Webhook("u", ["x"]) if on else None), names, st.booleans()),
    st.builds(lambda b: StoreBroker(BrokerId(b), "a", "i", 1.0, None, False, False, 0, False), names),
    st.builds(lambda b: ForgetBroker(BrokerId(b)), names),
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.lists(changes, max_size=8), max_size=4))
def test_store_and_in_memory_store_agree_after_any_history(url: str, batches: list[list[StoreEffect]]) -> None:
    store = CoordinatorStore(url, "e")
    for table in ("brokers", "subscribers", "subscriptions", "webhooks"):
        with store._database.write() as connection:
            connection.execute(sa.text(f"DELETE FROM coordinator_{table}"))
    expected = InMemoryStore()
    for batch in batches:
        store.commit(batch)
        expected.commit(batch)
    assert as_sets(store.load()) == as_sets(expected.load())
    store.close()


def test_only_the_last_opener_of_the_store_may_write(url: str) -> None:
    first = CoordinatorStore(url, "first")
    first.commit([StoreFact("a", "1")])
    second = CoordinatorStore(url, "second")
    with pytest.raises(Superseded):
        first.commit([StoreFact("a", "2")])
    second.commit([StoreFact("b", "3")])
    assert {(fact.name, fact.value) for fact in second.load().facts} >= {("a", "1"), ("b", "3")}
    first.close()
    second.close()


def test_many_rows_fit_into_one_commit(url: str) -> None:
    store = CoordinatorStore(url, "e")
    many: list[StoreEffect] = [StoreSubscriber(SubscriberId(f"s{n}"), None, None, B1, 1.0, False) for n in range(3_000)]
    many += [StoreSubscriptions(SubscriberId(f"s{n}"), (frontend("x"),)) for n in range(3_000)]
    store.commit(many)
    store.commit([ForgetSubscriber(SubscriberId(f"s{n}")) for n in range(2_990)])
    loaded = store.load()
    assert len(loaded.subscribers) == len(loaded.subscriptions) == 10
    store.close()


def test_sqlite_survives_power_cuts(tmp_path: Path) -> None:
    """WAL with FULL synchronisation: a commit is on disk when it returns."""
    store = CoordinatorStore(f"sqlite:///{tmp_path / 'x.sqlite'}", "e")
    with store._database.read() as connection:
        assert connection.execute(sa.text("PRAGMA synchronous")).scalar() == 2
        assert connection.execute(sa.text("PRAGMA journal_mode")).scalar() == "wal"
    store.close()
