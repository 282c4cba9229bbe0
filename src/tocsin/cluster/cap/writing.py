"""Writes an `Alert` as CAP 1.2 XML, elements in the order of the standard's schema; also an Atom feed of alerts.

Characters that XML does not allow (control characters) become U+FFFD; all others are escaped. `reading.py` reads the
same alert back, with numbers to nine decimals. No I/O; the data cluster's results route calls it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from xml.sax.saxutils import escape, quoteattr

from tocsin.cluster.cap.alert import NAMESPACE, Alert, Area, Circle, Info, NamedValue, Point, Resource, time_text

_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
DECIMALS = 9
_ATOM = "http://www.w3.org/2005/Atom"


def alert_document(alert: Alert) -> bytes:
    return (_DECLARATION + alert_xml(alert) + "\n").encode()


def alert_xml(alert: Alert) -> str:
    """The <alert> element, for a document or a feed."""
    inside = _elements(
        ("identifier", alert.identifier),
        ("sender", alert.sender),
        ("sent", alert.sent),
        ("status", alert.status),
        ("msgType", alert.msg_type),
        ("source", alert.source),
        ("scope", alert.scope),
        ("restriction", alert.restriction),
        ("addresses", _group(alert.addresses)),
        *(("code", code) for code in alert.codes),
        ("note", alert.note),
        ("references", " ".join(map(str, alert.references))),
        ("incidents", _group(alert.incidents)),
    )
    return f'<alert xmlns="{NAMESPACE}">{inside}{"".join(map(_info, alert.infos))}</alert>'


def _info(info: Info) -> str:
    inside = _elements(
        ("language", info.language),
        *(("category", category) for category in info.categories),
        ("event", info.event),
        *(("responseType", response) for response in info.response_types),
        ("urgency", info.urgency),
        ("severity", info.severity),
        ("certainty", info.certainty),
        ("audience", info.audience),
    )
    inside += "".join(_named("eventCode", code) for code in info.event_codes)
    inside += _elements(
        ("effective", info.effective),
        ("onset", info.onset),
        ("expires", info.expires),
        ("senderName", info.sender_name),
        ("headline", info.headline),
        ("description", info.description),
        ("instruction", info.instruction),
        ("web", info.web),
        ("contact", info.contact),
    )
    inside += "".join(_named("parameter", parameter) for parameter in info.parameters)
    return f"<info>{inside}{''.join(map(_resource, info.resources))}{''.join(map(_area, info.areas))}</info>"


def _resource(resource: Resource) -> str:
    inside = _elements(
        ("resourceDesc", resource.resource_desc),
        ("mimeType", resource.mime_type),
        ("size", None if resource.size_bytes is None else str(resource.size_bytes)),
        ("uri", resource.uri),
        ("derefUri", resource.deref_uri),
        ("digest", resource.digest),
    )
    return f"<resource>{inside}</resource>"


def _area(area: Area) -> str:
    inside = _elements(
        ("areaDesc", area.area_desc),
        *(("polygon", " ".join(map(_point, ring))) for ring in area.polygons),
        *(("circle", _circle(circle)) for circle in area.circles),
    )
    inside += "".join(_named("geocode", geocode) for geocode in area.geocodes)
    inside += _elements(
        ("altitude", None if area.altitude_ft is None else _number(area.altitude_ft)),
        ("ceiling", None if area.ceiling_ft is None else _number(area.ceiling_ft)),
    )
    return f"<area>{inside}</area>"


def _circle(circle: Circle) -> str:
    return f"{_point(circle.centre)} {_number(circle.radius_km)}"


def _point(point: Point) -> str:
    lat, lon = point
    return f"{_number(lat)},{_number(lon)}"


def _number(number: float) -> str:
    """The number with nine decimals (0.1 mm, as degrees). Some readers of CAP do not support an exponent."""
    return format(Decimal(repr(round(number, DECIMALS))), "f")


def _named(element: str, named: NamedValue) -> str:
    value = f"<value>{_escaped(named.value)}</value>"
    return f"<{element}><valueName>{_escaped(named.name)}</valueName>{value}</{element}>"


def _group(words: Iterable[str]) -> str:
    return " ".join(f'"{word}"' if re.search(r"\s", word) else word for word in words)


def _elements(*pairs: tuple[str, str | datetime | None]) -> str:
    """The elements that have a value."""
    return "".join(
        f"<{name}>{_escaped(time_text(value) if isinstance(value, datetime) else value)}</{name}>"
        for name, value in pairs
        if value
    )


def _escaped(text: str) -> str:
    return escape(_NO_XML.sub("\ufffd", text), {"\r": "&#13;"})


@dataclass(frozen=True, slots=True)
class AtomFeed:
    """The head of an Atom feed."""

    identity: str
    title: str
    author: str
    updated: datetime
    subtitle: str | None = None


def atom_feed(feed: AtomFeed, entries: Iterable[tuple[str, Alert]]) -> Iterator[str]:
    """The pieces of an Atom feed (RFC 4287), the usual form of public CAP feeds, for (address, alert) entries.

    Each entry contains its alert inline and links to the alert's own address.
    """
    yield f'{_DECLARATION}<feed xmlns="{_ATOM}">' + _elements(
        ("id", feed.identity), ("title", feed.title), ("subtitle", feed.subtitle), ("updated", _atom_time(feed.updated))
    )
    yield f"<author>{_elements(('name', feed.author))}</author>\n"
    for address, alert in entries:
        headline = next((info.headline or info.event for info in alert.infos), alert.identifier)
        link = f'<link rel="alternate" type="application/cap+xml" href={quoteattr(address)}/>'
        yield (
            f"<entry><id>urn:tocsin:{_escaped(alert.identifier)}</id><title>{_escaped(headline)}</title>"
            f"<updated>{_atom_time(alert.sent)}</updated>{link}"
            f'<content type="application/cap+xml">{alert_xml(alert)}</content></entry>\n'
        )
    yield "</feed>\n"


def _atom_time(moment: datetime) -> str:
    return moment.astimezone(UTC).replace(microsecond=0, tzinfo=None).isoformat() + "Z"
