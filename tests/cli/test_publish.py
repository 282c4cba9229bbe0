"""`tocsin publish` sends the lines of a file in batches and names refused records by their line."""

from __future__ import annotations

import json

import httpx
import pytest

from tocsin.cli.commands.publish import PublishedCounts, numbered_batches, publish_lines
from tocsin.client.publisher import BATCH_BYTES
from tocsin.client.sync import Publisher


def test_lines_are_batched_by_number_and_size_and_empty_lines_are_skipped() -> None:
    lines = [b'{"a": 1}\n', b"\n", b'{"a": 2}\r\n', b'{"a": 3}']
    assert list(numbered_batches(lines, 2)) == [[(1, b'{"a": 1}'), (3, b'{"a": 2}')], [(4, b'{"a": 3}')]]
    large = [b"x" * (BATCH_BYTES // 2 + 1) + b"\n"] * 3
    assert [len(batch) for batch in numbered_batches(large, 1_000)] == [1, 1, 1]


def test_refused_records_are_named_by_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    refusals = [
        {"index": 0, "field": "severity", "reason": "expected a whole number"},
        {"index": 1, "field": None, "reason": "not valid JSON"},
    ]
    refused = {"accepted": 0, "duplicates": 0, "refused_total": 2, "replayed": False, "refused": refusals}
    error = {"error": {"code": "bad_records", "message": "every record was refused"}}
    transport = httpx.MockTransport(lambda request: httpx.Response(400, content=json.dumps(error | refused)))
    counts = PublishedCounts()
    with Publisher("http://test", transport=transport) as publisher:
        publish_lines(publisher, "D", [(17, b"{}"), (19, b"{")], counts)
    assert counts.refused == 2
    assert capsys.readouterr().err == "line 17: severity: expected a whole number\nline 19: not valid JSON\n"
