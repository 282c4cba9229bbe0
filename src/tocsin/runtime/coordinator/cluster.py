"""Letting go, at the data cluster, of what a forgotten broker holds there: nobody would ever do it otherwise.

Tried until it works: a data cluster that is away now will be back. If the broker is back first, no further request is
made. Without an address nothing can be done, and the broker is forgotten here alone.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from tocsin.coordinator.events import BrokerReleased
from tocsin.model.backoff import retry_delay_s
from tocsin.model.ids import BrokerId
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.http.credentials import Signer
from tocsin.runtime.http.logs import logger
from tocsin.wire import cluster as wire

_PAGE = 10_000
_TOKEN_S = 300.0


class ClusterReleases:
    def __init__(self, settings: CoordinatorSettings, signer: Signer) -> None:
        self._settings = settings
        self._signer = signer
        self._tasks: dict[BrokerId, asyncio.Task[None]] = {}
        self._log = logger()
        self.done: Callable[[BrokerReleased], None] = lambda event: None

    def release(self, broker: BrokerId) -> None:
        if broker not in self._tasks or self._tasks[broker].done():
            self._tasks[broker] = asyncio.create_task(self._until_released(broker))

    def keep(self, broker: BrokerId) -> None:
        """It is back, and asks for what it serves: what is found under its name from now on is its own."""
        task = self._tasks.pop(broker, None)
        if task is not None and task.cancel():
            self._log.info("no longer let go at the data cluster: the broker is back", broker=broker)

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _until_released(self, broker: BrokerId) -> None:
        failures = 0
        while self._settings.cluster is not None:
            try:
                released = await self._release(self._settings.cluster, broker)
                self._log.info("let go at the data cluster", broker=broker, subscriptions=released)
                break
            except (httpx.HTTPError, OSError, ValueError) as error:
                failures += 1
                self._log.warning("cannot let go at the data cluster yet", broker=broker, reason=str(error)[:200])
                await asyncio.sleep(retry_delay_s(failures))
        self.done(BrokerReleased(broker))

    async def _release(self, cluster: str, broker: BrokerId) -> int:
        ca = self._settings.cluster_ca
        verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=ca) if ca else True
        headers = {"Authorization": f"Bearer {self._token()}"}
        released = 0
        async with httpx.AsyncClient(base_url=cluster, headers=headers, timeout=60, verify=verify) as client:
            while held := await self._page(client, broker):
                for channel, subscriptions in held.items():
                    body = wire.ReleaseRequest(channel, subscriptions, broker, unless_listening=True)
                    let_go = await client.post(wire.RELEASES, content=wire.encode(body))
                    let_go.raise_for_status()
                    released += wire.decode_released(let_go.content).released
        return released

    async def _page(self, client: httpx.AsyncClient, broker: BrokerId) -> dict[str, list[str]]:
        """The first of those it still holds, by channel."""
        answer = await client.get(wire.SUBSCRIPTIONS, params=wire.page_query(broker, _PAGE))
        answer.raise_for_status()
        held: dict[str, list[str]] = {}
        for subscription in wire.decode_page(answer.content).subscriptions:
            held.setdefault(subscription.channel, []).append(subscription.id)
        return held

    def _token(self) -> str:
        file = self._settings.cluster_token_file
        if file is not None:
            return Path(file).read_text(encoding="utf-8").strip()
        return self._signer.sign(
            "coordinator", ["broker:*"], now_s=time.time(), identity=secrets.token_hex(8), lifetime_s=_TOKEN_S
        )
