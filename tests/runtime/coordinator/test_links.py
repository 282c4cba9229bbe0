"""The coordinator's end of a broker's link: what is said arrives in the order in which it was said."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
from starlette.websockets import WebSocket

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.runtime.coordinator.links import Link
from tocsin.runtime.coordinator.process import CoordinatorProcess
from tocsin.wire.link import Adopt, Beat, FromCoordinator, Release, Stored, SubscriberState

ADA = SubscriberId("ada")
ADOPT = Adopt([SubscriberState(ADA, [])])


class ListeningBroker:
    """The broker's end: says nothing, and keeps what it hears until the link is closed."""

    def __init__(self) -> None:
        self.heard: list[FromCoordinator] = []

    async def send_text(self, text: str) -> None:
        self.heard.append(msgspec.json.decode(text, type=FromCoordinator))

    async def receive_text(self) -> str:
        await asyncio.Event().wait()
        return ""

    async def close(self, _code: int, _reason: str) -> None:
        pass


class NoProcess:
    def add_link(self, _link: Link) -> int:
        return 1

    def remove_link(self, _broker: BrokerId, _number: int) -> None:
        pass


def heard(*said: FromCoordinator) -> list[FromCoordinator]:
    """By a broker that could not listen before all of it had been said."""

    async def scenario() -> list[FromCoordinator]:
        broker = ListeningBroker()
        link = Link(cast(WebSocket, broker), BrokerId("b1"))
        for message in said:
            link.send(message)
        link.close("that was all")
        async with asyncio.timeout(10):
            await link.run(cast(CoordinatorProcess, NoProcess()))
        return broker.heard

    return asyncio.run(scenario())


def test_that_a_change_is_stored_does_not_overtake_what_was_said_before() -> None:
    """A broker that has forgotten a removal believes an `Adopt` from before it, and serves what was unsubscribed."""
    said: list[FromCoordinator] = [Beat(), ADOPT, Stored(7), Release(ADA), Stored(9)]
    assert heard(*said) == said


def test_of_confirmations_with_nothing_between_them_only_the_last_is_said() -> None:
    many: list[FromCoordinator] = [Stored(number) for number in range(1, 500)]
    assert heard(*many, ADOPT, Stored(500), Stored(501)) == [Stored(499), ADOPT, Stored(501)]
