"""An alert is read completely, or refused with the element, its line and what was expected."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.cluster.cap.alerts import EARTHQUAKE_UPDATE, SQUARE, alert, area, info
from tocsin.cluster.cap.alert import Alert, Circle, NamedValue, Reference, Resource
from tocsin.cluster.cap.reading import CapProblem, read_alert


def read(body: bytes) -> Alert:
    result = read_alert(body)
    assert isinstance(result, Alert), str(result)
    return result


def test_every_element_of_an_alert_is_read() -> None:
    update = read(EARTHQUAKE_UPDATE)
    assert (update.identifier, update.sender, update.msg_type) == ("EQ-9921-2", "seismo@survey.example", "Update")
    assert update.sent == datetime(2026, 10, 1, 11, 12, 9, tzinfo=UTC)
    [before] = update.references
    assert before == Reference("seismo@survey.example", "EQ-9921", datetime(2026, 10, 1, 11, 10, tzinfo=UTC))
    assert (update.codes, update.note, update.incidents) == (
        ("profile:0.1",),
        "Magnitude revised.",
        ("9921", "north coast"),
    )
    [first] = update.infos
    assert (first.event, first.categories, first.response_types) == ("Earthquake", ("Geo",), ("Monitor",))
    assert (first.urgency, first.severity, first.certainty, first.language) == (
        "Past",
        "Minor",
        "Observed",
        "en-US",
    )
    assert first.description == "Felt & measured." and first.parameters == (NamedValue("magnitude", "3.4"),)
    assert first.resources == (
        Resource("map", "image/png", 1024, "https://survey.example/9921.png", digest="da39a3ee"),
    )
    [area_read] = first.areas
    assert area_read.polygons[0][0] == (38.47, -120.14), "latitude first, as in CAP"
    assert area_read.circles == (Circle((32.9525, -115.5527), 0.0),)
    assert (area_read.geocodes, area_read.altitude_ft, area_read.ceiling_ft) == (
        (NamedValue("SAME", "006109"),),
        100.0,
        5000.5,
    )


def test_utc_is_a_numeric_offset_of_either_sign() -> None:
    for offset in ("-00:00", "+00:00"):
        assert read(alert(info(), sent=f"2026-11-15T18:00:00{offset}")).sent == datetime(2026, 11, 15, 18, tzinfo=UTC)


def test_empty_optional_element_is_none() -> None:
    assert read(alert(info(more="<headline/><instruction> </instruction>"))).infos[0].headline is None


def test_very_likely_of_cap_1_0_counts_as_likely() -> None:
    body = alert(info()).replace(b"<certainty>Likely", b"<certainty>Very Likely")
    assert read(body).infos[0].certainty == "Likely"


@pytest.mark.parametrize(
    ("body", "element", "line", "expected"),
    [
        (alert(info(), sent="2026-11-15T18:00:00Z"), "sent", 5, "numeric offset"),
        (alert(info(), sent="2026-11-15T18:00:00.5+02:00"), "sent", 5, "numeric offset"),
        (alert(info(), sent="2026-13-15T18:00:00+02:00"), "sent", 5, "2026-13-15"),
        (alert(info(), sent="2026-11-15"), "sent", 5, "such as"),
        (alert(info(), identifier="A 1"), "identifier", 3, "no blanks, commas"),
        (alert(info(), sender="a,b"), "sender", 4, "no blanks, commas"),
        (alert(info(), identifier=""), "identifier", 3, "it is empty"),
        (alert(info(), status="actual"), "status", 6, "Actual, Exercise, System, Test, Draft"),
        (alert(info(), msg_type="Warn"), "msgType", 7, "Alert, Update, Cancel, Ack, Error"),
        (alert(info(), scope="All"), "scope", 8, "Public, Restricted, Private"),
        (alert(info(), scope="Restricted"), "alert", 2, "a <restriction>"),
        (alert(info(), scope="Private"), "alert", 2, "<addresses>"),
        (alert(info(), msg_type="Update"), "alert", 2, "<references>"),
        (alert(info(), references="me,A1"), "references", 9, "sender,identifier,sent"),
        (alert(info(), references="me,A1,2026-11-15T18:00:00Z"), "references", 9, "sender,identifier,sent"),
        (alert(info(severity="Bad")), "severity", 10, "Extreme, Severe, Moderate, Minor, Unknown"),
        (alert(info()).replace(b"<event>fire</event>", b""), "info", 10, "a <event>"),
        (alert(info()).replace(b"<category>Fire</category><category>Rescue</category>", b""), "info", 10, "<category>"),
        (alert(info(more="<event>twice</event>")), "event", 10, "once in <info>"),
        (alert(info(more="<headLine>x</headLine>")), "headLine", 10, "did you mean <headline>?"),
        (alert(info(more="<x:y xmlns:x='urn:x'/>")), "y", 10, "not part of CAP 1.2"),
        (alert(info(more="<headline><b>x</b></headline>")), "b", 10, "only text in <headline>"),
        (alert(info(more="stray")), "info", 10, "elements, not text"),
        (alert(info(more="<language>en_US!</language>")), "language", 10, "such as en-US"),
        (alert(info(more="<expires>soon</expires>")), "expires", 10, "numeric offset"),
        (alert(info("<area><areaDesc/></area>")), "areaDesc", 10, "it is empty"),
        (alert(info("<area/>")), "area", 10, "a <areaDesc>"),
        (alert(info(area("<polygon>1,1 2,2 1,1</polygon>"))), "polygon", 10, "at least 4 points"),
        (alert(info(area("<polygon>1,1 2,2 3,1 1,2</polygon>"))), "polygon", 10, "closed"),
        (alert(info(area("<polygon>1,1 2,2 3 1,1</polygon>"))), "polygon", 10, "points as lat,lon"),
        (alert(info(area("<polygon>1,1 nan,2 3,3 1,1</polygon>"))), "polygon", 10, "points as lat,lon"),
        (alert(info(area("<circle>60,25</circle>"))), "circle", 10, "radius in km"),
        (alert(info(area("<circle>60,25 -1</circle>"))), "circle", 10, "radius in km"),
        (alert(info(area("<circle>60,25 1e9</circle>"))), "circle", 10, "radius in km"),
        (alert(info(area("<circle>120.5,60.1 1</circle>"))), "circle", 10, "latitude (±90) before longitude"),
        (alert(info(area("<ceiling>5</ceiling>"))), "area", 10, "an <altitude>"),
        (alert(info(area("<altitude>high</altitude>"))), "altitude", 10, "a number"),
        (
            alert(info("<resource><resourceDesc>x</resourceDesc><mimeType>a/b</mimeType><size>-1</size></resource>")),
            "size",
            10,
            "whole number of bytes",
        ),
        (alert(info(more="<parameter><value>1</value></parameter>")), "parameter", 10, "a <valueName>"),
    ],
)
def test_invalid_element_is_reported_with_line_and_expectation(
    body: bytes, element: str, line: int, expected: str
) -> None:
    problem = read_alert(body)
    assert isinstance(problem, CapProblem), problem
    assert (problem.element, problem.line) == (element, line)
    assert expected in problem.expected and f"line {line}, <{element}>: " in str(problem)


@pytest.mark.parametrize(
    ("namespace", "version"),
    [
        ("urn:oasis:names:tc:emergency:cap:1.1", "CAP 1.1"),
        ("http://www.incident.com/cap/1.0", "CAP 1.0"),
        ("", "no namespace"),
        ("urn:example", "namespace urn:example"),
    ],
)
def test_other_cap_version_is_refused_with_its_name(namespace: str, version: str) -> None:
    problem = read_alert(f'<alert xmlns="{namespace}"/>'.encode())
    assert isinstance(problem, CapProblem)
    assert "CAP 1.2 is read here" in problem.expected and problem.expected.endswith(version)


def test_order_of_elements_does_not_matter() -> None:
    body = alert(info(area(f"<circle>1,1 1</circle><polygon>{SQUARE}</polygon>")))
    moved = body.replace(b"<status>Actual</status>\n", b"").replace(b"</alert>", b"<status>Actual</status></alert>")
    assert read(moved) == read(body)
