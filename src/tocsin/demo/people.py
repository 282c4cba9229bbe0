"""The demo's subscribers: each has an SDK object and a WebSocket, and records the results it receives."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from tocsin.client import ClientError, Gap, Patience, Result, Subscriber
from tocsin.demo.account import DemoAccount
from tocsin.sim.city.crowd import CityPerson

_PATIENCE = Patience(open_s=10.0, longest_s=5.0)
At = Callable[[float], Awaitable[None]]
"""Waits until a moment of the city's time, in seconds."""


class _ReportResult(msgspec.Struct):
    """The part of a result that the account needs."""

    report_id: str


class DemoPeople:
    def __init__(
        self,
        coordinator: str,
        token: str,
        account: DemoAccount,
        people: Sequence[CityPerson],
        at: At,
        where: Callable[[int], tuple[float, float]],
        report_progress: Callable[[str], None],
    ) -> None:
        self._coordinator = coordinator
        self._token = token
        self._account = account
        self._people = people
        self._at = at
        self._where = where
        self._report_progress = report_progress
        self._subscribers: list[Subscriber] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()
        self.logged_in = 0
        self.errors: set[str] = set()

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run(number, person)) for number, person in enumerate(self._people)]

    async def stop(self) -> None:
        """Log all people out."""
        self._over.set()
        _, late = await asyncio.wait(self._tasks, timeout=15.0)
        for task in late:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def hand_overs(self) -> int:
        """Number of sessions that opened at another broker than the previous session of the same person."""
        histories = (subscriber.brokers_seen for subscriber in self._subscribers)
        return sum(source != target for brokers in histories for source, target in itertools.pairwise(brokers))

    async def _run(self, number: int, person: CityPerson) -> None:
        await self._at(person.login_s)
        lat, lon = self._where(number)
        try:
            async with Subscriber(
                self._coordinator, user=person.name, token=self._token, lat=lat, lon=lon, patience=_PATIENCE
            ) as subscriber:
                self._subscribers.append(subscriber)
                await subscriber.connected()
                self.logged_in += 1
                receiving = asyncio.create_task(self._receive(person.name, subscriber))
                try:
                    await self._subscribe(person, subscriber)
                    over = asyncio.create_task(self._over.wait())
                    await asyncio.wait((receiving, over), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if receiving.done() and not receiving.cancelled():
                        receiving.result()  # ends only by an error: raise it
                    receiving.cancel()
        except Exception as error:  # every error that ends a subscriber is reported, also a bug of the client
            problem = f"{type(error).__name__}: {error.message if isinstance(error, ClientError) else error!r}"
            if problem not in self.errors:
                self._report_progress(f"{person.name} ended with an error: {problem}")
            self.errors.add(problem)

    async def _subscribe(self, person: CityPerson, subscriber: Subscriber) -> None:
        for when_s, request in person.subscriptions:
            await self._at(when_s)
            parameters = dict(request.parameters)
            granted = await subscriber.subscribe(request.channel, parameters, type=_ReportResult)
            self._account.grant(person.name, granted.id, granted.channel, parameters, granted.cursor, time.time())

    async def _receive(self, person: str, subscriber: Subscriber) -> None:
        account = self._account
        async for notification in subscriber:
            match notification:
                case Result():
                    holding = account.holding(person, notification.subscription)
                    account.take(holding, notification.cursor, _number(notification.value), time.time())
                case Gap():
                    account.gaps += 1
                case _:
                    pass


def _number(value: Any) -> int | None:
    """Return the number of the report. A result that overtakes the grant of its subscription is a dict."""
    identity = value.report_id if isinstance(value, _ReportResult) else str(value.get("report_id"))
    name, _, number = identity.partition("-")
    return int(number) if name == "report" and number.isdigit() else None
