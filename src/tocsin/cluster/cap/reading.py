"""Reads CAP 1.2 XML into an `Alert` and checks it: number, vocabulary and form of every element.

A table per container lists its elements, how often each may occur, and how its text is read. Rules about several
elements ([CAP §3.2.1]: restriction with Restricted, addresses with Private, references with Update and Cancel) are
checked at the end. `read_alert` never raises: it returns the first problem, with element and line. `intake.py` calls
it.

Departures: the order of elements in a container is not enforced, because many senders get it wrong and the meaning is
still clear. A `Signature` block [CAP §3.3.4.1] is skipped and not verified: tokens decide which publishers may send.
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
    is_identity,
    is_language,
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
    """Why a document is not a valid alert: the element, its line, and what was expected."""

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


class _InvalidElement(Exception):
    """Carries a problem to `read_alert`, which always catches it."""

    def __init__(self, element: Element, expected: str) -> None:
        self.problem = CapProblem(element.name, element.line, expected)


Reader: TypeAlias = Callable[[Element], Any]


@dataclass(frozen=True, slots=True)
class _ElementRule:
    """How one kind of element in a container becomes a field."""

    field: str
    read: Reader
    least: int = 0
    most: int | None = 1
    """How often the element may occur. None: any number of times, and the field is a tuple."""


def read_alert(body: bytes) -> Alert | CapProblem:
    root = read_tree(body)
    if isinstance(root, XmlProblem):
        return CapProblem(None, root.line, root.reason)
    if root.name != "alert" or root.namespace != NAMESPACE:
        actual = _OLDER.get(root.namespace, f"namespace {root.namespace[:_QUOTED_CHARACTERS]}")
        return CapProblem(
            root.name, root.line, f'expected <alert xmlns="{NAMESPACE}">: CAP 1.2 is read here, this is {actual}'
        )
    try:
        alert = Alert(**_fields(root, _ALERT))
        _check_alert(root, alert)
    except _InvalidElement as invalid:
        return invalid.problem
    return alert


def _fields(container: Element, rules: dict[str, _ElementRule]) -> dict[str, Any]:
    """The values of the container's elements by field. Raises for the first invalid, missing or surplus element."""
    if container.text:
        raise _InvalidElement(container, f"expected elements, not text ({_quoted(container.text)})")
    by_name: dict[str, list[Any]] = {}
    for child in container.children:
        rule = _rule_of(container, child, rules)
        if rule is None:
            continue
        values = by_name.setdefault(child.name, [])
        values.append(rule.read(child))
        if rule.most is not None and len(values) > rule.most:
            raise _InvalidElement(child, f"expected once in <{container.name}>, this is a second one")
    fields: dict[str, Any] = {}
    for name, rule in rules.items():
        values = by_name.get(name, [])
        if len(values) < rule.least:
            raise _InvalidElement(container, f"expected a <{name}> in it")
        if rule.most is None:
            fields[rule.field] = tuple(values)
        elif values:
            fields[rule.field] = values[0]
    return fields


def _rule_of(container: Element, child: Element, rules: dict[str, _ElementRule]) -> _ElementRule | None:
    """The rule for a child element; None for a signature, which is skipped."""
    if child.namespace == _SIGNATURES and container.name == "alert":
        return None
    if child.namespace != NAMESPACE:
        raise _InvalidElement(child, f"not part of CAP 1.2 (namespace {_quoted(child.namespace)})")
    rule = rules.get(child.name)
    if rule is None:
        near = difflib.get_close_matches(child.name[:_QUOTED_CHARACTERS], rules, n=1)
        raise _InvalidElement(
            child, f"no element of <{container.name}>" + (f"; did you mean <{near[0]}>?" if near else "")
        )
    return rule


