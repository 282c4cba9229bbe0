"""The demo's subscribers: an SDK object and a WebSocket each, on one loop, writing down what they are given."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from tocsin.client import ClientError, Gap, Patience, Result, Subscriber
from tocsin.demo.account import Account
from tocsin.sim.city.crowd import CityPerson

_PATIENCE = Patience(open_s=10.0, longest_s=5.0)
At = Callable[[float], Awaitable[None]]
"""Waits until a moment of the city's time."""


class _Seen(msgspec.Struct):
    """All that the account needs of a result."""

    report_id: str


class People:
    def __init__(
        self,
        coordinator: str,
        token: str,
        account: Account,
        people: Sequence[CityPerson],
        at: At,
        where: Callable[[int], tuple[float, float]],
        tell: Callable[[str], None],
    ) -> None:
        self._coordinator = coordinator
        self._token = token
        self._account = account
        self._people = people
        self._at = at
        self._where = where
        self._tell = tell
        self._subscribers: list[Subscriber] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()
        self.logged_in = 0
        self.errors: set[str] = set()

    def begin(self) -> None:
        self._tasks = [asyncio.create_task(self._live(number, one)) for number, one in enumerate(self._people)]

    async def end(self) -> None:
        """Everybody logs out."""
        self._over.set()
        _, late = await asyncio.wait(self._tasks, timeout=15.0)
        for task in late:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def hand_overs(self) -> int:
        """Sessions that began at another broker than the one before."""
        seen = (subscriber.brokers_seen for subscriber in self._subscribers)
        return sum(one != next_ for brokers in seen for one, next_ in itertools.pairwise(brokers))

    async def _live(self, number: int, person: CityPerson) -> None:
        await self._at(person.login_s)
        lat, lon = self._where(number)
        try:
            async with Subscriber(
                self._coordinator, user=person.name, token=self._token, lat=lat, lon=lon, patience=_PATIENCE
            ) as subscriber:
                self._subscribers.append(subscriber)
                await subscriber.connected()
                self.logged_in += 1
                taking = asyncio.create_task(self._take(person.name, subscriber))
                try:
                    await self._subscribe(person, subscriber)
                    over = asyncio.create_task(self._over.wait())
                    await asyncio.wait((taking, over), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if taking.done() and not taking.cancelled():
                        taking.result()  # it only ends by an error: say which
                    taking.cancel()
        except Exception as error:  # whatever ends a subscriber is a finding, also a fault of the client itself
            said = f"{type(error).__name__}: {error.message if isinstance(error, ClientError) else error!r}"
            if said not in self.errors:
                self._tell(f"{person.name} gave up: {said}")
            self.errors.add(said)

    async def _subscribe(self, person: CityPerson, subscriber: Subscriber) -> None:
        for when_s, wish in person.subscriptions:
            await self._at(when_s)
            parameters = dict(wish.parameters)
            held = await subscriber.subscribe(wish.channel, parameters, type=_Seen)
            self._account.grant(person.name, held.id, held.channel, parameters, held.cursor, time.time())

    async def _take(self, person: str, subscriber: Subscriber) -> None:
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
    """Of a report. A result that is faster than the answer to its subscription comes as a dict."""
    identity = value.report_id if isinstance(value, _Seen) else str(value.get("report_id"))
    name, _, number = identity.partition("-")
    return int(number) if name == "report" and number.isdigit() else None
