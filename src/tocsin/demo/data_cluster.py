"""What the demo asks of the data cluster besides publishing: application, warm-up, last executions, results."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Final

import httpx
import numpy as np
import pyarrow as pa

from tocsin.client import Publisher
from tocsin.demo.account import Longs
from tocsin.sim.city.subscriptions import CHANNELS

_ARROW: Final = "application/vnd.apache.arrow.stream"
_WARM_UP: Final = "warm-up"
_WARM_UPS: Final = 2
"""Executions with results: the first compiles a channel's plan, the next shows that it is compiled."""


class DemoCluster:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def apply(self, text: str, folder: str) -> int:
        """How many definitions were made."""
        answer = await self._asked("POST", "/v1/applications", json={"text": text, "folder": folder})
        return len(answer.json()["changes"])

    async def warm_up(self, publisher: Publisher, lat: float, lon: float, now: str) -> int:
        """Every channel runs a few times before the city wakes, for a subscription that is let go afterwards.

        The first execution of a plan in a new JVM takes seconds; without this the first people to subscribe would
        measure Spark's start and not its work. Nobody else is subscribed, so nobody sees these reports. Returns
        how many there were.
        """
        values = {"kind": "fire", "user": _WARM_UP, "lat": lat, "lon": lon, "radius_m": 1_000.0}
        names = {"kind": ("kind",), "user": ("user",), "place": ("lat", "lon", "radius_m"), "near": ("radius_m",)}
        await publisher.publish("UserLocations", [{"user_id": _WARM_UP, "lat": lat, "lon": lon, "at": now}])
        held: dict[str, list[str]] = {}
        for channel, (parameters, _) in CHANNELS.items():
            chosen = {name: values[name] for parameter in parameters for name in names[parameter]}
            wanted = {"channel": channel, "parameters": chosen, "broker": _WARM_UP}
            held[channel] = [one["id"] for one in (await self._asked("POST", "/v1/subscriptions", json=wanted)).json()]
        sent = await self._until_warm(publisher, {"kind": "fire", "severity": 5, "lat": lat, "lon": lon,
                                                  "message": "", "reported_at": now})  # fmt: skip
        for channel, subscriptions in held.items():
            unwanted = {"channel": channel, "subscriptions": subscriptions, "broker": _WARM_UP}
            await self._asked("POST", "/v1/subscriptions/delete", json=unwanted)
        return sent

    async def _until_warm(self, publisher: Publisher, report: dict[str, Any]) -> int:
        """A report now and then until each channel has had results from some; how many it took."""
        for sent in itertools.count(1):
            await publisher.publish("EmergencyReports", [{"report_id": f"{_WARM_UP}-{sent}", **report}])
            await asyncio.sleep(0.5)
            held = [one for one in await self.channels() if one["name"] in CHANNELS]
            if all(one["executions"] - one["empty"] >= _WARM_UPS for one in held):
                await self.settled("EmergencyReports", sent)
                await self.execute(CHANNELS)  # the last of these reports must not meet the first people
                return sent
        raise AssertionError("counting does not end")

    async def settled(self, dataset: str, rows: int, limit_s: float = 300.0) -> None:
        """Until everything that was acknowledged can be matched."""
        async with asyncio.timeout(limit_s):
            while True:
                said = (await self._asked("GET", f"/v1/datasets/{dataset}")).json()
                if said["rows"] >= rows and not said["backlog_bytes"]:
                    return
                await asyncio.sleep(0.1)

    async def execute(self, channels: Iterable[str]) -> None:
        """Each once more, instead of waiting for its next tick."""
        for channel in channels:
            await self._asked("POST", f"/v1/channels/{channel}/execute")

    async def channels(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._asked("GET", "/v1/channels")).json()["channels"]
        return found

    async def stored(self, wanted: Mapping[str, Iterable[str]]) -> dict[str, Longs]:
        """Of each subscription (`wanted`: by channel), the sorted offsets after its stored results."""
        found: dict[str, Longs] = {}
        for channel, subscriptions in wanted.items():
            body = {"channel": channel, "subscriptions": dict.fromkeys(subscriptions)}
            answer = await self._asked("POST", "/v1/results", json=body, headers={"Accept": _ARROW})
            table = await asyncio.to_thread(_positions, answer.content)
            found |= table
        return found

    async def _asked(self, method: str, path: str, **request: Any) -> httpx.Response:
        answer = await self._client.request(method, path, **request)
        answer.raise_for_status()
        return answer


def _positions(stream: bytes) -> dict[str, Longs]:
    with pa.ipc.open_stream(stream) as reader:
        pieces = [pa.table({"s": batch.column(0), "c": batch.column(1)}) for batch in reader]
    if not pieces:
        return {}
    table = pa.concat_tables(pieces)
    offsets = np.array([int(text.partition("-")[2]) for text in table["c"].to_pylist()], np.int64)
    names = table["s"].combine_chunks().dictionary_encode()
    numbers = names.indices.to_numpy(zero_copy_only=False)
    return {name: np.sort(offsets[numbers == place]) for place, name in enumerate(names.dictionary.to_pylist())}