def _check_alert(root: Element, alert: Alert) -> None:
    if alert.scope == "Restricted" and alert.restriction is None:
        raise _InvalidElement(root, "expected a <restriction>, since <scope> is Restricted")
    if alert.scope == "Private" and not alert.addresses:
        raise _InvalidElement(root, "expected <addresses>, since <scope> is Private")
    if alert.msg_type != "Alert" and not alert.references:
        raise _InvalidElement(root, f"expected <references>, since <msgType> is {alert.msg_type}")


def _text(element: Element) -> str:
    if element.children:
        raise _InvalidElement(element.children[0], f"expected only text in <{element.name}>")
    if not element.text:
        raise _InvalidElement(element, "expected some text, it is empty")
    return element.text


def _identity(element: Element) -> str:
    text = _text(element)
    if not is_identity(text):
        raise _InvalidElement(element, f"expected no blanks, commas, < or &, got {_quoted(text)}")
    return text


def _one_of(words: tuple[str, ...]) -> Reader:
    def read(element: Element) -> str:
        text = _text(element)
        if text not in words:
            raise _InvalidElement(element, f"expected one of {', '.join(words)}; got {_quoted(text)}")
        return text

    return read


def _certainty(element: Element) -> str:
    """The CAP 1.0 value "Very Likely" counts as Likely [CAP §3.2.2]."""
    if element.text == "Very Likely":
        return "Likely"
    word: str = _one_of(CERTAINTY)(element)
    return word


def _time(element: Element) -> Any:
    text = _text(element)
    moment = read_time(text)
    if moment is None:
        expected = "expected a date and time with a numeric offset, such as 2026-11-15T18:00:00+02:00 (UTC is -00:00)"
        raise _InvalidElement(element, f"{expected}, got {_quoted(text)}")
    return moment


def _language(element: Element) -> str:
    text = _text(element)
    if not is_language(text):
        raise _InvalidElement(element, f"expected a language such as en-US, got {_quoted(text)}")
    return text


def _number(element: Element) -> float:
    number = _parsed_number(_text(element))
    if number is None:
        raise _InvalidElement(element, f"expected a number, got {_quoted(element.text)}")
    return number


def _size(element: Element) -> int:
    text = _text(element)
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise _InvalidElement(element, f"expected a whole number of bytes, got {_quoted(text)}")
    return int(text)


def _polygon(element: Element) -> Ring:
    """The points of a polygon: at least four, the last equal to the first [CAP §3.2.4]."""
    points = tuple(_point(element, pair) for pair in _text(element).split())
    if len(points) < 4:
        raise _InvalidElement(element, f"expected at least 4 points (lat,lon lat,lon …), got {len(points)}")
    if points[0] != points[-1]:
        raise _InvalidElement(element, "expected the last point to be the first again, so that the polygon is closed")
    return points


def _circle(element: Element) -> Circle:
    parts = _text(element).split()
    radius_km = _parsed_number(parts[1]) if len(parts) == 2 else None
    if radius_km is None or not 0 <= radius_km <= _HALF_WAY_ROUND_KM:
        raise _InvalidElement(element, f"expected `lat,lon radius` with the radius in km, got {_quoted(element.text)}")
    return Circle(_point(element, parts[0]), radius_km)


def _point(element: Element, pair: str) -> Point:
    lat_text, _, lon_text = pair.partition(",")
    lat, lon = _parsed_number(lat_text), _parsed_number(lon_text)
    if lat is None or lon is None:
        raise _InvalidElement(element, f"expected points as lat,lon, got {_quoted(pair)}")
    if abs(lat) > 90 or abs(lon) > 180:
        raise _InvalidElement(element, f"expected latitude (±90) before longitude (±180), got {_quoted(pair)}")
    return lat, lon


def _parsed_number(text: str) -> float | None:
    if len(text) > 64 or re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text, re.ASCII) is None:
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def _references(element: Element) -> tuple[Reference, ...]:
    references = []
    for triple in _text(element).split():
        reference = Reference.parse(triple)
        if reference is None:
            expected = "expected sender,identifier,sent triples with blanks between"
            raise _InvalidElement(element, f"{expected}, got {_quoted(triple)}")
        references.append(reference)
    return tuple(references)


