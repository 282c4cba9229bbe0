"""A whole network on one machine: data cluster, coordinator and brokers, each a process of its own.

For `tocsin up`, `tocsin chaos` and end-to-end tests. The coordinator's administrator token is good everywhere: the data
cluster and the brokers trust the coordinator's keys. Secrets lie in files of mode 0600 under the root.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
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
"""Spark's first start on a busy machine."""


@dataclass(frozen=True, slots=True)
class StackSettings:
    root: Path
    brokers: int = 3
    coordinator_port: int = 8570
    cluster_port: int = 8571
    broker_port: int = 8600
    """Of the first broker; the others follow."""
    free_ports: bool = False
    settings: str | None = None
    """A TOML file whose tables the processes read."""
    logs: Path | None = None
    """A folder for one log a process; else all go where ours go."""
    restart: bool = True
    cluster: Mapping[str, str] = field(default_factory=dict)
    """More flags of a process, without the dashes."""
    cluster_niceness: int = 0
    """How far Spark stands back for the others when the processor is short."""
    coordinator: Mapping[str, str] = field(default_factory=dict)
    broker: Mapping[str, str] = field(default_factory=dict)
    places: Sequence[tuple[float, float]] = ()
    """Latitude and longitude of the first brokers; the others stand nowhere."""


class Stack:
    def __init__(self, settings: StackSettings) -> None:
        self._settings = settings
        root = settings.root.absolute()
        self.coordinator_state = root / "coordinator"
        self._brokers_folder = root / "brokers"
        ports = self._ports()
        self.coordinator_url = f"http://127.0.0.1:{ports[0]}"
        self.cluster_url = f"http://127.0.0.1:{ports[1]}"
        self.cluster = self._child(
            "cluster", "cluster", {"root": str(root), "port": str(ports[1]), "keys": f"{self.coordinator_url}/v1/keys"},
            settings.cluster, stop_s=90.0, niceness=settings.cluster_niceness,
        )  # fmt: skip
        self.coordinator = self._child(
            "coordinator", "coordinator",
            {"state": str(self.coordinator_state), "port": str(ports[0]), "cluster": self.cluster_url},
            settings.coordinator,
        )  # fmt: skip
        self.brokers = {f"broker-{number}": self._broker(number, port) for number, port in enumerate(ports[2:], 1)}
        self.first_token: str | None = None
        """The administrator's, if this start made it."""

    def _ports(self) -> list[int]:
        settings = self._settings
        if settings.free_ports:
            return free_ports(2 + settings.brokers)
        brokers = [settings.broker_port + number for number in range(settings.brokers)]
        return [settings.coordinator_port, settings.cluster_port, *brokers]

    def _broker(self, number: int, port: int) -> Child:
        name = f"broker-{number}"
        folder = self._brokers_folder / name
        flags = {
            "id": name, "port": str(port), "state": str(folder), "cluster": self.cluster_url,
            "coordinator": self.coordinator_url, "token-file": str(folder / "token"),
        }  # fmt: skip
        if number <= len(self._settings.places):
            flags |= {
                axis: str(value) for axis, value in zip(("lat", "lon"), self._settings.places[number - 1], strict=True)
            }
        return self._child(name, "broker", flags, self._settings.broker)

    def _child(
        self,
        name: str,
        command: str,
        flags: Mapping[str, str],
        more: Mapping[str, str],
        *,
        stop_s: float = 15.0,
        niceness: int = 0,
    ) -> Child:
        arguments = [command]
        for flag, value in {**flags, **more}.items():
            arguments += [f"--{flag}", value]
        if self._settings.settings is not None:
            arguments += ["--settings", self._settings.settings]
        log = None if self._settings.logs is None else self._settings.logs / f"{name}.log"
        return Child(name, arguments, log=log, stop_s=stop_s, restart=self._settings.restart, niceness=niceness)

    @property
    def children(self) -> list[Child]:
        """In the order in which they are stopped: who needs another goes first."""
        return [*self.brokers.values(), self.coordinator, self.cluster]

    @property
    def token_file(self) -> Path:
        return self.coordinator_state / ADMIN_TOKEN_FILE

    async def start(self) -> None:
        """Returns when everything is up and the brokers are in touch with both others. Stop it also if this raises."""
        await self.start_coordinator()
        await self.start_others()

    async def start_coordinator(self) -> None:
        """Returns when the coordinator is up, long before Spark is, which starts meanwhile."""
        self._settings.root.mkdir(parents=True, exist_ok=True)
        self.cluster.start()  # the slowest: Spark starts while the others do
        self.coordinator.start()
        said = await self.coordinator.ready(_READY_S)
        self.first_token = said.get("token")

    async def start_others(self) -> None:
        signer = Signer.load_or_create(self.coordinator_state / KEY_FILE)
        for name, child in self.brokers.items():
            self._give_token(signer, name)
            child.start()
        await asyncio.gather(*(child.ready(_READY_S) for child in self.children))
        await asyncio.gather(*(self._settled(name) for name in self.brokers))

    def _give_token(self, signer: Signer, name: str) -> None:
        folder = self._brokers_folder / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        token = signer.sign(
            name, [f"broker:{name}"], now_s=time.time(), identity=secrets.token_hex(8), lifetime_s=None
        )  # fmt: skip
        write_secret(folder / "token", token)

    async def _settled(self, name: str) -> None:
        address = str(self.brokers[name].said["address"]).replace("ws", "http", 1)
        async with httpx.AsyncClient(base_url=address, timeout=10.0) as client:
            async with asyncio.timeout(_READY_S):
                while True:
                    try:
                        if (await client.get("/readyz")).status_code == 200:
                            return
                    except httpx.TransportError:
                        pass
                    await asyncio.sleep(0.05)

    async def stop(self) -> None:
        await asyncio.gather(*(child.stop() for child in self.brokers.values()))
        await self.coordinator.stop()
        await self.cluster.stop()

    def admin_token(self) -> str:
        """For whoever runs the stack; made by the coordinator at its first start."""
        try:
            return self.token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise TocsinError(Code.NOT_FOUND, f"no administrator's token in {self.token_file}") from error

    def described(self) -> dict[str, Any]:
        return {
            "address": self.cluster_url,
            "token": self.first_token,
            "coordinator": self.coordinator_url,
            "brokers": {name: child.said.get("address") for name, child in self.brokers.items()},
            "token_file": str(self.token_file),
            "dashboard": f"{self.coordinator_url}/",
        }
