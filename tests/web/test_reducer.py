"""The page's reducer, on rows alone: the same functions that the page runs, in the browser it runs in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.web.browsing import Tab, tab
from tests.web.city_server import CityServer

FOLD = """async ([picture, ...frames]) => {
  const { fromPicture, apply, listed } = await import("/static/state.js");
  let state = fromPicture(null, picture, 0);
  for (const rows of frames) {
    state = Array.isArray(rows) ? apply(state, rows, 1000) : fromPicture(state, rows.picture, 2000);
  }
  const { people } = state;
  return {
    brokers: listed(state).map((one) => [one.id, one.index, one.state, one.load]), feed: state.feed,
    homes: Object.fromEntries([...people.slots].map(([name, slot]) => [name, people.broker[slot]])),
    placed: people.placed, time_s: state.time_s, events: state.events.length, cov: state.curves.cov.values,
    channels: [...state.channels.keys()], places: state.places.size,
    sent: state.curves.notifications.values, p95: state.curves.p95.values,
  };
}"""


@pytest.fixture(scope="module")
def scratch(browser: Browser, city: CityServer) -> Iterator[Tab]:
    with tab(browser) as opened:
        opened.page.goto(f"{city.address}/static/icon.svg")  # same origin, nothing running
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


def test_brokers_are_numbered_by_name_whatever_the_order_of_rows(scratch: Tab) -> None:
    assert [one[:2] for one in fold(scratch)["brokers"]] == [["b1", 0], ["b2", 1]]


def test_homes_follow_joins_moves_failovers_and_leaves(scratch: Tab) -> None:
    told = fold(
        scratch,
        [row("move", 2, subscriber="ann", broker="b1", target="b2", note="too much")],
        [row("moved", 3, subscriber="ann", broker="b1", target="b2")],
        [row("failover", 4, subscriber="bob", target="b1"), row("join", 4, subscriber="cay", broker="b1")],
        [row("leave", 5, subscriber="cay", broker="b1")],
    )
    assert told["homes"] == {"ann": 1, "bob": 0}
    assert told["time_s"] == 5


def test_a_move_that_has_only_begun_changes_no_home(scratch: Tab) -> None:
    assert fold(scratch, [row("move", 2, subscriber="ann", broker="b1", target="b2")])["homes"]["ann"] == 0


def test_moves_of_one_moment_between_the_same_brokers_are_one_entry_with_a_reason(scratch: Tab) -> None:
    moves = [row("move", 2, subscriber=f"p{n}", broker="b1", target="b2", note=f"reason {n}") for n in range(5)]
    late = row("move", 9, subscriber="p9", broker="b1", target="b2", note="later")
    feed = fold(scratch, moves, [late])["feed"]
    assert [(one["count"], one["note"]) for one in feed] == [(1, "later"), (5, "reason 0")]


def test_a_broker_that_fails_is_dead_and_one_that_is_gone_is_not_listed(scratch: Tab) -> None:
    told = fold(
        scratch, [row("broker-failed", 2, broker="b1"), row("broker", 2, broker="b2", detail={"state": "gone"})]
    )
    assert [(one[0], one[2]) for one in told["brokers"]] == [("b1", "dead")]


def test_the_networks_curves_come_from_the_samples_of_brokers_that_serve(scratch: Tab) -> None:
    def sample(broker: str, rate: float, p95: float) -> dict[str, Any]:
        detail = {"notifications_per_s": rate, "delivery_s_p50": 0.01, "delivery_s_p95": p95}
        return row("sample", 2, broker=broker, load_bytes_per_s=5.0, subscribers=1, detail=detail)

    told = fold(scratch, [sample("b1", 3, 0.2), sample("b2", 4, 0.5)], [row("broker-failed", 3, broker="b2")])
    assert told["sent"] == [7] and told["p95"] == [0.5]


def test_a_new_picture_soon_after_continues_the_curves_and_forgets_who_is_gone(scratch: Tab) -> None:
    balance = row("balance", 2, cov=0.4, load_bytes_per_s=1.0, subscribers=2, moves=0, detail={})
    again = [row("broker", 20, broker="b1", detail={"state": "alive"}), row("join", 20, subscriber="ann", broker="b1")]
    told = fold(scratch, [balance], {"picture": again})
    assert told["cov"] == [0.4]
    assert told["homes"] == {"ann": 0}
    assert [one[0] for one in told["brokers"]] == ["b1"]


def test_a_picture_of_another_time_begins_anew(scratch: Tab) -> None:
    balance = row("balance", 500, cov=0.4, load_bytes_per_s=1.0, subscribers=2, moves=0, detail={})
    assert fold(scratch, [balance], {"picture": PICTURE})["cov"] == []


def test_places_that_are_told_again_are_the_same_places(scratch: Tab) -> None:
    hall, school = (
        row("place", 2, note=name, lat=1.0, lon=2.0, detail={"dataset": "S"}) for name in ("Hall", "School")
    )
    assert fold(scratch, [hall, school], [hall])["places"] == 2


def test_rows_of_kinds_that_are_not_known_are_passed_over(scratch: Tab) -> None:
    assert fold(scratch, [row("omen", 2), row("tick", 3)])["time_s"] == 3


def test_server_sent_events_are_put_together_however_they_are_cut(scratch: Tab) -> None:
    text = (
        "retry: 2000\n\nid: 1\nevent: picture\ndata: [1]\n\n: a comment\n\nevent: rows\r\ndata: [2,\r\ndata: 3]\r\n\r\n"
    )
    told = scratch.page.evaluate(
        """async (text) => { const { EventParser } = await import("/static/stream.js");
        return [1, 2, 7, 1000].map((size) => { const parser = new EventParser(); const found = [];
          for (let i = 0; i < text.length; i += size) found.push(...parser.feed(text.slice(i, i + size)));
          return found.map((one) => one.event + " " + one.data); }); }""",
        text,
    )
    assert told == [["picture [1]", "rows [2,\n3]"]] * 4


def test_areas_cover_the_map_without_overlap(scratch: Tab) -> None:
    areas = scratch.page.evaluate(
        """async () => { const { cells } = await import("/static/voronoi.js");
        const sites = Array.from({ length: 12 }, (_, n) => [(n * 37) % 100, (n * 61) % 100]);
        const area = (one) => Math.abs(one.reduce((sum, [x, y], i) => { const [nx, ny] = one[(i + 1) % one.length];
            return sum + x * ny - nx * y; }, 0)) / 2;
        return [cells(sites, [0, 0, 100, 100]).map(area), cells([[50, 50], [50, 50]], [0, 0, 100, 100]).map(area)]; }"""
    )
    assert sum(areas[0]) == pytest.approx(10_000) and min(areas[0]) > 0
    assert areas[1] == [10_000, 0]