def _group(element: Element) -> tuple[str, ...]:
    """The words of a list with blanks between them. A word with blanks is in double quotes [CAP §3.2.1]."""
    return tuple(quoted or plain for quoted, plain in re.findall(r'"([^"]+)"|([^\s"]+)', _text(element)))


def _named(element: Element) -> NamedValue:
    """A valueName and its value, which may be empty."""
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
        raise _InvalidElement(element, "expected an <altitude>, since there is a <ceiling>")
    return area


def _info(element: Element) -> Info:
    return Info(**_fields(element, _INFO))


def _optional_text(element: Element) -> str | None:
    """The text, or None if it is empty: many senders' templates contain empty optional elements."""
    return _text(element) if element.text or element.children else None


_NAMED: Final = {"valueName": _ElementRule("name", _text, 1), "value": _ElementRule("value", _maybe_empty, 1)}
_RESOURCE: Final = {
    "resourceDesc": _ElementRule("resource_desc", _text, 1),
    "mimeType": _ElementRule("mime_type", _text, 1),
    "size": _ElementRule("size_bytes", _size),
    "uri": _ElementRule("uri", _optional_text),
    "derefUri": _ElementRule("deref_uri", _optional_text),
    "digest": _ElementRule("digest", _optional_text),
}
_AREA: Final = {
    "areaDesc": _ElementRule("area_desc", _text, 1),
    "polygon": _ElementRule("polygons", _polygon, most=None),
    "circle": _ElementRule("circles", _circle, most=None),
    "geocode": _ElementRule("geocodes", _named, most=None),
    "altitude": _ElementRule("altitude_ft", _number),
    "ceiling": _ElementRule("ceiling_ft", _number),
}
_INFO: Final = {
    "language": _ElementRule("language", _language),
    "category": _ElementRule("categories", _one_of(CATEGORY), 1, None),
    "event": _ElementRule("event", _text, 1),
    "responseType": _ElementRule("response_types", _one_of(RESPONSE_TYPE), most=None),
    "urgency": _ElementRule("urgency", _one_of(URGENCY), 1),
    "severity": _ElementRule("severity", _one_of(SEVERITY), 1),
    "certainty": _ElementRule("certainty", _certainty, 1),
    "audience": _ElementRule("audience", _optional_text),
    "eventCode": _ElementRule("event_codes", _named, most=None),
    "effective": _ElementRule("effective", _time),
    "onset": _ElementRule("onset", _time),
    "expires": _ElementRule("expires", _time),
    "senderName": _ElementRule("sender_name", _optional_text),
    "headline": _ElementRule("headline", _optional_text),
    "description": _ElementRule("description", _optional_text),
    "instruction": _ElementRule("instruction", _optional_text),
    "web": _ElementRule("web", _optional_text),
    "contact": _ElementRule("contact", _optional_text),
    "parameter": _ElementRule("parameters", _named, most=None),
    "resource": _ElementRule("resources", _resource, most=None),
    "area": _ElementRule("areas", _area, most=None),
}
_ALERT: Final = {
    "identifier": _ElementRule("identifier", _identity, 1),
    "sender": _ElementRule("sender", _identity, 1),
    "sent": _ElementRule("sent", _time, 1),
    "status": _ElementRule("status", _one_of(STATUS), 1),
    "msgType": _ElementRule("msg_type", _one_of(MSG_TYPE), 1),
    "source": _ElementRule("source", _optional_text),
    "scope": _ElementRule("scope", _one_of(SCOPE), 1),
    "restriction": _ElementRule("restriction", _optional_text),
    "addresses": _ElementRule("addresses", _group),
    "code": _ElementRule("codes", _text, most=None),
    "note": _ElementRule("note", _optional_text),
    "references": _ElementRule("references", _references),
    "incidents": _ElementRule("incidents", _group),
    "info": _ElementRule("infos", _info, most=None),
}
