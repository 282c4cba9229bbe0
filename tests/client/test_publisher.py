"""The publisher sends each batch with one key until it gets an answer, and raises an error if it gets none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import msgspec
import pytest

from tocsin.client import Denied, Published, Publisher, Refusal, Unreachable
from tocsin.client import sync as blocking
from tocsin.client.publisher import BATCH_BYTES, BATCH_RECORDS, Batching
from tocsin.wire.errors import Code

Handler = Callable[[httpx.Request], httpx.Response]
ACCEPTED = {"accepted": 2, "duplicates": 0, "refused": [], "refused_total": 0, "replayed": False}


@dataclass
class Run:
    published: Published
    pauses: list[float]


def publish(handler: Handler, records: list[object], give_up_s: float = 100.0) -> Run:
    """Publish with a clock that only pauses advance."""
    pauses: list[float] = []

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)

    async def main() -> Published:
        publisher = Publisher(
            "http://test",
            "t",
            give_up_s=give_up_s,
            transport=httpx.MockTransport(handler),
            sleep=sleep,
            clock_s=lambda: sum(pauses),
        )
        async with publisher:
            return await publisher.publish("D", records)

    return Run(asyncio.run(main()), pauses)


def test_batch_is_retried_with_the_same_key_until_answered() -> None:
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
            case 4:
                return httpx.Response(502, text="<h1>Bad gateway</h1>")
            case _:
                return httpx.Response(200, json=ACCEPTED)

    run = publish(handler, [{}, {}])
    assert len(set(keys)) == 1 and len(keys) == 5
    assert (run.published.accepted, run.published.retries) == (2, 4)
    assert 0.2 <= run.pauses[0] <= 0.3 and 7 <= run.pauses[1] <= 10.5, "Retry-After is obeyed, with some jitter"


def test_alert_is_one_request_that_is_retried_until_answered() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if len(seen) == 1:
            raise httpx.ReadError("gone", request=request)
        return httpx.Response(200, json=ACCEPTED | {"notices": ["refers to an unknown alert"]})

    async def sleep(pause_s: float) -> None:
        assert pause_s > 0

    async def main() -> Published:
        async with Publisher("http://test", transport=httpx.MockTransport(handler), sleep=sleep) as publisher:
            return await publisher.publish_cap("D", "<alert/>")

    published = asyncio.run(main())
    assert (published.accepted, published.retries, published.notices) == (2, 1, ["refers to an unknown alert"])
    assert [request.content for request in seen] == [b"<alert/>"] * 2
    assert {request.headers["Content-Type"] for request in seen} == {"application/cap+xml"}
    assert len({request.headers["Idempotency-Key"] for request in seen}) == 1


def test_each_batch_has_its_own_key_and_indexes_continue() -> None:
    seen: dict[str, int] = {}

    def handler(request: httpx.Request) -> httpx.Response:
        lines = request.content.count(b"\n") + 1
        seen[request.headers["Idempotency-Key"]] = lines
        last = {"index": lines - 1, "field": "a", "reason": "no"}
        return httpx.Response(
            200, json={"accepted": lines - 1, "duplicates": 0, "refused": [last], "refused_total": 1, "replayed": False}
        )

    published = publish(handler, [{"a": number} for number in range(BATCH_RECORDS + 5)]).published
    assert list(seen.values()) == [BATCH_RECORDS, 5]
    assert published.accepted == BATCH_RECORDS + 3 and published.refused_total == 2
    assert [refusal.index for refusal in published.refused] == [BATCH_RECORDS - 1, BATCH_RECORDS + 4]


def test_batches_stay_below_the_size_limit() -> None:
    batching, line = Batching(), b"x" * (BATCH_BYTES // 2 + 1)
    assert [batching.add(line) for _ in range(3)] == [None, [line], [line]]
    assert batching.rest() == [line]


def test_records_may_be_dicts_structs_or_json_bytes() -> None:
    class Reading(msgspec.Struct):
        a: int

    bodies: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content)
        return httpx.Response(200, json=ACCEPTED)

    publish(handler, [{"a": 1}, Reading(2), b'{"a":3}\n'])
    assert bodies == [b'{"a":1}\n{"a":2}\n{"a":3}']


def test_publisher_raises_unreachable_after_its_time_limit() -> None:
    error = {"error": {"code": "backlogged", "message": "too many records wait"}}
    with pytest.raises(Unreachable, match="too many records wait"):
        publish(lambda request: httpx.Response(429, json=error), [{}], give_up_s=10)


def test_permanent_error_is_not_retried() -> None:
    calls: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return httpx.Response(403, json={"error": {"code": "forbidden", "message": "no"}})

    with pytest.raises(Denied) as refused:
        publish(handler, [{}])
    assert refused.value.code is Code.FORBIDDEN and len(calls) == 1


def test_batch_of_refused_records_is_not_a_failure() -> None:
    answer = {
        "error": {"code": "bad_records", "message": "none"},
        "accepted": 0,
        "duplicates": 0,
        "replayed": False,
        "refused": [{"index": 0, "field": None, "reason": "not JSON"}],
        "refused_total": 1,
    }
    published = publish(lambda request: httpx.Response(400, json=answer), [{}]).published
    assert published.refused == [Refusal(0, None, "not JSON")]


def test_blocking_publisher_publishes_records() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=ACCEPTED))
    with blocking.Publisher("http://test", "t", transport=transport) as publisher:
        assert publisher.publish("D", [{}, {}]).accepted == 2
