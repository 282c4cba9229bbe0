"""Subscribers without the SDK: a raw WebSocket and an event stream. Nothing filters repeats before they are counted.

The cursor rule: a broker says from which cursor on it sends results over a connection, in its answer to a login or a
subscribe request. Every result over that connection has a higher cursor than that, and than the one before. A result
that the client has from an earlier connection comes again only with the same cursor and the same content. A repeat that
keeps this rule is counted; the client recognises it by its cursor. Anything else breaks the rule.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

import httpx
import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from tocsin.chaos.ledger import Account, Delivery, DeliveryLedger
from tocsin.client.coordinator import CoordinatorClient
from tocsin.client.errors import ClientError
from tocsin.client.events import BrokerAddress
from tocsin.client.tls import context_for
from tocsin.client.websocket import session_address
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, ChannelName, SubscriptionId
from tocsin.wire import session as wire

_SILENCE_S: Final = 12.0
"""A connection that is silent for this long is replaced. Brokers of a chaos run send progress every two seconds."""
_PAUSE_S: Final = 0.5
_ACK_EVERY: Final = 20
_BROKEN = (OSError, WebSocketException, httpx.HTTPError, ClientError, TimeoutError, KeyError, ValueError)
_decode = msgspec.json.Decoder(wire.ToSubscriber).decode
_encode = msgspec.json.Encoder().encode


class UnfilteredMember(ABC):
    """A user with one subscription to PingsOfKind. `start` returns when the subscription is granted."""

    def __init__(
        self, user: str, kind: str, coordinator: str, token: str, ledger: DeliveryLedger, next_batch: Callable[[], int]
    ) -> None:
        self.user = user
        self.account: Account = (user, "kind")
        self._kind = kind
        self._ledger = ledger
        self._next_batch = next_batch
        self._coordinator = CoordinatorClient(coordinator, token, context_for(True), user)
        self.subscription: SubscriptionId | None = None
        self.cursor: str | None = None
        """The position after the last result."""
        self._position: Cursor | None = None
        """Results over this connection are after this cursor; None until the broker has sent it."""
        self._seen: dict[str, str] = {}
        """The record of each cursor that was received."""
        self.results = 0
        self.repeats = 0
        """Results that were received before, with the same cursor and content."""
        self.broken_rules = 0
        self.connections = 0
        self._granted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._moved_to: BrokerAddress | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._follow())
        await self._granted.wait()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._coordinator.close()

    async def _follow(self) -> None:
        while True:
            try:
                address, self._moved_to = self._moved_to, None
                self._position = None
                await self._connect(address or await self._coordinator.request_broker(None))
            except _BROKEN:  # a fault: connect again
                pass
            await asyncio.sleep(_PAUSE_S)

    @abstractmethod
    async def _connect(self, broker: BrokerAddress) -> None:
        """Hold one connection to this broker until it ends or breaks."""

    def grant(self, held: dict[str, Any]) -> None:
        """Note that the broker holds the subscription, and from which cursor on it sends results.

        At the first time, records of later batches are expected from now on.
        """
        self.subscription = SubscriptionId(held["subscription"])
        self._position = Cursor.parse(held["cursor"])
        if not self._granted.is_set():
            self.cursor = str(held["cursor"])
            kind = self._kind
            self._ledger.open(self.account, lambda ping: ping.kind == kind, self._next_batch())
            self._granted.set()

    def take(self, subscription: str, text: str, ping: str) -> None:
        """Count a result as it arrived."""
        cursor = Cursor.parse(text)
        if subscription != self.subscription or cursor is None:
            return
        self.results += 1
        is_after = self._position is None or cursor > self._position
        if not is_after or self._seen.get(text, ping) != ping:
            self.broken_rules += 1
        self._position = cursor
        if text in self._seen:
            self.repeats += 1
            return
        self._seen[text] = ping
        self.cursor = text
        self._ledger.deliver(self.account, Delivery(ping, text))

    def take_push(self, kind: str, content: dict[str, Any]) -> bool:
        """Handle a message of the broker. Returns False if the connection is to be replaced."""
        match kind:
            case "result":
                self.take(content["subscription"], content["cursor"], content["result"]["id"])
            case "logged_in":
                for held in content["subscriptions"]:
                    if held["subscription"] == self.subscription:
                        self.grant(held)
            case "subscribed":
                self.grant(content["held"])
            case "gap":
                self._ledger.gaps += 1
                self.cursor = content["cursor"]
            case "move":
                broker = BrokerId(content["broker"])
                self._moved_to = BrokerAddress(broker, content["address"], content["token"])
                return False
            case "closing":
                return False
        return True

    @property
    def request(self) -> dict[str, Any]:
        body: dict[str, Any] = {"channel": "PingsOfKind", "parameters": {"kind": self._kind}}
        return body if self.cursor is None else body | {"after": self.cursor}


class RawSocketMember(UnfilteredMember):
    """Speaks the session protocol over a WebSocket."""

    async def _connect(self, broker: BrokerAddress) -> None:
        resume = {} if self.subscription is None or self.cursor is None else {self.subscription: self.cursor}
        options: dict[str, Any] = {"compression": None, "ping_interval": None, "open_timeout": 5, "proxy": None}
        async with connect(session_address(broker.address), **options) as socket:
            self.connections += 1
            await socket.send(_encode(wire.Login(1, broker.token, resume)).decode())
            unacknowledged = 0
            while True:
                async with asyncio.timeout(_SILENCE_S):
                    frame = await socket.recv()
                message = _decode(frame)
                if isinstance(message, wire.LoggedIn) and self.subscription not in {
                    held.subscription for held in message.subscriptions
                }:
                    request = wire.Subscribe(2, ChannelName("PingsOfKind"), {"kind": self._kind}, self.cursor)
                    await socket.send(_encode(request).decode())
                content = json.loads(frame)
                if not self.take_push(content["type"], content):
                    return
                unacknowledged += isinstance(message, wire.Result)
                if unacknowledged >= _ACK_EVERY and self.subscription is not None and self.cursor is not None:
                    unacknowledged = 0
                    await socket.send(_encode(wire.Ack(3, {self.subscription: self.cursor})).decode())


class EventStreamMember(UnfilteredMember):
    """Reads server-sent events, and resumes with `Last-Event-ID`."""

    _last_event = ""

    async def _connect(self, broker: BrokerAddress) -> None:
        url = broker.address.replace("ws", "http", 1)
        headers = {"Authorization": f"Bearer {broker.token}"}
        timeout = httpx.Timeout(10.0, read=_SILENCE_S)
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, verify=False) as client:
            held = (await client.get("/v1/subscriptions")).raise_for_status().json()["subscriptions"]
            if self.subscription not in {entry["subscription"] for entry in held}:
                answer = (await client.post("/v1/subscriptions", json=self.request)).raise_for_status()
                self.grant(answer.json()["held"])
            last = {"Last-Event-ID": self._last_event} if self._last_event else {}
            async with client.stream("GET", "/v1/stream", headers=last) as stream:
                stream.raise_for_status()
                self.connections += 1
                fields: dict[str, str] = {}
                async for line in stream.aiter_lines():
                    if line:
                        name, _, value = line.partition(": ")
                        fields[name] = value
                        continue
                    if "data" in fields and not self.take_push(fields["event"], json.loads(fields["data"])):
                        return
                    self._last_event = fields.get("id", self._last_event)
                    fields = {}
