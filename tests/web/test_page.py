"""The page with a random city: drawing, layout, keyboard and accessibility, failures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.web.browsing import PHONE, Tab, tab
from tests.web.city_server import TOKEN, CityServer, served
from tests.web.random_city import RandomCity, RandomSite


@pytest.fixture(scope="module")
def desk(browser: Browser, city: CityServer) -> Iterator[Tab]:
    with tab(browser) as opened:
        opened.page.goto(f"{city.address}/#token={TOKEN}")
        opened.until("state.rows > 2000 && state.feed.length > 0")
        yield opened


# -- drawing ----------------------------------------------------------------------------------------------------------


def test_people_are_drawn_at_their_places_in_their_brokers_colours(desk: Tab) -> None:
    counts = desk.page.evaluate("""() => {
        const { state, map } = tocsin;
        map.draw(performance.now() + 5000);  // all glides are over
        const { canvas } = map.crowdContext;
        const pixels = new Uint32Array(map.crowdContext.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
        const colours = new Set(map.palette.pixelColours);
        let drawn = 0, other = 0;
        for (let slot = 0; slot < state.people.size; slot += 1) {
          const x = Math.round(map.view.sx(state.people.lon[slot]));
          const y = Math.round(map.view.sy(state.people.lat[slot]));
          const pixel = pixels[y * canvas.width + x];
          if (colours.has(pixel)) drawn += 1; else if (pixel) other += 1;
        }
        return { drawn, other, people: state.people.placed };
    }""")
    assert counts["people"] == 400
    assert counts["drawn"] > 370, counts  # the others are outside the canvas
    assert counts["other"] == 0, counts


def test_page_shows_loads_balance_and_moves_with_reasons(desk: Tab) -> None:
    page = desk.page
    assert page.locator("#broker-table tbody tr").count() == 4
    assert page.locator("#charts .chart").count() == 4
    assert page.locator("#charts .limit").count() >= 3  # β = θ, α, γ
    assert "people: broker-" in page.locator("#feed").inner_text()
    assert "carries" in page.locator("#feed .why").first.inner_text() + page.locator("#feed").inner_text()
    channels = page.locator("#channel-table").inner_text()
    assert "EmergenciesOfType" in channels
    assert channels.count("late since") == 1, "one channel is late, and the page shows since when"


def test_click_on_a_broker_opens_it_and_escape_closes_it(desk: Tab) -> None:
    page = desk.page
    at = page.evaluate("""() => { const { state, map } = tocsin; const broker = state.brokers.get("broker-3");
        return { x: map.view.sx(broker.lon), y: map.view.sy(broker.lat) }; }""")
    page.locator("#map-canvas").click(position=at)
    assert page.locator("#drawer-title").inner_text() == "broker-3"
    page.keyboard.press("Escape")
    assert not page.locator("#drawer").is_visible()


def test_page_of_a_site_shows_roles_loads_limits_and_neighbours(browser: Browser) -> None:
    with served(CityServer(RandomSite(60, brokers=3), pace_s=0.2)) as server, tab(browser) as opened:
        page = opened.page
        page.goto(f"{server.address}/#token={TOKEN}")
        opened.until("state.sites !== null && state.brokers.size === 3")
        rows = [row.inner_text() for row in page.locator("#broker-table tbody tr").all()]
        for row, words in zip(
            rows, (("head", "LOW 41 %"), ("edge", "OVERLOAD 97 %"), ("standby", "LOW 62 %")), strict=True
        ):
            assert all(word in row for word in words), rows
        west, head, edge, other = page.locator("#site-table tbody tr").all()
        assert west.inner_text().split() == ["rtwc1", "up", "42", "ms", "4", "1,234", "2"]
        assert head.inner_text().split() == ["broker-1", "head", "LOW", "33", "%"]
        assert edge.inner_text().split() == ["broker-2", "edge", "BUSY", "88", "%"]
        assert other.inner_text().split()[:2] == ["ntwc2", "down"]
        assert page.title() == "Tocsin: site ntwc1"
        page.locator("#broker-table button", has_text="broker-1").click()
        facts = page.locator("#drawer dl.facts")
        expect(facts).to_contain_text("Publishers with a limit")
        assert "41 %: 656 kB/s of 1.6 MB/s" in facts.inner_text()
        assert "0 %: 200 kB/s of any rate" in facts.inner_text()
        assert opened.errors == []


def test_page_of_a_network_without_sites_shows_no_neighbours(desk: Tab) -> None:
    assert not desk.page.locator("#site-table").is_visible()
    assert "edge" not in desk.page.locator("#broker-table").inner_text()


def test_topics_that_are_late_come_first_and_show_their_clients(desk: Tab) -> None:
    page = desk.page
    rows = page.locator("#topic-table tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("swarm/3/leader late")
    expect(page.locator("#topics-note")).to_have_text("2 topics, 1 with a problem")
    rows.first.click()
    expect(page.locator("#drawer-title")).to_have_text("swarm/3/leader")
    expect(page.locator("#drawer-body")).to_contain_text("65 ms, above the bound")
    expect(page.locator("#drawer-body")).to_contain_text("broker-2")
    page.keyboard.press("Escape")
    expect(page.locator("#drawer")).to_be_hidden()


def test_ten_thousand_people_are_drawn_within_a_frame(browser: Browser) -> None:
    """Measures the page's own time for a frame, not the frame rate of the machine."""
    with served(CityServer(RandomCity(10_000))) as crowded, tab(browser) as opened:
        opened.page.goto(f"{crowded.address}/#token={TOKEN}")
        opened.until("state.people.placed === 10000")
        spent_ms = opened.page.evaluate("""() => {
            const times = [];
            for (let i = 0; i < 40; i += 1) {
              const start = performance.now();
              tocsin.map.draw(start);
              times.push(performance.now() - start);
            }
            return times.sort((a, b) => a - b)[10];
        }""")
        assert spent_ms < 16.7


# -- layout -----------------------------------------------------------------------------------------------------------


def test_page_fits_a_desktop_screen_without_scrolling(desk: Tab) -> None:
    overflow = desk.page.evaluate("""() => {
        const root = document.documentElement;
        const parts = [...document.querySelectorAll("main > section, .bar")];
        return { page: root.scrollHeight - innerHeight, wide: root.scrollWidth - innerWidth,
                 low: Math.max(...parts.map((part) => part.getBoundingClientRect().bottom)) - innerHeight };
    }""")
    assert overflow["page"] <= 0 and overflow["wide"] <= 0 and overflow["low"] <= 0, overflow


def test_page_fits_a_phone_and_starts_with_the_map(browser: Browser, city: CityServer) -> None:
    with tab(browser, viewport=PHONE, is_mobile=True, has_touch=True, device_scale_factor=2) as phone:
        phone.page.goto(f"{city.address}/#token={TOKEN}")
        phone.until("state.feed.length > 0")
        layout = phone.page.evaluate("""() => {
            const visible = [...document.querySelectorAll("body *")].filter((node) => node.checkVisibility());
            const out = visible.filter((node) => { const box = node.getBoundingClientRect();
                const beyond = box.right > innerWidth + 1 || box.left < -1;
                return box.width > 1 && beyond && !node.closest(".scroll, svg, .totals, .unseen"); });
            return { out: out.map((node) => node.className || node.tagName),
                     wide: document.documentElement.scrollWidth,
                     map: document.querySelector(".map").getBoundingClientRect().top };
        }""")
        assert layout["out"] == [] and layout["wide"] <= PHONE["width"], layout
        assert layout["map"] < 160
        cut = phone.page.evaluate("""() => [...document.querySelectorAll(".scroll")].filter((node) =>
            node.checkVisibility() && node.scrollWidth > node.clientWidth + 1)
            .map((node) => node.parentElement.className)""")
        assert cut == []
        assert phone.errors == []


def test_page_loads_few_bytes_and_does_not_shift_its_layout(browser: Browser, city: CityServer) -> None:
    with tab(browser) as opened:
        opened.page.add_init_script("""globalThis.shifts = 0; new PerformanceObserver((list) => {
            for (const entry of list.getEntries()) globalThis.shifts += entry.value;
        }).observe({ type: "layout-shift", buffered: true });""")
        opened.page.goto(f"{city.address}/#token={TOKEN}")
        opened.until("state.rows > 1500")
        shifted = opened.page.evaluate("() => globalThis.shifts")
        bytes_loaded = opened.page.evaluate("""() => performance.getEntriesByType("resource")
            .filter((file) => file.name.includes("/static/")).reduce((sum, file) => sum + file.decodedBodySize, 0)""")
        assert shifted < 0.1
        assert 20_000 < bytes_loaded < 250_000  # few bytes load quickly on any connection


def test_reduced_motion_draws_only_when_rows_arrive(browser: Browser, city: CityServer) -> None:
    with tab(browser, reduced_motion="reduce") as still:
        still.page.goto(f"{city.address}/#token={TOKEN}")
        still.until("state.rows > 2000")
        frames, frames_shown = still.page.evaluate("""() => new Promise((resolve) => {
            const before = tocsin.map.frames, rows = tocsin.state.rows;
            setTimeout(() => resolve([tocsin.map.frames - before, (tocsin.state.rows - rows) / 400]), 1500);
        })""")
        assert frames <= frames_shown + 4  # one per message, not sixty a second


def test_theme_follows_the_system_until_the_user_chooses(browser: Browser, city: CityServer) -> None:
    background = "() => getComputedStyle(document.body.querySelector('.bar')).backgroundColor"
    with tab(browser, color_scheme="dark") as opened:
        opened.page.goto(f"{city.address}/#token={TOKEN}")
        assert opened.page.evaluate(background) == "rgb(20, 27, 34)"
        opened.page.get_by_role("button", name="Dark colours").click()
        assert opened.page.evaluate(background) == "rgb(255, 255, 255)"
        opened.page.reload()
        assert opened.page.evaluate(background) == "rgb(255, 255, 255)"


# -- keyboard ----------------------------------------------------------------------------------------------------------


def test_keys_move_and_zoom_the_map(desk: Tab) -> None:
    page = desk.page
    page.locator("#map-canvas").focus()
    before = page.evaluate("() => ({ x: tocsin.map.view.x, scale: tocsin.map.view.scale })")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("+")
    after = page.evaluate("() => ({ x: tocsin.map.view.x, scale: tocsin.map.view.scale })")
    assert after["x"] > before["x"] and after["scale"] > before["scale"]
    page.keyboard.press("0")
    assert page.evaluate("() => tocsin.map.view.scale") == pytest.approx(before["scale"])


def test_tab_reaches_every_control_and_the_focus_is_visible_and_returns(desk: Tab) -> None:
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
    nodes = [node for node in tree if node.get("role", {}).get("value") in controls and not node.get("ignored")]
    nameless = [node for node in nodes if not node.get("name", {}).get("value")]
    assert len(nodes) > 15
    assert nameless == []
    levels = page.evaluate("""() => [...document.querySelectorAll("h1, h2, h3, h4")]
        .filter((node) => node.checkVisibility()).map((node) => Number(node.tagName[1]))""")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), levels
    landmarks = page.evaluate("() => ['header', 'main', 'nav'].every((tag) => document.querySelector(tag))")
    assert landmarks


