"""Several gateways accept for one dataset with a shared log: each record is stored once, whichever gateway takes it."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from tests import postgresql
from tocsin.cluster.catalog import Catalog, placing
from tocsin.cluster.catalog.logs import LogTable
from tocsin.cluster.catalog.tables import logs
from tocsin.cluster.feed import shared_gateway
from tocsin.cluster.feed.feedlog_reader import FeedLogWriteFailed
from tocsin.cluster.feed.gateway import (
    Accepted,
    Backlogged,
    CursorConflict,
    KeyConflict,
    RecordedRange,
    RecordForm,
    Refused,
    Unavailable,
)
from tocsin.cluster.feed.keyindex import KeyIndex
from tocsin.cluster.feed.log_objects import ObjectPlace, write_object
from tocsin.cluster.feed.outcomes import FeedLimits
from tocsin.cluster.feed.shared_gateway import PLACE_S, SharedGateway, new_seed
from tocsin.cluster.server.group_commit import GroupCommit
from tocsin.cluster.server.publishers import Publisher
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName
from tocsin.model.schema import Column, Schema

COLUMNS = Schema((Column("id", "STRING"), Column("n", "INT")))
KEYED = Dataset(DatasetName("Reports"), DatasetKind.STREAM, COLUMNS, key=("id",), retain_s=3600.0)
UNKEYED = Dataset(DatasetName("Ticks"), DatasetKind.STREAM, COLUMNS)


class World:
    """One catalog and one root, with as many gateways as a test opens."""

    def __init__(self, catalog: Catalog, root: Path, dataset: Dataset) -> None:
        self.catalog = catalog
        self.storage = Storage(str(root))
        self.dataset = dataset
        self.now_s = 1_000_000.0
        self.log = catalog.next_generation()
        catalog.datasets.create(dataset, self.log, new_seed())

    def gateway(self, **limits: Any) -> SharedGateway:
        state = self.catalog.logs.state(self.dataset.name, self.log)
        assert state is not None
        return SharedGateway(
            self.dataset, self.log, self.catalog, self.storage, FeedLimits(**limits), lambda: self.now_s, state
        )

    def stored(self) -> list[dict[str, Any]]:
        frames, _ = self.gateway().log_reader().read(0, 1 << 30)
        assert all(frame.count == len(frame.lines()) > 0 for frame in frames)
        ends = [frame.next_position for frame in frames]
        assert [frame.position for frame in frames[1:]] >= ends[:-1]
        return [json.loads(line) for frame in frames for line in frame.lines()]


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    else:
        url = request.getfixturevalue("postgresql_url")
        postgresql.make_empty(url)
    catalog = Catalog(url)
    yield catalog
    catalog.close()


@pytest.fixture(scope="module")
def postgresql_url() -> Iterator[str]:
    yield from postgresql.running_or_skipped()


@pytest.fixture
def world(catalog: Catalog, tmp_path: Path) -> World:
    return World(catalog, tmp_path / "root", KEYED)


def sent(gateway: SharedGateway, *ids: str, key: str | None = None, recorded: RecordedRange | None = None) -> Any:
    """Collect a request; the function returns its answer after the sync."""
    body = json.dumps([{"id": name, "n": number} for number, name in enumerate(ids)]).encode()
    outcome, group = gateway.accept_into_group(body, RecordForm.JSON, key, recorded)

    def answer() -> Accepted | Refused:
        if not isinstance(outcome, Accepted):
            return outcome
        return group.answer_to(outcome) if group.stored else Unavailable("not stored")

    return answer


def answers(gateway: SharedGateway, *requests: Callable[[], Accepted | Refused]) -> list[tuple[int, int]]:
    gateway.sync()
    return [(reply.accepted, reply.duplicates) for reply in (request() for request in requests)]  # type: ignore[union-attr]


def test_two_gateways_store_each_key_once(world: World) -> None:
    north, south = world.gateway(), world.gateway()
    first, second = sent(north, "a", "b"), sent(south, "b", "c", "c")
    assert answers(south, second) == [(2, 1)]
    assert answers(north, first) == [(1, 1)]
    assert answers(north, sent(north, "a", "d"), sent(north, "d", "e")) == [(1, 1), (1, 1)], "also inside one group"
    assert [row["id"] for row in world.stored()] == ["b", "c", "a", "d", "e"]
    assert south.log_reader().end <= north.durable_end


def test_repeated_request_gets_its_first_answer_from_any_gateway(catalog: Catalog, tmp_path: Path) -> None:
    world = World(catalog, tmp_path / "root", UNKEYED)
    north, south = world.gateway(), world.gateway()
    requests = [sent(north, "a", key="k"), sent(north, "a", key="k"), sent(north, "other", key="k")]
    north.sync()
    [first, again, conflict] = [request() for request in requests]
    assert (first.accepted, first.replayed, again.accepted, again.replayed) == (1, False, 1, True)
    assert isinstance(conflict, KeyConflict)
    elsewhere = sent(south, "a", key="k")
    south.sync()
    assert elsewhere().replayed and elsewhere().accepted == 1
    assert [row["id"] for row in world.stored()] == ["a"]


def test_refused_request_leaves_no_keys_behind(world: World) -> None:
    gateway = world.gateway()
    requests = [sent(gateway, "a", key="k"), sent(gateway, "b", key="k")]
    gateway.sync()
    assert isinstance(requests[1](), KeyConflict)
    assert answers(gateway, sent(gateway, "b")) == [(1, 0)], "the refused request did not store b"


def test_recording_continues_at_its_cursor_whichever_gateway_takes_it(world: World) -> None:
    north, south = world.gateway(), world.gateway()
    first, second = (
        sent(north, "a", recorded=RecordedRange("r", 0, 5)),
        sent(north, "b", recorded=RecordedRange("r", 5, 6)),
    )
    assert answers(north, first, second) == [(1, 0), (1, 0)]
    late = sent(south, "c", recorded=RecordedRange("r", 5, 9))
    south.sync()
    assert late() == CursorConflict(6) and south.recorded_upto("r") == 6
    assert [row["id"] for row in world.stored()] == ["a", "b"]


def test_key_is_new_again_after_the_retention(world: World) -> None:
    gateway = world.gateway()
    assert answers(gateway, sent(gateway, "a")) == [(1, 0)]
    world.now_s += 3_601
    assert answers(gateway, sent(gateway, "a")) == [(1, 0)]
    assert answers(gateway, sent(gateway, "a")) == [(0, 1)]


def test_object_without_a_place_is_not_stored_and_leaves_no_keys(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = world.gateway()

    def refuse(*_: object) -> None:
        raise OperationalError("COMMIT", {}, Exception("connection lost"))

    with monkeypatch.context() as patch:
        patch.setattr(LogTable, "place", refuse)
        request = sent(gateway, "a")
        with pytest.raises(FeedLogWriteFailed, match="nothing was stored"):
            gateway.sync()
        assert isinstance(request(), Unavailable)
    assert len(world.storage.list("log")) == 1, "upkeep deletes it later"
    assert answers(gateway, sent(gateway, "a")) == [(1, 0)]
    assert [row["id"] for row in world.stored()] == ["a"]


def test_commit_whose_answer_was_lost_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = world.gateway()
    database = world.catalog.logs._database
    write = database.write

    class Lost:
        def __enter__(self) -> Any:
            self._context = write()
            return self._context.__enter__()

        def __exit__(self, *failure: Any) -> None:
            self._context.__exit__(*failure)
            raise OperationalError("COMMIT", {}, Exception("the answer was lost"))

    with monkeypatch.context() as patch:
        patch.setattr(database, "write", Lost)
        assert answers(gateway, sent(gateway, "a")) == [(1, 0)]
    assert [row["id"] for row in world.stored()] == ["a"]


def test_full_backlog_refuses_records_at_every_gateway_until_ingestion(world: World) -> None:
    north, south = world.gateway(), world.gateway(backlog_bytes=100)
    assert answers(north, sent(north, *(f"r{number}" for number in range(20)))) == [(20, 0)]
    south.look()
    assert isinstance(sent(south, "a")(), Backlogged)
    world.catalog.datasets.commit_records(KEYED.name, 1, [], 0.0, position=north.durable_end)
    south.look()
    assert answers(south, sent(south, "a")) == [(1, 0)]


def test_upkeep_drops_objects_that_are_in_the_dataset(world: World) -> None:
    gateway = world.gateway()
    answers(gateway, sent(gateway, "a"))
    end = gateway.durable_end
    answers(gateway, sent(gateway, "b"))
    world.catalog.datasets.commit_records(KEYED.name, 1, [], 0.0, position=end)
    gateway.maintain()
    assert [row["id"] for row in world.stored()] == ["b"] and gateway.log_reader().start == end
    assert len(world.catalog.files.garbage()) == 1
    assert set(world.storage.list("log")) == world.catalog.files.known_paths()


def test_empty_log_starts_before_an_object_placed_meanwhile(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ingestion begins there: it would never move the records of that object."""
    gateway = world.gateway()
    reader = gateway.log_reader()
    find_objects = reader.objects

    def place_after_the_look(position: int, limit_bytes: int) -> list[ObjectPlace]:
        found = find_objects(position, limit_bytes)
        assert answers(gateway, sent(gateway, "a")) == [(1, 0)]
        return found

    monkeypatch.setattr(reader, "objects", place_after_the_look)
    assert reader.start == 0


