"""The values of a CAP 1.2 alert and its vocabulary. Names are CAP's, in Python's spelling (msgType is `msg_type`).

Section numbers refer to the OASIS standard "Common Alerting Protocol Version 1.2" (1 July 2010). Values only:
`reading.py` reads alerts, `writing.py` writes them. Latitude comes before longitude, as in CAP.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self, TypeAlias

NAMESPACE: Final = "urn:oasis:names:tc:emergency:cap:1.2"

STATUS: Final = ("Actual", "Exercise", "System", "Test", "Draft")
MSG_TYPE: Final = ("Alert", "Update", "Cancel", "Ack", "Error")
SCOPE: Final = ("Public", "Restricted", "Private")
CATEGORY: Final = (
    "Geo", "Met", "Safety", "Security", "Rescue", "Fire", "Health", "Env", "Transport", "Infra", "CBRNE", "Other",
)  # fmt: skip
RESPONSE_TYPE: Final = (
    "Shelter", "Evacuate", "Prepare", "Execute", "Avoid", "Monitor", "Assess", "AllClear", "None",
)  # fmt: skip
URGENCY: Final = ("Immediate", "Expected", "Future", "Past", "Unknown")
SEVERITY: Final = ("Extreme", "Severe", "Moderate", "Minor", "Unknown")
CERTAINTY: Final = ("Observed", "Likely", "Possible", "Unlikely", "Unknown")
DEFAULT_LANGUAGE: Final = "en-US"
"""The language of an info without <language> [CAP §3.2.2]."""

Point: TypeAlias = tuple[float, float]
"""(latitude, longitude) in degrees."""
Ring: TypeAlias = tuple[Point, ...]
"""A closed polygon: the last point equals the first."""


@dataclass(frozen=True, slots=True)
class NamedValue:
    """A parameter, an eventCode or a geocode."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Circle:
    centre: Point
    radius_km: float


@dataclass(frozen=True, slots=True)
class Area:
    """[CAP §3.2.4]. The union of its polygons, circles and geocodes."""

    area_desc: str
    polygons: tuple[Ring, ...] = ()
    circles: tuple[Circle, ...] = ()
    geocodes: tuple[NamedValue, ...] = ()
    altitude_ft: float | None = None
    ceiling_ft: float | None = None


@dataclass(frozen=True, slots=True)
class Resource:
    """[CAP §3.2.3]."""

    resource_desc: str
    mime_type: str
    size_bytes: int | None = None
    uri: str | None = None
    deref_uri: str | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Info:
    """[CAP §3.2.2]."""

    event: str
    categories: tuple[str, ...]
    urgency: str
    severity: str
    certainty: str
    language: str = DEFAULT_LANGUAGE
    response_types: tuple[str, ...] = ()
    audience: str | None = None
    event_codes: tuple[NamedValue, ...] = ()
    effective: datetime | None = None
    onset: datetime | None = None
    expires: datetime | None = None
    sender_name: str | None = None
    headline: str | None = None
    description: str | None = None
    instruction: str | None = None
    web: str | None = None
    contact: str | None = None
    parameters: tuple[NamedValue, ...] = ()
    resources: tuple[Resource, ...] = ()
    areas: tuple[Area, ...] = ()


@dataclass(frozen=True, slots=True)
class Reference:
    """The extended identifier of another message: `sender,identifier,sent`."""

    sender: str
    identifier: str
    sent: datetime

    @classmethod
    def parse(cls, triple: str) -> Self | None:
        """The reference that the text holds; None if the text is not `sender,identifier,sent`."""
        sender, _, rest = triple.partition(",")
        identifier, _, sent_text = rest.partition(",")
        sent = read_time(sent_text)
        return cls(sender, identifier, sent) if is_identity(sender) and is_identity(identifier) and sent else None

    def __str__(self) -> str:
        return f"{self.sender},{self.identifier},{time_text(self.sent)}"


@dataclass(frozen=True, slots=True)
class Alert:
    """[CAP §3.2.1]."""

    identifier: str
    sender: str
    sent: datetime
    status: str
    msg_type: str
    scope: str
    source: str | None = None
    restriction: str | None = None
    addresses: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    note: str | None = None
    references: tuple[Reference, ...] = ()
    incidents: tuple[str, ...] = ()
    infos: tuple[Info, ...] = ()

    @property
    def reference(self) -> Reference:
        """The reference that other messages use for this one."""
        return Reference(self.sender, self.identifier, self.sent)


def is_identity(text: str) -> bool:
    """True if the text may be an identifier or a sender [CAP §3.2.1]."""
    return bool(text) and not re.search(r"[\s,<&]", text)


def is_language(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z]{1,8}(-[A-Za-z0-9]{1,8})*", text) is not None


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[-+]\d\d:\d\d")


def read_time(text: str) -> datetime | None:
    """Parse a dateTime as CAP restricts it [CAP §3.3.2]: whole seconds, a numeric offset, no `Z`. None if invalid."""
    if _TIME.fullmatch(text) is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        moment.astimezone(UTC)  # fails outside the years that a dataset can store
    except (ValueError, OverflowError):
        return None
    return moment


def time_text(moment: datetime) -> str:
    """The dateTime as CAP writes it: UTC is `-00:00`, and fractions of a second are dropped."""
    whole = moment.replace(microsecond=0)
    if not whole.utcoffset():
        return whole.replace(tzinfo=None).isoformat() + "-00:00"
    offset = whole.utcoffset()
    if offset is not None and offset % timedelta(minutes=1):  # CAP has no seconds in an offset
        return time_text(whole.astimezone(UTC))
    return whole.isoformat()
