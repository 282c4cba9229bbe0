"""Maps the values of an alert to the columns of a dataset: by the column's name, in the form of its type.

`columns_of` runs once per dataset and reports a column that does not fit before the first alert. Names are compared
without case and underscores: `msgType`, `msg_type` and `MSGTYPE` are the same. docs/cap.md has the table. No I/O.
`intake.py` calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from tocsin.cluster.cap.alert import Alert, Area, Info, NamedValue, time_text
from tocsin.cluster.cap.places import BoundingCircle, bounding_circle, well_known_text
from tocsin.model.entities import Dataset

Row: TypeAlias = dict[str, Any]
"""A record: JSON values by column."""

SEVERITY_RANK: Final = {"Unknown": 0, "Minor": 2, "Moderate": 3, "Severe": 4, "Extreme": 5}
"""The severities of the emergency city are 1 to 5. CAP's Minor is 2, because it is more than the lowest."""
URGENCY_RANK: Final = {"Unknown": 0, "Past": 1, "Future": 2, "Expected": 3, "Immediate": 4}
CERTAINTY_RANK: Final = {"Unknown": 0, "Unlikely": 1, "Possible": 2, "Likely": 3, "Observed": 4}
MESSAGE_CHARACTERS: Final = 2_000
"""Length limit of a `message`, for reading on a telephone. The columns headline and description are complete."""
_PREFIXES: Final = {"Alert": "", "Update": "Update: ", "Cancel": "Cancelled: "}
_IDENTITIES = ("reportid", "alertid", "identifier")


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """The source of one record: one area of one info of one alert."""

    alert: Alert
    record_id: str
    """Unique among all records of the dataset."""
    root_sender: str
    """The sender of the alert whose record this is or replaces."""
    info: Info | None = None
    area: Area | None = None

    @property
    def circle(self) -> BoundingCircle | None:
        return None if self.area is None else bounding_circle(self.area)


@dataclass(frozen=True, slots=True)
class _Source:
    """A value of an alert, and its kind, which decides the possible column types."""

    read: Callable[[RecordFacts], Any]
    kind: str = "text"
    """text, time, number, rank or words."""
    ranks: Mapping[str, int] | None = None


def spelled(name: str) -> str:
    return name.replace("_", "").lower()


class AlertColumns:
    """The columns of one dataset that an alert fills."""

    def __init__(self, dataset: Dataset, filled: Mapping[str, Callable[[RecordFacts], Any]]) -> None:
        self._filled = filled
        self._names = {spelled(name): name for name in filled}
        self._key = {spelled(name) for name in dataset.key}
        self._types = {name: dataset.schema.type_of(name) or "" for name in filled}
        self.shows_cancel = bool(self._names.keys() & {"msgtype", "expires", "message"})
        """True if a column distinguishes a Cancel from an alert."""
        self.names_sender = "sender" in self._key
        """True if the KEY includes the sender, so that two senders may use the same identifier."""

    def has(self, name: str) -> bool:
        return name in self._names

    def row(self, facts: RecordFacts) -> Row:
        return {name: read(facts) for name, read in self._filled.items()}

    def ended(self, row: Row, alert: Alert, record_id: str | None = None) -> Row:
        """An earlier record as changed by `alert`, which ends it: cancelled, and expired when `alert` was sent."""
        ended = dict(row)
        for name in ("sent", "reportedat", "expires"):
            self._put(ended, name, _as_column("time", alert.sent, self._type(name)))
        self._put(ended, "msgtype", "Cancel")
        references = [str(reference) for reference in alert.references]
        self._put(ended, "references", _as_column("words", references, self._type("references")))
        if "message" in self._names and not self.has("msgtype"):
            text = str(ended[self._names["message"]] or "")
            for prefix in filter(None, _PREFIXES.values()):
                text = text.removeprefix(prefix)
            self._put(ended, "message", _PREFIXES["Cancel"] + text)
        if record_id is not None:
            for name in _IDENTITIES:
                own = alert.identifier if name == "identifier" and name not in self._key else record_id
                self._put(ended, name, own)
            self._put(ended, "sender", alert.sender)
        return ended

    def _put(self, row: Row, name: str, value: Any) -> None:
        if name in self._names:
            row[self._names[name]] = value

    def _type(self, name: str) -> str:
        return self._types.get(self._names.get(name, ""), "STRING")


