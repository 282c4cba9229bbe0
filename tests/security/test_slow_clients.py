"""Clients that send requests and do not read the answers, or send more requests than a fair share."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect

from tests.broker.simulated import SimulatedNetwork
from tests.broker.simulated_ends import CHANNEL
from tests.runtime.broker.running_broker import RunningBroker, broker_with_emulated_cluster
from tests.runtime.broker.test_rest import rest
from tocsin.broker import events, requests
from tocsin.runtime.broker import turns
from tocsin.runtime.broker.turns import TurnBudget, UserBudgets
from tocsin.runtime.broker.websocket_protocol import FrameReader, close_frame
from tocsin.runtime.http.bounded_protocols import BoundedWebSocket
from tocsin.runtime.http.listening import Server, listen
from tocsin.runtime.http.work_budget import ALLOWANCE_S
from tocsin.wire import session as wire

LISTS = 2_000


def waiting_bytes(broker: RunningBroker, name: str) -> int:
    """Bytes that wait in the broker's end of a subscriber's connection."""
    session = broker.core.state.subscribers[name].session
    connection: Any = broker.server.process.connections[session.id]
    return int(connection._transport.get_write_buffer_size())


def test_unread_answers_stop_the_reading_of_requests(tmp_path: Path) -> None:
    """60 MB of answers to 50 KB of requests do not pile up, and arrive once the client reads."""

    async def scenario() -> None:
        async with (
            broker_with_emulated_cluster(tmp_path, queue_bytes=100_000) as (broker, _),
            broker.session("eve") as eve,
            broker.session("ann") as ann,
        ):
            for kind in range(150):
                await eve.send(op="subscribe", channel="Reports", parameters={"kind": f"{kind:0150}"})
            for _ in range(150):
                await eve.receive()
            answer_bytes = len(json.dumps((await eve.ask("list"))["subscriptions"]))
            eve.socket.transport.pause_reading()
            for number in range(LISTS):
                await eve.socket.send(json.dumps({"op": "list", "id": number}))
            for _ in range(20):
                assert (await ann.ask("ping"))["type"] == "pong"
                assert waiting_bytes(broker, "eve") <= 100_000 + 2 * answer_bytes
            eve.socket.transport.resume_reading()
            answers: list[int] = []
            async with asyncio.timeout(120):
                while len(answers) < LISTS:
                    message = json.loads(await eve.socket.recv())
                    answers += [message["id"]] if "id" in message else []  # else `progress`, which comes at any time
            assert answers == list(range(LISTS))

    asyncio.run(scenario())


def test_unread_pongs_stop_the_reading_of_pings(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            broker_with_emulated_cluster(tmp_path, queue_bytes=10_000) as (broker, _),
            broker.session("eve") as eve,
        ):
            eve.socket.transport.pause_reading()
            ping = bytes((0x89, 0x80 | 125, 0, 0, 0, 0)) + bytes(125)
            transport = eve.socket.transport
            transport.set_write_buffer_limits(high=1 << 20)
            while transport.get_write_buffer_size() < 1 << 20:  # the broker no longer reads
                transport.write(ping * 1_000)
                await asyncio.sleep(0)
                assert waiting_bytes(broker, "eve") <= 20_000
            transport.abort()

    asyncio.run(scenario())


def test_pipelined_subscriptions_stay_within_the_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            broker_with_emulated_cluster(tmp_path, subscriptions=100) as (broker, _),
            broker.session("eve") as eve,
        ):
            for kind in range(150):
                await eve.send(op="subscribe", channel="Reports", parameters={"kind": str(kind)})
            answers = [(await eve.receive())["type"] for _ in range(150)]
            assert (answers.count("subscribed"), answers.count("refused")) == (100, 50)
            assert len(broker.core.state.subscribers["eve"].frontends) == 100

    asyncio.run(scenario())


def test_large_parameters_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, cluster), rest(broker) as ann:
            body = {"channel": "Reports", "parameters": {"kind": "x" * 2_000}}
            answer = await ann.post("/v1/subscriptions", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
            assert cluster.requests == []

    asyncio.run(scenario())


def test_requests_of_one_client_get_a_share_of_the_time() -> None:
    budget, now_s = TurnBudget(), 1_000.0
    busy_s = paused_s = 0.0
    while busy_s + paused_s < 60.0:
        now_s += turns.TURN_S
        busy_s += turns.TURN_S
        pause_s = budget.spend(turns.TURN_S, now_s)
        now_s, paused_s = now_s + pause_s, paused_s + pause_s
    assert busy_s <= ALLOWANCE_S + turns.SHARE * 60.0 + 2 * turns.TURN_S
    assert budget.spend(turns.TURN_S, now_s + 60.0) == 0.0


def test_interrupted_turn_counts_as_a_long_one_and_no_more() -> None:
    """A busy machine stops the broker for a second in the middle of a turn: that is not the client's work."""
    budget = TurnBudget()
    assert budget.spend(1.0, 1_000.0) == 0.0
    for _ in range(20):
        pause_s = budget.spend(1.0, 1_000.0)
    assert 0.0 < pause_s < 20.0


