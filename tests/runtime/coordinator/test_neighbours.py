"""Two coordinators of neighbouring sites: their settings, tokens and connections, and what GET /v1/sites shows."""

from __future__ import annotations

import asyncio
import io
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import websockets

from tests.runtime.coordinator.harness import WAIT_S, FakeBroker, RunningCoordinator, coordinator
from tocsin.benchmarks.shared.certificate import make_certificate
from tocsin.client.tls import context_with
from tocsin.model.ids import TopicName
from tocsin.runtime.coordinator.neighbour_file import read_neighbours
from tocsin.runtime.coordinator.neighbours import NeighbourConnection, NeighbourConnections
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.http.settings import load_settings
from tocsin.runtime.stack.supervisor import free_ports
from tocsin.wire.errors import TocsinError
from tocsin.wire.neighbour_link import Ping, Withdraw
from tocsin.wire.site_link import (
    Federate,
    FlowCount,
    FlowCounts,
    FlowDemand,
    ImportFlows,
    NeighbourAccess,
    TopicDemand,
)
from tocsin.wire.topic_link import RenewLease

SECRET = "not-a-real-secret"
TOPIC = TopicName("waves")


def neighbour(site: str, coordinator: str, **more: str) -> str:
    fields = {"site": site, "coordinator": coordinator, "token_file": f"{site}.token"} | more
    return "[[neighbour]]\n" + "".join(f'{name} = "{value}"\n' for name, value in fields.items())


def written(folder: Path, *tables: str, token: str = SECRET) -> Path:
    file = folder / "site.toml"
    file.write_text("\n".join(tables), encoding="utf-8")
    (folder / "west.token").write_text(token + "\n", encoding="utf-8")
    return file


# -- the file ----------------------------------------------------------------------------------------------------------


def test_neighbours_are_read_with_their_tokens(tmp_path: Path) -> None:
    file = written(tmp_path, neighbour("west", "https://west.example:8570"))
    assert read_neighbours(file, "east") == (NeighbourAccess("west", "https://west.example:8570", SECRET),)


def test_authority_of_a_neighbour_is_sent_to_brokers_as_text(tmp_path: Path) -> None:
    """A broker on another machine has no file of the coordinator."""
    cert = Path(make_certificate(tmp_path)[0])
    file = written(tmp_path, neighbour("west", "https://west.example:8570", ca=cert.name))
    [access] = read_neighbours(file, "east")
    assert access.ca == cert.read_text()
    cert.unlink()
    assert context_with(access.ca).get_ca_certs()


def test_token_of_a_neighbour_is_not_in_its_text() -> None:
    access = NeighbourAccess("west", "https://west.example:8570", SECRET)
    assert SECRET not in repr(access) + str(access) + repr(Federate("east", [access]))


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ([neighbour("west", "http://west.example:8570")], "unencrypted; use https, or set insecure"),
        ([neighbour("west", "west.example:8570")], "expected an address such as https://"),
        ([neighbour("east", "https://east.example:8570")], "east is this site itself"),
        ([neighbour("west", "https://a:1"), neighbour("west", "https://b:1")], "west has two tables; remove one"),
        ([neighbour("we st", "https://west.example:8570")], "1 to 128 letters"),
        ([neighbour("north", "https://n:1")], "north makes it: POST /v1/tokens, scopes site:east and receive:#"),
        ([neighbour("west", "https://w:1", ca="none.pem")], "ca of west: there is no file"),
        ([neighbour("west", "https://w:1", ca="west.token")], "is not a readable PEM file"),
        ([neighbour("west", "https://w:1", tokn="x")], "tokn"),
        (["[[neighbour]]\nsite = "], "[[neighbour]]"),
    ],
)
def test_invalid_file_is_refused_with_the_reason(tmp_path: Path, tables: list[str], reason: str) -> None:
    file = written(tmp_path, *tables)
    with pytest.raises(TocsinError) as refused:
        read_neighbours(file, "east")
    assert reason in refused.value.message


