"""The subscribers of a chaos run: real SDK objects that write down what they are given."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tocsin.chaos.ledger import Account, Delivery, Ledger
from tocsin.client import ClientError, Gap, Patience, Result, Subscriber

_PATIENCE = Patience(open_s=5.0, longest_s=5.0)


@dataclass(slots=True)
class Member:
    """One user, and the program that subscribes for it. It may stop and start again, as programs do."""

    user: str
    wishes: list[tuple[str, str, dict[str, Any]]]
    """(a name of ours, channel, parameters)."""
    state: Path
    names: dict[str, Account] = field(default_factory=dict)
    """By subscription id."""
    subscriber: Subscriber | None = None
    away: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    brokers: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)


class Crowd:
    def __init__(self, coordinator: str, token: str, ledger: Ledger, members: list[Member]) -> None:
        self._coordinator = coordinator
        self._token = token
        self._ledger = ledger
        self.members = members
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Everybody holds what it wants when this returns."""
        self._tasks = [asyncio.create_task(self._follow(member)) for member in self.members]
        await asyncio.gather(*(member.ready.wait() for member in self.members))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop(self, member: Member) -> None:
        """Its connections break, without a word to anybody."""
        if member.subscriber is not None:
            member.subscriber.break_connections()

    async def leave_for(self, member: Member, away_s: float) -> None:
        member.away.set()
        await asyncio.sleep(away_s)
        member.away.clear()

    async def _follow(self, member: Member) -> None:
        while True:
            try:
                await self._one_life(member)
            except ClientError as error:  # an end that the subscriber could not mend: that is a finding
                member.errors.append(f"{type(error).__name__} {error.code}: {error.message}")
                await asyncio.sleep(1.0)
            while member.away.is_set():
                await asyncio.sleep(0.05)

    async def _one_life(self, member: Member) -> None:
        async with Subscriber(
            self._coordinator, user=member.user, token=self._token, state=member.state, patience=_PATIENCE
        ) as subscriber:
            member.subscriber = subscriber
            try:
                for name, channel, parameters in member.wishes:
                    held = await subscriber.subscribe(channel, parameters)
                    member.names[held.id] = (member.user, name)
                    self._ledger.deliveries[member.user, name]
                member.ready.set()
                leaving = asyncio.create_task(member.away.wait())
                try:
                    await self._take(member, subscriber, leaving)
                finally:
                    leaving.cancel()
            finally:
                member.brokers.update(subscriber.brokers_seen)
                member.subscriber = None

    async def _take(self, member: Member, subscriber: Subscriber, leaving: asyncio.Task[bool]) -> None:
        while not leaving.done():
            taking = asyncio.ensure_future(anext(subscriber))
            try:
                await asyncio.wait((taking, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not taking.done():  # what it waited for stays in the queue
                    taking.cancel()
                    await asyncio.gather(taking, return_exceptions=True)
            if taking.cancelled():
                return
            match taking.result():
                case Result() as result:
                    account = member.names[result.subscription]
                    self._ledger.deliver(account, Delivery(result.value["id"], result.cursor))
                case Gap():
                    self._ledger.gaps += 1
                case _:
                    pass
