"""A whole network on one machine: data cluster, coordinator and brokers, each in a process of its own.

For `tocsin up`, `tocsin chaos`, `tocsin demo` and end-to-end tests. Every process accepts the coordinator's
administrator token, because the data cluster and the brokers trust the coordinator's keys. Secrets are in files with
mode 0600 under the root.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tocsin.runtime.coordinator.server import ADMIN_TOKEN_FILE, KEY_FILE
from tocsin.runtime.http.credentials import Signer
from tocsin.runtime.http.listening import write_secret
from tocsin.runtime.stack.supervisor import Child, free_ports
from tocsin.wire.errors import Code, TocsinError

_READY_S = 240.0
"""The most seconds for the start. Spark's first start on a busy machine is slow."""


Via = Callable[[str, str, str], str]
"""(source, target, address of the target) → the address that the source uses. Subscribers are a source too."""
SUBSCRIBERS = "subscribers"
RESULTS = ("results-1", "results-2")
"""The result servers of a network with replicas."""


@dataclass(frozen=True, slots=True)
class StackSettings:
    root: Path
    brokers: int = 3
    coordinator_port: int = 8570
    cluster_port: int = 8571
    broker_port: int = 8600
    """Port of the first broker; the others get the following ports. 0 takes free ports for brokers."""
    free_ports: bool = False
    settings: str | None = None
    """TOML file for all processes."""
    logs: Path | None = None
    """Folder with one log file per process; without it all processes log to our stderr."""
    restart: bool = True
    data_cluster: bool = True
    """False starts a network for topics alone, without Spark."""
    cluster: Mapping[str, str] = field(default_factory=dict)
    """Additional flags of the data cluster, without the dashes. A flag without a value has an empty one."""
    cluster_preload: str | None = None
    """A module whose `install` runs in the data cluster's process first; a chaos run injects faults with it."""
    cluster_niceness: int = 0
    """Lowers the priority of Spark when the processor is busy, as nice(1) does."""
    coordinator: Mapping[str, str] = field(default_factory=dict)
    """Additional flags of the coordinator."""
    broker: Mapping[str, str] = field(default_factory=dict)
    """Additional flags of every broker."""
    broker_flags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Broker → flags of it alone, such as its role in a site."""
    places: Sequence[tuple[float, float]] = ()
    """Latitude and longitude of the first brokers; further brokers have no position."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Broker → the local address from which it connects to brokers elsewhere, for emulated distance."""
    replicas: str | None = None
    """URL of a PostgreSQL database: a standby runs beside the data cluster and beside the coordinator, and two result
    servers."""
    via: Via | None = None
    """Other addresses for connections between processes, for a chaos run with relays. Default: their own addresses."""