def test_connections_of_one_user_share_a_budget() -> None:
    budgets = UserBudgets()
    first, second = budgets.of("eve"), budgets.of("eve")
    assert first.spend(turns.TURN_S, 1.0) == 0.0
    for _ in range(200):
        first.spend(turns.TURN_S, 1.0)
    assert second.spend(turns.TURN_S, 1.0) > 0.0
    assert budgets.of("ann").spend(turns.TURN_S, 1.0) == 0.0
    assert budgets.of("eve", 0.5).spend(turns.TURN_S, 1.0) == 0.0, "connections of topics have a larger share"


def test_user_with_debt_keeps_it_after_the_last_connection() -> None:
    budgets = UserBudgets()
    for user in ("eve", "ann"):
        budget = budgets.of(user)
        for _ in range(200 if user == "eve" else 1):
            budget.spend(turns.TURN_S, 1.0)
        budgets.release(budget, 1.0)
        del budget
    assert budgets.of("eve").spend(turns.TURN_S, 1.0) > 0.0
    assert budgets.of("ann").spend(turns.TURN_S, 1.0) == 0.0


def test_reconnecting_does_not_renew_the_allowance(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, _):
            handled_s: list[float] = []
            happened = broker.server.process.happened

            def measure(event: events.Event) -> None:
                started_s = time.perf_counter()
                if isinstance(event, events.RequestReceived):
                    time.sleep(turns.TURN_S / 2)
                happened(event)
                if isinstance(event, events.RequestReceived):
                    handled_s.append(time.perf_counter() - started_s)

            broker.server.process.happened = measure  # type: ignore[method-assign]
            began_s = time.perf_counter()
            for _ in range(4):
                async with broker.session("eve") as eve:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.75):
                            while True:
                                await eve.ask("ping")
            took_s = time.perf_counter() - began_s
            # A request of up to one turn may cross the limit on each of the four connections.
            limit_s = ALLOWANCE_S + turns.SHARE * took_s + 4 * max(handled_s) + 0.05
            assert sum(handled_s) <= limit_s < 3 * ALLOWANCE_S + turns.SHARE * took_s

    asyncio.run(scenario())


def test_flood_of_single_requests_gets_a_share_of_the_time(tmp_path: Path) -> None:
    """Each packet has one request, so no turn is long; all of them together are limited."""

    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, _), broker.session("eve") as eve:
            handled_s: list[float] = []
            happened = broker.server.process.happened

            def measure(event: events.Event) -> None:
                started_s = time.perf_counter()
                time.sleep(0.0005)
                happened(event)
                if isinstance(event, events.RequestReceived):
                    handled_s.append(time.perf_counter() - started_s)

            broker.server.process.happened = measure  # type: ignore[method-assign]
            began_s = time.perf_counter()
            while time.perf_counter() < began_s + 3.0:
                await eve.send(op="ping")
                await eve.receive()
            took_s = time.perf_counter() - began_s
            # The last request is charged when it has been handled.
            assert sum(handled_s) <= ALLOWANCE_S + turns.SHARE * took_s + max(handled_s) + 0.05
            assert sum(handled_s) >= ALLOWANCE_S, "the client gets its share"

    asyncio.run(scenario())


