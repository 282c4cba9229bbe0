"""The page with a made-up city behind it: what is drawn, how it fits, how it is used without a mouse, how it fails."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.web.browsing import PHONE, Tab, tab
from tests.web.city_server import TOKEN, CityServer, served
from tests.web.made_up_city import MadeUpCity


@pytest.fixture(scope="module")
def desk(browser: Browser, city: CityServer) -> Iterator[Tab]:
    with tab(browser) as opened:
        opened.page.goto(f"{city.address}/#token={TOKEN}")
        opened.until("state.rows > 2000 && state.feed.length > 0")
        yield opened


# -- what is drawn -----------------------------------------------------------------------------------------------------


def test_people_are_drawn_in_their_brokers_colours_at_their_places(desk: Tab) -> None:
    wrong = desk.page.evaluate("""() => {
        const { state, map } = tocsin;
        map.draw(performance.now() + 5000);  // nobody is on the way any more
        const { canvas } = map.crowdContext;
        const words = new Uint32Array(map.crowdContext.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
        const known = new Set(map.palette.words);
        let drawn = 0, strange = 0;
        for (let slot = 0; slot < state.people.size; slot += 1) {
          const x = Math.round(map.view.sx(state.people.lon[slot]));
          const y = Math.round(map.view.sy(state.people.lat[slot]));
          const word = words[y * canvas.width + x];
          if (known.has(word)) drawn += 1; else if (word) strange += 1;
        }
        return { drawn, strange, people: state.people.placed };
    }""")
    assert wrong["people"] == 400
    assert wrong["drawn"] > 370, wrong  # the rest stand beyond the edge
    assert wrong["strange"] == 0, wrong


def test_loads_balance_and_moves_are_shown_with_their_reasons(desk: Tab) -> None:
    page = desk.page
    assert page.locator("#broker-table tbody tr").count() == 4
    assert page.locator("#charts .chart").count() == 4
    assert page.locator("#charts .limit").count() >= 3  # β = θ, α, γ
    assert "people: broker-" in page.locator("#feed").inner_text()
    assert "carries" in page.locator("#feed .why").first.inner_text() + page.locator("#feed").inner_text()
    assert "EmergenciesOfType" in page.locator("#channel-table").inner_text()


def test_a_broker_is_opened_from_the_map_and_closed_with_escape(desk: Tab) -> None:
    page = desk.page
    at = page.evaluate("""() => { const { state, map } = tocsin; const one = state.brokers.get("broker-3");
        return { x: map.view.sx(one.lon), y: map.view.sy(one.lat) }; }""")
    page.locator("#map-canvas").click(position=at)
    assert page.locator("#drawer-title").inner_text() == "broker-3"
    page.keyboard.press("Escape")
    assert not page.locator("#drawer").is_visible()


def test_ten_thousand_people_are_drawn_within_a_frame(browser: Browser) -> None:
    """What the page itself needs for a frame; how often a frame comes is the machine's."""
    with served(CityServer(MadeUpCity(10_000))) as crowded, tab(browser) as opened:
        opened.page.goto(f"{crowded.address}/#token={TOKEN}")
        opened.until("state.people.placed === 10000")
        spent_ms = opened.page.evaluate("""() => {
            const taken = [];
            for (let i = 0; i < 40; i += 1) {
              const start = performance.now();
              tocsin.map.draw(start);
              taken.push(performance.now() - start);
            }
            return taken.sort((a, b) => a - b)[10];
        }""")
        assert spent_ms < 16.7


# -- how it fits -------------------------------------------------------------------------------------------------------


def test_everything_is_on_one_screen_of_a_desk_without_scrolling(desk: Tab) -> None:
    overflow = desk.page.evaluate("""() => {
        const root = document.documentElement;
        const parts = [...document.querySelectorAll("main > section, .bar")].map((one) => one.getBoundingClientRect());
        return { page: root.scrollHeight - innerHeight, wide: root.scrollWidth - innerWidth,
                 low: Math.max(...parts.map((box) => box.bottom)) - innerHeight };
    }""")
    assert overflow["page"] <= 0 and overflow["wide"] <= 0 and overflow["low"] <= 0, overflow


def test_nothing_overflows_on_a_phone_and_the_map_comes_first(browser: Browser, city: CityServer) -> None:
    with tab(browser, viewport=PHONE, is_mobile=True, has_touch=True, device_scale_factor=2) as phone:
        phone.page.goto(f"{city.address}/#token={TOKEN}")
        phone.until("state.feed.length > 0")
        seen = phone.page.evaluate("""() => {
            const boxes = [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility());
            const out = boxes.filter((one) => { const box = one.getBoundingClientRect();
                const beyond = box.right > innerWidth + 1 || box.left < -1;
                return box.width > 1 && beyond && !one.closest(".scroll, svg, .totals, .unseen"); });
            return { out: out.map((one) => one.className || one.tagName), wide: document.documentElement.scrollWidth,
                     map: document.querySelector(".map").getBoundingClientRect().top };
        }""")
        assert seen["out"] == [] and seen["wide"] <= PHONE["width"], seen
        assert seen["map"] < 160
        cut = phone.page.evaluate("""() => [...document.querySelectorAll(".scroll")].filter((one) =>
            one.checkVisibility() && one.scrollWidth > one.clientWidth + 1)
            .map((one) => one.parentElement.className)""")
        assert cut == []
        assert phone.complaints == []


def test_little_is_loaded_and_nothing_jumps_while_it_is(browser: Browser, city: CityServer) -> None:
    with tab(browser) as opened:
        opened.page.add_init_script("""globalThis.jumps = 0; new PerformanceObserver((list) => {
            for (const entry of list.getEntries()) globalThis.jumps += entry.value;
        }).observe({ type: "layout-shift", buffered: true });""")
        opened.page.goto(f"{city.address}/#token={TOKEN}")
        opened.until("state.rows > 1500")
        jumped = opened.page.evaluate("() => globalThis.jumps")
        bytes_loaded = opened.page.evaluate("""() => performance.getEntriesByType("resource")
            .filter((one) => one.name.includes("/static/")).reduce((sum, one) => sum + one.decodedBodySize, 0)""")
        assert jumped < 0.1
        assert 20_000 < bytes_loaded < 250_000  # what there is to load is what makes it quick anywhere


def test_reduced_motion_is_respected(browser: Browser, city: CityServer) -> None:
    with tab(browser, reduced_motion="reduce") as calm:
        calm.page.goto(f"{city.address}/#token={TOKEN}")
        calm.until("state.rows > 2000")
        frames, frames_shown = calm.page.evaluate("""() => new Promise((resolve) => {
            const before = tocsin.map.frames, rows = tocsin.state.rows;
            setTimeout(() => resolve([tocsin.map.frames - before, (tocsin.state.rows - rows) / 400]), 1500);
        })""")
        assert frames <= frames_shown + 4  # one a message, not sixty a second


def test_the_theme_follows_the_system_until_somebody_chooses(browser: Browser, city: CityServer) -> None:
    background = "() => getComputedStyle(document.body.querySelector('.bar')).backgroundColor"
    with tab(browser, color_scheme="dark") as opened:
        opened.page.goto(f"{city.address}/#token={TOKEN}")
        assert opened.page.evaluate(background) == "rgb(20, 27, 34)"
        opened.page.get_by_role("button", name="Dark colours").click()
        assert opened.page.evaluate(background) == "rgb(255, 255, 255)"
        opened.page.reload()
        assert opened.page.evaluate(background) == "rgb(255, 255, 255)"


# -- without a mouse ---------------------------------------------------------------------------------------------------


def test_the_map_is_moved_and_zoomed_with_keys(desk: Tab) -> None:
    page = desk.page
    page.locator("#map-canvas").focus()
    before = page.evaluate("() => ({ x: tocsin.map.view.x, scale: tocsin.map.view.scale })")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("+")
    after = page.evaluate("() => ({ x: tocsin.map.view.x, scale: tocsin.map.view.scale })")
    assert after["x"] > before["x"] and after["scale"] > before["scale"]
    page.keyboard.press("0")
    assert page.evaluate("() => tocsin.map.view.scale") == pytest.approx(before["scale"])


def test_everything_is_reached_with_tab_and_the_focus_is_seen_and_comes_back(desk: Tab) -> None:
    page = desk.page
    page.evaluate("() => document.activeElement.blur()")
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("() => document.activeElement.id || document.activeElement.textContent"))
    assert {"open-subscriber", "open-controls", "theme", "map-canvas", "broker-1", "channel-0"} <= set(reached), reached
    button = page.locator("#broker-table").get_by_role("button", name="broker-1")
    button.focus()
    assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "drawer-title"
    page.keyboard.press("Escape")
    assert page.evaluate("() => document.activeElement.textContent") == "broker-1"


