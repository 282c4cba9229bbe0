"""Nodes of an edge tree on this machine: one supervised process each, from one TOML file each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from tocsin.runtime.http.settings import invalid
from tocsin.runtime.stack.supervisor import Child

_START_S = 60.0


class EdgeNodes:
    def __init__(self, files: Iterable[tuple[str, Path]], logs: Path | None = None) -> None:
        """`files`: the name and the file of each node. `logs`: a folder for their log files."""
        self.children: dict[str, Child] = {}
        for name, file in files:
            if name in self.children:
                raise invalid(f"two files describe the node {name}")
            log = None if logs is None else logs / f"{name}.log"
            self.children[name] = Child(name, ["edge", str(file)], log=log)

    async def start(self) -> None:
        """Return when all processes are up. Call `stop` even if this raises."""
        for child in self.children.values():
            child.start()
        await asyncio.gather(*(child.ready(_START_S) for child in self.children.values()))

    async def stop(self) -> None:
        await asyncio.gather(*(child.stop() for child in self.children.values()))

    def addresses(self) -> dict[str, str]:
        return {name: str(child.announcement["address"]) for name, child in self.children.items()}