def test_map_has_a_text_summary(desk: Tab) -> None:
    """The page updates the summary every 10 seconds."""
    desk.page.locator("#map-text", has_text="4 brokers, 400 people on the map").wait_for(state="attached")


# -- failures ----------------------------------------------------------------------------------------------------------


def test_lost_stream_is_reported_and_reconnects(browser: Browser) -> None:
    with served(CityServer(RandomCity(50), pace_s=0.1)) as server, tab(browser) as opened:
        opened.page.goto(f"{server.address}/#token={TOKEN}")
        opened.until("state.rows > 200")
        samples = opened.state("state.curves.cov.times.length")
        server.broken = True
        opened.page.locator("#banner").get_by_text("The connection to the coordinator is lost").wait_for()
        assert opened.page.locator("#status-text").inner_text() == "Connection lost"
        server.broken = False
        opened.page.wait_for_function("() => document.getElementById('banner').hidden")
        assert opened.page.locator("#status-text").inner_text() == "Live"
        assert opened.state("state.curves.cov.times.length") >= samples  # the curves continue


def test_wrong_token_opens_the_sign_in_again(browser: Browser, city: CityServer) -> None:
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


def test_empty_network_shows_hints(browser: Browser) -> None:
    city = RandomCity(0, brokers=1)
    city.picture = lambda: [city.row("tick")]  # type: ignore[method-assign]
    city.second = lambda: [city.row("tick")]  # type: ignore[method-assign]
    with served(CityServer(city, pace_s=0.1)) as server, tab(browser) as opened:
        opened.page.goto(f"{server.address}/#token={TOKEN}")
        for hint in ("No brokers yet", "No channels yet", "No moves yet", "No positions yet"):
            opened.page.get_by_text(hint).wait_for()
        assert opened.errors == []


def test_data_with_markup_is_shown_as_text(browser: Browser) -> None:
    city = RandomCity(20, brokers=2)
    city.brokers[0] = "<img src=x onerror=alert(1)>"
    city.states = dict.fromkeys(city.brokers, "alive")
    with served(CityServer(city, pace_s=0.1)) as server, tab(browser) as opened:
        opened.page.goto(f"{server.address}/#token={TOKEN}")
        opened.until("state.feed.length > 0")
        assert opened.page.locator("#broker-table button", has_text="<img src=x").count() == 1
        assert opened.page.locator("main img").count() == 0
        assert opened.errors == []


def test_page_has_no_errors_and_contacts_no_other_host(desk: Tab, city: CityServer) -> None:
    """The last test that uses the shared tab."""
    assert desk.errors == []
    assert desk.hosts == {city.address.removeprefix("http://")}
