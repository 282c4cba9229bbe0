"""One person of the demo: follows its timeline with an SDK object and a WebSocket, and records its results.

A logout ends the session. A person that will log out keeps its cursors in a state file of the SDK, so the next session
continues where the last one ended. While a person is logged in, its position goes through its own session to the
dataset UserLocations [BAD §6.1.2].
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from tocsin.client import ClientError, Gap, Patience, Result, Subscriber
from tocsin.demo.account import DemoAccount, Longs
from tocsin.model.ids import SubscriptionId
from tocsin.sim.city.interactions import CityPerson, Interaction, Login, Logout, Subscribe, Unsubscribe
from tocsin.sim.city.subscriptions import CitySubscription

LOCATIONS: Final = "UserLocations"
_PATIENCE: Final = Patience(open_s=10.0, longest_s=5.0)
_LAST_RESULTS_S: Final = 30.0
"""How long a person waits for the results that are stored when it decides to unsubscribe."""
_AGAIN_S: Final = 0.5
"""Seconds before a person sends its last position again."""
At = Callable[[float], Awaitable[None]]
"""Waits until a moment of the city's time, in seconds."""
StoredResults = Callable[[str, str], Awaitable[Longs]]
"""(channel, subscription) → the sorted offsets after each stored result."""


class _Shelter(msgspec.Struct):
    name: str


class _ReportResult(msgspec.Struct):
    """The part of a result that the account needs."""

    report_id: str
    shelters: list[_Shelter] = []