def test_frame_reader_parses_frames_one_by_one() -> None:
    def masked(data: bytes) -> bytes:
        frame = bytearray(close_frame(1000, data.decode()))
        return bytes((frame[0], frame[1] | 0x80, 0, 0, 0, 0)) + bytes(frame[2:])

    reader = FrameReader(1_000)
    first = next(reader.feed(masked(b"one") + masked(b"two") + masked(b"three")[:5]))
    rest = list(reader.feed(masked(b"three")[5:]))
    assert [message[1][2:] for message in (first, *rest) if isinstance(message, tuple)] == [b"one", b"two", b"three"]


def test_flood_of_requests_is_handled_in_turns(tmp_path: Path) -> None:
    """One packet holds thousands of requests; the event loop serves other connections in between."""
    count = 5_000
    request = b'{"op":"ping","id":1}'
    packet = (bytes((0x81, 0x80 | len(request), 0, 0, 0, 0)) + request) * count

    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path) as (broker, _), broker.session("eve") as eve:
            handled = 0
            happened = broker.server.process.happened

            def count_requests(event: events.Event) -> None:
                nonlocal handled
                handled += isinstance(event, events.RequestReceived)
                happened(event)

            async def receive_all() -> None:
                for _ in range(count):
                    assert (await eve.receive())["type"] in ("pong", "progress")

            broker.server.process.happened = count_requests  # type: ignore[method-assign]
            receiving = asyncio.create_task(receive_all())
            eve.socket.transport.write(packet)
            most_in_a_turn = seen = 0
            while not receiving.done():
                await asyncio.sleep(0)
                most_in_a_turn, seen = max(most_in_a_turn, handled - seen), handled
            await receiving
            assert handled >= count - 1
            assert most_in_a_turn <= count // 5

    asyncio.run(scenario())


def test_subscriptions_waiting_for_the_data_cluster_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the data cluster is down, requests expire; what they asked the data cluster for does not pile up."""
    monkeypatch.setattr(requests, "MOST_PENDING", 3)
    network = SimulatedNetwork()
    network.login("ann", "a")
    network.settle()
    for kind in ("fire", "flood", "storm"):
        network.subscribe("ann", kind)
    refused = network.call("a", "bob", wire.Subscribe(9, CHANNEL, {"kind": "ice"}))
    assert isinstance(refused, wire.Refused) and refused.code == "backlogged"
    network.settle()
    network.subscribe("ann", "ice")
    network.settle()
    assert len(network.client("ann").seen) == 4


def test_websocket_of_a_server_keeps_no_unread_pongs() -> None:
    opened: list[BoundedWebSocket] = []

    class Watched(BoundedWebSocket):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            opened.append(self)
            super().connection_made(transport)

    async def accept(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass

    async def scenario() -> None:
        listening = listen("127.0.0.1", 0)
        server = Server(uvicorn.Config(accept, ws=Watched, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        ping = (bytes((0x89, 0x80 | 125, 0, 0, 0, 0)) + bytes(125)) * 1_000
        async with connect(f"ws://127.0.0.1:{listening.getsockname()[1]}", compression=None) as socket:
            socket.transport.pause_reading()
            for _ in range(120):
                socket.transport.write(ping)
                while socket.transport.get_write_buffer_size():  # the server goes on reading
                    await asyncio.sleep(0.001)
                assert opened[0].transport.get_write_buffer_size() < 1 << 20
            socket.transport.abort()
        server.should_exit = True
        await serving
        listening.close()

    asyncio.run(scenario())
