"""HTTP answers as errors: the code and message of the body, or the code for the status if a proxy answered."""

from __future__ import annotations

import pytest

from tocsin.wire.errors import Code, error_from


def test_code_and_message_come_from_the_body() -> None:
    error = error_from(429, b'{"error":{"code":"backlogged","message":"wait"}}', retry_after="3")
    assert (error.code, error.message, error.retry_after_s) == (Code.BACKLOGGED, "wait", 3.0)


def test_every_code_comes_back_as_it_was_sent() -> None:
    for code in Code:
        assert error_from(code.status, b'{"error":{"code":"%s","message":"m"}}' % code.encode()).code is code


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, Code.UNAUTHENTICATED),
        (403, Code.FORBIDDEN),
        (404, Code.NOT_FOUND),
        (413, Code.TOO_LARGE),
        (429, Code.BACKLOGGED),
        (502, Code.NOT_READY),
        (503, Code.NOT_READY),
        (504, Code.NOT_READY),
        (418, Code.INTERNAL),
    ],
)
@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'{"error":"text"}', b"\xff\xfe", b"[" * 100_000])
def test_status_decides_when_the_body_is_foreign(status: int, code: Code, body: bytes) -> None:
    error = error_from(status, body, message="the proxy's phrase")
    assert (error.code, error.message) == (code, "the proxy's phrase")


def test_fallback_replaces_the_code_of_a_foreign_answer_only() -> None:
    assert error_from(404, b"", fallback=Code.NOT_READY).code is Code.NOT_READY
    own = b'{"error":{"code":"unknown_channel","message":"m"}}'
    assert error_from(404, own, fallback=Code.NOT_READY).code is Code.UNKNOWN_CHANNEL


def test_code_of_a_newer_version_is_named_in_the_message() -> None:
    error = error_from(409, b'{"error":{"code":"brand_new","message":"no"}}')
    assert (error.code, error.message) == (Code.INTERNAL, "no (brand_new)")


@pytest.mark.parametrize("header", ["", "soon", "-1", "1.5", "Wed, 21 Oct 2026 07:28:00 GMT", "²"])
def test_retry_after_that_is_no_whole_number_is_ignored(header: str) -> None:
    assert error_from(503, b"", retry_after=header).retry_after_s is None
