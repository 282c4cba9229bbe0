"""The demo's requests wait for a server that is not ready, and errors of a slow machine are explained."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tocsin.demo import requests
from tocsin.demo.requests import explained, request_when_ready
from tocsin.wire.errors import Code, TocsinError


def ask(*answers: httpx.Response | Exception, limit_s: float = 30.0) -> httpx.Response:
    remaining = list(answers)

    async def answer(request: httpx.Request) -> httpx.Response:
        reply = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def scenario() -> httpx.Response:
        async with httpx.AsyncClient(base_url="http://cluster", transport=httpx.MockTransport(answer)) as client:
            return await request_when_ready(client, "POST", "/v1/applications", limit_s=limit_s)

    return asyncio.run(scenario())


STARTING = httpx.Response(503, json={"error": {"code": "not_ready", "message": "the data cluster is still starting"}})


def test_request_is_repeated_until_the_data_cluster_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_PAUSE_S", 0.0)
    answer = ask(STARTING, httpx.ConnectError("refused"), STARTING, httpx.Response(200, json={"changes": []}))
    assert answer.json() == {"changes": []}


def test_data_cluster_that_stays_unready_ends_the_request_with_the_reason() -> None:
    with pytest.raises(TocsinError, match="still starting; still so after 0 s, so this machine may be too slow"):
        ask(STARTING, limit_s=0.0)


def test_wrong_request_is_not_repeated() -> None:
    wrong = httpx.Response(400, json={"error": {"code": "bad_sql", "message": "no such dataset"}})
    with pytest.raises(TocsinError, match="no such dataset"):
        ask(wrong, httpx.Response(200))


def test_errors_of_a_slow_machine_are_explained_and_bugs_are_not() -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("inner", [TimeoutError()]), AssertionError("a bug")])
    reason = explained(group)
    assert reason is not None and reason.code is Code.NOT_READY and "too slow" in reason.message
    assert explained(httpx.ReadTimeout("slow")) is not None
    assert explained(AssertionError("a bug")) is None