@dataclass(slots=True)
class PeopleCounts:
    """What all people did so far."""

    logins: int = 0
    logouts: int = 0
    unsubscribes: int = 0
    updates: int = 0
    """Updates of a position that were stored."""
    updates_skipped: int = 0
    """Updates that a person did not send, because the answer to the one before was outstanding."""
    updates_failed: int = 0

    def as_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all people share."""

    coordinator: str
    token: str
    account: DemoAccount
    at: At
    stored: StoredResults
    state_folder: Path
    """Gets the state files of the people that log out."""
    counts: PeopleCounts = field(default_factory=PeopleCounts)


class DemoPerson:
    def __init__(self, surroundings: Surroundings, person: CityPerson) -> None:
        self._shared = surroundings
        self._timeline = person.timeline
        self._state = surroundings.state_folder / f"{person.name}.json" if person.logs_out else None
        self._subscriber: Subscriber | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._update: asyncio.Task[None] | None = None
        self._earlier_brokers: list[str] = []
        self.session_changes: list[str] = []
        """The broker of each login and logout so far; hand-overs are no logins."""
        self._held: dict[CitySubscription, tuple[str, SubscriptionId]] = {}
        """(channel, id) of the granted subscriptions."""
        self.name = person.name
        self.place = (0.0, 0.0)
        """Latitude and longitude."""
        self.doing = "the beginning"
        self.is_at_end = False
        """True when the timeline is over."""

    @property
    def is_online(self) -> bool:
        return self._receiving is not None

    @property
    def brokers(self) -> list[str]:
        """The broker of every session so far, in order."""
        current = [] if self._subscriber is None else self._subscriber.brokers_seen
        return [*self._earlier_brokers, *current]

    # -- the timeline --------------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        for interaction in self._timeline:
            self.doing = f"{type(interaction).__name__.lower()} at {interaction.at_s:.0f} s"
            await self.unless_failed(self._shared.at(interaction.at_s))
            await self._do(interaction)
        self.is_at_end = True

    async def unless_failed(self, waiting: Awaitable[Any]) -> None:
        """Wait, but raise the error of the session if it fails meanwhile."""
        task = asyncio.ensure_future(waiting)
        try:
            await asyncio.wait({task, self._receiving or task}, return_when=asyncio.FIRST_COMPLETED)
            if self._receiving is not None and self._receiving.done():
                self._receiving.result()  # ends only by an error: raise it
        finally:
            task.cancel()

    async def _do(self, interaction: Interaction) -> None:
        match interaction:
            case Login():
                await self._log_in()
            case Logout():
                self._shared.account.log_out(self.name, time.time())
                await self.log_out()
                self._shared.counts.logouts += 1
            case Subscribe(_, requested):
                await self._subscribe(requested)
            case Unsubscribe(_, requested):
                await self._unsubscribe(*self._held.pop(requested))

    async def _log_in(self) -> None:
        lat, lon = self.place
        shared = self._shared
        self._subscriber = Subscriber(
            shared.coordinator,
            user=self.name,
            token=shared.token,
            lat=lat,
            lon=lon,
            state=self._state,
            patience=_PATIENCE,
        )
        await self._subscriber.__aenter__()
        self.session_changes.append(await self._subscriber.connected())
        shared.counts.logins += 1
        shared.account.log_in(self.name, time.time())
        self._receiving = asyncio.create_task(self._receive(self._subscriber))
        self.send_position()

    async def log_out(self) -> None:
        """End the session if there is one. The cursors stay in the state file."""
        subscriber, receiving = self._subscriber, self._receiving
        self._subscriber = self._receiving = None
        if subscriber is not None:
            self._earlier_brokers += subscriber.brokers_seen
            self.session_changes += self._earlier_brokers[-1:]
        if receiving is not None:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
        if subscriber is not None:
            await subscriber.__aexit__(None, None, None)

    async def _subscribe(self, requested: CitySubscription) -> None:
        assert self._subscriber is not None
        parameters, requested_s = dict(requested.parameters), time.time()
        # The channels bind `user` to the session: a person does not send its name.
        sent = {name: value for name, value in parameters.items() if name != "user"}
        granted = await self._subscriber.subscribe(requested.channel, sent, type=_ReportResult)
        self._held[requested] = granted.channel, granted.id
        self._shared.account.grant(
            self.name, granted.id, granted.channel, parameters, granted.cursor, time.time(), requested_s
        )

    async def _unsubscribe(self, channel: str, subscription: SubscriptionId) -> None:
        assert self._subscriber is not None
        account = self._shared.account
        stored = await self._shared.stored(channel, subscription)
        deadline_s = time.monotonic() + _LAST_RESULTS_S
        while not account.has_received(self.name, subscription, stored) and time.monotonic() < deadline_s:
            await asyncio.sleep(0.1)  # results that are in transit now would be lost with the subscription
        account.leave(self.name, subscription, stored, time.time())
        await self._subscriber.unsubscribe(subscription)
        account.end(self.name, subscription, time.time())
        self._shared.counts.unsubscribes += 1

    async def _receive(self, subscriber: Subscriber) -> None:
        account = self._shared.account
        async for notification in subscriber:
            match notification:
                case Result():
                    holding = account.holding(self.name, notification.subscription)
                    report = _report(notification.value)
                    shelters = tuple(shelter.name for shelter in report.shelters)
                    account.take(holding, notification.cursor, _number(report), time.time(), shelters)
                case Gap():
                    account.gaps += 1
                case _:
                    pass

    # -- the position --------------------------------------------------------------------------------------------------

    def send_position(self) -> None:
        """Send the position if the person is logged in. At most one answer is outstanding."""
        if self._subscriber is None or self._receiving is None:
            return
        if self._update is not None and not self._update.done():
            self._shared.counts.updates_skipped += 1
        else:
            self._update = asyncio.create_task(self._send_position(self._subscriber))

    async def _send_position(self, subscriber: Subscriber) -> None:
        try:
            await self._store_position(subscriber)
        except ClientError:
            # A logout ends the update in progress; that is no failure.
            self._shared.counts.updates_failed += self._subscriber is subscriber

    async def store_last_position(self, limit_s: float) -> str | None:
        """Store the position after every earlier one. Return the problem if that fails."""
        try:
            async with asyncio.timeout(limit_s):
                if self._update is not None:
                    await self._update
                while self._subscriber is not None:
                    try:
                        await self._store_position(self._subscriber)
                        return None
                    except ClientError as error:
                        if not error.code.retry:
                            return error.message
                        await asyncio.sleep(_AGAIN_S)
                return "the person is logged out"
        except TimeoutError:
            return f"no answer within {limit_s:g} s"

    async def _store_position(self, subscriber: Subscriber) -> None:
        lat, lon = self.place
        await subscriber.update(LOCATIONS, {"lat": lat, "lon": lon, "at": datetime.now(UTC).isoformat()})
        self._shared.counts.updates += 1


def _report(value: Any) -> _ReportResult:
    """The report of a result. A result that overtakes its grant, or of an earlier session's subscription, is a dict."""
    return value if isinstance(value, _ReportResult) else msgspec.convert(value, _ReportResult)


def _number(report: _ReportResult) -> int | None:
    name, _, number = report.report_id.partition("-")
    return int(number) if name == "report" and number.isdigit() else None
