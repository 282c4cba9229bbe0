"""Durations in words and in ISO 8601."""

from __future__ import annotations

import pytest

from tocsin.model.duration import format_duration, parse_duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 SECONDS", 10),
        ("10 seconds", 10),
        ("1 second", 1),
        ("7 DAYS", 604_800),
        ("250 MILLISECONDS", 0.25),
        ("1.5 hours", 5_400),
        ("2 WEEKS", 1_209_600),
        ("PT10S", 10),
        ("P1D", 86_400),
        ("P1DT12H", 129_600),
        ("PT1H30M", 5_400),
        ("P2W", 1_209_600),
        ("PT0.5S", 0.5),
        ("pt5m", 300),
    ],
)
def test_duration_is_parsed_as_seconds(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


def test_iso_duration_of_one_day_is_not_zero() -> None:
    """The BAD prototype parsed only the part after the T: P1D was 0 s, and the channel ran without a pause."""
    assert parse_duration_s("P1D") == 86_400


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "P1DT",
        "10",
        "TEN SECONDS",
        "-5 SECONDS",
        "0 SECONDS",
        "PT0S",
        "P1M",
        "P1Y",
        "5 FORTNIGHTS",
        "1 S",
    ],
)
def test_text_without_positive_fixed_duration_is_rejected(text: str) -> None:
    assert parse_duration_s(text) is None


@pytest.mark.parametrize("seconds", [0.25, 1, 10, 60, 90, 3_600, 86_400, 604_800, 7 * 86_400 + 1])
def test_formatted_duration_is_parsed_to_the_same_value(seconds: float) -> None:
    assert parse_duration_s(format_duration(seconds)) == seconds
