"""What an entry keeps of its publishers, and what it says about it."""

from __future__ import annotations

from tocsin.edge.retention import Admission, EntryRetention, PublisherMark, SourceProgress, StoredBatch


def stored(*batches: tuple[str, int, int | None]) -> EntryRetention:
    """An entry that has stored batches (publisher, number, newest time)."""
    retention = EntryRetention()
    for publisher, number, newest_us in batches:
        assert retention.admit(publisher, number) is Admission.STORE
        assert retention.store(StoredBatch(publisher, number, "Readings", newest_us))
    return retention


def test_batch_counts_after_its_write_and_a_repeat_is_not_stored_again() -> None:
    retention = EntryRetention()
    assert retention.admit("p", 1) is Admission.STORE
    assert (retention.stored_through("p"), retention.admit("p", 1)) == (0, Admission.IN_PROGRESS)
    assert retention.admit("p", 2) is Admission.STORE, "several batches share one fsync"
    assert retention.store(StoredBatch("p", 1, "Readings", 5))
    assert (retention.stored_through("p"), retention.admit("p", 1)) == (1, Admission.REPEAT)


def test_gap_is_refused_but_an_unknown_publisher_may_begin_anywhere() -> None:
    retention = stored(("p", 41, 5))
    assert retention.admit("p", 43) is Admission.GAP
    assert (retention.stored_through("p"), retention.durable_through("p")) == (41, 40)


def test_failed_write_can_be_repeated() -> None:
    retention = stored(("p", 1, 5))
    for number in (2, 3):
        retention.admit("p", number)
    retention.abandon("p", 2)
    assert retention.admit("p", 3) is Admission.GAP
    assert retention.admit("p", 2) is Admission.STORE


def test_durable_through_stops_at_the_first_batch_that_is_needed() -> None:
    retention = stored(("p", 1, 10), ("p", 2, 30), ("p", 3, 20), ("q", 1, 10))
    released = retention.release({"Readings": 20})
    assert [(batch.publisher, batch.number) for batch in released] == [("p", 1), ("p", 3), ("q", 1)]
    assert (retention.durable_through("p"), retention.stored_through("p")) == (1, 3)
    assert retention.durable_through("q") == 1
    retention.release({"Readings": 30})
    assert retention.durable_through("p") == 3


def test_horizon_itself_is_not_needed_and_readings_without_a_time_never_are() -> None:
    retention = stored(("p", 1, 20), ("p", 2, 21), ("p", 3, None))
    assert [batch.number for batch in retention.replay({"Readings": 20})] == [2]
    assert [batch.number for batch in retention.replay({})] == [1, 2]


def test_replay_has_the_order_in_which_batches_were_stored() -> None:
    retention = stored(("q", 1, 9), ("p", 1, 8), ("q", 2, 7))
    order = [(batch.publisher, batch.number) for batch in retention.replay({"Readings": 0})]
    assert order == [("q", 1), ("p", 1), ("q", 2)]


def test_publisher_that_moved_away_leaves_nothing() -> None:
    retention = stored(("p", 1, 9), ("q", 1, 9))
    retention.admit("p", 2)
    assert [batch.publisher for batch in retention.keep({"q"})] == ["p"]
    assert not retention.store(StoredBatch("p", 2, "Readings", 9)), "its write was in progress"
    assert retention.publishers == {"q"}
    assert retention.admit("p", 7) is Admission.STORE, "it returns later, behind what was durable elsewhere"


def test_entry_continues_with_its_log_after_a_restart() -> None:
    marks = [PublisherMark("p", 5, 3), PublisherMark("q", 2, 2)]
    batches = [
        StoredBatch("p", 4, "Readings", 9),
        StoredBatch("p", 5, "Readings", 10),
        StoredBatch("r", 8, "Readings", 1),
    ]
    retention = EntryRetention(marks, batches)
    assert [retention.stored_through(name) for name in "pqr"] == [5, 2, 8]
    assert [retention.durable_through(name) for name in "pqr"] == [3, 2, 7]
    assert retention.admit("q", 2) is Admission.REPEAT
    assert retention.next_number("q") == 3


def test_source_is_durable_up_to_the_first_chunk_that_is_needed() -> None:
    progress = SourceProgress(100)
    for until, newest_us in ((110, 5), (120, 9), (130, 7), (140, None)):
        progress.read(until, newest_us)
    assert progress.release(4) == 100
    assert progress.release(8) == 110
    assert progress.release(9) == 140