@pytest.mark.parametrize("token", ["", "two words", "tökèn"])
def test_file_without_a_token_is_refused(tmp_path: Path, token: str) -> None:
    file = written(tmp_path, neighbour("west", "https://west.example:8570"), token=token)
    with pytest.raises(TocsinError, match="does not contain a token; the administrator of west makes it"):
        read_neighbours(file, "east")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"neighbours": "site.toml"}, "set the name of this site as well"),
        ({"neighbours": "none.toml", "site": "east"}, "there is no file"),
        ({"site": "ea st"}, "1 to 128 letters"),
    ],
)
def test_settings_of_a_site_without_name_or_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any], reason: str
) -> None:
    written(tmp_path, neighbour("west", "https://west.example:8570"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TocsinError, match=reason):
        load_settings(CoordinatorSettings, flags, {})


# -- two coordinators --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def site(folder: Path, name: str, port: int, other: str, other_port: int) -> AsyncIterator[RunningCoordinator]:
    folder.mkdir(exist_ok=True)
    file = folder / "site.toml"
    file.write_text(neighbour(other, f"http://127.0.0.1:{other_port}"), encoding="utf-8")
    if not (folder / f"{other}.token").exists():
        (folder / f"{other}.token").write_text(SECRET, encoding="utf-8")
    patient: dict[str, Any] = {"topic_lease_s": 60.0, "probation_s": 0.1}
    async with coordinator(folder / "state", port=port, site=name, neighbours=str(file), **patient) as running:
        yield running


async def make_tokens(folder: Path, ports: dict[str, int]) -> None:
    """Let each site make the token by which the other one reaches it."""
    for name, other in (("east", "west"), ("west", "east")):
        async with site(folder / name, name, ports[name], other, ports[other]) as running:
            token = await running.token_for(f"site:{other}", "receive:#", subject=f"site-{other}")
            (folder / other).mkdir(exist_ok=True)
            (folder / other / f"{name}.token").write_text(token)


@asynccontextmanager
async def two_sites(folder: Path) -> AsyncIterator[tuple[RunningCoordinator, RunningCoordinator]]:
    ports = dict(zip(("east", "west"), free_ports(2), strict=True))
    await make_tokens(folder, ports)
    async with (
        site(folder / "east", "east", ports["east"], "west", ports["west"]) as east,
        site(folder / "west", "west", ports["west"], "east", ports["east"]) as west,
    ):
        yield east, west


async def until_linked(*sites: RunningCoordinator) -> None:
    for running in sites:
        await running.until("/v1/sites", lambda view: view["neighbours"][0]["state"] == "up")


def test_demand_of_two_sites_leads_to_an_import_and_counts_are_shown(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_sites(tmp_path) as (east, west):
            await until_linked(east, west)
            homes = [
                await FakeBroker(running, f"home-{name}", topics=True).connect()
                for name, running in (("east", east), ("west", west))
            ]
            for home in homes:
                await home.send(RenewLease(1))
            federated = await homes[1].receive(Federate)
            assert (federated.site, [access.site for access in federated.neighbours]) == ("west", ["east"])
            await east.admin.post("/v1/topics", json={"topic": TOPIC})
            await homes[0].send(FlowDemand([TopicDemand(TOPIC, 1 << 30, True, False)]))
            await west.until("/v1/topics", lambda answer: [entry["topic"] for entry in answer["topics"]] == [TOPIC])
            await homes[1].send(FlowDemand([TopicDemand(TOPIC, 1 << 30, False, True)]))
            assert (await homes[1].receive(ImportFlows)).flows == {"east": ["east"]}
            await homes[1].send(FlowCounts([FlowCount("east", "east", TOPIC, 7, 1)]))
            view = await west.until("/v1/sites", lambda view: view["neighbours"][0]["flows"] != [])
            [shown] = view["neighbours"]
            assert shown["flows"] == [{"topic": TOPIC, "source": "east", "messages": 7, "repeated": 1}]
            assert shown["subscribed"] == [{"topic": TOPIC, "source": "east"}]
            assert shown["round_trip"]["count"] > 0 and 0 < shown["round_trip"]["p99_s"] < WAIT_S
            assert SECRET not in str(view) and "eyJ" not in str(view)
            metrics = (await west.admin.get("/metrics")).text
            assert 'tocsin_coordinator_flow_messages_total{site="east",source="east",topic="waves"} 7.0' in metrics
            for home in homes:
                await home.stop()

    asyncio.run(scenario())


def test_link_returns_after_a_restart_of_a_coordinator(tmp_path: Path) -> None:
    async def scenario() -> None:
        ports = dict(zip(("east", "west"), free_ports(2), strict=True))
        await make_tokens(tmp_path, ports)
        async with site(tmp_path / "east", "east", ports["east"], "west", ports["west"]) as east:
            links = []
            for _ in range(2):
                async with site(tmp_path / "west", "west", ports["west"], "east", ports["east"]) as west:
                    await until_linked(east, west)
                    links.append((await east.admin.get("/v1/sites")).json()["neighbours"][0])
                await east.until("/v1/sites", lambda view: view["neighbours"][0]["state"] == "down")
        assert links[1]["restarts"] == links[0]["restarts"] + 1 and links[1]["link"] > links[0]["link"]

    asyncio.run(scenario())


def test_link_of_a_site_needs_a_token_for_that_site(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_sites(tmp_path) as (east, _):
            address = east.url.replace("http", "ws", 1) + "/v1/sites/west/link"
            others = [await east.token_for(scope) for scope in ("site:north", "admin", "broker:*", "receive:#")]
            for token in others:
                with pytest.raises(websockets.InvalidStatus, match="403"):
                    await websockets.connect(address, additional_headers={"Authorization": f"Bearer {token}"})
            with pytest.raises(websockets.InvalidStatus, match="401"):
                await websockets.connect(address)
            assert (await east.client(others[0]).get("/v1/sites")).status_code == 403

    asyncio.run(scenario())


def test_site_that_is_no_neighbour_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_sites(tmp_path) as (east, _):
            token = await east.token_for("site:aaa")
            address = east.url.replace("http", "ws", 1) + "/v1/sites/aaa/link"
            headers = {"Authorization": f"Bearer {token}"}
            async with websockets.connect(address, additional_headers=headers) as socket, asyncio.timeout(WAIT_S):
                await socket.send('{"type": "hello", "site": "aaa", "link": 1, "run": 1}')
                with pytest.raises(websockets.ConnectionClosed):
                    while True:
                        await socket.recv()
            assert socket.close_reason == "aaa is not a neighbour of east"

    asyncio.run(scenario())


def test_wrong_token_is_logged_with_the_remedy_and_without_the_token(tmp_path: Path, log_lines: io.StringIO) -> None:
    async def scenario() -> None:
        ports = dict(zip(("east", "west"), free_ports(2), strict=True))
        async with (
            site(tmp_path / "east", "east", ports["east"], "west", ports["west"]),
            site(tmp_path / "west", "west", ports["west"], "east", ports["east"]),
            asyncio.timeout(WAIT_S),
        ):
            while "it refuses the token" not in log_lines.getvalue():
                await asyncio.sleep(0.05)

    asyncio.run(scenario())
    assert "put one with the scope site:east into token_file" in log_lines.getvalue()
    assert SECRET not in log_lines.getvalue()


def test_connection_to_a_neighbour_that_does_not_read_ends() -> None:
    async def scenario() -> None:
        async def send(_text: str) -> None:
            await asyncio.Event().wait()

        async def receive() -> str:
            await asyncio.sleep(0.05)
            return '{"type": "pong", "number": 0}'

        connection = NeighbourConnection("west", send, receive, deque())
        running = asyncio.create_task(connection.run(lambda message: None))
        for number in range(200_000):
            connection.send(Ping(number))
        assert connection._outgoing.qsize() < 110_000
        await asyncio.wait_for(running, WAIT_S)
        assert connection.end_reason == "the neighbour does not read"

    asyncio.run(scenario())


def test_coordinator_leaves_and_stops_beside_a_neighbour_that_reads_nothing() -> None:
    async def scenario() -> None:
        opened: list[int] = []

        async def neighbour(socket: websockets.ServerConnection) -> None:
            opened.append(1)
            with suppress(websockets.ConnectionClosed):
                while True:
                    await socket.send('{"type": "ping", "number": 1}')
                    await asyncio.sleep(0.1)

        async with websockets.serve(neighbour, "127.0.0.1", 0, close_timeout=0.1) as server:
            port = server.sockets[0].getsockname()[1]
            access = NeighbourAccess("west", f"http://127.0.0.1:{port}", SECRET)
            connections = NeighbourConnections("east", [access], lambda event: None)
            connections.start()
            for number in (1, 2):
                async with asyncio.timeout(WAIT_S):
                    while len(opened) < number or number not in connections._open:
                        await asyncio.sleep(0.05)
                for _ in range(1_000):  # more than the buffers between the two take
                    connections.send(number, Withdraw(TopicName("x" * 50_000), "east"))
                await asyncio.sleep(0.2)
                if number == 1:
                    connections.close(number, "a later link is open")
            await asyncio.wait_for(connections.stop(), WAIT_S)

    asyncio.run(scenario())


def test_coordinator_without_a_site_shows_no_neighbours(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            assert (await running.admin.get("/v1/sites")).json() == {"site": None, "neighbours": []}
            token = await running.token_for("site:west")
            address = running.url.replace("http", "ws", 1) + "/v1/sites/west/link"
            with pytest.raises(websockets.InvalidStatus, match="404"):
                await websockets.connect(address, additional_headers={"Authorization": f"Bearer {token}"})

    asyncio.run(scenario())
