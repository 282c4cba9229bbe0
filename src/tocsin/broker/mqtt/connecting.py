"""CONNECT, authentication, sessions that are taken over, resumed and expire, and wills [MQTT5 §3.1, §3.14, §4.12].

A client proves its user with a token: as the password, or by the authentication method `token`, with which it can also
renew the token on the open connection.
"""

from __future__ import annotations

from tocsin.broker.mqtt import packets
from tocsin.broker.mqtt.effects import CheckToken, Close, RecordRefusal
from tocsin.broker.mqtt.events import TokenAccepted, TokenRefused
from tocsin.broker.mqtt.incoming import IncomingMessages
from tocsin.broker.mqtt.names import name_problem, topic_of
from tocsin.broker.mqtt.outgoing import Outgoing
from tocsin.broker.mqtt.packets import V5, V311
from tocsin.broker.mqtt.publication import POSITION
from tocsin.broker.mqtt.reasons import Reason
from tocsin.broker.mqtt.session import NEVER_S, Connection, MqttState, Session
from tocsin.broker.mqtt.sharing import Sharing
from tocsin.broker.mqtt.subscribing import Subscribing
from tocsin.model.permission import SEND, permits_topic

METHOD = "token"
_LONGEST_CLIENT_ID = 256


class Connecting:
    def __init__(
        self,
        state: MqttState,
        incoming: IncomingMessages,
        outgoing: Outgoing,
        subscribing: Subscribing,
        sharing: Sharing,
    ) -> None:
        self._state = state
        self._incoming = incoming
        self._outgoing = outgoing
        self._subscribing = subscribing
        self._sharing = sharing
        self._assigned = 0

    # -- CONNECT -------------------------------------------------------------------------------------------------------

    def on_connect(self, connection: Connection, packet: packets.Connect) -> None:
        options = packet.properties
        connection.connect, connection.version = packet, packet.version
        connection.wants_reasons = bool(options.get("request_problem_information", 1))
        connection.maximum_packet_bytes = options.get("maximum_packet_bytes")
        connection.receive_maximum = options.get("receive_maximum", 65_535)
        connection.alias_maximum = options.get("topic_alias_maximum", 0)
        connection.wants_positions = any(name == POSITION for name, _ in options.get("user_properties", ()))
        connection.method = options.get("authentication_method")
        if connection.method not in (None, METHOD):
            self._state.end(
                connection, Reason.BAD_AUTHENTICATION_METHOD, f"the authentication method here is {METHOD!r}"
            )
            return
        if len(packet.client_id) > _LONGEST_CLIENT_ID or (
            packet.version == V311 and not packet.client_id and not packet.clean_start
        ):
            self._state.end(
                connection,
                Reason.CLIENT_ID_NOT_VALID,
                f"a client identifier has at most {_LONGEST_CLIENT_ID} characters; an empty one needs a clean session",
            )
            return
        token = options.get("authentication_data", b"") if connection.method else packet.password
        connection.checking = True
        self._state.effects.append(CheckToken(connection.id, _text(token)))

    def on_auth(self, connection: Connection, packet: packets.Auth) -> None:
        """Renew the token on the open connection [MQTT5 §4.12.1]."""
        if connection.method is None or packet.properties.get("authentication_method") != connection.method:
            self._state.end(connection, Reason.PROTOCOL_ERROR, "the authentication method is that of the CONNECT")
        elif packet.reason != Reason.RE_AUTHENTICATE or connection.checking:
            self._state.end(connection, Reason.PROTOCOL_ERROR, "no authentication is in progress")
        else:
            connection.checking = True
            token = _text(packet.properties.get("authentication_data", b""))
            self._state.effects.append(CheckToken(connection.id, token))

    def on_refused(self, connection: Connection, event: TokenRefused) -> None:
        self._state.end(connection, event.reason, event.message)

    def on_accepted(self, connection: Connection, event: TokenAccepted) -> None:
        connection.checking = False
        session = connection.session
        if session is None:
            self._open(connection, event)
        elif session.user != event.user:
            self._state.effects.append(RecordRefusal(event.user, "login", f"session of {session.user}"))
            self._state.end(connection, Reason.NOT_AUTHORIZED, "the new token belongs to another user")
        else:
            self._allow(session, event.scopes, sent=False)
            connection.expires_s = event.expires_s
            self._state.send(connection, packets.Auth(Reason.SUCCESS, {"authentication_method": connection.method}))
            self._subscribing.resume_channels(session)

    def _allow(self, session: Session, scopes: frozenset[str], *, sent: bool) -> None:
        """Give the session the scopes of a new token, and take back what waits for it and they do not permit."""
        session.allow(scopes)
        withdrawn = self._outgoing.withdraw(session, sent=sent)
        self._outgoing.report_missing(session, self._sharing.share_again(withdrawn))

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _open(self, connection: Connection, event: TokenAccepted) -> None:
        state, packet = self._state, connection.connect
        assert packet is not None
        reference = state.references.get(event.user) or state.references.get(None)
        if reference is not None:
            reason = Reason.SERVER_MOVED if reference[1] else Reason.USE_ANOTHER_SERVER
            state.end(connection, reason, "connect to another broker of this network", reference[0] or None)
            return
        refusal = self._will_refusal(packet, event.user, event.scopes)
        if refusal is not None:
            state.end(connection, *refusal)
            return
        client_id = packet.client_id or self._new_client_id()
        key = f"{event.user}\x1f{client_id}"
        session = state.sessions.get(key)
        if session is None and not self._has_room(connection, event.user):
            return
        if session is not None:
            self._take_over(session, packet)
            session = state.sessions.get(key)
        present = session is not None
        if session is None:
            session = self._new_session(key, event.user, client_id)
        self._allow(session, event.scopes, sent=True)
        self._attach(session, connection, packet, event)
        state.send(connection, self._connack(session, connection, packet, present))
        self._outgoing.resume(session)
        self._subscribing.resume_channels(session)

    def _will_refusal(self, packet: packets.Connect, user: str, scopes: frozenset[str]) -> tuple[Reason, str] | None:
        if packet.will is None:
            return None
        problem = name_problem(packet.will.topic)
        if problem is not None:
            return Reason.TOPIC_NAME_INVALID, f"the topic of the will: {problem}"
        topic = topic_of(packet.will.topic)
        if not permits_topic(scopes, SEND, topic):
            self._state.effects.append(RecordRefusal(user, SEND, topic))
            return Reason.NOT_AUTHORIZED, f"the will needs a token with the scope send:{topic}"
        return None

    def _has_room(self, connection: Connection, user: str) -> bool:
        limits = self._state.limits
        if len(self._state.sessions) >= limits.mqtt_sessions:
            self._state.end(connection, Reason.SERVER_BUSY, f"this broker has {limits.mqtt_sessions:,} sessions")
            return False
        if self._state.by_user.get(user, 0) >= limits.mqtt_user_sessions:
            self._state.end(
                connection, Reason.QUOTA_EXCEEDED, f"a user has at most {limits.mqtt_user_sessions:,} sessions"
            )
            return False
        return True

    def _new_client_id(self) -> str:
        self._assigned += 1
        return f"auto-{self._state.broker}-{int(self._state.now_s * 1e6):x}-{self._assigned}"

    def _take_over(self, session: Session, packet: packets.Connect) -> None:
        """Another connection continues the session, or replaces it by a new one [MQTT-3.1.4-3]."""
        previous = session.connection
        if previous is not None:
            self._state.end(previous, Reason.SESSION_TAKEN_OVER, "another connection has this client identifier")
            self.disconnected(session)
        if packet.clean_start and session.key in self._state.sessions:
            self.end_session(session)

    def _new_session(self, key: str, user: str, client_id: str) -> Session:
        session = self._state.sessions[key] = Session(key, user, client_id, frozenset())
        self._state.by_user[user] = self._state.by_user.get(user, 0) + 1
        return session

    def _attach(self, session: Session, connection: Connection, packet: packets.Connect, event: TokenAccepted) -> None:
        connection.session, session.connection = session, connection
        connection.user, connection.expires_s = event.user, event.expires_s
        connection.keep_alive_s = min(packet.keep_alive_s, self._state.limits.mqtt_keep_alive_s)
        self._state.detached.pop(session, None)
        session.ends_s = session.will_due_s = None
        session.will = packet.will
        wanted_s = packet.properties.get("session_expiry_s", 0)
        if packet.version == V311:
            wanted_s = 0 if packet.clean_start else NEVER_S
        session.expiry_s = min(wanted_s, self._state.limits.mqtt_session_s)

    def _connack(
        self, session: Session, connection: Connection, packet: packets.Connect, present: bool
    ) -> packets.ConnAck:
        if connection.version != V5:
            return packets.ConnAck(session_present=present)
        limits = self._state.limits
        options: packets.Properties = {
            "receive_maximum": limits.mqtt_receive_maximum,
            "topic_alias_maximum": limits.mqtt_topic_aliases,
            "maximum_packet_bytes": limits.mqtt_packet_bytes,
        }
        if session.expiry_s != packet.properties.get("session_expiry_s", 0):
            options["session_expiry_s"] = session.expiry_s
        if connection.keep_alive_s != packet.keep_alive_s:
            options["server_keep_alive_s"] = connection.keep_alive_s
        if not packet.client_id:
            options["assigned_client_id"] = session.client_id
        if connection.method is not None:
            options["authentication_method"] = connection.method
        if packet.properties.get("request_response_information"):
            options["response_information"] = f"reply/{session.client_id}"
        return packets.ConnAck(session_present=present, properties=options)

    # -- the end of connections and sessions ---------------------------------------------------------------------------

    def on_disconnect(self, connection: Connection, packet: packets.Disconnect) -> None:
        session = connection.session
        assert session is not None
        expiry_s = packet.properties.get("session_expiry_s")
        if expiry_s is not None:
            if session.expiry_s == 0 and expiry_s:
                self._state.end(
                    connection, Reason.PROTOCOL_ERROR, "a session without expiry cannot get one in DISCONNECT"
                )
                self.disconnected(session)
                return
            session.expiry_s = min(expiry_s, self._state.limits.mqtt_session_s)
        if packet.reason == Reason.SUCCESS:
            session.will = None
        connection.closed = True
        self._state.effects.append(Close(connection.id))
        self.disconnected(session)

    def disconnected(self, session: Session) -> None:
        """The session has no connection any more."""
        now_s = self._state.now_s
        connection, session.connection = session.connection, None
        if connection is not None:
            connection.session = None
        session.ends_s = now_s + session.expiry_s
        self._state.detached[session] = None
        if session.will is not None:
            delay_s = session.will.properties.get("will_delay_s", 0)
            session.will_due_s = now_s + min(delay_s, session.expiry_s)
        self._expire(session)

    def tick(self) -> None:
        for session in list(self._state.detached):
            self._expire(session)

    def _expire(self, session: Session) -> None:
        now_s = self._state.now_s
        if session.will_due_s is not None and now_s >= session.will_due_s:
            self._publish_will(session)
        if session.ends_s is not None and now_s >= session.ends_s:
            self.end_session(session)

    def _publish_will(self, session: Session) -> None:
        will, session.will, session.will_due_s = session.will, None, None
        if will is not None and session.may_send(topic_of(will.topic)):
            self._incoming.publish(session, will.topic, will)

    def end_session(self, session: Session) -> None:
        """Forget the session. Its will does not wait any longer [MQTT-3.1.3-9]."""
        if session.will_due_s is not None:
            self._publish_will(session)
        del self._state.sessions[session.key]
        self._state.detached.pop(session, None)
        self._state.by_user[session.user] -= 1
        if not self._state.by_user[session.user]:
            del self._state.by_user[session.user]
        self._subscribing.remove_all(session)
        self._incoming.forget(session)
        self._sharing.pass_on(session)


def _text(token: bytes | None) -> str | None:
    try:
        return None if token is None else token.decode() or None
    except UnicodeDecodeError:
        return None
