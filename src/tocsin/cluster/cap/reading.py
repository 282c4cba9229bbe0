"""CAP 1.2 XML → `Alert`, checked: every element's number, vocabulary and form, with its line when it is wrong.

A table per container says which elements it has, how often each may be there and how its text is read. What goes beyond
single elements ([CAP §3.2.1]: restriction with Restricted, addresses with Private, references with Update and Cancel)
is checked at the end. Never raises on an alert: the first problem is returned. Pure; driven by `desk.py`.

Departures: the order of elements inside a container is not enforced, because senders get it wrong without being
misunderstood. A `Signature` block [CAP §3.3.4.1] is passed over and not verified: who may publish is decided by tokens.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tocsin.cluster.cap.alert import (
    CATEGORY,
    CERTAINTY,
    MSG_TYPE,
    NAMESPACE,
    RESPONSE_TYPE,
    SCOPE,
    SEVERITY,
    STATUS,
    URGENCY,
    Alert,
    Area,
    Circle,
    Info,
    NamedValue,
    Point,
    Reference,
    Resource,
    Ring,
    read_time,
)
from tocsin.cluster.cap.xmltree import Element, XmlProblem, read_tree

_SIGNATURES: Final = "http://www.w3.org/2000/09/xmldsig#"
_OLDER: Final = {
    "http://www.incident.com/cap/1.0": "CAP 1.0",
    "urn:oasis:names:tc:emergency:cap:1.1": "CAP 1.1",
    "": "no namespace",
}
_HALF_WAY_ROUND_KM: Final = 20_038.0
_QUOTED_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class CapProblem:
    """Why a document is no alert: which element, where, and what was expected."""

    element: str | None
    line: int | None
    expected: str

    def __str__(self) -> str:
        where = ", ".join(
            part
            for part in (f"line {self.line}" if self.line else "", f"<{self.element}>" if self.element else "")
            if part
        )
        return f"{where}: {self.expected}" if where else self.expected


class _Wrong(Exception):
    """Carries a problem out of the tables; never leaves this module."""

    def __init__(self, element: Element, expected: str) -> None:
        self.problem = CapProblem(element.name, element.line, expected)


Reader: TypeAlias = Callable[[Element], Any]


@dataclass(frozen=True, slots=True)
class _Part:
    """One kind of element inside a container."""

    field: str
    read: Reader
    least: int = 0
    most: int | None = 1
    """None: any number, as a tuple."""


def read_alert(body: bytes) -> Alert | CapProblem:
    root = read_tree(body)
    if isinstance(root, XmlProblem):
        return CapProblem(None, root.line, root.reason)
    if root.name != "alert" or root.namespace != NAMESPACE:
        found = _OLDER.get(root.namespace, f"namespace {root.namespace[:_QUOTED_CHARACTERS]}")
        return CapProblem(
            root.name, root.line, f'expected <alert xmlns="{NAMESPACE}">: CAP 1.2 is read here, this is {found}'
        )
    try:
        alert = Alert(**_fields(root, _ALERT))
        _check_whole(root, alert)
    except _Wrong as wrong:
        return wrong.problem
    return alert


def _fields(container: Element, parts: dict[str, _Part]) -> dict[str, Any]:
    """The container's elements by field, or the first that is wrong, missing or too many."""
    if container.text:
        raise _Wrong(container, f"expected elements, not text ({_quoted(container.text)})")
    found: dict[str, list[Any]] = {}
    for child in container.children:
        part = _part_of(container, child, parts)
        if part is None:
            continue
        values = found.setdefault(child.name, [])
        values.append(part.read(child))
        if part.most is not None and len(values) > part.most:
            raise _Wrong(child, f"expected once in <{container.name}>, this is another")
    fields: dict[str, Any] = {}
    for name, part in parts.items():
        values = found.get(name, [])
        if len(values) < part.least:
            raise _Wrong(container, f"expected a <{name}> in it")
        if part.most is None:
            fields[part.field] = tuple(values)
        elif values:
            fields[part.field] = values[0]
    return fields


def _part_of(container: Element, child: Element, parts: dict[str, _Part]) -> _Part | None:
    """None for a signature, which is passed over."""
    if child.namespace == _SIGNATURES and container.name == "alert":
        return None
    if child.namespace != NAMESPACE:
        raise _Wrong(child, f"not part of CAP 1.2 (namespace {_quoted(child.namespace)})")
    part = parts.get(child.name)
    if part is None:
        near = difflib.get_close_matches(child.name[:_QUOTED_CHARACTERS], parts, n=1)
        raise _Wrong(child, f"no element of <{container.name}>" + (f"; did you mean <{near[0]}>?" if near else ""))
    return part


