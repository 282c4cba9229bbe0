"""Drives the MQTT core of a broker: handles one event at a time and carries out its effects before the next.

The sockets report packets here; the relay publishes and receives messages of topics; `mqtt_channels` subscribes to
channels.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from tocsin.broker.mqtt import effects, events
from tocsin.broker.mqtt.core import MqttBroker
from tocsin.broker.mqtt.events import ConnectionId
from tocsin.broker.mqtt.reasons import Reason
from tocsin.client.topic_events import Item, TopicFailure, TopicGap, TopicMessage
from tocsin.runtime.broker.connection_guard import ConnectionGuard
from tocsin.runtime.broker.mqtt_channels import MqttChannels
from tocsin.runtime.broker.topic_relay import TopicRelay
from tocsin.runtime.http.callers import caller_of_claims
from tocsin.runtime.http.credentials import Claims
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import Code, TocsinError

_TICK_S = 0.25
_USER_SHARE = 8
"""The messages of one user that wait for homes take at most this part of `mqtt_waiting_bytes`."""


class MqttConnection(Protocol):
    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def on_open(self, user: str) -> None: ...

    def read_on(self) -> None: ...


class MqttProcess:
    def __init__(self, guard: ConnectionGuard, relay: TopicRelay) -> None:
        self.guard = guard
        self.relay = relay
        settings = guard.process.settings
        self.limits = settings.mqtt_limits
        self.core = MqttBroker(settings.id, settings.mqtt_limits)
        self.connections: dict[ConnectionId, MqttConnection] = {}
        self.claims: dict[ConnectionId, tuple[Claims, str]] = {}
        """Connection → its claims, and the token itself: it proves the user to the data cluster."""
        self.channels = MqttChannels(guard, self.happened, lambda broker: self.core.peers.addresses.get(broker, ""))
        self.checking: set[ConnectionId] = set()
        """Connections whose token is being checked. They are not read: their packets would be kept for strangers."""
        self._held: dict[str, dict[ConnectionId, MqttConnection]] = {}
        """User → its connections whose messages wait until earlier ones have reached their homes."""
        self._was_full = False
        """True if messages of all users waited: a settled message of any user may make room."""
        self._numbers = itertools.count(1)
        self._events: deque[events.Event] = deque()
        self._handling = False
        self._is_draining = False
        self._ticking: asyncio.Task[None] | None = None
        self._log = logger()
        relay.on_items = self._on_items
        relay.on_settled = lambda ticket, code, message: self._on_settled(ticket, code, message)
        relay.on_room = self._on_room
        relay.on_ready = lambda pattern: self.happened(events.PatternReady(pattern))
        self._handlers: dict[type[effects.Effect], Callable[[Any], None]] = {
            effects.Send: self._send,
            effects.Close: self._close,
            effects.CheckToken: self._check_token,
            effects.RecordRefusal: self._record_refusal,
            effects.PublishToTopic: self._publish,
            effects.WatchPattern: lambda effect: relay.watch(effect.pattern),
            effects.UnwatchPattern: lambda effect: relay.unwatch(effect.pattern),
            effects.SubscribeChannel: self._subscribe_channel,
            effects.UnsubscribeChannel: self.channels.unsubscribe,
            effects.AcknowledgeCursor: self.channels.acknowledge,
        }

    def start(self, address: str) -> None:
        """Start the process. `address` is where MQTT clients connect, for the references of other brokers."""
        self.core.peers.address = address
        self._carry_out(self.core.start())
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
            self.happened(events.StopRequested())
        self.channels.stop()
        await self.relay.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            is_draining = self.guard.process.core.draining
            if is_draining != self._is_draining:
                self._is_draining = is_draining
                reference = (self.core.peers.reference() or "") if is_draining else None
                self.happened(events.PlacementChanged(reference))
            for identity in [identity for held in self._held.values() for identity in held]:
                self.happened(events.ConnectionHeld(identity))
            self.happened(events.Ticked())

    # -- connections ---------------------------------------------------------------------------------------------------

    def new_connection(self, connection: MqttConnection) -> ConnectionId:
        identity = ConnectionId(next(self._numbers))
        self.connections[identity] = connection
        self.happened(events.ConnectionOpened(identity))
        return identity

    def connection_lost(self, identity: ConnectionId) -> None:
        known = self.claims.pop(identity, None)
        if known is not None and (held := self._held.get(known[0].subject)) is not None:
            held.pop(identity, None)
        if self.connections.pop(identity, None) is not None:
            self.happened(events.ConnectionLost(identity))

    def is_full(self, identity: ConnectionId, user: str) -> bool:
        """True if a message of the user must wait for homes to accept earlier ones. `read_on` is called later."""
        if self.relay.waiting_bytes > self.limits.mqtt_waiting_bytes:
            self._was_full = True
        elif self.relay.waiting_of.get(user, 0) <= self.limits.mqtt_waiting_bytes // _USER_SHARE:
            return False
        self._held.setdefault(user, {})[identity] = self.connections[identity]
        return True

    def _on_room(self, user: str) -> None:
        """A message of the user has reached its home: continue with connections whose messages wait."""
        limit_bytes = self.limits.mqtt_waiting_bytes
        if not self._held or (self._was_full and self.relay.waiting_bytes > limit_bytes // 2):
            return
        users = list(self._held) if self._was_full else [user]
        self._was_full = False
        for name in users:
            if self.relay.waiting_of.get(name, 0) <= limit_bytes // _USER_SHARE // 2:
                for connection in self._held.pop(name, {}).values():
                    connection.read_on()

    def end_revoked(self) -> None:
        is_revoked = self.guard.recorded_end("mqtt")
        for identity, (claims, _) in list(self.claims.items()):
            if is_revoked(claims):
                self.happened(events.ConnectionRevoked(identity))

    # -- events and effects --------------------------------------------------------------------------------------------

    def happened(self, event: events.Event) -> None:
        """Handle an event. An event that an effect reports waits until the earlier effects are carried out."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._handling = False

    def _handle(self, event: events.Event) -> None:
        try:
            handled = self.core.handle(event, self.guard.process.now_s())
        except Exception as error:
            self._log.error("an event of MQTT could not be handled", kind=type(event).__name__, exc_info=error)
            return
        self._carry_out(handled)

    def _carry_out(self, handled: list[effects.Effect]) -> None:
        for effect in handled:
            try:
                self._handlers[type(effect)](effect)
            except Exception as error:
                self._log.error("an effect of MQTT failed", kind=type(effect).__name__, exc_info=error)

    def _send(self, effect: effects.Send) -> None:
        for identity in effect.connections:
            if (connection := self.connections.get(identity)) is not None:
                connection.write(effect.data)

    def _close(self, effect: effects.Close) -> None:
        if (connection := self.connections.get(effect.connection)) is not None:
            connection.close()

    # -- topics --------------------------------------------------------------------------------------------------------

    def _publish(self, effect: effects.PublishToTopic) -> None:
        self.relay.publish(effect.ticket, effect.topic, effect.data, effect.user)

    def _on_items(self, items: list[Item]) -> None:
        for item in items:
            if isinstance(item, TopicGap):
                self.happened(events.GapArrived(item.topic, item.epoch, item.first, item.last))
            elif isinstance(item, TopicFailure):
                self._log.warning("a topic cannot be relayed", topic=item.topic, reason=item.message)
            elif isinstance(item, TopicMessage):
                self.happened(events.MessageArrived(item.topic, item.data, item.position))

    def _on_settled(self, ticket: int, code: str | None, message: str) -> None:
        if ticket or code is not None:
            self.happened(events.PublishSettled(ticket, code, message))

    # -- tokens --------------------------------------------------------------------------------------------------------

    def _check_token(self, effect: effects.CheckToken) -> None:
        identity = effect.connection
        self.checking.add(identity)
        task = asyncio.get_running_loop().create_task(self._check(identity, effect.token))
        self.guard.tasks.add(task)
        task.add_done_callback(self.guard.tasks.discard)
        task.add_done_callback(lambda _: self._on_checked(identity))

    def _on_checked(self, identity: ConnectionId) -> None:
        self.checking.discard(identity)
        if (connection := self.connections.get(identity)) is not None:
            connection.read_on()

    async def _check(self, identity: ConnectionId, token: str | None) -> None:
        try:
            claims = await self.guard.mqtt_claims(token)
        except TocsinError as error:
            self.guard.record_refused_login(error.code, token)
            self.happened(events.TokenRefused(identity, _reason(error.code), error.message))
            return
        connection = self.connections.get(identity)
        if connection is None:
            return
        connection.on_open(claims.subject)
        self.claims[identity] = (claims, token or "")
        if self.guard.audit is not None:
            self.guard.audit.record(claims.subject, "login", "mqtt", "mqtt", "ok")
        scopes = claims.scopes | caller_of_claims(claims).topic_scopes
        self.happened(events.TokenAccepted(identity, claims.subject, scopes, claims.ends_s))

    def _record_refusal(self, effect: effects.RecordRefusal) -> None:
        self.guard.record_refusal("mqtt", effect.user, effect.action, effect.object)

    def _subscribe_channel(self, effect: effects.SubscribeChannel) -> None:
        known = self.claims.get(effect.connection)
        if known is not None:
            self.channels.subscribe(effect, *known)


def _reason(code: Code) -> Reason:
    if code.retry:
        return Reason.SERVER_UNAVAILABLE
    return Reason.NOT_AUTHORIZED if code is Code.FORBIDDEN else Reason.BAD_USER_NAME_OR_PASSWORD