class Stack:
    def __init__(self, settings: StackSettings) -> None:
        self._settings = settings
        root = settings.root.absolute()
        self.coordinator_state = root / "coordinator"
        self._brokers_folder = root / "brokers"
        coordinator_port, cluster_port, *broker_ports = self._ports()
        self._coordinators = {"coordinator": f"http://127.0.0.1:{coordinator_port}"}
        self._clusters = {"cluster": f"http://127.0.0.1:{cluster_port}"}
        self._results: dict[str, str] = {}
        if settings.replicas is not None:
            ports = free_ports(4)
            self._results = {name: f"http://127.0.0.1:{port}" for name, port in zip(RESULTS, ports[2:], strict=True)}
            self._coordinators["coordinator-2"] = f"http://127.0.0.1:{ports[0]}"
            self._clusters["cluster-2"] = f"http://127.0.0.1:{ports[1]}"
        self.coordinator_url = ",".join(self._coordinators.values())
        """Of the coordinator; with replicas, the addresses of both with a comma between them."""
        self.cluster_url = ",".join(self._clusters.values())
        """The same of the data cluster."""
        clusters = {name: self._cluster(name, url) for name, url in self._clusters.items()}
        coordinators = {name: self._coordinator(name, url) for name, url in self._coordinators.items()}
        self.cluster, *_ = clusters.values()
        self.coordinator, *_ = coordinators.values()
        self.standbys = {name: child for name, child in (coordinators | clusters).items() if name.endswith("-2")}
        """The second coordinator and the second data cluster, if there are any."""
        self.result_servers = {name: self._result_server(name, url) for name, url in self._results.items()}
        self.brokers = {f"broker-{number}": self._broker(number, port) for number, port in enumerate(broker_ports, 1)}
        self.first_token: str | None = None
        """The administrator's token, if this start created it."""

    def _cluster(self, name: str, url: str) -> Child:
        settings, root = self._settings, self._settings.root.absolute()
        keys = ",".join(f"{address}/v1/keys" for address in self._addresses(name, self._coordinators))
        flags = {"root": str(root), "port": str(_port(url)), "keys": keys}
        if settings.replicas is not None:
            flags |= {"catalog": self._via(name, "postgresql", settings.replicas), "standby": ""}
        return self._child(
            name,
            "cluster",
            {**flags, **settings.cluster},
            stop_s=90.0,
            niceness=settings.cluster_niceness,
            preload=settings.cluster_preload,
        )

    def _result_server(self, name: str, url: str) -> Child:
        assert self._settings.replicas is not None
        keys = ",".join(f"{address}/v1/keys" for address in self._addresses(name, self._coordinators))
        catalog = self._via(name, "postgresql", self._settings.replicas)
        root = str(self._settings.root.absolute())
        return self._child(name, "results", {"root": root, "port": str(_port(url)), "catalog": catalog, "keys": keys})

    def _coordinator(self, name: str, url: str) -> Child:
        settings = self._settings
        folder = self.coordinator_state.with_name(name)
        flags = {"state": str(folder), "port": str(_port(url))}
        if settings.data_cluster:
            flags["cluster"] = ",".join(self._addresses(name, self._clusters))
        if settings.replicas is not None:
            flags |= {"store": self._via(name, "postgresql", settings.replicas), "standby": ""}
        return self._child(name, "coordinator", {**flags, **settings.coordinator})

    def _addresses(self, source: str, targets: Mapping[str, str]) -> list[str]:
        """The addresses that `source` uses for these targets."""
        return [self._via(source, name, url) for name, url in targets.items()]

    def _ports(self) -> list[int]:
        settings = self._settings
        if settings.free_ports:
            return free_ports(2 + settings.brokers)
        if settings.broker_port == 0:
            brokers = free_ports(settings.brokers)
        else:
            brokers = [settings.broker_port + number for number in range(settings.brokers)]
        return [settings.coordinator_port, settings.cluster_port, *brokers]

    def _broker(self, number: int, port: int) -> Child:
        name = f"broker-{number}"
        folder = self._brokers_folder / name
        flags = {"id": name, "port": str(port), "state": str(folder), "token-file": str(folder / "token")}
        flags |= {
            "cluster": ",".join(self._addresses(name, self._clusters)),
            "coordinator": ",".join(self._addresses(name, self._coordinators)),
        }
        if self._results:
            flags["results"] = ",".join(self._addresses(name, self._results))
        if self._settings.via is not None:
            flags["address"] = self._via(SUBSCRIBERS, name, f"ws://127.0.0.1:{port}")
        if number <= len(self._settings.places):
            lat, lon = self._settings.places[number - 1]
            flags |= {"lat": str(lat), "lon": str(lon)}
        if name in self._settings.sources:
            flags["connect-from"] = self._settings.sources[name]
        more = self._settings.broker_flags.get(name, {})
        return self._child(name, "broker", {**flags, **self._settings.broker, **more})

    def _via(self, source: str, target: str, address: str) -> str:
        via = self._settings.via
        return address if via is None else via(source, target, address)

    def _child(
        self,
        name: str,
        command: str,
        flags: Mapping[str, str],
        *,
        stop_s: float = 15.0,
        niceness: int = 0,
        preload: str | None = None,
    ) -> Child:
        arguments = [command]
        for flag, value in flags.items():
            arguments += [f"--{flag}", value] if value else [f"--{flag}"]
        if self._settings.settings is not None:
            arguments += ["--settings", self._settings.settings]
        log = None if self._settings.logs is None else self._settings.logs / f"{name}.log"
        restart = self._settings.restart
        return Child(name, arguments, log=log, stop_s=stop_s, restart=restart, niceness=niceness, preload=preload)

    @property
    def children(self) -> list[Child]:
        """The processes in the order in which they stop: a process stops before the processes that it needs."""
        servers = [self.coordinator, self.cluster] if self._settings.data_cluster else [self.coordinator]
        return [*self.brokers.values(), *self.result_servers.values(), *self.standbys.values(), *servers]

    @property
    def token_file(self) -> Path:
        return self.coordinator_state / ADMIN_TOKEN_FILE

    async def start(self) -> None:
        """Return when all processes are up and the brokers are connected to both servers.

        Call `stop` even if this raises.
        """
        await self.start_coordinator()
        await self.start_others()

    async def start_coordinator(self) -> None:
        """Return when the coordinator is up. The data cluster continues to start: Spark takes much longer."""
        self._settings.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._settings.data_cluster:
            self.cluster.start()
        self.coordinator.start()
        announcement = await self.coordinator.ready(_READY_S)
        self.first_token = announcement.get("token")
        for child in (*self.standbys.values(), *self.result_servers.values()):
            child.start()

    async def start_others(self) -> None:
        signer = Signer.load_or_create(self.coordinator_state / KEY_FILE)
        for name, child in self.brokers.items():
            self._write_token(signer, name)
            child.start()
        await asyncio.gather(*(child.ready(_READY_S) for child in self.children))
        await asyncio.gather(*(self._wait_until_ready(name) for name in self.brokers))

    def _write_token(self, signer: Signer, name: str) -> None:
        folder = self._brokers_folder / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        identity = secrets.token_hex(8)
        token = signer.sign(name, [f"broker:{name}"], now_s=time.time(), identity=identity, lifetime_s=None)
        write_secret(folder / "token", token)

    async def _wait_until_ready(self, name: str) -> None:
        """Wait until the broker is connected to the coordinator and the data cluster. Raises TocsinError if it takes
        longer than `_READY_S`."""
        address = str(self.brokers[name].announcement["address"]).replace("ws", "http", 1)
        reason = "it does not answer"
        try:
            async with httpx.AsyncClient(base_url=address, timeout=10.0) as client, asyncio.timeout(_READY_S):
                while True:
                    with contextlib.suppress(httpx.TransportError):
                        answer = await client.get("/readyz")
                        if answer.status_code == 200:
                            return
                        reason = answer.text[:200]
                    await asyncio.sleep(0.05)
        except TimeoutError:
            message = f"{name} was not ready after {_READY_S:g} s: {reason}; this machine may be too slow or too busy"
            raise TocsinError(Code.NOT_READY, message) from None

    async def stop(self) -> None:
        await asyncio.gather(*(child.stop() for child in self.brokers.values()))
        await asyncio.gather(*(child.stop() for child in (*self.result_servers.values(), *self.standbys.values())))
        await self.coordinator.stop()
        await self.cluster.stop()

    def admin_token(self) -> str:
        """The administrator's token, which the coordinator creates at its first start."""
        try:
            return self.token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise TocsinError(Code.NOT_FOUND, f"no administrator's token in {self.token_file}") from error

    def described(self) -> dict[str, Any]:
        """The addresses of all processes, and the token if this start created it."""
        return {
            "address": self.cluster_url,
            "token": self.first_token,
            "coordinator": self.coordinator_url,
            "brokers": {name: child.announcement.get("address") for name, child in self.brokers.items()},
            "token_file": str(self.token_file),
            "dashboard": f"{self._coordinators['coordinator']}/",
        }


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])
