"""The page of the edge tier: the tree, its loads, operators that move, dead nodes, sign-in and layout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.web.browsing import PHONE, Tab, tab
from tests.web.edge_server import SECRET, EdgePageServer, edge_answer, node_of, served_edge


@pytest.fixture
def server() -> Iterator[EdgePageServer]:
    with served_edge(EdgePageServer(edge_answer())) as running:
        yield running


@pytest.fixture
def desk(browser: Browser, server: EdgePageServer) -> Iterator[Tab]:
    with tab(browser) as opened:
        show(opened, server)
        yield opened


def show(opened: Tab, server: EdgePageServer, answers: int = 2) -> None:
    opened.page.goto(f"{server.address}/#token={SECRET}")
    opened.until(f"state.answers >= {answers}")


def card(page: Page, name: str) -> Any:
    return page.locator(".node", has=page.get_by_role("heading", name=name, exact=True))


def test_each_node_has_a_card_with_loads_and_operators(desk: Tab) -> None:
    page = desk.page
    assert page.locator(".node").count() == 7
    leaf = card(page, "neighbourhood-3")
    assert leaf.get_by_role("meter").count() == 3
    assert "23%" in leaf.inner_text() and leaf.locator(".operators li").count() == 6
    assert page.locator(".link-up").count() == 6
    assert "UserUse" in page.locator("#query-table").inner_text()
    assert "7 of 7" in page.locator("#totals").inner_text()
    assert desk.errors == []
    assert desk.hosts == {page.url.split("/")[2]}, "the page contacts only its own root"


def test_moved_operator_changes_its_card_and_enters_the_feed(desk: Tab, server: EdgePageServer) -> None:
    operator = "UserUse/partial@neighbourhood-1"
    answer = edge_answer()
    node_of(answer, "neighbourhood-1")["operators"].remove(operator)
    node_of(answer, "district-1")["operators"].append(operator)
    server.answer = answer
    desk.until("state.moved === 1")
    expect(card(desk.page, "district-1").locator(".operators li")).to_have_count(4)
    expect(desk.page.locator("#feed")).to_contain_text("1 operator: neighbourhood-1 → district-1")
    expect(desk.page.locator("#feed")).to_contain_text(operator)


def test_placement_of_a_new_generation_counts_as_no_move(desk: Tab, server: EdgePageServer) -> None:
    answer = edge_answer(generation=5)
    node_of(answer, "city")["operators"] += node_of(answer, "neighbourhood-1")["operators"]
    node_of(answer, "neighbourhood-1")["operators"] = []
    server.answer = answer
    expect(desk.page.locator("#feed")).to_contain_text("Generation 5")
    assert desk.state("state.moved") == 0


def test_children_of_a_dead_node_are_linked_to_its_parent(desk: Tab, server: EdgePageServer) -> None:
    answer = edge_answer(generation=5)
    dead = node_of(answer, "district-1")
    for name in ("usage", "operators", "rows_per_s", "inbox_bytes", "late_rows", "bytes_up", "raw_bytes"):
        del dead[name]
    dead["state"] = "dead"
    server.answer = answer
    expect(card(desk.page, "district-1")).to_have_class(re.compile("dead"))
    expect(desk.page.locator(".link-up.detour")).to_have_count(2)
    expect(desk.page.locator("#feed")).to_contain_text("district-1 is dead")
    expect(desk.page.locator("#tree-note")).to_contain_text("dead: district-1")
    assert desk.errors == []


def test_overloaded_node_is_marked_and_named(desk: Tab, server: EdgePageServer) -> None:
    answer = edge_answer()
    node_of(answer, "neighbourhood-2")["usage"]["cpu_pct"] = 97.0
    server.answer = answer
    expect(card(desk.page, "neighbourhood-2")).to_have_class(re.compile("over"))
    expect(desk.page.locator("#tree-note")).to_have_text("overloaded: neighbourhood-2")


def test_page_reports_a_silent_root_and_recovers(desk: Tab, server: EdgePageServer) -> None:
    server.is_broken = True
    expect(desk.page.locator("#banner")).to_contain_text("The root does not answer")
    server.is_broken = False
    expect(desk.page.locator("#banner")).to_be_hidden()
    expect(desk.page.locator("#status-text")).to_have_text("Live")


def test_wrong_secret_leads_to_the_sign_in(browser: Browser, server: EdgePageServer) -> None:
    with tab(browser) as opened:
        opened.page.goto(f"{server.address}/#token=wrong")
        expect(opened.page.locator("#sign-in-why")).to_contain_text("refused")
        opened.page.locator("#token").fill(SECRET)
        opened.page.locator("#sign-in-form button").click()
        opened.until("state.answers >= 1")


@pytest.mark.parametrize("nodes", [7, 15])
def test_tree_fits_a_desktop_screen_without_scrolling(browser: Browser, nodes: int) -> None:
    with served_edge(EdgePageServer(edge_answer(nodes))) as server, tab(browser) as opened:
        show(opened, server)
        overflow = opened.page.evaluate("""() => {
            const root = document.documentElement, scroll = document.querySelector(".tree-panel .scroll");
            return { page: root.scrollHeight - innerHeight, wide: root.scrollWidth - innerWidth,
                     tree: scroll.scrollWidth - scroll.clientWidth };
        }""")
        assert overflow["page"] <= 0 and overflow["wide"] <= 0, overflow
        assert overflow["tree"] <= 0, overflow
        overlapping = opened.page.evaluate("""() => {
            const boxes = [...document.querySelectorAll(".node")].map((node) => node.getBoundingClientRect());
            return boxes.some((a, i) => boxes.some((b, j) => i < j && a.left < b.right && b.left < a.right &&
                a.top < b.bottom && b.top < a.bottom));
        }""")
        assert not overlapping


def test_phone_shows_the_tree_as_an_indented_list(browser: Browser, server: EdgePageServer) -> None:
    with tab(browser, viewport=PHONE, is_mobile=True, has_touch=True, device_scale_factor=2) as phone:
        show(phone, server)
        layout = phone.page.evaluate("""() => ({
            wide: document.documentElement.scrollWidth,
            lefts: [...document.querySelectorAll(".node")].map((node) => Math.round(node.getBoundingClientRect().left)),
        })""")
        assert layout["wide"] <= PHONE["width"]
        assert len(set(layout["lefts"])) == 3, "one indentation per level"
        assert phone.errors == []
