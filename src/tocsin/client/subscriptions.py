"""The subscriptions of a session: those held, requested and released, and how they agree with the broker's. Pure.

`session` drives it and owns the connections. This module turns a broker's list of subscriptions into the requests that
make both sides agree, removes repeated results, and decides which acknowledgements to send. It also keeps the
application's updates until a broker has answered them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tocsin.client import events
from tocsin.client.progress import Arrival, SubscriptionProgress
from tocsin.client.timing import Patience
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriptionId
from tocsin.wire import session as wire
from tocsin.wire.errors import Code


@dataclass(frozen=True, slots=True)
class Subscribing:
    ticket: int


@dataclass(frozen=True, slots=True)
class Resuming:
    """Subscribe again, from the handled cursor, because the broker did not list the subscription."""

    subscription: SubscriptionId


@dataclass(frozen=True, slots=True)
class Unsubscribing:
    subscription: SubscriptionId


@dataclass(frozen=True, slots=True)
class Updating:
    ticket: int


@dataclass(frozen=True, slots=True)
class Listing:
    pass


Purpose = Subscribing | Resuming | Unsubscribing | Updating | Listing
Request = tuple[Purpose, wire.Subscribe | wire.Unsubscribe | wire.Update | wire.List]
"""A request without its id, which the session sets, and the purpose that its answer is matched with."""


@dataclass(frozen=True, slots=True)
class ReleasedSubscription:
    received: Cursor
    """The received cursor at the time of the unsubscription."""
    at_s: float


@dataclass(slots=True)
class SessionSubscriptions:
    timing: Patience
    progress: dict[SubscriptionId, SubscriptionProgress] = field(default_factory=dict)
    """The subscriptions that this subscriber holds."""
    requested: dict[int, events.SubscribeRequested] = field(default_factory=dict)
    """Subscribe requests without a final answer, by ticket; sent again on every new session."""
    updating: dict[int, events.UpdateRequested] = field(default_factory=dict)
    """Updates without a final answer, by ticket, the newest last; sent again on every new session."""
    releasing: dict[SubscriptionId, int] = field(default_factory=dict)
    """Subscriptions whose unsubscription is not confirmed yet, with the application's ticket."""
    released: dict[SubscriptionId, ReleasedSubscription] = field(default_factory=dict)
    """Unsubscribed subscriptions, the latest last.

    Results still in flight for them are ignored. Kept from session to session: a coordinator that did not get the
    unsubscription may have made another broker hold them.
    """
    retry_at_s: dict[Purpose, float] = field(default_factory=dict)
    """Requests that were refused temporarily, with the time of the next attempt."""
    acked_s: float = float("-inf")
    idle_acked_s: float = float("-inf")

    def handled(self) -> dict[SubscriptionId, Cursor]:
        return {identity: progress.handled for identity, progress in self.progress.items()}

    def resume_cursors(self) -> dict[SubscriptionId, str]:
        """The cursors to log in with: the handled ones, because a broker stores them as acknowledged.

        Results that were received and not handled come again and are removed as repeats.
        """
        return {
            identity: str(progress.handled)
            for identity, progress in self.progress.items()
            if identity not in self.releasing
        }

    # -- requests ------------------------------------------------------------------------------------------------------

    def reconcile(self, listed: Iterable[wire.Held], now_s: float) -> tuple[list[Request], list[events.Effect]]:
        """Compare with the broker's list at the start of a session: the requests to send, and the effects.

        An unsubscription is sent even if the broker does not list the subscription: an adoption may be pending.
        """
        effects: list[events.Effect] = []
        requests: list[Request] = []
        present = set()
        self.released = {
            identity: released
            for identity, released in self.released.items()
            if now_s - released.at_s < self.timing.leave_s
        }
        self.retry_at_s.clear()
        for held in listed:
            present.add(held.subscription)
            if self._is_released(held):
                requests += self.release_again(held.subscription, now_s)
            else:
                self.released.pop(held.subscription, None)
                effects += self._adopt(held, resumed=True)
        for identity, progress in self.progress.items():
            progress.acknowledged = None
            requests += [] if identity in present else self.request(Resuming(identity))
        return requests + self.unanswered(), effects

    def _is_released(self, held: wire.Held) -> bool:
        """Whether this is the subscription that was released, and not a newer one of another session."""
        released, cursor = self.released.get(held.subscription), Cursor.parse(held.cursor)
        return released is not None and cursor is not None and cursor <= released.received

    def release_again(self, subscription: SubscriptionId, now_s: float) -> list[Request]:
        """Unsubscribe once more if a broker still holds a released subscription.

        A pending subscribe request may be for the same subscription, so the unsubscription waits for its answer.
        """
        if subscription not in self.released:
            return []
        if self.requested:
            self.retry_at_s[Unsubscribing(subscription)] = now_s + self.timing.ack_s
            return []
        return self.request(Unsubscribing(subscription))

    def unanswered(self) -> list[Request]:
        """The application's requests that no broker has answered yet."""
        purposes: list[Purpose] = [Unsubscribing(identity) for identity in self.releasing]
        purposes += [Subscribing(ticket) for ticket in self.requested]
        purposes += [Updating(ticket) for ticket in self.updating]
        return [request for purpose in purposes for request in self.request(purpose)]

    def request(self, purpose: Purpose) -> list[Request]:
        """The request for a purpose; an empty list if the request is no longer needed."""
        match purpose:
            case Subscribing(ticket) if (event := self.requested.get(ticket)) is not None:
                return [(purpose, wire.Subscribe(0, event.channel, event.parameters, event.after))]
            case Resuming(identity) if (progress := self.progress.get(identity)) is not None:
                if progress.parameters is not None and identity not in self.releasing:
                    return [(purpose, wire.Subscribe(0, progress.channel, progress.parameters, str(progress.handled)))]
            case Unsubscribing(identity) if identity in self.releasing or identity in self.released:
                return [(purpose, wire.Unsubscribe(0, identity))]
            case Updating(ticket) if (update := self.updating.get(ticket)) is not None:
                return [(purpose, wire.Update(0, update.dataset, self._newest_record(update)))]
            case Listing():
                return [(purpose, wire.List(0))]
        return []

    def _newest_record(self, update: events.UpdateRequested) -> dict[str, Any]:
        """The record to send for an update: a repeated older update must not overwrite a newer one."""
        dataset = update.dataset.lower()
        return next(newer.record for newer in reversed(self.updating.values()) if newer.dataset.lower() == dataset)

    def _updated(self, ticket: int) -> list[events.Effect]:
        """Report an update as stored, and with it the older ones of its dataset: a retry would overwrite it."""
        update = self.updating.get(ticket)
        if update is None:
            return []
        dataset = update.dataset.lower()
        stored = [
            older for older, other in self.updating.items() if older <= ticket and other.dataset.lower() == dataset
        ]
        for older in stored:
            del self.updating[older]
            self.retry_at_s.pop(Updating(older), None)
        return [events.ReportUpdated(older) for older in stored]

    def due_retries(self, now_s: float) -> list[Request]:
        """Temporarily refused requests whose next attempt is due."""
        due = [purpose for purpose, at_s in self.retry_at_s.items() if at_s <= now_s]
        for purpose in due:
            del self.retry_at_s[purpose]
        requests: list[Request] = []
        for purpose in due:
            if isinstance(purpose, Unsubscribing) and purpose.subscription in self.released:
                requests += self.release_again(purpose.subscription, now_s)
            else:
                requests += self.request(purpose)
        return requests

    # -- acknowledgements ----------------------------------------------------------------------------------------------

    def acknowledgement(self, now_s: float, *, everything: bool = False) -> dict[SubscriptionId, str]:
        """The cursors to acknowledge now; an empty mapping if none is due. They count as acknowledged."""
        idle = everything or now_s >= self.idle_acked_s + self.timing.idle_ack_s
        if not (idle or now_s >= self.acked_s + self.timing.ack_s):
            return {}
        due = [
            progress
            for progress in self.progress.values()
            if progress.acknowledged != progress.handled and (idle or progress.handled_since_ack)
        ]
        for progress in due:
            progress.acknowledged, progress.handled_since_ack = progress.handled, False
        self.acked_s = now_s if due else self.acked_s
        self.idle_acked_s = now_s if idle else self.idle_acked_s
        return {progress.subscription: str(progress.handled) for progress in due}

    def ack_due_s(self) -> float:
        """When the next acknowledgement is due; infinity if there is nothing to acknowledge."""
        if any(progress.handled_since_ack for progress in self.progress.values()):
            return self.acked_s + self.timing.ack_s
        advanced = any(progress.acknowledged != progress.handled for progress in self.progress.values())
        return self.idle_acked_s + self.timing.idle_ack_s if advanced else float("inf")

    # -- messages of a broker ------------------------------------------------------------------------------------------

    def answered(self, purpose: Purpose, answer: wire.Answer, now_s: float) -> list[events.Effect]:
        match answer, purpose:
            case wire.Subscribed(held=held), Subscribing(ticket):
                self.released.pop(held.subscription, None)
                effects = self._adopt(held, resumed=False)
                is_expected = self.requested.pop(ticket, None) is not None
                return effects + ([events.ReportSubscribed(ticket, held)] if is_expected else [])
            case wire.Subscribed(held=held), Resuming() if held.subscription not in self.released:
                return self._adopt(held, resumed=True)
            case wire.Unsubscribed(), Unsubscribing(identity):
                return self._finish_release(identity, now_s)
            case wire.Updated(), Updating(ticket):
                return self._updated(ticket)
            case wire.Subscriptions(subscriptions=listed), _:
                kept = [held for held in listed if held.subscription not in self.released]
                return [effect for held in kept for effect in self._adopt(held, resumed=False)]
            case wire.Refused(), _:
                return self._refused(purpose, answer, now_s)
            case _:
                return []

    def _refused(self, purpose: Purpose, answer: wire.Refused, now_s: float) -> list[events.Effect]:
        if answer.code in (Code.NOT_READY, Code.BACKLOGGED):
            self.retry_at_s[purpose] = now_s + (answer.retry_after_s or self.timing.ack_s)
            return []
        match purpose:
            case Subscribing(ticket):
                self.requested.pop(ticket, None)
                return [events.ReportRefused(ticket, answer.code, answer.message)]
            case Updating(ticket):
                self.updating.pop(ticket, None)
                return [events.ReportRefused(ticket, answer.code, answer.message)]
            case Unsubscribing(identity):  # the broker does not hold it: the unsubscription has its effect
                return self._finish_release(identity, now_s)
            case Resuming(identity):
                self.progress.pop(identity, None)
                return [events.EndSubscription(identity, answer.code, answer.message)]
            case Listing():
                return []

    def result(self, message: wire.Result, reached: dict[SubscriptionId, Cursor]) -> tuple[list[events.Effect], bool]:
        """Deliver a result unless it is a repeat. True if its subscription is unknown, so the broker must list it.

        `reached` is the position of the result's connection in each subscription; this method updates it.
        """
        cursor = Cursor.parse(message.cursor)
        if cursor is None or message.subscription in self.released:
            return [], False
        reached[message.subscription] = cursor
        progress = self.progress.get(message.subscription)
        if progress is None:
            # Another session of this subscriber made the subscription. Its start is unknown, so it starts here.
            start = Cursor(cursor.epoch, 0)
            progress = SubscriptionProgress.at(message.subscription, message.channel, None, start)
            self.progress[message.subscription] = progress
        match progress.receive(cursor):
            case Arrival.REPEATED:
                return [], False
            case Arrival.AFTER_GAP:
                gap = wire.Gap(message.subscription, str(Cursor(cursor.epoch, 0)))
                return [events.DeliverMessage(gap), events.DeliverMessage(message)], False
            case Arrival.NEW:
                return [events.DeliverMessage(message)], progress.parameters is None

    def gap(self, message: wire.Gap, reached: dict[SubscriptionId, Cursor]) -> list[events.Effect]:
        """Deliver a gap that is not known yet, and continue after it. `reached` is as in `result`.

        A gap that ends before the connection's own position means that the data cluster lost its data or was replaced:
        the subscriber's cursor lies after everything there is, and keeping it would remove all new results as repeats.
        Only the gap's own connection is compared, because it may be behind the results of another connection.
        """
        cursor = Cursor.parse(message.cursor)
        progress = self.progress.get(message.subscription)
        if cursor is None or progress is None:
            return []
        before = reached.get(message.subscription, cursor)
        reached[message.subscription] = cursor
        if cursor < before:
            progress.restart_at(cursor)
        elif not progress.skip_to(cursor) and message.ended is None:
            return []
        return [events.DeliverMessage(message)]

    def advance(self, message: wire.Progress, held: set[SubscriptionId], reached: dict[SubscriptionId, Cursor]) -> None:
        """Record that the broker has sent every result before these positions, for the subscriptions it holds."""
        positions = {channel: Cursor.parse(text) for channel, text in message.channels.items()}
        for identity in held:
            progress = self.progress.get(identity)
            if progress is not None and (position := positions.get(progress.channel)) is not None:
                progress.advance_to(position)
                reached[identity] = max(position, reached.get(identity, position))

    def _adopt(self, held: wire.Held, *, resumed: bool) -> list[events.Effect]:
        """Record that the broker holds a subscription and delivers from its cursor on.

        A resumed subscription that starts after the received cursor has a gap. A subscription that is already being
        delivered may be listed with a cursor beyond what has arrived: that is no gap.
        """
        cursor = Cursor.parse(held.cursor)
        if cursor is None:
            return []
        identity = held.subscription
        progress = self.progress.get(identity)
        if progress is None:
            self.progress[identity] = SubscriptionProgress.at(identity, held.channel, held.parameters, cursor)
            return []
        progress.channel, progress.parameters = held.channel, held.parameters
        if not (resumed and progress.skip_to(cursor)):
            return []
        return [events.DeliverMessage(wire.Gap(identity, held.cursor))]

    def _finish_release(self, subscription: SubscriptionId, now_s: float) -> list[events.Effect]:
        ticket = self.releasing.pop(subscription, None)
        if ticket is None:
            return []  # the answer to `release_again`; the application may have subscribed again since
        if (progress := self.progress.pop(subscription, None)) is not None:
            self.released[subscription] = ReleasedSubscription(progress.received, now_s)
        return [events.ReportUnsubscribed(ticket)]
