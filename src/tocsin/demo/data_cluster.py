"""The demo's requests to the data cluster besides publishing: application, warm-up, last executions, results."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import httpx
import numpy as np
import pyarrow as pa

from tocsin.client import Publisher
from tocsin.demo.account import Longs
from tocsin.demo.requests import request_when_ready
from tocsin.sim.city.subscriptions import CHANNELS
from tocsin.wire.errors import Code, TocsinError

_ARROW: Final = "application/vnd.apache.arrow.stream"
_WARM_UP: Final = "warm-up"


class DemoCluster:
    def __init__(self, client: httpx.AsyncClient, channels: Collection[str], warm_ups: int) -> None:
        """`warm_ups` is the number of executions with results per channel before the day."""
        self._client = client
        self._channels = channels
        self._warm_ups = warm_ups

    async def apply(self, text: str, folder: str) -> int:
        """Apply an application file and return the number of changes."""
        answer = await self._request("POST", "/v1/applications", json={"text": text, "folder": folder})
        return len(answer.json()["changes"])

    async def warm_up(self, publisher: Publisher, lat: float, lon: float, now: str) -> int:
        """Run every channel a few times for a temporary subscription, and return the number of reports published.

        The first execution of a plan in a new JVM takes seconds. Without the warm-up, the first subscribers would
        measure Spark's start. No other subscription exists yet, so no person receives these reports.
        """
        values = {"kind": "fire", "user": _WARM_UP, "lat": lat, "lon": lon, "radius_m": 1_000.0}
        names = {"kind": ("kind",), "user": ("user",), "place": ("lat", "lon", "radius_m"), "near": ("radius_m",)}
        await publisher.publish("UserLocations", [{"user_id": _WARM_UP, "lat": lat, "lon": lon, "at": now}])
        await self.settled("UserLocations", 1)
        subscribed: dict[str, list[str]] = {}
        for channel in self._channels:
            chosen = {name: values[name] for parameter in CHANNELS[channel][0] for name in names[parameter]}
            body = {"channel": channel, "parameters": chosen, "broker": _WARM_UP}
            answer = await self._request("POST", "/v1/subscriptions", json=body)
            subscribed[channel] = [subscription["id"] for subscription in answer.json()]
        report = {"kind": "fire", "severity": 5, "lat": lat, "lon": lon, "message": "", "reported_at": now}
        sent = await self._publish_until_warm(publisher, report)
        for channel, subscriptions in subscribed.items():
            released = {"channel": channel, "subscriptions": subscriptions, "broker": _WARM_UP}
            await self._request("POST", "/v1/subscriptions/delete", json=released)
        return sent

    async def _publish_until_warm(self, publisher: Publisher, report: dict[str, Any]) -> int:
        """Publish reports until each channel has had results, and return how many were needed.

        At the end no report is NEW to any channel, so that the first subscribers do not get one.
        """
        for sent in itertools.count(1):
            await publisher.publish("EmergencyReports", [{"report_id": f"{_WARM_UP}-{sent}", **report}])
            await self.settled("EmergencyReports", sent)
            await self.execute(self._channels)
            if all(channel["executions"] - channel["empty"] >= self._warm_ups for channel in await self.channels()):
                return sent
        raise AssertionError("unreachable: count() is infinite")

    async def settled(self, dataset: str, rows: int, limit_s: float = 300.0) -> None:
        """Wait until the dataset has `rows` rows and no backlog. Raises `TocsinError` if that takes longer."""
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    state = (await self._request("GET", f"/v1/datasets/{dataset}")).json()
                    if state["rows"] >= rows and not state["backlog_bytes"]:
                        return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            reason = f"Spark did not store the records of {dataset} within {limit_s:g} s: this machine is too busy"
            raise TocsinError(Code.NOT_READY, reason) from None

    async def execute(self, channels: Iterable[str]) -> None:
        """Run each channel once, without waiting for its period."""
        for channel in channels:
            await self._request("POST", f"/v1/channels/{channel}/execute")

    async def channels(self) -> list[dict[str, Any]]:
        channels: list[dict[str, Any]] = (await self._request("GET", "/v1/channels")).json()["channels"]
        return channels

    async def stored(self, by_channel: Mapping[str, Iterable[str]]) -> dict[str, Longs]:
        """Return, per subscription, the sorted offsets after its stored results. `by_channel` names subscriptions."""
        offsets: dict[str, Longs] = {}
        for channel, subscriptions in by_channel.items():
            body = {"channel": channel, "subscriptions": dict.fromkeys(subscriptions)}
            answer = await self._request("POST", "/v1/results", json=body, headers={"Accept": _ARROW})
            offsets |= await asyncio.to_thread(_offsets, answer.content)
        return offsets

    async def stored_of(self, channel: str, subscription: str) -> Longs:
        """Return the sorted offsets after the stored results of one subscription."""
        offsets = await self.stored({channel: [subscription]})
        return offsets.get(subscription, np.empty(0, np.int64))

    async def _request(self, method: str, path: str, **request: Any) -> httpx.Response:
        return await request_when_ready(self._client, method, path, **request)


def _offsets(stream: bytes) -> dict[str, Longs]:
    with pa.ipc.open_stream(stream) as reader:
        pieces = [pa.table({"s": batch.column(0), "c": batch.column(1)}) for batch in reader]
    if not pieces:
        return {}
    table = pa.concat_tables(pieces)
    offsets = np.array([int(text.partition("-")[2]) for text in table["c"].to_pylist()], np.int64)
    names = table["s"].combine_chunks().dictionary_encode()
    numbers = names.indices.to_numpy(zero_copy_only=False)
    return {name: np.sort(offsets[numbers == place]) for place, name in enumerate(names.dictionary.to_pylist())}
