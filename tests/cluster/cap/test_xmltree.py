"""Hostile XML: the parser expands and fetches nothing, and refuses a document above a bound quickly."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.cap.alerts import alert, info
from tocsin.cluster.cap.alert import NAMESPACE, Alert
from tocsin.cluster.cap.reading import CapProblem, read_alert
from tocsin.cluster.cap.xmltree import MAX_ALERT_BYTES, MAX_DEPTH, MAX_ELEMENTS


def with_doctype(doctype: str, text: str) -> bytes:
    body = alert(info(more=f"<headline>{text}</headline>")).decode()
    return body.replace("<alert ", f"{doctype}<alert ", 1).encode()


BILLION_LAUGHS = (
    '<!DOCTYPE alert [<!ENTITY l0 "ha">'
    + "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    + "]>"
)


def refused(body: bytes) -> str:
    tracemalloc.start()
    begun_s = time.process_time()
    result = read_alert(body)
    took_s = time.process_time() - begun_s
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(result, CapProblem)
    assert took_s < 2 and peak_bytes < 50 << 20
    return str(result)


def test_recursive_entities_are_refused() -> None:
    assert "a DOCTYPE is not read here" in refused(with_doctype(BILLION_LAUGHS, "&l9;"))


def test_external_entities_are_not_fetched(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("password")
    for target in (secret.as_uri(), "http://127.0.0.1:9/x"):
        for kind in ("", "% "):
            reason = refused(with_doctype(f'<!DOCTYPE alert [<!ENTITY {kind}e SYSTEM "{target}">]>', "&e;"))
            assert "DOCTYPE" in reason and "password" not in reason
    assert "DOCTYPE" in refused(with_doctype(f'<!DOCTYPE alert SYSTEM "{secret.as_uri()}">', "x"))


def test_undeclared_entity_and_inclusion_are_refused() -> None:
    assert "undefined entity" in refused(with_doctype("", "&e;"))
    inclusion = '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="file:///etc/passwd"/>'
    assert "not part of CAP 1.2" in refused(alert(inclusion))


def test_hundred_megabytes_are_refused_unread() -> None:
    body = b"<alert>" + b" " * (100 << 20)
    begun_s = time.process_time()
    result = read_alert(body)
    assert time.process_time() - begun_s < 0.1
    assert isinstance(result, CapProblem) and f"{MAX_ALERT_BYTES:,} bytes" in result.expected


def test_depth_and_number_of_elements_are_limited() -> None:
    deep = f'<alert xmlns="{NAMESPACE}">'.encode() + b"<info>" * 100_000
    assert f"more than {MAX_DEPTH} deep" in refused(deep)
    assert f"{MAX_ELEMENTS:,} elements" in refused(f'<alert xmlns="{NAMESPACE}">'.encode() + b"<a/>" * 200_000)


def test_many_or_long_attributes_cost_no_more_than_their_size() -> None:
    many = " ".join(f'a{n}="{n}"' for n in range(60_000))
    assert "expected a <identifier>" in refused(f'<alert xmlns="{NAMESPACE}" {many}/>'.encode())
    assert "expected a <identifier>" in refused(f'<alert xmlns="{NAMESPACE}" a="{"x" * 1_000_000}"/>'.encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<",
        b"<alert",
        b"\x00",
        b"\xff\xfe<\x00",
        b"{}",
        b"<a></b>",
        b"<a/><b/>",
        b'<?xml version="1.0" encoding="x-y"?><a/>',
        b'<?xml version="1.0" encoding="utf-7"?><a/>',
        b'<?xml version="1.0" encoding="idna"?><a/>',
        b'<?xml version="1.0" encoding="shift_jis"?><a/>',
        b'<?xml version="1.0" encoding="rot13"?><a/>',
        b'<?xml version="1.0"?><a>\xff</a>',
    ],
)
def test_document_that_is_not_xml_is_refused(body: bytes) -> None:
    assert refused(body)


def test_alerts_in_other_encodings_are_read() -> None:
    text = alert(info(more="<headline>Brand in Zürich</headline>")).decode()
    for encoding in ("utf-16", "iso-8859-1"):
        result = read_alert(text.replace("UTF-8", encoding).encode(encoding))
        assert isinstance(result, Alert) and result.infos[0].headline == "Brand in Zürich"


@given(st.binary(max_size=300), st.integers(0, 600))
def test_damaged_alert_never_raises_an_exception(damage: bytes, at: int) -> None:
    body = alert(info(more="<headline>x</headline>"))
    result = read_alert(body[:at] + damage + body[at + len(damage) :])
    assert isinstance(result, Alert | CapProblem)
