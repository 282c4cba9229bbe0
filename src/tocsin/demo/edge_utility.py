"""The utility of `tocsin edge-demo`: a subscriber to the results of the tree's queries and to alerts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

from tocsin.client import Subscriber, Subscription
from tocsin.demo.edge_gateway import RecordedResults
from tocsin.demo.edge_queries import AREAS
from tocsin.experiments.edge_rows import time_us

CHANNELS: Final = {"UserUse": "HighUse", AREAS: "NeighbourhoodsAbove", "DistrictUse": "DistrictsAbove"}
"""Query → the channel of examples/edge/utility.sql about its dataset."""
MEANS: Final = {"UserUse": 2.0, AREAS: 0.25, "DistrictUse": 0.25}
"""The filters of the queries in examples/edge/meters.sql: a channel with this parameter has all their results."""
ALERT_KWH: Final = 4.5
"""The mean above which the utility gets an alert about a user."""


class Utility:
    def __init__(self) -> None:
        self.received = RecordedResults()
        """Results by query, in the order of their arrival."""
        self.alerts: list[dict[str, Any]] = []
        self.delays_s: list[float] = []
        """Of each alert: from the end of the window to the alert's arrival."""
        self.errors: list[str] = []

    async def open(self, opened: AsyncExitStack, coordinator: str, token: str, window_s: Mapping[str, float]) -> None:
        subscriber = await opened.enter_async_context(Subscriber(coordinator, user="utility", token=token))
        for query, channel in CHANNELS.items():
            results = await subscriber.subscribe(channel, {"above": MEANS[query]})
            self._start(opened, self._receive(query, results))
        alerts = await subscriber.subscribe(CHANNELS["UserUse"], {"above": ALERT_KWH})
        self._start(opened, self._receive_alerts(alerts, window_s["UserUse"]))

    def _start(self, opened: AsyncExitStack, work: Any) -> None:
        task = asyncio.create_task(work)
        opened.callback(task.cancel)

    async def _receive(self, query: str, results: Subscription[Any]) -> None:
        try:
            async for result in results:
                self.received.rows.setdefault(query, []).append((time.time(), result.value))
        except Exception as error:
            self.errors.append(f"{query}: {error}")
            raise

    async def _receive_alerts(self, alerts: Subscription[Any], window_s: float) -> None:
        try:
            async for alert in alerts:
                self.alerts.append(alert.value)
                self.delays_s.append(time.time() - time_us(alert.value["since"]) / 1e6 - window_s)
        except Exception as error:
            self.errors.append(f"alerts: {error}")
            raise
