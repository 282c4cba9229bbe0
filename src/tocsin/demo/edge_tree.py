"""A tree of real edge nodes on this machine: one process per node, each with its own file and data folder [AMI §2.2.1].

The leaves take the readings of neighbourhoods, the nodes above them are districts, the root is the city, as in figure 3
[AMI §1.1]; a tree of 15 nodes has regions in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from tocsin.model.edge import EdgeNodeId, Tree
from tocsin.runtime.http.listening import write_secret
from tocsin.runtime.stack.supervisor import Child, cpu_time_s, free_ports

_READY_S: Final = 120.0
_LEVELS: Final = {7: ("city", "district", "neighbourhood"), 15: ("city", "region", "district", "neighbourhood")}
"""Number of nodes → names of the levels from the root to the leaves."""


def named_tree(nodes: int) -> Tree:
    """A perfect binary tree whose nodes are named by their level. Raises ValueError for other sizes than 7 and 15."""
    if nodes not in _LEVELS:
        raise ValueError(f"a tree has {' or '.join(map(str, _LEVELS))} nodes, not {nodes}")
    numbered = Tree.perfect_binary(nodes)
    names = {}
    for number in range(1, nodes + 1):
        level = number.bit_length() - 1
        name = _LEVELS[nodes][level]
        names[EdgeNodeId(f"n{number}")] = EdgeNodeId(name if level == 0 else f"{name}-{number - (1 << level) + 1}")
    return Tree({names[child]: names[parent] for child, parent in numbered.parents.items()}, names[numbered.root])


@dataclass(frozen=True, slots=True)
class TreeSettings:
    nodes: int = 7
    gateway: str | None = None
    gateway_token: Path | None = None
    application: Path | None = None
    """Statements that the root applies at its start."""
    streams: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Leaf → streams that enter there. Other leaves take `Readings`."""
    node: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Further settings of every node."""
    rules: Mapping[str, float] = field(default_factory=dict)


class EdgeTree:
    """Starts, kills, pauses and restarts the nodes, and talks to the root. Call `stop` in any case."""

    def __init__(self, settings: TreeSettings, folder: Path, logs: Path) -> None:
        self.tree = named_tree(settings.nodes)
        self.root = str(self.tree.root)
        self.names: list[str] = [str(node) for node in self.tree.nodes]
        self.leaves = [str(node) for node, children in self.tree.children.items() if not children]
        ports = dict(zip(self.names, free_ports(len(self.names)), strict=True))
        self.addresses = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        folder.mkdir(parents=True, exist_ok=True)
        self.token = secrets.token_urlsafe(24)
        write_secret(folder / "edge.token", self.token)
        self.children: dict[str, Child] = {}
        for name, port in ports.items():
            file = folder / f"{name}.toml"
            file.write_text(self._file(settings, name, port), encoding="utf-8")
            self.children[name] = Child(name, ["edge", str(file)], log=logs / f"{name}.log", restart=False)
        headers = {"Authorization": f"Bearer {self.token}"}
        self.http = httpx.AsyncClient(base_url=self.addresses[self.root], headers=headers, timeout=30.0)

    def _file(self, settings: TreeSettings, name: str, port: int) -> str:
        node: dict[str, Any] = {"name": name, "port": port, "data": f"data/{name}", "token_file": "edge.token"}
        parent = self.tree.parents.get(EdgeNodeId(name))
        if parent is not None:
            node |= {"parent": str(parent), "root": self.addresses[self.root]}
        elif settings.application is not None:
            node["application"] = str(settings.application.absolute())
        if name in self.leaves:
            node["streams"] = list(settings.streams.get(name, ("Readings",)))
        tables = [("node", node | dict(settings.node)), ("rules", dict(settings.rules))]
        if parent is None and settings.gateway is not None:
            token = {} if settings.gateway_token is None else {"token_file": str(settings.gateway_token.absolute())}
            tables.append(("sink", {"gateway": settings.gateway, **token}))
        return "\n".join(
            f"[{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
            for table, values in tables
        )

    def path_up(self, name: str) -> list[str]:
        """The addresses of a node and of its ancestors, for a publisher."""
        return [self.addresses[str(node)] for node in self.tree.path_up(EdgeNodeId(name))]

    def leaves_below(self, name: str) -> list[str]:
        return [leaf for leaf in self.leaves if self.tree.is_at_or_above(EdgeNodeId(name), EdgeNodeId(leaf))]

    # -- processes -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Return when all nodes run one generation."""
        await self.start_root()
        await self.start_others()

    async def start_root(self) -> None:
        """Return when the root shows the page of the tree."""
        self.children[self.root].start()
        await self.children[self.root].ready(_READY_S)

    async def start_others(self) -> None:
        for name, child in self.children.items():
            if name != self.root:
                child.start()
        await asyncio.gather(*(child.ready(_READY_S) for child in self.children.values()))
        await self.wait_until_alive(self.names)

    async def kill(self, name: str) -> None:
        """SIGKILL, as a power failure does to a process."""
        child = self.children[name]
        child.signal(signal.SIGKILL)
        while child.pid is not None:
            await asyncio.sleep(0.005)

    async def restart(self, name: str) -> None:
        self.children[name].start()
        await self.children[name].ready(_READY_S)

    def pause(self, name: str) -> None:
        self.children[name].signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.children[name].signal(signal.SIGCONT)

    async def stop(self) -> None:
        await self.http.aclose()
        await asyncio.gather(*(child.stop() for name, child in self.children.items() if name != self.root))
        await self.children[self.root].stop()

    def cpu_s(self) -> float:
        return sum(cpu_time_s(child.pid) for child in self.children.values() if child.pid is not None)

    # -- the root's interface ------------------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any] | None:
        """`GET /v1/edge`; None while the root does not answer."""
        try:
            answer = await self.http.get("/v1/edge", timeout=5.0)
        except httpx.TransportError:
            return None
        return dict(answer.json()) if answer.is_success else None

    async def handovers(self) -> list[dict[str, Any]]:
        """The latest hand-overs that all living nodes have given."""
        handovers: list[dict[str, Any]] = []
        for address in self.addresses.values():
            with contextlib.suppress(httpx.TransportError):
                handovers += (await self.http.get(f"{address}/v1/edge/handovers")).json()["handovers"]
        return handovers

    async def metrics(self, name: str) -> dict[str, float]:
        """The metrics without labels of a node."""
        text = (await self.http.get(f"{self.addresses[name]}/metrics")).raise_for_status().text
        lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
        return {words[0]: float(words[1]) for words in lines if len(words) == 2 and "{" not in words[0]}

    async def wait_until_alive(self, names: Sequence[str], limit_s: float = 60.0) -> dict[str, Any]:
        """Wait until these nodes run the present generation. Raises TimeoutError."""
        async with asyncio.timeout(limit_s):
            while True:
                status = await self.status()
                if status is not None and is_running(status, names):
                    return status
                await asyncio.sleep(0.05)

    async def apply(self, text: str) -> None:
        (await self.http.post("/v1/edge/statements", json={"text": text})).raise_for_status()

    async def move(self, operators: Sequence[str], destination: str) -> dict[str, Any]:
        answer = await self.http.post(
            "/v1/edge/transfers", json={"operators": list(operators), "destination": destination}
        )
        return {"status": answer.status_code, **(answer.json() if answer.content else {})}


def is_running(status: dict[str, Any], names: Sequence[str]) -> bool:
    """True if these nodes are alive and the present generation runs."""
    states = {node["name"]: node["state"] for node in status["nodes"]}
    return status.get("running", True) and all(states.get(name) == "alive" for name in names)


def operators_of(status: dict[str, Any], node: str) -> list[str]:
    """The operators at a node."""
    listed: list[Any] = next((entry["operators"] for entry in status["nodes"] if entry["name"] == node), [])
    return [operator if isinstance(operator, str) else operator["id"] for operator in listed]
