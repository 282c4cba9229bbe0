"""The page's reducer and other pure modules, run in the browser without the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.web.browsing import Tab, tab
from tests.web.city_server import CityServer

FOLD = """async ([picture, ...frames]) => {
  const { fromPicture, apply, listedBrokers } = await import("/static/state.js");
  let state = fromPicture(null, picture, 0);
  for (const rows of frames) {
    state = Array.isArray(rows) ? apply(state, rows, 1000) : fromPicture(state, rows.picture, 2000);
  }
  const { people } = state;
  return {
    brokers: listedBrokers(state).map(({ id, index, state, load }) => [id, index, state, load]), feed: state.feed,
    homes: Object.fromEntries([...people.slots].map(([name, slot]) => [name, people.broker[slot]])),
    placed: people.placed, time_s: state.time_s, events: state.events.length, cov: state.curves.cov.values,
    channels: [...state.channels.keys()], places: state.places.size,
    topics: Object.fromEntries(state.topics),
    sent: state.curves.notifications.values, p95: state.curves.p95.values,
  };
}"""


@pytest.fixture(scope="module")
def scratch(browser: Browser, city: CityServer) -> Iterator[Tab]:
    with tab(browser) as opened:
        opened.page.goto(f"{city.address}/static/icon.svg")  # the same origin, without the page's scripts
        yield opened


def row(kind: str, time_s: float = 1.0, **columns: Any) -> dict[str, Any]:
    return {"time_s": time_s, "kind": kind, **columns}


PICTURE = [
    row("broker", broker="b2", lat=1.0, lon=1.0, detail={"state": "alive"}),
    row("broker", broker="b1", lat=0.0, lon=0.0, detail={"state": "alive"}),
    row("join", subscriber="ann", broker="b1"),
    row("join", subscriber="bob", broker="b2"),
    row("position", subscriber="ann", lat=0.1, lon=0.1),
]


def fold(scratch: Tab, *frames: Any) -> Any:
    return scratch.page.evaluate(FOLD, [PICTURE, *frames])


def test_broker_indexes_follow_names_not_the_order_of_rows(scratch: Tab) -> None:
    assert [broker[:2] for broker in fold(scratch)["brokers"]] == [["b1", 0], ["b2", 1]]


def test_homes_follow_joins_moves_failovers_and_leaves(scratch: Tab) -> None:
    folded = fold(
        scratch,
        [row("move", 2, subscriber="ann", broker="b1", target="b2", note="too much")],
        [row("moved", 3, subscriber="ann", broker="b1", target="b2")],
        [row("failover", 4, subscriber="bob", target="b1"), row("join", 4, subscriber="cay", broker="b1")],
        [row("leave", 5, subscriber="cay", broker="b1")],
    )
    assert folded["homes"] == {"ann": 1, "bob": 0}
    assert folded["time_s"] == 5


def test_started_move_does_not_change_the_home(scratch: Tab) -> None:
    assert fold(scratch, [row("move", 2, subscriber="ann", broker="b1", target="b2")])["homes"]["ann"] == 0


def test_moves_between_the_same_brokers_share_one_entry_of_the_feed(scratch: Tab) -> None:
    moves = [row("move", 2, subscriber=f"p{n}", broker="b1", target="b2", note=f"reason {n}") for n in range(5)]
    late = row("move", 9, subscriber="p9", broker="b1", target="b2", note="later")
    feed = fold(scratch, moves, [late])["feed"]
    assert [(entry["count"], entry["note"]) for entry in feed] == [(1, "later"), (5, "reason 0")]


def test_failed_broker_is_dead_and_removed_broker_is_not_listed(scratch: Tab) -> None:
    folded = fold(
        scratch, [row("broker-failed", 2, broker="b1"), row("broker", 2, broker="b2", detail={"state": "gone"})]
    )
    assert [(broker[0], broker[2]) for broker in folded["brokers"]] == [("b1", "dead")]


def test_curves_of_the_network_use_samples_of_serving_brokers(scratch: Tab) -> None:
    def sample(broker: str, rate: float, p95: float) -> dict[str, Any]:
        detail = {"notifications_per_s": rate, "delivery_s_p50": 0.01, "delivery_s_p95": p95}
        return row("sample", 2, broker=broker, load_bytes_per_s=5.0, subscribers=1, detail=detail)

    folded = fold(scratch, [sample("b1", 3, 0.2), sample("b2", 4, 0.5)], [row("broker-failed", 3, broker="b2")])
    assert folded["sent"] == [7] and folded["p95"] == [0.5]


def test_picture_soon_after_continues_curves_and_drops_missing_subscribers(scratch: Tab) -> None:
    balance = row("balance", 2, cov=0.4, load_bytes_per_s=1.0, subscribers=2, moves=0, detail={})
    again = [row("broker", 20, broker="b1", detail={"state": "alive"}), row("join", 20, subscriber="ann", broker="b1")]
    folded = fold(scratch, [balance], {"picture": again})
    assert folded["cov"] == [0.4]
    assert folded["homes"] == {"ann": 0}
    assert [broker[0] for broker in folded["brokers"]] == ["b1"]


def test_picture_of_another_time_restarts_the_curves(scratch: Tab) -> None:
    balance = row("balance", 500, cov=0.4, load_bytes_per_s=1.0, subscribers=2, moves=0, detail={})
    assert fold(scratch, [balance], {"picture": PICTURE})["cov"] == []


def test_repeated_place_is_counted_once(scratch: Tab) -> None:
    hall, school = (
        row("place", 2, note=name, lat=1.0, lon=2.0, detail={"dataset": "S"}) for name in ("Hall", "School")
    )
    assert fold(scratch, [hall, school], [hall])["places"] == 2


def test_rows_of_unknown_kinds_are_ignored(scratch: Tab) -> None:
    assert fold(scratch, [row("unknown", 2), row("tick", 3)])["time_s"] == 3


def test_event_parser_accepts_text_cut_at_any_position(scratch: Tab) -> None:
    text = (
        "retry: 2000\n\nid: 1\nevent: picture\ndata: [1]\n\n: a comment\n\nevent: rows\r\ndata: [2,\r\ndata: 3]\r\n\r\n"
    )
    parsed = scratch.page.evaluate(
        """async (text) => { const { EventParser } = await import("/static/stream.js");
        return [1, 2, 7, 1000].map((size) => { const parser = new EventParser(); const events = [];
          for (let i = 0; i < text.length; i += size) events.push(...parser.feed(text.slice(i, i + size)));
          return events.map(({ event, data }) => event + " " + data); }); }""",
        text,
    )
    assert parsed == [["picture [1]", "rows [2,\n3]"]] * 4


def test_areas_cover_the_map_without_overlap(scratch: Tab) -> None:
    areas = scratch.page.evaluate(
        """async () => { const { cells } = await import("/static/ground.js");
        const sites = Array.from({ length: 12 }, (_, n) => [(n * 37) % 100, (n * 61) % 100]);
        const area = (cell) => Math.abs(cell.reduce((sum, [x, y], i) => { const [nx, ny] = cell[(i + 1) % cell.length];
            return sum + x * ny - nx * y; }, 0)) / 2;
        return [cells(sites, [0, 0, 100, 100]).map(area), cells([[50, 50], [50, 50]], [0, 0, 100, 100]).map(area)]; }"""
    )
    assert sum(areas[0]) == pytest.approx(10_000) and min(areas[0]) > 0
    assert areas[1] == [10_000, 0]


def test_topics_follow_their_rows_and_moves_are_in_the_feed(scratch: Tab) -> None:
    def topic(name: str, **detail: Any) -> dict[str, Any]:
        return row("topic", 2, broker="b1", detail={"topic": name, "within_s": 0.04, **detail})

    move = {"broker": "b1", "target": "b2", "note": "b1 drains"}
    folded = fold(
        scratch,
        [topic("a"), topic("b"), topic("a", moving_to="b2")],
        [row("topic-move", 3, **move, detail={"topic": name}) for name in ("a", "b")],
        [row("topic", 4, detail={"topic": "b", "state": "gone"})],
        [row("topic-failover", 9, target="b2", detail={"topic": "a"})],
    )
    assert folded["topics"] == {"a": {"within_s": 0.04, "moving_to": "b2", "home": "b1"}}
    feed = [(entry["kind"], entry["topic"], entry["count"], entry["note"]) for entry in folded["feed"]]
    assert feed == [("topic-failover", "a", 1, ""), ("topic-move", "a", 2, "b1 drains")]


def test_offloads_and_refusals_are_in_the_feed(scratch: Tab) -> None:
    folded = fold(
        scratch,
        [row("offload", 1, broker="e1", target="e2", moves=3, note="Uo 120 %", detail={"topic": "a", "clients": 3})],
        [row("offloaded", 2, broker="e1", moves=3)],
        [row("offload-refused", 9, broker="e1", note="no broker")],
    )
    feed = [(entry["kind"], entry["source"], entry.get("topic"), entry["note"]) for entry in folded["feed"]]
    assert feed == [("offload-refused", "e1", None, "no broker"), ("offload", "e1", "a", "Uo 120 %")]


LATE_FRAME = """async () => {
  const { apply, empty } = await import("/static/state.js");
  const { drawMarks } = await import("/static/marks.js");
  const state = empty();
  apply(state, [{ kind: "event", time_s: 1, lat: 0, lon: 0, note: "fire", detail: { severity: 3 } }], 5000);
  const context = document.createElementNS("http://www.w3.org/1999/xhtml", "canvas").getContext("2d");
  const palette = { alarm: "rgb(200, 0, 0)", surface: "white", map: "white", brokers: ["blue"] };
  const view = { width: 300, height: 150, sx: () => 100, sy: () => 75 };
  return drawMarks(context, state, view, palette, 1, 3000, false, { pins: [], chosen: "" });
}"""


def test_event_that_arrives_after_the_time_of_a_frame_is_drawn(scratch: Tab) -> None:
    """The browser gives a late frame the time at which it was due."""
    assert scratch.page.evaluate(LATE_FRAME) is True
