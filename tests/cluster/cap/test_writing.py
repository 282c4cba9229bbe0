"""Every written alert is read back as the same alert, and every result of a channel becomes a readable alert."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from xml.etree import ElementTree

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.cluster.cap.alerts import EARTHQUAKE_UPDATE, reference
from tocsin.cluster.cap.alert import (
    CATEGORY,
    CERTAINTY,
    NAMESPACE,
    RESPONSE_TYPE,
    SEVERITY,
    URGENCY,
    Alert,
    Area,
    Circle,
    Info,
    NamedValue,
    Reference,
    Resource,
    time_text,
)
from tocsin.cluster.cap.reading import read_alert
from tocsin.cluster.cap.results import Origin, alert_of
from tocsin.cluster.cap.writing import DECIMALS, AtomFeed, alert_document, atom_feed

SENT = datetime(2026, 11, 15, 16, tzinfo=UTC)
ORIGIN = Origin("ab12-3-99", "tocsin@example.org", SENT, "SevereNearMe")

# Text that XML allows, without leading and trailing blanks, which reading strips.
printable = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Cn"), include_characters="\n\t\r"), min_size=1, max_size=8
)
text = printable.filter(lambda value: value == value.strip() and "\ufffe" not in value and "\uffff" not in value)
name = st.from_regex(r"[a-zA-Z0-9@._:-]{1,12}", fullmatch=True)
word = st.from_regex(r"[a-z0-9.-]{1,8}( [a-z]{1,4})?", fullmatch=True)
moment = st.builds(
    lambda at, offset_min: at.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=offset_min))),
    st.datetimes(SENT.replace(year=1970, tzinfo=None), SENT.replace(year=2200, tzinfo=None)),
    st.integers(-840, 840),
)


def numbers(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(least, most).map(lambda number: round(number, DECIMALS))


lat, lon = numbers(-90, 90), numbers(-180, 180)
point = st.tuples(lat, lon)
ring = st.lists(point, min_size=3, max_size=5).map(lambda points: (*points, points[0]))
named = st.builds(NamedValue, text, text | st.just(""))
maybe = st.none() | text


def several(strategy: st.SearchStrategy[Any], least: int = 0) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, min_size=least, max_size=2).map(tuple)


circle = st.builds(Circle, point, numbers(0, 20_000))
areas = st.builds(
    Area, text, several(ring), several(circle), several(named), numbers(0, 1e5), st.none() | numbers(0, 1e5)
)
resources = st.builds(Resource, text, text, st.none() | st.integers(0, 10**15), maybe, maybe, maybe)
infos = st.builds(
    Info, text, several(st.sampled_from(CATEGORY), 1), st.sampled_from(URGENCY), st.sampled_from(SEVERITY),
    st.sampled_from(CERTAINTY), st.sampled_from(["en-US", "fi", "sv-FI"]), several(st.sampled_from(RESPONSE_TYPE)),
    maybe, several(named), *[st.none() | moment] * 3, *[maybe] * 6,
    several(named), several(resources), several(areas),
)  # fmt: skip
alerts = st.builds(
    Alert, name, name, moment, st.sampled_from(["Actual", "Test"]), st.sampled_from(["Alert", "Update", "Cancel"]),
    st.just("Public"), maybe, st.none(), several(word), several(text), maybe,
    several(st.builds(Reference, name, name, moment), 1), several(word), several(infos),
)  # fmt: skip


# An alert has a hundred fields: shrinking a failing example would take minutes.
@settings(max_examples=20, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(alerts)
def test_written_alert_is_read_back_unchanged(alert: Alert) -> None:
    assert read_alert(alert_document(alert)) == alert


def test_elements_are_in_the_order_of_the_standard() -> None:
    parsed = read_alert(EARTHQUAKE_UPDATE)
    assert isinstance(parsed, Alert)
    theirs, ours = ElementTree.fromstring(EARTHQUAKE_UPDATE), ElementTree.fromstring(alert_document(parsed))
    signature = "{http://www.w3.org/2000/09/xmldsig#}"
    expected = [element.tag for element in theirs.iter() if not element.tag.startswith(signature)]
    # The original has no <language>; the written alert has one.
    assert [element.tag for element in ours.iter() if element.tag != f"{{{NAMESPACE}}}language"] == expected


def test_time_has_a_numeric_offset_and_utc_is_minus_zero() -> None:
    assert time_text(SENT) == "2026-11-15T16:00:00-00:00"
    assert time_text(SENT.astimezone(timezone(timedelta(hours=5, minutes=30)))) == "2026-11-15T21:30:00+05:30"


values = (
    st.none()
    | st.booleans()
    | st.integers(-5, 9)
    | st.floats()
    | st.text(max_size=12)
    | st.datetimes()
    | moment
    | st.lists(st.text(max_size=5), max_size=2)
    | st.sampled_from(["Severe", "Cancel", "Test", "Met", reference("A1")])
)
columns = st.sampled_from(
    ["event", "kind", "severity", "urgency", "certainty", "status", "msg_type", "references", "lat", "lon", "radius_m",
     "polygon", "headline", "message", "description", "areaDesc", "expires", "category", "language", "away_m", "note"]
)  # fmt: skip


@settings(max_examples=80)
@given(st.dictionaries(columns, values))
def test_any_result_becomes_an_alert_that_can_be_read(result: dict[str, Any]) -> None:
    made = alert_of(result, ORIGIN)
    parsed = read_alert(alert_document(made))
    assert isinstance(parsed, Alert), (str(parsed), made)
    assert (parsed.identifier, parsed.sender, parsed.sent) == (made.identifier, made.sender, made.sent)
    shapes = [[(area.polygons, area.circles) for area in alert.infos[0].areas] for alert in (parsed, made)]
    assert shapes[0] == shapes[1]


def test_result_of_the_emergency_city_fills_the_cap_elements() -> None:
    result = {
        "report_id": "r1",
        "kind": "fire",
        "severity": 4,
        "lat": 60.17,
        "lon": 24.95,
        "message": "Smoke.\nStay in.",
        "reported_at": datetime(2026, 11, 15, 15, 59, 7, tzinfo=UTC),
        "away_m": 12.5,
        "shelters": [{"name": "Hall"}],
    }
    made = alert_of(result, ORIGIN)
    [info] = made.infos
    assert (made.identifier, made.status, made.msg_type, info.event) == ("ab12-3-99", "Actual", "Alert", "fire")
    assert (info.severity, info.urgency, info.headline, info.description) == (
        "Severe",
        "Unknown",
        "Smoke.",
        "Smoke.\nStay in.",
    )
    assert info.areas == (Area("60.17000, 24.95000", circles=(Circle((60.17, 24.95), 0.0),)),)
    assert set(info.parameters) == {
        NamedValue("report_id", "r1"),
        NamedValue("away_m", "12.5"),
        NamedValue("shelters", '[{"name":"Hall"}]'),
        NamedValue("reported_at", "2026-11-15T15:59:07Z"),
    }


def test_numeric_severity_becomes_a_word_with_minor_as_lowest() -> None:
    words = [alert_of({"severity": number}, ORIGIN).infos[0].severity for number in (-1, 0, 1, 2, 3, 4, 5, 9)]
    assert words == ["Unknown", "Unknown", "Minor", "Minor", "Moderate", "Severe", "Extreme", "Extreme"]


def test_cancel_without_references_becomes_an_alert_with_a_note() -> None:
    cancel = alert_of({"msg_type": "Cancel", "references": reference("A1")}, ORIGIN)
    assert cancel.msg_type == "Cancel" and [source.identifier for source in cancel.references] == ["A1"]
    without = alert_of({"msg_type": "Cancel"}, ORIGIN)
    assert (without.msg_type, without.note) == ("Alert", "msgType of the source: Cancel")


def test_exercise_stays_an_exercise() -> None:
    assert alert_of({"status": "Exercise"}, ORIGIN).status == "Exercise"


def test_atom_feed_contains_each_alert() -> None:
    made = [alert_of({"kind": "fire & <smoke>"}, ORIGIN), alert_of({"kind": "flood"}, ORIGIN)]
    feed = AtomFeed("urn:tocsin:channel:C", "C", "tocsin@example.org", SENT, "Gap: x")
    document = "".join(atom_feed(feed, [("/v1/results/ab12/3-99", alert) for alert in made]))
    root = ElementTree.fromstring(document)
    atom = "{http://www.w3.org/2005/Atom}"
    assert root.tag == f"{atom}feed" and root.findtext(f"{atom}updated") == "2026-11-15T16:00:00Z"
    assert root.findtext(f"{atom}subtitle") == "Gap: x"
    entries = root.findall(f"{atom}entry")
    assert [entry.findtext(f"{atom}title") for entry in entries] == ["fire & <smoke>", "flood"]
    inside = entries[0].find(f"{atom}content/{{{NAMESPACE}}}alert")
    assert inside is not None and read_alert(ElementTree.tostring(inside)) == made[0]
