"""Converts a channel's result to a CAP alert: the reverse of `columns.py`.

The value of a column that CAP has an element for goes into that element, if it is in CAP's vocabulary. Any other column
becomes a parameter. A value that CAP requires and the result lacks is Unknown or Other. The alert is Tocsin's own: it
has the configured sender, an identifier made from subscription and cursor, and the time when the execution finished.
`reading.py` accepts every alert made here. No I/O; the data cluster's results route calls it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from tocsin.cluster.cap.alert import (
    CATEGORY,
    CERTAINTY,
    DEFAULT_LANGUAGE,
    MSG_TYPE,
    RESPONSE_TYPE,
    SEVERITY,
    STATUS,
    URGENCY,
    Alert,
    Area,
    Circle,
    Info,
    NamedValue,
    Reference,
    is_language,
    read_time,
)
from tocsin.cluster.cap.columns import CERTAINTY_RANK, SEVERITY_RANK, URGENCY_RANK, spelled
from tocsin.cluster.cap.places import rings_of
from tocsin.cluster.cap.writing import DECIMALS
from tocsin.cluster.sql.geo import is_place

HEADLINE_CHARACTERS = 160
"""The standard's suggestion for a headline that every device can show [CAP §3.2.2]."""
_MAX_CIRCLE_KM = 20_000.0


@dataclass(frozen=True, slots=True)
class Origin:
    """The parts of an alert that are not in the result."""

    identifier: str
    sender: str
    sent: datetime
    channel: str


class _ResultColumns:
    """A result's columns by spelled name. It remembers which ones have been read."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        self._values = {spelled(name): (name, value) for name, value in result.items()}
        self._read: set[str] = set()

    def value(self, *names: str) -> Any:
        """The value of the first of these columns that has one, or None."""
        for name in names:
            value = self._values.get(name, ("", None))[1]
            if value is not None:
                self._read.add(name)
                return value
        return None

    def text(self, *names: str) -> str | None:
        """The value as stripped text, as `reading.py` would read it; None if it is empty."""
        value = self.value(*names)
        return None if value is None else _text(value) or None

    def rest(self) -> tuple[NamedValue, ...]:
        """The columns that have not been read."""
        unread = (pair for name, pair in self._values.items() if name not in self._read and pair[1] is not None)
        return tuple(NamedValue(name, _text(value)) for name, value in unread)


def alert_of(result: Mapping[str, Any], origin: Origin) -> Alert:
    columns = _ResultColumns(result)
    status = columns.value("status")
    references = _references(columns.value("references"))
    source_type = columns.value("msgtype")
    msg_type = source_type if source_type in ("Update", "Cancel") and references else "Alert"
    differs = source_type in MSG_TYPE and source_type != msg_type
    return Alert(
        identifier=origin.identifier,
        sender=origin.sender,
        sent=origin.sent,
        status=status if status in STATUS and status != "Draft" else "Actual",
        msg_type=msg_type,
        scope="Public",
        # A subscriber must see a Cancel even if the channel does not select the references.
        note=f"msgType of the source: {source_type}" if differs else columns.text("note"),
        references=references if msg_type != "Alert" else (),
        infos=(_info(columns, origin),),
    )


def _info(columns: _ResultColumns, origin: Origin) -> Info:
    message = columns.text("message")
    headline, description = columns.text("headline"), columns.text("description") or message
    if headline is None and message is not None:
        headline = _shortened(message.partition("\n")[0].strip())
    areas = _areas(columns)
    return Info(
        event=columns.text("event", "kind") or origin.channel,
        categories=tuple(word for word in _words(columns.value("category")) if word in CATEGORY) or ("Other",),
        urgency=_ranked(columns.value("urgency"), URGENCY, URGENCY_RANK),
        severity=_ranked(columns.value("severity"), SEVERITY, SEVERITY_RANK),
        certainty=_ranked(columns.value("certainty"), CERTAINTY, CERTAINTY_RANK),
        language=_language(columns.value("language")),
        response_types=tuple(word for word in _words(columns.value("responsetype")) if word in RESPONSE_TYPE),
        effective=_time(columns.value("effective")),
        onset=_time(columns.value("onset")),
        expires=_time(columns.value("expires")),
        sender_name=columns.text("sendername"),
        headline=headline,
        description=description,
        instruction=columns.text("instruction"),
        web=columns.text("web"),
        contact=columns.text("contact"),
        parameters=columns.rest(),
        areas=areas,
    )


def _areas(columns: _ResultColumns) -> tuple[Area, ...]:
    lat, lon = columns.value("lat", "latitude"), columns.value("lon", "lng", "longitude")
    rings = rings_of(columns.value("polygon"))
    described = columns.text("areadesc")
    circles: tuple[Circle, ...] = ()
    if _is_number(lat) and _is_number(lon) and is_place(lat, lon):
        radius_m = columns.value("radiusm")
        radius_km = radius_m / 1_000 if _is_number(radius_m) and radius_m > 0 else 0.0
        if not rings:  # a polygon is exact: a circle around it would only make the area larger
            circles = (Circle((_rounded(lat), _rounded(lon)), _rounded(min(radius_km, _MAX_CIRCLE_KM))),)
        described = described or f"{lat:.5f}, {lon:.5f}"
    if described is None and not rings:
        return ()
    return (Area(described or "polygon", rings, circles),)


def _ranked(value: Any, words: Sequence[str], ranks: Mapping[str, int]) -> str:
    """The word itself, or for a number the word of the highest rank that is not above it."""
    if isinstance(value, str):
        return value if value in words else "Unknown"
    if not _is_number(value) or value < 1:
        return "Unknown"
    at_most = [word for word in words if 0 < ranks[word] <= value]
    # A severity of 1 is below CAP's Minor, the lowest word.
    return at_most[0] if at_most else min((word for word in words if ranks[word]), key=ranks.__getitem__)


def _rounded(number: float) -> float:
    return round(float(number), DECIMALS)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.split()
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


def _references(value: Any) -> tuple[Reference, ...]:
    references = (Reference.parse(triple) for triple in _words(value))
    return tuple(reference for reference in references if reference is not None)


def _time(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).replace(microsecond=0)
    return read_time(value) if isinstance(value, str) else None


def _language(value: Any) -> str:
    return value if isinstance(value, str) and is_language(value) else DEFAULT_LANGUAGE


def _shortened(text: str) -> str | None:
    return (text if len(text) <= HEADLINE_CHARACTERS else text[: HEADLINE_CHARACTERS - 1].rstrip() + "…") or None


def _text(value: Any) -> str:
    """A string stripped; any other value as JSON, times and decimals without quotes."""
    return value.strip() if isinstance(value, str) else msgspec.json.encode(value).decode().strip('"')
