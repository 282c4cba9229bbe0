"""Log lines are JSON and contain no secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from tocsin.runtime.http.logs import configure_logs, is_worth_logging, logger


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = (root.handlers, root.level)
    stream = io.StringIO()
    configure_logs("debug", "json", stream)
    yield stream
    root.handlers, level = before
    root.setLevel(level)
    structlog.reset_defaults()


def test_each_line_is_one_json_object(lines: io.StringIO) -> None:
    logger().info("data cluster ready", channels=3)
    logging.getLogger("another.library").warning("careful %s", "there")
    ours, theirs = (json.loads(line) for line in lines.getvalue().splitlines())
    assert ours["event"] == "data cluster ready" and ours["channels"] == 3 and ours["level"] == "info"
    assert theirs["event"] == "careful there" and theirs["level"] == "warning"


def test_no_line_contains_a_token(lines: io.StringIO) -> None:
    token = "tocsin_" + "aB3-_" * 8
    logger().info(
        f"called with {token}", path=f"/v1/x?access_token={token}&a=1", token="anything", header=f"Bearer {token}"
    )
    try:
        raise RuntimeError(f"refused {token}")
    except RuntimeError as error:
        logger().error("failed", exc_info=error)
    logging.getLogger("uvicorn.error").warning("bad request %s", token)
    written = lines.getvalue()
    assert token not in written and "anything" not in written and len(written.splitlines()) == 3


def test_no_line_contains_a_signed_token_or_a_webhook_secret(lines: io.StringIO) -> None:
    token = "eyJhbGciOiJFZERTQSIsImtpZCI6IjEifQ.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl"
    logger().info(
        f"handed over with {token}", address=f"ws://x/{token}", secrets="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    )
    assert "eyJ" not in lines.getvalue() and "whsec_M" not in lines.getvalue()


def test_lasting_error_is_logged_at_growing_distances() -> None:
    assert [failures for failures in range(1, 40) if is_worth_logging(failures)] == [1, 2, 4, 8, 16, 32]
