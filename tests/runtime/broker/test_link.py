"""The link to the coordinator: what is said, what is obeyed, and that nothing waits for it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.runtime.broker.running_broker import SIGNER, row, running_broker, token, until
from tocsin.benchmarks.shared.data_cluster import EmulatedCluster
from tocsin.runtime.broker import cluster as broker_cluster
from tocsin.runtime.http.listening import Server
from tocsin.wire import link


class ScriptedCoordinator:
    """Speaks the link's messages as a test tells it; keeps everything it was told."""

    def __init__(self, port: int = 0) -> None:
        # Bound, so that nobody else takes the port; until it runs, whoever connects is refused.
        self.listening = socket.socket()
        self.listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listening.bind(("127.0.0.1", port))
        self.port = self.listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.told: list[link.FromBroker] = []
        self.socket: WebSocket | None = None
        self.token: str | None = None
        self.stores = True
        self.holdings: dict[str, list[link.Frontend]] = {}

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.told if isinstance(message, kind)]

    async def say(self, message: link.FromCoordinator) -> None:
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
                self.told.append(message)
                match message:
                    case link.Register():
                        await self.say(link.Registered(0.5, 0.5, True))
                    case link.Changed(number) if self.stores:
                        await self.say(link.Stored(number))
                    case link.Wanted(name):
                        state = link.SubscriberState(name, self.holdings.get(name, []))
                        await self.say(link.Adopt([state]))
                    case link.Heartbeat():
                        await self.say(link.Beat())
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


def test_a_broker_registers_stores_and_is_told_whom_to_serve(tmp_path: Path) -> None:
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
                assert coordinator.of(link.Wanted)[0].subscriber == "ann"
                answer = await ann.ask("subscribe", channel="Reports", parameters={"kind": "fire"})
                assert answer["stored"] is True
                identity = answer["held"]["subscription"]
                assert coordinator.of(link.Changed)[0].added[0].subscription == identity
                cluster.execute("Reports", {identity: [row(1, 500)]})
                cursor = (await ann.push("result"))["cursor"]
                await ann.ask("ack", cursors={identity: cursor})
                await until(lambda: any(change.acked == {identity: cursor} for change in coordinator.of(link.Changed)))
                await until(lambda: any(identity in report.rates for report in coordinator.of(link.LoadReport)))
                report = next(one for one in coordinator.of(link.LoadReport) if identity in one.rates)
                assert report.in_bytes_per_s > 0 and report.out_bytes_per_s > report.in_bytes_per_s
                assert coordinator.of(link.SessionOpened)[0].subscriber == "ann"
            await until(lambda: coordinator.of(link.SessionClosed))

            # A subscriber this broker has never seen, with what it holds according to the coordinator.
            coordinator.holdings["bob"] = [link.Frontend(identity, "Reports", {"kind": "fire"}, "1-0")]  # type: ignore[arg-type]
            async with broker.session("bob") as bob:
                assert await bob.results(1) == [1]

            await coordinator.say(link.Accepting(False, draining=True))
            async with broker.connection() as late:
                answer = await late.ask("login", token=token("late"))
                assert (answer["type"], answer["code"]) == ("refused", "not_ready")

    asyncio.run(scenario())


