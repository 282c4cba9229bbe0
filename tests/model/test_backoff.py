"""Delays between retries."""

from __future__ import annotations

from tocsin.model.backoff import retry_delay_s


def test_delay_doubles_from_one_second_to_one_minute() -> None:
    assert [retry_delay_s(failures) for failures in (0, 1, 2, 3, 7, 1_000)] == [0, 1, 2, 4, 60, 60]


def test_bounds_and_jitter_are_arguments() -> None:
    delays_s = [retry_delay_s(failures, shortest_s=0.5, longest_s=3.0, jitter=0.5) for failures in (0, 1, 2, 3, 9)]
    assert delays_s == [0, 0.25, 0.5, 1.0, 1.5]