def _check_whole(root: Element, alert: Alert) -> None:
    if alert.scope == "Restricted" and alert.restriction is None:
        raise _Wrong(root, "expected a <restriction>, since <scope> is Restricted")
    if alert.scope == "Private" and not alert.addresses:
        raise _Wrong(root, "expected <addresses>, since <scope> is Private")
    if alert.msg_type != "Alert" and not alert.references:
        raise _Wrong(root, f"expected <references>, since <msgType> is {alert.msg_type}")


def _text(element: Element) -> str:
    if element.children:
        raise _Wrong(element.children[0], f"expected only text in <{element.name}>")
    if not element.text:
        raise _Wrong(element, "expected some text, it is empty")
    return element.text


def _identity(element: Element) -> str:
    text = _text(element)
    if not is_identity(text):
        raise _Wrong(element, f"expected no blanks, commas, < or &, got {_quoted(text)}")
    return text


def is_identity(text: str) -> bool:
    """True for what may be an identifier or a sender [CAP §3.2.1]."""
    return bool(text) and not re.search(r"[\s,<&]", text)


def _one_of(words: tuple[str, ...]) -> Reader:
    def read(element: Element) -> str:
        text = _text(element)
        if text not in words:
            raise _Wrong(element, f"expected one of {', '.join(words)}; got {_quoted(text)}")
        return text

    return read


def _certainty(element: Element) -> str:
    """ "Very Likely" was a word of CAP 1.0 and is to be taken as Likely [CAP §3.2.2]."""
    if element.text == "Very Likely":
        return "Likely"
    word: str = _one_of(CERTAINTY)(element)
    return word


def _time(element: Element) -> Any:
    text = _text(element)
    moment = read_time(text)
    if moment is None:
        expected = "expected a date and time with a numeric offset, such as 2026-11-15T18:00:00+02:00 (UTC is -00:00)"
        raise _Wrong(element, f"{expected}, got {_quoted(text)}")
    return moment


def _language(element: Element) -> str:
    text = _text(element)
    if re.fullmatch(r"[A-Za-z]{1,8}(-[A-Za-z0-9]{1,8})*", text) is None:
        raise _Wrong(element, f"expected a language such as en-US, got {_quoted(text)}")
    return text


def _number(element: Element) -> float:
    number = _parsed_number(_text(element))
    if number is None:
        raise _Wrong(element, f"expected a number, got {_quoted(element.text)}")
    return number


def _size(element: Element) -> int:
    text = _text(element)
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise _Wrong(element, f"expected a whole number of bytes, got {_quoted(text)}")
    return int(text)


def _polygon(element: Element) -> Ring:
    """At least four pairs, the first the same as the last [CAP §3.2.4]."""
    points = tuple(_point(element, pair) for pair in _text(element).split())
    if len(points) < 4:
        raise _Wrong(element, f"expected at least 4 points (lat,lon lat,lon …), got {len(points)}")
    if points[0] != points[-1]:
        raise _Wrong(element, "expected the last point to be the first again, so that the polygon is closed")
    return points


def _circle(element: Element) -> Circle:
    parts = _text(element).split()
    radius_km = _parsed_number(parts[1]) if len(parts) == 2 else None
    if radius_km is None or not 0 <= radius_km <= _HALF_WAY_ROUND_KM:
        raise _Wrong(element, f"expected `lat,lon radius` with the radius in km, got {_quoted(element.text)}")
    return Circle(_point(element, parts[0]), radius_km)


def _point(element: Element, pair: str) -> Point:
    lat_text, _, lon_text = pair.partition(",")
    lat, lon = _parsed_number(lat_text), _parsed_number(lon_text)
    if lat is None or lon is None:
        raise _Wrong(element, f"expected points as lat,lon, got {_quoted(pair)}")
    if abs(lat) > 90 or abs(lon) > 180:
        raise _Wrong(element, f"expected latitude (±90) before longitude (±180), got {_quoted(pair)}")
    return lat, lon


