"""What the data cluster shows of itself, for the watch: records with a place, channels, how it is doing.

While somebody watches: asks for datasets, channels and state every few seconds, and keeps a tap open on each dataset
whose records can be drawn (`coordinator.drawing`). A data cluster that is away is a row that says so, and is tried
again; nothing here can fail the coordinator.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tocsin.coordinator.drawing import DatasetDrawing, channel_row
from tocsin.model.backoff import retry_delay_s
from tocsin.model.trace import Kind, TraceRow
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.coordinator.watch import CoordinatorWatch
from tocsin.runtime.http.credentials import Signer
from tocsin.runtime.http.event_streams import read_events
from tocsin.runtime.http.logs import logger

POLL_S = 2.0
DATASETS_S = 5.0
LINGER_S = 10.0
"""How long taps stay open after the last watcher left: a page that is loaded again finds them."""
_LOOK_S = 0.2
_TOKEN_S = 300.0
_SILENCE_S = 60.0
_AWAY = (httpx.HTTPError, OSError, ValueError, KeyError, TypeError)
"""Nobody there, or somebody who does not answer as a data cluster does."""


class ClusterTaps:
    def __init__(self, settings: CoordinatorSettings, signer: Signer, watch: CoordinatorWatch) -> None:
        self._settings = settings
        self._signer = signer
        self._watch = watch
        self._taps: dict[str, tuple[DatasetDrawing, asyncio.Task[None]]] = {}
        self._told: dict[str, TraceRow] = {}
        """Channels as last told, without their time."""
        self._accepted: tuple[float, float] | None = None
        """(when, records accepted by then)."""
        self._log = logger()

    async def run(self) -> None:
        """Until cancelled."""
        if self._settings.cluster is None:
            return
        while True:
            while not self._watch.is_wanted:
                await asyncio.sleep(_LOOK_S)
            try:
                async with self._client(self._settings.cluster) as client:
                    await self._show(client)
            except (*_AWAY, httpx.InvalidURL) as error:
                self._tell_away(f"the data cluster cannot be reached at all: {str(error)[:200]}")
                await asyncio.sleep(POLL_S)

    async def _show(self, client: httpx.AsyncClient) -> None:
        """Until nobody has watched for a while."""
        loops = [asyncio.create_task(self._poll(client)), asyncio.create_task(self._look(client))]
        try:
            watched_s = time.monotonic()
            while time.monotonic() - watched_s < LINGER_S:
                await asyncio.sleep(_LOOK_S)
                if self._watch.is_wanted:
                    watched_s = time.monotonic()
        finally:
            tasks = [*loops, *(task for _, task in self._taps.values())]
            self._taps.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def _client(self, cluster: str) -> AsyncIterator[httpx.AsyncClient]:
        ca = self._settings.cluster_ca
        verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=ca) if ca else True
        async with httpx.AsyncClient(base_url=cluster, timeout=httpx.Timeout(10.0), verify=verify) as client:
            yield client

    # -- state and channels --------------------------------------------------------------------------------------------

    async def _poll(self, client: httpx.AsyncClient) -> None:
        while True:
            try:
                await self._tell_state(client)
                await self._tell_channels(client)
            except _AWAY as error:
                self._tell_away(f"the data cluster does not answer: {type(error).__name__}")
            await asyncio.sleep(POLL_S)

    async def _tell_state(self, client: httpx.AsyncClient) -> None:
        said = await self._get(client, "/v1/status")
        now_s = self._watch.now_s()
        detail: dict[str, Any] = {
            "ready": bool(said["ready"]),
            "reasons": list(said["reasons"]),
            "spark": said["spark"],
        }
        before, self._accepted = self._accepted, (now_s, float(said["records"]))
        if before is not None and now_s > before[0]:
            # Fewer than before: it was started again, and counts from then.
            gained = self._accepted[1] - before[1] if self._accepted[1] >= before[1] else self._accepted[1]
            detail["records_per_s"] = round(gained / (now_s - before[0]), 2)
        self._watch.tell(TraceRow(now_s, Kind.CLUSTER, detail=detail))

    async def _tell_channels(self, client: httpx.AsyncClient) -> None:
        said = await self._get(client, "/v1/channels")
        now_s = self._watch.now_s()
        rows = {row.channel or "": row for row in (channel_row(one, 0.0) for one in said["channels"])}
        for name in self._told.keys() - rows.keys():
            self._watch.tell(TraceRow(now_s, Kind.CHANNEL, channel=name, detail={"state": "gone"}))
        for name, row in rows.items():
            if self._told.get(name) != row:
                self._watch.tell(msgspec.structs.replace(row, time_s=now_s))
        self._told = rows

    def _tell_away(self, reason: str) -> None:
        self._accepted = None
        detail = {"ready": False, "reasons": [reason], "spark": {}}
        self._watch.tell(TraceRow(self._watch.now_s(), Kind.CLUSTER, detail=detail))

    # -- taps ----------------------------------------------------------------------------------------------------------

    async def _look(self, client: httpx.AsyncClient) -> None:
        """Open taps of datasets that are new or were declared anew, close those of datasets that are gone."""
        while True:
            try:
                said = await self._get(client, "/v1/datasets")
                drawn = {one.dataset: one for one in map(DatasetDrawing.of, said["datasets"]) if one is not None}
            except _AWAY:
                await asyncio.sleep(POLL_S)
                continue
            for name, (known, task) in list(self._taps.items()):
                if drawn.get(name) != known:
                    task.cancel()
                    del self._taps[name]
            for name, one in drawn.items():
                if name not in self._taps:
                    self._taps[name] = one, asyncio.create_task(self._tap(client, one))
            await asyncio.sleep(DATASETS_S)

    async def _tap(self, client: httpx.AsyncClient, drawn: DatasetDrawing) -> None:
        failures = 0
        while True:
            try:
                async for event, data in self._events(client, drawn.dataset):
                    failures = 0
                    self._draw(drawn, event, msgspec.json.decode(data))
            except _AWAY as error:
                self._log.debug("a tap broke", dataset=drawn.dataset, reason=str(error)[:200])
            failures += 1
            await asyncio.sleep(retry_delay_s(failures))

    async def _events(self, client: httpx.AsyncClient, dataset: str) -> AsyncIterator[tuple[str, str]]:
        timeout = httpx.Timeout(10.0, read=_SILENCE_S)
        path = f"/v1/datasets/{dataset}/tap"
        async with client.stream("GET", path, headers=self._headers(), timeout=timeout) as answer:
            answer.raise_for_status()
            async for one in read_events(answer.aiter_bytes()):
                yield one

    def _draw(self, drawn: DatasetDrawing, event: str, records: list[dict[str, Any]]) -> None:
        """What a stream had before somebody looked is not happening now: it is not shown."""
        if event == "opening" and drawn.kind is Kind.EVENT:
            return
        if event == "opening" and drawn.kind is Kind.PLACE:
            self._watch.beyond.forget_places(drawn.dataset)
        now_s = self._watch.now_s()
        for record in records:
            row = drawn.row(record, now_s)
            if row is not None:
                self._watch.tell(row)

    # -- asking --------------------------------------------------------------------------------------------------------

    async def _get(self, client: httpx.AsyncClient, path: str) -> dict[str, Any]:
        answer = await client.get(path, headers=self._headers())
        answer.raise_for_status()
        said: dict[str, Any] = answer.json()
        return said

    def _headers(self) -> dict[str, str]:
        file = self._settings.cluster_token_file
        if file is not None:
            token = Path(file).read_text(encoding="utf-8").strip()
        else:
            token = self._signer.sign(
                "coordinator", ["read"], now_s=time.time(), identity=secrets.token_hex(8), lifetime_s=_TOKEN_S
            )
        return {"Authorization": f"Bearer {token}"}