def test_every_control_has_a_name_and_headings_are_in_order(desk: Tab) -> None:
    page = desk.page
    page.locator("#broker-table").get_by_role("button", name="broker-1").click()
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    page.keyboard.press("Escape")
    controls = {"button", "link", "textbox", "combobox", "checkbox", "slider", "spinbutton", "application", "dialog"}
    found = [node for node in tree if node.get("role", {}).get("value") in controls and not node.get("ignored")]
    nameless = [node for node in found if not node.get("name", {}).get("value")]
    assert len(found) > 15
    assert nameless == []
    levels = page.evaluate("""() => [...document.querySelectorAll("h1, h2, h3, h4")]
        .filter((one) => one.checkVisibility()).map((one) => Number(one.tagName[1]))""")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), levels
    landmarks = page.evaluate("() => ['header', 'main', 'nav'].every((one) => document.querySelector(one))")
    assert landmarks


def test_the_map_is_told_in_words(desk: Tab) -> None:
    assert "4 brokers, 400 people on the map" in (desk.page.locator("#map-text").text_content() or "")


# -- how it fails ------------------------------------------------------------------------------------------------------


def test_a_lost_stream_is_said_and_comes_back_by_itself(browser: Browser) -> None:
    with served(CityServer(MadeUpCity(50), pace_s=0.1)) as server, tab(browser) as opened:
        opened.page.goto(f"{server.address}/#token={TOKEN}")
        opened.until("state.rows > 200")
        samples = opened.state("state.curves.cov.times.length")
        server.broken = True
        opened.page.locator("#banner").get_by_text("No news from the coordinator").wait_for()
        assert opened.page.locator("#status-text").inner_text() == "Connection lost"
        server.broken = False
        opened.page.wait_for_function("() => document.getElementById('banner').hidden")
        assert opened.page.locator("#status-text").inner_text() == "Live"
        assert opened.state("state.curves.cov.times.length") >= samples  # the curves go on


