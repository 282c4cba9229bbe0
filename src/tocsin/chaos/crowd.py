"""The subscribers of a chaos run: real SDK objects that record every result they receive."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tocsin.chaos.ledger import Account, Delivery, DeliveryLedger, PingRecord
from tocsin.client import ClientError, Gap, Patience, Result, Subscriber

_PATIENCE = Patience(open_s=5.0, longest_s=5.0)


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    name: str
    """The name in the ledger."""
    channel: str
    parameters: dict[str, Any]
    matches: Callable[[PingRecord], bool]


@dataclass(slots=True)
class Member:
    """One user and the program that subscribes for it. The program may stop and start again."""

    user: str
    requests: list[SubscriptionRequest]
    state: Path
    accounts: dict[str, Account] = field(default_factory=dict)
    """Ledger accounts by subscription id."""
    subscriber: Subscriber | None = None
    away: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    brokers: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)


class ChaosCrowd:
    def __init__(
        self,
        coordinator: str,
        token: str,
        ledger: DeliveryLedger,
        members: list[Member],
        next_batch: Callable[[], int] = lambda: 0,
    ) -> None:
        """`next_batch` returns the number of the first batch that the publisher has not begun to send."""
        self._next_batch = next_batch
        self._coordinator = coordinator
        self._token = token
        self._ledger = ledger
        self.members = members
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect all members and wait until every subscription is granted."""
        self._tasks = [asyncio.create_task(self._follow(member)) for member in self.members]
        await asyncio.gather(*(member.ready.wait() for member in self.members))

    def join(self, member: Member) -> None:
        """Add a member now. It subscribes as soon as a broker grants it, whatever faults happen meanwhile."""
        self.members.append(member)
        self._tasks.append(asyncio.create_task(self._follow(member)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop(self, member: Member) -> None:
        """Break the member's connections without a close message."""
        if member.subscriber is not None:
            member.subscriber.break_connections()

    async def leave_for(self, member: Member, away_s: float) -> None:
        member.away.set()
        await asyncio.sleep(away_s)
        member.away.clear()

    async def _follow(self, member: Member) -> None:
        while True:
            try:
                await self._run_program(member)
            except ClientError as error:  # the SDK could not recover: the report lists the error
                member.errors.append(f"{type(error).__name__} {error.code}: {error.message}")
                await asyncio.sleep(1.0)
            while member.away.is_set():
                await asyncio.sleep(0.05)

    async def _run_program(self, member: Member) -> None:
        async with Subscriber(
            self._coordinator, user=member.user, token=self._token, state=member.state, patience=_PATIENCE
        ) as subscriber:
            member.subscriber = subscriber
            try:
                for request in member.requests:
                    subscription = await subscriber.subscribe(request.channel, request.parameters)
                    account = member.accounts[subscription.id] = (member.user, request.name)
                    if account not in self._ledger.matches:
                        self._ledger.open(account, request.matches, self._next_batch())
                member.ready.set()
                leaving = asyncio.create_task(member.away.wait())
                try:
                    await self._receive(member, subscriber, leaving)
                finally:
                    leaving.cancel()
            finally:
                member.brokers.update(subscriber.brokers_seen)
                member.subscriber = None

    async def _receive(self, member: Member, subscriber: Subscriber, leaving: asyncio.Task[bool]) -> None:
        while not leaving.done():
            receiving = asyncio.ensure_future(anext(subscriber))
            try:
                await asyncio.wait((receiving, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not receiving.done():  # a cancelled wait leaves the result in the queue
                    receiving.cancel()
                    await asyncio.gather(receiving, return_exceptions=True)
            if receiving.cancelled():
                return
            match receiving.result():
                case Result() as result:
                    account = member.accounts[result.subscription]
                    self._ledger.deliver(account, Delivery(result.value["id"], result.cursor))
                case Gap():
                    self._ledger.gaps += 1
                case _:
                    pass
