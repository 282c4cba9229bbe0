"""Whoever has no business here gets nowhere, and hurts nobody who has."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.runtime.broker.running_broker import RunningBroker, Subscriber, broker_before_emulation, row, token, until
from tocsin.runtime.broker.websocket_protocol import FrameReader, Violation
from tocsin.runtime.http.credentials import Signer


async def close_code(subscriber: Subscriber) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        async with asyncio.timeout(10):
            while True:
                await subscriber.socket.recv()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def strangers() -> dict[str, str | None]:
    forged = Signer(Ed25519PrivateKey.generate())
    sign = {"now_s": time.time(), "identity": "x", "lifetime_s": 600}
    return {
        "no token": None,
        "not a token": "tocsin_nonsense",
        "expired": token("ann", lifetime_s=-100),
        "signed by somebody else": forged.sign("ann", ["subscribe"], **sign),  # type: ignore[arg-type]
        "wrong scope": token("ann", "publish:Reports", "read"),
        "hand-over to another broker": token("ann", audience="b2", migration="m1"),
        "unsigned": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4iLCJzY29wZSI6InN1YnNjcmliZSIsImlzcyI6InRvY3NpbiJ9.",
    }


def test_strangers_get_no_session_and_no_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_before_emulation(tmp_path) as (broker, _):
            for why, secret in strangers().items():
                async with broker.connection() as stranger:
                    answer = await stranger.ask("login", **({} if secret is None else {"token": secret}))
                    assert (answer["type"], answer["code"]) == (
                        "refused", "forbidden" if why == "wrong scope" else "unauthenticated",
                    ), why  # fmt: skip
                    assert await close_code(stranger) == 4401, why
                headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
                async with httpx.AsyncClient(base_url=broker.url, headers=headers) as client:
                    for path in ("/v1/subscriptions", "/v1/stream", "/v1/webhook", "/v1/nothing"):
                        status = (await client.get(path)).status_code
                        assert status == (403 if why == "wrong scope" else 401), (why, path)
            async with broker.connection() as impatient:
                answer = await impatient.ask("subscribe", channel="Reports")
                assert answer["code"] == "unauthenticated"
            assert not broker.core.state.subscribers

    asyncio.run(scenario())


def test_a_hand_over_token_opens_its_own_broker_and_a_header_will_do(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_before_emulation(tmp_path) as (broker, _):
            secret = token("ann", audience="b1", migration="m1", lifetime_s=60)
            headers = {"Authorization": f"Bearer {secret}"}
            async with broker.connection(additional_headers=headers) as ann:
                assert (await ann.ask("login"))["subscriber"] == "ann"

    asyncio.run(scenario())


def test_a_subscriber_reaches_only_its_own_subscriptions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            broker_before_emulation(tmp_path) as (broker, cluster),
            broker.session("ann") as ann,
            broker.session("eve") as eve,
        ):
            held = (await ann.subscribe())["subscription"]
            for op, fields in (
                ("unsubscribe", {"subscription": held}),
                ("ack", {"cursors": {held: "1-99999999"}}),
            ):
                answer = await eve.ask(op, **fields)
                assert answer["code"] == "unknown_subscription"
            async with broker.session("mallory", resume={held: "1-0"}) as mallory:
                assert (await mallory.ask("list"))["subscriptions"] == []
            cluster.execute("Reports", {held: [row(1)]})
            assert await ann.results(1) == [1]
            assert (await eve.ask("ping"))["type"] == "pong"
            assert [one for one in eve.pushed if one["type"] != "progress"] == []

    asyncio.run(scenario())


def test_malformed_and_oversize_messages_are_refused_or_end_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_before_emulation(tmp_path, frame_bytes=2_000) as (broker, _):
            for sent, code in (
                ("x" * 2_001, 1009), ("not json", 4400), ("[1]", 4400), (b"\xff\xfe", 4400), ('{"op":"login"}', 4400),
            ):  # fmt: skip
                async with broker.session("ann") as ann:
                    await ann.socket.send(sent)
                    assert await close_code(ann) == code, sent
            async with broker.session("ann") as ann:
                for request in (
                    {"op": "dance", "id": 5}, {"op": "subscribe", "id": 5}, {"op": "ack", "id": 5, "cursors": 7},
                    {"op": "ping", "id": 5, "more": 1},
                    {"op": "subscribe", "id": 5, "channel": "Reports", "after": "x"},
                    {"op": "ack", "id": 5, "cursors": {"a": "1-99999999999999999999999"}}, {"op": "login", "id": 5},
                ):  # fmt: skip
                    await ann.socket.send(json.dumps(request))
                    answer = await ann.receive()
                    assert (answer["type"], answer["id"]) == ("refused", 5), request
                deep = '{"op":"subscribe","id":6,"channel":"R","parameters":' + '{"a":' * 300 + "1" + "}" * 301
                await ann.socket.send(deep)
                assert (await ann.receive())["type"] in ("refused", "closing")
            for options in ({"protocol": "chat"},):
                with pytest.raises(InvalidStatus):
                    async with broker.connection(**options):
                        pass

    asyncio.run(scenario())


@given(st.lists(st.binary(max_size=40)), st.integers(1, 64))
@settings(max_examples=150)
def test_a_frame_reader_takes_any_bytes(pieces: list[bytes], limit_bytes: int) -> None:
    reader = FrameReader(limit_bytes)
    for piece in pieces:
        for found in reader.feed(piece):
            if isinstance(found, Violation):
                assert found.code in (1002, 1009)
                return
            assert len(found[1]) <= max(limit_bytes, 125)


@given(st.lists(st.binary(max_size=300), max_size=6), st.integers(1, 50), st.binary(min_size=4, max_size=4))
@settings(max_examples=100)
def test_messages_survive_masks_fragments_and_any_cut(messages: list[bytes], cut: int, mask: bytes) -> None:
    def masked(fin: bool, opcode: int, data: bytes) -> bytes:
        size = len(data)
        head = (
            bytes((0x80 * fin | opcode, 0x80 | size))
            if size < 126
            else struct.pack("!BBH", 0x80 * fin | opcode, 254, size)
        )
        return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))

    stream = b""
    for message in messages:
        half = len(message) // 2
        stream += masked(False, 2, message[:half]) + masked(True, 9, b"ping") + masked(True, 0, message[half:])
    reader = FrameReader(1_000)
    found = [one for place in range(0, len(stream), cut) for one in reader.feed(stream[place : place + cut])]
    assert [one[1] for one in found if not isinstance(one, Violation) and one[0] == 2] == messages


def test_thousands_of_half_open_connections_hurt_no_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_before_emulation(tmp_path, half_open=200, login_s=1) as (broker, cluster):
            port = int(broker.address.rpartition(":")[2])
            async with broker.session("ann") as ann:
                held = (await ann.subscribe())["subscription"]
                silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2_000)]
                await until(lambda: broker.server.guard.half_open.expired >= 1_800)
                assert len(broker.server.guard.half_open) <= 201
                async with broker.connection() as mute:  # shakes hands and says nothing
                    cluster.execute("Reports", {held: [row(1)]})
                    assert await ann.results(1) == [1]
                    async with broker.session("bob") as bob:
                        assert (await bob.ask("ping"))["type"] == "pong"
                    assert await close_code(mute) == 4408
                await until(lambda: len(broker.server.guard.half_open) == 0)
                for _, writer in silent:
                    writer.close()

    asyncio.run(scenario())


def test_no_secret_is_written_to_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> list[str]:
        secret, other = token("ann"), token("ann", lifetime_s=-100)
        async with broker_before_emulation(tmp_path) as (broker, _):
            async with broker.connection(additional_headers={"Authorization": f"Bearer {other}"}) as ann:
                await ann.ask("login")
            async with httpx.AsyncClient(base_url=broker.url) as client:
                await client.get(f"/v1/ping?access_token={secret}")
                await client.get(f"/v1/nothing?access_token={other}")
        return [secret, other]

    secrets = asyncio.run(scenario())
    written = "".join(capsys.readouterr())
    assert not any(secret in written for secret in secrets)


async def slow_reader(broker: RunningBroker, name: str) -> Any:
    """A session that reads nothing after its subscription."""
    connection = broker.session(name)
    subscriber = await connection.__aenter__()
    held = (await subscriber.subscribe())["subscription"]
    subscriber.socket.transport.pause_reading()
    return connection, subscriber, held


def test_a_slow_subscriber_delays_nobody_and_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_before_emulation(tmp_path, queue_bytes=20_000, cache_bytes=200_000) as (broker, cluster):
            connection, slow, held = await slow_reader(broker, "slow")
            async with broker.session("quick") as quick:
                await quick.subscribe()
                for number in range(100):
                    cluster.execute("Reports", {held: [row(number, 100_000)]})
                    assert await quick.results(1) == [number]
                [session] = [one for one in broker.core.state.sessions.values() if one.subscriber.id == "slow"]
                assert not session.writable and session.behind
                slow.socket.transport.resume_reading()
                assert await slow.results(100) == list(range(100))
            await connection.__aexit__(None, None, None)

    asyncio.run(scenario())


def test_a_slow_subscriber_is_sent_away_if_so_set(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_before_emulation(tmp_path, queue_bytes=20_000, slow="disconnect") as (broker, cluster):
            _, slow, held = await slow_reader(broker, "slow")
            for number in range(100):
                cluster.execute("Reports", {held: [row(number, 100_000)]})
            await until(lambda: not broker.core.state.sessions)
            slow.socket.transport.resume_reading()
            assert await close_code(slow) == 4002

    asyncio.run(scenario())


# The server under test runs beside the strategies, and its libraries draw from the global generator.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
def test_no_request_described_by_the_openapi_document_makes_the_server_fail(tmp_path: Path) -> None:
    """schemathesis, bounded: what it makes of the document is answered, never with a failure of ours."""

    async def scenario() -> None:
        async with broker_before_emulation(tmp_path, webhooks_private=True) as (broker, _):
            await asyncio.to_thread(attack, broker.url)

    def attack(url: str) -> None:
        schema = schemathesis.openapi.from_url(f"{url}/v1/openapi.json")
        headers = {"Authorization": f"Bearer {token('ann')}"}
        for result in schema.get_all_operations():
            operation = result.ok()  # type: ignore[union-attr]
            if operation.path == "/v1/stream":
                continue  # does not end

            @given(case=operation.as_strategy())
            @settings(
                max_examples=6, phases=[Phase.generate], suppress_health_check=list(HealthCheck),
                database=None,
            )  # fmt: skip
            def call(case: Any) -> None:
                answer = case.call(headers=headers)
                assert answer.status_code < 500, (case.method, case.path, answer.status_code)

            call()

    asyncio.run(scenario())
