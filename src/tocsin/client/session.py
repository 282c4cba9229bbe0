"""A subscriber's session without I/O: `handle(event, now_s)` returns what to do. Driven by `subscriber`, and by tests.

One connection serves at a time. A `move` opens a second one beside it; only when the new broker has let the subscriber
in, and holds all it held, is the old one closed [BAD §3.3, ePulsar §3.6: make before break]. Whatever is lost is found
again from the cursors: coordinator first, the last known broker when the coordinator is away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from tocsin.client.events import (
    Close,
    Confirm,
    Deliver,
    Effect,
    Event,
    Finish,
    GiveUp,
    Handled,
    Locate,
    Located,
    Lost,
    NotLocated,
    Open,
    Opened,
    Place,
    Received,
    Send,
    Started,
    Stopped,
    Ticked,
    Unwanted,
    Wanted,
)
from tocsin.client.holdings import Ask, Asked, Holdings, LeaveAsked, ListAsked, ResumeAsked, WantAsked
from tocsin.client.patience import Dice, Patience
from tocsin.client.standing import Standing
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, SubscriptionId
from tocsin.wire import session as wire
from tocsin.wire.errors import Code

_FINAL = {"replaced", Code.BAD_REQUEST, Code.FORBIDDEN, Code.TOO_LARGE}
"""Reasons after which coming back would only repeat them. Not `moved`: if no other session is there, one is needed."""


@dataclass(slots=True)
class Line:
    """One connection."""

    number: int
    place: Place
    deadline_s: float
    """By when it must be logged in."""
    asked_in: bool = False
    """Whether it was sent our login."""
    live_s: float | None = None
    """Since when it is."""
    heard_s: float = 0.0
    progress_s: float = 0.0
    holds: set[SubscriptionId] = field(default_factory=set)
    reached: dict[SubscriptionId, Cursor] = field(default_factory=dict)
    """How far this broker has come: where it was asked to begin, then what it said or sent last."""
    asked: dict[int, Asked] = field(default_factory=dict)
    farewell: wire.Closing | None = None


class SubscriberSession:
    def __init__(self, dice: Dice, remembered: Iterable[Standing] = (), patience: Patience | None = None) -> None:
        self._dice = dice
        self.patience = patience or Patience()
        self.holdings = Holdings(self.patience, {standing.subscription: standing for standing in remembered})
        self.lines: dict[int, Line] = {}
        self.serving: Line | None = None
        """The connection that requests go to."""
        self._coming: Line | None = None
        """A connection that is not logged in yet."""
        self._fading: Line | None = None
        """The broker a move is leaving; it still delivers."""
        self._known: Place | None = None
        """Where to go when the coordinator is away."""
        self._token = ""
        """The coordinator's latest: it outlives the hand-over tokens of moves, and is good at every broker."""
        self._locating = False
        self._retry_s: float | None = None
        self._failures = 0
        self._denied = 0
        self._avoid: BrokerId | None = None
        self._late: dict[BrokerId, float] = {}
        """Where a login of ours may still arrive that we no longer wait for, and until when."""
        self._stop_s: float | None = None
        self.paused = False
        """The application has not taken what there is, so nothing is read: silence says nothing then."""
        self.ended = False
        self.trouble = "no broker was asked for yet"
        """What stands between this subscriber and a session, for whoever waits for one."""
        self._numbers = iter(range(1, 1 << 53))

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if self.ended:
            return []
        return list(self._handle(event, now_s))

    def due_s(self) -> float:
        """When `Ticked` is wanted next."""
        times = [self._retry_s, self._stop_s, *self.holdings.retry.values()]
        if self.serving is not None:
            times.append(self.holdings.ack_due_s())
        for line in self.lines.values():
            if line.live_s is None:
                times.append(line.deadline_s)
            elif not self.paused:
                times.append(line.heard_s + self.patience.stall_after_s(line.progress_s) + 0.001)
        if self._fading is not None:
            times.append(self._fading.deadline_s)
        return min((time_s for time_s in times if time_s is not None), default=float("inf"))

    def _handle(self, event: Event, now_s: float) -> Iterator[Effect]:
        match event:
            case Started():
                yield from self._locate()
            case Located(place):
                yield from self._located(place, now_s)
            case NotLocated():
                yield from self._not_located(event, now_s)
            case Opened(number) if (line := self.lines.get(number)) is not None:
                line.asked_in = True
                line.reached = self.holdings.handled()
                yield Send(number, wire.Login(next(self._numbers), line.place.token, self.holdings.cursors()))
            case Received(number, message) if (line := self.lines.get(number)) is not None:
                line.heard_s = now_s
                yield from self._received(line, message, now_s)
            case Lost(number, reason) if (line := self.lines.get(number)) is not None:
                yield from self._lost(line, line.farewell.code if line.farewell else reason, now_s)
            case Wanted():
                self.holdings.wants[event.ticket] = event
                yield from self._ask(self.holdings.ask(WantAsked(event.ticket)))
            case Unwanted():
                yield from self._unwanted(event)
            case Handled(name, cursor) if (standing := self.holdings.standings.get(name)) is not None:
                standing.handle(cursor)
                yield from self._acknowledge(now_s)
            case Ticked():
                yield from self._ticked(now_s)
            case Stopped():
                yield from self._stopped(now_s)

    # -- finding a broker ----------------------------------------------------------------------------------------------

    def _locate(self) -> Iterator[Effect]:
        self._retry_s = None
        if not self._locating and self._stop_s is None:
            self._locating = True
            yield Locate(self._avoid)

    def _located(self, place: Place, now_s: float) -> Iterator[Effect]:
        self._locating = False
        self._known, self._token = place, place.token
        if self.serving is None and self._coming is None and self._stop_s is None:
            yield from self._open(place, now_s)

    def _not_located(self, event: NotLocated, now_s: float) -> Iterator[Effect]:
        self._locating = False
        self.trouble = event.message
        if self.serving is not None or self._coming is not None or self._stop_s is not None:
            return
        if not event.retry:
            yield from self._give_up(event.code, event.message)
        elif self._known is not None and self._known.broker != self._avoid:
            # The coordinator is away. The broker does not need it, so neither do we.
            self._avoid = self._known.broker  # once: if it is not there either, the coordinator is asked again
            yield from self._open(self._known, now_s)
        else:
            self._avoid = None
            self._wait(now_s, event.retry_after_s)

    def _open(self, place: Place, now_s: float) -> Iterator[Effect]:
        line = Line(next(self._numbers), place, now_s + self.patience.open_s)
        self.lines[line.number] = self._coming = line
        yield Open(line.number, place)

    def _wait(self, now_s: float, at_least_s: float | None = None) -> None:
        self._failures += 1
        self._retry_s = now_s + max(at_least_s or 0.0, self.patience.delay_s(self._failures, self._dice))

    # -- a connection's messages ---------------------------------------------------------------------------------------

    def _received(self, line: Line, message: wire.ToSubscriber, now_s: float) -> Iterator[Effect]:
        match message:
            case wire.Result():
                effects, unknown = self.holdings.result(message, line.reached)
                yield from effects
                if unknown and ListAsked() not in line.asked.values():
                    yield from self._ask(self.holdings.ask(ListAsked()))
            case wire.Gap():
                yield from self.holdings.gap(message, line.reached)
            case wire.Recovered():
                if message.subscription in self.holdings.standings:
                    yield Deliver(message)
                elif line is self.serving:
                    # It may have been brought here by a coordinator that did not know that it had been given up.
                    yield from self._ask(self.holdings.left_again(message.subscription, now_s))
            case wire.Progress():
                self.holdings.progress(message, line.holds, line.reached)
            case wire.Move():
                yield from self._move(message, now_s)
            case wire.Closing():
                line.farewell = message
            case wire.LoggedIn():
                yield from self._logged_in(line, message, now_s)
            case wire.LoggedOut():
                yield from self._finish()
            case wire.Refused() if line.live_s is None:
                yield from self._lost(line, message.code, now_s, message.message, message.retry_after_s)
            case _:
                asked = line.asked.pop(message.id, None)
                if asked is not None:
                    self._note_held(line, message)
                    yield from self.holdings.answered(asked, message, now_s)
                    if isinstance(asked, ResumeAsked) and isinstance(message, wire.Subscribed):
                        # It may have been given up while the broker was waiting for the data cluster.
                        yield from self._ask(self.holdings.left_again(asked.subscription, now_s))
                    yield from self._settle(now_s)

    @staticmethod
    def _note_held(line: Line, answer: wire.Answer) -> None:
        match answer:
            case wire.Subscribed(held=held):
                line.holds.add(held.subscription)
                line.reached |= _positions([held])
            case wire.Unsubscribed(subscription=name):
                line.holds.discard(name)
            case wire.Subscriptions(subscriptions=listed):
                line.holds = {held.subscription for held in listed}
                line.reached |= _positions(listed)

    def _logged_in(self, line: Line, message: wire.LoggedIn, now_s: float) -> Iterator[Effect]:
        if line is not self._coming:
            return
        self._coming, self._avoid, self._retry_s, self._denied = None, None, None, 0
        line.live_s, line.progress_s = now_s, message.progress_s
        self._known = Place(line.place.broker, line.place.address, self._token or line.place.token)
        line.holds = {held.subscription for held in message.subscriptions}
        for name, cursor in _positions(message.subscriptions).items():
            line.reached[name] = max(cursor, line.reached.get(name, cursor))
        left, self.serving = self.serving, line
        if left is not None:
            yield from self._leave()  # a move before this one that never settled
            self._fading = left
            left.deadline_s = now_s + self.patience.fade_s
        asks, effects = self.holdings.reconcile(message.subscriptions, now_s)
        yield from effects
        yield from self._ask(asks)
        yield from self._settle(now_s)
        if self._stop_s is not None:
            yield from self._goodbye(now_s)

    def _move(self, message: wire.Move, now_s: float) -> Iterator[Effect]:
        """The latest invitation counts: the one before has been given up by whoever sent it."""
        if self._stop_s is not None:
            return
        if self._coming is not None:
            self._abandon(self._coming, now_s)
            yield from self._drop(self._coming)
        yield from self._open(Place(message.broker, message.address, message.token), now_s)
        assert self._coming is not None
        self._coming.deadline_s = min(self._coming.deadline_s, now_s + message.deadline_s)

    def _settle(self, now_s: float) -> Iterator[Effect]:
        """The new broker holds everything: the old one can go."""
        if self._fading is not None and self.serving is not None:
            resuming = any(isinstance(asked, ResumeAsked) for asked in self.serving.asked.values())
            if now_s >= self._fading.deadline_s or not (resuming or self.holdings.retry):
                yield from self._leave()

    def _leave(self) -> Iterator[Effect]:
        if self._fading is not None:
            yield from self._drop(self._fading)

    # -- losing a connection -------------------------------------------------------------------------------------------

    def _drop(self, line: Line) -> Iterator[Effect]:
        self._forget(line)
        yield Close(line.number)

    def _forget(self, line: Line) -> None:
        self.lines.pop(line.number, None)
        self.serving = None if self.serving is line else self.serving
        self._coming = None if self._coming is line else self._coming
        self._fading = None if self._fading is line else self._fading

    def _lost(
        self, line: Line, reason: str, now_s: float, message: str = "", retry_after_s: float | None = None
    ) -> Iterator[Effect]:
        self._abandon(line, now_s)
        yield from self._drop(line)
        if self._stop_s is not None:
            yield from self._finish()
            return
        if self.serving is not None or self._coming is not None:
            return  # the other connection serves, or is about to
        if self._fading is not None:
            # The broker we moved to is gone before the one we left: go on there while looking for another.
            self.serving, self._fading = self._fading, None
            yield from self._ask(self.holdings.unanswered())
            return
        message = message or (line.farewell.message if line.farewell else f"the connection ended: {reason}")
        self.trouble = f"{line.place.broker} at {line.place.address}: {message}"
        if reason in (Code.UNAUTHENTICATED, "expired"):
            self._denied += 1
        if reason == "replaced" and self._late.pop(line.place.broker, now_s) > now_s:
            reason = "reset"  # by ourselves: a login we had given up was slower than the one that followed it
        if reason in _FINAL or self._denied >= self.patience.denials:
            yield from self._give_up(reason if self._denied < self.patience.denials else "unauthenticated", message)
            return
        self._count(line, now_s)
        # A broker that never let us in, or fell silent, is not asked for again at once; one that broke off may be back.
        self._avoid = line.place.broker if line.live_s is None or reason == "stalled" else None
        self._wait(now_s, retry_after_s)

    def _abandon(self, line: Line, now_s: float) -> None:
        if line.asked_in and line.live_s is None:
            self._late[line.place.broker] = now_s + self.patience.open_s

    def _count(self, line: Line, now_s: float) -> None:
        if line.live_s is not None and now_s - line.live_s >= self.patience.steady_s:
            self._failures = 0

    def _give_up(self, code: str, message: str) -> Iterator[Effect]:
        for line in list(self.lines.values()):
            yield from self._drop(line)
        self.ended = True
        yield GiveUp(code, message)

    # -- the application's wishes --------------------------------------------------------------------------------------

    def _unwanted(self, event: Unwanted) -> Iterator[Effect]:
        if event.subscription not in self.holdings.standings:
            yield Confirm(event.ticket)
            return
        self.holdings.leaving[event.subscription] = event.ticket
        yield from self._ask(self.holdings.ask(LeaveAsked(event.subscription)))

    def _ask(self, asks: Iterable[Ask]) -> Iterator[Effect]:
        line = self.serving
        if line is None:
            return  # asked again when a session begins
        for asked, request in asks:
            number = next(self._numbers)
            line.asked[number] = asked
            if isinstance(asked, ResumeAsked):
                line.reached[asked.subscription] = self.holdings.standings[asked.subscription].handled
            yield Send(line.number, msgspec.structs.replace(request, id=number))

    def _acknowledge(self, now_s: float, *, everything: bool = False) -> Iterator[Effect]:
        if self.serving is None:
            return
        cursors = self.holdings.acknowledgement(now_s, everything=everything)
        if cursors:
            yield Send(self.serving.number, wire.Ack(next(self._numbers), cursors))

    # -- time ----------------------------------------------------------------------------------------------------------

    def _ticked(self, now_s: float) -> Iterator[Effect]:
        if self._stop_s is not None and now_s >= self._stop_s:
            yield from self._finish()
            return
        for line in list(self.lines.values()):
            if line.live_s is None and now_s >= line.deadline_s:
                yield from self._lost(line, "timeout", now_s)
            elif line.live_s is not None and self._silent(line, now_s):
                yield from self._lost(line, "stalled", now_s)
        yield from self._settle(now_s)
        yield from self._ask(self.holdings.due(now_s))
        yield from self._acknowledge(now_s)
        if self._retry_s is not None and now_s >= self._retry_s:
            yield from self._locate()

    def _silent(self, line: Line, now_s: float) -> bool:
        return not self.paused and self.patience.stalled(now_s - line.heard_s, line.progress_s)

    def resumed_reading(self, now_s: float) -> None:
        """The application made room: silence counts again, from now on."""
        self.paused = False
        for line in self.lines.values():
            line.heard_s = now_s

    # -- the end -------------------------------------------------------------------------------------------------------

    def _stopped(self, now_s: float) -> Iterator[Effect]:
        if self._stop_s is not None:
            return
        self._stop_s = now_s + self.patience.stop_s
        if self.serving is None:
            yield from self._finish()
        else:
            yield from self._goodbye(now_s)

    def _goodbye(self, now_s: float) -> Iterator[Effect]:
        assert self.serving is not None
        yield from self._acknowledge(now_s, everything=True)
        yield Send(self.serving.number, wire.Logout(next(self._numbers)))

    def _finish(self) -> Iterator[Effect]:
        for line in list(self.lines.values()):
            yield from self._drop(line)
        self.ended = True
        yield Finish()


def _positions(listed: Iterable[wire.Held]) -> dict[SubscriptionId, Cursor]:
    return {held.subscription: cursor for held in listed if (cursor := Cursor.parse(held.cursor)) is not None}
