"""Log lines are JSON and contain no secrets."""

from __future__ import annotations

import io
import json
import logging

from tocsin.runtime.http.logs import is_worth_logging, logger


def test_each_line_is_one_json_object(log_lines: io.StringIO) -> None:
    logger().info("data cluster ready", channels=3)
    logging.getLogger("another.library").warning("careful %s", "there")
    ours, theirs = (json.loads(line) for line in log_lines.getvalue().splitlines())
    assert ours["event"] == "data cluster ready" and ours["channels"] == 3 and ours["level"] == "info"
    assert theirs["event"] == "careful there" and theirs["level"] == "warning"


def test_no_line_contains_a_token(log_lines: io.StringIO) -> None:
    token = "tocsin_" + "aB3-_" * 8
    logger().info(
        f"called with {token}", path=f"/v1/x?access_token={token}&a=1", token="anything", header=f"Bearer {token}"
    )
    try:
        raise RuntimeError(f"refused {token}")
    except RuntimeError as error:
        logger().error("failed", exc_info=error)
    logging.getLogger("uvicorn.error").warning("bad request %s", token)
    written = log_lines.getvalue()
    assert token not in written and "anything" not in written and len(written.splitlines()) == 3


def test_no_line_contains_a_signed_token_or_a_webhook_secret(log_lines: io.StringIO) -> None:
    token = "eyJhbGciOiJFZERTQSIsImtpZCI6IjEifQ.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl"
    logger().info(
        f"handed over with {token}", address=f"ws://x/{token}", secrets="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    )
    assert "eyJ" not in log_lines.getvalue() and "whsec_M" not in log_lines.getvalue()


def test_lasting_error_is_logged_at_growing_distances() -> None:
    assert [failures for failures in range(1, 40) if is_worth_logging(failures)] == [1, 2, 4, 8, 16, 32]
