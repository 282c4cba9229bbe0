"""The coordinator's end of a broker's link: messages arrive in the order in which they were sent."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
from starlette.websockets import WebSocket

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.runtime.coordinator.broker_link import BrokerLink
from tocsin.wire.link import Adopt, Beat, FromCoordinator, Release, Stored, SubscriberState

ADA = SubscriberId("ada")
ADOPT = Adopt([SubscriberState(ADA, [])])


class ReceivingSocket:
    """The broker's end: sends nothing, and collects the messages until the link is closed."""

    def __init__(self) -> None:
        self.received: list[FromCoordinator] = []

    async def send_text(self, text: str) -> None:
        self.received.append(msgspec.json.decode(text, type=FromCoordinator))

    async def receive_text(self) -> str:
        await asyncio.Event().wait()
        return ""

    async def close(self, _code: int, _reason: str) -> None:
        pass


def received(*messages: FromCoordinator) -> list[FromCoordinator]:
    """The messages that a broker receives if all of them are queued before the first is sent."""

    async def scenario() -> list[FromCoordinator]:
        socket = ReceivingSocket()
        link = BrokerLink(cast(WebSocket, socket), BrokerId("b1"))
        for message in messages:
            link.send(message)
        link.close("done")
        async with asyncio.timeout(10):
            await link.run(lambda message: None)
        return socket.received

    return asyncio.run(scenario())


def test_stored_confirmation_does_not_overtake_earlier_messages() -> None:
    """After `Stored` a broker forgets a removal; an older `Adopt` that arrived later would restore the subscription."""
    messages: list[FromCoordinator] = [Beat(), ADOPT, Stored(7), Release(ADA), Stored(9)]
    assert received(*messages) == messages


def test_consecutive_stored_confirmations_are_merged_into_the_last() -> None:
    confirmations: list[FromCoordinator] = [Stored(number) for number in range(1, 500)]
    assert received(*confirmations, ADOPT, Stored(500), Stored(501)) == [Stored(499), ADOPT, Stored(501)]
