"""Which of several addresses is tried next."""

from __future__ import annotations

from tocsin.leaders.addresses import Leaders, first_address, leaders_of, split_addresses

A, B, C = "http://a:1", "http://b:2", "http://c:3"


def test_next_address_follows_a_failure_in_turn() -> None:
    leaders = Leaders([A, B, C])
    for expected in (B, C, A):
        leaders.failed(leaders.current)
        assert leaders.current == expected


def test_failure_of_an_address_that_is_no_longer_used_changes_nothing() -> None:
    leaders = Leaders([A, B])
    leaders.failed(A)
    leaders.failed(A)  # another connection that had begun before
    assert leaders.current == B


def test_standby_leads_to_the_leader_that_it_names() -> None:
    leaders = Leaders([A, B, C])
    leaders.is_standby(A, C)
    assert leaders.current == C


def test_standby_that_names_an_unknown_address_leads_to_the_next() -> None:
    leaders = Leaders([A, B, C])
    leaders.is_standby(A, "http://10.0.0.7:1")
    assert leaders.current == B
    leaders.is_standby(B, "")
    assert leaders.current == C


def test_one_process_shares_what_it_knows_about_a_list_of_addresses() -> None:
    text = f"{A}/, {B}"
    assert split_addresses(text) == [A, B] and first_address(text) == A
    leaders_of(text).failed(A)
    assert leaders_of(text).current == B
    assert leaders_of(text).belongs(f"{A}/v1/keys") and not leaders_of(text).belongs(f"{C}/v1/keys")