def columns_of(dataset: Dataset) -> AlertColumns | str:
    """The columns of this dataset that an alert fills, or the reason why the dataset cannot take alerts."""
    filled: dict[str, Callable[[RecordFacts], Any]] = {}
    key = {spelled(name) for name in dataset.key}
    has_msg_type = any(spelled(name) == "msgtype" for name in dataset.schema.names)
    for column in dataset.schema.columns:
        source = _source_of(spelled(column.name), key, has_msg_type)
        if source is None:
            if column.name in dataset.key:
                return f"{dataset.name} needs {column.name} in every record (KEY), and CAP has nothing of that name"
            continue
        if column.type not in _COLUMN_TYPES[source.kind]:
            needed = " or ".join(_COLUMN_TYPES[source.kind][:2])
            return f"{dataset.name}.{column.name} is {column.type}: {needed} is needed to take it from CAP"
        filled[column.name] = _reader(source, column.type)
    if not {spelled(name) for name in filled} & set(_IDENTITIES):
        return f"{dataset.name} has no column for an alert's identifier: declare identifier STRING (or report_id)"
    return AlertColumns(dataset, filled)


def _source_of(name: str, key: set[str], has_msg_type: bool) -> _Source | None:
    if name == "identifier":
        return _Source(lambda facts: facts.record_id) if name in key else _Source(lambda facts: facts.alert.identifier)
    if name == "sender" and name in key:
        return _Source(lambda facts: facts.root_sender)
    if name == "message":
        return _Source(lambda facts: _message(facts, prefixed=not has_msg_type))
    return _SOURCES.get(name)


_COLUMN_TYPES: Final = {
    "text": ("STRING",),
    "time": ("TIMESTAMP", "STRING"),
    "number": ("DOUBLE", "FLOAT"),
    "rank": ("INT", "STRING", "TINYINT", "SMALLINT", "BIGINT"),
    "words": ("STRING", "ARRAY<STRING>"),
}
"""Kind of value → column types that accept it. Messages name the first two."""


def _reader(source: _Source, column_type: str) -> Callable[[RecordFacts], Any]:
    return lambda facts: _as_column(source.kind, source.read(facts), column_type, source.ranks)


def _as_column(kind: str, value: Any, column_type: str, ranks: Mapping[str, int] | None = None) -> Any:
    """A value in the JSON form for a column of that type."""
    if value is None:
        return None
    if kind == "time":
        assert isinstance(value, datetime)
        return value.astimezone(UTC).isoformat() if column_type == "TIMESTAMP" else time_text(value)
    if kind == "rank" and column_type != "STRING":
        assert ranks is not None
        return ranks[value]
    if kind == "words":
        words = list(value)
        return words if column_type == "ARRAY<STRING>" else " ".join(words) or None
    return value


def _message(facts: RecordFacts, prefixed: bool) -> str:
    """Headline and description. With `prefixed`, the text starts with `Update: ` or `Cancelled: `."""
    info = facts.info
    parts = [] if info is None else [info.headline, info.description]
    text = "\n".join(part for part in parts if part)
    if not text:
        referred = " ".join(f"alert {reference.identifier}" for reference in facts.alert.references)
        text = referred if info is None else info.event
    text = (_PREFIXES.get(facts.alert.msg_type, "") if prefixed else "") + text
    return text if len(text) <= MESSAGE_CHARACTERS else text[: MESSAGE_CHARACTERS - 1].rstrip() + "…"


def _of_info(read: Callable[[Info], Any]) -> Callable[[RecordFacts], Any]:
    return lambda facts: None if facts.info is None else read(facts.info)


def _of_area(read: Callable[[Area], Any]) -> Callable[[RecordFacts], Any]:
    return lambda facts: None if facts.area is None else read(facts.area)


