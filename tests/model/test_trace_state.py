"""The folded state of a trace: homes, pictures, bounds and copies."""

from __future__ import annotations

from tocsin.model.trace import Kind, TraceRow
from tocsin.model.trace_state import EVENTS_S, TraceState


def folded(*rows: TraceRow, max_subscribers: int = 10) -> TraceState:
    state = TraceState(max_subscribers)
    for row in rows:
        state.fold(row)
    return state


def test_home_of_a_subscriber_follows_the_latest_row() -> None:
    state = folded(
        TraceRow(1.0, Kind.JOIN, subscriber="ada", broker="b1"),
        TraceRow(1.0, Kind.JOIN, subscriber="bob", broker="b1"),
        TraceRow(1.0, Kind.JOIN, subscriber="eve", broker="b1"),
        TraceRow(2.0, Kind.MOVE, subscriber="ada", broker="b1", target="b2"),
        TraceRow(3.0, Kind.MOVED, subscriber="ada", broker="b1", target="b2"),
        TraceRow(3.0, Kind.MOVE, subscriber="bob", broker="b1", target="b2"),
        TraceRow(4.0, Kind.MOVE_FAILED, subscriber="bob", broker="b1", target="b2", note="no room"),
        TraceRow(5.0, Kind.LEAVE, subscriber="eve", broker="b1"),
    )
    assert state.homes == {"ada": "b2", "bob": "b1"}
    state.fold(TraceRow(6.0, Kind.FAILOVER, subscriber="bob", target="b3"))
    joins = [row for row in state.picture(7.0) if row.kind == Kind.JOIN]
    assert {(row.subscriber, row.broker, row.time_s) for row in joins} == {("ada", "b2", 7.0), ("bob", "b3", 7.0)}


def test_picture_rebuilds_the_state() -> None:
    rows = [
        TraceRow(1.0, Kind.STREET, detail={"line": [[1.0, 2.0], [3.0, 4.0]]}),
        TraceRow(1.0, Kind.PLACE, note="school", lat=1.0, lon=2.0, detail={"dataset": "Shelters"}),
        TraceRow(1.0, Kind.BROKER, broker="b1", detail={"state": "alive"}),
        TraceRow(1.0, Kind.BROKER, broker="b2", detail={"state": "alive"}),
        TraceRow(1.0, Kind.SAMPLE, broker="b2", subscribers=3),
        TraceRow(2.0, Kind.BROKER, broker="b2", detail={"state": "gone"}),
        TraceRow(2.0, Kind.POSITION, subscriber="ada", lat=1.0, lon=1.0),
        TraceRow(3.0, Kind.POSITION, subscriber="ada", lat=2.0, lon=2.0),
        TraceRow(3.0, Kind.CHANNEL, channel="Fires", detail={"executions": 1}),
        TraceRow(3.0, Kind.CLUSTER, detail={"ready": True}),
        TraceRow(4.0, Kind.EVENT, note="fire", lat=1.0, lon=1.0),
    ]
    picture = folded(*rows).picture(5.0)
    assert [row.kind for row in picture if row.broker == "b2"] == []
    assert [row.lat for row in picture if row.kind == Kind.POSITION] == [2.0]
    assert picture == sorted(picture, key=lambda row: row.time_s), "events come first, because they are older"
    assert folded(*picture).picture(5.0) == picture
    assert not [row for row in folded(*rows).picture(5.0 + EVENTS_S) if row.kind == Kind.EVENT], "the event has expired"


def test_picture_keeps_the_latest_positions_up_to_its_bound() -> None:
    state = folded(*(TraceRow(1.0, Kind.POSITION, subscriber=str(n), lat=0.0, lon=0.0) for n in range(25)))
    assert [row.subscriber for row in state.picture(2.0) if row.subscriber] == [str(n) for n in range(15, 25)]


def test_picture_row_clears_the_earlier_state() -> None:
    state = folded(TraceRow(1.0, Kind.JOIN, subscriber="ada", broker="b1"), TraceRow(2.0, Kind.PICTURE))
    assert state.homes == {}


def test_copy_is_independent() -> None:
    state = folded(TraceRow(1.0, Kind.JOIN, subscriber="ada", broker="b1"))
    copied = state.copy()
    state.fold(TraceRow(2.0, Kind.LEAVE, subscriber="ada", broker="b1"))
    assert copied.homes == {"ada": "b1"} and state.homes == {}
