"""Wakes the clients that wait for a change of the topics or of their homes."""

from __future__ import annotations

import asyncio
import secrets

from tocsin.coordinator.core import Coordinator


class TopicChanges:
    def __init__(self) -> None:
        self.revision = ""
        """Names the present content. No other process of the coordinator, and no other core, uses the same name:
        clients keep theirs over a restart, and must not wait because the new process has counted as far."""
        self._core: Coordinator | None = None
        self._core_name = ""
        self._changed = asyncio.Event()

    def handled(self, core: Coordinator | None) -> None:
        """Call it after the changes of a batch of events are stored."""
        if core is None:
            return
        if core is not self._core:
            self._core = core
            self._core_name = secrets.token_hex(8)
        revision = self._name(core)
        if revision != self.revision:
            self.revision = revision
            self._changed.set()
            self._changed = asyncio.Event()

    def is_behind(self, core: Coordinator) -> bool:
        """True while changes of the core are being stored: `revision` does not name them yet."""
        return core is not self._core or self.revision != self._name(core)

    def _name(self, core: Coordinator) -> str:
        return f"{self._core_name}.{core.registry.topics.revision}"

    async def wait(self, limit_s: float) -> bool:
        """Return True at the next change, False after `limit_s` seconds."""
        try:
            async with asyncio.timeout(limit_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True
