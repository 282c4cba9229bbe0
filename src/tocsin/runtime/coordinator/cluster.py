"""The coordinator as a client of the data cluster: tokens, its state, and the release of forgotten brokers.

A broker that the coordinator has forgotten no longer releases its subscriptions at the data cluster, so the coordinator
does. It retries until the data cluster answers, and stops if the broker comes back. Without the address of a data
cluster, the coordinator only forgets the broker.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from tocsin.coordinator.events import BrokerReleased
from tocsin.leaders.clients import leading_client
from tocsin.model.backoff import retry_delay_s
from tocsin.model.ids import BrokerId
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.http.credentials import Signer
from tocsin.runtime.http.logs import logger
from tocsin.wire import cluster as wire
from tocsin.wire.errors import Code, TocsinError

_PAGE = 10_000
"""The most subscriptions in one request."""
_TIMEOUT_S = 60.0
_TOKEN_S = 300.0
_DATASET_S = 10.0
"""The longest wait for the definition of a dataset."""
_STATE_S = 3.0
"""The longest wait for the state of the data cluster: an overview must not wait for a process that is down."""


def cluster_client(settings: CoordinatorSettings, address: str, timeout_s: float) -> httpx.AsyncClient:
    ca = settings.cluster_ca
    # Plain http needs no certificates, and loading them takes some hundredths of a second.
    verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=ca) if ca else address.startswith("https")
    return leading_client(address, timeout=timeout_s, verify=verify)


def cluster_headers(settings: CoordinatorSettings, signer: Signer, scope: str) -> dict[str, str]:
    """HTTP headers with the token of `cluster_token_file`, or with a token that the coordinator signs for `scope`."""
    if settings.cluster_token_file is not None:
        token = Path(settings.cluster_token_file).read_text(encoding="utf-8").strip()
    else:
        identity = secrets.token_hex(8)
        token = signer.sign("coordinator", [scope], now_s=time.time(), identity=identity, lifetime_s=_TOKEN_S)
    return {"Authorization": f"Bearer {token}"}


async def cluster_state(settings: CoordinatorSettings, signer: Signer) -> dict[str, Any] | None:
    """Whether the data cluster is ready, the reasons if not, and its late channels; None without a data cluster.

    A data cluster that does not answer within `_STATE_S` is not ready.
    """
    if settings.cluster is None:
        return None
    try:
        async with cluster_client(settings, settings.cluster, _STATE_S) as client:
            answer = await client.get("/v1/status", headers=cluster_headers(settings, signer, "read"))
            body = answer.json()
            if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                return {"ready": False, "reasons": [str(body["error"]["message"])], "late": []}
            answer.raise_for_status()
            return {name: body[name] for name in ("ready", "reasons", "late")}
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, KeyError, TypeError) as error:
        reason = f"the data cluster does not answer ({type(error).__name__})"
        return {"ready": False, "reasons": [reason], "late": []}


async def recording_problem(settings: CoordinatorSettings, signer: Signer, dataset: str) -> TocsinError | None:
    """Why no topic can be recorded into this dataset; None if one can, or if the coordinator has no data cluster."""
    if settings.cluster is None:
        return None
    try:
        async with cluster_client(settings, settings.cluster, _DATASET_S) as client:
            path = f"/v1/datasets/{quote(dataset, safe='')}"
            answer = await client.get(path, headers=cluster_headers(settings, signer, "read"))
            if answer.status_code == httpx.codes.NOT_FOUND:
                return TocsinError(Code.UNKNOWN_DATASET, f"there is no dataset {dataset}: create it before the topic")
            answer.raise_for_status()
            is_static = answer.json()["kind"] == "STATIC"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, KeyError, TypeError) as error:
        reason = f"the data cluster does not tell whether there is a dataset {dataset} ({type(error).__name__})"
        return TocsinError(Code.NOT_READY, f"{reason}; try again when it answers", retry_after_s=1)
    if is_static:
        return TocsinError(Code.NOT_A_FEED_TARGET, f"{dataset} is STATIC: it is loaded from a file")
    return None


class ClusterReleases:
    def __init__(self, settings: CoordinatorSettings, signer: Signer) -> None:
        self._settings = settings
        self._signer = signer
        self._tasks: dict[BrokerId, asyncio.Task[None]] = {}
        self._log = logger()
        self.done: Callable[[BrokerReleased], None] = lambda event: None
        """Called when a broker's subscriptions are released."""

    def release(self, broker: BrokerId) -> None:
        """Start to release all subscriptions of a broker."""
        if broker not in self._tasks or self._tasks[broker].done():
            self._tasks[broker] = asyncio.create_task(self._release(broker))

    def keep(self, broker: BrokerId) -> None:
        """Cancel the release: the broker is back, and subscriptions under its name are in use."""
        task = self._tasks.pop(broker, None)
        if task is not None and task.cancel():
            self._log.info("release at the data cluster cancelled: the broker is back", broker=broker)

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _release(self, broker: BrokerId) -> None:
        failures = 0
        while self._settings.cluster is not None:
            try:
                released = await self._release_all(self._settings.cluster, broker)
                self._log.info("subscriptions released at the data cluster", broker=broker, subscriptions=released)
                break
            except (httpx.HTTPError, OSError, ValueError) as error:
                failures += 1
                self._log.warning(
                    "release at the data cluster failed; retrying", broker=broker, reason=str(error)[:200]
                )
                await asyncio.sleep(retry_delay_s(failures))
        self.done(BrokerReleased(broker))

    async def _release_all(self, address: str, broker: BrokerId) -> int:
        """Release page by page; return the number of subscriptions."""
        headers = cluster_headers(self._settings, self._signer, "broker:*")
        released = 0
        async with cluster_client(self._settings, address, _TIMEOUT_S) as client:
            while page := await _first_page(client, headers, broker):
                for channel, subscriptions in page.items():
                    request = wire.ReleaseRequest(channel, subscriptions, broker, unless_listening=True)
                    answer = await client.post(wire.RELEASES, content=wire.encode(request), headers=headers)
                    answer.raise_for_status()
                    released += wire.decode_released(answer.content).released
        return released


async def _first_page(client: httpx.AsyncClient, headers: dict[str, str], broker: BrokerId) -> dict[str, list[str]]:
    """The first subscriptions that the broker still holds, by channel."""
    answer = await client.get(wire.SUBSCRIPTIONS, params=wire.page_query(broker, _PAGE), headers=headers)
    answer.raise_for_status()
    page: dict[str, list[str]] = {}
    for subscription in wire.decode_page(answer.content).subscriptions:
        page.setdefault(subscription.channel, []).append(subscription.id)
    return page
