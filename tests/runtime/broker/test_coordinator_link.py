"""The link to the coordinator: registration, adoption, migration, and operation without a coordinator."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.runtime.broker.running_broker import SIGNER, row, running_broker, token, until
from tocsin.benchmarks.shared.data_cluster import EmulatedCluster
from tocsin.runtime.http.listening import Server
from tocsin.wire import link


class ScriptedCoordinator:
    """A coordinator that answers with fixed messages and keeps every message that it receives."""

    def __init__(self, port: int = 0) -> None:
        # Bound now so that no other process takes the port; connections are refused until `running`.
        self.listening = socket.socket()
        self.listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listening.bind(("127.0.0.1", port))
        self.port = self.listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.received: list[link.FromBroker] = []
        self.socket: WebSocket | None = None
        self.token: str | None = None
        self.stores = True
        self.holdings: dict[str, list[link.Frontend]] = {}

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.received if isinstance(message, kind)]

    async def send(self, message: link.FromCoordinator) -> None:
        assert self.socket is not None
        await self.socket.send_text(msgspec.json.encode(message).decode())

    async def _keys(self, _request: Request) -> JSONResponse:
        return JSONResponse(SIGNER.jwks())

    async def _link(self, socket: WebSocket) -> None:
        self.token = socket.headers.get("authorization")
        await socket.accept()
        self.socket = socket
        try:
            while True:
                message = msgspec.json.decode(await socket.receive_text(), type=link.FromBroker)
                self.received.append(message)
                match message:
                    case link.Register():
                        await self.send(link.Registered(0.5, 0.5, True))
                    case link.Changed(number) if self.stores:
                        await self.send(link.Stored(number))
                    case link.StateRequest(name):
                        state = link.SubscriberState(name, self.holdings.get(name, []))
                        await self.send(link.Adopt([state]))
                    case link.Heartbeat():
                        await self.send(link.Beat())
        except WebSocketDisconnect:
            self.socket = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        app = Starlette(routes=[Route("/v1/keys", self._keys), WebSocketRoute("/v1/brokers/{broker}/link", self._link)])
        server = Server(
            uvicorn.Config(app, log_config=None, lifespan="off", ws="websockets-sansio", timeout_graceful_shutdown=1)
        )
        task = asyncio.create_task(server.serve(sockets=[self.listening]))
        try:
            yield
        finally:
            server.should_exit = True
            await task
            self.listening.close()


def test_broker_registers_reports_changes_and_adopts_subscribers(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("the-broker's-token", encoding="utf-8")

    async def scenario() -> None:
        coordinator = ScriptedCoordinator()
        async with (
            EmulatedCluster("Reports") as cluster,
            coordinator.running(),
            running_broker(tmp_path, cluster.url, coordinator=coordinator.url, token_file=str(secret)) as broker,
        ):
            await until(lambda: coordinator.of(link.Heartbeat))
            [register] = coordinator.of(link.Register)
            assert coordinator.token == "Bearer the-broker's-token"
            assert (register.broker, register.address) == ("b1", broker.address)
            async with broker.session("ann") as ann:
                assert coordinator.of(link.StateRequest)[0].subscriber == "ann"
                answer = await ann.ask("subscribe", channel="Reports", parameters={"kind": "fire"})
                assert answer["stored"] is True
                identity = answer["held"]["subscription"]
                assert coordinator.of(link.Changed)[0].added[0].subscription == identity
                cluster.execute("Reports", {identity: [row(1, 500)]})
                cursor = (await ann.push("result"))["cursor"]
                await ann.ask("ack", cursors={identity: cursor})
                await until(lambda: any(change.acked == {identity: cursor} for change in coordinator.of(link.Changed)))
                await until(lambda: any(identity in report.rates for report in coordinator.of(link.LoadReport)))
                report = next(report for report in coordinator.of(link.LoadReport) if identity in report.rates)
                assert report.in_bytes_per_s > 0 and report.out_bytes_per_s > report.in_bytes_per_s
                assert coordinator.of(link.SessionOpened)[0].subscriber == "ann"
            await until(lambda: coordinator.of(link.SessionClosed))

            # A subscriber unknown to this broker gets the subscriptions that the coordinator lists.
            coordinator.holdings["bob"] = [link.Frontend(identity, "Reports", {"kind": "fire"}, "1-0")]  # type: ignore[arg-type]
            async with broker.session("bob") as bob:
                assert await bob.results(1) == [1]

            await coordinator.send(link.Accepting(False, draining=True))
            async with broker.connection() as late:
                answer = await late.ask("login", token=token("late"))
                assert (answer["type"], answer["code"]) == ("refused", "not_ready")

    asyncio.run(scenario())


def test_migration_is_prepared_handed_over_and_released(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordinator = ScriptedCoordinator()
        async with (
            EmulatedCluster("Reports") as cluster,
            coordinator.running(),
            running_broker(tmp_path, cluster.url, coordinator=coordinator.url) as broker,
        ):
            await until(lambda: coordinator.of(link.Register) and broker.core.linked)
            async with broker.session("eve") as eve:  # to learn the id of the subscription
                identity = (await eve.subscribe())["subscription"]
                cluster.execute("Reports", {identity: [row(1)]})
                await eve.results(1)
                await eve.ask("unsubscribe", subscription=identity)
            await until(lambda: not cluster.held["b1"])

            # As the target: the subscription is held and cached before the subscriber connects.
            frontend = link.Frontend(identity, "Reports", {"kind": "fire"}, "1-0")  # type: ignore[arg-type]
            state = link.SubscriberState("ann", [frontend])  # type: ignore[arg-type]
            await coordinator.send(link.Prepare("m1", state, 30.0))
            await until(lambda: coordinator.of(link.Prepared))
            assert len(broker.core.state.backends[identity].batches) == 1
            await coordinator.send(link.Accepting(False))
            async with broker.connection() as ann:
                hand_over = token("ann", audience="b1", migration="m1", lifetime_s=60)
                answer = await ann.ask("login", token=hand_over, resume={identity: "1-0"})
                assert answer["subscriptions"][0]["subscription"] == identity
                assert await ann.results(1) == [1]
                opened = await until(
                    lambda: [opened for opened in coordinator.of(link.SessionOpened) if opened.migration]
                )
                assert opened[0].migration == "m1"

                # As the source: the broker sends `move` and serves the subscriber until `Release`.
                await coordinator.send(link.HandOver("m2", "ann", "b2", "ws://b2", "secret", 30.0))  # type: ignore[arg-type]
                move = await ann.push("move")
                assert (move["broker"], move["address"], move["token"]) == ("b2", "ws://b2", "secret")
                cluster.execute("Reports", {identity: [row(2)]})
                assert await ann.results(1) == [2]
                await coordinator.send(link.Release("ann", "m2"))  # type: ignore[arg-type]
                assert (await ann.push("closing"))["code"] == "moved"
            await until(lambda: coordinator.of(link.Released))
            await coordinator.send(link.HandOver("m3", "ann", "b2", "ws://b2", "secret", 30.0))  # type: ignore[arg-type]
            await until(lambda: coordinator.of(link.HandOverFailed))

            # The broker releases the subscriptions of an abandoned migration.
            await coordinator.send(link.Prepare("m4", state, 30.0))
            await until(lambda: len(coordinator.of(link.Prepared)) == 2)
            await coordinator.send(link.Abandon("m4", "ann"))  # type: ignore[arg-type]
            await until(lambda: broker.core.idle and not cluster.held["b1"])

    asyncio.run(scenario())


def test_broker_serves_and_starts_without_its_coordinator(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordinator = ScriptedCoordinator()
        async with EmulatedCluster("Reports") as cluster:
            async with running_broker(tmp_path, cluster.url, coordinator=coordinator.url) as broker:
                async with broker.connection() as early:
                    answer = await early.ask("login", token=token("ann"))
                    assert answer["code"] == "not_ready"  # the client may retry
                async with coordinator.running():
                    await until(lambda: broker.core.linked and broker.server.keys.ready, 20)
                    async with broker.session("ann") as ann:
                        identity = (await ann.subscribe())["subscription"]
                await until(lambda: not broker.core.linked)
                async with broker.session("ann") as ann, broker.session("new") as new:
                    answer = await new.ask("subscribe", channel="Reports", parameters={"kind": "fire"})
                    assert answer["stored"] is False
                    cluster.execute("Reports", {identity: [row(1)]})
                    assert await ann.results(1) == await new.results(1) == [1]
                    restarted = ScriptedCoordinator(coordinator.port)
                    async with restarted.running():  # it gets the messages that it missed
                        await until(lambda: restarted.of(link.Changed), 20)
                        [register] = restarted.of(link.Register)
                        assert sorted(register.online) == ["ann", "new"]
                        assert {change.subscriber for change in restarted.of(link.Changed)} >= {"new"}
            # The keys were saved: the next start does not need the coordinator.
            async with (
                running_broker(tmp_path, cluster.url, coordinator=coordinator.url) as broker,
                broker.session("ann") as ann,
            ):
                assert (await ann.ask("list"))["subscriptions"] == []
                held = await ann.subscribe(after="1-0")
                assert held["cursor"] == "1-0" and await ann.results(1) == [1]

    asyncio.run(scenario())


def test_fetched_keys_are_saved_unchanged(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordinator = ScriptedCoordinator()
        async with (
            EmulatedCluster("Reports") as cluster,
            coordinator.running(),
            running_broker(tmp_path, cluster.url, coordinator=coordinator.url),
        ):
            kept = tmp_path / "b1-keys.json"
            assert json.loads(kept.read_text(encoding="utf-8")) == SIGNER.jwks()

    asyncio.run(scenario())
