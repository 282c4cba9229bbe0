"""The coordinator's REST API for clients: registration, and its renewal after the token has expired."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tocsin.client.coordinator import CoordinatorClient
from tocsin.client.errors import Denied
from tocsin.client.tls import context_for
from tocsin.coords.coordinate import DIMENSIONS, Coordinate
from tocsin.model.ids import BrokerId
from tocsin.runtime.coordinator.routes.users import BrokerRequest, UserRegistration
from tocsin.wire.errors import Code


class FakeCoordinator(CoordinatorClient):
    """Answers without a network. It accepts the token of the latest registration until that is expired."""

    def __init__(self, **options: Any) -> None:
        super().__init__("http://127.0.0.1:1", "application", context_for(True), **options)
        self.requests: list[tuple[str, dict[str, Any], str | None]] = []
        self.valid_token: str | None = None

    async def _post(self, path: str, body: dict[str, Any], token: str | None) -> dict[str, Any]:
        self.requests.append((path, body, token))
        if path == "/v1/users":
            self.valid_token = f"t{len(self.requests)}"
            return {"user": body.get("user", "u 1"), "token": self.valid_token}
        if token != self.valid_token:
            raise Denied(Code.UNAUTHENTICATED, "expired")
        return {"broker": "b", "address": "ws://b", "token": "session"}


def test_subscriber_is_registered_once_and_position_is_sent() -> None:
    coordinator = FakeCoordinator(lat=1.0, lon=2.0)
    asyncio.run(coordinator.request_broker(None))
    asyncio.run(coordinator.request_broker(BrokerId("b0")))
    position = {"lat": 1.0, "lon": 2.0}
    assert coordinator.user == "u 1"
    assert coordinator.requests == [
        ("/v1/users", position, "application"),
        ("/v1/users/u%201/broker", position, "t1"),
        ("/v1/users/u%201/broker", {"avoid": ["b0"], **position}, "t1"),
    ]


def test_coordinate_is_sent_in_the_form_the_coordinator_decodes() -> None:
    coordinate = Coordinate((0.01,) * DIMENSIONS, 0.002, 0.0, 0.1)
    coordinator = FakeCoordinator(coordinate=coordinate)
    asyncio.run(coordinator.request_broker(None))
    for (_, body, _), request in zip(coordinator.requests, (UserRegistration, BrokerRequest), strict=True):
        sent = msgspec.json.decode(msgspec.json.encode(body), type=request)
        assert sent.coordinate == coordinate


def test_expired_registration_is_renewed_once() -> None:
    coordinator = FakeCoordinator(user="ann")
    asyncio.run(coordinator.request_broker(None))
    coordinator.valid_token = None
    address = asyncio.run(coordinator.request_broker(None))
    assert (address.broker, address.address, address.token) == ("b", "ws://b", "session")
    assert [path for path, _, _ in coordinator.requests].count("/v1/users") == 2


def test_new_registration_that_is_denied_is_not_repeated() -> None:
    class DenyingCoordinator(FakeCoordinator):
        async def _post(self, path: str, body: dict[str, Any], token: str | None) -> dict[str, Any]:
            self.requests.append((path, body, token))
            raise Denied(Code.FORBIDDEN, "no")

    coordinator = DenyingCoordinator(user="ann")
    with pytest.raises(Denied):
        asyncio.run(coordinator.request_broker(None))
    assert len(coordinator.requests) == 1
