"""A channel's result as an alert: the columns that an alert would have filled, read back.

Whatever a result says in a column CAP has a place for goes there, if it is in CAP's vocabulary; a column CAP has no
place for becomes a parameter. What CAP requires and the result does not say is Unknown, or Other. The alert is ours:
our sender, an identifier made from subscription and cursor, sent when the execution finished. Pure; the data cluster's
results route drives it. Whatever comes out is read by `reading.py` without complaint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from tocsin.cluster.cap.alert import (
    CATEGORY,
    CERTAINTY,
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
    read_time,
)
from tocsin.cluster.cap.columns import CERTAINTY_RANK, SEVERITY_RANK, URGENCY_RANK, spelled
from tocsin.cluster.cap.places import rings_of
from tocsin.cluster.cap.reading import is_identity
from tocsin.cluster.cap.writing import DECIMALS
from tocsin.cluster.sql.geo import is_place

HEADLINE_CHARACTERS = 160
"""What the standard suggests for a headline that every device can show [CAP §3.2.2]."""
_MAX_CIRCLE_KM = 20_000.0


@dataclass(frozen=True, slots=True)
class Origin:
    """What a result does not say about itself."""

    identifier: str
    sender: str
    sent: datetime
    channel: str


class _Told:
    """A result's columns by spelled name; remembers which were asked for."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        self._values = {spelled(name): (name, value) for name, value in result.items()}
        self._asked: set[str] = set()

    def __call__(self, *names: str) -> Any:
        """The value of the first of these columns that has one."""
        for name in names:
            value = self._values.get(name, ("", None))[1]
            if value is not None:
                self._asked.add(name)
                return value
        return None

    def text(self, *names: str) -> str | None:
        """Without blanks around it, as it would be read back; None if nothing is left."""
        value = self(*names)
        return None if value is None else _said(value) or None

    def rest(self) -> tuple[NamedValue, ...]:
        unasked = (pair for name, pair in self._values.items() if name not in self._asked and pair[1] is not None)
        return tuple(NamedValue(name, _said(value)) for name, value in unasked)


def alert_of(result: Mapping[str, Any], origin: Origin) -> Alert:
    told = _Told(result)
    status = told("status")
    references = _references(told("references"))
    said_type = told("msgtype")
    msg_type = said_type if said_type in ("Update", "Cancel") and references else "Alert"
    unsaid = said_type in MSG_TYPE and said_type != msg_type
    return Alert(
        identifier=origin.identifier,
        sender=origin.sender,
        sent=origin.sent,
        status=status if status in STATUS and status != "Draft" else "Actual",
        msg_type=msg_type,
        scope="Public",
        # A subscriber must be able to see a Cancel even when the channel does not select what it refers to.
        note=f"msgType of the source: {said_type}" if unsaid else told.text("note"),
        references=references if msg_type != "Alert" else (),
        infos=(_info(told, origin),),
    )


def _info(told: _Told, origin: Origin) -> Info:
    message = told.text("message")
    headline, description = told.text("headline"), told.text("description") or message
    if headline is None and message is not None:
        headline = _shortened(message.partition("\n")[0].strip())
    areas = _areas(told)
    return Info(
        event=told.text("event", "kind") or origin.channel,
        categories=tuple(word for word in _words(told("category")) if word in CATEGORY) or ("Other",),
        urgency=_ranked(told("urgency"), URGENCY, URGENCY_RANK),
        severity=_ranked(told("severity"), SEVERITY, SEVERITY_RANK),
        certainty=_ranked(told("certainty"), CERTAINTY, CERTAINTY_RANK),
        language=_language(told("language")),
        response_types=tuple(word for word in _words(told("responsetype")) if word in RESPONSE_TYPE),
        effective=_time(told("effective")),
        onset=_time(told("onset")),
        expires=_time(told("expires")),
        sender_name=told.text("sendername"),
        headline=headline,
        description=description,
        instruction=told.text("instruction"),
        web=told.text("web"),
        contact=told.text("contact"),
        parameters=told.rest(),
        areas=areas,
    )


def _areas(told: _Told) -> tuple[Area, ...]:
    lat, lon = told("lat", "latitude"), told("lon", "lng", "longitude")
    rings = rings_of(told("polygon"))
    described = told.text("areadesc")
    circles: tuple[Circle, ...] = ()
    if _is_number(lat) and _is_number(lon) and is_place(lat, lon):
        radius_m = told("radiusm")
        radius_km = radius_m / 1_000 if _is_number(radius_m) and radius_m > 0 else 0.0
        if not rings:  # the polygon is exact; the circle around it would only widen the area
            circles = (Circle((_rounded(lat), _rounded(lon)), _rounded(min(radius_km, _MAX_CIRCLE_KM))),)
        described = described or f"{lat:.5f}, {lon:.5f}"
    if described is None and not rings:
        return ()
    return (Area(described or "polygon", rings, circles),)


def _ranked(value: Any, words: Sequence[str], ranks: Mapping[str, int]) -> str:
    """The word, or the word of the highest rank that is not above the number."""
    if isinstance(value, str):
        return value if value in words else "Unknown"
    if not _is_number(value) or value < 1:
        return "Unknown"
    at_most = [word for word in words if 0 < ranks[word] <= value]
    # A severity of 1 lies below CAP's Minor, which is as low as its words go.
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
    found = []
    for triple in _words(value):
        sender, _, rest = triple.partition(",")
        identifier, _, sent_text = rest.partition(",")
        sent = read_time(sent_text)
        if sent is not None and is_identity(sender) and is_identity(identifier):
            found.append(Reference(sender, identifier, sent))
    return tuple(found)


def _time(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).replace(microsecond=0)
    return read_time(value) if isinstance(value, str) else None


def _language(value: Any) -> str:
    known = isinstance(value, str) and re.fullmatch(r"[A-Za-z]{1,8}(-[A-Za-z0-9]{1,8})*", value)
    return value if known else "en-US"


def _shortened(text: str) -> str | None:
    return (text if len(text) <= HEADLINE_CHARACTERS else text[: HEADLINE_CHARACTERS - 1].rstrip() + "…") or None


def _said(value: Any) -> str:
    """Text as it is, anything else as JSON; a moment or a decimal without the quotes."""
    return value.strip() if isinstance(value, str) else msgspec.json.encode(value).decode().strip('"')
