"""The requests of sessions in the audit log: a request over a WebSocket has no HTTP status of its own.

Logins, subscriptions and refusals are recorded. Acknowledgements, pings and stored updates are not: they are the normal
traffic of a session.
"""

from __future__ import annotations

from tocsin.broker import effects, events
from tocsin.broker.hosted import SessionId
from tocsin.runtime.http.audit import AuditLog
from tocsin.wire import session as wire

_ENDPOINT = "session"
_MOST_WAITING = 1_000
"""The most unanswered requests of one session that are remembered."""
_RECORDED = (wire.Subscribe, wire.Unsubscribe, wire.Logout)


class AuditedSessions:
    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self._waiting: dict[SessionId, dict[int, tuple[str, str, str, bool]]] = {}
        """Session → number of the request → (user, action, object, whether a success is recorded)."""

    def on_event(self, event: events.Event) -> None:
        match event:
            case events.LoginRequested() if not event.is_webhook and event.requester.session is not None:
                self._wait(event.requester.session, event.request, event.subscriber, "login", "session", True)
            case events.RequestReceived(requester=requester, subscriber=name, request=request) if requester.session:
                action = str(request.__struct_config__.tag)
                self._wait(
                    requester.session, request.id, name, action, _object(request), isinstance(request, _RECORDED)
                )
            case events.SessionLost(session):
                self._waiting.pop(session, None)

    def _wait(self, session: SessionId, number: int, user: str, action: str, object_: str, is_recorded: bool) -> None:
        waiting = self._waiting.setdefault(session, {})
        if len(waiting) < _MOST_WAITING:
            waiting[number] = (user, action, object_, is_recorded)

    def on_effect(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.SendToSessions) and isinstance(effect.message, wire.Answer):
            for session in effect.sessions:
                self._answered(session, effect.message)

    def _answered(self, session: SessionId, message: wire.Answer) -> None:
        waiting = self._waiting.get(session, {})
        entry = waiting.pop(message.id, None)
        if not waiting:
            self._waiting.pop(session, None)
        if entry is None:
            return
        user, action, object_, is_recorded = entry
        if isinstance(message, wire.Refused):
            self._log.record(user, action, object_, _ENDPOINT, message.code)
        elif is_recorded:
            self._log.record(user, action, object_, _ENDPOINT, "ok")


def _object(request: wire.FromSubscriber) -> str:
    match request:
        case wire.Subscribe(channel=channel):
            return str(channel)
        case wire.Unsubscribe(subscription=subscription):
            return str(subscription)
        case wire.Update(dataset=dataset):
            return str(dataset)
    return "session"
