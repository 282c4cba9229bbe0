"""Invalid tokens, malformed requests, half-open connections and slow readers do no harm."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.runtime.broker.running_broker import (
    ConnectedSubscriber,
    RunningBroker,
    broker_with_emulated_cluster,
    row,
    token,
    until,
)
from tocsin.runtime.http.credentials import Signer


async def close_code(subscriber: ConnectedSubscriber) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        async with asyncio.timeout(10):
            while True:
                await subscriber.socket.recv()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def invalid_tokens() -> dict[str, str | None]:
    forged = Signer(Ed25519PrivateKey.generate())
    sign = {"now_s": time.time(), "identity": "x", "lifetime_s": 600}
    return {
        "no token": None,
        "not a token": "tocsin_nonsense",
        "expired": token("ann", lifetime_s=-100),
        "signed with another key": forged.sign("ann", ["subscribe"], **sign),  # type: ignore[arg-type]
        "wrong scope": token("ann", "publish:Reports", "read"),
        "hand-over to another broker": token("ann", audience="b2", migration="m1"),
        "unsigned": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4iLCJzY29wZSI6InN1YnNjcmliZSIsImlzcyI6InRvY3NpbiJ9.",
    }


def test_invalid_tokens_get_no_session_and_no_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, _):
            for why, secret in invalid_tokens().items():
                async with broker.connection() as client:
                    answer = await client.ask("login", **({} if secret is None else {"token": secret}))
                    code = "forbidden" if why == "wrong scope" else "unauthenticated"
                    assert (answer["type"], answer["code"]) == ("refused", code), why
                    assert await close_code(client) == 4401, why
                headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
                async with httpx.AsyncClient(base_url=broker.url, headers=headers) as client:
                    for path in ("/v1/subscriptions", "/v1/stream", "/v1/webhook", "/v1/nothing"):
                        status = (await client.get(path)).status_code
                        assert status == (403 if why == "wrong scope" else 401), (why, path)
            async with broker.connection() as client:
                answer = await client.ask("subscribe", channel="Reports")
                assert answer["code"] == "unauthenticated"
            assert not broker.core.state.subscribers

    asyncio.run(scenario())


def test_hand_over_token_in_a_header_opens_a_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, _):
            secret = token("ann", audience="b1", migration="m1", lifetime_s=60)
            headers = {"Authorization": f"Bearer {secret}"}
            async with broker.connection(additional_headers=headers) as ann:
                assert (await ann.ask("login"))["subscriber"] == "ann"

    asyncio.run(scenario())


def test_subscriber_reaches_only_its_own_subscriptions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            broker_with_emulated_cluster(tmp_path) as (broker, cluster),
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
            assert [message for message in eve.pushed if message["type"] != "progress"] == []

    asyncio.run(scenario())


CLOSING_MESSAGES: dict[str | bytes, int] = {
    "x" * 2_001: 1009,
    "not json": 4400,
    "[1]": 4400,
    b"\xff\xfe": 4400,
    '{"op":"login"}': 4400,
}
"""Message → close code."""
REFUSED_REQUESTS: list[dict[str, Any]] = [
    {"op": "dance", "id": 5},
    {"op": "subscribe", "id": 5},
    {"op": "ack", "id": 5, "cursors": 7},
    {"op": "ping", "id": 5, "more": 1},
    {"op": "subscribe", "id": 5, "channel": "Reports", "after": "x"},
    {"op": "ack", "id": 5, "cursors": {"a": "1-99999999999999999999999"}},
    {"op": "login", "id": 5},
]


def test_malformed_and_oversize_messages_are_refused_or_end_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path, frame_bytes=2_000) as (broker, _):
            for sent, code in CLOSING_MESSAGES.items():
                async with broker.session("ann") as ann:
                    await ann.socket.send(sent)
                    assert await close_code(ann) == code, sent
            async with broker.session("ann") as ann:
                for request in REFUSED_REQUESTS:
                    await ann.socket.send(json.dumps(request))
                    answer = await ann.receive()
                    assert (answer["type"], answer["id"]) == ("refused", 5), request
                deep = '{"op":"subscribe","id":6,"channel":"R","parameters":' + '{"a":' * 300 + "1" + "}" * 301
                await ann.socket.send(deep)
                assert (await ann.receive())["type"] in ("refused", "closing")
            with pytest.raises(InvalidStatus):
                async with broker.connection(protocol="chat"):
                    pass

    asyncio.run(scenario())


def test_half_open_connections_do_not_disturb_sessions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path, half_open=200, login_s=1) as (broker, cluster):
            port = int(broker.address.rpartition(":")[2])
            async with broker.session("ann") as ann:
                held = (await ann.subscribe())["subscription"]
                silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2_000)]
                await until(lambda: broker.server.guard.half_open.expired >= 1_800)
                assert len(broker.server.guard.half_open) <= 201
                async with broker.connection() as mute:  # completes the handshake and does not log in
                    cluster.execute("Reports", {held: [row(1)]})
                    assert await ann.results(1) == [1]
                    async with broker.session("bob") as bob:
                        assert (await bob.ask("ping"))["type"] == "pong"
                    assert await close_code(mute) == 4408
                await until(lambda: len(broker.server.guard.half_open) == 0)
                for _, writer in silent:
                    writer.close()

    asyncio.run(scenario())


def test_log_contains_no_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> list[str]:
        secret, other = token("ann"), token("ann", lifetime_s=-100)
        async with broker_with_emulated_cluster(tmp_path) as (broker, _):
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
    """A session that subscribes and then stops reading."""
    connection = broker.session(name)
    subscriber = await connection.__aenter__()
    held = (await subscriber.subscribe())["subscription"]
    subscriber.socket.transport.pause_reading()
    return connection, subscriber, held


def test_slow_subscriber_delays_no_other_and_loses_no_result(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path, queue_bytes=20_000, cache_bytes=200_000) as (broker, cluster):
            connection, slow, held = await slow_reader(broker, "slow")
            async with broker.session("quick") as quick:
                await quick.subscribe()
                for number in range(100):
                    cluster.execute("Reports", {held: [row(number, 100_000)]})
                    assert await quick.results(1) == [number]
                session = broker.core.state.subscribers["slow"].session
                assert not session.writable and session.behind
                slow.socket.transport.resume_reading()
                assert await slow.results(100) == list(range(100))
            await connection.__aexit__(None, None, None)

    asyncio.run(scenario())


def test_slow_subscriber_is_closed_with_the_setting_disconnect(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path, queue_bytes=20_000, slow="disconnect") as (broker, cluster):
            _, slow, held = await slow_reader(broker, "slow")
            for number in range(100):
                cluster.execute("Reports", {held: [row(number, 100_000)]})
            await until(lambda: not broker.core.state.sessions)
            slow.socket.transport.resume_reading()
            assert await close_code(slow) == 4002

    asyncio.run(scenario())