def test_a_move_is_prepared_handed_over_and_released(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordinator = ScriptedCoordinator()
        async with (
            EmulatedCluster("Reports") as cluster,
            coordinator.running(),
            running_broker(tmp_path, cluster.url, coordinator=coordinator.url) as broker,
        ):
            await until(lambda: coordinator.of(link.Register) and broker.core.linked)
            async with broker.session("eve") as eve:  # knows the subscription's name for us
                identity = (await eve.subscribe())["subscription"]
                cluster.execute("Reports", {identity: [row(1)]})
                await eve.results(1)
                await eve.ask("unsubscribe", subscription=identity)
            await until(lambda: not cluster.held["b1"])

            # As the target: held and in the cache before the subscriber comes.
            frontend = link.Frontend(identity, "Reports", {"kind": "fire"}, "1-0")  # type: ignore[arg-type]
            state = link.SubscriberState("ann", [frontend])  # type: ignore[arg-type]
            await coordinator.say(link.Prepare("m1", state, 30.0))
            await until(lambda: coordinator.of(link.Prepared))
            assert len(broker.core.state.backends[identity].batches) == 1
            await coordinator.say(link.Accepting(False))
            async with broker.connection() as ann:
                hand_over = token("ann", audience="b1", migration="m1", lifetime_s=60)
                answer = await ann.ask("login", token=hand_over, resume={identity: "1-0"})
                assert answer["subscriptions"][0]["subscription"] == identity
                assert await ann.results(1) == [1]
                opened = await until(lambda: [one for one in coordinator.of(link.SessionOpened) if one.migration])
                assert opened[0].migration == "m1"

                # As the source: told to move, served until released.
                await coordinator.say(link.HandOver("m2", "ann", "b2", "ws://b2", "secret", 30.0))  # type: ignore[arg-type]
                move = await ann.push("move")
                assert (move["broker"], move["address"], move["token"]) == ("b2", "ws://b2", "secret")
                cluster.execute("Reports", {identity: [row(2)]})
                assert await ann.results(1) == [2]
                await coordinator.say(link.Release("ann", "m2"))  # type: ignore[arg-type]
                assert (await ann.push("closing"))["code"] == "moved"
            await until(lambda: coordinator.of(link.Released))
            await coordinator.say(link.HandOver("m3", "ann", "b2", "ws://b2", "secret", 30.0))  # type: ignore[arg-type]
            await until(lambda: coordinator.of(link.HandOverFailed))

            # Given up: nothing stays behind.
            await coordinator.say(link.Prepare("m4", state, 30.0))
            await until(lambda: len(coordinator.of(link.Prepared)) == 2)
            await coordinator.say(link.Abandon("m4", "ann"))  # type: ignore[arg-type]
            await until(lambda: broker.core.idle and not cluster.held["b1"])

    asyncio.run(scenario())


def test_a_broker_goes_on_and_starts_without_its_coordinator(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordinator = ScriptedCoordinator()
        async with EmulatedCluster("Reports") as cluster:
            async with running_broker(tmp_path, cluster.url, coordinator=coordinator.url) as broker:
                async with broker.connection() as early:
                    answer = await early.ask("login", token=token("ann"))
                    assert answer["code"] == "not_ready"  # nobody is turned away for good
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
                    again = ScriptedCoordinator(coordinator.port)
                    async with again.running():  # it comes back and learns what it missed
                        await until(lambda: again.of(link.Changed), 20)
                        [register] = again.of(link.Register)
                        assert sorted(register.online) == ["ann", "new"]
                        assert {change.subscriber for change in again.of(link.Changed)} >= {"new"}
            # The keys were kept: the next start does not need it.
            async with (
                running_broker(tmp_path, cluster.url, coordinator=coordinator.url) as broker,
                broker.session("ann") as ann,
            ):
                assert (await ann.ask("list"))["subscriptions"] == []
                held = await ann.subscribe(after="1-0")
                assert held["cursor"] == "1-0" and await ann.results(1) == [1]

    asyncio.run(scenario())


def test_what_an_earlier_run_held_is_released_once_the_coordinator_has_spoken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_cluster, "COMPARE_S", 0.5)

    async def scenario() -> None:
        coordinator = ScriptedCoordinator()
        async with EmulatedCluster("Reports") as cluster:
            cluster.held["b1"] = {"0" * 32}  # type: ignore[arg-type]
            async with (
                coordinator.running(),
                running_broker(tmp_path, cluster.url, coordinator=coordinator.url) as broker,
            ):
                await until(lambda: broker.core.linked)
                async with broker.session("ann") as ann:
                    identity = (await ann.subscribe())["subscription"]
                    await until(lambda: cluster.held["b1"] == {identity})

    asyncio.run(scenario())


def test_a_hold_that_was_released_in_a_brokers_name_is_noticed_and_held_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_cluster, "COMPARE_S", 0.5)

    async def scenario() -> None:
        async with (
            EmulatedCluster("Reports") as cluster,
            running_broker(tmp_path, cluster.url) as broker,
            broker.session("ann") as ann,
        ):
            identity = (await ann.subscribe())["subscription"]
            await asyncio.sleep(1.2)
            asked = cluster.requests.count("subscribe")
            assert asked == 1, "as long as both sides agree nothing happens"
            for number in (1, 3):  # also once more
                cluster.held["b1"].clear()
                cluster.execute("Reports", {identity: [row(number)]})
                await until(lambda: cluster.held["b1"] == {identity})
                gap = await ann.push("gap")
                assert gap["subscription"] == identity
                cluster.execute("Reports", {identity: [row(number + 1)]})
                assert await ann.results(1) == [number + 1]
                await asyncio.sleep(1.2)

    asyncio.run(scenario())


@pytest.mark.parametrize("unexpected", [KeyError("Tocsin-Cursor"), OSError("the token's file is being replaced")])
def test_an_unexpected_error_ends_neither_orders_nor_fetches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unexpected: Exception
) -> None:
    async def scenario() -> None:
        async with EmulatedCluster("Reports") as cluster, running_broker(tmp_path, cluster.url) as broker:
            link = broker.server.cluster
            failures = []

            def once(name: str) -> None:
                method = getattr(link, name)

                async def fails(*arguments: object) -> object:
                    monkeypatch.setattr(link, name, method)
                    failures.append(name)
                    raise unexpected

                monkeypatch.setattr(link, name, fails)

            once("_post")
            once("_pull")
            async with broker.session("ann") as ann:
                identity = (await ann.subscribe())["subscription"]
                cluster.execute("Reports", {identity: [row(1)]})
                assert await ann.results(1) == [1]
            assert sorted(failures) == ["_post", "_pull"]

    asyncio.run(scenario())


def test_the_keys_are_kept_as_they_were_seen(tmp_path: Path) -> None:
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
