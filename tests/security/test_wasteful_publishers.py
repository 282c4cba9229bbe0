"""Publishers that keep sending bodies which are refused: others do not wait for them, and they are refused early."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.server.test_group_commit import SlowDisk, make
from tocsin.cluster.feed.gateway import Accepted, Backlogged, FeedGateway, Malformed, Prepared, RecordForm, Refused
from tocsin.cluster.feed.records import RECORDS_IN_A_ROW
from tocsin.cluster.server import publishers
from tocsin.cluster.server.group_commit import CLOSELY_INLINE_BYTES, INLINE_BYTES, GroupCommit
from tocsin.cluster.server.publishers import Publisher, Publishers
from tocsin.runtime.http.work_budget import ALLOWANCE_S

GOOD = b'{"id": 1}'
WRONG = b'[{"id": 0},' + b"1," * 5_000 + b"1]"
"""5,001 wrong records behind a good one, without which the gateway would give up soon."""
MALFORMED = b"[" + b"{}," * 3_000


@pytest.fixture
def gateway(tmp_path: Path) -> Any:
    gateway = make(tmp_path / "d")
    gateway.may_go_on.set()
    yield gateway
    gateway.close()


async def store(commit: GroupCommit, body: bytes, publisher: Publisher | None = None) -> Accepted | Refused:
    return await commit.store(body, RecordForm.JSON, None, None, publisher)


# -- the budget --------------------------------------------------------------------------------------------------------


def test_publisher_gets_an_allowance_and_then_a_share() -> None:
    publisher, now_s, wasted_s = Publisher(), 1_000.0, 0.0
    while now_s < 1_300.0:
        if not publisher.pause_s(now_s):
            publisher.waste(0.05, now_s)
            wasted_s += 0.05
        now_s += 0.125
    assert ALLOWANCE_S < wasted_s <= ALLOWANCE_S + 300.0 * publishers.SHARE + 0.1


def test_pause_has_a_limit_and_ends() -> None:
    publisher = Publisher()
    publisher.waste(60.0, 1_000.0)
    pause_s = publisher.pause_s(1_000.0)
    assert pause_s == pytest.approx(publishers.LONGEST_PAUSE_S)
    assert publisher.pause_s(1_000.0 + pause_s + 0.001) == 0.0


def test_wasted_work_is_remembered_between_requests_and_then_forgotten() -> None:
    known = Publishers(most_idle=2)
    for caller in ("eve", "ann"):
        publisher = known.begin(caller)
        if caller == "eve":
            publisher.waste(10.0, 1.0)
        known.end(caller, 1.0)
    assert len(known) == 1, "a publisher without waste needs no memory"
    assert known.begin("eve").pause_s(2.0) > 0.0
    known.end("eve", 2.0)
    known.begin("eve")
    known.end("eve", 10_000.0)
    assert len(known) == 0


def test_publishers_without_requests_are_bounded_in_number() -> None:
    known = Publishers(most_idle=10)
    for number in range(100):
        known.begin(f"eve-{number}").waste(10.0, 1.0)
        known.end(f"eve-{number}", 1.0)
    assert len(known) == 10


# -- decoding ----------------------------------------------------------------------------------------------------------


def test_blanks_in_a_malformed_body_cost_little(gateway: FeedGateway) -> None:
    """A loop over the blanks took 0.5 s for 8 MiB."""
    body = b'[{"id": 1}' + b" " * (8 << 20)
    body = body[: gateway.limits.body_bytes]
    started_s = time.thread_time()
    assert isinstance(gateway.accept(body, RecordForm.JSON), Malformed)
    assert time.thread_time() - started_s < 0.25


@pytest.mark.parametrize("body", [WRONG, MALFORMED])
def test_body_with_errors_is_decoded_in_another_thread(
    gateway: SlowDisk, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CLOSELY_INLINE_BYTES < len(body) <= INLINE_BYTES
    threads: list[int] = []
    codec = gateway._store.codec
    decode_closely = codec.decode_closely

    def noted(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return decode_closely(*arguments)

    monkeypatch.setattr(codec, "decode_closely", noted)

    async def main() -> None:
        await store(GroupCommit(gateway), body)
        assert threads and threading.get_ident() not in threads

    asyncio.run(main())


def test_decoding_pauses_for_other_threads(gateway: FeedGateway) -> None:
    """A thread that decodes without pauses delays the event loop by 5 ms whenever the loop has waited."""
    pauses: list[None] = []
    prepared = gateway.prepare(WRONG, RecordForm.JSON, pause=lambda: pauses.append(None))
    assert isinstance(prepared, Prepared)
    assert len(pauses) >= 5_001 // RECORDS_IN_A_ROW


def test_other_publishers_do_not_wait_while_a_body_is_decoded(
    gateway: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_decode = threading.Event()
    codec = gateway._store.codec
    decode_closely = codec.decode_closely

    def decode_late(*arguments: Any) -> Any:
        assert may_decode.wait(30)
        return decode_closely(*arguments)

    monkeypatch.setattr(codec, "decode_closely", decode_late)

    async def main() -> None:
        commit, eve, ann = GroupCommit(gateway), Publisher(), Publisher()
        hostile = asyncio.create_task(store(commit, WRONG, eve))
        later = asyncio.create_task(store(commit, b'{"id": 2}', eve))
        await asyncio.sleep(0)
        assert isinstance(await asyncio.wait_for(store(commit, GOOD, ann), 10), Accepted)
        assert not hostile.done() and not later.done(), "bodies of one publisher keep their order"
        may_decode.set()
        assert isinstance(await hostile, Accepted) and isinstance(await later, Accepted)

    asyncio.run(main())
    assert gateway.stored() == [1, 0, 2]


def test_refused_bodies_count_and_further_ones_are_not_decoded(gateway: SlowDisk) -> None:
    async def main() -> None:
        commit, eve, ann = GroupCommit(gateway), Publisher(), Publisher()
        outcomes = [await store(commit, WRONG, eve) for _ in range(200)]
        first = next(number for number, outcome in enumerate(outcomes) if isinstance(outcome, Backlogged))
        assert first >= 1
        refused = outcomes[first]
        assert isinstance(refused, Backlogged) and 1 <= refused.retry_after_s <= publishers.LONGEST_PAUSE_S
        assert isinstance(await store(commit, GOOD, ann), Accepted)

    asyncio.run(main())


def test_pipelined_bodies_are_refused_before_they_are_decoded(gateway: SlowDisk) -> None:
    """All of them were admitted before the first of them was found to be wrong."""

    async def main() -> None:
        commit, eve = GroupCommit(gateway), Publisher()
        outcomes = await asyncio.gather(*(store(commit, WRONG, eve) for _ in range(100)))
        assert isinstance(outcomes[0], Accepted) and isinstance(outcomes[-1], Backlogged)

    asyncio.run(main())


def test_few_wrong_records_among_good_ones_count_little(gateway: SlowDisk) -> None:
    """One wrong record makes the gateway decode all of them one by one: that is work for the good ones."""
    body = b"[" + b",".join(b'{"id": %d}' % number for number in range(1_000)) + b',{"id": "x"}]'

    async def main() -> None:
        commit, ann = GroupCommit(gateway), Publisher()
        for _ in range(20):
            outcome = await store(commit, body, ann)
            assert isinstance(outcome, Accepted) and outcome.refused_total == 1
        assert ann.pause_s(time.monotonic()) == 0.0
        assert not ann.has_debt(time.monotonic() + 1.0)

    asyncio.run(main())
