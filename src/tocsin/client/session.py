"""A subscriber's session without I/O: `handle(event, now_s)` returns effects. `driver` and the simulator drive it.

One connection serves at a time. A `move` opens a second one; the session leaves the old broker only when the new one
has logged it in and holds all its subscriptions [BAD §3.3, ePulsar §3.6: make before break]. After a failure the
session resumes from its cursors. It asks the coordinator for a broker, or uses the last known one if the coordinator
is down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tocsin.client import events
from tocsin.client.connections import BrokerSearch, ConnectionSet, ConnectionState
from tocsin.client.progress import SubscriptionProgress
from tocsin.client.subscriptions import (
    Listing,
    Request,
    Resuming,
    SessionSubscriptions,
    Subscribing,
    Unsubscribing,
    Updating,
)
from tocsin.client.timing import Jitter, Patience
from tocsin.wire import session as wire

Effects = Iterator[events.Effect]


class SubscriberSession:
    def __init__(
        self, jitter: Jitter, remembered: Iterable[SubscriptionProgress] = (), patience: Patience | None = None
    ) -> None:
        self.timing = patience or Patience()
        self.subscriptions = SessionSubscriptions(self.timing, {entry.subscription: entry for entry in remembered})
        self.connections = ConnectionSet()
        self._search = BrokerSearch(self.timing, jitter)
        self._stop_s: float | None = None
        """When to finish even if the log-out has no answer; None while the session is not stopping."""
        self.paused = False
        """True while the application's queue is full.

        The driver then reads nothing, so silence is no sign of a stall.
        """
        self.ended = False
        self.trouble = "no broker was requested yet"
        """The reason why there is no session, for error messages."""
        self._numbers = iter(range(1, 1 << 53))

    @property
    def serving(self) -> ConnectionState | None:
        return self.connections.serving

    @property
    def _needs_broker(self) -> bool:
        connected = self.connections.serving is not None or self.connections.opening is not None
        return not connected and self._stop_s is None

    def handle(self, event: events.Event, now_s: float) -> list[events.Effect]:
        return [] if self.ended else list(self._handle(event, now_s))

    def due_s(self) -> float:
        """When the next `TimePassed` is due; infinity if none is."""
        times = [self._search.retry_s, self._stop_s, *self.subscriptions.retry_at_s.values()]
        if self.serving is not None:
            times.append(self.subscriptions.ack_due_s())
        times += self.connections.deadlines(self.timing, paused=self.paused)
        return min((time_s for time_s in times if time_s is not None), default=float("inf"))

    def resumed_reading(self, now_s: float) -> None:
        """End the pause, because the application's queue has room. A broker's silence counts from now on."""
        self.paused = False
        for connection in self.connections.by_number.values():
            connection.heard_s = now_s

    def _handle(self, event: events.Event, now_s: float) -> Effects:
        by_number = self.connections.by_number
        match event:
            case events.Started():
                yield from self._locate()
            case events.BrokerLocated(address):
                self._search.located(address)
                if self._needs_broker:
                    yield from self._open(address, now_s)
            case events.LocateFailed():
                yield from self._locate_failed(event, now_s)
            case events.ConnectionOpened(number) if (connection := by_number.get(number)) is not None:
                connection.login_sent = True
                connection.reached = self.subscriptions.handled()
                cursors = self.subscriptions.resume_cursors()
                yield events.SendRequest(number, wire.Login(next(self._numbers), connection.address.token, cursors))
            case events.MessageReceived(number, message) if (connection := by_number.get(number)) is not None:
                connection.heard_s = now_s
                yield from self._received(connection, message, now_s)
            case events.ConnectionLost(number, reason) if (connection := by_number.get(number)) is not None:
                yield from self._lost(connection, connection.closing.code if connection.closing else reason, now_s)
            case events.SubscribeRequested():
                self.subscriptions.requested[event.ticket] = event
                yield from self._send(self.subscriptions.request(Subscribing(event.ticket)))
            case events.UnsubscribeRequested(ticket, identity) if identity in self.subscriptions.progress:
                self.subscriptions.releasing[identity] = ticket
                yield from self._send(self.subscriptions.request(Unsubscribing(identity)))
            case events.UnsubscribeRequested(ticket):
                yield events.ReportUnsubscribed(ticket)
            case events.UpdateRequested(ticket):
                self.subscriptions.updating[ticket] = event
                yield from self._send(self.subscriptions.request(Updating(ticket)))
            case events.ResultHandled(identity, cursor) if identity in self.subscriptions.progress:
                self.subscriptions.progress[identity].mark_handled(cursor)
                yield from self._acknowledge(now_s)
            case events.TimePassed():
                yield from self._ticked(now_s)
            case events.Stopped() if self._stop_s is None:
                self._stop_s = now_s + self.timing.stop_s
                yield from self._end() if self.serving is None else self._log_out(now_s)

    # -- finding a broker ----------------------------------------------------------------------------------------------

    def _locate(self) -> Effects:
        self._search.retry_s = None
        if not self._search.pending and self._stop_s is None:
            self._search.pending = True
            yield events.LocateBroker(self._search.avoid)

    def _locate_failed(self, event: events.LocateFailed, now_s: float) -> Effects:
        self._search.pending = False
        self.trouble = event.message
        if not self._needs_broker:
            return
        if not event.retry:
            yield from self._end(events.FailSession(event.code, event.message))
        elif (address := self._search.fall_back()) is not None:
            yield from self._open(address, now_s)
        else:
            self._search.back_off(now_s, event.retry_after_s)

    def _open(self, address: events.BrokerAddress, now_s: float, at_most_s: float = float("inf")) -> Effects:
        number = next(self._numbers)
        self.connections.open(number, address, now_s + min(self.timing.open_s, at_most_s))
        yield events.OpenConnection(number, address)

    # -- messages of a broker ------------------------------------------------------------------------------------------

    def _received(self, connection: ConnectionState, message: wire.ToSubscriber, now_s: float) -> Effects:
        match message:
            case wire.Result():
                effects, is_unknown = self.subscriptions.result(message, connection.reached)
                yield from effects
                if is_unknown and Listing() not in connection.requests.values():
                    yield from self._send(self.subscriptions.request(Listing()))
            case wire.Gap():
                yield from self.subscriptions.gap(message, connection.reached)
            case wire.Recovered(subscription=identity) if identity in self.subscriptions.progress:
                yield events.DeliverMessage(message)
            case wire.Recovered(subscription=identity):
                if connection is self.serving:
                    # A coordinator that did not get the unsubscription may have restored the subscription.
                    yield from self._send(self.subscriptions.release_again(identity, now_s))
            case wire.Progress():
                self.subscriptions.advance(message, connection.holds, connection.reached)
            case wire.Move():
                yield from self._move(message, now_s)
            case wire.Closing():
                connection.closing = message
            case wire.LoggedIn():
                if connection is self.connections.opening:
                    yield from self._logged_in(connection, message, now_s)
            case wire.LoggedOut():
                yield from self._end()
            case wire.Refused() if connection.logged_in_s is None:
                yield from self._lost(connection, message.code, now_s, message)
            case _:
                yield from self._answered(connection, message, now_s)

    def _answered(self, connection: ConnectionState, answer: wire.Answer, now_s: float) -> Effects:
        purpose = connection.requests.pop(answer.id, None)
        if purpose is None:
            return
        connection.note_answer(answer)
        yield from self.subscriptions.answered(purpose, answer, now_s)
        if isinstance(purpose, Resuming) and isinstance(answer, wire.Subscribed):
            # The application may have unsubscribed while the broker waited for the data cluster.
            yield from self._send(self.subscriptions.release_again(purpose.subscription, now_s))
        yield from self._close_retired(now_s)

    def _logged_in(self, connection: ConnectionState, message: wire.LoggedIn, now_s: float) -> Effects:
        self._search.logged_in(connection.address)
        connection.log_in(message, now_s)
        yield from self.connections.serve_opened(now_s + self.timing.fade_s)
        requests, effects = self.subscriptions.reconcile(message.subscriptions, now_s)
        yield from effects
        yield from self._send(requests)
        yield from self._close_retired(now_s)
        if self._stop_s is not None:
            yield from self._log_out(now_s)

    def _move(self, message: wire.Move, now_s: float) -> Effects:
        """Follow the latest move: the coordinator has abandoned an earlier one."""
        if self._stop_s is not None:
            return
        if self.connections.opening is not None:
            self._search.note_unanswered_login(self.connections.opening, now_s)
            yield from self.connections.drop(self.connections.opening)
        address = events.BrokerAddress(message.broker, message.address, message.token)
        yield from self._open(address, now_s, message.deadline_s)

    def _close_retired(self, now_s: float) -> Effects:
        """Leave the old broker once the new one holds every subscription, or at the deadline."""
        retiring = self.connections.retiring
        if retiring is not None and self.serving is not None:
            resuming = any(isinstance(purpose, Resuming) for purpose in self.serving.requests.values())
            if now_s >= retiring.deadline_s or not (resuming or self.subscriptions.retry_at_s):
                yield from self.connections.drop(retiring)

    # -- losing a connection -------------------------------------------------------------------------------------------

    def _lost(
        self, connection: ConnectionState, reason: str, now_s: float, refused: wire.Refused | None = None
    ) -> Effects:
        self._search.note_unanswered_login(connection, now_s)
        yield from self.connections.drop(connection)
        if self._stop_s is not None:
            yield from self._end()
        elif not self._needs_broker:
            return  # the other connection serves or is opening
        elif self.connections.retiring is not None:
            # The broker that the session moved to failed first: continue with the one that it was leaving.
            self.connections.serve_retiring()
            yield from self._send(self.subscriptions.unanswered())
        else:
            last_word = refused or connection.closing
            message = last_word.message if last_word and last_word.message else f"the connection ended: {reason}"
            self.trouble = f"{connection.address.broker} at {connection.address.address}: {message}"
            if (code := self._search.failure(connection, reason, now_s)) is not None:
                yield from self._end(events.FailSession(code, message))
            else:
                self._search.reconnect_after(connection, reason, now_s, refused.retry_after_s if refused else None)

    # -- requests and time ---------------------------------------------------------------------------------------------

    def _send(self, requests: Iterable[Request]) -> Effects:
        connection = self.serving
        if connection is None:
            return  # sent when the next session starts
        for purpose, request in requests:
            number = next(self._numbers)
            connection.requests[number] = purpose
            if isinstance(purpose, Resuming):
                connection.reached[purpose.subscription] = self.subscriptions.progress[purpose.subscription].handled
            yield events.SendRequest(connection.number, msgspec.structs.replace(request, id=number))

    def _acknowledge(self, now_s: float, *, everything: bool = False) -> Effects:
        if self.serving is not None and (cursors := self.subscriptions.acknowledgement(now_s, everything=everything)):
            yield events.SendRequest(self.serving.number, wire.Ack(next(self._numbers), cursors))

    def _ticked(self, now_s: float) -> Effects:
        if self._stop_s is not None and now_s >= self._stop_s:
            yield from self._end()
            return
        for connection in list(self.connections.by_number.values()):
            if connection.logged_in_s is None and now_s >= connection.deadline_s:
                yield from self._lost(connection, "timeout", now_s)
            elif connection.logged_in_s is not None and not self.paused and now_s > connection.stalled_s(self.timing):
                yield from self._lost(connection, "stalled", now_s)
        yield from self._close_retired(now_s)
        yield from self._send(self.subscriptions.due_retries(now_s))
        yield from self._acknowledge(now_s)
        if self._search.retry_s is not None and now_s >= self._search.retry_s:
            yield from self._locate()

    # -- the end -------------------------------------------------------------------------------------------------------

    def _log_out(self, now_s: float) -> Effects:
        assert self.serving is not None
        yield from self._acknowledge(now_s, everything=True)
        yield events.SendRequest(self.serving.number, wire.Logout(next(self._numbers)))

    def _end(self, outcome: events.FinishSession | events.FailSession = events.FinishSession()) -> Effects:
        yield from self.connections.drop_all()
        self.ended = True
        yield outcome