def test_a_wrong_token_asks_for_another(browser: Browser, city: CityServer) -> None:
    with tab(browser) as opened:
        opened.page.goto(f"{city.address}/#token=wrong")
        opened.page.get_by_text("That token was refused").wait_for()
        opened.page.get_by_label("Token").fill(TOKEN)
        opened.page.get_by_role("button", name="Sign in").click()
        opened.until("state.brokers.size === 4")
        assert not opened.page.locator("#sign-in").is_visible()
        opened.page.get_by_role("button", name="Sign out").click()
        opened.page.get_by_label("Token").wait_for()
        assert opened.page.evaluate("() => sessionStorage.length") == 0


def test_an_empty_network_says_what_to_do(browser: Browser) -> None:
    city = MadeUpCity(0, brokers=1)
    city.picture = lambda: [city.row("tick")]  # type: ignore[method-assign]
    city.second = lambda: [city.row("tick")]  # type: ignore[method-assign]
    with served(CityServer(city, pace_s=0.1)) as server, tab(browser) as opened:
        opened.page.goto(f"{server.address}/#token={TOKEN}")
        for words in ("No brokers yet", "No channels yet", "Nobody has been moved yet", "has a place yet"):
            opened.page.get_by_text(words).wait_for()
        assert opened.complaints == []


def test_data_is_text_whatever_it_says(browser: Browser) -> None:
    city = MadeUpCity(20, brokers=2)
    city.brokers[0] = "<img src=x onerror=alert(1)>"
    city.states = dict.fromkeys(city.brokers, "alive")
    with served(CityServer(city, pace_s=0.1)) as server, tab(browser) as opened:
        opened.page.goto(f"{server.address}/#token={TOKEN}")
        opened.until("state.feed.length > 0")
        assert opened.page.locator("#broker-table button", has_text="<img src=x").count() == 1
        assert opened.page.locator("main img").count() == 0
        assert opened.complaints == []


def test_the_page_complained_of_nothing_and_called_nobody_else(desk: Tab, city: CityServer) -> None:
    """Last of those that share it."""
    assert desk.complaints == []
    assert desk.hosts == {city.address.removeprefix("http://")}
