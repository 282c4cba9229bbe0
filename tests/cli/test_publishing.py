"""`tocsin publish` sends batches until each is answered, with one key per batch."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from tocsin.cli.publishing import BATCH_BYTES, Publisher, Sent
from tocsin.wire.errors import Code, TocsinError

ACCEPTED = {"accepted": 2, "duplicates": 0, "refused": [], "refused_total": 0, "replayed": False}


def publisher(
    handler: Callable[[httpx.Request], httpx.Response], give_up_s: float = 100.0
) -> tuple[Publisher, list[float]]:
    pauses: list[float] = []
    client = httpx.Client(transport=httpx.MockTransport(handler), base_url="http://test")
    return Publisher(client, "D", give_up_s, sleep=pauses.append, clock_s=lambda: sum(pauses)), pauses


def batch(*lines: str) -> list[tuple[int, bytes]]:
    return [(number, line.encode()) for number, line in enumerate(lines, 1)]


def test_lines_are_grouped_by_number_and_size_and_empty_ones_left_out() -> None:
    sender, _ = publisher(lambda request: httpx.Response(200, json=ACCEPTED))
    lines = [b'{"a": 1}\n', b"\n", b'{"a": 2}\r\n', b'{"a": 3}']
    assert list(sender.batches(lines, 2)) == [[(1, b'{"a": 1}'), (3, b'{"a": 2}')], [(4, b'{"a": 3}')]]
    large = [b"x" * (BATCH_BYTES // 2) + b"\n"] * 3
    assert [len(group) for group in sender.batches(large, 1_000)] == [1, 1, 1]


def test_a_batch_is_sent_again_with_the_same_key_until_it_is_answered() -> None:
    keys: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Idempotency-Key"])
        match len(keys):
            case 1:
                raise httpx.ReadError("gone", request=request)
            case 2:
                error = {"error": {"code": "backlogged", "message": "wait"}}
                return httpx.Response(429, json=error, headers={"Retry-After": "7"})
            case 3:
                return httpx.Response(503, json={"error": {"code": "not_ready", "message": "starting"}})
            case _:
                return httpx.Response(200, json=ACCEPTED)

    sender, pauses = publisher(handler)
    sent = Sent()
    sender.send(batch("{}", "{}"), sent)
    assert len(set(keys)) == 1 and len(keys) == 4
    assert (sent.accepted, sent.retries) == (2, 3)
    assert 0.2 <= pauses[0] <= 0.3 and 7 <= pauses[1] <= 10.5, "Retry-After is obeyed, with some jitter"
    sender.send(batch("{}"), sent)
    assert len(set(keys)) == 2


def test_it_gives_up_after_a_while() -> None:
    error = {"error": {"code": "backlogged", "message": "too many records wait"}}
    sender, pauses = publisher(lambda request: httpx.Response(429, json=error), give_up_s=10)
    with pytest.raises(TocsinError, match="too many records wait"):
        sender.send(batch("{}"), Sent())
    assert sum(pauses) <= 10


def test_what_will_not_get_better_is_not_tried_again() -> None:
    error = {"error": {"code": "forbidden", "message": "no"}}
    sender, pauses = publisher(lambda request: httpx.Response(403, json=error))
    with pytest.raises(TocsinError) as refused:
        sender.send(batch("{}"), Sent())
    assert refused.value.code is Code.FORBIDDEN and not pauses


def test_refused_records_are_named_by_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    refused = {"accepted": 0, "duplicates": 0, "refused_total": 2, "replayed": False, "refused": [
        {"index": 0, "field": "severity", "reason": "expected a whole number"},
        {"index": 1, "field": None, "reason": "not valid JSON"},
    ]}  # fmt: skip
    error = {"error": {"code": "bad_records", "message": "no record was good"}}
    sender, _ = publisher(lambda request: httpx.Response(400, content=json.dumps(error | refused)))
    sent = Sent()
    sender.send([(17, b"{}"), (19, b"{")], sent)
    assert sent.refused == 2
    assert capsys.readouterr().err == "line 17: severity: expected a whole number\nline 19: not valid JSON\n"
