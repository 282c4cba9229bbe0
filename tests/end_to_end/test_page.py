"""The page on a real network: the map, a subscription, draining, settings, and the hosts that it contacts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.end_to_end.conftest import Network
from tests.web.browsing import Tab, chromium, tab

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from chromium()


@pytest.fixture(scope="module")
def live(network: Network, browser: Browser) -> Iterator[Tab]:
    """One tab for all tests here, signed in with the address that `tocsin up` prints."""
    with tab(browser) as opened:
        opened.page.goto(f"{network.stack.coordinator_url}/#token={network.token}")
        opened.until("state.brokers.size === 3 && state.channels.size > 0 && state.cluster?.ready")
        yield opened


def people_pixels(page: Page) -> int:
    """Number of the map's pixels that show people."""
    return int(
        page.evaluate(
            """() => { const context = tocsin.map.crowdContext, { width, height } = context.canvas;
            const pixels = new Uint32Array(context.getImageData(0, 0, width, height).data.buffer);
            return pixels.reduce((sum, pixel) => sum + (pixel ? 1 : 0), 0); }"""
        )
    )


def test_token_leaves_the_address_bar_and_brokers_are_listed(live: Tab, network: Network) -> None:
    assert network.token not in live.page.url
    rows = live.page.locator("#broker-table tbody tr")
    assert [text.split()[0] for text in rows.all_inner_texts()] == list(network.stack.brokers)
    assert "Spark is ready" in live.page.locator("#spark").inner_text()
    assert "OfKind" in live.page.locator("#channel-table").inner_text()


def test_people_with_published_positions_appear_on_the_map(live: Tab, network: Network) -> None:
    before, crowd = live.state("state.people.placed"), next(network.kinds)
    people = [{"name": f"{crowd}-{n}", "lat": 60.16 + n / 4000, "lon": 24.93 + (n % 7) / 400} for n in range(60)]
    network.run(network.publisher.publish("People", people))
    live.until(f"state.people.placed === {before} + 60", 30_000)
    live.page.evaluate("() => tocsin.map.draw(performance.now())")
    assert people_pixels(live.page) > 60


def test_subscription_on_the_page_gets_results_and_survives_a_migration(live: Tab, network: Network) -> None:
    page, kind = live.page, next(network.kinds)
    page.get_by_role("button", name="Subscribe", exact=True).first.click()
    page.get_by_label("Channel", exact=True).select_option("OfKind")
    page.get_by_label("kind").fill(kind)
    user = page.get_by_label("Subscriber", exact=True).input_value()
    page.locator("#subscribe").click()
    page.get_by_text("Subscribed to OfKind.").wait_for()
    network.run(network.publish(kind, "first"))
    page.locator("#notifications").get_by_text(f"{kind}-first").first.wait_for(timeout=30_000)

    [source] = page.evaluate("() => tocsin.subscriber.session.brokerHistory")
    target = network.others(source)[0]
    network.migrate(user, target)
    page.wait_for_function("target => tocsin.subscriber.session.broker === target", arg=target, timeout=30_000)
    network.run(network.publish(kind, "second"))
    page.locator("#notifications").get_by_text(f"{kind}-second").first.wait_for(timeout=30_000)
    assert page.evaluate("() => tocsin.subscriber.notifications.map(({ result }) => result.id)") == [
        f"{kind}-second",
        f"{kind}-first",
    ]
    assert target in page.locator("#session-status").inner_text()
    live.until(f"state.feed.some(({{ kind, target }}) => kind === 'move' && target === '{target}')")
    page.keyboard.press("Escape")


def test_loads_change_when_results_are_delivered(live: Tab, network: Network) -> None:
    live.until("[...state.brokers.values()].some(({ load }) => load > 0)", 30_000)
    samples = live.state("[...state.brokers.values()].map(({ loads }) => loads.times.length)")
    assert all(count > 1 for count in samples), samples


def test_drawer_starts_and_stops_the_drain_of_a_broker(live: Tab, network: Network) -> None:
    page = live.page
    page.locator("#broker-table").get_by_role("button", name="broker-2").click()
    drawer = page.locator("#drawer")
    drawer.get_by_text("Backend subscriptions, heaviest first").wait_for()
    drawer.get_by_role("button", name="Drain").click()
    live.until("state.brokers.get('broker-2').state === 'draining'")
    assert network.coordinator.get("/v1/brokers/broker-2").json()["draining"] is True
    drawer.get_by_role("button", name="Stop draining").click()
    live.until("state.brokers.get('broker-2').state === 'alive'")
    page.keyboard.press("Escape")
    assert not page.locator("#drawer").is_visible()


def test_channel_shows_its_query_and_subscriptions(live: Tab) -> None:
    page = live.page
    page.locator("#channel-table").get_by_role("button", name="OfKind", exact=True).click()
    drawer = page.locator("#drawer")
    drawer.get_by_text("FROM NEW Reports r").wait_for()
    drawer.get_by_role("heading", name="Latest results").wait_for()
    drawer.get_by_role("columnheader", name="Held by").wait_for()
    page.keyboard.press("Escape")


def test_controls_change_settings_and_show_a_plan(live: Tab, network: Network) -> None:
    page, alpha = live.page, network.coordinator.get("/v1/balance").json()["alpha"]
    page.get_by_role("button", name="Controls").click()
    try:
        page.get_by_label("α: move above this cov").fill("0.22")
        page.get_by_role("button", name="Save").click()
        page.get_by_text("Saved.").wait_for()
        assert network.coordinator.get("/v1/balance").json()["alpha"] == 0.22
    finally:
        network.coordinator.put("/v1/balance", json={"alpha": alpha}).raise_for_status()
    page.get_by_role("button", name="Show the plan").click()
    page.locator("#drawer").get_by_text("Nothing to do.").or_(page.locator("#plan-do")).first.wait_for(timeout=60_000)
    page.keyboard.press("Escape")


def test_read_token_shows_the_controls_disabled(network: Network, browser: Browser) -> None:
    created = network.coordinator.post("/v1/tokens", json={"subject": "reader", "scopes": ["read"]}).json()
    with tab(browser) as reader:
        reader.page.goto(f"{network.stack.coordinator_url}/#token={created['token']}")
        reader.until("state.brokers.size === 3")
        reader.page.get_by_role("button", name="Controls").click()
        reader.page.get_by_text("Changes need a token with the scope admin").wait_for()
        assert reader.page.get_by_role("button", name="Save").is_disabled()
        reader.page.keyboard.press("Escape")
        reader.page.locator("#broker-table").get_by_role("button", name="broker-1").click()
        assert reader.page.get_by_role("button", name="Drain").is_disabled()
        assert reader.errors == []


def test_page_has_no_errors_and_contacts_only_the_network(live: Tab, network: Network) -> None:
    """The last test: it checks the tab of all tests above."""
    own = {network.stack.coordinator_url.removeprefix("http://")}
    brokers = {str(child.announcement["address"]).removeprefix("ws://") for child in network.stack.brokers.values()}
    assert live.errors == []
    assert live.hosts <= own | brokers
    assert live.hosts & brokers
