"""Durations in text, such as `10 SECONDS`, `7 DAYS`, `PT10S` and `P1D`; the program uses seconds.

`P1D` is 86,400 s: the BAD prototype read it as 0 s because it parsed only the part after the `T`.
"""

from __future__ import annotations

import re

_UNITS_S = {
    "MILLISECOND": 0.001,
    "SECOND": 1.0,
    "MINUTE": 60.0,
    "HOUR": 3_600.0,
    "DAY": 86_400.0,
    "WEEK": 604_800.0,
}
_ISO = re.compile(
    r"P(?:(?P<weeks>\d+(?:\.\d+)?)W)?(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_WORDS = re.compile(r"(?P<count>\d+(?:\.\d+)?)\s*(?P<unit>[A-Z]+?)S?")


def parse_duration_s(text: str) -> float | None:
    """The duration in seconds; None if `text` is not a positive duration.

    Years and months are not accepted, because they have no fixed length.
    """
    cleaned = text.strip().upper()
    if match := _WORDS.fullmatch(cleaned):
        unit_s = _UNITS_S.get(match["unit"])
        seconds = None if unit_s is None else float(match["count"]) * unit_s
    elif (match := _ISO.fullmatch(cleaned)) and not cleaned.endswith("T"):
        seconds = sum(
            float(match[f"{unit.lower()}s"] or 0) * _UNITS_S[unit]
            for unit in ("WEEK", "DAY", "HOUR", "MINUTE", "SECOND")
        )
    else:
        seconds = None
    return seconds if seconds else None


def format_duration(seconds: float) -> str:
    """Text with the largest unit that gives a whole number: 86,400 → `1 DAY`, 90 → `90 SECONDS`."""
    for unit in ("WEEK", "DAY", "HOUR", "MINUTE", "SECOND"):
        count = seconds / _UNITS_S[unit]
        if count >= 1 and count == int(count):
            return f"{int(count)} {unit}{'' if count == 1 else 'S'}"
    return f"{seconds * 1000:g} MILLISECONDS"