def _of_circle(read: Callable[[BoundingCircle], float]) -> Callable[[RecordFacts], float | None]:
    return lambda facts: None if (circle := facts.circle) is None else read(circle)


def _pairs(named: tuple[NamedValue, ...]) -> list[str]:
    return [f"{pair.name}={pair.value}" for pair in named]


def _expires(facts: RecordFacts) -> datetime | None:
    """The time when the record expires. A Cancel expires when it is sent."""
    if facts.alert.msg_type == "Cancel":
        return facts.alert.sent
    return None if facts.info is None else facts.info.expires


_LAT: Final = _Source(_of_circle(lambda circle: circle.centre[0]), "number")
_LON: Final = _Source(_of_circle(lambda circle: circle.centre[1]), "number")
_SENT: Final = _Source(lambda facts: facts.alert.sent, "time")
_EVENT: Final = _Source(_of_info(lambda info: info.event))
_SOURCES: Final[dict[str, _Source]] = {
    "reportid": _Source(lambda facts: facts.record_id),
    "alertid": _Source(lambda facts: facts.record_id),
    "sender": _Source(lambda facts: facts.alert.sender),
    "sent": _SENT,
    "reportedat": _SENT,
    "status": _Source(lambda facts: facts.alert.status),
    "msgtype": _Source(lambda facts: facts.alert.msg_type),
    "source": _Source(lambda facts: facts.alert.source),
    "scope": _Source(lambda facts: facts.alert.scope),
    "restriction": _Source(lambda facts: facts.alert.restriction),
    "addresses": _Source(lambda facts: facts.alert.addresses, "words"),
    "code": _Source(lambda facts: facts.alert.codes, "words"),
    "note": _Source(lambda facts: facts.alert.note),
    "references": _Source(lambda facts: [str(reference) for reference in facts.alert.references], "words"),
    "incidents": _Source(lambda facts: facts.alert.incidents, "words"),
    "language": _Source(_of_info(lambda info: info.language)),
    "category": _Source(_of_info(lambda info: info.categories), "words"),
    "event": _EVENT,
    "kind": _EVENT,
    "responsetype": _Source(_of_info(lambda info: info.response_types), "words"),
    "urgency": _Source(_of_info(lambda info: info.urgency), "rank", URGENCY_RANK),
    "severity": _Source(_of_info(lambda info: info.severity), "rank", SEVERITY_RANK),
    "certainty": _Source(_of_info(lambda info: info.certainty), "rank", CERTAINTY_RANK),
    "audience": _Source(_of_info(lambda info: info.audience)),
    "eventcode": _Source(_of_info(lambda info: _pairs(info.event_codes)), "words"),
    "effective": _Source(lambda facts: (facts.info and facts.info.effective) or facts.alert.sent, "time"),
    "onset": _Source(_of_info(lambda info: info.onset), "time"),
    "expires": _Source(_expires, "time"),
    "sendername": _Source(_of_info(lambda info: info.sender_name)),
    "headline": _Source(_of_info(lambda info: info.headline)),
    "description": _Source(_of_info(lambda info: info.description)),
    "instruction": _Source(_of_info(lambda info: info.instruction)),
    "web": _Source(_of_info(lambda info: info.web)),
    "contact": _Source(_of_info(lambda info: info.contact)),
    "parameter": _Source(_of_info(lambda info: _pairs(info.parameters)), "words"),
    "resource": _Source(_of_info(lambda info: [resource.uri for resource in info.resources if resource.uri]), "words"),
    "areadesc": _Source(_of_area(lambda area: area.area_desc)),
    "geocode": _Source(_of_area(lambda area: _pairs(area.geocodes)), "words"),
    "altitude": _Source(_of_area(lambda area: area.altitude_ft), "number"),
    "ceiling": _Source(_of_area(lambda area: area.ceiling_ft), "number"),
    "lat": _LAT,
    "latitude": _LAT,
    "lon": _LON,
    "lng": _LON,
    "longitude": _LON,
    "radiusm": _Source(_of_circle(lambda circle: circle.radius_m), "number"),
    "polygon": _Source(_of_area(lambda area: well_known_text(area.polygons))),
}
