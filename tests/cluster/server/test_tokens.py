"""The data cluster's own tokens: only digests are stored, and scopes decide which requests a caller may send."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tocsin.cluster.catalog import Catalog
from tocsin.cluster.server.tokens import PREFIX, TokenStore, digest_of
from tocsin.runtime.http.callers import Caller, is_broker_id, is_scope


class Time:
    def __init__(self) -> None:
        self.s = 1_000.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = Catalog(f"sqlite:///{tmp_path / 'catalog.sqlite'}")
    yield opened
    opened.close()


def caller(*scopes: str) -> Caller:
    return Caller("0123456789ab", "caller", frozenset(scopes))


def test_token_is_looked_up_by_its_digest_and_never_stored(catalog: Catalog, time: Time, tmp_path: Path) -> None:
    store = TokenStore(catalog, time, time)
    made, token = store.create("publisher", ["publish:Reports"])
    assert token.startswith(PREFIX) and len(token) > 40
    assert store.caller(token) == made
    assert [digest for digest, *_ in catalog.tokens()] == [digest_of(token)]
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert token.encode() not in stored


def test_unknown_and_almost_equal_tokens_are_refused(catalog: Catalog, time: Time) -> None:
    store = TokenStore(catalog, time, time)
    _, token = store.create("publisher", ["read"])
    for wrong in ("", token[:-1], token + "x", token.upper(), "tocsin_\udcff", digest_of(token)):
        assert store.caller(wrong) is None


def test_token_expires(catalog: Catalog, time: Time) -> None:
    store = TokenStore(catalog, time, time)
    _, token = store.create("guest", ["read"], expires_s=time.s + 10)
    assert store.caller(token) is not None
    time.s += 10
    assert store.caller(token) is None


def test_revoked_token_is_refused_at_once(catalog: Catalog, time: Time) -> None:
    store = TokenStore(catalog, time, time)
    made, token = store.create("guest", ["read"])
    assert store.revoke(made.id)
    assert store.caller(token) is None
    assert not store.revoke(made.id)


def test_token_created_by_another_process_is_accepted(catalog: Catalog, time: Time) -> None:
    store = TokenStore(catalog, time, time)
    _, token = TokenStore(catalog, time, time).create("rescue", ["admin"])
    time.s += 2
    assert store.caller(token) is not None


def test_known_token_stays_valid_while_the_catalog_cannot_be_read(catalog: Catalog, time: Time, tmp_path: Path) -> None:
    store = TokenStore(catalog, time, time)
    made, token = store.create("publisher", ["publish:Reports"])
    time.s += 60
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as database:
        database.execute("ALTER TABLE tokens RENAME TO hidden")
        assert store.caller(token) == made and store.is_stale
        database.execute("ALTER TABLE hidden RENAME TO tokens")
    time.s += 60
    assert store.caller(token) == made and not store.is_stale


def test_guessed_tokens_cause_few_reads_of_the_catalog(catalog: Catalog, time: Time) -> None:
    store = TokenStore(catalog, time, time)
    reads = 0
    read = catalog.tokens

    def counted() -> list[tuple[str, str, tuple[str, ...], float | None]]:
        nonlocal reads
        reads += 1
        return read()

    catalog.tokens = counted  # type: ignore[method-assign]
    for index in range(1_000):
        store.caller(f"tocsin_guess{index}")
        time.s += 0.001
    assert reads <= 2


def test_malformed_scope_is_refused(catalog: Catalog, time: Time) -> None:
    store = TokenStore(catalog, time, time)
    for scopes in ([], ["root"], ["publish:"], ["publish:a b"], ["broker:../x"], ["admin;"]):
        with pytest.raises(ValueError):
            store.create("x", scopes)


@pytest.mark.parametrize(
    "scope", ["admin", "read", "subscribe", "publish:*", "publish:A_1", "broker:*", "broker:b-1.x"]
)
def test_scope_is_recognised(scope: str) -> None:
    assert is_scope(scope)


def test_administrator_may_do_everything() -> None:
    admin = caller("admin")
    assert admin.may_read and admin.may_publish("X") and admin.may_be("b1") and admin.may_be_any


def test_publisher_may_publish_to_its_dataset_only() -> None:
    publisher = caller("publish:Reports")
    assert publisher.may_publish("reports")
    assert not publisher.may_publish("Report")
    assert not (publisher.may_read or publisher.is_admin or publisher.is_some_broker)


def test_broker_may_act_as_itself_only() -> None:
    broker = caller("broker:b1")
    assert broker.own_broker == "b1"
    assert broker.may_be("b1") and not broker.may_be("b2") and not broker.may_publish("b1")


def test_subscriber_is_a_broker_of_its_own() -> None:
    subscriber = caller("subscribe")
    assert subscriber.may_be(subscriber.own_broker)
    assert is_broker_id(subscriber.own_broker)
    other = Caller("ffffffffffff", "other", frozenset({"subscribe"}))
    assert not other.may_be(subscriber.own_broker)
