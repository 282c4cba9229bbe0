"""Members without the SDK count repeats, and find results that break the cursor rule."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tocsin.chaos.ledger import DeliveryLedger
from tocsin.chaos.unfiltered import RawSocketMember
from tocsin.model.cursor import offset_of


def at(execution: int, row: int = 0) -> str:
    return f"1-{offset_of(execution, row) + 1}"


def held(cursor: str) -> dict[str, object]:
    return {"subscription": "s", "cursor": cursor}


def member(scenario: Callable[[RawSocketMember], None]) -> tuple[RawSocketMember, DeliveryLedger]:
    ledger = DeliveryLedger()

    async def run() -> RawSocketMember:
        raw = RawSocketMember("raw", "fire", "http://127.0.0.1:9", "token", ledger, lambda: 3)
        raw.take_push("subscribed", {"held": held("1-0")})
        scenario(raw)
        await raw.stop()
        return raw

    return asyncio.run(run()), ledger


def result(raw: RawSocketMember, cursor: str, ping: str) -> None:
    raw.take_push("result", {"subscription": "s", "cursor": cursor, "result": {"id": ping}})


def test_repeat_after_the_cursor_of_a_new_login_is_counted() -> None:
    def scenario(raw: RawSocketMember) -> None:
        result(raw, at(1), "a")
        result(raw, at(2), "b")
        raw.take_push("logged_in", {"subscriptions": [held(at(1))]})
        result(raw, at(2), "b")
        result(raw, at(3), "c")

    raw, ledger = member(scenario)
    assert (raw.results, raw.repeats, raw.broken_rules) == (4, 1, 0)
    assert [delivery.id for delivery in ledger.deliveries["raw", "kind"]] == ["a", "b", "c"]
    assert ledger.starts["raw", "kind"] == 3


def test_repeat_on_one_connection_breaks_the_rule() -> None:
    def scenario(raw: RawSocketMember) -> None:
        result(raw, at(1), "a")
        result(raw, at(1), "a")

    assert member(scenario)[0].broken_rules == 1


def test_other_record_at_a_known_cursor_breaks_the_rule() -> None:
    def scenario(raw: RawSocketMember) -> None:
        result(raw, at(1), "a")
        raw.take_push("logged_in", {"subscriptions": [held("1-0")]})
        result(raw, at(1), "b")

    assert member(scenario)[0].broken_rules == 1


def test_record_repeated_under_another_cursor_is_duplicated() -> None:
    def scenario(raw: RawSocketMember) -> None:
        result(raw, at(1), "a")
        result(raw, at(2), "a")

    _, ledger = member(scenario)
    assert ledger.report()["duplicated"] == 1
