"""A probe that acts as one more broker of a running network: it holds subscriptions, hears announcements and pulls.

Brokers do not report when a pull ends. The probe sends the same requests at the same moments and notes the time. Its
requests are additional load, so the network with a probe is a little slower than without.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

PROBE = "pull-probe"


@dataclass(frozen=True, slots=True)
class Pull:
    """One execution that the probe pulled."""

    execution: int
    pulled_s: float
    """When the probe had the results, by the wall clock."""


@dataclass(slots=True)
class PullProbe:
    """`run` is a task that ends only by cancellation."""

    cluster_url: str
    client: httpx.AsyncClient
    """With the administrator's token."""
    wanted: dict[str, list[dict[str, Any]]]
    """The sets of parameter values to subscribe to, by channel."""
    pulls: dict[str, list[Pull]] = field(default_factory=dict)
    """By channel, in order."""

    async def run(self) -> None:
        from websockets.asyncio.client import connect

        from tocsin.wire import cluster as wire

        cursors = {channel: await self._subscribe(channel, sets) for channel, sets in self.wanted.items()}
        headers = {"Authorization": self.client.headers["Authorization"]}
        url = self.cluster_url.replace("http", "ws", 1) + wire.announcements_path(PROBE, None)
        async with connect(url, additional_headers=headers, max_size=64 << 20, compression=None) as socket:
            async for text in socket:
                message = wire.decode_announced(text)
                if isinstance(message, wire.Execution) and message.channel in cursors:
                    await self._pull(message, cursors[message.channel])

    async def _subscribe(self, channel: str, sets: Sequence[dict[str, Any]]) -> dict[str, str]:
        """Return the cursor of each subscription."""
        body = {"channel": channel, "parameters": sets, "broker": PROBE}
        granted = (await self.client.post("/v1/subscriptions", json=body)).raise_for_status().json()
        return {subscription["id"]: subscription["cursor"] for subscription in granted}

    async def _pull(self, execution: Any, cursors: dict[str, str]) -> None:
        from tocsin.wire import cluster as wire

        ids = [news.id for news in execution.subscriptions if news.id in cursors]
        body = {"channel": execution.channel, "subscriptions": {identity: cursors[identity] for identity in ids}}
        answer = (await self.client.post(wire.RESULTS, json=body)).raise_for_status()
        self.pulls.setdefault(execution.channel, []).append(Pull(execution.execution, time.time()))
        cursors |= dict.fromkeys(ids, answer.headers[wire.CURSOR_HEADER])
