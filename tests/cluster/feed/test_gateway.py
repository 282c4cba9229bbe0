"""The gateway stores each record once, answers correctly and keeps its limits."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tocsin.cluster.feed.feedlog_reader import FeedLogReader, FeedLogWriteFailed
from tocsin.cluster.feed.gateway import (
    Accepted,
    Backlogged,
    FeedGateway,
    FeedLimits,
    KeyConflict,
    Malformed,
    RecordForm,
    Refused,
    TooLarge,
    Unavailable,
)
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName
from tocsin.model.schema import Schema

SCHEMA = Schema.of(report_id="STRING", severity="INT")
REPORTS = Dataset(DatasetName("Reports"), DatasetKind.STREAM, SCHEMA, key=("report_id",), retain_s=100.0)
LOCATIONS = Dataset(DatasetName("Locations"), DatasetKind.KEYED, SCHEMA, key=("report_id",))
PLAIN = Dataset(DatasetName("Plain"), DatasetKind.STREAM, SCHEMA)
DAY_S = 86_400.0


class Bench:
    """A gateway on a virtual clock. `open` again is a restart."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now_s = 1_000_000.0
        self._open: list[FeedGateway] = []

    def open(self, dataset: Dataset = REPORTS, **limits: Any) -> FeedGateway:
        self.close()
        gateway = FeedGateway(dataset, self.directory, FeedLimits(**limits), lambda: self.now_s)
        self._open.append(gateway)
        return gateway

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def stored(self) -> list[dict[str, Any]]:
        reader = FeedLogReader(self.directory / "log")
        frames, _ = reader.read(reader.start, 1 << 40)
        reader.close()
        return [json.loads(line) for frame in frames for line in frame.lines()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def body(*names: str, **fields: Any) -> bytes:
    return json.dumps([{"report_id": name, **fields} for name in names]).encode()


def send(gateway: FeedGateway, payload: bytes, key: str | None = None) -> Accepted | Refused:
    outcome = gateway.accept(payload, RecordForm.JSON, key)
    gateway.sync()
    return outcome


def counts(outcome: Accepted | Refused) -> tuple[int, int, int]:
    assert isinstance(outcome, Accepted), outcome
    return outcome.accepted, outcome.duplicates, outcome.refused_total


def names(records: list[dict[str, Any]]) -> list[str]:
    return [record["report_id"] for record in records]


def test_good_records_are_stored_and_bad_ones_are_listed(bench: Bench) -> None:
    gateway = bench.open()
    outcome = send(gateway, b'[{"report_id":"a"},{"severity":1},{"report_id":"b","severity":"x"}]')
    assert counts(outcome) == (1, 0, 2)
    assert isinstance(outcome, Accepted)
    assert [(refusal.index, refusal.field) for refusal in outcome.refused] == [(1, "report_id"), (2, "severity")]
    assert outcome.position == gateway.durable_end
    assert bench.stored() == [{"report_id": "a"}]


def test_nothing_can_be_read_before_the_sync(bench: Bench) -> None:
    gateway = bench.open()
    gateway.accept(body("a"), RecordForm.JSON)
    assert bench.stored() == []
    gateway.sync()
    assert names(bench.stored()) == ["a"]


def test_key_is_stored_once_across_requests_and_restarts(bench: Bench) -> None:
    gateway = bench.open()
    assert counts(send(gateway, body("a", "b", "a"))) == (2, 1, 0)
    assert counts(gateway.accept(body("c"), RecordForm.JSON)) == (1, 0, 0)
    assert counts(gateway.accept(body("c", "b", "d"), RecordForm.JSON)) == (1, 2, 0)
    gateway.sync()
    gateway = bench.open()
    assert counts(send(gateway, body("d", "e", "a"))) == (1, 2, 0)
    assert names(bench.stored()) == ["a", "b", "c", "d", "e"]


def test_key_is_accepted_again_after_the_retention(bench: Bench) -> None:
    gateway = bench.open()
    send(gateway, body("a"))
    bench.now_s += 100
    assert counts(send(gateway, body("a"))) == (0, 1, 0)
    bench.now_s += 0.001
    assert counts(send(gateway, body("a"))) == (1, 0, 0)
    assert counts(send(bench.open(), body("a"))) == (0, 1, 0)


def test_keyed_dataset_stores_every_update(bench: Bench) -> None:
    gateway = bench.open(LOCATIONS)
    assert counts(send(gateway, body("u", "u", severity=1))) == (2, 0, 0)
    assert counts(send(gateway, body("u", severity=2))) == (1, 0, 0)
    assert counts(send(gateway, b'[{"severity":3}]')) == (0, 0, 1)
    assert names(bench.stored()) == ["u", "u", "u"]


def test_stream_without_a_key_stores_repeated_records(bench: Bench) -> None:
    gateway = bench.open(PLAIN)
    assert counts(send(gateway, b'[{"severity":1},{"severity":1}]')) == (2, 0, 0)


def test_static_dataset_takes_no_records(bench: Bench) -> None:
    with pytest.raises(ValueError, match="STATIC"):
        bench.open(Dataset(DatasetName("Shelters"), DatasetKind.STATIC, SCHEMA))


@pytest.mark.parametrize("dataset", [REPORTS, LOCATIONS, PLAIN])
def test_idempotency_key_gets_its_first_answer_again_after_restarts(bench: Bench, dataset: Dataset) -> None:
    gateway = bench.open(dataset)
    payload = b'[{"report_id":"a"},{"report_id":7}]'
    first = gateway.accept(payload, RecordForm.JSON, "key-1")
    unsynced = gateway.accept(payload, RecordForm.JSON, "key-1")
    gateway.sync()
    stored = gateway.accept(payload, RecordForm.JSON, "key-1")
    again = bench.open(dataset).accept(payload, RecordForm.JSON, "key-1")
    (bench.directory / "answers.db").unlink()  # as if a power failure had lost the last commits
    rebuilt = bench.open(dataset).accept(payload, RecordForm.JSON, "key-1")
    assert isinstance(first, Accepted)
    assert not first.replayed
    for repeat in (unsynced, stored, again, rebuilt):
        assert isinstance(repeat, Accepted)
        assert repeat.replayed
        assert counts(repeat) == counts(first) == (1, 0, 1)
        assert (repeat.refused, repeat.position) == (first.refused, first.position)
    assert names(bench.stored()) == ["a"]


def test_answer_of_a_request_without_good_records_is_replayed(bench: Bench) -> None:
    send(bench.open(), b'[{"report_id":7}]', "key-1")
    outcome = bench.open().accept(b'[{"report_id":7}]', RecordForm.JSON, "key-1")
    assert isinstance(outcome, Accepted)
    assert outcome.replayed


def test_idempotency_key_with_another_body_is_a_conflict(bench: Bench) -> None:
    gateway = bench.open()
    send(gateway, body("a"), "key-1")
    assert gateway.accept(body("b"), RecordForm.JSON, "key-1") == KeyConflict()
    assert bench.open().accept(body("b"), RecordForm.JSON, "key-1") == KeyConflict()


@pytest.mark.parametrize(("dataset", "retention_s"), [(REPORTS, 100.0), (PLAIN, DAY_S)])
def test_idempotency_key_is_forgotten_after_the_retention(bench: Bench, dataset: Dataset, retention_s: float) -> None:
    gateway = bench.open(dataset)
    send(gateway, body("a"), "key-1")
    bench.now_s += retention_s
    gateway.maintain()
    replayed = gateway.accept(body("a"), RecordForm.JSON, "key-1")
    bench.now_s += 0.001
    fresh = gateway.accept(body("a"), RecordForm.JSON, "key-1")
    assert isinstance(replayed, Accepted)
    assert isinstance(fresh, Accepted)
    assert (replayed.replayed, fresh.replayed) == (True, False)


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_empty_or_too_long_idempotency_key_is_malformed(bench: Bench, key: str) -> None:
    assert isinstance(bench.open().accept(body("a"), RecordForm.JSON, key), Malformed)


def test_request_over_a_limit_is_refused_as_a_whole(bench: Bench) -> None:
    gateway = bench.open(body_bytes=1000, record_bytes=100, records=5)
    assert gateway.accept(b" " * 1001, RecordForm.JSON) == TooLarge("body bytes", 1000)
    assert gateway.accept(body(*"abcdef"), RecordForm.JSON) == TooLarge("records", 5)
    for position in range(3):
        long = ["x", "y", "z"]
        long[position] = "l" * 100
        assert gateway.accept(body(*long), RecordForm.JSON) == TooLarge("record bytes", 100)
    longest = "l" * (100 - len('{"report_id":""}'))
    assert counts(gateway.accept(body("x", longest, "y", "z"), RecordForm.JSON)) == (4, 0, 0)
    gateway.sync()
    assert names(bench.stored()) == ["x", longest, "y", "z"]


def test_body_that_is_not_json_is_malformed(bench: Bench) -> None:
    gateway = bench.open()
    assert isinstance(gateway.accept(b"<xml/>", RecordForm.CLOUDEVENTS_BATCH), Malformed)
    assert gateway.sync() == 0


def test_answer_lists_the_first_refusals_and_counts_all(bench: Bench) -> None:
    outcome = bench.open(refusals_listed=2).accept(b"[1,2,3,4]", RecordForm.JSON)
    assert isinstance(outcome, Accepted)
    assert (len(outcome.refused), outcome.refused_total) == (2, 4)


def test_full_backlog_refuses_requests_until_records_are_ingested(bench: Bench) -> None:
    gateway = bench.open(backlog_bytes=2000)
    sent = 0
    while isinstance(outcome := send(gateway, body(f"r{sent}" + "x" * 200)), Accepted):
        sent += 1
    assert isinstance(outcome, Backlogged)
    assert 1 <= outcome.retry_after_s <= 60
    assert 3 <= sent <= 10
    backlog_bytes = gateway.backlog_bytes
    gateway = bench.open(backlog_bytes=2000)
    assert gateway.backlog_bytes == backlog_bytes
    bench.now_s += 1
    gateway.ingested(gateway.durable_end)
    assert gateway.backlog_bytes == 0
    assert bench.open(backlog_bytes=2000).backlog_bytes == 0


def test_replay_is_answered_even_with_a_full_backlog(bench: Bench) -> None:
    gateway = bench.open(backlog_bytes=100)
    send(gateway, body("a" * 80), "key-1")
    assert isinstance(gateway.accept(body("b"), RecordForm.JSON, "key-2"), Backlogged)
    assert isinstance(gateway.accept(body("a" * 80), RecordForm.JSON, "key-1"), Accepted)


def test_frames_without_records_do_not_fill_the_backlog(bench: Bench) -> None:
    limits: dict[str, Any] = {"backlog_bytes": 3_000, "segment_bytes": 2_000}
    gateway = bench.open(**limits)
    first = send(gateway, body("a"))
    assert isinstance(first, Accepted) and first.position is not None
    for number in range(60):
        send(gateway, body("a"), f"waiting-{number}")
        gateway.maintain()
    assert gateway.backlog_bytes > limits["backlog_bytes"] / 2, "a record before them is not ingested yet"
    gateway.ingested(first.position)
    for number in range(60):
        repeated = send(gateway, body("a"), f"passed-{number}")
        gateway.maintain()
        assert isinstance(repeated, Accepted) and counts(repeated) == (0, 1, 0)
    assert gateway.backlog_bytes == 0
    assert bench.open(**limits).backlog_bytes == 0


def test_records_lost_in_a_failed_sync_leave_the_backlog(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = bench.open()
    first = send(gateway, body("a"))
    assert isinstance(first, Accepted) and first.position is not None
    gateway.ingested(first.position)
    gateway.accept(body("b" * 1_000), RecordForm.JSON)
    monkeypatch.setattr(os, "fdatasync", full_disk)
    with pytest.raises(FeedLogWriteFailed):
        gateway.sync()
    monkeypatch.undo()
    send(gateway, body("a"), "key-1")
    assert gateway.backlog_bytes > 0
    gateway.maintain()
    assert gateway.backlog_bytes == 0


def test_position_beyond_the_log_cannot_be_ingested(bench: Bench) -> None:
    with pytest.raises(ValueError, match="beyond the durable end"):
        bench.open().ingested(1)


def test_log_is_trimmed_but_keeps_what_a_restart_needs(bench: Bench) -> None:
    limits: dict[str, Any] = {"segment_bytes": 2000, "memory_keys": 40}
    gateway = bench.open(**limits)
    for number in range(120):
        send(gateway, body(f"r{number}"), f"key-{number}")
        gateway.ingested(gateway.durable_end)
        gateway.maintain()
    reader = FeedLogReader(gateway.log_directory)
    assert reader.end - reader.start < 40 * 700
    assert reader.start > 0
    gateway = bench.open(**limits)
    for number in range(120):
        repeat = gateway.accept(body(f"r{number}"), RecordForm.JSON)
        assert counts(repeat) == (0, 1, 0), number
        replay = gateway.accept(body(f"r{number}"), RecordForm.JSON, f"key-{number}")
        assert isinstance(replay, Accepted)
        assert replay.replayed, number


def test_keys_in_memory_stay_bounded_without_maintain_calls(bench: Bench) -> None:
    gateway = bench.open(memory_keys=50)
    for number in range(60):
        send(gateway, body(*(f"{number}-{digit}" for digit in range(10))))
        assert gateway._store.index.keys_in_memory < 110
    assert counts(send(bench.open(memory_keys=50), body("0-0", "59-9", "new"))) == (1, 2, 0)


def full_disk(*arguments: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_retry_after_a_failed_sync_is_not_a_repeat(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = bench.open()
    send(gateway, body("a"))
    gateway.accept(body("b"), RecordForm.JSON, "key-1")
    monkeypatch.setattr(os, "fdatasync", full_disk)
    with pytest.raises(FeedLogWriteFailed, match="No space"):
        gateway.sync()
    monkeypatch.undo()
    retry = gateway.accept(body("b"), RecordForm.JSON, "key-1")
    gateway.sync()
    assert isinstance(retry, Accepted)
    assert not retry.replayed
    assert counts(retry) == (1, 0, 0)
    assert names(bench.stored()) == ["a", "b"]
    bench.open()
    assert names(bench.stored()) == ["a", "b"]


def test_repeat_accepted_during_a_failed_sync_is_not_stored_either(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = bench.open()
    _, first = gateway.accept_into_group(body("a"), RecordForm.JSON)
    groups = [first]

    def repeat_meanwhile_then_fail(fd: int) -> None:
        repeat, group = gateway.accept_into_group(body("a"), RecordForm.JSON)
        assert counts(repeat) == (0, 1, 0)
        groups.append(group)
        full_disk()

    monkeypatch.setattr(os, "fdatasync", repeat_meanwhile_then_fail)
    with pytest.raises(FeedLogWriteFailed):
        gateway.sync()
    monkeypatch.undo()
    assert [group.stored for group in groups] == [False, False]
    retry, group = gateway.accept_into_group(body("a"), RecordForm.JSON)
    gateway.sync()
    assert counts(retry) == (1, 0, 0) and group.stored
    assert names(bench.stored()) == ["a"]


def test_closed_gateway_refuses_requests_and_fails_undecided_ones(bench: Bench) -> None:
    gateway = bench.open()
    send(gateway, body("a"))
    _, group = gateway.accept_into_group(body("b"), RecordForm.JSON)
    gateway.close()
    gateway.close()
    assert group.stored is False
    assert isinstance(gateway.accept(body("c"), RecordForm.JSON), Unavailable)
    with pytest.raises(FeedLogWriteFailed):
        gateway.sync()
    gateway.maintain()
    gateway.ingested(gateway.durable_end)
    assert names(bench.stored()) == ["a"]


def test_records_accepted_during_a_sync_wait_for_the_next_sync(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = bench.open()
    real = os.fdatasync
    outcomes = []

    def accept_meanwhile(fd: int) -> None:
        monkeypatch.setattr(os, "fdatasync", real)
        outcomes.append(gateway.accept(body("a", "b"), RecordForm.JSON))
        real(fd)

    monkeypatch.setattr(os, "fdatasync", accept_meanwhile)
    send(gateway, body("a"))
    assert names(bench.stored()) == ["a"]
    gateway.sync()
    assert counts(outcomes[0]) == (1, 1, 0)
    assert names(bench.stored()) == ["a", "b"]


def test_sync_does_not_wait_for_a_body_that_is_being_parsed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = bench.open()
    decode = gateway._store.codec.decode

    def sync_meanwhile(*arguments: Any) -> Any:
        in_threads(gateway.sync)
        return decode(*arguments)

    monkeypatch.setattr(gateway._store.codec, "decode", sync_meanwhile)
    assert counts(gateway.accept(body("a"), RecordForm.JSON)) == (1, 0, 0)
    assert bench.stored() == []
    gateway.sync()
    assert names(bench.stored()) == ["a"]


def test_request_that_is_answered_while_its_repeat_is_parsed_is_replayed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = bench.open(PLAIN)
    decode = gateway._store.codec.decode

    def answer_first(payload: bytes, form: RecordForm, *others: Any) -> Any:
        monkeypatch.undo()
        in_threads(lambda: gateway.accept(payload, form, "key"))
        return decode(payload, form, *others)

    monkeypatch.setattr(gateway._store.codec, "decode", answer_first)
    outcome = gateway.accept(body("a"), RecordForm.JSON, "key")
    assert isinstance(outcome, Accepted) and outcome.replayed
    gateway.sync()
    assert names(bench.stored()) == ["a"]


def test_gateway_that_closes_while_a_body_is_parsed_refuses_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = bench.open()
    decode = gateway._store.codec.decode

    def close_meanwhile(*arguments: Any) -> Any:
        in_threads(gateway.close)
        return decode(*arguments)

    monkeypatch.setattr(gateway._store.codec, "decode", close_meanwhile)
    assert isinstance(gateway.accept(body("a"), RecordForm.JSON), Unavailable)
    assert bench.stored() == []


def test_failed_write_of_the_key_index_does_not_fail_a_sync(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = bench.open(memory_keys=5, records=10)
    monkeypatch.setattr("tocsin.cluster.feed.keyindex.write_run", full_disk)
    outcome: Accepted | Refused = Malformed("")
    for number in range(50):
        outcome = send(gateway, body(f"r{number}"))
        if isinstance(outcome, Unavailable):
            break
    assert isinstance(outcome, Unavailable)
    monkeypatch.undo()
    gateway.maintain()
    assert counts(send(gateway, body("r0", "new"))) == (1, 1, 0)


def in_threads(*tasks: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def run(task: Callable[[], object]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_calls_from_many_threads_store_each_key_once(bench: Bench) -> None:
    gateway = bench.open(memory_keys=60, segment_bytes=4000)
    total = [0]

    def publish() -> None:
        for number in range(150):
            outcome = gateway.accept(body(f"r{number}", f"r{number + 1}"), RecordForm.JSON, f"{number}")
            total[0] += outcome.accepted if isinstance(outcome, Accepted) and not outcome.replayed else 0
            gateway.sync()

    def keep_up() -> None:
        for _ in range(60):
            gateway.maintain()
            gateway.sync()

    in_threads(publish, publish, keep_up)
    assert sorted(names(bench.stored())) == sorted(f"r{number}" for number in range(151))
    assert total[0] == 151
    gateway.ingested(gateway.durable_end)
    assert counts(send(bench.open(), body(*(f"r{number}" for number in range(151))))) == (0, 151, 0)
