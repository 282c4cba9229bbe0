"""What a subscriber holds and wants to hold, against what the broker at the other end says. Pure.

Driven by `session`, which knows connections; this knows subscriptions: it turns a list of what a broker holds into the
requests that bring the two together, removes repeats, and keeps the acknowledgements to send.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tocsin.client.events import Confirm, Deliver, Effect, End, Grant, Refuse, Wanted
from tocsin.client.patience import Patience
from tocsin.client.standing import Arrival, Standing
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriptionId
from tocsin.wire import session as wire
from tocsin.wire.errors import Code

Ask = tuple["Asked", wire.Subscribe | wire.Unsubscribe | wire.List]
"""A request (its id is set by whoever sends it) and what its answer will be about."""


@dataclass(frozen=True, slots=True)
class WantAsked:
    ticket: int


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    """A subscription that the broker did not list is subscribed again, from where it stands."""

    subscription: SubscriptionId


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    subscription: SubscriptionId


@dataclass(frozen=True, slots=True)
class ListAsked:
    pass


Asked = WantAsked | ResumeAsked | LeaveAsked | ListAsked


@dataclass(frozen=True, slots=True)
class Left:
    received: Cursor
    """Where it stood."""
    at_s: float


@dataclass(slots=True)
class Holdings:
    patience: Patience
    standings: dict[SubscriptionId, Standing] = field(default_factory=dict)
    wants: dict[int, Wanted] = field(default_factory=dict)
    """Not granted yet; asked for again on every new session."""
    leaving: dict[SubscriptionId, int] = field(default_factory=dict)
    """Being given up, with the ticket of whoever waits for that."""
    left: dict[SubscriptionId, Left] = field(default_factory=dict)
    """Given up, the latest last; what is still in flight for them is not news. Kept from session to session: a broker
    that took over in the meantime may have been told to hold them by a coordinator that did not know yet."""
    retry: dict[Asked, float] = field(default_factory=dict)
    """Refused for now: ask again at this time."""
    acked_s: float = float("-inf")
    idle_acked_s: float = float("-inf")

    def cursors(self) -> dict[SubscriptionId, str]:
        """What to resume from: what was handled, not what was received, because brokers remember it as acknowledged.

        What waits here to be handled comes again, and is recognised.
        """
        return {name: str(standing.handled) for name, standing in self.standings.items() if name not in self.leaving}

    def handled(self) -> dict[SubscriptionId, Cursor]:
        return {name: standing.handled for name, standing in self.standings.items()}

    # -- requests ------------------------------------------------------------------------------------------------------

    def reconcile(self, listed: Iterable[wire.Held], now_s: float) -> tuple[list[Ask], list[Effect]]:
        """A session began and these are there: what to ask for, and what of it the application must know.

        What is being given up is told to the broker also if it is not there: it may be on its way there.
        """
        effects: list[Effect] = []
        asks: list[Ask] = []
        present = set()
        self.left = {name: left for name, left in self.left.items() if now_s - left.at_s < self.patience.leave_s}
        self.retry.clear()
        for held in listed:
            present.add(held.subscription)
            if self._was_left(held):
                asks += self.left_again(held.subscription, now_s)
            else:
                self.left.pop(held.subscription, None)
                effects += self._found(held, resumed=True)
        for standing in self.standings.values():
            standing.told = None
        for name in self.standings:
            asks += [] if name in present else self.ask(ResumeAsked(name))
        return asks + self.unanswered(), effects

    def _was_left(self, held: wire.Held) -> bool:
        """Whether it is what was given up, and not one that somebody else of this subscriber's has made since."""
        left, cursor = self.left.get(held.subscription), Cursor.parse(held.cursor)
        return left is not None and cursor is not None and cursor <= left.received

    def left_again(self, subscription: SubscriptionId, now_s: float) -> list[Ask]:
        """A broker holds what may have been given up: then it is told so again. Not while something is wanted, for that
        may be the same subscription; a little later, if that turns out to be something else."""
        if subscription not in self.left:
            return []
        if self.wants:
            self.retry[LeaveAsked(subscription)] = now_s + self.patience.ack_s
            return []
        return self.ask(LeaveAsked(subscription))

    def unanswered(self) -> list[Ask]:
        """The application's wishes that no broker has answered yet."""
        asked: list[Asked] = [LeaveAsked(name) for name in self.leaving]
        asked += [WantAsked(ticket) for ticket in self.wants]
        return [ask for one in asked for ask in self.ask(one)]

    def ask(self, asked: Asked) -> list[Ask]:
        """The request for it; empty if there is nothing (left) to ask."""
        match asked:
            case WantAsked(ticket) if (want := self.wants.get(ticket)) is not None:
                return [(asked, wire.Subscribe(0, want.channel, want.parameters, want.after))]
            case ResumeAsked(name) if (standing := self.standings.get(name)) is not None:
                if standing.parameters is not None and name not in self.leaving:
                    return [(asked, wire.Subscribe(0, standing.channel, standing.parameters, str(standing.handled)))]
            case LeaveAsked(name) if name in self.leaving or name in self.left:
                return [(asked, wire.Unsubscribe(0, name))]
            case ListAsked():
                return [(asked, wire.List(0))]
        return []

    def due(self, now_s: float) -> list[Ask]:
        """What was refused for now and is to be asked again."""
        ready = [asked for asked, at_s in self.retry.items() if at_s <= now_s]
        for asked in ready:
            del self.retry[asked]
        asks: list[Ask] = []
        for asked in ready:
            if isinstance(asked, LeaveAsked) and asked.subscription in self.left:
                asks += self.left_again(asked.subscription, now_s)
            else:
                asks += self.ask(asked)
        return asks

    def acknowledgement(self, now_s: float, *, everything: bool = False) -> dict[SubscriptionId, str]:
        """Cursors worth telling the broker now; they count as told."""
        idle = everything or now_s >= self.idle_acked_s + self.patience.idle_ack_s
        if not (idle or now_s >= self.acked_s + self.patience.ack_s):
            return {}
        worth = [one for one in self.standings.values() if one.told != one.handled and (idle or one.news)]
        for standing in worth:
            standing.told, standing.news = standing.handled, False
        self.acked_s = now_s if worth else self.acked_s
        self.idle_acked_s = now_s if idle else self.idle_acked_s
        return {standing.subscription: str(standing.handled) for standing in worth}

    def ack_due_s(self) -> float:
        """When there will be something to acknowledge; never, if the application is done with nothing new."""
        if any(standing.news for standing in self.standings.values()):
            return self.acked_s + self.patience.ack_s
        moved = any(standing.told != standing.handled for standing in self.standings.values())
        return self.idle_acked_s + self.patience.idle_ack_s if moved else float("inf")

    # -- what the broker says ------------------------------------------------------------------------------------------

    def answered(self, asked: Asked, answer: wire.Answer, now_s: float) -> list[Effect]:
        match answer, asked:
            case wire.Subscribed(held=held), WantAsked(ticket):
                self.left.pop(held.subscription, None)
                effects = self._found(held, resumed=False)
                return effects + ([Grant(ticket, held)] if self.wants.pop(ticket, None) is not None else [])
            case wire.Subscribed(held=held), ResumeAsked() if held.subscription not in self.left:
                return self._found(held, resumed=True)
            case wire.Unsubscribed(), LeaveAsked(name):
                return self._gone(name, now_s)
            case wire.Subscriptions(subscriptions=listed), _:
                news = [held for held in listed if held.subscription not in self.left]
                return [effect for held in news for effect in self._found(held, resumed=False)]
            case wire.Refused(), _:
                return self._refused(asked, answer, now_s)
            case _:
                return []

    def _refused(self, asked: Asked, answer: wire.Refused, now_s: float) -> list[Effect]:
        if answer.code in (Code.NOT_READY, Code.BACKLOGGED):
            self.retry[asked] = now_s + (answer.retry_after_s or self.patience.ack_s)
            return []
        match asked:
            case WantAsked(ticket):
                self.wants.pop(ticket, None)
                return [Refuse(ticket, answer.code, answer.message)]
            case LeaveAsked(name):  # not there: that is what was wanted
                return self._gone(name, now_s)
            case ResumeAsked(name):
                self.standings.pop(name, None)
                return [End(name, answer.code, answer.message)]
            case ListAsked():
                return []

    def result(self, message: wire.Result, reached: dict[SubscriptionId, Cursor]) -> tuple[list[Effect], bool]:
        """Deliver it unless it is a repeat; True if the broker should be asked what this subscription is.

        `reached` is how far the connection has come that it came over; kept up to date here, and below.
        """
        cursor = Cursor.parse(message.cursor)
        if cursor is None or message.subscription in self.left:
            return [], False
        reached[message.subscription] = cursor
        standing = self.standings.get(message.subscription)
        if standing is None:
            # Another session of this subscriber made it. Where it began is not known, so this is where it begins.
            standing = Standing.at(message.subscription, message.channel, None, Cursor(cursor.epoch, 0))
            self.standings[message.subscription] = standing
        match standing.arrived(cursor):
            case Arrival.REPEATED:
                return [], False
            case Arrival.AFTER_GAP:
                gap = wire.Gap(message.subscription, str(Cursor(cursor.epoch, 0)))
                return [Deliver(gap), Deliver(message)], False
            case Arrival.NEW:
                return [Deliver(message)], standing.parameters is None

    def gap(self, message: wire.Gap, reached: dict[SubscriptionId, Cursor]) -> list[Effect]:
        """A gap that ends before what this connection has reached says that our cursor points past everything there
        is: the data cluster lost its data or was replaced by another. Holding on to the cursor would mean taking all
        that comes for repeats, silently. What another connection has brought says nothing: this one may be behind it.
        """
        cursor = Cursor.parse(message.cursor)
        standing = self.standings.get(message.subscription)
        if cursor is None or standing is None:
            return []
        before = reached.get(message.subscription, cursor)
        reached[message.subscription] = cursor
        if cursor < before:
            standing.restart(cursor)
        elif not standing.skipped(cursor):
            return []
        return [Deliver(message)]

    def progress(
        self, message: wire.Progress, held: set[SubscriptionId], reached: dict[SubscriptionId, Cursor]
    ) -> None:
        """Every result before these positions, of what this session holds, was sent."""
        positions = {channel: Cursor.parse(text) for channel, text in message.channels.items()}
        for name in held:
            standing = self.standings.get(name)
            if standing is not None and (position := positions.get(standing.channel)) is not None:
                standing.progressed(position)
                reached[name] = max(position, reached.get(name, position))

    def _found(self, held: wire.Held, *, resumed: bool) -> list[Effect]:
        """The broker holds it, and delivers from its cursor on.

        If it was told where to begin and begins later, what lies between is a gap. A subscription that is being
        delivered already may be shown further on than what has arrived: that is no gap.
        """
        cursor = Cursor.parse(held.cursor)
        if cursor is None:
            return []
        standing = self.standings.get(held.subscription)
        if standing is None:
            self.standings[held.subscription] = Standing.at(held.subscription, held.channel, held.parameters, cursor)
            return []
        standing.channel, standing.parameters = held.channel, held.parameters
        if not (resumed and standing.skipped(cursor)):
            return []
        return [Deliver(wire.Gap(held.subscription, held.cursor))]

    def _gone(self, subscription: SubscriptionId, now_s: float) -> list[Effect]:
        ticket = self.leaving.pop(subscription, None)
        if ticket is None:
            return []  # said again, for a broker that had not heard of it; it may be wanted once more by now
        if (standing := self.standings.pop(subscription, None)) is not None:
            self.left[subscription] = Left(standing.received, now_s)
        return [Confirm(ticket)]
