"""SUBSCRIBE and UNSUBSCRIBE [MQTT5 §3.8–§3.11]: the answer waits until the homes of the topics send to this broker.

Retained messages follow the answer. Sessions with the same filter share one watch of the network's topics.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.broker.mqtt import packets
from tocsin.broker.mqtt.effects import SubscribeChannel, UnsubscribeChannel, UnwatchPattern, WatchPattern
from tocsin.broker.mqtt.names import CHANNELS, ParsedFilter, parsed_channel, parsed_filter
from tocsin.broker.mqtt.outgoing import Outgoing
from tocsin.broker.mqtt.peers import Peers
from tocsin.broker.mqtt.reasons import Reason
from tocsin.broker.mqtt.retained import Retained
from tocsin.broker.mqtt.session import Connection, MqttState, Outbound, Session
from tocsin.broker.mqtt.subscriptions import Subscription
from tocsin.model.permission import RECEIVE, SUBSCRIBE
from tocsin.model.topic import is_exact

_NOT_READY = "the homes of these topics do not answer; subscribe again"


@dataclass(slots=True, eq=False)
class _Pending:
    """A SUBSCRIBE without an answer."""

    session: Session
    connection: Connection
    packet_id: int
    reasons: list[Reason]
    ends_s: float
    message: str = ""
    patterns: set[str] = field(default_factory=set)
    """Patterns of the network that are not ready."""
    channels: set[str] = field(default_factory=set)
    filters: list[str] = field(default_factory=list)
    fresh: list[tuple[Subscription, int, bool]] = field(default_factory=list)
    """(subscription, retain handling, whether it existed before)."""

    @property
    def is_current(self) -> bool:
        """False if the client is gone, or its session has another connection."""
        return not self.connection.closed and self.session.connection is self.connection


def _keys(pending: _Pending) -> list[tuple[str, str]]:
    """What the SUBSCRIBE waits for, as in `Subscribing._pending_of`."""
    channels = [(pending.session.key, pattern) for pattern in pending.channels]
    return [("", pattern) for pattern in pending.patterns] + channels


class Subscribing:
    def __init__(self, state: MqttState, outgoing: Outgoing, retained: Retained, peers: Peers) -> None:
        self._state = state
        self._outgoing = outgoing
        self._retained = retained
        self._peers = peers
        self._watched: dict[str, int] = {}
        """Pattern of the network → subscriptions that need it."""
        self._ready: set[str] = set()
        self._pending: dict[_Pending, None] = {}
        self._pending_of: dict[tuple[str, str], dict[_Pending, None]] = {}
        """(session or "", filter of a channel or pattern of the network) → what waits for it."""
        self._was_ready = False

    # -- SUBSCRIBE -----------------------------------------------------------------------------------------------------

    def on_subscribe(self, session: Session, connection: Connection, packet: packets.Subscribe) -> None:
        limits = self._state.limits
        pending = _Pending(session, connection, packet.packet_id, [], self._state.now_s + limits.mqtt_subscribe_s)
        if connection.subscribing >= limits.mqtt_subscriptions:
            pending.reasons = [Reason.QUOTA_EXCEEDED] * len(packet.filters)
            pending.message = f"at most {limits.mqtt_subscriptions:,} SUBSCRIBE packets wait for their answers"
            self._answer(pending)
            return
        identifier = packet.properties.get("subscription_ids", [None])[0]
        for wanted in packet.filters:
            reason, message = self._subscribe(session, wanted, identifier, pending)
            pending.reasons.append(reason)
            pending.filters.append(wanted.pattern)
            pending.message = pending.message or message
        if self._is_ready(pending):
            self._answer(pending)
            return
        connection.subscribing += 1
        self._pending[pending] = None
        for key in _keys(pending):
            self._pending_of.setdefault(key, {})[pending] = None

    def _subscribe(
        self, session: Session, wanted: packets.Filter, identifier: int | None, pending: _Pending
    ) -> tuple[Reason, str]:
        known = wanted.pattern in session.subscriptions or wanted.pattern in session.channels
        limit = self._state.limits.mqtt_subscriptions
        if not known and len(session.subscriptions) + len(session.channels) >= limit:
            return Reason.QUOTA_EXCEEDED, f"a session has at most {limit} subscriptions"
        if wanted.pattern.startswith(CHANNELS):
            return self._subscribe_channel(session, wanted, identifier, pending)
        parsed = parsed_filter(wanted.pattern)
        if isinstance(parsed, str):
            return Reason.TOPIC_FILTER_INVALID, parsed
        if not _may_subscribe(session, parsed):
            self._state.record_refusal(session, RECEIVE, parsed.topic_pattern)
            return Reason.NOT_AUTHORIZED, f"this needs a token with the scope receive:{parsed.topic_pattern}"
        subscription = Subscription(parsed, wanted.qos, wanted.no_local, wanted.retain_as_published, identifier)
        if not known:
            self._watch(parsed.topic_pattern)
        session.subscriptions[wanted.pattern] = subscription
        self._state.tree.add(session, subscription)
        if parsed.topic_pattern not in self._ready:
            pending.patterns.add(parsed.topic_pattern)
        if parsed.group is None:
            pending.fresh.append((subscription, wanted.retain_handling, known))
        return Reason(wanted.qos), ""

    def _subscribe_channel(
        self, session: Session, wanted: packets.Filter, identifier: int | None, pending: _Pending
    ) -> tuple[Reason, str]:
        parsed = parsed_channel(wanted.pattern)
        if isinstance(parsed, str):
            return Reason.TOPIC_FILTER_INVALID, parsed
        if not session.may_receive(wanted.pattern):
            self._state.record_refusal(session, SUBSCRIBE, parsed[0])
            return Reason.NOT_AUTHORIZED, f"this needs a token with the scope subscribe:{parsed[0]}"
        wanted.qos = min(wanted.qos, 1)
        session.channels[wanted.pattern] = wanted
        session.channel_ids.pop(wanted.pattern, None)
        if identifier is not None:
            session.channel_ids[wanted.pattern] = identifier
        pending.channels.add(wanted.pattern)
        self._ask_for_channel(session, wanted.pattern, *parsed)
        return Reason(wanted.qos), ""

    def resume_channels(self, session: Session) -> None:
        """Subscribe again to the channels of a session whose client has returned, or has another token.

        A channel that the token does not permit stays in the session, as topics do, and sends nothing.
        """
        for pattern in session.channels:
            parsed = parsed_channel(pattern)
            assert not isinstance(parsed, str), "it was valid when the client subscribed"
            if session.may_receive(pattern):
                self._ask_for_channel(session, pattern, *parsed)

    def _ask_for_channel(self, session: Session, pattern: str, channel: str, parameters: dict[str, str]) -> None:
        assert session.connection is not None
        identity = session.connection.id
        self._state.effects.append(
            SubscribeChannel(session.key, session.user, session.scopes, pattern, channel, parameters, identity)
        )

    def _watch(self, pattern: str) -> None:
        users = self._watched[pattern] = self._watched.get(pattern, 0) + 1
        if users == 1:
            self._state.effects.append(WatchPattern(pattern))

    def _unwatch(self, pattern: str) -> None:
        self._watched[pattern] -= 1
        if not self._watched[pattern]:
            del self._watched[pattern]
            self._ready.discard(pattern)
            self._state.effects.append(UnwatchPattern(pattern))

    # -- the answer ----------------------------------------------------------------------------------------------------

    def on_pattern_ready(self, pattern: str) -> None:
        if pattern in self._watched:
            self._ready.add(pattern)
            for pending in list(self._pending_of.get(("", pattern), ())):
                self._arrived(pending, ("", pattern))

    def on_channel_answered(self, key: str, pattern: str, reason: Reason, message: str) -> None:
        session = self._state.sessions.get(key)
        if session is None or pattern not in session.channels:
            return
        if reason >= Reason.UNSPECIFIED_ERROR:
            del session.channels[pattern]
        for pending in list(self._pending_of.get((key, pattern), ())):
            if pending.session is session and reason >= Reason.UNSPECIFIED_ERROR:
                pending.reasons[pending.filters.index(pattern)] = reason
                pending.message = pending.message or message
            self._arrived(pending, (key, pattern))

    def _arrived(self, pending: _Pending, key: tuple[str, str]) -> None:
        """What the SUBSCRIBE waited for has arrived: answer it if it was the last."""
        (pending.channels if key[0] else pending.patterns).discard(key[1])
        self._forget_key(pending, key)
        if self._is_ready(pending):
            self._finish(pending)

    def tick(self) -> None:
        """Refuse subscriptions whose homes did not answer in time."""
        for pending in list(self._pending):
            if not pending.is_current:
                self._forget(pending)
            elif self._is_ready(pending):
                self._finish(pending)
            elif self._state.now_s >= pending.ends_s:
                self._refuse_late(pending)

    def check_peers(self) -> None:
        """Answer the subscriptions that waited for the retained messages, once this broker has them."""
        if self._peers.is_ready and not self._was_ready:
            self._was_ready = True
            for pending in [pending for pending in self._pending if self._is_ready(pending)]:
                self._finish(pending)

    def _refuse_late(self, pending: _Pending) -> None:
        for index, text in enumerate(pending.filters):
            subscription = pending.session.subscriptions.get(text)
            late = subscription is not None and (
                subscription.filter.topic_pattern in pending.patterns or not self._peers.is_ready
            )
            if late or text in pending.channels:
                self._remove(pending.session, text)
                pending.reasons[index] = Reason.UNSPECIFIED_ERROR
                pending.message = pending.message or _NOT_READY
                pending.fresh = [fresh for fresh in pending.fresh if fresh[0] is not subscription]
        self._finish(pending)

    def _is_ready(self, pending: _Pending) -> bool:
        waits = pending.patterns or pending.channels or (pending.fresh and not self._peers.is_ready)
        return not waits

    def _finish(self, pending: _Pending) -> None:
        """Answer a SUBSCRIBE that had to wait, if its client is still there."""
        self._forget(pending)
        if pending.is_current:
            self._answer(pending)

    def _forget(self, pending: _Pending) -> None:
        if pending in self._pending:
            del self._pending[pending]
            pending.connection.subscribing -= 1
            for key in _keys(pending):
                self._forget_key(pending, key)

    def _forget_key(self, pending: _Pending, key: tuple[str, str]) -> None:
        waiting = self._pending_of.get(key)
        if waiting is not None:
            waiting.pop(pending, None)
            if not waiting:
                del self._pending_of[key]

    def _answer(self, pending: _Pending) -> None:
        state, session, connection = self._state, pending.session, pending.connection
        options = state.reasons(connection, pending.message)
        state.send(connection, packets.SubAck(pending.packet_id, pending.reasons, options))
        for subscription, handling, known in pending.fresh:
            if handling == 2 or (handling == 1 and known) or subscription.filter.text not in session.subscriptions:
                continue
            for publication in self._retained.matching(subscription.filter.pattern):
                if session.may_receive(publication.topic):
                    identifiers = () if subscription.identifier is None else (subscription.identifier,)
                    qos = min(subscription.qos, publication.properties.qos)
                    self._outgoing.offer(session, Outbound(publication, qos, True, identifiers))

    # -- UNSUBSCRIBE ---------------------------------------------------------------------------------------------------

    def on_unsubscribe(self, session: Session, connection: Connection, packet: packets.Unsubscribe) -> None:
        reasons = [
            Reason.SUCCESS if self._remove(session, pattern) else Reason.NO_SUBSCRIPTION_EXISTED
            for pattern in packet.patterns
        ]
        self._state.send(connection, packets.UnsubAck(packet.packet_id, reasons))

    def _remove(self, session: Session, text: str) -> bool:
        if session.channels.pop(text, None) is not None:
            session.channel_ids.pop(text, None)
            self._state.effects.append(UnsubscribeChannel(session.key, session.user, text))
            return True
        subscription = session.subscriptions.pop(text, None)
        if subscription is None:
            return False
        self._state.tree.remove(session, subscription.filter)
        self._unwatch(subscription.filter.topic_pattern)
        return True

    def remove_all(self, session: Session) -> None:
        """The session has ended."""
        for text in [*session.subscriptions, *session.channels]:
            self._remove(session, text)


def _may_subscribe(session: Session, wanted: ParsedFilter) -> bool:
    """A filter without wildcards needs the right to its topic; a wider one gets the topics that the token permits."""
    if is_exact(wanted.topic_pattern):
        return session.may_receive(wanted.topic_pattern)
    return any(scope.startswith(f"{RECEIVE}:") for scope in session.scopes)