def test_dropped_dataset_takes_no_more_records(world: World) -> None:
    gateway = world.gateway()
    request = sent(gateway, "a")
    world.catalog.datasets.drop(KEYED.name, 0.0)
    with pytest.raises(FeedLogWriteFailed):
        gateway.sync()
    assert isinstance(request(), Unavailable)
    assert isinstance(sent(gateway, "b")(), Unavailable)


def test_gateway_that_knows_keys_beyond_a_restored_catalog_closes(world: World) -> None:
    gateway = world.gateway()
    answers(gateway, sent(gateway, "a"))
    world.catalog.logs._database.execute(sa.update(logs).values(tail=0))
    with pytest.raises(FeedLogWriteFailed):
        answers(gateway, sent(gateway, "b"))
    assert gateway.closed


def test_gateway_that_stops_in_its_transaction_does_not_hold_up_the_others(
    postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "_END_WHEN_SILENT", placing._END_WHEN_SILENT.replace("5s", "500ms"))
    postgresql.make_empty(postgresql_url)
    catalogs = [Catalog(postgresql_url) for _ in range(2)]
    world = World(catalogs[0], tmp_path / "root", KEYED)
    stopped, other = world.gateway(), world.gateway()
    other._catalog = catalogs[1]
    in_transaction, goes_on = threading.Event(), threading.Event()
    find_answers = placing.Placing._find_answers

    def stop_here(transaction: Any) -> None:
        if transaction._keys is stopped._keys:
            in_transaction.set()
            assert goes_on.wait(30)
        find_answers(transaction)

    monkeypatch.setattr(placing.Placing, "_find_answers", stop_here)
    late = sent(stopped, "a", key="k")
    failed: list[BaseException] = []

    def sync() -> None:
        try:
            stopped.sync()
        except FeedLogWriteFailed as error:
            failed.append(error)

    thread = threading.Thread(target=sync)
    thread.start()
    assert in_transaction.wait(30)
    assert answers(other, sent(other, "a", "b")) == [(2, 0)], "it waits half a second at most"
    goes_on.set()
    thread.join()
    assert failed and isinstance(late(), Unavailable)
    assert answers(stopped, sent(stopped, "a")) == [(0, 1)]
    for catalog in catalogs:
        catalog.close()


