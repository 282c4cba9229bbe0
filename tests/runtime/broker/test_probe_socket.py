"""Probes between brokers: only brokers get answers, at a bounded rate."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.end_to_end.topic_network import topic_network
from tocsin.runtime.broker.probe_socket import RATE_PER_S
from tocsin.wire.coordinates import PATH, Probe, ProbeAnswer
from tocsin.wire.session import MSGPACK


def test_probe_needs_a_broker_token_and_is_answered_at_a_bounded_rate(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with topic_network(tmp_path, 1) as network:
            address = str(network.stack.brokers["broker-1"].announcement["address"]) + PATH
            with pytest.raises(InvalidStatus) as refused:
                await _connect(address, network.token)
            assert refused.value.response.status_code == 401
            async with await _connect(address, await _broker_token(network.stack.coordinator_url, tmp_path)) as socket:
                for number in range(100):
                    await socket.send(msgspec.msgpack.encode(Probe(number)))
                answered: list[int] = []
                with contextlib.suppress(TimeoutError):
                    while True:
                        async with asyncio.timeout(3):
                            frame = await socket.recv(decode=False)
                        answered.append(msgspec.msgpack.decode(frame, type=ProbeAnswer).number)
                assert RATE_PER_S <= len(answered) < 100
                assert answered == sorted(answered)

    asyncio.run(asyncio.wait_for(scenario(), 120))


async def _connect(address: str, token: str) -> connect:
    headers = {"Authorization": f"Bearer {token}"}
    return await connect(address, subprotocols=[MSGPACK], additional_headers=headers, proxy=None)  # type: ignore[return-value,list-item]


async def _broker_token(coordinator: str, folder: Path) -> str:
    own = (folder / "brokers" / "broker-1" / "token").read_text(encoding="utf-8").strip()
    async with httpx.AsyncClient(base_url=coordinator, timeout=20) as http:
        path = "/v1/brokers/broker-1/replica_tokens"
        answer = await http.post(path, headers={"Authorization": f"Bearer {own}"})
        return str(answer.json()["token"])
