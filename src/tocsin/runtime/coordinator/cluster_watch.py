"""Trace rows about the data cluster for the live watch: its state, its channels, and records that have a position.

While the coordinator is watched, this part polls datasets, channels and state every few seconds. It keeps a tap open on
each dataset whose records can be drawn (`coordinator.drawing`). A data cluster that does not answer becomes a row with
the reason, and is tried again. No failure here affects the coordinator.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec

from tocsin.coordinator.drawing import DatasetDrawing, channel_row
from tocsin.model.backoff import retry_delay_s
from tocsin.model.trace import Kind, TraceRow
from tocsin.runtime.coordinator.cluster import cluster_client, cluster_headers
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.coordinator.watch import CoordinatorWatch
from tocsin.runtime.http.credentials import Signer
from tocsin.runtime.http.event_streams import read_events
from tocsin.runtime.http.logs import logger

POLL_S = 2.0
"""Pause between two requests for state and channels."""
DATASETS_S = 5.0
"""Pause between two requests for the list of datasets."""
LINGER_S = 10.0
"""How long taps stay open after the last watcher left, so that a page that is loaded again finds them open."""
_CHECK_S = 0.2
"""Pause between two checks whether the coordinator is watched."""
_TIMEOUT_S = 10.0
_SILENCE_S = 60.0
"""A tap that sends nothing for this long is opened again."""
_ERRORS = (httpx.HTTPError, OSError, ValueError, KeyError, TypeError)
"""The data cluster does not answer, or its answer has another form than expected."""


class ClusterWatch:
    def __init__(self, settings: CoordinatorSettings, signer: Signer, watch: CoordinatorWatch) -> None:
        self._settings = settings
        self._signer = signer
        self._watch = watch
        self._task: asyncio.Task[None] | None = None
        self._taps: dict[str, tuple[DatasetDrawing, asyncio.Task[None]]] = {}
        self._channels: dict[str, TraceRow] = {}
        """The last row of each channel, without its time."""
        self._accepted: tuple[float, float] | None = None
        """(time, total of accepted records at that time)."""
        self._log = logger()

    def start(self) -> None:
        if self._settings.cluster is not None:
            self._task = asyncio.create_task(self._run(self._settings.cluster))

    async def stop(self) -> None:
        """Close the taps and stop polling. May be called twice."""
        if self._task is not None:
            await _cancel([self._task])

    async def _run(self, address: str) -> None:
        while True:
            while not self._watch.is_watched:
                await asyncio.sleep(_CHECK_S)
            try:
                async with cluster_client(self._settings, address, _TIMEOUT_S) as client:
                    await self._run_while_watched(client)
            except (*_ERRORS, httpx.InvalidURL) as error:
                self._add_failure(f"the data cluster cannot be reached: {str(error)[:200]}")
                await asyncio.sleep(POLL_S)

    async def _run_while_watched(self, client: httpx.AsyncClient) -> None:
        loops = [asyncio.create_task(self._poll(client)), asyncio.create_task(self._update_taps(client))]
        try:
            watched_s = time.monotonic()
            while time.monotonic() - watched_s < LINGER_S:
                await asyncio.sleep(_CHECK_S)
                if self._watch.is_watched:
                    watched_s = time.monotonic()
        finally:
            tasks = [*loops, *(task for _, task in self._taps.values())]
            self._taps.clear()
            await _cancel(tasks)

    # -- state and channels --------------------------------------------------------------------------------------------

    async def _poll(self, client: httpx.AsyncClient) -> None:
        while True:
            try:
                await self._add_state(client)
                await self._add_channels(client)
            except _ERRORS as error:
                self._add_failure(f"the data cluster does not answer: {type(error).__name__}")
            await asyncio.sleep(POLL_S)

    async def _add_state(self, client: httpx.AsyncClient) -> None:
        status = await self._get(client, "/v1/status")
        now_s = self._watch.now_s()
        detail: dict[str, Any] = {
            "ready": bool(status["ready"]),
            "reasons": list(status["reasons"]),
            "spark": status["spark"],
        }
        before, self._accepted = self._accepted, (now_s, float(status["records"]))
        if before is not None and now_s > before[0]:
            # A smaller total than before: the data cluster was restarted and counts from zero.
            gained = self._accepted[1] - before[1] if self._accepted[1] >= before[1] else self._accepted[1]
            detail["records_per_s"] = round(gained / (now_s - before[0]), 2)
        self._watch.add(TraceRow(now_s, Kind.CLUSTER, detail=detail))

    async def _add_channels(self, client: httpx.AsyncClient) -> None:
        """Add a row for each channel that was created, changed or dropped since the last poll."""
        answer = await self._get(client, "/v1/channels")
        now_s = self._watch.now_s()
        rows = {row.channel or "": row for row in (channel_row(channel, 0.0) for channel in answer["channels"])}
        for name in self._channels.keys() - rows.keys():
            self._watch.add(TraceRow(now_s, Kind.CHANNEL, channel=name, detail={"state": "gone"}))
        for name, row in rows.items():
            if self._channels.get(name) != row:
                self._watch.add(msgspec.structs.replace(row, time_s=now_s))
        self._channels = rows

    def _add_failure(self, reason: str) -> None:
        self._accepted = None
        detail = {"ready": False, "reasons": [reason], "spark": {}}
        self._watch.add(TraceRow(self._watch.now_s(), Kind.CLUSTER, detail=detail))

    # -- taps ----------------------------------------------------------------------------------------------------------

    async def _update_taps(self, client: httpx.AsyncClient) -> None:
        """Open taps of datasets that are new or were declared again; close taps of datasets that were dropped."""
        while True:
            try:
                answer = await self._get(client, "/v1/datasets")
                drawings = [DatasetDrawing.of(description) for description in answer["datasets"]]
            except _ERRORS:
                await asyncio.sleep(POLL_S)
                continue
            by_name = {drawing.dataset: drawing for drawing in drawings if drawing is not None}
            for name, (drawing, task) in list(self._taps.items()):
                if by_name.get(name) != drawing:
                    task.cancel()
                    del self._taps[name]
            for name, drawing in by_name.items():
                if name not in self._taps:
                    self._taps[name] = drawing, asyncio.create_task(self._tap(client, drawing))
            await asyncio.sleep(DATASETS_S)

    async def _tap(self, client: httpx.AsyncClient, drawing: DatasetDrawing) -> None:
        failures = 0
        while True:
            try:
                async for event, data in self._tap_events(client, drawing.dataset):
                    failures = 0
                    self._add_records(drawing, event, msgspec.json.decode(data))
            except _ERRORS as error:
                self._log.debug("a tap failed", dataset=drawing.dataset, reason=str(error)[:200])
            failures += 1
            await asyncio.sleep(retry_delay_s(failures))

    async def _tap_events(self, client: httpx.AsyncClient, dataset: str) -> AsyncIterator[tuple[str, str]]:
        timeout = httpx.Timeout(_TIMEOUT_S, read=_SILENCE_S)
        path = f"/v1/datasets/{dataset}/tap"
        async with client.stream("GET", path, headers=self._headers(), timeout=timeout) as answer:
            answer.raise_for_status()
            async for event in read_events(answer.aiter_bytes()):
                yield event

    def _add_records(self, drawing: DatasetDrawing, event: str, records: list[dict[str, Any]]) -> None:
        """Add rows for records. Records that a stream had before the tap opened are old and are not shown."""
        if event == "opening" and drawing.kind is Kind.EVENT:
            return
        if event == "opening" and drawing.kind is Kind.PLACE:
            self._watch.outside.forget_places(drawing.dataset)
        now_s = self._watch.now_s()
        for record in records:
            row = drawing.row(record, now_s)
            if row is not None:
                self._watch.add(row)

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _get(self, client: httpx.AsyncClient, path: str) -> dict[str, Any]:
        answer = await client.get(path, headers=self._headers())
        answer.raise_for_status()
        content: dict[str, Any] = answer.json()
        return content

    def _headers(self) -> dict[str, str]:
        return cluster_headers(self._settings, self._signer, "read")


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