def _parsed_number(text: str) -> float | None:
    if len(text) > 64 or re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text, re.ASCII) is None:
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def _references(element: Element) -> tuple[Reference, ...]:
    found = []
    for triple in _text(element).split():
        sender, _, rest = triple.partition(",")
        identifier, _, sent_text = rest.partition(",")
        sent = read_time(sent_text)
        if not (is_identity(sender) and is_identity(identifier)) or sent is None:
            raise _Wrong(element, f"expected sender,identifier,sent triples with blanks between, got {_quoted(triple)}")
        found.append(Reference(sender, identifier, sent))
    return tuple(found)


def _group(element: Element) -> tuple[str, ...]:
    """Words with blanks between them; those with blanks inside stand in double quotes [CAP §3.2.1]."""
    return tuple(quoted or plain for quoted, plain in re.findall(r'"([^"]+)"|([^\s"]+)', _text(element)))


def _named(element: Element) -> NamedValue:
    """The value may be empty: a valueName alone can say something."""
    return NamedValue(**_fields(element, _NAMED))


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTED_CHARACTERS else text[: _QUOTED_CHARACTERS - 1] + "…")


def _maybe_empty(element: Element) -> str:
    return _text(element) if element.text or element.children else ""


def _resource(element: Element) -> Resource:
    return Resource(**_fields(element, _RESOURCE))


def _area(element: Element) -> Area:
    area = Area(**_fields(element, _AREA))
    if area.ceiling_ft is not None and area.altitude_ft is None:
        raise _Wrong(element, "expected an <altitude>, since there is a <ceiling>")
    return area


def _info(element: Element) -> Info:
    return Info(**_fields(element, _INFO))


def _optional_text(element: Element) -> str | None:
    """An empty optional element says as much as none: many senders' templates leave them in."""
    return _text(element) if element.text or element.children else None


_NAMED: Final = {"valueName": _Part("name", _text, 1), "value": _Part("value", _maybe_empty, 1)}
_RESOURCE: Final = {
    "resourceDesc": _Part("resource_desc", _text, 1),
    "mimeType": _Part("mime_type", _text, 1),
    "size": _Part("size_bytes", _size),
    "uri": _Part("uri", _optional_text),
    "derefUri": _Part("deref_uri", _optional_text),
    "digest": _Part("digest", _optional_text),
}
_AREA: Final = {
    "areaDesc": _Part("area_desc", _text, 1),
    "polygon": _Part("polygons", _polygon, most=None),
    "circle": _Part("circles", _circle, most=None),
    "geocode": _Part("geocodes", _named, most=None),
    "altitude": _Part("altitude_ft", _number),
    "ceiling": _Part("ceiling_ft", _number),
}
_INFO: Final = {
    "language": _Part("language", _language),
    "category": _Part("categories", _one_of(CATEGORY), 1, None),
    "event": _Part("event", _text, 1),
    "responseType": _Part("response_types", _one_of(RESPONSE_TYPE), most=None),
    "urgency": _Part("urgency", _one_of(URGENCY), 1),
    "severity": _Part("severity", _one_of(SEVERITY), 1),
    "certainty": _Part("certainty", _certainty, 1),
    "audience": _Part("audience", _optional_text),
    "eventCode": _Part("event_codes", _named, most=None),
    "effective": _Part("effective", _time),
    "onset": _Part("onset", _time),
    "expires": _Part("expires", _time),
    "senderName": _Part("sender_name", _optional_text),
    "headline": _Part("headline", _optional_text),
    "description": _Part("description", _optional_text),
    "instruction": _Part("instruction", _optional_text),
    "web": _Part("web", _optional_text),
    "contact": _Part("contact", _optional_text),
    "parameter": _Part("parameters", _named, most=None),
    "resource": _Part("resources", _resource, most=None),
    "area": _Part("areas", _area, most=None),
}
_ALERT: Final = {
    "identifier": _Part("identifier", _identity, 1),
    "sender": _Part("sender", _identity, 1),
    "sent": _Part("sent", _time, 1),
    "status": _Part("status", _one_of(STATUS), 1),
    "msgType": _Part("msg_type", _one_of(MSG_TYPE), 1),
    "source": _Part("source", _optional_text),
    "scope": _Part("scope", _one_of(SCOPE), 1),
    "restriction": _Part("restriction", _optional_text),
    "addresses": _Part("addresses", _group),
    "code": _Part("codes", _text, most=None),
    "note": _Part("note", _optional_text),
    "references": _Part("references", _references),
    "incidents": _Part("incidents", _group),
    "info": _Part("infos", _info, most=None),
}