def test_gateway_notices_a_database_that_is_cut_off(postgresql_url: str) -> None:
    catalog = Catalog(postgresql_url)
    with catalog._database.read() as connection:
        driver: Any = connection.connection.driver_connection
        assert int(driver.info.get_parameters()["tcp_user_timeout"]) < 60_000, (
            "by default it takes a quarter of an hour"
        )
    catalog.close()


requests = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(st.sampled_from("abcdefgh"), max_size=4),
        st.none() | st.sampled_from(["k1", "k2"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(requests)
def test_any_requests_at_any_gateways_store_what_one_gateway_would(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[int, list[str], str | None, bool]]
) -> None:
    """The order of the syncs is the order of the log."""
    folder = tmp_path_factory.mktemp("world")
    catalog = Catalog(f"sqlite:///{folder / 'catalog.sqlite'}")
    world = World(catalog, folder, KEYED)
    gateways = [world.gateway() for _ in range(3)]
    waiting: list[list[Any]] = [[] for _ in gateways]
    known: list[str] = []
    keys: dict[str, tuple[list[str], int]] = {}

    def sync(place: int) -> None:
        gateways[place].sync()
        for ids, key, answer in waiting[place]:
            reply = answer()
            if key in keys:
                expected, accepted = keys[key]
                if expected != ids:
                    assert isinstance(reply, KeyConflict)
                else:
                    assert reply.replayed and reply.accepted == accepted
                continue
            new = [name for name in dict.fromkeys(ids) if name not in known]
            known.extend(new)
            assert (reply.accepted, reply.duplicates, reply.replayed) == (len(new), len(ids) - len(new), False)
            if key is not None:
                keys[key] = (ids, len(new))
        waiting[place].clear()

    for place, ids, key, syncs in requests:
        waiting[place].append((ids, key, sent(gateways[place], *ids, key=key)))
        if syncs:
            sync(place)
    for place in range(3):
        sync(place)
    assert [row["id"] for row in world.stored()] == known
    catalog.close()


def test_groups_that_are_stored_at_once_answer_every_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are written at the same time and get their places one after another; one of them fails."""
    gateway = world.gateway()
    write, written, fails = write_object, itertools.count(), 5

    def write_slowly(*arguments: Any) -> int:
        number = next(written)
        time.sleep(0.002 * (number % 3))
        if number == fails:
            raise OSError("the store is away")
        return write(*arguments)

    monkeypatch.setattr("tocsin.cluster.feed.shared_gateway.write_object", write_slowly)

    async def main() -> list[Accepted | Refused]:
        commit = GroupCommit(gateway)

        async def publish(start: int) -> list[Accepted | Refused]:
            bodies = (f'[{{"id": "r{start + number}"}}, {{"id": "same"}}]'.encode() for number in range(10))
            return [await commit.store(body, RecordForm.JSON, None) for body in bodies]

        parts = await asyncio.gather(*(publish(100 * part) for part in range(8)))
        return [reply for part in parts for reply in part]

    replies = asyncio.run(main())
    accepted = [reply for reply in replies if isinstance(reply, Accepted)]
    assert len(replies) == 80 and 0 < len(replies) - len(accepted) < 80, "one group was not stored"
    stored = [row["id"] for row in world.stored()]
    assert len(set(stored)) == len(stored) == sum(reply.accepted for reply in accepted)
    assert sum(reply.duplicates for reply in accepted) == 2 * len(accepted) - len(stored)


def test_messages_of_a_publisher_keep_order_behind_a_slow_object(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = world.gateway()
    write, written = write_object, itertools.count()

    def write_slowly(*arguments: Any) -> int:
        number = next(written)
        time.sleep((0.5, 0.0, 0.1)[number % 3])
        if number == 1:
            raise OSError("the store is away")
        return write(*arguments)

    monkeypatch.setattr("tocsin.cluster.feed.shared_gateway.write_object", write_slowly)

    async def main() -> list[Accepted | Refused]:
        commit, publisher, waiting = GroupCommit(gateway), Publisher(), []
        for number in range(3):
            body = f'[{{"id": "r{number}"}}]'.encode()
            waiting.append(asyncio.create_task(commit.store(body, RecordForm.JSON, None, None, publisher)))
            await asyncio.sleep(0.05)
        return await asyncio.gather(*waiting)

    assert [type(reply) for reply in asyncio.run(main())] == [Accepted, Unavailable, Accepted]
    assert [row["id"] for row in world.stored()] == ["r0", "r2"]


@pytest.mark.parametrize("closes", [False, True], ids=["dropped elsewhere", "closed here"])
def test_dropped_dataset_answers_the_requests_that_wait_for_a_sync(
    world: World, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    gateway = world.gateway()
    write, goes_on = write_object, threading.Event()

    def wait_and_write(*arguments: Any) -> int:
        assert goes_on.wait(10)
        return write(*arguments)

    monkeypatch.setattr("tocsin.cluster.feed.shared_gateway.write_object", wait_and_write)

    async def main() -> list[Accepted | Refused]:
        commit, waiting = GroupCommit(gateway), []
        for number in range(SharedGateway.syncs_at_once + 1):
            body = f'[{{"id": "r{number}"}}]'.encode()
            waiting.append(asyncio.create_task(commit.store(body, RecordForm.JSON, None)))
            await asyncio.sleep(0.05)
        assert gateway.has_collected
        world.catalog.datasets.drop(KEYED.name, 0.0)
        if closes:
            gateway.close()
        goes_on.set()
        replies = await asyncio.wait_for(asyncio.gather(*waiting), 10)
        await asyncio.sleep(0.1)
        assert not commit._syncs, "nothing is left to sync"
        return replies

    assert {type(reply) for reply in asyncio.run(main())} == {Unavailable}


def test_full_disk_for_the_index_denies_no_object_that_has_its_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = world.gateway(memory_keys=1)
    with monkeypatch.context() as patch:
        patch.setattr(KeyIndex, "flush", refuse_to_write)
        assert answers(gateway, sent(gateway, "a")) == [(1, 0)]
        denied = sent(gateway, "b")
        with pytest.raises(FeedLogWriteFailed):
            gateway.sync()
        assert isinstance(denied(), Unavailable)
    assert [row["id"] for row in world.stored()] == ["a"]
    assert answers(gateway, sent(gateway, "a", "b")) == [(1, 1)]


def refuse_to_write(*_: object) -> None:
    raise OSError("no space left on the device")


def test_gateway_whose_machine_slept_places_no_object_that_upkeep_may_have_deleted(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(catalog, tmp_path / "root", KEYED)
    gateway = world.gateway()
    boot_s = itertools.chain([0.0], itertools.repeat(PLACE_S + 1))
    monkeypatch.setattr(shared_gateway, "boot_clock_s", lambda: next(boot_s))
    _, group = gateway.accept_into_group(b'[{"id": "a"}]', RecordForm.JSON)
    with pytest.raises(FeedLogWriteFailed, match="stopped for too long"):
        gateway.sync()
    assert group.stored is False and world.stored() == []


def test_full_backlog_and_a_slow_catalog_do_not_stop_the_event_loop(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(catalog, tmp_path / "root", KEYED)
    gateway = world.gateway(backlog_bytes=100)
    gateway.accept(b'[{"id": "a"}]', RecordForm.JSON)
    gateway.sync()
    state = LogTable.state

    def slow_state(*arguments: Any) -> Any:
        time.sleep(2.0)
        return state(*arguments)

    monkeypatch.setattr(LogTable, "state", slow_state)
    gateway._looked_s -= shared_gateway.LOOK_S

    async def scenario() -> float:
        commit = GroupCommit(gateway)
        storing = asyncio.create_task(commit.store(b'[{"id": "' + b"x" * 90 + b'"}]', RecordForm.JSON, None))
        longest_s, before_s = 0.0, time.monotonic()
        while not storing.done():
            await asyncio.sleep(0.01)
            longest_s, before_s = max(longest_s, time.monotonic() - before_s), time.monotonic()
        assert isinstance(storing.result(), Backlogged)
        return longest_s

    assert asyncio.run(scenario()) < 1.5
