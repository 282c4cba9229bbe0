"""`tocsin replay` of a simulated trace on the page: a timeline instead of controls."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Browser

from tests.web.browsing import Tab, tab
from tests.web.test_replay import homes_at, table

__all__ = ["table"]


@pytest.fixture(scope="module")
def replay(table: pa.Table, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """The page of `tocsin replay` at twenty times the speed of the trace."""
    trace: Path = tmp_path_factory.mktemp("replay") / "trace.parquet"
    pq.write_table(table, trace)
    program = [sys.executable, "-c", "from tocsin.cli.main import main; main()"]
    command = [*program, "replay", str(trace), "--port", "0", "--speed", "20", "--json", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        with tab(browser) as opened:
            opened.page.goto(f"{address}/")
            yield opened
        process.terminate()


def test_replay_needs_no_token_and_hides_controls_of_a_live_network(replay: Tab) -> None:
    replay.until("state.brokers.size === 3 && state.people.placed > 5")
    page = replay.page
    assert page.locator("#status-text").inner_text() == "Replay"
    assert page.get_by_label("Time in the recording").is_visible()
    for name in ("Subscribe", "Controls", "Sign out"):
        assert not page.get_by_role("button", name=name, exact=True).is_visible()


def test_replay_plays_until_it_is_paused(replay: Tab) -> None:
    page = replay.page
    replay.until("state.balance.moves >= 0 && state.curves.cov.times.length > 3")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Play").wait_for()
    before_s = replay.state("state.time_s")
    page.wait_for_timeout(900)  # longer than a frame of the replay
    assert replay.state("state.time_s") - before_s < 1e-6


def test_seek_shows_the_homes_and_the_dead_broker_of_that_time(replay: Tab, table: pa.Table) -> None:
    page = replay.page
    page.evaluate("""() => { const range = document.getElementById("seek"); range.value = 90;
        range.dispatchEvent(new Event("input")); range.dispatchEvent(new Event("change")); }""")
    replay.until("state.time_s === 90 && [...state.brokers.values()].some(({ state }) => state === 'dead')")
    homes = replay.state("""Object.fromEntries([...state.people.slots].map(([name, slot]) =>
        [name, [...state.brokers.values()].find(({ index }) => index === state.people.broker[slot])?.id]))""")
    expected = homes_at(table, 90.0)
    assert expected and {name: home for name, home in homes.items() if home} == expected
    assert page.locator("#broker-table").get_by_text("dead").count() == 1


def test_page_detects_a_replay_despite_the_token_of_an_earlier_coordinator(replay: Tab) -> None:
    page = replay.page
    page.evaluate("() => sessionStorage.setItem('tocsin.token', 'of-an-earlier-coordinator')")
    page.reload()
    page.get_by_label("Time in the recording").wait_for()
    replay.until("state.brokers.size === 3")
    assert not page.get_by_role("button", name="Controls").is_visible()


def test_broker_of_a_replay_is_shown_without_a_drain_button(replay: Tab) -> None:
    page = replay.page
    page.locator("#broker-table button").first.click()
    assert page.locator("#drawer dt").count() > 5
    assert page.locator("#drain").count() == 0
    page.keyboard.press("Escape")
    assert replay.errors == []
