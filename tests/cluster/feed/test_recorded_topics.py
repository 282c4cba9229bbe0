"""Cursors of recorded topics: they move with the records, in the same write, and only from where they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.feed.test_gateway import PLAIN, REPORTS, Bench, bench, body
from tocsin.cluster.feed.answertable import AnswerTable
from tocsin.cluster.feed.feedlog_reader import FeedLogWriteFailed
from tocsin.cluster.feed.gateway import (
    Accepted,
    CursorConflict,
    FeedGateway,
    Malformed,
    RecordedRange,
    RecordForm,
    Refused,
    TooLarge,
    Unavailable,
)
from tocsin.cluster.server.routes.topic_records import records_of
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName, TopicName
from tocsin.model.schema import Schema
from tocsin.runtime.http.answers import encode
from tocsin.wire.recording import TopicRecords

__all__ = ["bench"]


def record(gateway: FeedGateway, payload: bytes, after: int, upto: int, recording: str = "r1") -> Accepted | Refused:
    outcome, _ = gateway.accept_into_group(payload, RecordForm.JSON, None, RecordedRange(recording, after, upto))
    return outcome


def test_repeated_batch_is_answered_with_the_cursor_and_stored_once(bench: Bench) -> None:
    gateway = bench.open(PLAIN)
    assert isinstance(record(gateway, body("a", "b"), 0, 2), Accepted)
    gateway.sync()
    assert record(gateway, body("a", "b"), 0, 2) == CursorConflict(2)
    assert record(gateway, body("a", "b", "c"), 0, 3) == CursorConflict(2)
    assert isinstance(record(gateway, body("c"), 2, 3), Accepted)
    gateway.sync()
    assert [row["report_id"] for row in bench.stored()] == ["a", "b", "c"]
    assert (gateway.recorded_upto("r1"), gateway.recorded_upto("other")) == (3, 0)


@pytest.mark.parametrize("loses_table", [False, True])
def test_cursor_survives_a_restart(bench: Bench, loses_table: bool) -> None:
    """The log is the truth: a table that is older than the log is completed from it."""
    gateway = bench.open(PLAIN)
    record(gateway, body("a"), 0, 4)
    gateway.sync()
    record(gateway, b"[]", 4, 9)
    gateway.sync()
    bench.close()
    if loses_table:
        for path in bench.directory.glob("answers.db*"):
            path.unlink()
    assert bench.open(PLAIN).recorded_upto("r1") == 9


def test_cursor_is_kept_when_answers_are_forgotten(bench: Bench) -> None:
    gateway = bench.open(REPORTS)
    record(gateway, body("a"), 0, 1)
    gateway.sync()
    bench.now_s += 10 * 86_400.0
    gateway.maintain()
    assert bench.open(REPORTS).recorded_upto("r1") == 1


def test_cursor_that_is_not_durable_is_not_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that believed it would skip messages that the failed sync lost."""
    gateway = bench.open(PLAIN)
    record(gateway, body("a"), 0, 1)
    assert isinstance(gateway.recorded_upto("r1"), Unavailable)
    assert isinstance(record(gateway, body("a", "b"), 0, 2), Unavailable)

    def refuse(upto: int) -> None:
        raise FeedLogWriteFailed("full")

    monkeypatch.setattr(gateway._log, "sync", refuse)
    with pytest.raises(FeedLogWriteFailed):
        gateway.sync()
    monkeypatch.undo()
    assert gateway.recorded_upto("r1") == 0
    assert isinstance(record(gateway, body("a", "b"), 0, 2), Accepted)
    gateway.sync()
    assert [row["report_id"] for row in bench.stored()] == ["a", "b"]


def test_refused_batch_leaves_the_cursor(bench: Bench) -> None:
    gateway = bench.open(PLAIN, record_bytes=30)
    assert isinstance(record(gateway, body("a" * 50), 0, 1), TooLarge)
    assert gateway.recorded_upto("r1") == 0


def test_batch_of_repeated_keys_moves_the_cursor(bench: Bench) -> None:
    gateway = bench.open(REPORTS)
    record(gateway, body("a"), 0, 1)
    gateway.sync()
    outcome = record(gateway, body("a"), 1, 2)
    assert isinstance(outcome, Accepted) and (outcome.accepted, outcome.duplicates) == (0, 1)
    gateway.sync()
    assert bench.open(REPORTS).recorded_upto("r1") == 2


def test_cursors_never_go_back_in_the_table(tmp_path: Path) -> None:
    table = AnswerTable(tmp_path / "answers.db", 1.0)
    table.store([], 10, {"r": 7})
    table.store([], 12, {"r": 3})
    assert table.recorded_upto("r") == 7
    table.close()


# -- messages ----------------------------------------------------------------------------------------------------------

READINGS = Dataset(
    DatasetName("Readings"), DatasetKind.STREAM, Schema.of(room="STRING", Topic="STRING", position="STRING")
)


def converted(dataset: Dataset, *messages: bytes) -> tuple[list[dict[str, object]], int, str | None]:
    sent = TopicRecords("r1", TopicName("rooms/1"), "", [(f"2-{n}", data) for n, data in enumerate(messages, 1)])
    records, refused, reason = records_of(sent, dataset)
    return [{name: json.loads(bytes(raw)) for name, raw in row.items()} for row in records], refused, reason


def test_message_is_a_record_and_an_array_several() -> None:
    records, refused, _ = converted(PLAIN, b'{"report_id": "a"}', b'[{"report_id": "b"}, {"report_id": "c"}]', b"[]")
    assert (records, refused) == ([{"report_id": "a"}, {"report_id": "b"}, {"report_id": "c"}], 0)


def test_columns_topic_and_position_are_filled_and_cannot_be_forged() -> None:
    (record,), _, _ = converted(READINGS, b'{"room": "x", "TOPIC": "forged", "position": 7}')
    assert record == {"room": "x", "Topic": "rooms/1", "position": "2-1"}


@pytest.mark.parametrize("message", [b"", b"21.5", b"no JSON", b'"text"', b"[1]", b'{"a": 1', b"\xff", b"[" * 5_000])
def test_message_that_is_no_record_is_counted_and_the_others_stay(message: bytes) -> None:
    records, refused, reason = converted(PLAIN, b'{"report_id": "a"}', message, b'{"report_id": "b"}')
    assert ([row["report_id"] for row in records], refused) == (["a", "b"], 1)
    assert reason is not None and "message 2-2" in reason


@pytest.mark.parametrize(
    "message",
    [b'{"report_id": "\xff"}', b'{"report_id": "\\ud800"}', b'{"x": 1}', b'{"report_id": 1e999}', b'{"a": NaN}', b"{}"],
)
def test_message_with_a_bad_value_does_not_take_others_with_it(bench: Bench, message: bytes) -> None:
    messages = [("1-1", b'{"report_id": "a"}'), ("1-2", message), ("1-3", b'{"report_id": "b"}')]
    records, _, _ = records_of(TopicRecords("r1", TopicName("t"), "", messages), PLAIN)
    gateway = bench.open(PLAIN)
    outcome = record(gateway, encode(records), 0, 3)
    gateway.sync()
    if isinstance(outcome, Accepted):
        assert {"a", "b"} <= {row.get("report_id") for row in bench.stored()}
    else:
        assert isinstance(outcome, Malformed | TooLarge), "the home leaves the message out and sends the others again"
